"""``quietbit catalogue``: the designs that ship with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    asked: dict[str, Any] = {"input_levels": levels, "output_bits": bits, "epsilon": epsilon}
    asked["bias"] = None if bias is None else bias_of(bias)
    found = {
        catalogue_name(design): design
        for design in quietbit.catalogue()
        if all(value in (None, getattr(design.spec, name)) for name, value in asked.items())
    }
    if export is not None:
        check_folder(export)
        for name, design in found.items():
            design.save(export / f"{name}.json")
    rows = []
    for name, design in found.items():
        measured = quietbit.certify(design)
        facts = {key: getattr(measured, key) for key in ("epsilon_upper", "bias_upper", "mean_squared_error")}
        rows.append({"name": name, **facts, "identity": design.identity()})
    if json:
        show_json(rows)
        return
    lines = [
        (
            one["name"],
            rounded_up(one["epsilon_upper"], 8),
            rounded_up(one["bias_upper"], 2),
            rounded(one["mean_squared_error"]),
            one["identity"][:12],
        )
        for one in rows
    ]
    copied = f", copied to {export}" if export is not None else ""
    heads = ("name", "measured epsilon", "largest bias", "mean squared error", "identity")
    column_table(f"{len(lines)} designs{copied}", heads, lines)
