"""Jobs of a sweep, trained together on one device, and their checkpoints.

Idea     linear models on clients of one example, and networks whose samples are protected, go in batches; a checkpoint
         is kept about once a minute. Other models, and MVU of several bits on a CPU, which gains nothing from company,
         go one by one through the simulator. A
         checkpoint holds parameters and momentum of the runs alive, the points of all, and how far they were; cohorts
         and keys follow from the settings. It appears whole or not at all, and names the settings that it belongs to.
"""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias, final

import numpy as np

from quietbit._files import write_whole
from quietbit.errors import QuietbitError, require_module
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit
from quietbit.simulate.loop import Point, Run
from quietbit.simulate.problem import Problem, Score
from quietbit_lab.experiment.grid import Job, Race
from quietbit_lab.experiment.record import Setting, run_record
from quietbit_lab.experiment.sweep import run_job
from quietbit_lab.task.batch import Batch, Lane, Models, shared_walk
from quietbit_lab.task.linear import LinearSoftmax
from quietbit_lab.task.linear_device import DeviceProblem, open_device
from quietbit_lab.task.module import ModuleProblem

__all__ = ["BatchTogether", "batch_records", "device_name", "restore", "save"]

MakeProblem: TypeAlias = Callable[[Mapping[str, Any], int], Problem]
VERSION = 3  # of checkpoints
STATE = ("status", "reason", "rounds", "behind")  # of a run, beside its points and counts
KEPT_EVERY = 60.0  # seconds between checkpoints
TOGETHER = {"cuda": 10_000_000, "cpu": 1_000_000}  # parameters in a batch: more runs bring no more speed
NETWORKS = {"cuda": 48, "cpu": 16}


def device_name(device: Any) -> str:
    """Return what a record calls the device."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({require_module('torch', 'tasks').cuda.get_device_name(device)})"


def batch_records(batch: Batch, runs: Sequence[Run], task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of all runs of a batch."""
    said = {"identity": batch.identity, "runs": len(runs)}
    name = device_name(batch.data.device)
    return [
        run_record(run, dict(task), device=name, draws=draws, batch={**said, "place": place})
        for place, (run, draws) in enumerate(zip(runs, batch.draws, strict=True))
    ]


@final
@dataclass(slots=True, eq=False)
class BatchTogether:
    """Trains the jobs of a sweep together where it can; see `experiment/batched.py`."""

    device: str
    make_problem: MakeProblem
    drop_behind: float | None = None  # these two may change from stage to stage of a sweep
    draw: str = "clients"
    note: Callable[[str], None] | None = None
    _problems: dict[str, Problem] = field(init=False, default_factory=dict, repr=False)
    _data: dict[int, Models] = field(init=False, default_factory=dict, repr=False)
    _device: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a device that is not there."""
        self._device = open_device(self.device)

    def prepare(self, race: Race | None, *, chooses: bool, drop_behind: float | None = None) -> None:
        """How a stage of a sweep runs; ``drop_behind`` in place of the file's, and never where runs report."""
        said = race.drop_behind / 100 if race is not None and race.drop_behind is not None else None
        behind = drop_behind if drop_behind is not None else said
        self.drop_behind = behind if chooses or race is None else None
        self.draw = "clients" if race is None else race.draw if chooses else race.report_draw

    def walk(self, job: Job) -> Hashable:
        """Task and walk, for a job that gains from company."""
        problem, plan = self.problem(job), job.setting.plan
        if isinstance(problem, ModuleProblem):
            from quietbit_lab.task.module_device import fits_stacked

            return (repr(sorted(job.task.items())), *shared_walk(job.setting)) if fits_stacked(job.setting) else None
        if not isinstance(problem, LinearSoftmax) or int(problem.sizes.max()) != 1 or not _fits(job.setting):
            return None
        if self._device.type == "cpu" and plan.mechanism == "mvu" and (plan.bits or 1) > 1:
            return None
        return (id(problem), *shared_walk(job.setting))

    def most(self, job: Job) -> int:
        """As many runs as fill the device."""
        problem, kind = self.problem(job), self._device.type
        return NETWORKS[kind] if isinstance(problem, ModuleProblem) else max(1, TOGETHER[kind] // problem.dimension)

    def train(self, jobs: Sequence[Job], checkpoint: Path, until: float | None) -> list[dict[str, Any]] | None:
        """Results of a batch, or None and a checkpoint where the time is up."""
        problem = self.problem(jobs[0])
        draw = "clients" if isinstance(problem, ModuleProblem) else self.draw
        batch = Batch(self._on_device(problem), [job.setting for job in jobs], self.drop_behind, draw)
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
        """Return the problem of a job, made once; clients of several examples are drawn by the seed."""
        key = repr((sorted(job.task.items()), job.setting.seed if job.task.get("samples", 1) != 1 else 0))
        if key not in self._problems:
            self._problems[key] = self.make_problem(job.task, job.setting.seed)
        return self._problems[key]

    def _on_device(self, problem: Problem) -> Models:
        if id(problem) not in self._data:
            if isinstance(problem, ModuleProblem):
                from quietbit_lab.task.module_device import StackedProblem

                self._data[id(problem)] = StackedProblem(problem, self._device)
            elif isinstance(problem, LinearSoftmax):
                self._data[id(problem)] = DeviceProblem(problem, self._device)
            else:
                raise TypeError("walk() sends other problems to alone()")
        return self._data[id(problem)]

    def _say(self, words: str) -> None:
        if self.note is not None:
            self.note(words)


def _fits(setting: Setting) -> bool:
    return setting.plan.unit is Unit.CLIENT and setting.training.local_steps == 1


def save(batch: Batch, path: Path) -> None:
    """Write the state of a batch."""
    said = {
        "version": VERSION,
        "batch": batch.identity,
        "number": batch.number,
        "seconds": batch.seconds,
        "alive": batch.alive,
        "lanes": [_lane(lane) for lane in batch.lanes],
    }
    arrays = {
        "w": batch.w.cpu().numpy(),
        "v": batch.v.cpu().numpy(),
        "said": np.array(json.dumps(said, default=lambda word: word.value)),
    }
    for place, lane in enumerate(batch.lanes):
        if lane.counts is not None:
            arrays[f"counts{place}"] = lane.counts.astype(np.int32)

    def write(file: IO[bytes]) -> None:
        np.savez(file, **arrays)

    write_whole(path, write)


def restore(batch: Batch, path: Path) -> bool:
    """Continue a new batch from a checkpoint of the same settings; False where there is none."""
    if not path.exists():
        return False
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as kept:
            said = json.loads(str(kept["said"]))
            if said["version"] != VERSION or said["batch"] != batch.identity:
                return False
            for place, (lane, was) in enumerate(zip(batch.lanes, said["lanes"], strict=True)):
                counts = kept[f"counts{place}"].astype(np.int64) if f"counts{place}" in kept.files else None
                _fill(lane, was, counts)
            batch.replace_state(said["number"], said["seconds"], said["alive"], kept["w"], kept["v"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise QuietbitError(f"The checkpoint {path} is damaged: remove it to start its batch anew.") from error
    return True


def _lane(lane: Lane) -> dict[str, Any]:
    return {name: getattr(lane, name) for name in STATE} | {"points": [asdict(point) for point in lane.points]}


def _fill(lane: Lane, was: dict[str, Any], counts: Any) -> None:
    for name in STATE:
        setattr(lane, name, was[name])
    lane.points, lane.counts = [_point(**point) for point in was["points"]], counts


def _point(score: Mapping[str, float], guarantee: dict[str, Any] | None, **rest: Any) -> Point:
    found = None
    if guarantee is not None:
        words = {"unit": Unit, "adjacency": Adjacency, "trust": Trust}
        found = Guarantee(**guarantee | {name: kind(guarantee[name]) for name, kind in words.items()})
    return Point(score=Score(**score), guarantee=found, **rest)
