"""``quietbit report``: runs become one HTML page that works offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietbit.cli.console import JsonOption, Row, progress_bar, record
from quietbit.cli.options import check_outputs
from quietbit.errors import require

__all__ = ["report"]


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Records of trainings or of federated runs, or folders of records or of a sweep's results.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where to write the page, as .html.")] = Path(
        "report.html"
    ),
    title: Annotated[
        str, typer.Option(help="What the page is called.")
    ] = "Private federated training",
    json: JsonOption = False,
) -> None:
    """Write one HTML page about runs: privacy, accuracy, bytes, mechanisms and guarantees; it works offline.

    Example: quietbit report runs/digits --out report.html
    """
    from quietbit_lab.report.page import render_page, save_page
    from quietbit_lab.report.page_data import page_data
    from quietbit_lab.report.runs import read_placed_runs, reporting_runs

    require(
        out.suffix.lower() in (".html", ".htm"), "end of the report's file name", str(out), ".html"
    )
    names = [str(path) for path in runs]
    require(len({path.resolve() for path in runs}) == len(runs), "runs", names, "different")
    check_outputs(out)
    with progress_bar("Report", quiet=json) as told:
        told(0.1, "reading runs")
        found = reporting_runs(read_placed_runs(runs))
        told(0.5, f"{len(found):,} runs")
        path = save_page(render_page(found, title), out)
        sentences = [comparison["summary"] for comparison in page_data(found, title)["comparisons"]]
    labels = sorted({run.label for run in found})
    rows = [
        Row("summary", "summary", sentences, " ".join(sentences)),
        Row("runs", "runs", len(found), f"{len(found):,}"),
        Row("mechanisms", "mechanisms", labels, "; ".join(labels)),
        Row("bytes", "size", path.stat().st_size, f"{path.stat().st_size / 1000:,.0f} kB"),
        Row("saved", "written to", str(path)),
    ]
    record("Report", rows, json)
