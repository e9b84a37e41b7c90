"""The client's half: a Flower mod that lets one private release out and nothing else.

Idea     around the app's train function: before it, check what the server asks against this node's own reading of the
         run config and against its ledger; after it, take ``received - trained``, note the release in the ledger,
         and only then clip, randomise and pack it. A node that will not answer says so in an error reply; it raises
         nothing, because Flower forgets the context of an app that raised.
Symbols  none of the arguments of a refusal is private: names, shapes, settings, counts of releases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from logging import ERROR
from typing import TypeAlias, final

from flwr.app import Array, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore import log

from quietbit._typing import FloatVector
from quietbit._validate import QuietbitError, require
from quietbit.flower.budget import Budget, node_budget
from quietbit.flower.layout import Layout
from quietbit.flower.node_ledger import NodeLedger
from quietbit.flower.plaintext import allowed_metrics, check_allowed, decline, failed
from quietbit.flower.release import RECORD, Release, split_pieces
from quietbit.flower.request import Request
from quietbit.flower.settings import RunSettings
from quietbit.flower.store import LedgerStore, store_for
from quietbit.flower.words import words_for
from quietbit.kernel.words import RandomWords
from quietbit.mechanism.base import Mechanism
from quietbit.transport.uplink import Uplink

__all__ = ["PrivateUplink"]

CallNext: TypeAlias = Callable[[Message, Context], Message]


@final
@dataclass(frozen=True)
class PrivateUplink:
    """A mod for `flwr.clientapp.ClientApp(mods=[PrivateUplink()])`: train replies become private releases.

    Of every reply (train, evaluate, query) nothing else leaves the node, except the metrics named in ``allow``, with
    a warning. With ``reveal_errors`` an app's own errors reach the server with their text; else they are replaced by
    a plain sentence and logged on the node. Put it first among the mods: it is then the last to touch a reply. (A mod
    before it that raises makes Flower's simulation forget the node's context, and its ledger with it.)
    """

    allow: tuple[str, ...] = ()
    reveal_errors: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Warn about what is let through."""
        object.__setattr__(self, "allow", check_allowed(self.allow, self.reveal_errors))

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Answer a message of the server."""
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            reply = self._run(message, context, call_next)
            return reply if reply.has_error() else self._reply(message, allowed_metrics(reply.content, self.allow))
        try:
            job = _Job.prepare(message, context)
        except QuietbitError as error:
            return decline(message, error)
        reply = self._run(message, context, call_next)
        if reply.has_error():
            return reply
        try:
            content, update = allowed_metrics(reply.content, self.allow), job.update(reply.content)
            job.store.update(job.next_ledger)
        except QuietbitError as error:
            return decline(message, error)
        try:
            pieces = job.release(update)
        except Exception as error:  # a NaN, say: whether there was one is not for the server to know
            log(ERROR, "quietbit: the update cannot be released, and the server is not told why", exc_info=error)
            return failed(message)
        for name, piece in pieces.items():
            content[name] = ConfigRecord(dict(piece))
        return self._reply(message, content)

    def _run(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """The app's reply; its errors without their text."""
        try:
            reply: object = call_next(message, context)
        except Exception as error:
            if self.reveal_errors:
                raise
            log(ERROR, "quietbit: the app failed, and the server is not told why", exc_info=error)
            return failed(message)
        if not isinstance(reply, Message):
            log(ERROR, "quietbit: the app answered with no Message but a %s", type(reply).__name__)
            return failed(message)
        if reply.has_error() and not self.reveal_errors:
            log(ERROR, "quietbit: the app answered with an error that is not sent: %s", reply.error)
            return failed(message)
        return reply

    @staticmethod
    def _reply(message: Message, content: RecordDict) -> Message:
        return Message(content, reply_to=message)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """All that is known about a release before the app trains."""

    request: Request
    run: int
    node: int
    received: dict[str, Array]
    layout: Layout
    mechanism: Mechanism
    budgets: tuple[Budget, ...]
    store: LedgerStore
    words: RandomWords

    @classmethod
    def prepare(cls, message: Message, context: Context) -> _Job:
        """Check the server's request; a `QuietbitError` is a reason not to answer."""
        settings = RunSettings.from_run_config(context.run_config)
        own = node_budget(context.node_config)
        request = Request.from_record(message.content.get(RECORD))
        records = message.content.array_records
        require(len(records) == 1, "number of ArrayRecords in the message", len(records), "1")
        received = dict(next(iter(records.values())))
        layout = Layout.of(received, settings)
        mechanism = settings.mechanism_for(layout.dimension)
        request.expect(mechanism)
        job = cls(
            request=request,
            run=context.run_id,
            node=context.node_id,
            received=received,
            layout=layout,
            mechanism=mechanism,
            budgets=(settings.budget,) if own is None else (settings.budget, own),
            store=store_for(context.node_config, context.state, lambda values: ConfigRecord(dict(values))),
            words=words_for(settings, context.node_config, request.round),
        )
        job.next_ledger(job.store.read())
        return job

    def next_ledger(self, ledger: NodeLedger) -> NodeLedger:
        """The ledger once this release is in it; refused where a budget does not allow that."""
        following = ledger.record(self.mechanism, self.run, self.request.round)
        for budget in self.budgets:
            following.check_budget(budget)
        return following

    def update(self, content: RecordDict) -> list[FloatVector]:
        """What the app has learnt, array by array."""
        records = content.array_records
        require(len(records) == 1, "number of ArrayRecords in the app's reply", len(records), "1")
        return self.layout.difference(self.received, next(iter(records.values())))

    def release(self, update: list[FloatVector]) -> dict[str, dict[str, bytes]]:
        """The records of the release; to be called when it is in the ledger, never before."""
        payload = Uplink(self.mechanism).send(update, self.words)
        return split_pieces(Release(self.run, self.request.round, self.node, payload).to_bytes())
