"""``quietbit figure``: pictures as .png, .svg or .pdf, of designs and of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded_up
from quietbit.cli.options import check_outputs
from quietbit.errors import check_real, require

if TYPE_CHECKING:
    from quietbit_lab.experiment.frontier import Summary
    from quietbit_lab.report.runs import PlacedRun

__all__ = ["figure"]

DESIGNED = "bias-variance"
OF_RUNS = ("frontier", "bytes", "training")


def figure(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="bias-variance; with --runs frontier, bytes, training, or a sweep.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to draw it, as .png, .svg or .pdf; NAME.png unless given."),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUNS",
            help="Records of trainings, folders of a sweep's results, or packed ones (.gz).",
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="bytes and training: only settings with at most this epsilon."),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(help="A sentence above a picture of runs; made from the task unless given."),
    ] = None,
    levels: Annotated[
        list[int], typer.Option(help="Input levels, a column each; may be repeated.")
    ] = [2, 4, 8],  # noqa: B006 - typer reads it, nobody changes it
    bits: Annotated[int, typer.Option(help="Bits per symbol.")] = 3,
    design_epsilon: Annotated[
        float, typer.Option(help="L1-metric epsilon of the designs and of Laplace (bias-variance).")
    ] = 5.0,
    json: JsonOption = False,
) -> None:
    """Draw a design's bias and variance, or the accuracy of runs.

    Example: quietbit figure frontier --runs runs/digits --out frontier.svg
    """
    if out is not None:
        path = out
    else:
        path = Path(f"{Path(name).name}.png")
    if name == DESIGNED:
        names = [str(run) for run in runs or ()]
        require(not runs, "runs", names, "left out", f"{DESIGNED} is drawn from designs")
        require(epsilon is None, "epsilon", epsilon, "left out", "use --design-epsilon")
        _bias_variance(levels, bits, design_epsilon, path, json)
        return
    known = ", ".join((DESIGNED, *OF_RUNS))
    require(
        runs,
        "figure",
        name,
        f"one of {known}, or the name of a sweep",
        "add --runs, which all but the first need",
    )
    if epsilon is None:
        target = None
    else:
        target = check_real(epsilon, "epsilon")
    _of_runs(name, runs or [], target, title, path, json)


def _bias_variance(
    levels: Sequence[int], bits: int, epsilon: float, out: Path, as_json: bool
) -> None:
    from quietbit_lab.design.search import solve
    from quietbit_lab.plot.figure import save_figure
    from quietbit_lab.report.bias_variance import plot_bias_variance

    specs = [quietbit.DesignSpec(count, bits, epsilon) for count in levels]
    check_outputs(figures=(out,))
    designs = []
    for spec in specs:
        with progress_bar(f"Solving {spec.input_levels} levels", quiet=as_json) as report:
            designs.append(solve(spec, report))
    path = save_figure(plot_bias_variance(designs), out)
    identities = [design.identity() for design in designs]
    rows = [
        Row("figure", "figure", DESIGNED),
        Row(
            "identities", "designs", identities, ", ".join(identity[:12] for identity in identities)
        ),
        Row("saved", "drawn as", str(path)),
    ]
    record("Figure 1 of the paper, drawn from this library's designs", rows, as_json)


def _of_runs(
    name: str,
    paths: Sequence[Path],
    target: float | None,
    title: str | None,
    out: Path,
    as_json: bool,
) -> None:
    """Accuracy over epsilon, bytes or rounds, with the best of every mechanism in a table."""
    from quietbit_lab.experiment.frontier import frontier, reported
    from quietbit_lab.plot.figure import save_figure
    from quietbit_lab.report.runs import comparable, read_placed_runs, settings_within

    check_outputs(figures=(out,))
    placed = read_placed_runs(paths)
    if name not in OF_RUNS:
        placed = [run for run in placed if run.sweep == name]
        where = ", ".join(str(path) for path in paths)
        require(
            placed,
            "figure",
            name,
            f"{', '.join(OF_RUNS)}, or the name of a sweep",
            f"name one whose results are in {where}",
        )
    runs = comparable(placed)
    within = settings_within(runs, target)
    require(within, "epsilon", target, "at least the epsilon of one setting", "raise --epsilon")
    path = save_figure(_drawn(name, runs, within, target, title), out)
    drawn = name in ("bytes", "training") or target is not None
    if drawn:
        lines = frontier(p for p, _ in within)
    else:
        lines = reported(run.plain(whole=False) for run in runs)
    rows = [
        Row(
            label,
            label,
            [(p.epsilon_upper, p.accuracy, p.deviation, p.seeds) for p in line],
            _best(line),
        )
        for label, line in sorted(lines.items())
    ]
    record(f"{name}: {len(runs):,} runs", [*rows, Row("saved", "drawn as", str(path))], as_json)


def _drawn(
    name: str,
    runs: list[PlacedRun],
    within: list[tuple[Summary, PlacedRun]],
    target: float | None,
    title: str | None,
) -> Any:
    from quietbit_lab.report.plots import plot_frontier, plot_training, plot_uplink, shared_words
    from quietbit_lab.report.runs import best_curves

    task = str(runs[0].record["task"].get("name", name))
    limit = ""
    if target is not None:
        meaning = shared_words([point for point, _ in within])
        limit = f" at epsilon <= {rounded_up(target, 4)} of {meaning}"
    if name == "bytes":
        sizes = [(point, run.record.get("bytes_per_client")) for point, run in within]
        sent = [(point, int(size)) for point, size in sizes if size]
        return plot_uplink(sent, title or f"Accuracy on {task} over bytes sent{limit}")
    if name == "training":
        mechanisms = {run.label: run.mechanism for run in runs}
        curves = best_curves(runs, target)
        return plot_training(curves, title or f"Accuracy on {task} over rounds{limit}", mechanisms)
    plain = [run.plain(whole=False) for run in runs]
    return plot_frontier(plain, title or f"Accuracy on {task} over epsilon, best of each mechanism")


def _best(line: list[Summary]) -> str:
    shown = [f"{100 * p.accuracy:.1f} % at {rounded_up(p.epsilon_upper, 3)}" for p in line]
    return "; ".join(shown[-6:])
