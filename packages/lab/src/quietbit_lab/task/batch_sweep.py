"""Jobs of a sweep, trained many at a time on one device, in pieces of any length.

Idea     linear models on clients of one example, and networks whose samples are protected, go in
         batches of one walk through the rounds; what comes of a batch is appended, one line a job,
         as in `experiment/sweep.py`. Other models, and mechanisms without a law for whole cohorts,
         go one by one through the simulator. A checkpoint is kept about once a minute, and where
         the clock runs out: it holds parameters and momentum of the runs alive, the points of all,
         and how far they were; cohorts and keys follow from the settings. It appears whole or not
         at all, and names the settings that it belongs to.
"""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from quietbit._files import write_json, write_whole
from quietbit.errors import InvalidParameter, QuietbitError, require_module
from quietbit.federation.simulate.loop import Point, Run
from quietbit.federation.simulate.problem import Problem, Score
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Adjacency, Trust, Unit
from quietbit_lab.cohort.means import way_of
from quietbit_lab.experiment.grid import Job, Race, Sweep
from quietbit_lab.experiment.record import run_record
from quietbit_lab.experiment.sweep import (
    MakeProblem,
    OnResult,
    problem_key,
    run_job,
    write_results,
)
from quietbit_lab.task.batch import Batch, Lane, Models, mechanism_of, shared_walk
from quietbit_lab.task.linear import LinearSoftmax
from quietbit_lab.task.linear_device import DeviceProblem, fits_together, open_device
from quietbit_lab.task.module import ModuleProblem
from quietbit_lab.task.module_device import Networks, fits_networks

__all__ = [
    "BATCH",
    "CHECKPOINT",
    "BatchTogether",
    "batch_records",
    "device_name",
    "restore",
    "run_batches",
    "save",
]

BATCH = "batch.json"
CHECKPOINT = "batch.npz"
VERSION = 3  # of checkpoints
STATE = ("status", "reason", "rounds", "behind")  # of a run, beside its points and counts
KEPT_EVERY = 60.0  # seconds between checkpoints
TOGETHER = {
    "cuda": 10_000_000,
    "cpu": 1_000_000,
}  # parameters in a batch: more runs bring no more speed
NETWORKS = 48  # in a batch


def run_batches(
    sweep: Sweep,
    folder: Path,
    together: BatchTogether,
    *,
    resume: bool = False,
    minutes: float | None = None,
    on_result: OnResult | None = None,
) -> int:
    """Run every job that has no result yet; returns how many were finished.

    After ``minutes`` the run stops; what is finished is kept, and the batch under way continues
    with ``resume``.
    """

    def results(todo: list[Job], is_late: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        for batch in _batches(todo, folder, together):
            trained = None if is_late() else together.train(batch, folder, is_late)
            if trained is None:
                return
            yield from trained
            for name in (BATCH, CHECKPOINT):
                (folder / name).unlink(missing_ok=True)

    return write_results(sweep, folder, results, resume, minutes, on_result)


def _batches(todo: list[Job], folder: Path, together: BatchTogether) -> list[list[Job]]:
    """Return the batch of a checkpoint, then the others, in the order of the sweep."""
    batches: list[list[Job]] = []
    by_name = {job.identity: job for job in todo}
    if (folder / CHECKPOINT).exists() and (folder / BATCH).exists():
        names = _names(folder / BATCH)
        if names and all(name in by_name for name in names):
            batches.append([by_name.pop(name) for name in names])
    groups: dict[Hashable, list[Job]] = {}
    for job in by_name.values():
        groups.setdefault(together.walk(job), []).append(job)
    for walk, jobs in groups.items():
        if walk is None:
            pieces = len(jobs)
        else:
            pieces = -(-len(jobs) // together.most(jobs[0]))
        step = -(-len(jobs) // pieces)  # as equal as possible
        batches += [jobs[start : start + step] for start in range(0, len(jobs), step)]
    return batches


def _names(path: Path) -> list[str]:
    """Return the names of the jobs of a batch; none if its file cannot be read."""
    try:
        return [str(name) for name in json.loads(path.read_text())["jobs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


@final
@dataclass(slots=True, eq=False)
class BatchTogether:
    """Trains the jobs of a sweep together where it can."""

    device: str
    make_problem: MakeProblem
    drop_behind: float | None = None  # these two may change from stage to stage of a sweep
    draw: str = "clients"
    note: Callable[[str], None] = lambda words: None
    _problems: dict[str, Problem] = field(init=False, default_factory=dict, repr=False)
    _data: dict[int, Models] = field(init=False, default_factory=dict, repr=False)
    _device: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a device that is not there."""
        self._device = open_device(self.device)

    def prepare(
        self, race: Race | None, *, chooses: bool, drop_behind: float | None = None
    ) -> None:
        """How a stage of a sweep runs; ``drop_behind`` replaces the file's while choosing."""
        behind = drop_behind
        if behind is None and race is not None and race.drop_behind is not None:
            behind = race.drop_behind / 100
        self.drop_behind = None
        if chooses or race is None:
            self.drop_behind = behind
        if race is None:
            self.draw = "clients"
        elif chooses:
            self.draw = race.draw
        else:
            self.draw = race.report_draw

    def walk(self, job: Job) -> Hashable:
        """Return a key equal for jobs that train together; None for one that must go alone."""
        problem = self.problem(job)
        plan = job.setting.plan
        if isinstance(problem, ModuleProblem):
            if fits_networks(job.setting):
                return (repr(sorted(job.task.items())), *shared_walk(job.setting))
            return None
        fits = (
            isinstance(problem, LinearSoftmax)
            and int(problem.sizes.max()) == 1
            and fits_together(job.setting)
        )
        if fits and plan.mechanism.name == "mvu":
            try:
                way_of(mechanism_of(job.setting, problem), plan.cohort)
            except InvalidParameter:
                fits = False
        if fits:
            return (id(problem), *shared_walk(job.setting))
        return None

    def most(self, job: Job) -> int:
        """Return how many runs like this one fill the device."""
        problem = self.problem(job)
        if isinstance(problem, ModuleProblem):
            return NETWORKS
        return max(1, TOGETHER[self._device.type] // problem.dimension)

    def train(
        self, jobs: Sequence[Job], folder: Path, is_late: Callable[[], bool]
    ) -> list[dict[str, Any]] | None:
        """Return the results of a batch; None, with a checkpoint, if the time is up first."""
        if self.walk(jobs[0]) is None:
            return [self.alone(job) for job in jobs]
        write_json(folder / BATCH, {"jobs": [job.identity for job in jobs]})
        problem = self.problem(jobs[0])
        checkpoint = folder / CHECKPOINT
        if isinstance(problem, ModuleProblem):
            draw = "clients"
        else:
            draw = self.draw
        batch = Batch(
            self._on_device(problem), [job.setting for job in jobs], self.drop_behind, draw
        )
        if restore(batch, checkpoint):
            self.note(f"continuing {len(jobs)} runs at round {batch.number:,}")
        saved_at = time.monotonic()

        def watch(number: int, points: Any) -> bool:
            nonlocal saved_at
            self.note(
                f"{len(batch.alive)} of {len(jobs)} runs at round {number:,} of {batch.rounds:,}"
            )
            if is_late():
                return False
            if time.monotonic() - saved_at >= KEPT_EVERY and not batch.done:
                save(batch, checkpoint)
                saved_at = time.monotonic()
            return True

        batch.advance(batch.rounds, watch)
        if not batch.done:
            save(batch, checkpoint)
            return None
        records = batch_records(batch, batch.runs(), jobs[0].task)
        pairs = zip(jobs, records, strict=True)
        return [
            {"job": job.identity, "label": job.label, "record": record} for job, record in pairs
        ]

    def alone(self, job: Job) -> dict[str, Any]:
        """One job through the simulator."""
        return run_job(job, lambda task, seed: self.problem(job))

    def problem(self, job: Job) -> Problem:
        """Return the problem of a job, made once."""
        key = problem_key(job)
        if key not in self._problems:
            self._problems[key] = self.make_problem(job.task, job.setting.seed)
        return self._problems[key]

    def _on_device(self, problem: Any) -> Models:
        if id(problem) not in self._data:
            network = isinstance(problem, ModuleProblem)
            self._data[id(problem)] = (
                Networks(problem) if network else DeviceProblem(problem, self._device)
            )
        return self._data[id(problem)]


def device_name(device: Any) -> str:
    """Return what a record calls the device."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({require_module('torch', 'lab[torch]').cuda.get_device_name(device)})"


def batch_records(
    batch: Batch, runs: Sequence[Run], task: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the records of all runs of a batch."""
    facts = {"identity": batch.identity, "runs": len(runs)}
    name = device_name(batch.data.device)
    return [
        run_record(run, dict(task), device=name, draws=draws, batch={**facts, "place": place})
        for place, (run, draws) in enumerate(zip(runs, batch.draws, strict=True))
    ]


def save(batch: Batch, path: Path) -> None:
    """Write the state of a batch."""
    state = {
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
        "said": np.array(json.dumps(state, default=lambda word: word.value)),
    }
    for place, lane in enumerate(batch.lanes):
        if lane.counts is not None:
            arrays[f"counts{place}"] = lane.counts.astype(np.int32)
    write_whole(path, lambda file: np.savez(file, **arrays))


def restore(batch: Batch, path: Path) -> bool:
    """Continue a new batch from a checkpoint of the same settings; False where there is none."""
    if not path.exists():
        return False
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            state = json.loads(str(arrays["said"]))
            if state["version"] != VERSION or state["batch"] != batch.identity:
                return False
            for place, (lane, was) in enumerate(zip(batch.lanes, state["lanes"], strict=True)):
                if f"counts{place}" in arrays.files:
                    counts = arrays[f"counts{place}"].astype(np.int64)
                else:
                    counts = None
                _fill(lane, was, counts)
            batch.replace_state(
                state["number"], state["seconds"], state["alive"], arrays["w"], arrays["v"]
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise QuietbitError(
            f"The checkpoint {path} is damaged: remove it to start its batch anew."
        ) from error
    return True


def _lane(lane: Lane) -> dict[str, Any]:
    return {name: getattr(lane, name) for name in STATE} | {
        "points": [asdict(point) for point in lane.points]
    }


def _fill(lane: Lane, was: dict[str, Any], counts: Any) -> None:
    for name in STATE:
        setattr(lane, name, was[name])
    lane.points = [_point(**point) for point in was["points"]]
    lane.counts = counts


def _point(score: Mapping[str, float], guarantee: dict[str, Any] | None, **rest: Any) -> Point:
    guarantee_of = None
    if guarantee is not None:
        words = {"unit": Unit, "adjacency": Adjacency, "trust": Trust}
        guarantee_of = Guarantee(
            **guarantee | {name: kind(guarantee[name]) for name, kind in words.items()}
        )
    return Point(score=Score(**score), guarantee=guarantee_of, **rest)
