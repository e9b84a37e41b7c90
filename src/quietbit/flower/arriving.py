"""A grid whose training rounds end with enough replies; late ones are returned in later rounds.

Idea     Flower's strategies send requests and wait for all answers in one call,
         `send_and_receive`. This grid stands before the real one and returns from that call as soon
         as `quietbit.run.parts.arrivals` says that the round is over; what is still on its way is
         pulled in the rounds after. Evaluations wait for everybody, as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, final

from attrs import define, field
from flwr.app import Message
from flwr.serverapp import Grid

from quietbit.run.parts.arrivals import Arrivals, Waiting

__all__ = ["ArrivingGrid"]

PAUSE = 0.1  # seconds before replies are pulled again


@final
@define(eq=False)
class ArrivingGrid(Grid):
    """The grid ``inner``, whose training rounds end as ``arrivals`` says, or after the timeout."""

    inner: Grid
    arrivals: Arrivals
    sleep: Callable[[float], None] = time.sleep
    _training: bool = field(default=False, init=False)  # whether a round's training is sent next
    _arrived: list[Message] = field(factory=list, init=False)
    _waiting: Waiting = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Wait for nobody."""
        self._waiting = Waiting(self.arrivals)

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

    def begin(self, number: int, last: bool = False) -> None:
        """Say that the next requests are those of this round's training, the ``last`` or not."""
        self._training = True
        self._waiting.begin(number, last)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are not busy, after a look for replies."""
        self._pull()
        busy = self._waiting.busy()
        return [node for node in self.inner.get_node_ids() if node not in busy]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send requests; return the replies of a round, each in the group of its own round."""
        requests = list(messages)
        if not self._training:
            return self.inner.send_and_receive(requests, timeout=timeout)
        self._training = False
        for name, message in zip(self.inner.push_messages(requests), requests, strict=True):
            self._waiting.sent(name, message.metadata.dst_node_id)
        started = time.monotonic()
        self._pull()
        while not self._waiting.is_over(len(self._arrived)):
            if timeout is not None and time.monotonic() - started >= timeout:
                break
            self.sleep(PAUSE)
            self._pull()
        replies = self._arrived
        self._arrived = []
        return replies

    def _pull(self) -> None:
        """Look for replies to messages without one."""
        names = self._waiting.names()
        if not names:
            return
        for reply in self.inner.pull_messages(names):
            number = self._waiting.arrived(reply.metadata.reply_to_message_id)
            if number is not None:
                reply.metadata.group_id = str(number)
                self._arrived.append(reply)
