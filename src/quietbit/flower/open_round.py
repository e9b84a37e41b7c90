"""A round of `quietbit.engine.round` in Flower's messages: questions as they go out, replies as they come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, final

from attrs import define
from flwr.app import Array, Message

from quietbit.engine.layout import ModelLayout
from quietbit.engine.messages import join_pieces, one_line
from quietbit.engine.round import Round
from quietbit.errors import QuietbitError
from quietbit.flower.plaintext import DECLINED, crash_of, note_metrics
from quietbit.flower.wire import WireSizes
from quietbit.wire.weighted import EXAMPLES

__all__ = ["FlowerRound", "OpenRound"]

Found = TypeVar("Found")


@define(eq=False, kw_only=True)
class FlowerRound(Round):
    """One round with the model that was sent."""

    arrays: dict[str, Array]
    layout: ModelLayout

    def read(self, reply: Message, read: Callable[[Message, int], Found], step: str = "") -> Found | None:
        """Return what ``read`` makes of a node's reply; None, and a reason in the report, where there is none."""
        node = reply.metadata.src_node_id
        self.uplink += WireSizes().of(reply)
        if reply.has_error():
            reason = one_line(reply.error.reason or f"error {reply.error.code}")
            # An engine's error may hide a release, and a node that has answered before (`ANSWERED`) has made one.
            note = self.decline if reason.startswith(DECLINED) else self.silent
            note(node, reason.removeprefix(DECLINED), step)
            return None
        try:
            return read(reply, node)
        except QuietbitError as error:
            self.refuse(node, one_line(str(error)), step)
            return None

    def note_extras(self, reply: Message) -> None:
        """Note the numbers that a node let through beside its release, and of a simulated one why its app crashed."""
        note_metrics(reply.content, self.numbers)
        self.crashes += [] if (shown := crash_of(reply.content)) is None else [shown]


@final
@define(eq=False, kw_only=True)
class OpenRound(FlowerRound):
    """One round of which the server sees every release."""

    def ask(self, messages: Iterable[Message]) -> list[Message]:
        """Note the questions before they are sent."""
        sizes, asked = WireSizes(), list(messages)
        for message in asked:
            self.sent(message.metadata.dst_node_id, sizes.of(message))
        return asked

    def take(self, reply: Message) -> None:
        """Take one reply in, or note why not."""
        self.read(reply, self._release)

    def _release(self, reply: Message, node: int) -> None:
        told: dict[str, list[float]] = {}
        note_metrics(reply.content, told)
        self.add(node, node, join_pieces(reply.content.config_records), *told.get(EXAMPLES, ())[:1])
        self.note_extras(reply)
