r"""A sweep on a GPU machine that has numpy, scipy, torch and triton, and nothing else.

Idea     what `quietbit sweep FILE.toml --device cuda` does, without the packages that the command line needs. Pieces
         of any length: `--minutes` stops cleanly, and `--out` with the same folder continues. Results are also
         written as one small gzip file, which is all that has to travel back.

    PYTHONPATH=src:extra QUIETBIT_DATA=data python experiments/run_on_gpu.py experiments/fig2-mnist.toml \
        --only "I-MVU, 1 bit" "Gaussian, 32 bits" "SignSGD, 1 bit" --out runs/fig2-mnist --minutes 9 --back back

`extra` holds a copy of kymatio where the machine lacks it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quietbit.simulate.problem import Problem
from quietbit_lab.experiment.batched import run_batches
from quietbit_lab.experiment.grid import Job, Sweep, read_sweep
from quietbit_lab.experiment.record import Setting
from quietbit_lab.experiment.sweep import finished
from quietbit_lab.task.linear_sweep import LinearTogether
from quietbit_lab.task.registry import TaskSpec, build_task

BEGAN = time.monotonic()
LINES_EVERY = 10.0  # seconds between lines of progress


def main() -> None:
    """Run what is left of a sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--back", type=Path, help="folder for the gzip file of results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument("--drop-behind", type=float, metavar="POINTS")
    parser.add_argument("--only", nargs="*", metavar="LABEL", help="grids of the file to run; all unless said")
    parser.add_argument("--where", nargs="*", default=[], metavar="NAME=VALUES", help="such as clip=1,8 seed=1,2,3")
    parser.add_argument("--most-rounds", type=int, help="leave out what is scored later")
    given = parser.parse_args()
    sweep = part_of(read_sweep(given.file, reduced=given.reduced), given.only, given.where, given.most_rounds)
    say(f"{sweep.name}: {len(sweep.jobs):,} trainings")
    behind = given.drop_behind / 100 if given.drop_behind is not None else None
    together = LinearTogether(given.device, make_problem(given.device), behind, Thinned())
    ran = run_batches(sweep, given.out, together, resume=True, minutes=given.minutes)
    results = finished(given.out)
    say(f"{ran:,} finished now, {len(results):,} of {len(sweep.jobs):,} in all")
    if given.back is not None:
        given.back.mkdir(parents=True, exist_ok=True)
        with gzip.open(given.back / f"{sweep.name}.jsonl.gz", "wt", compresslevel=9) as file:
            for result in results:
                file.write(json.dumps(result, separators=(",", ":")) + "\n")


def part_of(sweep: Sweep, labels: list[str] | None, where: list[str], most_rounds: int | None) -> Sweep:
    """Some grids of a sweep, some values of their axes, some of the rounds."""
    allowed = {name: json.loads(f"[{values}]") for name, values in (words.split("=", 1) for words in where)}
    jobs = []
    for job in sweep.jobs:
        values = job.setting.to_json()
        if (labels and job.label not in labels) or any(values[name] not in allowed[name] for name in allowed):
            continue
        if most_rounds is not None:
            scored = [number for number in job.setting.training.evaluate_at if number <= most_rounds]
            setting = Setting.from_json({**values, "rounds": scored[-1], "evaluate_at": scored})
            job = Job(setting, job.task, job.label)
        jobs.append(job)
    return Sweep(sweep.name, sweep.claim, tuple(jobs))


def make_problem(device: str) -> Any:
    """What builds a problem, its features computed on the device."""

    def make(task: Mapping[str, Any], seed: int) -> Problem:
        say(f"reading {task['name']}")
        problem = build_task(TaskSpec.from_json(task), seed=seed, device=device)
        say(f"{task['name']}: {problem.sizes.size:,} clients, {problem.dimension:,} parameters")
        return problem

    return make


class Thinned:
    """Prints a line now and then."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, words: str) -> None:
        """Print the words if the last ones are some time ago."""
        if time.monotonic() - self._last >= LINES_EVERY:
            self._last = time.monotonic()
            say(words)


def say(words: str) -> None:
    """A line with the time."""
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
