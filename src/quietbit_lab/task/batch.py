"""Training many models together: same cohorts, one walk through the rounds.

Idea     runs that share seed, cohort and participation meet the same clients in the same order. They are trained side
         by side on one device; each has its own mechanism, step size, clip, account and end. What a round does to one
         of them has the law of `simulate/loop.py`. An account is the releases of every client, which they share, and
         a mechanism; runs with equal mechanisms share it too, so that a grid of step sizes costs one.
         What kind of model it is `Models` knows: linear ones (`linear_device.py`) or networks (`module_device.py`).
Symbols  G runs; w, v: (G, ...) parameters and momentum in float32: v <- mu v + mean, w <- w - lr v.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters": the grids that this is for.

Randomness. Every round and kind of mechanism takes a seed of 63 bits: of the operating system, or for seeded words of a
digest of the batch's settings, the round and the kind. A seeded run is thus repeated by repeating its batch on the
same kind of device. A simulation protects nobody.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import attrs
import numpy as np
from numpy.typing import NDArray

from quietbit.errors import require, require_module
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.base import Mechanism
from quietbit.plan.costs import ClientCosts
from quietbit.plan.participation import EACH_ONCE, SAMPLED, Schedule, releases_per_client
from quietbit.plan.plan import Plan
from quietbit.privacy.guarantee import Guarantee, Trust
from quietbit.simulate.collect import payload_bytes
from quietbit.simulate.loop import DIVERGED, FINISHED, LARGEST, TARGET, Point, Run
from quietbit.simulate.problem import Rows, Score
from quietbit_lab.cohort.means import Way, way_of
from quietbit_lab.experiment.record import Setting

__all__ = ["DROPPED", "Batch", "Lane", "Models", "exact_float32", "shared_walk"]

torch: Any = require_module("torch", "lab")
Tensor: TypeAlias = Any
LOOK = 25  # rounds between looks at which runs have diverged, and at the clock
Watch: TypeAlias = Callable[[int, "Sequence[Point | None]"], bool]  # rounds done, newest points; False stops
Key: TypeAlias = tuple[Plan, int]  # what a mechanism and its account depend on: the plan, and its rounds
DROPPED = "dropped"
SCORED = 1000  # examples at once


def shared_walk(setting: Setting) -> tuple[Any, ...]:
    """Return what runs of one batch have in common."""
    plan = setting.plan
    return (plan.seed, plan.cohort, plan.participation, plan.norm.value, plan.rng)


class Models(ABC):
    """The data of a ``problem`` on a torch ``device``, asked about many models at once; ``together`` are scored so."""

    problem: Any
    device: Any
    together: int

    @abstractmethod
    def check(self, setting: Setting) -> None:
        """Refuse a run that cannot be trained this way."""

    @abstractmethod
    def working(self) -> AbstractContextManager[Any]:
        """Return the context in which models are trained."""

    @abstractmethod
    def share(self, norm: Norm) -> float:
        """Return the largest part of an update's length that one coordinate can have."""

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
        cohort: Tensor,
        norm: Norm,
        clips: Tensor,
        drawn: Sequence[Any],
    ) -> Tensor:
        """Return the server's means; ``drawn`` has (start, stop, what `drawn` returned, seed) for every kind."""

    @abstractmethod
    def answers(self, models: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return all models' answers to some test examples, (G, n, classes), and the labels of these."""

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
        return [Score(one / count, lost / count) for one, lost in zip(right.tolist(), loss.tolist(), strict=True)]


@contextmanager
def exact_float32() -> Iterator[None]:
    """Matrix products of float32 in float32: the short formats of tensor cores are off meanwhile."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@final
@dataclass(slots=True, eq=False)
class Batch:
    """Runs with the same walk on one device; `advance` takes them on, `runs` says what came of them.

    ``drop_behind``: a run that at two scorings in a row has this much less accuracy than the best run of the same
    mechanism and strength, was not catching up between them, and takes larger steps (step size times clip) than the
    best, is dropped; its record says so. Smaller steps are slow at first and better later, and stay. ``draw`` is what
    is drawn of codes: those of all "clients", or "sums" as in `cohort/moments.py`.
    """

    data: Models
    settings: Sequence[Setting]
    drop_behind: float | None = None
    draw: str = "clients"
    number: int = field(init=False, default=0)
    seconds: float = field(init=False, default=0.0)
    identity: str = field(init=False)
    lanes: list[Lane] = field(init=False, repr=False)
    alive: list[int] = field(init=False, repr=False)
    w: Tensor = field(init=False, repr=False)
    v: Tensor = field(init=False, repr=False)
    counts: NDArray[np.int64] = field(init=False, repr=False)
    _accounts: Accounts = field(init=False, repr=False)
    _schedule: Schedule = field(init=False, repr=False)
    _means: list[tuple[int, int, Any]] = field(init=False, repr=False)
    _columns: dict[str, Tensor] = field(init=False, repr=False)
    _ahead: list[tuple[NDArray[np.int64], Tensor]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse runs that do not belong together or cannot be drawn this way; nothing is drawn yet."""
        require(len(self.settings) > 0, "settings", self.settings, "a list of at least one")
        first, problem = self.settings[0], self.data.problem
        for setting in self.settings:
            require(shared_walk(setting) == shared_walk(first), "settings of a batch", "different walks", "alike")
            self.data.check(setting)
        clients = problem.sizes.size
        rule = "each-once or sampled: runs side by side are continued from checkpoints, and what is secret is not kept"
        require(first.plan.participation in (EACH_ONCE, SAMPLED), "participation", first.plan.participation, rule)
        replayed = any(one.plan.replayed for one in self.settings)
        require(not replayed, "downlink", "replay", "full for runs that are trained together")
        self._schedule = first.plan.schedule(clients)
        self.counts = np.zeros(clients, dtype=np.int64)
        self._accounts = Accounts(problem.sizes, self.counts)
        share = self.data.share(first.plan.norm)
        self.lanes = make_lanes(self.settings, problem.dimension, self._accounts, self._schedule, share, self.draw)
        text = json.dumps([setting.first_words() for setting in self.settings], sort_keys=True)
        text += "" if self.draw == "clients" else self.draw
        self.identity = hashlib.sha256(text.encode()).hexdigest()[:24]
        # Runs of one kind lie side by side, so that a kind is a slice.
        self.alive = sorted(range(len(self.lanes)), key=lambda k: self.lanes[k].way.kind)
        self.w = self.data.models(problem.initial(first.seed), len(self.lanes))
        self.v = torch.zeros_like(self.w)
        self._arrange()

    @property
    def rounds(self) -> int:
        """How many rounds the longest run has."""
        return max(setting.training.rounds for setting in self.settings)

    @property
    def done(self) -> bool:
        """Whether every run has ended."""
        return not self.alive

    @property
    def draws(self) -> list[str]:
        """For every run, what was drawn: every client's symbols, or the law of the cohort's sum."""
        return [lane.way.draws for lane in self.lanes]

    def advance(self, rounds: int | None = None, watch: Watch | None = None) -> None:
        """Up to ``rounds`` more rounds, all unless given; fewer where all runs end, or where ``watch`` says False."""
        began, before = time.perf_counter(), self.seconds
        last, cohort = self.rounds, self.settings[0].plan.cohort
        last = last if rounds is None else min(self.number + rounds, last)
        with self.data.working():
            diverged = self._none_diverged()
            while self.number < last and self.alive:
                if any(self.lanes[k].stop == self.number for k in self.alive):
                    self._end_targets()
                    diverged = self._none_diverged()
                    continue
                self._round()
                largest = self.w.abs().flatten(1).amax(dim=1)
                new = ~(largest < LARGEST) & (diverged[0] < 0)
                here = torch.stack([torch.full_like(largest, self.number), largest])
                diverged = torch.where(new, here, diverged)
                self.number += 1
                scored = any(self.lanes[k].setting.training.evaluated(self.number) for k in self.alive)
                ends = any(self.lanes[k].setting.training.rounds == self.number for k in self.alive)
                if scored or ends or self.number % LOOK == 0 or self.number == last:
                    self._end_diverged(diverged)
                    self.seconds = before + time.perf_counter() - began
                    newest = self._score(self.number * cohort) if scored else [None] * len(self.lanes)
                    self._end_finished()
                    diverged = self._none_diverged()
                    if watch is not None and not watch(self.number, newest):
                        break
        self.seconds = before + time.perf_counter() - began

    def runs(self) -> list[Run]:
        """Return the result of every run so far, in the order of the settings."""
        self._keep_parameters(range(len(self.alive)))
        return [lane.run(self._accounts, self.data.problem.dimension, self.number, self.seconds) for lane in self.lanes]

    def end_all(self, status: str, reason: str) -> None:
        """End every run that is alive where it is."""
        for k in self.alive:
            self.lanes[k].end(status, reason, self.number, self.counts.copy())
        self._remove(range(len(self.alive)))

    def replace_state(self, number: int, seconds: float, alive: list[int], w: Any, v: Any) -> None:
        """Continue from a checkpoint: parameters and momentum of the runs still alive, after ``number`` rounds."""
        self.number, self.seconds, self.alive = number, seconds, alive
        for place in range(number):
            self.counts[self._schedule.cohort(place)] += 1
        self.w, self.v = (torch.from_numpy(np.ascontiguousarray(a)).to(self.data.device) for a in (w, v))
        self._arrange()

    def _round(self) -> None:
        """One step of every run that is alive."""
        if not self._ahead:
            self._ahead = self._prepare()
        clients, cohort = self._ahead.pop()
        self.counts[clients] += 1
        drawn = [
            (start, stop, mean, self._seed(self.lanes[self.alive[start]].way.kind)) for start, stop, mean in self._means
        ]
        norm, clips = self.settings[0].plan.norm, self._columns["clip"]
        found = self.data.means(self.w, clients, cohort, norm, clips, drawn)
        self.v.mul_(self._columns["momentum"]).add_(found)
        self.w.addcmul_(self.v, self._columns["lr"], value=-1)

    def _prepare(self) -> list[tuple[NDArray[np.int64], Tensor]]:
        """Cohorts of the next rounds, the last first, moved to the device in one go."""
        numbers = range(self.number, min(self.number + LOOK, self.rounds))
        cohorts = np.stack([self._schedule.cohort(number) for number in numbers])
        moved = torch.from_numpy(cohorts).to(self.data.device)
        return list(zip(cohorts, moved, strict=True))[::-1]

    def _seed(self, kind: str) -> int:
        words = os.urandom(8)
        if self.settings[0].plan.rng == "seeded":
            words = hashlib.sha256(f"{self.identity}:{self.number}:{kind}".encode()).digest()[:8]
        return int.from_bytes(words, "little") >> 1

    def _arrange(self) -> None:
        """Prepare what a round needs for the runs that are alive."""

        def column(name: str, kind: Any) -> Tensor:
            chosen = [self.lanes[k].setting for k in self.alive]
            values = [one.plan.clip if name == "clip" else getattr(one.training, name) for one in chosen]
            return torch.tensor(values, dtype=kind, device=self.data.device)

        self._columns = {
            name: column(name, torch.float32).reshape(-1, *(1,) * (self.w.ndim - 1)) for name in ("lr", "momentum")
        }
        self._columns["clip"] = column("clip", torch.float64)
        self._means, start = [], 0
        self._ahead = []
        kinds = [self.lanes[k].way.kind for k in self.alive]
        for kind in sorted(set(kinds)):
            stop = start + kinds.count(kind)
            ways = [self.lanes[k].way for k in self.alive[start:stop]]
            self._means.append((start, stop, self.data.drawn(ways, self.settings[0].plan.cohort)))
            start = stop

    def _none_diverged(self) -> Tensor:
        """First round and size of parameters out of range, for every run alive; -1 for none."""
        return torch.full((2, len(self.alive)), -1.0, dtype=torch.float32, device=self.data.device)

    def _end_diverged(self, diverged: Tensor) -> None:
        rounds, sizes = diverged.tolist()
        ended = []
        for place, (number, size) in enumerate(zip(rounds, sizes, strict=True)):
            if number >= 0:
                lane, after = self.lanes[self.alive[place]], int(number)
                reason = f"The run diverged in round {after + 1}: parameters grew to {size:g}; lower the step size."
                counts = self.counts.copy()
                for later in range(after + 1, self.number):
                    counts[self._schedule.cohort(later)] -= 1
                lane.end(DIVERGED, reason, after, counts)
                ended.append(place)
        self._remove(ended)

    def _end_targets(self) -> None:
        """End the runs whose targets forbid the next round, with a last score."""
        places = [place for place, k in enumerate(self.alive) if self.lanes[k].stop == self.number]
        if self.number:
            self._score(self.number * self.settings[0].plan.cohort, places)
        for place in places:
            self.lanes[self.alive[place]].end_at_target(self.number, self.counts.copy())
        self._remove(places)

    def _end_finished(self) -> None:
        places = [p for p, k in enumerate(self.alive) if self.lanes[k].setting.training.rounds == self.number]
        for place in places:
            lane = self.lanes[self.alive[place]]
            if self.number < self.rounds:  # others go on, and counts with them
                lane.counts = self.counts.copy()
            lane.rounds = self.number
        self._remove(places)

    def _score(self, sent: int, places: Sequence[int] | None = None) -> list[Point | None]:
        """Score the runs that ask for it (or those at ``places``) and drop the ones that are far behind."""
        asked = [p for p, k in enumerate(self.alive) if self.lanes[k].setting.training.evaluated(self.number)]
        chosen = asked if places is None else [p for p in places if not self.lanes[self.alive[p]].scored(self.number)]
        newest: list[Point | None] = [None] * len(self.lanes)
        index = torch.tensor(chosen, dtype=torch.int64, device=self.data.device)
        for place, score in zip(chosen, self.data.scores(self.w.index_select(0, index)), strict=True):
            lane = self.lanes[self.alive[place]]
            guarantee = self._accounts.worst(lane, self.number)
            lane.rounds = self.number
            newest[self.alive[place]] = Point(self.number, score, guarantee, sent * lane.size, self.seconds)
            lane.points.append(newest[self.alive[place]])  # type: ignore[arg-type]
        if places is None and self.drop_behind is not None and self.number < self.rounds:
            self._drop(chosen, self.drop_behind)
        return newest

    def _drop(self, places: Sequence[int], most: float) -> None:
        best: dict[Plan, tuple[float, float]] = {}
        for place in places:
            lane = self.lanes[self.alive[place]]
            best[lane.strength] = max(best.get(lane.strength, (0.0, 0.0)), (lane.points[-1].score.accuracy, lane.pace))
        ended = []
        for place in places:
            lane = self.lanes[self.alive[place]]
            accuracy, pace = best[lane.strength]
            behind = lane.falls_behind(accuracy, most) and lane.pace > pace
            if behind and self.number < lane.setting.training.rounds:
                lane.end(DROPPED, lane.behind_sentence(), self.number, self.counts.copy())
                ended.append(place)
        self._remove(ended)

    def _remove(self, places: Sequence[int]) -> None:
        """Take runs that have ended out of the batch."""
        if not places:
            return
        gone = set(places)
        self._keep_parameters(places)
        stay = [place for place in range(len(self.alive)) if place not in gone]
        self.alive = [self.alive[place] for place in stay]
        index = torch.tensor(stay, dtype=torch.int64, device=self.data.device)
        self.w, self.v = self.w.index_select(0, index), self.v.index_select(0, index)
        self._arrange()

    def _keep_parameters(self, places: Sequence[int]) -> None:
        for place in places:
            self.lanes[self.alive[place]].parameters = self.data.parameters(self.w[place : place + 1])[0]


@final
@dataclass(slots=True, eq=False)
class Lane:
    """A run of a batch; ``stop`` is the round that its target forbids, ``counts`` are those of an early end."""

    setting: Setting
    mechanism: Mechanism | None
    way: Way
    size: int
    stop: int
    points: list[Point] = field(default_factory=list)
    status: str = FINISHED
    reason: str = ""
    rounds: int = 0
    counts: NDArray[np.int64] | None = None
    behind: float = 0.0
    parameters: Rows | None = None

    @property
    def strength(self) -> Plan:
        """Equal for runs that differ in nothing that privacy depends on: noise goes with the clip."""
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
        self.status, self.reason, self.rounds, self.counts = status, reason, rounds, counts

    def end_at_target(self, rounds: int, counts: NDArray[np.int64]) -> None:
        """End because one more round would exceed the target."""
        budget = self.setting.plan.epsilon
        self.end(TARGET, f"Round {rounds + 1} would exceed the budget epsilon {budget:g}.", rounds, counts)

    def falls_behind(self, best: float, most: float) -> bool:
        """Whether it is ``most`` behind the best, was so at the scoring before, and is not catching up."""
        before, self.behind = self.behind, best - self.points[-1].score.accuracy
        return before > most and self.behind >= before

    def behind_sentence(self) -> str:
        """Why it was dropped."""
        return (
            f"Dropped after round {self.points[-1].round}: {100 * self.behind:.1f} points behind the best run "
            "of the same privacy, with larger steps and not catching up."
        )

    def run(self, accounts: Accounts, dimension: int, number: int, seconds: float) -> Run:
        """Return the result of the run; one that has not ended has done ``number`` rounds."""
        account = accounts.of(self)
        if account is not None and self.counts is not None:
            account = account.fresh()
            account.counts = self.counts
        parameters = self.parameters if self.parameters is not None else np.zeros(dimension, dtype=np.float32)
        rounds = self.rounds if self.counts is not None else number
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
        )


@final
@dataclass(slots=True, eq=False)
class Accounts:
    """Accounts that read one array of counts, one for each different mechanism; answers are kept for a round."""

    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    _found: dict[Key, ClientCosts] = field(init=False, default_factory=dict, repr=False)
    _answers: dict[tuple[Key, int], Guarantee] = field(init=False, default_factory=dict, repr=False)

    def open(self, setting: Setting, mechanism: Mechanism) -> ClientCosts:
        """Return the account of a mechanism; refuse a mechanism that has none."""
        key = setting.plan, setting.training.rounds
        if key not in self._found:
            account = setting.plan.account(mechanism, self.sizes)
            account.counts = self.counts
            self._found[key] = account
        return self._found[key]

    def of(self, lane: Lane) -> ClientCosts | None:
        """Return the account of a run; None without privacy."""
        return self.open(lane.setting, lane.mechanism) if lane.mechanism is not None else None

    def worst(self, lane: Lane, number: int) -> Guarantee | None:
        """Return the guarantee that holds for every client after ``number`` rounds."""
        account, key = self.of(lane), ((lane.setting.plan, lane.setting.training.rounds), number)
        if account is None:
            return None
        if key not in self._answers:
            self._answers[key] = account.worst(lane.setting.plan.delta)
        return self._answers[key]


def make_lanes(
    settings: Sequence[Setting],
    dimension: int,
    accounts: Accounts,
    schedule: Schedule,
    share: float,
    draw: str = "clients",
) -> list[Lane]:
    """Return a lane for each of the settings; refuse what cannot be drawn or accounted for."""
    lanes, made = [], {}
    for chosen in settings:
        key = chosen.plan, chosen.training.rounds
        if key not in made:
            made[key] = _mechanism(chosen, dimension, accounts, schedule, share, draw)
        lanes.append(Lane(chosen, *made[key]))
    return lanes


def _mechanism(
    setting: Setting, dimension: int, accounts: Accounts, schedule: Schedule, share: float, draw: str
) -> tuple[Mechanism | None, Way, int, int]:
    plan, rounds = setting.plan, setting.training.rounds
    if not plan.private:
        return None, way_of(None, plan.cohort), 4 * dimension, rounds
    releases = releases_per_client(schedule, rounds if plan.calibrated else 0)
    mechanism = plan.mechanism_for(dimension, accounts.sizes, releases)
    way = way_of(mechanism, plan.cohort, plan.trust, share, draw)
    account = accounts.open(setting, mechanism)
    size = 4 * dimension if plan.trust is Trust.CENTRAL else payload_bytes(plan, mechanism)
    return mechanism, way, size, _stop(plan, rounds, account, schedule)


def _stop(plan: Plan, rounds: int, account: ClientCosts, schedule: Schedule) -> int:
    """Return the first round that the budget forbids, known beforehand because cohorts are public."""
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
