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

from quietbit.federation import messages
from quietbit.federation.exchange import Contribution, Exchange, Result
from quietbit.federation.messages import ABOUT, RECORD, UPDATE, Reply, numbers_of
from quietbit.nvflare.task import ANSWER, CRASHED, RELEASE, as_kind

__all__ = ["SentTask", "peer_of", "put_request", "read_result", "wire_size"]

METRICS = "metrics"
REFUSAL = {"declined", "noted"}  # the fields of an answer without a release
# All that a gate lets out: of a result, and of quietbit's record in it.
CONTENT = {RECORD, ReservedHeaderKey.HEADERS}
KEYS = {UPDATE: RELEASE, ABOUT: ANSWER}  # of a request, that of its answer
FIELDS = {RELEASE: bytes, ANSWER: bytes, CRASHED: str, "declined": str, "noted": bool}


def put_request(shareable: Shareable, settings: Mapping[str, Any], exchange: Exchange) -> None:
    """Put quietbit's record into a task: the settings, and what is asked."""
    record: dict[str, Any] = {"settings": settings}
    if exchange.update is not None:
        records = dict(exchange.update.records)
        record[UPDATE] = records.pop(RECORD)
        record |= records
    if ABOUT in exchange.rounds:
        record[ABOUT] = exchange.rounds[ABOUT].request
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

    def seen(self, contribution: Contribution) -> Shareable:
        """Return what the workflow sees: *trained minus received*, as NVFlare counts."""
        layout = self.exchange.layout
        if layout is None or contribution.update is None:
            metrics = dict(contribution.metrics)
            result = DXO(DataKind.METRICS, data=metrics).to_shareable()
        else:
            pieces = layout.shaped(-contribution.update)
            moved = {}
            for name, _, dtype in layout.learnt:
                moved[name] = as_kind(pieces[name].astype(dtype), self.kind)
            meta = _meta(contribution)
            result = DXO(DataKind.WEIGHT_DIFF, data=moved, meta=meta).to_shareable()
        result.set_header(ReservedKey.TASK_NAME, self.name)
        result.set_header(ReservedKey.TASK_ID, self.number)
        if UPDATE in self.exchange.rounds:
            result.set_header(AppConstants.CURRENT_ROUND, self.exchange.first.number - 1)
        result.set_peer_props({ReservedKey.IDENTITY_NAME: self.exchange.node})
        if self.cookies:
            result.set_cookie_jar(self.cookies)
        return result


def _meta(contribution: Contribution) -> dict[str, Any]:
    """Return what stands beside a difference: its weight, and the metrics that are numbers."""
    meta: dict[str, Any] = {MetaKey.NUM_STEPS_CURRENT_ROUND: contribution.weight}
    if contribution.metrics:
        numbers = {}
        for name, value in contribution.metrics.items():
            if isinstance(value, float):
                numbers[name] = value
        meta[MetaKey.INITIAL_METRICS] = numbers
    return meta


def read_result(message: Any, sender: str) -> Result:
    """Return what came from a client, whatever it answers: its size, and what it says."""
    content: Mapping[Any, Any] = message if isinstance(message, Mapping) else {RECORD: message}
    record = content.get(RECORD, {})
    fields: Mapping[Any, Any] = record if isinstance(record, Mapping) else {}
    if RECORD not in content:
        code = message.get_return_code() if isinstance(message, Shareable) else None
        if code != ReturnCode.OK:  # the engine's word: a release may have been noted, and lost
            fields = {"declined": str(code), "noted": True}
    metrics = numbers_of(fields.get(METRICS))
    replies = {name: _reply(sender, fields, key, metrics) for name, key in KEYS.items()}
    try:
        size = wire_size(message)
    except Exception:  # NVFlare reads numbers that it does not write
        size = 0
    protected = set(content) <= CONTENT and _of_gate(record)
    return Result(sender, size, replies, unprotected=not protected)


def _reply(sender: str, record: Mapping[Any, Any], key: str, metrics: Mapping[str, float]) -> Reply:
    """Return what a client says to one request: a release, why there is none, or neither."""
    value = record.get(key, record)
    if isinstance(value, bytes):
        records: dict[str, Any] = {RECORD: {messages.FIELD: value}}
        if CRASHED in record:
            records[messages.CRASHED] = {"traceback": record[CRASHED]}
        return Reply(sender, 0, records, metrics)
    if isinstance(value, Mapping) and set(value) >= REFUSAL:
        # One that has made a release for this round, and says so, has not declined: it counts.
        noted = value["noted"] is not False
        return Reply(sender, 0, refusal=str(value["declined"]), noted=noted)
    return Reply(sender, 0)


def _of_gate(record: Any) -> bool:
    """Return whether a gate lets out a record like this."""
    if not isinstance(record, Mapping):
        return False
    for name, value in record.items():
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
