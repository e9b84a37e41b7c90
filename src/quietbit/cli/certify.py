"""``quietbit certify``: measure what a design file promises, from its stored numbers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import quietbit
from quietbit.cli.console import JsonOption, record
from quietbit.cli.design import certificate_rows

__all__ = ["certify"]


def certify(
    file: Annotated[Path, typer.Argument(help="A design file.")],
    bound: Annotated[
        bool, typer.Option("--bound/--no-bound", help="Compute how good any design could be (slow for many levels).")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Measure a design file in exact arithmetic; exit code 1 if it does not meet its own spec.

    Example: quietbit certify table.json
    """
    found = quietbit.Design.load(file)
    certificate = quietbit.certify(found)
    record(f"{file}", certificate_rows(found, certificate, bound=bound, quiet=json), json)
    if not certificate.meets_spec:
        raise typer.Exit(1)
