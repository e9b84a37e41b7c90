"""Running the jobs of a sweep many at a time on one device, in pieces of any length.

Idea     jobs that can share a walk through the rounds are trained together; what comes of a batch is appended, one
         line a job, as in `sweep.py`. Where the clock runs out in the middle, the batch leaves a checkpoint beside the
         results and the next piece continues it. Jobs that cannot be trained together are run one by one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Protocol

from quietbit._files import only_writer, write_json
from quietbit.errors import check_real
from quietbit_lab.experiment.grid import Job, Sweep
from quietbit_lab.experiment.sweep import Told, append_result, pending

__all__ = ["BATCH", "CHECKPOINT", "Together", "run_batches"]

BATCH, CHECKPOINT = "batch.json", "batch.npz"


class Together(Protocol):
    """What trains jobs together; the tasks know how."""

    def walk(self, job: Job) -> Hashable:
        """Equal for jobs that can be trained together; None for one that must go alone."""
        ...

    def most(self, job: Job) -> int:
        """How many jobs like this one are best trained together."""
        ...

    def train(self, jobs: Sequence[Job], checkpoint: Path, until: float | None) -> list[dict[str, Any]] | None:
        """Return the results of these jobs; None if the clock (`time.monotonic`) reached ``until`` first."""
        ...

    def alone(self, job: Job) -> dict[str, Any]:
        """Return the result of one job by itself."""
        ...


def run_batches(
    sweep: Sweep,
    folder: Path,
    together: Together,
    *,
    resume: bool = False,
    minutes: float | None = None,
    told: Told | None = None,
) -> int:
    """Run every job that has no result yet; returns how many were finished.

    After ``minutes`` the run stops; what is finished is kept, and the batch under way continues with ``resume``.
    """
    until = None if minutes is None else time.monotonic() + 60 * check_real(minutes, "minutes")
    ran, count = 0, len(sweep.jobs)
    with only_writer(folder):
        todo = pending(sweep, folder, resume)
        for batch in _batches(todo, folder, together):
            if until is not None and time.monotonic() >= until:
                break
            results = _train(batch, folder, together, until)
            if results is None:
                break
            for result in results:
                append_result(sweep, folder, result)
                ran += 1
                if told is not None:
                    told(count - len(todo) + ran, count, result)
            for name in (BATCH, CHECKPOINT):
                (folder / name).unlink(missing_ok=True)
    return ran


def _train(batch: list[Job], folder: Path, together: Together, until: float | None) -> list[dict[str, Any]] | None:
    if together.walk(batch[0]) is None:
        return [together.alone(job) for job in batch]
    write_json(folder / BATCH, {"jobs": [job.identity for job in batch]})
    return together.train(batch, folder / CHECKPOINT, until)


def _batches(todo: list[Job], folder: Path, together: Together) -> list[list[Job]]:
    """Return the batch of a checkpoint first, then the others: jobs of one walk, in the order of the sweep."""
    found: list[list[Job]] = []
    by_name = {job.identity: job for job in todo}
    if (folder / CHECKPOINT).exists() and (folder / BATCH).exists():
        names = _names(folder / BATCH)
        if names and all(name in by_name for name in names):
            found.append([by_name.pop(name) for name in names])
    groups: dict[Hashable, list[Job]] = {}
    for job in by_name.values():
        groups.setdefault(together.walk(job), []).append(job)
    for walk, jobs in groups.items():
        step = 1 if walk is None else _even(len(jobs), together.most(jobs[0]))
        found += [jobs[start : start + step] for start in range(0, len(jobs), step)]
    return found


def _even(count: int, most: int) -> int:
    """Return the size of batches that are as equal as possible, none above ``most``."""
    pieces = -(-count // most)
    return -(-count // pieces)


def _names(path: Path) -> list[str]:
    """Return the names of the jobs of a batch; none if its file cannot be read."""
    try:
        return [str(name) for name in json.loads(path.read_text())["jobs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
