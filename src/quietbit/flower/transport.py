"""How Flower carries requests and replies: messages of records, and the bytes that they are.

Idea     a request's records become records of a message, beside those of the inner strategy.
         Messages that hold the same share one content, so that a model is in memory once, however
         many nodes it goes to. Where the plan has stragglers, a grid stands before the real one
         that ends a training round as soon as the plan allows (`HurriedGrid`): what comes later is
         not looked for. It was noted by its node, is counted by the server, and is in no mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, final

import numpy as np
from attrs import define, frozen
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from quietbit.federation.messages import (
    ANSWERED,
    CRASHED,
    DECLINED,
    METRICS,
    Ask,
    Reply,
    numbers_of,
    of_gate,
)
from quietbit.federation.parts.stragglers import Stragglers
from quietbit.federation.round import Round

__all__ = [
    "GridTransport",
    "HurriedGrid",
    "address",
    "is_unprotected",
    "numbers_in",
    "reply_of",
    "wire_sizes",
]

ERRORS = {code: name for name, code in vars(ErrorCode).items() if isinstance(code, int)}


def address(
    ask: Ask, current: Round, messages: Iterable[Message], model: ArrayRecord | None = None
) -> list[Message]:
    """Return the messages of what a round asks, each with its records, and note their sizes.

    ``messages`` are those to be completed, one per request; ``model`` is left out of those whose
    nodes have it.
    """
    contents: dict[tuple[Any, ...], RecordDict] = {}
    made: dict[int, ConfigRecord | ArrayRecord] = {}
    addressed = []
    for asked, message in zip(ask.requests, messages, strict=True):
        content = message.content
        key = (id(content), asked.carries_model, *map(id, asked.records.values()))
        if key not in contents:
            rest = {}
            for name, record in content.items():
                if asked.carries_model or record is not model:
                    rest[name] = record
            for name, value in asked.records.items():
                made.setdefault(id(value), _record(name, value))
                rest[name] = made[id(value)]
            contents[key] = RecordDict(rest)
        message.content = contents[key]
        message.metadata.dst_node_id = int(asked.node)
        addressed.append(message)
    _measure(ask, current, addressed)
    return addressed


def reply_of(message: Message) -> Reply:
    """Return what a node replied, as a run reads it."""
    node = message.metadata.src_node_id
    size = sum(wire_sizes([message]))
    if message.has_error():
        said, noted = _refused(message.error)
        return Reply(node, size, refusal=said, noted=noted)
    content = message.content
    if is_unprotected(content):
        return Reply(node, size, unprotected=True)
    return Reply(node, size, content.config_records, numbers_in(content))


def _refused(error: Error) -> tuple[str, bool]:
    """Return why a node has no answer, and whether it may have noted a release.

    The text of an app that raises where no gate stands around it is not read: it may be data.
    """
    reason = error.reason or ""
    if reason.startswith((DECLINED, ANSWERED)):
        return reason.removeprefix(DECLINED), reason.startswith(ANSWERED)
    return f"Flower says {ERRORS.get(error.code, error.code)}", True


def is_unprotected(content: RecordDict) -> bool:
    """Return whether a node's reply holds anything that no gate lets out."""
    metrics = dict(content.metric_records)
    numbers = metrics.pop(METRICS, MetricRecord()).values()
    records = {name: dict(record) for name, record in content.config_records.items()}
    crash = records.pop(CRASHED, {"traceback": ""})
    known = set(crash) == {"traceback"} and not any(isinstance(value, list) for value in numbers)
    return bool(content.array_records or metrics) or not (known and of_gate(records))


def numbers_in(content: RecordDict) -> dict[str, float]:
    """Return the finite numbers that the owner of a node lets out as they are."""
    return numbers_of(content.metric_records.get(METRICS))


@final
@frozen
class GridTransport:
    """Exchange of single messages over a grid, of the type that the inner strategy's have."""

    grid: Grid
    message_type: str

    def drive(self, current: Round) -> Ask | None:
        """Carry a round's steps that need no app; return what it asks apps for, None at the end."""
        while (ask := current.next()) is not None:
            if ask.releases:
                return ask
            for reply in self._exchange(ask, current):
                current.take(reply)
        return None

    def _exchange(self, ask: Ask, current: Round) -> list[Reply]:
        """Send the requests of a step, and return the replies that came in time."""
        empty = RecordDict()
        group = str(ask.number)
        messages = []
        for asked in ask.requests:
            node = int(asked.node)
            messages.append(Message(empty, node, self.message_type, group_id=group))
        asking = address(ask, current, messages)
        replies = self.grid.send_and_receive(asking, timeout=ask.timeout)
        return [reply_of(reply) for reply in replies]


def _measure(ask: Ask, current: Round, messages: list[Message]) -> None:
    """Note the sizes of messages, and put the records in them that are for single nodes."""
    for asked, message, size in zip(ask.requests, messages, wire_sizes(messages), strict=True):
        own = {name: _record(name, value) for name, value in asked.own_records.items()}
        asked.size = size + sum(len(record.deflate()) for record in own.values())
        if own:
            message.content = RecordDict({**message.content, **own})
        current.sent(asked)


def wire_sizes(messages: list[Message]) -> list[int]:
    """Return the bytes of every object that Flower pushes for each message, without HTTP's heads.

    Messages with the same content differ by a few digits, and are measured once.
    """
    known: dict[int, int] = {}
    sizes = []
    for message in messages:
        key = id(message.content if message.has_content() else message)
        if key not in known:
            known[key] = _size(message)
        sizes.append(known[key])
    return sizes


def _size(message: Message) -> int:
    if not message.has_content():
        return len(message.deflate())
    parts = get_all_nested_objects(_apart(message)).values()
    return sum(len(part.deflate()) for part in parts)


def _apart(message: Message) -> Message:
    """Return the same bytes in new records: a measured array remembers its chunks in ray."""
    content = RecordDict()
    for name, record in message.content.items():
        content[name] = ArrayRecord(dict(record)) if isinstance(record, ArrayRecord) else record
    twin = copy(message)
    twin.content = content
    return twin


def _record(name: str, value: Any) -> ConfigRecord | ArrayRecord:
    """Return one of quietbit's records as Flower's: of plain values, or of arrays."""
    if isinstance(value, np.ndarray):
        value = {name: value}
    if any(isinstance(field, np.ndarray) for field in value.values()):
        return ArrayRecord({key: Array(array) for key, array in value.items()})
    return ConfigRecord(value)


PAUSE = 0.1  # seconds before replies are pulled again


@final
@define(eq=False)
class HurriedGrid:
    """The grid ``inner``, whose training rounds end as ``stragglers`` says."""

    inner: Grid
    stragglers: Stragglers
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def __getattr__(self, name: str) -> Any:
        """Return whatever else Flower looks up in a grid: it is the inner one's."""
        return getattr(self.inner, name)

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
