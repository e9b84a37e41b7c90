"""One run among many: its mechanism, its account, its points and its end.

Idea     runs of a batch share the releases of every client, since they share the cohorts; an account is those counts
         and a mechanism. Runs with equal mechanisms share the account too, so that a grid of step sizes costs one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietbit.mechanism.base import Mechanism
from quietbit.plan.account import Account
from quietbit.plan.choose import choose_mechanism
from quietbit.plan.participation import Participation, releases_per_client
from quietbit.plan.problem import Rows
from quietbit.plan.settings import Settings
from quietbit.privacy.guarantee import Guarantee, Trust
from quietbit.secagg.plan import masked_size
from quietbit.simulate.loop import FINISHED, TARGET, Point, Run
from quietbit.wire.header import Header
from quietbit_lab.task.linear_sums import kind_of

__all__ = ["DROPPED", "Accounts", "Lane", "make_lanes"]

DROPPED = "dropped"
STRENGTH = (
    "mechanism",
    "epsilon",
    "noise",
    "bits",
    "levels",
    "beta",
    "clamp",
    "decoder",
    "target_epsilon",
    "trust",
    "honest",
)
MECHANISM = (*STRENGTH, "clip", "norm", "unit", "adjacency", "delta", "rounds", "cohort", "participation", "seed")


@final
@dataclass(slots=True, eq=False)
class Lane:
    """A run of a batch; ``stop`` is the round that its target forbids, ``counts`` are those of an early end."""

    settings: Settings
    mechanism: Mechanism | None
    kind: str
    size: int
    stop: int
    draws: str = ""
    points: list[Point] = field(default_factory=list)
    status: str = FINISHED
    reason: str = ""
    rounds: int = 0
    counts: NDArray[np.int64] | None = None
    behind: float = 0.0
    parameters: Rows | None = None

    @property
    def strength(self) -> str:
        """Equal for runs that differ in nothing that privacy depends on."""
        return _words(self.settings, STRENGTH)

    def scored(self, number: int) -> bool:
        """Whether there is a point after ``number`` rounds."""
        return bool(self.points) and self.points[-1].round == number

    def end(self, status: str, reason: str, rounds: int, counts: NDArray[np.int64]) -> None:
        """End before the last round."""
        self.status, self.reason, self.rounds, self.counts = status, reason, rounds, counts

    def end_at_target(self, rounds: int, counts: NDArray[np.int64]) -> None:
        """End because one more round would exceed the target."""
        target = self.settings.target_epsilon
        self.end(TARGET, f"Round {rounds + 1} would exceed the target epsilon {target:g}.", rounds, counts)

    def falls_behind(self, best: float, most: float) -> bool:
        """Whether it is ``most`` behind the best, was so at the scoring before, and is not catching up."""
        before, self.behind = self.behind, best - self.points[-1].score.accuracy
        return before > most and self.behind >= before

    def behind_sentence(self) -> str:
        """Why it was dropped."""
        return (
            f"Dropped after round {self.points[-1].round}: {100 * self.behind:.1f} points behind the best run "
            "of the same privacy, and not catching up."
        )

    def run(self, accounts: Accounts, dimension: int, number: int, seconds: float) -> Run:
        """What came of it; one that has not ended has done ``number`` rounds."""
        account = accounts.of(self)
        if account is not None and self.counts is not None:
            account = _fresh(account)
            account.counts = self.counts
        parameters = self.parameters if self.parameters is not None else np.zeros(dimension, dtype=np.float32)
        rounds = self.rounds if self.counts is not None else number
        return Run(
            self.settings,
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
    _found: dict[str, Account] = field(init=False, default_factory=dict, repr=False)
    _answers: dict[tuple[str, int], Guarantee] = field(init=False, default_factory=dict, repr=False)

    def open(self, settings: Settings, mechanism: Mechanism) -> Account:
        """The account of a mechanism, which is refused here if it has none."""
        key = _words(settings, MECHANISM)
        if key not in self._found:
            words = (settings.privacy_unit, settings.privacy_adjacency, settings.privacy_trust, settings.honest)
            account = Account(mechanism, self.sizes, *words)
            account.counts = self.counts
            self._found[key] = account
        return self._found[key]

    def of(self, lane: Lane) -> Account | None:
        """The account of a run, none without privacy."""
        return self.open(lane.settings, lane.mechanism) if lane.mechanism is not None else None

    def worst(self, lane: Lane, number: int) -> Guarantee | None:
        """What holds for every client now, after ``number`` rounds."""
        account, key = self.of(lane), (_words(lane.settings, MECHANISM), number)
        if account is None:
            return None
        if key not in self._answers:
            self._answers[key] = account.worst(lane.settings.delta)
        return self._answers[key]


def make_lanes(
    settings: Sequence[Settings], dimension: int, accounts: Accounts, schedule: Participation, share: float
) -> list[Lane]:
    """A lane for each of the settings; what cannot be drawn or accounted for is refused."""
    lanes, made = [], {}
    for chosen in settings:
        key = _words(chosen, MECHANISM)
        if key not in made:
            made[key] = _mechanism(chosen, dimension, accounts, schedule, share)
        mechanism, kind, size, stop = made[key]
        lanes.append(Lane(chosen, mechanism, kind, size, stop))
    return lanes


def _mechanism(
    settings: Settings, dimension: int, accounts: Accounts, schedule: Participation, share: float
) -> tuple[Mechanism | None, str, int, int]:
    if settings.mechanism == "none":
        return None, kind_of(None, settings.cohort), 4 * dimension, settings.rounds
    releases = releases_per_client(schedule, settings.rounds if settings.calibrated else 0)
    mechanism, trust = choose_mechanism(settings, dimension, accounts.sizes, releases), settings.privacy_trust
    kind = kind_of(mechanism, settings.cohort, trust, share)
    account = accounts.open(settings, mechanism)
    size = Header.of(mechanism).size if trust is Trust.LOCAL else 4 * dimension
    if trust is Trust.SECURE_AGGREGATION:
        size = masked_size(settings.cohort, dimension, 2**mechanism.layout.bits - 1)
    return mechanism, kind, size, _stop(settings, account, schedule)


def _fresh(account: Account) -> Account:
    """The same account before any release."""
    return Account(account.mechanism, account.sizes, account.unit, account.adjacency, account.trust, account.honest)


def _stop(settings: Settings, account: Account, schedule: Participation) -> int:
    """The first round that the target forbids: cohorts are public, so it is known beforehand."""
    if settings.target_epsilon is None:
        return settings.rounds
    alone = _fresh(account)
    for number in range(settings.rounds):
        clients = schedule.cohort(number)
        if alone.worst(settings.delta, after=clients).epsilon_upper > settings.target_epsilon:
            return number
        alone.record(clients)
    return settings.rounds


def _words(settings: Settings, names: Sequence[str]) -> str:
    values = settings.to_json()
    return json.dumps([values[name] for name in names])
