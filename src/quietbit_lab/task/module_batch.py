"""Training many networks together where samples are protected: one walk, clipped sums of all models at once.

Idea     runs of one seed meet the same clients in the same order and start from the same weights. `StackedLayers` gives
         every client's mean of clipped gradients for a few models at a time; each run then draws what the server makes
         of its cohort from the law of its mechanism (`cohort/means.py`), and takes its step. What a round does to
         one of them has the law of `simulate/loop.py`; accounts are the ledger's own, opened before anything is drawn.
Symbols  G runs, m clients of a cohort, d parameters; w, v: (G, d) parameters and momentum in float32.
Source   Guo et al. (ICML 2023), section "Sample-level DP": the experiment that this is for.

Randomness. Every round seeds torch's generator anew: from the operating system, or for seeded runs from a digest of the
batch's settings and the round, so that a seeded run is repeated by repeating its batch on the same kind of device. A
simulation protects nobody.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import require, require_module
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.base import Mechanism
from quietbit.plan.account import Account
from quietbit.plan.participation import Participation, releases_per_client
from quietbit.plan.plan import Plan
from quietbit.privacy.guarantee import Trust, Unit
from quietbit.simulate.collect import payload_bytes
from quietbit.simulate.loop import DIVERGED, FINISHED, LARGEST, Point, Run
from quietbit.simulate.problem import Problem, Score
from quietbit_lab.cohort.means import Way, way_of
from quietbit_lab.experiment.grid import Job
from quietbit_lab.experiment.record import Setting, run_record
from quietbit_lab.experiment.sweep import run_job
from quietbit_lab.task.linear_sweep import device_name
from quietbit_lab.task.module import ModuleProblem, StoredExamples
from quietbit_lab.task.module_stack import StackedLayers

__all__ = ["ModuleBatch", "ModuleTogether"]

Tensor: TypeAlias = Any
MakeProblem: TypeAlias = Callable[[Mapping[str, Any], int], Problem]
TOGETHER = {"cuda": 16, "cpu": 2}  # models whose gradients exist at once
RUNS = {"cuda": 48, "cpu": 16}  # runs of a batch: what is lost where the clock stops one
SCORED = 1000  # images
LOOK = 20  # rounds between looks at the clock


@final
@dataclass(slots=True, eq=False)
class Lane:
    """A run of a batch; runs of one plan share an account, and ``ended`` is where one was seen to diverge."""

    setting: Setting
    mechanism: Mechanism | None
    account: Account | None
    way: Way
    size: int
    points: list[Point] = field(default_factory=list)
    ended: int | None = None


@final
@dataclass(slots=True, eq=False)
class ModuleBatch:
    """Runs with the same walk on one device; `advance` takes them on, `runs` says what came of them."""

    problem: ModuleProblem
    settings: Sequence[Setting]
    device: str = "cpu"
    number: int = field(init=False, default=0)
    seconds: float = field(init=False, default=0.0)
    identity: str = field(init=False)
    lanes: list[Lane] = field(init=False, repr=False)
    counts: NDArray[np.int64] = field(init=False, repr=False)
    w: Tensor = field(init=False, repr=False)
    v: Tensor = field(init=False, repr=False)
    _layers: StackedLayers = field(init=False, repr=False)
    _train: StoredExamples = field(init=False, repr=False)
    _test: StoredExamples = field(init=False, repr=False)
    _columns: dict[str, Tensor] = field(init=False, repr=False)
    _schedule: Participation = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse runs that do not belong together or cannot be drawn this way; nothing is drawn yet."""
        torch, problem = require_module("torch", "lab"), self.problem
        require(len(self.settings) > 0, "settings", self.settings, "a list of at least one")
        first = self.settings[0]
        for setting in self.settings:
            require(_walk(setting) == _walk(first), "settings of a batch", "different walks", "alike")
            rule = "sample-level, local, of one step on an L2 ball, and of a public order"
            require(_fits(setting), "settings of a batch", setting.to_json(), rule)
        self._layers = StackedLayers.of(problem.make())
        self._schedule = first.plan.schedule(problem.sizes.size)
        self.counts = np.zeros(problem.sizes.size, dtype=np.int64)
        made = {plan: self._lane(plan) for plan in {setting.plan: None for setting in self.settings}}
        self.lanes = [Lane(setting, *made[setting.plan]) for setting in self.settings]
        text = json.dumps([setting.first_words() for setting in self.settings], sort_keys=True)
        self.identity = hashlib.sha256(text.encode()).hexdigest()[:24]
        self._train = StoredExamples.of(problem.dataset.train, self.device, problem.prepare)
        self._test = StoredExamples.of(problem.dataset.test, self.device, problem.prepare)
        self.w = torch.from_numpy(problem.initial(first.seed)).to(self.device).repeat(len(self.lanes), 1)
        self.v, self._columns = torch.zeros_like(self.w), {}
        for name, kind in (("lr", torch.float32), ("momentum", torch.float32), ("clip", torch.float64)):
            chosen = [s.plan.clip if name == "clip" else getattr(s.training, name) for s in self.settings]
            self._columns[name] = torch.tensor(chosen, dtype=kind, device=self.device)

    @property
    def rounds(self) -> int:
        """How many rounds there are in all."""
        return self.settings[0].training.rounds

    @property
    def done(self) -> bool:
        """Whether every round is done."""
        return self.number == self.rounds

    def advance(self, until: float | None = None) -> None:
        """All rounds that are left, or those before the clock (`time.monotonic`) is at ``until``."""
        torch, began, before = require_module("torch", "lab"), time.perf_counter(), self.seconds
        finite = torch.ones(len(self.lanes), dtype=torch.bool, device=self.device)
        while not self.done:
            finite &= self._round()
            self.number += 1
            scored = self.settings[0].training.evaluated(self.number)
            if scored or self.number % LOOK == 0:
                self._end_diverged(finite)
                self.seconds = before + time.perf_counter() - began
                if scored:
                    self._score()
                if until is not None and time.monotonic() >= until:
                    break
        self.seconds = before + time.perf_counter() - began

    def runs(self) -> list[Run]:
        """What came of every run so far, in the order of the settings."""
        models = self.w.cpu().numpy()
        found = []
        for lane, model in zip(self.lanes, models, strict=True):
            status, reason, rounds, account = FINISHED, "", self.number, lane.account
            if lane.ended is not None:
                status, rounds = DIVERGED, lane.ended
                reason = f"The run diverged by round {rounds}: lower the step size."
                if account is not None:
                    account = account.fresh()
                    account.counts = releases_per_client(self._schedule, rounds)
            plan, training = lane.setting.plan, lane.setting.training
            found.append(
                Run(plan, training, lane.mechanism, account, lane.points, status, reason, rounds, model, lane.size,
                    self.seconds)
            )  # fmt: skip
        return found

    def _lane(self, plan: Plan) -> tuple[Mechanism | None, Account | None, Way, int]:
        """Mechanism, account and draws of runs of a plan; a budget that the rounds would exceed is refused."""
        problem = self.problem
        if not plan.private:
            return None, None, way_of(None, plan.cohort), 4 * problem.dimension
        releases = releases_per_client(self._schedule, self.rounds)
        mechanism = plan.mechanism_for(problem.dimension, problem.sizes, releases if plan.calibrated else None)
        account = plan.account(mechanism, problem.sizes)
        account.counts = releases
        spent = account.worst(plan.delta).epsilon_upper
        within = plan.epsilon is None or spent <= plan.epsilon
        require(within, "epsilon of all rounds", spent, f"at most the budget {plan.epsilon}")
        account.counts = self.counts
        return mechanism, account, way_of(mechanism, plan.cohort), payload_bytes(plan, mechanism)

    def _round(self) -> Tensor:
        """One step of every run; whether each had finite gradients."""
        torch, kept = require_module("torch", "lab"), TOGETHER[_kind(self.device)]
        clients = self._schedule.cohort(self.number)
        self.counts[clients] += 1
        sizes = self.problem.sizes[clients].tolist()
        examples = np.concatenate([self.problem.partition.of(client) for client in clients.tolist()])
        inputs, labels = self._train.batch(examples)
        generator = torch.Generator(device=self.device).manual_seed(self._seed())
        finite = []
        for start in range(0, len(self.lanes), kept):
            some = slice(start, start + kept)
            given = (self.w[some], inputs, labels, sizes, self._columns["clip"][some])
            rows, fine = self._layers.clipped_means(*given)
            finite.append(fine)
            means = torch.stack(
                [lane.way.rows(row, generator) for lane, row in zip(self.lanes[some], rows, strict=True)]
            )
            self.v[some] = self._columns["momentum"][some, None] * self.v[some] + means
        self.w -= self._columns["lr"][:, None] * self.v
        return torch.cat(finite)

    def _seed(self) -> int:
        if self.settings[0].plan.rng != "seeded":
            return int.from_bytes(os.urandom(7), "little")
        return int.from_bytes(hashlib.sha256(f"{self.identity}:{self.number}".encode()).digest()[:7], "little")

    def _end_diverged(self, finite: Tensor) -> None:
        """A run whose gradients or parameters left the range of useful numbers is over."""
        fine = (finite & (self.w.abs().amax(dim=1) < LARGEST)).tolist()
        for lane, good in zip(self.lanes, fine, strict=True):
            if not good and lane.ended is None:
                lane.ended = self.number

    def _score(self) -> None:
        """A point for every run that has not diverged."""
        torch, count = require_module("torch", "lab"), self.problem.dataset.test.count
        right = torch.zeros(len(self.lanes), dtype=torch.int64, device=self.device)
        loss = torch.zeros(len(self.lanes), dtype=torch.float64, device=self.device)
        for first in range(0, count, SCORED):
            inputs, labels = self._test.batch(np.arange(first, min(first + SCORED, count)))
            for start in range(0, len(self.lanes), TOGETHER[_kind(self.device)]):
                some = slice(start, start + TOGETHER[_kind(self.device)])
                scores = self._layers.scores(self.w[some], inputs)
                right[some] += (scores.argmax(dim=2) == labels).sum(dim=1)
                chosen = scores.double().gather(2, labels.expand(scores.shape[0], -1)[..., None])[..., 0]
                loss[some] += (torch.logsumexp(scores.double(), dim=2) - chosen).sum(dim=1)
        cohort = self.settings[0].plan.cohort
        for lane, correct, lost in zip(self.lanes, right.tolist(), loss.tolist(), strict=True):
            if lane.ended is None:
                guarantee = lane.account.worst(lane.setting.plan.delta) if lane.account is not None else None
                score, sent = Score(correct / count, lost / count), self.number * cohort * lane.size
                lane.points.append(Point(self.number, score, guarantee, sent, self.seconds))


@final
@dataclass(slots=True, eq=False)
class ModuleTogether:
    """Trains the networks of a sweep together; see `experiment/batched.py`.

    A batch that the clock stops begins anew in the next piece.
    """

    device: str
    make_problem: MakeProblem
    note: Callable[[str], None] | None = None
    _problems: dict[str, Problem] = field(init=False, default_factory=dict, repr=False)

    def walk(self, job: Job) -> Hashable:
        """Task and walk, for a job of a network whose samples are protected."""
        if not isinstance(self._problem(job), ModuleProblem) or not _fits(job.setting):
            return None
        return (repr(sorted(job.task.items())), *_walk(job.setting))

    def most(self, job: Job) -> int:
        """So many that little is lost where the clock stops them."""
        return RUNS[_kind(self.device)]

    def train(self, jobs: Sequence[Job], checkpoint: Path, until: float | None) -> list[dict[str, Any]] | None:
        """Results of a batch, or None where the time is up."""
        problem = self._problem(jobs[0])
        if not isinstance(problem, ModuleProblem):
            raise TypeError("walk() sends other problems to alone()")
        batch = ModuleBatch(problem, [job.setting for job in jobs], self.device)
        batch.advance(until)
        if not batch.done:
            return None
        if self.note is not None:
            self.note(f"{len(jobs)} runs, {batch.rounds:,} rounds: {batch.seconds:.1f} s")
        said, name = {"identity": batch.identity, "runs": len(jobs)}, _name(self.device)
        return [
            {
                "job": job.identity,
                "label": job.label,
                "record": run_record(
                    run, dict(job.task), device=name, draws=lane.way.draws, batch={**said, "place": place}
                ),
            }
            for place, (job, run, lane) in enumerate(zip(jobs, batch.runs(), batch.lanes, strict=True))
        ]

    def alone(self, job: Job) -> dict[str, Any]:
        """One job through the simulator."""
        return run_job(job, lambda task, seed: self._problem(job))

    def _problem(self, job: Job) -> Problem:
        """The problem of a job, made once; clients of several examples are drawn by the seed."""
        key = repr((sorted(job.task.items()), job.setting.seed if job.task.get("samples", 1) != 1 else 0))
        if key not in self._problems:
            self._problems[key] = self.make_problem(job.task, job.setting.seed)
        return self._problems[key]


def _walk(setting: Setting) -> tuple[Any, ...]:
    """What runs of one batch have in common."""
    plan, training = setting.plan, setting.training
    scored = (training.rounds, training.evaluate_every, training.evaluate_at)
    return (plan.seed, plan.cohort, plan.participation, plan.rng, *scored)


def _fits(setting: Setting) -> bool:
    plan = setting.plan
    plain = plan.trust is Trust.LOCAL and plan.keep is None and plan.clip_quantile is None
    public = plan.participation != "secret-order"
    sample = plan.unit is Unit.SAMPLE and plan.norm is Norm.L2 and setting.training.local_steps == 1
    return plain and public and sample


def _kind(device: str) -> str:
    return "cpu" if device == "cpu" else "cuda"


def _name(device: str) -> str:
    return device_name(require_module("torch", "lab").device(device))
