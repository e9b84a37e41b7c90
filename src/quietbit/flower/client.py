"""The client's half: a Flower mod that lets one private release out and nothing else.

Idea     around the app's train function: before it, check what the server asks against this node's own reading of the
         run config and against its ledger; after it, take ``received - trained``, note the release in the ledger,
         and only then clip, randomise and pack it. Under secure aggregation the release is masked, and the other
         three steps of a sum are answered here, without the app. A node that will not answer says so in an error
         reply; it raises nothing, because Flower forgets the context of an app that raised.
Symbols  none of the arguments of a refusal is private: names, shapes, settings, counts of releases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from logging import ERROR
from typing import TypeAlias, final

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore import log

from quietbit._validate import QuietbitError
from quietbit.flower.job import Books, Job
from quietbit.flower.node_ledger import AnsweredBefore
from quietbit.flower.plaintext import ANSWERED, DECLINED, allowed_metrics, check_allowed, decline, failed
from quietbit.flower.secure_question import SUM
from quietbit.flower.secure_step import SumStep, forget
from quietbit.flower.settings import RunSettings

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
            forget(context)
            reply = self._run(message, context, call_next)
            return reply if reply.has_error() else self._reply(message, allowed_metrics(reply.content, self.allow))
        reply = self._train(message, context, call_next)
        if reply.has_error():  # then this node has left the sum, if there was one
            forget(context)
        return reply

    def _train(self, message: Message, context: Context, call_next: CallNext) -> Message:
        try:
            settings = RunSettings.from_run_config(context.run_config)
            books = Books.of(context, settings)
            step = SumStep.of(message, context, settings) if settings.secure else None
            if step is not None and not step.trains:
                answer = ConfigRecord({"step": step.asked.step, "answer": step.answer(message, settings, books)})
                return self._reply(message, RecordDict({SUM: answer}))
            job = Job.prepare(message, context, settings, books)
            if step is not None:
                step.check_vector(job.request.round)
        except Exception as error:
            return _declined(message, error)
        reply = self._run(message, context, call_next)
        if reply.has_error():
            return reply
        try:
            content, update = allowed_metrics(reply.content, self.allow), job.update(reply.content)
            job.note()
        except Exception as error:
            return _declined(message, error)
        try:
            payload = job.encode(update)
            pieces = job.pieces(payload if step is None else step.mask(payload))
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


def _declined(message: Message, error: Exception) -> Message:
    """A refusal in its own words; anything else, as from arrays of the server's that are none, without its text."""
    if isinstance(error, QuietbitError):
        # The server must go on counting a release that was made and whose reply may be lost.
        return decline(message, error, ANSWERED if isinstance(error, AnsweredBefore) else DECLINED)
    log(ERROR, "quietbit: the message cannot be answered, and the server is not told why", exc_info=error)
    return failed(message)
