"""A grid whose training rounds end with enough replies, and do not wait for the others.

Idea     Flower's strategies send requests and wait for all answers in one call,
         `send_and_receive`. This grid stands before the real one and returns from that call as soon
         as the plan's stragglers may be left behind. What comes later is not looked for: it was
         noted by its node, is counted by the server, and is in no mean. Evaluations wait for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, final

from attrs import define
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from quietbit.federation.parts.stragglers import Stragglers

__all__ = ["HurriedGrid"]

PAUSE = 0.1  # seconds before replies are pulled again


@final
@define(eq=False)
class HurriedGrid(Grid):
    """The grid ``inner``, whose training rounds end as ``stragglers`` says."""

    inner: Grid
    stragglers: Stragglers
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    @property
    def run(self) -> Any:
        """The inner grid's."""
        return self.inner.run

    def set_run(self, run: Any) -> None:
        """Set that of the inner grid."""
        self.inner.set_run(run)

    def create_message(self, *args: Any, **options: Any) -> Message:
        """Let the inner grid create it."""
        return self.inner.create_message(*args, **options)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the inner grid send them."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Let the inner grid look for replies."""
        return self.inner.pull_messages(message_ids)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes of the inner grid."""
        return self.inner.get_node_ids()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send requests; return enough replies, or those that came in time."""
        requests = list(messages)
        kinds = {request.metadata.message_type.partition(".")[0] for request in requests}
        if kinds != {MessageType.TRAIN}:
            return self.inner.send_and_receive(requests, timeout=timeout)
        limit = self.stragglers.timeout
        if timeout is not None:
            limit = min(limit, timeout)
        started = self.clock()
        waiting = set(self.inner.push_messages(requests))
        replies: list[Message] = []
        while True:
            for reply in self.inner.pull_messages(sorted(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
            # A node that declines does so at once: those who answer are waited for all the same.
            answers = sum(not reply.has_error() for reply in replies)
            if not waiting or answers >= self.stragglers.enough:
                return replies
            if self.clock() - started >= limit:
                return replies
            self.sleep(PAUSE)
