"""What a node has released, in its own keeping: mechanisms and counts, over all runs.

Idea     a node does not believe what it is told was spent. It notes every release, before the release leaves, with
         enough to rebuild its privacy curve; a budget is held against the composition of all of them, whatever
         run, server or mechanism they were for. Only the last round of each run is noted beside, so that a round is
         answered once.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from quietbit._validate import QuietbitError, require, whole_number
from quietbit.flower.budget import Budget
from quietbit.flower.description import curve_of, describe
from quietbit.mechanism.base import Mechanism
from quietbit.payload.identity import mechanism_identity
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit
from quietbit.privacy.ledger import Ledger

__all__ = ["BudgetSpent", "NodeLedger", "Spent", "UnreadableLedger", "read_ledger"]

FORMAT = "quietbit-node-ledger"
VERSION = 1
MOST_BYTES = 256 * 2**20


class UnreadableLedger(QuietbitError):
    """A ledger that is there and cannot be read: nobody knows what was spent, so nothing more is."""


class BudgetSpent(QuietbitError):
    """The next release would exceed a budget."""


@final
@dataclass(frozen=True, slots=True)
class Spent:
    """Releases of one mechanism: its identity (hexadecimal), its description, and how many."""

    identity: str
    description: str
    releases: int


@final
@dataclass(frozen=True, slots=True)
class NodeLedger:
    """All releases of a node; immutable, recording returns a new one."""

    spent: tuple[Spent, ...] = ()
    last_rounds: tuple[tuple[int, int], ...] = ()

    @property
    def releases(self) -> int:
        """How many releases were noted."""
        return sum(entry.releases for entry in self.spent)

    def record(self, mechanism: Mechanism, run: int, number: int) -> NodeLedger:
        """A ledger with one more release, for round ``number`` of a run; a round answered before is refused."""
        self.check_round(run, number)
        identity = mechanism_identity(mechanism).hex()
        entries = {entry.identity: entry for entry in self.spent}
        old = entries.get(identity) or Spent(identity, describe(mechanism), 0)
        entries[identity] = replace(old, releases=old.releases + 1)
        rounds = dict(self.last_rounds) | {run: number}
        return NodeLedger(tuple(entries.values()), tuple(rounds.items()))

    def check_round(self, run: int, number: int) -> None:
        """Refuse a round that is not later than all that were answered in this run."""
        last = dict(self.last_rounds).get(run, 0)
        require(number > last, f"round asked for in run {run}", number, f"above {last}, the last one answered")

    def account(self, adjacency: Adjacency) -> Ledger:
        """The same releases as a privacy ledger, local trust, client as unit."""
        ledger = Ledger(Unit.CLIENT, adjacency, Trust.LOCAL)
        for entry in self.spent:
            ledger = ledger.record(curve_of(entry.description, entry.identity, adjacency), entry.releases)
        return ledger

    def guarantee(self, delta: float, adjacency: Adjacency) -> Guarantee:
        """What has been spent so far."""
        return self.account(adjacency).guarantee(delta)

    def check_budget(self, budget: Budget) -> None:
        """Refuse a ledger beyond the budget; ask it of the ledger *with* the next release."""
        reached = self.guarantee(budget.delta, budget.adjacency).epsilon_upper
        if not reached <= budget.epsilon:
            limit = f"epsilon {budget.epsilon:g} at delta {budget.delta:g} ({budget.adjacency.value})"
            raise BudgetSpent(
                f"The budget of {budget.owner}, {limit}, is spent: this node's release number {self.releases} would "
                f"bring it to {reached:.4g}."
            )

    def to_text(self) -> str:
        """Canonical JSON with its own digest."""
        content = {
            "format": FORMAT,
            "last_rounds": {str(run): number for run, number in self.last_rounds},
            "spent": [[entry.identity, entry.releases, json.loads(entry.description)] for entry in self.spent],
            "version": VERSION,
        }
        return _canonical(content | {"digest": _digest(content)}) + "\n"

    @classmethod
    def from_text(cls, text: str, origin: str) -> NodeLedger:
        """Read `to_text`; anything else, or a text that was changed, raises `UnreadableLedger`."""
        try:
            content = json.loads(text)
            digest = content.pop("digest")
            whole = content["format"] == FORMAT and content["version"] == VERSION and digest == _digest(content)
            rounds = tuple((int(run), whole_number(last, "round", 0)) for run, last in content["last_rounds"].items())
            spent = tuple(_entry(*entry) for entry in content["spent"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UnreadableLedger(f"{origin} is not a ledger of a node ({type(error).__name__}).") from error
        if not whole:
            raise UnreadableLedger(f"{origin} was changed: its content does not have the digest it says.")
        return cls(spent, rounds)


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


def _entry(identity: Any, releases: Any, description: Any) -> Spent:
    require(isinstance(identity, str), "identity", identity, "a word")
    return Spent(identity, _canonical(description), whole_number(releases, "releases", 1))


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(content).encode()).hexdigest()
