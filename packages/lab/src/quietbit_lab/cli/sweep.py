"""``quietbit sweep``: a grid of trainings that survives anything short of a lost disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietbit.cli.console import JsonOption, Row, progress_bar, record
from quietbit.errors import InvalidParameter, check_real, require
from quietbit_lab.cli.train import QUIET, DataOption

if TYPE_CHECKING:
    from quietbit.federation.simulate.problem import Problem

__all__ = ["make_problem", "sweep"]


def sweep(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.toml", help="The grid, such as experiments/fig2-mnist.toml."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where results go; runs/NAME unless given.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Trainings at a time, one core each.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue: what has a result is not run again.")
    ] = False,
    reduced: Annotated[
        bool, typer.Option("--reduced", help="The small grid that the file names too.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda",
            help="Train linear models together on this device; without it one by one, bit for bit.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop after this many; --resume continues (with --device in mid-training)."
        ),
    ] = None,
    drop_behind: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            help="With --device: drop runs this many points behind the best at their epsilon.",
        ),
    ] = None,
    packed: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.gz", help="Packed results to continue, where the folder has none yet."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="Your own problem in place of the file's task."
        ),
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Run every training of a grid, several at a time; killed at any point, --resume continues.

    Where the file has a table [choose], its seeds choose settings first and the others report what
    was chosen.

    Example: quietbit sweep experiments/digits.toml --reduced --workers 2 --out runs/digits
    """
    from quietbit_lab.experiment.grid import Sweep, read_sweep
    from quietbit_lab.experiment.packed import read_results, unpack
    from quietbit_lab.experiment.race import run_stages
    from quietbit_lab.experiment.sweep import RESULTS, run_sweep
    from quietbit_lab.task.own import check_named, is_own
    from quietbit_lab.task.registry import TaskSpec

    if device is None and drop_behind is not None:
        remedy = "add --device, which trains runs together so that they can be compared"
        raise InvalidParameter.of("drop_behind", "left out without --device", drop_behind, remedy)
    require(
        device is None or workers == 1,
        "workers",
        workers,
        "1 with --device",
        "leave it out, as a device trains many runs at once",
    )
    if drop_behind is not None:
        behind = check_real(drop_behind, "drop_behind") / 100
    else:
        behind = None
    chosen = read_sweep(file, reduced=reduced)
    if task is not None:
        remedy = "name data sets in the sweep's file"
        require(is_own(task), "task", task, "module:function", remedy)
        chosen = replace(
            chosen, jobs=tuple(replace(job, task={"name": task}) for job in chosen.jobs)
        )
    for words in {repr(job.task): job.task for job in chosen.jobs}.values():
        check_named(TaskSpec.from_json(words).name, task)  # refused now rather than in a worker
    if out is not None:
        folder = out
    else:
        folder = Path("runs") / (chosen.name + ("-reduced" if reduced else ""))
    build = partial(make_problem, str(data) if data is not None else None, device or "cpu")
    if packed is not None:
        require(resume, "packed", str(packed), "left out", "add --resume to continue its results")
        unpack(read_results(packed), folder)
    every = 0.0 if device is None else QUIET  # trained together, runs end by hundreds
    with progress_bar(f"Sweep {chosen.name}", quiet=json, lines=True, every=every) as report:
        share = 0.0

        def on_result(done: int, count: int, result: dict[str, Any]) -> None:
            nonlocal share
            share = done / count
            run = result["record"]
            if run["points"]:
                last = run["points"][-1]
            else:
                last = None
            if last:
                accuracy = f"{100 * last['accuracy']:.1f} %"
            else:
                accuracy = run["status"]
            report(share, f"{done:,} of {count:,}: {result['label']} {accuracy}")

        if device is None:

            def run(stage: Sweep, resume: bool, minutes: float | None) -> int:
                return run_sweep(
                    stage,
                    folder,
                    build,
                    workers=workers,
                    resume=resume,
                    minutes=minutes,
                    on_result=on_result,
                )
        else:
            from quietbit_lab.task.batch_sweep import BatchTogether, run_batches

            together = BatchTogether(device, build, note=lambda words: report(share, words))

            def run(stage: Sweep, resume: bool, minutes: float | None) -> int:
                together.prepare(chosen.race, chooses=stage.race is not None, drop_behind=behind)
                return run_batches(
                    stage, folder, together, resume=resume, minutes=minutes, on_result=on_result
                )

        ran, left = run_stages(chosen, folder, run, resume=resume, minutes=minutes)
    rows = [
        Row("sweep", "sweep", chosen.name),
        Row("claim", "claim", chosen.claim),
        Row("jobs", "trainings", len(chosen.jobs)),
        Row("ran", "run now", ran),
        Row("left", "left to run", left),
        Row("results", "results", str(folder / RESULTS)),
    ]
    record(f"{chosen.name}: {len(chosen.jobs):,} trainings", rows, json)


def make_problem(data: str | None, device: str, task: Mapping[str, Any], seed: int) -> Problem:
    """Build the problem of a task; a function of its own, so that worker processes find it."""
    from quietbit_lab.task.registry import TaskSpec, build_task

    if data is not None:
        folder = Path(data)
    else:
        folder = None
    return build_task(TaskSpec.from_json(task), data=folder, seed=seed, device=device)
