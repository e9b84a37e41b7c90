"""``quietbit sweep``: a grid of trainings that survives anything short of a lost disk."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietbit.cli.console import JsonOption, Row, progress_bar, record
from quietbit.cli.train import DataOption

if TYPE_CHECKING:
    from quietbit.federation.problem import Problem

__all__ = ["make_problem", "sweep"]


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The grid, such as experiments/fig2-mnist.toml.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where results go; runs/NAME unless said.")] = None,
    workers: Annotated[int, typer.Option(help="Trainings at a time, one core each.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue: what has a result is not run again.")] = False,
    reduced: Annotated[bool, typer.Option("--reduced", help="The small grid that the file names too.")] = False,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Run every training of a grid, several at a time; killed at any point, --resume continues.

    Example: quietbit sweep experiments/digits.toml --reduced --workers 2 --out runs/digits
    """
    from quietbit.federation.grid import read_sweep
    from quietbit.federation.sweep import RESULTS, run_sweep
    from quietbit.task.registry import TaskSpec

    chosen = read_sweep(file, reduced=reduced)
    for task in {repr(job.task): job.task for job in chosen.jobs}.values():
        TaskSpec.from_json(task)  # refused now rather than in a worker
    folder = out if out is not None else Path("runs") / (chosen.name + ("-reduced" if reduced else ""))
    build = partial(make_problem, str(data) if data is not None else None)
    with progress_bar(f"Sweep {chosen.name}", quiet=json, lines=True) as report:

        def told(done: int, count: int, result: dict[str, Any]) -> None:
            kept = result["record"]
            last = kept["points"][-1] if kept["points"] else None
            accuracy = f"{100 * last['accuracy']:.1f} %" if last else kept["status"]
            report(done / count, f"{done:,} of {count:,}: {result['label']} {accuracy}")

        ran = run_sweep(chosen, folder, build, workers=workers, resume=resume, told=told)
    rows = [
        Row("sweep", "sweep", chosen.name),
        Row("claim", "claim", chosen.claim),
        Row("jobs", "trainings", len(chosen.jobs)),
        Row("ran", "run now", ran),
        Row("results", "results", str(folder / RESULTS)),
    ]
    record(f"{chosen.name}: {len(chosen.jobs):,} trainings", rows, json)


def make_problem(data: str | None, task: Mapping[str, Any], seed: int) -> Problem:
    """The problem of a task; a function of its own, so that worker processes find it."""
    from quietbit.task.registry import TaskSpec, build_task

    return build_task(TaskSpec.from_json(task), data=Path(data) if data is not None else None, seed=seed)
