"""``quietbit report``: runs become one HTML page that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quietbit.cli.console import JsonOption, Row, progress_bar, record
from quietbit.cli.options import check_outputs
from quietbit.errors import require

if TYPE_CHECKING:
    from quietbit_lab.report.runs import PlacedRun

__all__ = ["report"]


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Records of trainings or federated runs, or folders of records or sweep results.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("report.html"),
    title: Annotated[
        str, typer.Option(help="What the page is called.")
    ] = "Private federated training",
    json: JsonOption = False,
) -> None:
    """Write one HTML page about runs: privacy, accuracy, bytes and guarantees; it works offline.

    Example: quietbit report runs/digits --out report.html
    """
    from quietbit_lab.report.page import render_page, save_page
    from quietbit_lab.report.page_data import page_data
    from quietbit_lab.report.runs import read_placed_runs, reporting_runs

    names = [str(path) for path in runs]
    different = len({path.resolve() for path in runs}) == len(runs)
    require(different, "runs", names, "different", "name each file or folder once")
    require(
        out.suffix.lower() in (".html", ".htm"),
        "end of the report's file name",
        str(out),
        ".html",
        "change --out",
    )
    check_outputs(out)
    with progress_bar("Report", quiet=json) as show:
        show(0.1, "reading runs")
        placed = reporting_runs(read_placed_runs(runs))
        show(0.5, f"{len(placed):,} runs")
        path = save_page(render_page(placed, title), out)
        comparisons = page_data(placed, title)["comparisons"]
        sentences = [comparison["summary"] for comparison in comparisons]
    groups = _groups(placed)
    labels = sorted({run.label for run in placed})
    size = path.stat().st_size
    rows = [
        Row("summary", "summary", sentences, " ".join(sentences)),
        Row("runs", "runs", len(placed), f"{len(placed):,}"),
        Row("mechanisms", "mechanisms", labels, "; ".join(labels)),
        Row("bytes", "size", size, f"{size / 1000:,.0f} kB"),
        Row("saved", "written to", str(path)),
        *groups,
    ]
    record("Report", rows, json)


def _groups(runs: Sequence[PlacedRun]) -> list[Row]:
    """Return a row with the accuracy of every group, where a run's evaluations named groups."""
    lines = []
    for run in runs:
        groups = run.record.get("groups")
        if groups is None:
            continue
        for group in groups["groups"]:
            line = {"mechanism": run.label, "round": groups["round"], "answers": groups["answers"]}
            lines.append(line | group)
    if lines:
        return [Row("groups", "Accuracy by group, with 95 % intervals", lines)]
    return []
