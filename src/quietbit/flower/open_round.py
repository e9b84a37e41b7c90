"""A round that is open on the server: who was asked, with which model, and what has come back.

Idea     a reply is taken in only if it is the first of a node that was asked, made for this run and this round, by this
         mechanism, whole to its last bit; then it counts as one, whatever it says. Everything else is refused with a
         sentence, and the round goes on. The mean is over valid releases, each with the same weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from flwr.app import Array, Message

from quietbit._typing import FloatVector
from quietbit.engine.layout import Layout
from quietbit.engine.messages import join_pieces, one_line
from quietbit.engine.report import NodeCounts, RoundReport
from quietbit.errors import InvalidPayload, QuietbitError
from quietbit.flower.plaintext import DECLINED, note_metrics
from quietbit.flower.wire import WireSizes
from quietbit.mechanism.base import Answers, Mechanism
from quietbit.node.question import Framed
from quietbit.wire.aggregate import Aggregator
from quietbit.wire.uplink import Uplink

__all__ = ["OpenRound"]


@final
@dataclass(slots=True, eq=False)
class OpenRound:
    """One round from the first question to the last reply."""

    run: int
    number: int
    arrays: dict[str, Array]
    layout: Layout
    mechanism: Mechanism
    account: NodeCounts
    asked: set[int] = field(default_factory=set)
    downlink: int = 0
    uplink: int = 0
    payloads: int = 0
    reasons: list[str] = field(default_factory=list)
    _answered: set[int] = field(default_factory=set)
    _declined: set[int] = field(default_factory=set)
    _spoilt: set[int] = field(default_factory=set)  # nodes of which a reply was refused
    _refused: int = 0
    _aggregator: Aggregator = field(init=False)
    _metrics: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start an empty mean."""
        self._aggregator = Uplink(self.mechanism).aggregator()

    def ask(self, messages: Iterable[Message]) -> list[Message]:
        """Note the questions before they are sent."""
        sizes, asked = WireSizes(), list(messages)
        for message in asked:
            node = message.metadata.dst_node_id
            self.asked.add(node)
            self.account.node(node).asked += 1
            self.downlink += sizes.of(message)
        return asked

    def take(self, reply: Message) -> None:
        """Take one reply in, or note why not."""
        node = reply.metadata.src_node_id
        self.uplink += WireSizes().of(reply)
        if reply.has_error():
            self._note_error(node, one_line(reply.error.reason or f"error {reply.error.code}"))
            return
        try:
            self._add(node, reply)
        except QuietbitError as error:
            self._refused += 1
            if node in self.asked:
                self._spoilt.add(node)
                self.account.node(node).refused += 1
            self.reasons.append(f"node {node} was refused: {one_line(str(error))}")

    def mean(self) -> FloatVector | None:
        """The mean of the releases; None where there is none."""
        if not self._answered:
            return None
        mean: FloatVector = self._aggregator.mean()
        return mean

    def metrics(self) -> dict[str, float]:
        """The plain mean of every number that nodes let through, over the nodes that did."""
        return {name: sum(values) / len(values) for name, values in sorted(self._metrics.items())}

    def failed(self) -> set[int]:
        """Nodes that were asked and neither answered nor declined: dead, late or lost on the way."""
        return self.asked - self._answered - self._declined - self._spoilt

    def answered(self) -> set[int]:
        """Nodes whose release is in the mean."""
        return self._answered

    def answers(self) -> Answers | None:
        """What nodes said about the clip, where it moves."""
        return self._aggregator.answers()

    def report(self) -> RoundReport:
        """The counts so far."""
        return RoundReport(
            round=self.number,
            asked=len(self.asked),
            answered=len(self._answered),
            declined=len(self._declined),
            failed=len(self.failed()),
            refused=self._refused,
            skipped=not self._answered,
            uplink_payload=self.payloads,
            uplink=self.uplink,
            downlink=self.downlink,
            reasons=tuple(self.reasons),
        )

    def _note_error(self, node: int, reason: str) -> None:
        said = "declined" if reason.startswith(DECLINED) else "did not answer"
        self.reasons.append(f"node {node} {said}: {reason.removeprefix(DECLINED)}")
        # Only a node's own word means that nothing was released: an engine's error may hide a release, and a node that
        # has answered before (`plaintext.ANSWERED`) has made one.
        fresh = node in self.asked and node not in self._answered and node not in self._declined
        if reason.startswith(DECLINED) and fresh:
            self._declined.add(node)
            self.account.node(node).declined += 1

    def _add(self, node: int, reply: Message) -> None:
        if node not in self.asked:
            raise InvalidPayload("it was not asked in this round.")
        if node in self._answered or node in self._declined:
            raise InvalidPayload("it has answered in this round already.")
        release = Framed.from_bytes(join_pieces(reply.content.config_records))
        release.expect(self.run, self.number, node)
        self._aggregator.add(release.payload)
        self._answered.add(node)
        self.account.node(node).answered += 1
        self.payloads += len(release.payload)
        note_metrics(reply.content, self._metrics)
