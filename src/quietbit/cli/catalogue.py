"""``quietbit catalogue``: the designs that ship with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import quietbit
from quietbit.cli.console import JsonOption, column_table, rounded, rounded_up, show_json
from quietbit.cli.files import check_folder
from quietbit.cli.options import bias_of, catalogue_name

__all__ = ["catalogue"]


def catalogue(
    levels: Annotated[int | None, typer.Option(help="Only designs with this many input levels.")] = None,
    bits: Annotated[int | None, typer.Option(help="Only designs with this many bits.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Only designs with this epsilon.")] = None,
    bias: Annotated[str | None, typer.Option(metavar="exact|PENALTY", help="Only designs with this bias.")] = None,
    export: Annotated[Path | None, typer.Option(metavar="DIR", help="Copy the listed designs there.")] = None,
    json: JsonOption = False,
) -> None:
    """List the designs that ship with the package; their names serve wherever a design file does.

    Example: quietbit catalogue --levels 2 --bits 1
    """
    wanted = {
        "input_levels": levels,
        "output_bits": bits,
        "epsilon": epsilon,
        "bias": bias_of(bias) if bias is not None else None,
    }
    asked = {name: value for name, value in wanted.items() if value is not None}
    found = [
        design
        for design in quietbit.catalogue()
        if all(getattr(design.spec, name) == value for name, value in asked.items())
    ]
    if export is not None:
        check_folder(export)
        for design in found:
            design.save(export / f"{catalogue_name(design)}.json")
    certified = [(design, quietbit.certify(design)) for design in found]
    if json:
        show_json(
            [
                {
                    "name": catalogue_name(design),
                    "epsilon_upper": certificate.epsilon_upper,
                    "bias_upper": certificate.bias_upper,
                    "mean_squared_error": certificate.mean_squared_error,
                    "identity": design.identity(),
                }
                for design, certificate in certified
            ]
        )
        return
    lines = [
        (
            catalogue_name(design),
            rounded_up(certificate.epsilon_upper, 8),
            rounded_up(certificate.bias_upper, 2),
            rounded(certificate.mean_squared_error),
            design.identity()[:12],
        )
        for design, certificate in certified
    ]
    copied = f", copied to {export}" if export is not None else ""
    heads = ("name", "measured epsilon", "largest bias", "mean squared error", "identity")
    column_table(f"{len(lines)} designs{copied}", heads, lines)
