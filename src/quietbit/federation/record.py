"""What became of a round, and of every node in a run: counts, and notes on what went wrong.

Idea     what went wrong is a list of notes, values with fields; sentences are made of them when
         they are shown. Nothing here is a number that a client computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from logging import ERROR, INFO, WARNING
from typing import Any, final

from attrs import frozen

from quietbit.errors import one_line
from quietbit.federation.messages import Node

__all__ = ["Counts", "NodeReport", "Note", "Outcome", "RoundReport", "grouped"]

SHOWN = 12  # nodes and notes in a table; the JSON has them all
NAMED = 3  # nodes in a line about several
BESIDE = ("refused", "unprotected", "resyncs", "crashed")  # counts of a round and those beside it
LETTERS = 40  # of a name that a node chose, in a sentence
CRASHES = (
    "the apps of {} simulated nodes crashed, and zero was released in place of their updates. "
    "The first:\n{}"
)


class Outcome(Enum):
    """What became of a node's reply."""

    TAKEN = "was taken in"
    DECLINED = "declined"
    SILENT = "did not answer"
    REFUSED = "sent a reply that is not valid"
    UNPROTECTED = "sent an unprotected reply"
    EXPOSED = "broke the protocol"


@final
@frozen
class Note:
    """Something that went wrong: with the reply of a ``node``, or with the round itself."""

    text: str
    node: Node | None = None
    outcome: Outcome | None = None
    step: str = ""  # of a masked sum

    def __str__(self) -> str:
        if self.node is None:
            return self.text
        name = self.node
        if isinstance(name, int):  # engines that number their nodes give no name
            name = f"node {name}"
        return f"{one_line(name, LETTERS)} {self.said()}"

    def said(self) -> str:
        """Return the sentence without its subject."""
        if self.outcome is None:
            return self.text
        step = f" ({self.step})" if self.step else ""
        return f"{self.outcome.value}{step}: {self.text}"


@final
@dataclass(slots=True)
class Counts:
    """Counts of one node: requests, valid releases, declined, without reply, refused.

    ``extra`` are releases that came beside the one of each request.
    """

    asked: int = 0
    answered: int = 0
    declined: int = 0
    failed: int = 0
    refused: int = 0
    extra: int = 0

    @property
    def releases(self) -> int:
        """The most releases that this node can have made."""
        return self.asked - self.declined + self.extra


@final
@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round: how many were asked, what became of it, and the bytes of its messages."""

    round: int
    asked: int
    answered: int  # whose release is in the mean
    declined: int  # who say that they released nothing
    failed: int  # from whom no reply came: they may have released
    refused: int  # replies that are not a valid release
    # no valid release, or a step to a model that is not finite: the model stayed as it was
    skipped: bool
    uplink_payload: int  # bytes of payloads alone
    uplink: int
    downlink: int
    reasons: tuple[Note, ...]
    # of a masked sum: how many sent keys, shares, their vector, and shares for unmasking
    steps: tuple[int, ...] = ()
    clip: float | None = None  # where it moves
    # of the worst client when the round, and the evaluation of its model, were over; none in a run
    # with unprotected replies, or in a simulation without a budget
    epsilon_upper: float | None = 0.0
    # of those that declined: who could not replay what they were sent, and get the full model next
    resyncs: int = 0
    crashed: int = 0  # apps, in a simulation: their nodes released a zero update
    outliers: int = 0  # of those refused: longer than noise makes them
    effective: float | None = None  # of weighted releases: how many of equal weight are as noisy
    # asked about the clip, and in none of the counts above; their bytes and notes are added
    scouts: int = 0
    scouted: int = 0  # of these: who answered
    unprotected: int = 0  # replies that hold what no gate lets out
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of parts of your own

    @property
    def heard(self) -> int:
        """How many nodes sent a release, or said that they made none."""
        return self.answered + self.declined + self.scouted

    def sentences(self) -> tuple[str, ...]:
        """Return what went wrong, a sentence per node."""
        return tuple(str(note) for note in self.reasons)

    def with_side_round(self, other: RoundReport) -> RoundReport:
        """Return this round with the bytes and notes of what others were asked beside it."""
        names = (*BESIDE, "uplink_payload", "uplink", "downlink", "reasons")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})

    def lines(
        self, crashes: Sequence[str] = (), notes: Sequence[str] = ()
    ) -> list[tuple[int, str]]:
        """Return what became of the round, sentences with levels of logging.

        ``crashes`` are tracebacks, of which the first is shown; ``notes`` are those of sections.
        """
        lines = [(WARNING, f"round {self.round}: {line}") for line in grouped(self.reasons)]
        if crashes:
            lines.append((ERROR, f"round {self.round}: {CRASHES.format(len(crashes), crashes[0])}"))
        counts = f"{self.declined} declined, {self.failed} failed, {self.refused} refused"
        if self.outliers:
            counts += f" ({self.outliers} outliers)"
        if self.crashed:
            counts += f", {self.crashed} apps crashed"
        answered = f"{self.answered} of {self.asked} nodes answered, {counts}"
        lines.append((INFO, "; ".join([answered, *notes])))
        if self.unprotected:
            lines.append((WARNING, f"round {self.round}: this run has no guarantee from here on."))
        if self.skipped:
            lines.append((WARNING, f"round {self.round} is skipped: the model stays as it was."))
        return lines


@final
@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node: the counts, the most releases it can have made, and what all of them cost."""

    node: int | str
    asked: int
    answered: int
    declined: int
    failed: int
    refused: int
    releases: int
    epsilon_upper: float | None
    evaluations: int = 0
    extra: int = 0  # releases that came beside the one of each request


def grouped(notes: Iterable[Note]) -> list[str]:
    """Return sentences, with notes on several nodes that say the same in one line.

    >>> declined = [Note("no.", node, Outcome.DECLINED) for node in (7, 8)]
    >>> grouped([*declined, Note("there is no sum")])
    ['2 nodes (7, 8) declined: no.', 'there is no sum']
    """
    groups: dict[str, list[Note]] = {}
    for note in notes:
        groups.setdefault(note.said(), []).append(note)
    lines = []
    for said, members in groups.items():
        if len(members) == 1 or members[0].node is None:
            lines.append(str(members[0]))
            continue
        names = [one_line(note.node, LETTERS) for note in members[:NAMED]]
        if len(members) > NAMED:
            names.append("...")
        lines.append(f"{len(members)} nodes ({', '.join(names)}) {said}")
    return lines
