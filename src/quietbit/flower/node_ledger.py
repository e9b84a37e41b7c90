"""What a node has released, in its own keeping: mechanisms and counts, over all runs.

Idea     a node does not believe what it is told was spent. It notes every release, before the release leaves, with
         enough to rebuild its privacy curve; a budget is held against the composition of all of them, whatever
         run, server or mechanism they were for. A release that went into a masked sum is noted with how many honest
         clients its sum counts on (k): under secure-aggregation trust it costs what a sum over k costs, under local
         trust what its codes alone would. Only the last round of each run is noted beside, so that a round is
         answered once, and of sums the last step that hands out shares, so that such a step is, too.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from quietbit._validate import InvalidParameter, QuietbitError, require, whole_number
from quietbit.flower.budget import Budget
from quietbit.flower.description import curve_of, describe
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.registry import identity_of
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit
from quietbit.privacy.ledger import Ledger

__all__ = ["AnsweredBefore", "BudgetSpent", "NodeLedger", "Spent", "UnreadableLedger", "read_ledger"]

FORMAT = "quietbit-node-ledger"
VERSION = 1
MOST_BYTES = 256 * 2**20


class UnreadableLedger(QuietbitError):
    """A ledger that is there and cannot be read: nobody knows what was spent, so nothing more is."""


class AnsweredBefore(InvalidParameter):
    """A question that is answered once, and was, or may have been: what it asks for has left this node."""


class BudgetSpent(QuietbitError):
    """The next release would exceed a budget."""


@final
@dataclass(frozen=True, slots=True)
class Spent:
    """Releases of one mechanism: its identity (hexadecimal), its description, and how many.

    ``honest`` is 0 for releases that the server saw, else the honest clients that their sums count on.
    """

    identity: str
    description: str
    releases: int
    honest: int = 0


@final
@dataclass(frozen=True, slots=True)
class NodeLedger:
    """All releases of a node; immutable, recording returns a new one.

    ``last_steps`` holds, for each run with masked sums, the round and the step of the last shares that were handed out.
    """

    spent: tuple[Spent, ...] = ()
    last_rounds: tuple[tuple[int, int], ...] = ()
    last_steps: tuple[tuple[int, tuple[int, int]], ...] = ()

    @property
    def releases(self) -> int:
        """How many releases were noted."""
        return sum(entry.releases for entry in self.spent)

    @property
    def honest(self) -> int:
        """The most honest clients that any of its sums counts on; 0 without sums."""
        return max((entry.honest for entry in self.spent), default=0)

    def record(self, mechanism: Mechanism, run: int, number: int, honest: int = 0) -> NodeLedger:
        """A ledger with one more release, for round ``number`` of a run; a round answered before is refused.

        ``honest`` is 0 unless the release goes into a masked sum.
        """
        self.check_round(run, number)
        identity = identity_of(mechanism).hex()
        entries = {(entry.identity, entry.honest): entry for entry in self.spent}
        old = entries.get((identity, honest)) or Spent(identity, describe(mechanism), 0, honest)
        entries[identity, honest] = replace(old, releases=old.releases + 1)
        rounds = dict(self.last_rounds) | {run: number}
        return replace(self, spent=tuple(entries.values()), last_rounds=tuple(rounds.items()))

    def record_step(self, run: int, number: int, step: int) -> NodeLedger:
        """A ledger in which this step of the sum of a round is answered; one that is not later than all is refused."""
        last = dict(self.last_steps).get(run, (0, 0))
        if not (number, step) > last:
            raise AnsweredBefore(
                f"step {step} of the sum of round {number} in run {run} must come after step {last[1]} of round "
                f"{last[0]}, the last one answered."
            )
        return replace(self, last_steps=tuple((dict(self.last_steps) | {run: (number, step)}).items()))

    def is_behind(self, other: NodeLedger) -> bool:
        """Whether this is an earlier state than the other: fewer releases, or fewer steps of sums."""
        steps = dict(self.last_steps)
        late = any(steps.get(run, (0, 0)) < last for run, last in other.last_steps)
        return late or self.releases < other.releases

    def check_round(self, run: int, number: int) -> None:
        """Refuse a round that is not later than all that were answered in this run."""
        last = dict(self.last_rounds).get(run, 0)
        if not number > last:
            raise AnsweredBefore(
                f"round asked for in run {run} must be above {last}, the last one answered, got {number}."
            )

    def account(self, adjacency: Adjacency, trust: Trust = Trust.LOCAL) -> Ledger:
        """The same releases as a privacy ledger, client as unit.

        Under local trust sums are priced as if the masks had failed. Under secure aggregation they are priced as sums
        over the ``honest`` clients noted with them; what the server saw costs the same either way.
        """
        require(trust is not Trust.CENTRAL, "trust of a node's ledger", trust.value, "local or secure-aggregation")
        ledger = Ledger(Unit.CLIENT, adjacency, trust)
        for entry in self.spent:
            honest = entry.honest if trust is Trust.SECURE_AGGREGATION else 0
            release = curve_of(entry.description, entry.identity, adjacency, honest)
            ledger = ledger.record(release, entry.releases)
        return ledger

    def guarantee(self, delta: float, adjacency: Adjacency, trust: Trust = Trust.LOCAL) -> Guarantee:
        """What has been spent so far."""
        return self.account(adjacency, trust).guarantee(delta)

    def check_budget(self, budget: Budget) -> None:
        """Refuse a ledger beyond the budget; ask it of the ledger *with* the next release."""
        reached = self.guarantee(budget.delta, budget.adjacency, budget.trust).epsilon_upper
        if not reached <= budget.epsilon:
            words = budget.adjacency.value
            if budget.trust is Trust.SECURE_AGGREGATION:
                words += f", secure-aggregation with {self.honest} honest clients"
            limit = f"epsilon {budget.epsilon:g} at delta {budget.delta:g} ({words})"
            raise BudgetSpent(
                f"The budget of {budget.owner}, {limit}, is spent: this node's release number {self.releases} would "
                f"bring it to {reached:.4g}."
            )

    def to_text(self) -> str:
        """Canonical JSON with its own digest."""
        content = {
            "format": FORMAT,
            "last_rounds": {str(run): number for run, number in self.last_rounds},
            "spent": [_plain(entry) for entry in self.spent],
            "version": VERSION,
        }
        if self.last_steps:  # left out where there is none: ledgers without sums are written as they always were
            content["last_steps"] = {str(run): list(last) for run, last in self.last_steps}
        return _canonical(content | {"digest": _digest(content)}) + "\n"

    @classmethod
    def from_text(cls, text: str, origin: str) -> NodeLedger:
        """Read `to_text`; anything else, or a text that was changed, raises `UnreadableLedger`."""
        try:
            content = json.loads(text)
            digest = content.pop("digest")
            whole = content["format"] == FORMAT and content["version"] == VERSION and digest == _digest(content)
            rounds = tuple((int(run), whole_number(last, "round", 0)) for run, last in content["last_rounds"].items())
            steps = tuple((int(run), _step(*last)) for run, last in content.get("last_steps", {}).items())
            spent = tuple(_entry(*entry) for entry in content["spent"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UnreadableLedger(f"{origin} is not a ledger of a node ({type(error).__name__}).") from error
        if not whole:
            raise UnreadableLedger(f"{origin} was changed: its content does not have the digest it says.")
        return cls(spent, rounds, steps)


def read_ledger(path: str | os.PathLike[str]) -> NodeLedger:
    """The ledger in a file, as a node wrote it."""
    place = Path(path)
    try:
        if place.stat().st_size > MOST_BYTES:
            raise UnreadableLedger(f"{place} is not a ledger of a node: it is larger than {MOST_BYTES} bytes.")
        text = place.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableLedger(f"Cannot read the ledger {place}: {error}.") from error
    return NodeLedger.from_text(text, str(place))


def _plain(entry: Spent) -> list[Any]:
    """Three values; a fourth, the trust with its honest clients, where the releases went into sums."""
    values = [entry.identity, entry.releases, json.loads(entry.description)]
    return [*values, {"trust": Trust.SECURE_AGGREGATION.value, "honest": entry.honest}] if entry.honest else values


def _entry(identity: Any, releases: Any, description: Any, sums: Any = None) -> Spent:
    require(isinstance(identity, str), "identity", identity, "a word")
    honest = 0
    if sums is not None:
        require(sums["trust"] == Trust.SECURE_AGGREGATION.value, "trust of a sum", sums["trust"], "secure-aggregation")
        honest = whole_number(sums["honest"], "honest", 2)
    return Spent(identity, _canonical(description), whole_number(releases, "releases", 1), honest)


def _step(number: Any, step: Any) -> tuple[int, int]:
    return whole_number(number, "round of a sum", 1), whole_number(step, "step of a sum", 1)


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(content).encode()).hexdigest()
