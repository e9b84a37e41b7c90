r"""A sweep on a GPU machine that has numpy, scipy, torch and triton, and nothing else.

Idea     what `quietbit sweep FILE.toml --device cuda` does, without the packages that the command
         line needs. Pieces of any length: `--minutes` stops cleanly, and `--out` with the same
         folder continues, from packed results where `--packed` names some and the folder has none.
         Results are also written, packed, to `--back`, batch by batch, which is all that has to
         travel back.

    PYTHONPATH=src:extra QUIETBIT_DATA=data python experiments/run_on_gpu.py
        experiments/fig2-mnist.toml \ --packed experiments/results/fig2-mnist.jsonl.gz --out
        runs/fig2-mnist --minutes 9 --back back

`extra` holds a copy of kymatio where the machine lacks it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quietbit.federation.simulate.problem import Problem
from quietbit_lab.experiment.grid import Sweep, read_sweep
from quietbit_lab.experiment.packed import pack, read_results, unpack
from quietbit_lab.experiment.race import run_stages
from quietbit_lab.experiment.sweep import finished
from quietbit_lab.task.batch_sweep import BatchTogether, run_batches
from quietbit_lab.task.registry import TaskSpec, build_task

BEGAN = time.monotonic()
LINES_EVERY = 10.0  # seconds between lines of progress
PACKED_EVERY = 20.0  # seconds between packed files, at the least


def main() -> None:
    """Run what is left of a sweep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--packed", type=Path, help="earlier results to continue from")
    parser.add_argument("--back", type=Path, help="folder for the packed results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument(
        "--only", nargs="*", metavar="LABEL", help="grids of the file to run; all unless given"
    )
    given = parser.parse_args()
    sweep = read_sweep(given.file, reduced=given.reduced)
    if given.only:
        sweep = replace(sweep, jobs=tuple(job for job in sweep.jobs if job.label in given.only))
    if given.packed is not None and given.packed.exists():
        unpack(read_results(given.packed), given.out)
    together, packer = (
        BatchTogether(given.device, make_problem(given.device), note=Thinned()),
        Packer(sweep, given),
    )

    def run(stage: Sweep, resume: bool, minutes: float | None) -> int:
        say(
            f"{stage.name}: {len(stage.jobs):,} trainings that {'choose' if stage.race is not None else 'report'}"
        )
        together.prepare(sweep.race, chooses=stage.race is not None)
        return run_batches(
            stage, given.out, together, resume=True, minutes=minutes, on_result=packer.told
        )

    ran, left = run_stages(sweep, given.out, run, resume=True, minutes=given.minutes)
    packer.pack()
    say(f"{ran:,} finished now, {left:,} left")


class Packer:
    """Keeps the packed file of results up to date."""

    def __init__(self, sweep: Sweep, given: argparse.Namespace) -> None:
        self._path = None if given.back is None else given.back / f"{sweep.name}.jsonl.gz"
        self._out, self._last = given.out, time.monotonic()

    def told(self, done: int, count: int, result: dict[str, Any]) -> None:
        """After a result: pack if the last time is long ago."""
        if time.monotonic() - self._last >= PACKED_EVERY:
            self.pack()

    def pack(self) -> None:
        """Write what is finished."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            pack(finished(self._out), self._path)
        self._last = time.monotonic()


def make_problem(device: str) -> Any:
    """Return a function that builds a problem and computes its features on the device."""

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
    """Print a line with the elapsed time."""
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
