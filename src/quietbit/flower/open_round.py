"""A round of `quietbit.engine.round` in Flower's messages: questions as they go out, replies as they come back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from attrs import define
from flwr.app import Array, Message

from quietbit.engine.layout import Layout
from quietbit.engine.messages import join_pieces, one_line
from quietbit.engine.round import Round
from quietbit.errors import QuietbitError
from quietbit.flower.plaintext import DECLINED, crash_of, note_metrics
from quietbit.flower.wire import WireSizes

__all__ = ["OpenRound"]


@final
@define(eq=False, kw_only=True)
class OpenRound(Round):
    """One round with the model that was sent, of which the server sees every release."""

    arrays: dict[str, Array]
    layout: Layout

    def ask(self, messages: Iterable[Message]) -> list[Message]:
        """Note the questions before they are sent."""
        sizes, asked = WireSizes(), list(messages)
        for message in asked:
            self.sent(message.metadata.dst_node_id, sizes.of(message))
        return asked

    def take(self, reply: Message) -> None:
        """Take one reply in, or note why not."""
        node = reply.metadata.src_node_id
        self.uplink += WireSizes().of(reply)
        if reply.has_error():
            reason = one_line(reply.error.reason or f"error {reply.error.code}")
            # An engine's error may hide a release, and a node that has answered before (`ANSWERED`) has made one.
            note = self.decline if reason.startswith(DECLINED) else self.silent
            note(node, reason.removeprefix(DECLINED))
            return
        try:
            self.add(node, node, join_pieces(reply.content.config_records))
            note_metrics(reply.content, self.numbers)
            self.crashes += [] if (shown := crash_of(reply.content)) is None else [shown]
        except QuietbitError as error:
            self.refuse(node, one_line(str(error)))
