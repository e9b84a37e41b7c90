"""``quietbit certify``: measure what a design file promises, from its stored numbers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import quietbit
from quietbit.cli.console import JsonOption, record
from quietbit.cli.options import takes, usual
from quietbit.cli.rows import certificate_rows

__all__ = ["certify"]


@takes((usual("bound", True),))
def certify(file: Annotated[Path, typer.Argument(help="A design file.")], bound: bool, json: JsonOption = False) -> int:
    """Measure a design file in exact arithmetic; exit code 1 if it does not meet its own spec.

    Example: quietbit certify table.json
    """
    found = quietbit.Design.load(file)
    certificate = quietbit.certify(found)
    record(f"{file}", certificate_rows(found, certificate, bound=bound, quiet=json), json)
    return 0 if certificate.meets_spec else 1
