"""Rounds that do not wait for all nodes: they end with enough replies, and late ones join later.

Idea     a round ends as soon as ``enough`` replies have come, of this round or of up to
         ``staleness`` earlier ones. A node that has not answered is busy, and is not asked again,
         until it is later than that. The last round waits for everybody: no release is made that no
         step can have. A late release is decoded as one of its own round, and joins the mean of the
         round that is open.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

from attrs import define, field, frozen

from quietbit.run.part import Part, Step
from quietbit.run.section import Say, Section, Whole, choice, needed
from quietbit.wire.uplink import pooled

__all__ = ["Arrivals", "Late", "Waiting"]

MOST_LATE = 1000  # rounds, each of which keeps its sums until then


@final
@frozen
class Arrivals(Section):
    """``[arrivals]``: a round ends with ``enough`` replies, up to ``staleness`` rounds late."""

    title: ClassVar[str] = "arrivals"
    of_engine: ClassVar[tuple[str, ...]] = ("*",)
    uncounted: ClassVar[str] = "late releases, which join another round than their own"

    enough: int = needed(Whole(1))
    staleness: int = choice(Whole(0, MOST_LATE), 0)

    def part(self, plan: Any, say: Say, resource: Any = None) -> Late | None:
        """Return the part of rounds that late releases may join."""
        if not self.staleness:
            return None
        return Late(self.staleness)


@final
class Late(Part):
    """The server's half: the mean of a round has the late releases of earlier ones."""

    section: ClassVar[str] = "arrivals"

    def __init__(self, staleness: int) -> None:
        """Keep rounds open for as many rounds as releases may be late."""
        self.keeps_open = staleness
        self._late: list[Any] = []

    def advance(self, round: Any) -> Step:
        """Take a step on all releases that came since the last one."""
        mean = pooled(member.drained() for member in (round, *self._late))
        self._late = [*self._late, round][-self.keeps_open :]
        if mean is None:
            return Step(None)
        return Step(round.model.stepped(round.lift(mean)))


@final
@define(eq=False)
class Waiting:
    """The requests that are not answered yet, by the engine's name of each message."""

    arrivals: Arrivals
    _round: int = field(default=0, init=False)
    _last: bool = field(default=False, init=False)
    _messages: dict[str, tuple[int, int]] = field(
        factory=dict, init=False
    )  # node and round of each

    def begin(self, number: int, last: bool) -> None:
        """Begin a round, the ``last`` one or not; give up waiting for replies that are too late."""
        self._round = number
        self._last = last
        oldest = number - self.arrivals.staleness
        self._messages = {
            name: (node, asked) for name, (node, asked) in self._messages.items() if asked >= oldest
        }

    def sent(self, name: str, node: int) -> None:
        """Note a message of this round to a node."""
        self._messages[name] = (node, self._round)

    def arrived(self, name: str) -> int | None:
        """Return the round that a reply to a message is for; None where nobody waits for it."""
        return self._messages.pop(name, (0, None))[1]

    def busy(self) -> set[int]:
        """Return the nodes that have not answered."""
        return {node for node, _ in self._messages.values()}

    def names(self) -> list[str]:
        """Return the messages without a reply."""
        return list(self._messages)

    def is_over(self, replies: int) -> bool:
        """Return whether the round ends with this many replies."""
        return not self._messages or (not self._last and replies >= self.arrivals.enough)
