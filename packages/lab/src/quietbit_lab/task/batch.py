"""Training many models together: same cohorts, one walk through the rounds.

Idea     runs that share seed, cohort and participation meet the same clients in the same order.
         They are trained side by side on one device; each has its own mechanism, step size, clip,
         account and end. What a round does to one of them has the law of `simulate/loop.py`. An
         account is the releases of every client, which they share, and a mechanism; runs with equal
         mechanisms share it too, so that a grid of step sizes costs one. What kind of model it is
         `Models` knows: linear ones (`linear_device.py`) or networks (`module_device.py`).
Symbols  G runs; w, v: (G, ...) parameters and momentum in float32: v <- mu v + mean, w <- w - lr v.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters": the grids that this is for.

Randomness. Every round and kind of mechanism takes a seed of 63 bits: of the operating system, or
for seeded words of a digest of the batch's settings, the round and the kind. A seeded run is thus
repeated by repeating its batch on the same kind of device. A simulation protects nobody.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import attrs
import numpy as np
from numpy.typing import NDArray

from quietbit.errors import require, require_module
from quietbit.federation.compare import bytes_sent
from quietbit.federation.costs import ClientCosts
from quietbit.federation.simulate.loop import DIVERGED, FINISHED, LARGEST, TARGET, Point, Run
from quietbit.federation.simulate.participation import Schedule, releases_per_client
from quietbit.federation.simulate.problem import Rows, Score
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.base import Mechanism
from quietbit.privacy.guarantee import Guarantee
from quietbit_lab.cohort.means import Way, way_of
from quietbit_lab.experiment.record import Setting
from quietbit_lab.schedule import EACH_ONCE, SAMPLED, ScheduledPlan

__all__ = ["DROPPED", "Batch", "Lane", "Models", "exact_float32", "mechanism_of", "shared_walk"]

torch: Any = require_module("torch", "lab[torch]")
Tensor: TypeAlias = Any
LOOK = 25  # rounds between looks at the clock
Watch: TypeAlias = Callable[
    [int, "Sequence[Point | None]"], bool
]  # rounds done, newest points; False stops
DROPPED = "dropped"
SCORED = 1000  # examples at once


def shared_walk(setting: Setting) -> tuple[Any, ...]:
    """Return what runs of one batch have in common."""
    plan = setting.plan
    return (plan.seed, plan.cohort, plan.participation, plan.mechanism.norm.value, plan.rng)


def mechanism_of(setting: Setting, problem: Any) -> Mechanism:
    """Return the mechanism of a private run, calibrated to its releases where it has none."""
    plan = setting.plan
    rounds = setting.training.rounds
    releases = releases_per_client(
        plan.schedule(problem.sizes.size), rounds if plan.mechanism.calibrated else 0
    )
    return plan.mechanism_for(problem.dimension, problem.sizes, releases)


class Models(ABC):
    """The data of a ``problem`` on a torch ``device``, for many models at once."""

    problem: Any
    device: Any
    together: int

    @abstractmethod
    def check(self, setting: Setting) -> None:
        """Refuse a run that cannot be trained this way."""

    @abstractmethod
    def models(self, parameters: Rows, count: int) -> Tensor:
        """Return ``count`` models that start alike, (G, ...)."""

    @abstractmethod
    def parameters(self, models: Tensor) -> list[Rows]:
        """Return every model's parameters."""

    @abstractmethod
    def drawn(self, ways: Sequence[Way], cohort: int) -> Any:
        """Return what draws the means of models of one kind."""

    @abstractmethod
    def means(
        self,
        models: Tensor,
        clients: NDArray[np.int64],
        norm: Norm,
        clips: Tensor,
        drawn: Sequence[Any],
    ) -> Tensor:
        """Return the server's means; ``drawn`` has (start, stop, result, seed) for every kind."""

    @abstractmethod
    def answers(self, models: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return all models' scores of some test examples, (G, n, classes), and their labels."""

    def share(self, norm: Norm) -> float:
        """Return the largest part of an update's length that one coordinate can have."""
        return 1.0

    def scores(self, models: Tensor) -> list[Score]:
        """Return accuracy and cross-entropy of every model on the test examples."""
        count = self.problem.dataset.test.count
        right = torch.zeros(models.shape[0], dtype=torch.int64, device=self.device)
        loss = torch.zeros(models.shape[0], dtype=torch.float64, device=self.device)
        for start in range(0, models.shape[0], self.together):
            some = slice(start, start + self.together)
            for first in range(0, count, SCORED):
                answers, labels = self.answers(models[some], first, min(first + SCORED, count))
                right[some] += (answers.argmax(dim=2) == labels).sum(dim=1)
                wide = answers.double()
                chosen = wide.gather(2, labels.expand(wide.shape[0], -1)[..., None])[..., 0]
                loss[some] += (torch.logsumexp(wide, dim=2) - chosen).sum(dim=1)
        return [
            Score(hits / count, lost / count)
            for hits, lost in zip(right.tolist(), loss.tolist(), strict=True)
        ]


@contextmanager
def exact_float32() -> Iterator[None]:
    """Compute float32 matrix products in float32: no short formats of tensor cores."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@final
class Batch:
    """Runs with the same cohorts on one device; `advance` trains, `runs` returns results.

    ``drop_behind``: a run that at two scorings in a row has this much less accuracy than the best
    run of the same mechanism and strength, was not catching up between them, and takes larger steps
    (step size times clip) than the best, is dropped; its record says so. Smaller steps are slow at
    first and better later, and stay. ``draw`` is what is drawn of codes: those of all "clients", or
    "sums" as in `cohort/moments.py`.
    """

    def __init__(
        self,
        data: Models,
        settings: Sequence[Setting],
        drop_behind: float | None = None,
        draw: str = "clients",
    ) -> None:
        """Refuse runs that do not belong together or cannot be drawn this way."""
        require(len(settings) > 0, "settings", len(settings), "at least one")
        first = settings[0]
        problem = data.problem
        for setting in settings:
            require(
                shared_walk(setting) == shared_walk(first),
                "settings of a batch",
                shared_walk(setting),
                f"alike in what decides who takes part: {shared_walk(first)}",
            )
            data.check(setting)
        require(
            first.plan.participation in (EACH_ONCE, SAMPLED),
            "participation",
            first.plan.participation,
            "each-once or sampled",
            "leave out --device, whose checkpoints keep no secret order",
        )
        replayed = any(setting.plan.replay is not None for setting in settings)
        require(not replayed, "replay", True, "left out", "or leave out --device")
        self.data = data
        self.drop_behind = drop_behind
        self.plan = first.plan
        self.number = 0
        self.seconds = 0.0
        self.rounds = max(setting.training.rounds for setting in settings)
        self._schedule = first.plan.schedule(problem.sizes.size)
        self.counts = np.zeros(problem.sizes.size, dtype=np.int64)
        self.lanes = make_lanes(
            settings,
            problem,
            self.counts,
            self._schedule,
            data.share(first.plan.mechanism.norm),
            draw,
        )
        text = json.dumps([setting.first_words() for setting in settings], sort_keys=True)
        text += "" if draw == "clients" else draw
        self.identity = hashlib.sha256(text.encode()).hexdigest()[:24]
        # Runs of one kind lie side by side, so that a kind is a slice.
        self.alive = sorted(range(len(self.lanes)), key=lambda k: self.lanes[k].way.kind)
        self.w = data.models(problem.initial(first.seed), len(self.lanes))
        self.v = torch.zeros_like(self.w)
        self._arrange()

    @property
    def done(self) -> bool:
        """Whether every run has ended."""
        return not self.alive

    @property
    def draws(self) -> list[str]:
        """For every run, what was drawn: every client's symbols, or the law of the cohort's sum."""
        return [lane.way.draws for lane in self.lanes]

    def advance(self, rounds: int | None = None, watch: Watch | None = None) -> None:
        """Train up to ``rounds`` more rounds; fewer if all runs end or ``watch`` returns False."""
        began = time.perf_counter()
        before = self.seconds
        if rounds is None:
            last = self.rounds
        else:
            last = min(self.number + rounds, self.rounds)
        with exact_float32(), torch.no_grad():
            while self.number < last and self.alive:
                if self._end_targets():
                    continue
                self._round()
                self._end_diverged()
                self.number += 1
                scored = any(
                    lane.setting.training.evaluated(self.number) for lane in self._living()
                )
                ends = any(lane.setting.training.rounds == self.number for lane in self._living())
                if scored or ends or self.number % LOOK == 0 or self.number == last:
                    self.seconds = before + time.perf_counter() - began
                    if scored:
                        newest = self._score()
                    else:
                        newest = [None] * len(self.lanes)
                    self._end_finished()
                    if watch is not None and not watch(self.number, newest):
                        break
        self.seconds = before + time.perf_counter() - began

    def runs(self) -> list[Run]:
        """Return the result of every run so far, in the order of the settings."""
        self._keep_parameters(range(len(self.alive)))
        return [
            lane.run(self.data.problem.dimension, self.number, self.seconds) for lane in self.lanes
        ]

    def replace_state(self, number: int, seconds: float, alive: list[int], w: Any, v: Any) -> None:
        """Continue from a checkpoint: parameters and momentum of live runs after some rounds."""
        self.number = number
        self.seconds = seconds
        self.alive = alive
        for place in range(number):
            self.counts[self._schedule.cohort(place)] += 1
        self.w, self.v = (
            torch.from_numpy(np.ascontiguousarray(a)).to(self.data.device) for a in (w, v)
        )
        self._arrange()

    def _living(self) -> list[Lane]:
        return [self.lanes[k] for k in self.alive]

    def _round(self) -> None:
        """One step of every run that is alive."""
        clients = self._schedule.cohort(self.number)
        self.counts[clients] += 1
        drawn = [(start, stop, mean, self._seed(kind)) for kind, start, stop, mean in self._means]
        means = self.data.means(self.w, clients, self.plan.mechanism.norm, self._clips, drawn)
        self.v.mul_(self._momentum).add_(means)
        self.w.addcmul_(self.v, self._rates, value=-1)

    def _seed(self, kind: str) -> int:
        words = os.urandom(8)
        if self.plan.rng == "seeded":
            words = hashlib.sha256(f"{self.identity}:{self.number}:{kind}".encode()).digest()[:8]
        return int.from_bytes(words, "little") >> 1

    def _arrange(self) -> None:
        """Prepare what a round needs for the runs that are alive."""

        def column(values: list[float]) -> Tensor:
            tensor = torch.tensor(values, dtype=torch.float32, device=self.data.device)
            return tensor.reshape(-1, *(1,) * (self.w.ndim - 1))

        living = self._living()
        self._rates = column([lane.setting.training.lr for lane in living])
        self._momentum = column([lane.setting.training.momentum for lane in living])
        clips = [lane.setting.plan.clip for lane in living]
        self._clips = torch.tensor(clips, dtype=torch.float64, device=self.data.device)
        self._means: list[tuple[str, int, int, Any]] = []
        kinds = [lane.way.kind for lane in living]
        start = 0
        for kind in sorted(set(kinds)):
            stop = start + kinds.count(kind)
            drawn = self.data.drawn([lane.way for lane in living[start:stop]], self.plan.cohort)
            self._means.append((kind, start, stop, drawn))
            start = stop

    def _end_diverged(self) -> None:
        """End the runs whose parameters are out of range or NaN, without a score of that round."""
        largest = self.w.abs().flatten(1).amax(dim=1)
        if bool((largest < LARGEST).all()):
            return
        sizes = largest.tolist()
        ended = [place for place, size in enumerate(sizes) if not size < LARGEST]
        for place in ended:
            words = (
                f"The run diverged in round {self.number + 1}: parameters grew to {sizes[place]:g}"
            )
            self.lanes[self.alive[place]].end(
                DIVERGED, f"{words}; lower the step size.", self.number, self.counts
            )
        self._remove(ended)

    def _end_targets(self) -> bool:
        """End the runs whose targets forbid the next round; return whether there were any."""
        places = [place for place, lane in enumerate(self._living()) if lane.stop == self.number]
        if places and self.number:
            self._score(
                [place for place in places if not self._living()[place].scored(self.number)]
            )
        for place in places:
            lane = self.lanes[self.alive[place]]
            budget = f"the budget epsilon {lane.setting.plan.epsilon:g}"
            lane.end(
                TARGET, f"Round {self.number + 1} would exceed {budget}.", self.number, self.counts
            )
        self._remove(places)
        return bool(places)

    def _end_finished(self) -> None:
        places = [
            place
            for place, lane in enumerate(self._living())
            if lane.setting.training.rounds == self.number
        ]
        for place in places:
            lane = self.lanes[self.alive[place]]
            if self.number < self.rounds:  # others go on, and counts with them
                lane.counts = self.counts.copy()
            lane.rounds = self.number
        self._remove(places)

    def _score(self, places: Sequence[int] | None = None) -> list[Point | None]:
        """Score the runs at ``places``, or those due, and drop the ones that are far behind."""
        living = self._living()
        due = [
            place
            for place, lane in enumerate(living)
            if lane.setting.training.evaluated(self.number)
        ]
        chosen = due if places is None else places
        newest: list[Point | None] = [None] * len(self.lanes)
        index = torch.tensor(chosen, dtype=torch.int64, device=self.data.device)
        answers: dict[int, Guarantee] = {}  # of the accounts, which runs share
        for place, score in zip(
            chosen, self.data.scores(self.w.index_select(0, index)), strict=True
        ):
            lane = living[place]
            guarantee = None
            if lane.account is not None:
                if id(lane.account) not in answers:
                    answers[id(lane.account)] = lane.account.worst(lane.setting.plan.delta)
                guarantee = answers[id(lane.account)]
            lane.rounds = self.number
            point = Point(
                self.number,
                score,
                guarantee,
                self.number * self.plan.cohort * lane.size,
                self.seconds,
            )
            lane.points.append(point)
            newest[self.alive[place]] = point
        if places is None and self.drop_behind is not None and self.number < self.rounds:
            self._drop(chosen, self.drop_behind)
        return newest

    def _drop(self, places: Sequence[int], most: float) -> None:
        """Drop the runs that are and were ``most`` behind the best and are not catching up."""
        best: dict[ScheduledPlan, tuple[float, float]] = {}
        living = self._living()
        ended = []
        for place in places:
            lane = living[place]
            best[lane.strength] = max(
                best.get(lane.strength, (0.0, 0.0)), (lane.points[-1].score.accuracy, lane.pace)
            )
        for place in places:
            lane = living[place]
            accuracy, pace = best[lane.strength]
            before = lane.behind
            lane.behind = accuracy - lane.points[-1].score.accuracy
            behind = before > most and lane.behind >= before and lane.pace > pace
            if behind and self.number < lane.setting.training.rounds:
                words = (
                    f"Dropped after round {self.number}: "
                    f"{100 * lane.behind:.1f} points behind the best run of the same privacy, "
                    "with larger steps and not catching up."
                )
                lane.end(DROPPED, words, self.number, self.counts)
                ended.append(place)
        self._remove(ended)

    def _remove(self, places: Sequence[int]) -> None:
        """Take runs that have ended out of the batch."""
        if not places:
            return
        self._keep_parameters(places)
        stay = [place for place in range(len(self.alive)) if place not in set(places)]
        self.alive = [self.alive[place] for place in stay]
        index = torch.tensor(stay, dtype=torch.int64, device=self.data.device)
        self.w = self.w.index_select(0, index)
        self.v = self.v.index_select(0, index)
        self._arrange()

    def _keep_parameters(self, places: Sequence[int]) -> None:
        for place in places:
            self.lanes[self.alive[place]].parameters = self.data.parameters(
                self.w[place : place + 1]
            )[0]


@final
@dataclass(slots=True, eq=False)
class Lane:
    """A run of a batch; ``stop`` is the round that its target forbids.

    Runs of equal plan and length share an ``account``, which reads the batch's counts; without
    privacy there is none.
    """

    setting: Setting
    mechanism: Mechanism | None
    way: Way
    size: int
    stop: int
    account: ClientCosts | None
    points: list[Point] = field(default_factory=list)
    status: str = FINISHED
    reason: str = ""
    rounds: int = 0
    counts: NDArray[np.int64] | None = None
    behind: float = 0.0
    parameters: Rows | None = None

    @property
    def strength(self) -> ScheduledPlan:
        """Return a key equal for runs with the same account: noise goes with the clip."""
        return attrs.evolve(self.setting.plan, clip=1.0)

    @property
    def pace(self) -> float:
        """How far a step goes, where updates are as long as the clip."""
        return self.setting.training.lr * self.setting.plan.clip

    def scored(self, number: int) -> bool:
        """Whether there is a point after ``number`` rounds."""
        return bool(self.points) and self.points[-1].round == number

    def end(self, status: str, reason: str, rounds: int, counts: NDArray[np.int64]) -> None:
        """End before the last round."""
        self.status = status
        self.reason = reason
        self.rounds = rounds
        self.counts = counts.copy()

    def run(self, dimension: int, number: int, seconds: float) -> Run:
        """Return the result of the run; one that has not ended has done ``number`` rounds."""
        account = self.account
        if account is not None and self.counts is not None:
            account = account.fresh()
            account.counts = self.counts
        if self.parameters is not None:
            parameters = self.parameters
        else:
            parameters = np.zeros(dimension, dtype=np.float32)
        if self.counts is not None:
            rounds = self.rounds
        else:
            rounds = number
        return Run(
            self.setting.plan,
            self.setting.training,
            self.mechanism,
            account,
            self.points,
            self.status,
            self.reason,
            rounds,
            parameters,
            self.size,
            seconds,
            uplink_bytes=rounds * self.setting.plan.cohort * self.size,
        )


def make_lanes(
    settings: Sequence[Setting],
    problem: Any,
    counts: NDArray[np.int64],
    schedule: Schedule,
    share: float,
    draw: str,
) -> list[Lane]:
    """Return a lane for each of the settings; refuse what cannot be drawn or accounted for."""
    lanes: list[Lane] = []
    made: dict[
        tuple[ScheduledPlan, int], tuple[Any, ...]
    ] = {}  # by all that a mechanism and its account depend on
    for setting in settings:
        key = plan, rounds = setting.plan, setting.training.rounds
        if key not in made and not plan.private:
            made[key] = None, way_of(None, plan.cohort), 4 * problem.dimension, rounds, None
        elif key not in made:
            mechanism = mechanism_of(setting, problem)
            way = way_of(mechanism, plan.cohort, plan.trust, share, draw, plan.clip)
            account = plan.account(mechanism, problem.sizes)
            account.counts = counts
            size = bytes_sent(mechanism, plan.trust, plan.updates)
            made[key] = mechanism, way, size, _stop(plan, rounds, account, schedule), account
        lanes.append(Lane(setting, *made[key]))
    return lanes


def _stop(plan: ScheduledPlan, rounds: int, account: ClientCosts, schedule: Schedule) -> int:
    """Return the first round that the budget forbids, known since cohorts are public."""
    if plan.epsilon is None:
        return rounds
    alone = account.fresh()
    alone.counts = releases_per_client(schedule, rounds)
    if alone.worst(plan.delta).epsilon_upper <= plan.epsilon:
        return rounds
    alone = account.fresh()
    for number in range(rounds):
        clients = schedule.cohort(number)
        if alone.worst(plan.delta, after=clients).epsilon_upper > plan.epsilon:
            return number
        alone.record(clients)
    return rounds
