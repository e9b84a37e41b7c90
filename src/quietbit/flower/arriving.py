"""A grid that does not wait for everybody: a round ends when enough replies have come, and late ones join later rounds.

Idea     Flower's strategies send requests and wait for all answers in one call,
         `send_and_receive`. This grid stands before the real one and returns from that call as soon
         as ``enough`` replies have come, of this round or of up to ``staleness`` earlier ones; what
         is still on its way is pulled in the rounds after. A node that has not answered is busy,
         and cannot be asked, until it is later than that. Evaluations wait for everybody, as
         before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, final

from attrs import define, field
from flwr.app import Message
from flwr.serverapp import Grid

__all__ = ["ArrivingGrid"]

PAUSE = 0.1  # seconds before replies are pulled again


@final
@define(eq=False)
class ArrivingGrid(Grid):
    """The grid ``inner``, whose training rounds end with ``enough`` replies, or after the timeout."""

    inner: Grid
    enough: int
    staleness: int
    sleep: Callable[[float], None] = time.sleep
    _round: int = field(default=0, init=False)
    _last: bool = field(default=False, init=False)
    _training: bool = field(
        default=False, init=False
    )  # whether the next call is that of a round's training
    _waiting: dict[str, tuple[int, int]] = field(
        factory=dict, init=False
    )  # by message: its node and its round
    _arrived: list[Message] = field(factory=list, init=False)

    @property
    def run(self) -> Any:
        """The inner grid's."""
        return self.inner.run

    def set_run(self, run: Any) -> None:
        """Set that of the inner grid."""
        self.inner.set_run(run)

    def create_message(self, *given: Any, **named: Any) -> Message:
        """Let the inner grid create it."""
        return self.inner.create_message(*given, **named)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the inner grid send them."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Let the inner grid look for replies."""
        return self.inner.pull_messages(message_ids)

    def begin(self, number: int, last: bool = False) -> None:
        """Say that the next requests are those of this round's training; forget whom nobody waits for any more.

        The ``last`` round waits for everybody: no release is made that no step can have.
        """
        self._round, self._training, self._last = number, True, last
        self._waiting = {
            one: kept for one, kept in self._waiting.items() if number - kept[1] <= self.staleness
        }

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are not busy; a strategy that waits for more of them lets replies come in."""
        self._look()
        busy = {node for node, _ in self._waiting.values()}
        return [node for node in self.inner.get_node_ids() if node not in busy]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send requests; return what has come when it is enough, each in the group of the round that asked for it."""
        asked, training, self._training = list(messages), self._training, False
        if not training:
            return self.inner.send_and_receive(asked, timeout=timeout)
        sent = zip(self.inner.push_messages(asked), asked, strict=True)
        self._waiting |= {one: (message.metadata.dst_node_id, self._round) for one, message in sent}
        ends = None if timeout is None else time.monotonic() + timeout
        self._look()
        while self._waiting and (self._last or len(self._arrived) < self.enough):
            if ends is not None and time.monotonic() >= ends:
                break
            self.sleep(PAUSE)
            self._look()
        found, self._arrived = self._arrived, []
        return found

    def _look(self) -> None:
        for reply in self.inner.pull_messages(list(self._waiting)) if self._waiting else ():
            asked = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if asked is not None:
                reply.metadata.group_id = str(asked[1])
                self._arrived.append(reply)
