"""Training many linear models together: same cohorts, one walk through the rounds.

Idea     runs that share seed, cohort and participation meet the same clients in the same order. They are trained side
         by side on one device; each has its own mechanism, step size, clip, account and end. What a round does to one
         of them has the law of `simulate/loop.py`.
Symbols  G runs; w, v: (G, K, width) parameters and momentum in float32: v <- mu v + mean, w <- w - lr v.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters": the grids that this is for.

Randomness. Every round and kind of mechanism takes a key of 32 bytes: of the operating system, or for seeded words a
digest of the batch's settings, the round and the kind. A seeded run is thus repeated by repeating its batch on the
same kind of device. Noise that is drawn as a whole comes from torch's generator: a simulation protects nobody.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import InvalidParameter, require, require_module
from quietbit.mechanism.ball import Norm
from quietbit.plan.participation import Participation, participation
from quietbit.plan.settings import Settings
from quietbit.privacy.guarantee import Unit
from quietbit.simulate.loop import DIVERGED, LARGEST, Point, Run
from quietbit_lab.task.linear import LinearSoftmax
from quietbit_lab.task.linear_device import DeviceProblem, Tensor, exact_products, open_device
from quietbit_lab.task.linear_lane import DROPPED, Accounts, Lane, make_lanes
from quietbit_lab.task.linear_sums import CohortMean, DrawKey, cohort_mean

__all__ = ["DROPPED", "Batch", "shared_walk", "train_many"]

LOOK = 25  # rounds between looks at which runs have diverged, and at the clock
Watch: TypeAlias = Callable[[int, "Sequence[Point | None]"], bool]  # rounds done, newest points; False stops


def train_many(problem: LinearSoftmax, settings: Sequence[Settings], device: str = "cpu") -> list[Run]:
    """Train with every one of the settings, which share `shared_walk`; one run each, in their order.

    Clients must have one example each, privacy must be client-level, and a mechanism must be one of
    `linear_sums.kind_of`; everything else is refused before anything is drawn.
    """
    batch = Batch(DeviceProblem(problem, open_device(device)), settings)
    batch.advance(settings[0].rounds)
    return batch.runs()


def shared_walk(settings: Settings) -> tuple[Any, ...]:
    """What runs of one batch have in common."""
    return (settings.seed, settings.cohort, settings.participation, settings.rounds, settings.norm, settings.words)


@final
@dataclass(slots=True, eq=False)
class Batch:
    """Runs with the same walk on one device; `advance` takes them on, `runs` says what came of them.

    ``drop_behind``: a run that at two scorings in a row has this much less accuracy than the best run of the same
    mechanism and strength, and was not catching up between them, is dropped; its record says so.
    """

    data: DeviceProblem
    settings: Sequence[Settings]
    drop_behind: float | None = None
    number: int = field(init=False, default=0)
    seconds: float = field(init=False, default=0.0)
    identity: str = field(init=False)
    lanes: list[Lane] = field(init=False, repr=False)
    alive: list[int] = field(init=False, repr=False)
    w: Tensor = field(init=False, repr=False)
    v: Tensor = field(init=False, repr=False)
    counts: NDArray[np.int64] = field(init=False, repr=False)
    _accounts: Accounts = field(init=False, repr=False)
    _schedule: Participation = field(init=False, repr=False)
    _means: list[tuple[int, int, CohortMean]] = field(init=False, repr=False)
    _columns: dict[str, Tensor] = field(init=False, repr=False)
    _ahead: list[tuple[NDArray[np.int64], Tensor, list[DrawKey]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse runs that do not belong together or cannot be drawn this way; nothing is drawn yet."""
        require(len(self.settings) > 0, "settings", self.settings, "a list of at least one")
        first, problem = self.settings[0], self.data.problem
        for settings in self.settings:
            require(shared_walk(settings) == shared_walk(first), "settings of a batch", "different walks", "alike")
            if settings.privacy_unit is not Unit.CLIENT or settings.local_steps != 1:
                raise InvalidParameter("Many models at once need client-level privacy and one local step.")
        clients = problem.sizes.size
        self._schedule = participation(first.participation, clients, first.cohort, first.seed)
        self.counts = np.zeros(clients, dtype=np.int64)
        self._accounts = Accounts(problem.sizes, self.counts)
        share = self.data.share(Norm(first.norm))
        self.lanes = make_lanes(self.settings, problem.dimension, self._accounts, self._schedule, share)
        text = json.dumps([settings.to_json() for settings in self.settings], sort_keys=True)
        self.identity = hashlib.sha256(text.encode()).hexdigest()[:24]
        # Runs of one kind lie side by side, so that a kind is a slice.
        self.alive = sorted(range(len(self.lanes)), key=lambda k: self.lanes[k].kind)
        self.w = self.data.models(problem.initial(first.seed), len(self.lanes))
        self.v = require_module("torch", "lab").zeros_like(self.w)
        self._arrange()

    @property
    def rounds(self) -> int:
        """How many rounds there are in all."""
        return self.settings[0].rounds

    @property
    def done(self) -> bool:
        """Whether every run has ended."""
        return not self.alive

    @property
    def draws(self) -> list[str]:
        """For every run, what was drawn: every client's symbols, or the law of the cohort's sum."""
        return [lane.draws for lane in self.lanes]

    def advance(self, rounds: int, watch: Watch | None = None) -> None:
        """Up to ``rounds`` more rounds; fewer where all runs end, or where ``watch`` says False."""
        torch, began, before = require_module("torch", "lab"), time.perf_counter(), self.seconds
        last, cohort = min(self.number + rounds, self.rounds), self.settings[0].cohort
        with exact_products():
            diverged = self._none_diverged()
            while self.number < last and self.alive:
                if any(self.lanes[k].stop == self.number for k in self.alive):
                    self._end_targets()
                    diverged = self._none_diverged()
                    continue
                self._round()
                largest = self.w.abs().amax(dim=(1, 2))
                new = ~(largest < LARGEST) & (diverged[0] < 0)
                here = torch.stack([torch.full_like(largest, self.number), largest])
                diverged = torch.where(new, here, diverged)
                self.number += 1
                scored = any(self.lanes[k].settings.evaluated(self.number) for k in self.alive)
                if scored or self.number % LOOK == 0 or self.number == last:
                    self._end_diverged(diverged)
                    self.seconds = before + time.perf_counter() - began
                    newest = self._score(self.number * cohort) if scored else [None] * len(self.lanes)
                    self._end_finished()
                    diverged = self._none_diverged()
                    if watch is not None and not watch(self.number, newest):
                        break
        self.seconds = before + time.perf_counter() - began

    def runs(self) -> list[Run]:
        """What came of every run so far, in the order of the settings."""
        self._keep_parameters(range(len(self.alive)))
        return [lane.run(self._accounts, self.data.problem.dimension, self.number, self.seconds) for lane in self.lanes]

    def end_all(self, status: str, reason: str) -> None:
        """End every run that is alive where it is."""
        for k in self.alive:
            self.lanes[k].end(status, reason, self.number, self.counts.copy())
        self._remove(range(len(self.alive)))

    def replace_state(self, number: int, seconds: float, alive: list[int], w: Any, v: Any) -> None:
        """Continue from a checkpoint: parameters and momentum of the runs still alive, after ``number`` rounds."""
        torch = require_module("torch", "lab")
        self.number, self.seconds, self.alive = number, seconds, alive
        for place in range(number):
            self.counts[self._schedule.cohort(place)] += 1
        self.w, self.v = (torch.from_numpy(np.ascontiguousarray(a)).to(self.data.device) for a in (w, v))
        self._arrange()

    def _round(self) -> None:
        """One step of every run that is alive."""
        if not self._ahead:
            self._ahead = self._prepare()
        clients, cohort, keys = self._ahead.pop()
        self.counts[clients] += 1
        features = self.data.cohort(cohort)
        norm = Norm(self.settings[0].norm)
        errors = self.data.clipped_errors(self.w, features, cohort, norm, self._columns["clip"])
        self.v.mul_(self._columns["momentum"])
        for (start, stop, mean), key in zip(self._means, keys, strict=True):
            self.v[start:stop] += mean.mean(errors[start:stop], features, key)
        self.w.addcmul_(self.v, self._columns["lr"], value=-1)

    def _prepare(self) -> list[tuple[NDArray[np.int64], Tensor, list[DrawKey]]]:
        """Cohorts and keys of the next rounds, the last first, moved to the device in one go."""
        torch, device = require_module("torch", "lab"), self.data.device
        numbers = range(self.number, min(self.number + LOOK, self.rounds))
        cohorts = np.stack([self._schedule.cohort(number) for number in numbers])
        moved = torch.from_numpy(cohorts).to(device)
        kinds = [self.lanes[self.alive[start]].kind for start, _, _ in self._means]
        keys = DrawKey.several([self._key(number, kind) for number in numbers for kind in kinds], device)
        rounds = [
            (cohorts[place], moved[place], keys[place * len(kinds) : (place + 1) * len(kinds)])
            for place in range(len(numbers))
        ]
        return rounds[::-1]

    def _key(self, number: int, kind: str) -> bytes:
        if self.settings[0].words != "seeded":
            return os.urandom(32)
        return hashlib.sha256(f"{self.identity}:{number}:{kind}".encode()).digest()

    def _arrange(self) -> None:
        """What a round needs for the runs that are alive."""
        torch = require_module("torch", "lab")

        def column(name: str, kind: Any) -> Tensor:
            values = [getattr(self.lanes[k].settings, name) for k in self.alive]
            return torch.tensor(values, dtype=kind, device=self.data.device)

        self._columns = {name: column(name, torch.float32)[:, None, None] for name in ("lr", "momentum")}
        self._columns["clip"] = column("clip", torch.float64)
        self._means, start = [], 0
        self._ahead = []
        kinds = [self.lanes[k].kind for k in self.alive]
        for kind in sorted(set(kinds)):
            stop = start + kinds.count(kind)
            chosen = self.alive[start:stop]
            mechanisms = [self.lanes[k].mechanism for k in chosen]
            mean = cohort_mean(kind, mechanisms, chosen, self.settings[0].cohort, self.data.device)
            for k in chosen:
                self.lanes[k].draws = mean.draws
            self._means.append((start, stop, mean))
            start = stop

    def _none_diverged(self) -> Tensor:
        """First round and size of parameters out of range, for every run alive; -1 for none."""
        torch = require_module("torch", "lab")
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
            self._score(self.number * self.settings[0].cohort, places)
        for place in places:
            self.lanes[self.alive[place]].end_at_target(self.number, self.counts.copy())
        self._remove(places)

    def _end_finished(self) -> None:
        if self.number == self.rounds:
            for k in self.alive:
                self.lanes[k].rounds = self.number
            self._remove(range(len(self.alive)))

    def _score(self, sent: int, places: Sequence[int] | None = None) -> list[Point | None]:
        """Score the runs that ask for it (or those at ``places``) and drop the ones that are far behind."""
        torch = require_module("torch", "lab")
        asked = [p for p, k in enumerate(self.alive) if self.lanes[k].settings.evaluated(self.number)]
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
        best: dict[str, float] = {}
        for place in places:
            lane = self.lanes[self.alive[place]]
            best[lane.strength] = max(best.get(lane.strength, 0.0), lane.points[-1].score.accuracy)
        ended = []
        for place in places:
            lane = self.lanes[self.alive[place]]
            if lane.falls_behind(best[lane.strength], most):
                lane.end(DROPPED, lane.behind_sentence(), self.number, self.counts.copy())
                ended.append(place)
        self._remove(ended)

    def _remove(self, places: Sequence[int]) -> None:
        """Take runs that have ended out of the batch."""
        if not places:
            return
        torch, gone = require_module("torch", "lab"), set(places)
        self._keep_parameters(places)
        stay = [place for place in range(len(self.alive)) if place not in gone]
        self.alive = [self.alive[place] for place in stay]
        index = torch.tensor(stay, dtype=torch.int64, device=self.data.device)
        self.w, self.v = self.w.index_select(0, index), self.v.index_select(0, index)
        self._arrange()

    def _keep_parameters(self, places: Sequence[int]) -> None:
        for place in places:
            self.lanes[self.alive[place]].parameters = self.data.parameters(self.w[place : place + 1])[0]
