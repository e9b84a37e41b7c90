"""How NVFlare carries requests and replies: the data of a task, and the result that comes back.

Idea     quietbit's request is one more entry beside the model in a task's data; a client's result
         holds nothing but quietbit's record. What the workflow sees in its place is a difference of
         weights. Its weight, headers and round are written from the request that was asked, and
         never from what a client sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from attrs import frozen
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_copy
from nvflare.app_common.app_constant import AppConstants
from nvflare.fuel.utils import fobs

from quietbit._typing import FloatVector
from quietbit.errors import InvalidPayload, one_line, refuse_payload
from quietbit.federation import messages
from quietbit.federation.exchange import Answer, Contribution, Exchange, Message
from quietbit.federation.messages import RECORD, Reply, numbers_of
from quietbit.federation.part import Model
from quietbit.nvflare.task import ABOUT, ANSWER, CRASHED, RELEASE, UPDATE, as_kind

__all__ = ["SentTask", "message_of", "peer_of", "put_request", "wire_size"]

METRICS = "metrics"
REFUSAL = {"declined", "noted"}  # the fields of an answer without a release
# All that a gate lets out: of a result, and of quietbit's record in it.
CONTENT = {RECORD, ReservedHeaderKey.HEADERS}
FIELDS = {RELEASE: bytes, ANSWER: bytes, CRASHED: str, "declined": str, "noted": bool}


def put_request(shareable: Shareable, settings: Mapping[str, Any], exchange: Exchange) -> None:
    """Put quietbit's record into a task: the settings, and what is asked."""
    record: dict[str, Any] = {"settings": settings}
    if exchange.update is not None:
        records = dict(exchange.update.records)
        record[UPDATE] = records.pop(RECORD)
        record |= records
    if exchange.about is not None:
        record[ABOUT] = exchange.about.request
    shareable[RECORD] = record


@final
@frozen(eq=False)
class SentTask:
    """A task that was sent to a client: what NVFlare calls it, and what was asked in it."""

    exchange: Exchange
    number: str  # NVFlare's id of it
    name: str
    cookies: Any
    kind: str  # of the model's arrays

    @classmethod
    def of(
        cls, exchange: Exchange, shareable: Shareable, fl_ctx: FLContext, kind: str = ""
    ) -> SentTask:
        """Note what NVFlare says of a task that is about to be sent."""
        number = str(fl_ctx.get_prop(FLContextKey.TASK_ID))
        name = str(fl_ctx.get_prop(FLContextKey.TASK_NAME))
        return cls(exchange, number, name, shareable.get_cookie_jar(), kind)

    def answers(self, result: Any, sender: str) -> dict[str, Answer]:
        """Return a client's answer to every request, by its name in `Exchanges.take`."""
        self.exchange.expect(sender)
        record = self._record(result)
        metrics = numbers_of(record.get(METRICS))
        names = {}
        if self.exchange.update is not None:
            names["update"] = RELEASE
        if self.exchange.about is not None:
            names["about"] = ANSWER
        answers: dict[str, Answer] = {}
        for subject, name in names.items():
            try:
                answers[subject] = self._reply(record, name, metrics)
            except Exception as error:  # whatever a client can make of it: the other part stands
                answers[subject] = error
        return answers

    def seen(self, contribution: Contribution) -> Shareable:
        """Return what the workflow sees: *trained minus received*, as NVFlare counts."""
        exchange = self.exchange
        if exchange.model is None or contribution.update is None:
            metrics = dict(contribution.metrics)
            result = DXO(DataKind.METRICS, data=metrics).to_shareable()
        else:
            result = self._difference(exchange.model, contribution.update, contribution)
        result.set_header(ReservedKey.TASK_NAME, self.name)
        result.set_header(ReservedKey.TASK_ID, self.number)
        if exchange.round is not None:
            result.set_header(AppConstants.CURRENT_ROUND, exchange.round.number - 1)
        result.set_peer_props({ReservedKey.IDENTITY_NAME: exchange.node})
        if self.cookies:
            result.set_cookie_jar(self.cookies)
        return result

    def _difference(
        self, model: Model, update: FloatVector, contribution: Contribution
    ) -> Shareable:
        """Return an update as a difference of weights, with the metrics that are numbers."""
        pieces = model.layout.shaped(-update)
        moved = {}
        for name, _, dtype in model.layout.learnt:
            moved[name] = as_kind(pieces[name].astype(dtype), self.kind)
        meta: dict[str, Any] = {MetaKey.NUM_STEPS_CURRENT_ROUND: contribution.weight}
        if contribution.metrics:
            numbers = {}
            for name, value in contribution.metrics.items():
                if isinstance(value, float):
                    numbers[name] = value
            meta[MetaKey.INITIAL_METRICS] = numbers
        return DXO(DataKind.WEIGHT_DIFF, data=moved, meta=meta).to_shareable()

    def _record(self, result: Any) -> Mapping[str, Any]:
        """Return the fields of a client's result; refuse what is not an answer to the task."""
        record = result.get(RECORD) if isinstance(result, Mapping) else None
        if not isinstance(record, Mapping):
            code = result.get_return_code() if isinstance(result, Shareable) else None
            if code != ReturnCode.OK:  # the engine's word: a release may have been noted, and lost
                return {"declined": str(code), "noted": True}
            raise InvalidPayload("The result must hold one quietbit release, got none.")
        known = {*REFUSAL, METRICS, CRASHED}
        if self.exchange.update is not None:
            known.add(RELEASE)
        if self.exchange.about is not None:
            known.add(ANSWER)
        if not set(record) <= known:
            names = one_line(str(sorted(map(str, record))))
            refuse_payload("the result", "one release of bytes", f"the fields {names}")
        return record

    def _reply(self, record: Mapping[str, Any], name: str, metrics: Mapping[str, float]) -> Reply:
        """Return one part of a client's result as a reply; refuse what is not one."""
        node = self.exchange.node
        refusal = {key: record[key] for key in REFUSAL if key in record}
        value = record.get(name, refusal)
        if isinstance(value, Mapping) and set(value) == REFUSAL:
            # One that has made a release for this round, and says so, has not declined: it counts.
            noted = value["noted"] is not False
            return Reply(node, 0, refusal=str(value["declined"]), noted=noted)
        if not isinstance(value, bytes):
            refuse_payload("the result", "one release of bytes", one_line(str(value)))
        records: dict[str, Any] = {RECORD: {messages.FIELD: value}}
        if CRASHED in record:
            records[messages.CRASHED] = {"traceback": record[CRASHED]}
        return Reply(node, 0, records, metrics)


def message_of(result: Any, sender: str) -> Message:
    """Return what came from a client, whatever it answers: its size, and what it may release."""
    content: Mapping[Any, Any] = result if isinstance(result, Mapping) else {RECORD: result}
    record = content.get(RECORD, {})
    fields: Mapping[Any, Any] = record if isinstance(record, Mapping) else {RECORD: record}
    update = fields.get(RELEASE)
    about = fields.get(ANSWER)
    try:
        size = wire_size(result)
    except Exception:  # NVFlare reads numbers that it does not write
        size = 0
    return Message(
        sender,
        size,
        update if isinstance(update, bytes) else b"",
        about if isinstance(about, bytes) else b"",
        unprotected=not (set(content) <= CONTENT and _of_gate(fields)),
    )


def _of_gate(fields: Mapping[Any, Any]) -> bool:
    """Return whether a gate lets out a record of these fields."""
    for name, value in fields.items():
        if name == METRICS:
            known = isinstance(value, Mapping) and all(map(_is_number, value.values()))
        elif name == ANSWER and isinstance(value, Mapping):
            known = set(value) == REFUSAL and _of_gate(value)
        else:
            known = isinstance(value, FIELDS.get(name, ()))
        if not known:
            return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def peer_of(fl_ctx: FLContext) -> str:
    """Return the name of the client that a context is about."""
    peer = fl_ctx.get_peer_context()
    return str(peer.get_identity_name()) if isinstance(peer, FLContext) else ""


def wire_size(shareable: Any) -> int:
    """Return a message's bytes as NVFlare serialises it, without the server's notes in it."""
    if isinstance(shareable, Shareable):
        shareable = make_copy(shareable, [ReservedHeaderKey.PEER_PROPS])
    return len(fobs.dumps(shareable))
