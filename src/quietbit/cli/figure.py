"""``quietbit figure``: figures of the paper, drawn anew from the library's own designs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import quietbit
from quietbit._validate import require
from quietbit.cli.console import JsonOption, Row, progress_bar, record
from quietbit.cli.files import check_outputs

__all__ = ["figure"]

FIGURES = ("bias-variance",)


def figure(
    name: Annotated[str, typer.Argument(metavar="bias-variance", help="Which figure.")],
    out: Annotated[Path, typer.Option(help="Where to draw it, as .png, .svg or .pdf.")],
    levels: Annotated[list[int], typer.Option(help="Input levels, a column each; may be repeated.")] = [2, 4, 8],  # noqa: B006 - typer reads it, nobody changes it
    bits: Annotated[int, typer.Option(help="Bits per symbol.")] = 3,
    epsilon: Annotated[float, typer.Option(help="L1-metric epsilon of the designs and of Laplace.")] = 5.0,
    json: JsonOption = False,
) -> None:
    """Draw a figure of the paper: bias-variance is its Figure 1.

    Example: quietbit figure bias-variance --out bias-variance.png
    """
    require(name in FIGURES, "figure", name, "one of " + ", ".join(FIGURES))
    specs = [quietbit.DesignSpec(count, bits, epsilon) for count in levels]
    check_outputs(figures=(out,))
    designs = []
    for spec in specs:
        with progress_bar(f"Solving {spec.input_levels} levels", quiet=json) as report:
            designs.append(quietbit.solve(spec, report))
    path = quietbit.save_figure(quietbit.plot_bias_variance(designs), out)
    rows = [
        Row("figure", "figure", name),
        Row(
            "identities",
            "designs",
            [design.identity() for design in designs],
            ", ".join(design.identity()[:12] for design in designs),
        ),
        Row("saved", "drawn as", str(path)),
    ]
    record("Figure 1 of the paper, drawn from this library's designs", rows, json)
