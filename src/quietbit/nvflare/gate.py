"""The other ways out of a client's process, and how they are shut before the app runs.

Idea     NVFlare's filters see the results of tasks, and neither failures nor anything else that a process sends. So
         the filter, before the first task, puts itself where the rest would leave: around every executor (NVFlare
         answers by itself for one that raises, past all filters, and asks no filter about a task that none is
         registered for), on the auxiliary channel (metrics streamed as events, logs, objects, messages between
         clients), on the public properties of contexts, which travel with every message, and last where results
         are sent: what was answered for the task leaves as it was written, whatever came after the filter.
Symbols  a turn: what was decided about one task, and what was answered, left in its context (`client.py`).

This leans on names of NVFlare 2.9 (`ClientRunner`, `ClientRunManager`): where one is missing, nothing is released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, final

from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply

__all__ = ["Decided", "shut"]

LOGGER = logging.getLogger(__name__)
# What the engine itself sends: that a client is there, and which task it asks about.
SENT = (ReservedTopic.SYNC_RUNNER, ReservedTopic.JOB_HEART_BEAT, ReservedTopic.TASK_CHECK)
# What the engine itself answers; the reply to a task goes through the filters.
ANSWERED = (*SENT, ReservedTopic.END_RUN, ReservedTopic.DO_TASK)
# Who and where this client is, which the server knows.
PUBLIC = (
    ReservedKey.RUN_NUM, ReservedKey.IDENTITY_NAME, ReservedKey.FQSN, ReservedKey.IS_LEAF, FLContextKey.CLIENT_NAME,
    FLContextKey.CURRENT_RUN, FLContextKey.CURRENT_JOB_ID,
)  # fmt: skip
# What the engine writes into the head of a result.
HEAD = (
    ReservedHeaderKey.TASK_NAME, ReservedHeaderKey.TASK_ID, ReservedHeaderKey.CONTENT_TYPE,
    ReservedHeaderKey.AUDIT_EVENT_ID, ReservedHeaderKey.MSG_ROOT_ID, ReservedHeaderKey.MSG_ROOT_TTL,
)  # fmt: skip
CODES = {value for name, value in vars(ReturnCode).items() if name.isupper()}
# An app that ends its process must not be told from one that fails; Ctrl-C is the owner's.
APP_FAILURES = (Exception, SystemExit, GeneratorExit)
DONE = "_quietbit_gate"


class Decided(Protocol):
    """A task that was decided about."""

    @property
    def runs(self) -> bool:
        """Whether its app is to be called."""
        ...

    @property
    def cookies(self) -> Any:
        """What the server sent to have it back, as it came."""
        ...

    def sealed(self, result: Any) -> Mapping[str, Any] | None:
        """What was answered, if this is the answer."""
        ...


Execute = Callable[..., Any]
TurnOf = Callable[[FLContext], Decided | None]


def shut(fl_ctx: FLContext, turn_of: TurnOf) -> None:
    """Shut them for this process, once. ``turn_of`` finds the turn that a context is about.

    An engine in which one of them is not found raises, and then nothing is released.
    """
    engine, runner = fl_ctx.get_engine(), fl_ctx.get_prop(FLContextKey.RUNNER)
    for executor in runner.task_router.task_table.values():
        if not hasattr(executor, DONE):
            executor.execute = _watched(executor.execute, turn_of)
            setattr(executor, DONE, True)
    auxiliary, manager = engine.aux_runner, engine.fl_ctx_mgr
    if not hasattr(auxiliary, DONE):
        auxiliary.send_aux_request = _sending(auxiliary.send_aux_request, 1)
        auxiliary.multicast_aux_requests = _sending(auxiliary.multicast_aux_requests, 0)
        auxiliary.dispatch = _answering(auxiliary.dispatch, turn_of)
        engine.send_task_result = _last(engine.send_task_result, turn_of)
        setattr(auxiliary, DONE, True)
    if not isinstance(manager.public_stickers, _Known):
        manager.public_stickers = _Known(manager.public_stickers)


def _strip(fl_ctx: FLContext) -> None:
    """Take every public property out of a context that does not only say who this client is."""
    for key in fl_ctx.get_all_public_props():
        if key not in PUBLIC:
            LOGGER.info("quietbit: not sent to the server: property %s", key)
            fl_ctx.remove_prop(key, force_removal=True)


@final
class _Known(dict[str, Any]):
    """Public properties of all contexts to come; no other is taken in, and none is changed."""

    def __init__(self, before: dict[str, Any]) -> None:
        super().__init__({key: value for key, value in before.items() if key in PUBLIC})

    def __setitem__(self, key: str, value: Any) -> None:
        if key in PUBLIC and key not in self:
            super().__setitem__(key, value)


def _watched(execute: Execute, turn_of: TurnOf) -> Execute:
    """An executor whose failures are results like any other, for the filter to make a release of."""

    def watched(task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Any) -> Any:
        turn = turn_of(fl_ctx)
        if turn is None:
            LOGGER.error("quietbit: task %s has passed no filter of quietbit's, and is not run.", task_name)
            return make_reply(ReturnCode.TASK_DATA_FILTER_ERROR)
        if not turn.runs:
            return Shareable()
        try:
            result = execute(task_name, shareable, fl_ctx, abort_signal)
            if isinstance(result, Shareable):
                return result
            LOGGER.error("quietbit: the app answered with no Shareable, and the server is not told.")
        except APP_FAILURES as error:
            LOGGER.error("quietbit: the app failed, and the server is not told.", exc_info=error)
        return Shareable()

    return watched


def _sending(send: Execute, place: int) -> Execute:
    """The auxiliary channel for the engine's own messages alone; the topic is argument ``place``."""

    def sending(*arguments: Any, **named: Any) -> Any:
        topic = named["topic"] if "topic" in named else arguments[place]
        if topic not in SENT:
            LOGGER.warning("quietbit: not sent to anybody: a message on %s", topic)
            return {}
        for value in (*arguments, *named.values()):
            if isinstance(value, FLContext):
                _strip(value)
        return send(*arguments, **named)

    return sending


def _answering(dispatch: Execute, turn_of: TurnOf) -> Execute:
    """Replies to the auxiliary messages of others: those that components make say nothing but that they came."""

    def answering(topic: str, request: Shareable, fl_ctx: FLContext) -> Any:
        reply = dispatch(topic=topic, request=request, fl_ctx=fl_ctx)
        return _written(reply, fl_ctx, turn_of) if topic in ANSWERED else make_reply(ReturnCode.OK)

    return answering


def _last(send: Execute, turn_of: TurnOf) -> Execute:
    """The sending of results."""

    def last(result: Shareable, fl_ctx: FLContext, *arguments: Any, **named: Any) -> Any:
        return send(_written(result, fl_ctx, turn_of), fl_ctx, *arguments, **named)

    return last


def _written(result: Any, fl_ctx: FLContext, turn_of: TurnOf) -> Shareable:
    """A result written anew: the answer of its task as it was sealed, or else a return code and no content."""
    _strip(fl_ctx)
    turn, heads = turn_of(fl_ctx), result if isinstance(result, Shareable) else Shareable()
    content = turn.sealed(result) if turn is not None else None
    code = ReturnCode.OK if content is not None else heads.get_return_code()
    if content is None and (code not in CODES or set(heads) != {ReservedHeaderKey.HEADERS}):
        LOGGER.error("quietbit: a result that is not the release of its task is not sent.")
        code = ReturnCode.TASK_RESULT_FILTER_ERROR
    found = make_reply(code)
    for key in HEAD:
        if heads.get_header(key) is not None:
            found.set_header(key, heads.get_header(key))
    if turn is not None and turn.cookies is not None:
        found.set_cookie_jar(turn.cookies)
    found.update(content or {})
    return found
