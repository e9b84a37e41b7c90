"""``quietbit figure``: figures of the paper, drawn anew from the library's own designs and runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import quietbit
from quietbit._validate import require
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded_up
from quietbit.cli.files import check_outputs

if TYPE_CHECKING:
    from quietbit.federation.frontier import Summary

__all__ = ["figure"]

FIGURES = ("bias-variance",)


def figure(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="bias-variance, or with --runs a sweep such as fig2-mnist.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to draw it, as .png, .svg or .pdf; for runs NAME.png unless said.")
    ] = None,
    runs: Annotated[Path | None, typer.Option(metavar="DIR", help="Results of a sweep: accuracy over epsilon.")] = None,
    levels: Annotated[list[int], typer.Option(help="Input levels, a column each; may be repeated.")] = [2, 4, 8],  # noqa: B006 - typer reads it, nobody changes it
    bits: Annotated[int, typer.Option(help="Bits per symbol.")] = 3,
    epsilon: Annotated[float, typer.Option(help="L1-metric epsilon of the designs and of Laplace.")] = 5.0,
    json: JsonOption = False,
) -> None:
    """Draw a figure of the paper: bias-variance is its Figure 1; the results of a sweep its Figures 2 to 6.

    Example: quietbit figure bias-variance --out bias-variance.png
    """
    if runs is not None:
        _frontier(name, runs, out if out is not None else Path(f"{name}.png"), json)
        return
    require(name in FIGURES, "figure", name, "one of " + ", ".join(FIGURES) + " (others need --runs)")
    if out is None:
        raise quietbit.InvalidParameter("out must be given: where to draw the figure, as .png, .svg or .pdf.")
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


def _frontier(name: str, runs: Path, out: Path, as_json: bool) -> None:
    """Accuracy over epsilon from the results of a sweep, with the best of every mechanism in a table."""
    from quietbit.federation.frontier import frontier, summarise
    from quietbit.report.frontier import plot_frontier, read_runs

    check_outputs(figures=(out,))
    results = [line for line in read_runs(runs) if line.get("sweep", name) == name]
    require(results, "figure", name, f"the name of a sweep whose results are in {runs}")
    path = quietbit.save_figure(plot_frontier(results, name), out)
    lines = frontier(summarise(results))
    rows = [
        Row(label, label, [(p.epsilon_upper, p.accuracy, p.deviation, p.seeds) for p in line], _best(line))
        for label, line in sorted(lines.items())
    ]
    record(f"{name}: {len(results):,} runs", [*rows, Row("saved", "drawn as", str(path))], as_json)


def _best(line: list[Summary]) -> str:
    shown = [f"{100 * p.accuracy:.1f} % at {rounded_up(p.epsilon_upper, 3)}" for p in line]
    return "; ".join(shown[-6:])
