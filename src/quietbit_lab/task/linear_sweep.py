"""Jobs of a sweep, trained together on one device.

Idea     linear models on clients of one example go in batches; a checkpoint is kept about once a minute. Other models,
         and MVU on a CPU, which gains nothing from company, go one by one through the simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

from quietbit._validate import require_module
from quietbit.simulate.problem import Problem
from quietbit.plan.settings import Settings
from quietbit.privacy.guarantee import Unit
from quietbit.simulate.loop import Run
from quietbit_lab.experiment.grid import Job
from quietbit_lab.experiment.record import run_record
from quietbit_lab.experiment.sweep import run_job
from quietbit_lab.task.linear import LinearSoftmax
from quietbit_lab.task.linear_batch import Batch, shared_walk
from quietbit_lab.task.linear_checkpoint import restore, save
from quietbit_lab.task.linear_device import DeviceProblem, open_device

__all__ = ["LinearTogether", "batch_records", "device_name"]

MakeProblem: TypeAlias = Callable[[Mapping[str, Any], int], Problem]
KEPT_EVERY = 60.0  # seconds between checkpoints
TOGETHER = {"cuda": 10_000_000, "cpu": 1_000_000}  # parameters in a batch: more runs bring no more speed


def device_name(device: Any) -> str:
    """What a record calls the device."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({require_module('torch', 'tasks').cuda.get_device_name(device)})"


def batch_records(batch: Batch, runs: Sequence[Run], task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of all runs of a batch."""
    said = {"identity": batch.identity, "runs": len(runs)}
    name = device_name(batch.data.device)
    return [
        run_record(run, dict(task), device=name, draws=draws, batch={**said, "place": place})
        for place, (run, draws) in enumerate(zip(runs, batch.draws, strict=True))
    ]


@final
@dataclass(slots=True, eq=False)
class LinearTogether:
    """Trains the jobs of a sweep together where it can; see `experiment/batched.py`."""

    device: str
    make_problem: MakeProblem
    drop_behind: float | None = None
    note: Callable[[str], None] | None = None
    _problems: dict[str, Problem] = field(init=False, default_factory=dict, repr=False)
    _data: dict[int, DeviceProblem] = field(init=False, default_factory=dict, repr=False)
    _device: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a device that is not there."""
        self._device = open_device(self.device)

    def walk(self, job: Job) -> Hashable:
        """Task and walk, for a job of a linear model that gains from company."""
        problem = self.problem(job)
        if not isinstance(problem, LinearSoftmax) or int(problem.sizes.max()) != 1 or not _fits(job.settings):
            return None
        if self._device.type == "cpu" and job.settings.mechanism == "mvu":
            return None
        return (id(problem), *shared_walk(job.settings))

    def most(self, job: Job) -> int:
        """As many runs as fill the device."""
        return max(1, TOGETHER[self._device.type] // self.problem(job).dimension)

    def train(self, jobs: Sequence[Job], checkpoint: Path, until: float | None) -> list[dict[str, Any]] | None:
        """Results of a batch, or None and a checkpoint where the time is up."""
        problem = self.problem(jobs[0])
        batch = Batch(self._on_device(problem), [job.settings for job in jobs], self.drop_behind)
        if restore(batch, checkpoint):
            self._say(f"continuing {len(jobs)} runs at round {batch.number:,}")
        kept = time.monotonic()

        def watch(number: int, points: Any) -> bool:
            nonlocal kept
            now = time.monotonic()
            self._say(f"{len(batch.alive)} of {len(jobs)} runs at round {number:,} of {batch.rounds:,}")
            if until is not None and now >= until:
                return False
            if now - kept >= KEPT_EVERY and not batch.done:
                save(batch, checkpoint)
                kept = time.monotonic()
            return True

        batch.advance(batch.rounds, watch)
        if not batch.done:
            save(batch, checkpoint)
            return None
        records = batch_records(batch, batch.runs(), jobs[0].task)
        return [
            {"job": job.identity, "label": job.label, "record": record}
            for job, record in zip(jobs, records, strict=True)
        ]

    def alone(self, job: Job) -> dict[str, Any]:
        """One job through the simulator."""
        return run_job(job, lambda task, seed: self.problem(job))

    def problem(self, job: Job) -> Problem:
        """The problem of a job, made once; clients of several examples are drawn by the seed."""
        key = repr((sorted(job.task.items()), job.settings.seed if job.task.get("samples", 1) != 1 else 0))
        if key not in self._problems:
            self._problems[key] = self.make_problem(job.task, job.settings.seed)
        return self._problems[key]

    def _on_device(self, problem: Problem) -> DeviceProblem:
        if not isinstance(problem, LinearSoftmax):
            raise TypeError("walk() sends other problems to alone()")
        if id(problem) not in self._data:
            self._data[id(problem)] = DeviceProblem(problem, self._device)
        return self._data[id(problem)]

    def _say(self, words: str) -> None:
        if self.note is not None:
            self.note(words)


def _fits(settings: Settings) -> bool:
    return settings.privacy_unit is Unit.CLIENT and settings.local_steps == 1
