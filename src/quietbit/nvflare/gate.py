"""The other ways out of a client's process, and how they are shut before the app runs.

Idea     NVFlare's filters see the results of tasks, and neither failures nor anything else that a process sends. So
         the filter, before the first task, puts itself where the rest would leave: around every executor (NVFlare
         answers by itself for one that raises, past all filters, and asks no filter about a task that none is
         registered for), on the auxiliary channel (metrics streamed as events, logs, objects, messages between
         clients), and on the public properties of contexts, which travel with every message.
Symbols  a turn: what was decided about one task, left in its context (`client.Turn`).

This leans on names of NVFlare 2.9 (`ClientRunner`, `ClientRunManager`): where one is missing, nothing is released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, final

from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

__all__ = ["shut", "strip_context"]

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
# An app that ends its process must not be told from one that fails; Ctrl-C is the owner's.
APP_FAILURES = (Exception, SystemExit, GeneratorExit)
DONE = "_quietbit_gate"

Execute = Callable[..., Any]
MayRun = Callable[[FLContext], bool | None]


def shut(fl_ctx: FLContext, may_run: MayRun) -> None:
    """Shut them for this process, once. ``may_run`` says of a context whether its app is to be called; None: no turn.

    An engine in which one of them is not found raises, and then nothing is released.
    """
    engine, runner = fl_ctx.get_engine(), fl_ctx.get_prop(FLContextKey.RUNNER)
    for executor in runner.task_router.task_table.values():
        if not hasattr(executor, DONE):
            executor.execute = _watched(executor.execute, may_run)
            setattr(executor, DONE, True)
    auxiliary, manager = engine.aux_runner, engine.fl_ctx_mgr
    if not hasattr(auxiliary, DONE):
        auxiliary.send_aux_request = _sending(auxiliary.send_aux_request, 1)
        auxiliary.multicast_aux_requests = _sending(auxiliary.multicast_aux_requests, 0)
        auxiliary.dispatch = _answering(auxiliary.dispatch)
        setattr(auxiliary, DONE, True)
    if not isinstance(manager.public_stickers, _Known):
        manager.public_stickers = _Known(manager.public_stickers)


def strip_context(fl_ctx: FLContext) -> None:
    """Take every public property out of a context that does not only say who this client is."""
    for key in fl_ctx.get_all_public_props():
        if key not in PUBLIC:
            LOGGER.info("quietbit: not sent to the server: property %s", key)
            fl_ctx.remove_prop(key, force_removal=True)


@final
class _Known(dict[str, Any]):
    """Public properties of all contexts to come; others are not taken in."""

    def __init__(self, before: dict[str, Any]) -> None:
        super().__init__({key: value for key, value in before.items() if key in PUBLIC})

    def __setitem__(self, key: str, value: Any) -> None:
        if key in PUBLIC:
            super().__setitem__(key, value)

    def update(self, *others: Any, **values: Any) -> None:
        for key, value in dict(*others, **values).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        self[key] = self.get(key, default)
        return self.get(key, default)


def _watched(execute: Execute, may_run: MayRun) -> Execute:
    """An executor whose failures are results like any other, for the filter to make a release of."""

    def watched(task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Any) -> Any:
        run = may_run(fl_ctx)
        if run is None:
            LOGGER.error("quietbit: task %s has passed no filter of quietbit's, and is not run.", task_name)
            return make_reply(ReturnCode.TASK_DATA_FILTER_ERROR)
        if not run:
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
                strip_context(value)
        return send(*arguments, **named)

    return sending


def _answering(dispatch: Execute) -> Execute:
    """Replies to the auxiliary messages of others: those that components make say nothing but that they came."""

    def answering(topic: str, request: Shareable, fl_ctx: FLContext) -> Any:
        reply = dispatch(topic=topic, request=request, fl_ctx=fl_ctx)
        return reply if topic in ANSWERED else make_reply(ReturnCode.OK)

    return answering
