"""The other ways out of a client's process, and how they are shut before the app runs.

Idea     NVFlare's filters see the results of tasks, and neither failures nor anything else that a process sends. So
         the filter, before the first task, puts itself where the rest would leave: around the processing of a task
         (whatever executors, filters and components did or raised, its one answer leaves, at a moment that was
         fixed before they began), around every executor (one that fails is started again), on what would end the
         run, on the auxiliary channel, on the public properties of contexts, which travel with every message, and
         on the cell itself (`cell.py`).
Symbols  a turn: what was decided about one task, and what was answered, left in its context (`task.py`).

This leans on names of NVFlare 2.9 (`ClientRunner`, `ClientRunManager`): where one is missing, nothing is released.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import traceback
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any, final

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.client import api as client_api
from nvflare.client.in_process.api import TOPIC_ABORT
from nvflare.fuel.data_event.data_bus import DataBus

from quietbit.engine.batch import share_batches
from quietbit.nvflare.cell import shut_cell
from quietbit.nvflare.task import DECIDED, TURN, task_of

__all__ = ["shut"]

LOGGER = logging.getLogger(__name__)
# What the engine itself sends: that a client is there, and which task it asks about.
SENT = (ReservedTopic.SYNC_RUNNER, ReservedTopic.JOB_HEART_BEAT, ReservedTopic.TASK_CHECK)
# Who and where this client is, which the server knows.
PUBLIC = (
    ReservedKey.RUN_NUM, ReservedKey.IDENTITY_NAME, ReservedKey.FQSN, ReservedKey.IS_LEAF, FLContextKey.CLIENT_NAME,
    FLContextKey.CURRENT_RUN, FLContextKey.CURRENT_JOB_ID,
)  # fmt: skip
# What the engine writes into the head of a result when it sends it.
HEAD: tuple[str, ...] = (ReservedHeaderKey.MSG_ROOT_ID, ReservedHeaderKey.MSG_ROOT_TTL)
CODES = {value for name, value in vars(ReturnCode).items() if name.isupper()}
DONE = "_quietbit_gate"
_ABORTS: list[str] = []  # why the trainer of this process gave up, since its last task
Execute = Callable[..., Any]


def shut(fl_ctx: FLContext) -> bool:
    """Shut them for this process; return whether they were shut before.

    An engine in which one of them is not found raises, and then nothing is released.
    """
    engine, runner = fl_ctx.get_engine(), fl_ctx.get_prop(FLContextKey.RUNNER)
    before = hasattr(runner, DONE)
    _hear_aborts()
    share_batches()
    shut_cell(engine.get_cell())
    for executor in runner.task_router.task_table.values():
        if not hasattr(executor, DONE):
            executor.execute = _watched(executor, executor.execute)
            setattr(executor, DONE, True)
    auxiliary, manager = engine.aux_runner, engine.fl_ctx_mgr
    if not before:
        auxiliary.send_aux_request = _sending(auxiliary.send_aux_request, 1)
        auxiliary.multicast_aux_requests = _sending(auxiliary.multicast_aux_requests, 0)
        runner._process_task = _answered(runner._process_task)
        runner.handle_event = _going_on(runner.handle_event)
        engine.send_task_result = _last(engine.send_task_result)
        setattr(runner, DONE, True)
    if not isinstance(manager.public_stickers, _Known):
        manager.public_stickers = _Known(manager.public_stickers)
    return before


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


def _watched(executor: Any, execute: Execute) -> Execute:
    """Wrap an executor so that its failures are results like any other, and restart it after one.

    NVFlare starts none again: all later answers would be zero, quick, and paid for. It happens within the time of the
    next task, so that when that one is fetched says nothing about this one.
    """
    unfinished: list[object] = []

    def watched(task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Any) -> Any:
        turn = task_of(fl_ctx)
        if turn is None:
            LOGGER.error("quietbit: task %s has passed no filter of quietbit's, and is not run.", task_name)
            return make_reply(ReturnCode.TASK_DATA_FILTER_ERROR)
        if not turn.runs:
            return Shareable()
        if unfinished:
            _restart(executor, fl_ctx)
        unfinished[:] = [turn]  # until it has answered: one that fails or is abandoned does not
        try:
            with turn.serving():
                result = execute(task_name, shareable, fl_ctx, abort_signal)
            if isinstance(result, Shareable) and result.get_return_code() == ReturnCode.OK:
                unfinished[:] = [one for one in unfinished if one is not turn]
                return result
            turn.crash = _ABORTS[0] if _ABORTS else "The app answered with no result."
            LOGGER.error("quietbit: the app answered with no result, and the server is not told.")
        except BaseException as error:  # panics of native code and cancelled tasks, too: all look the same outside
            turn.crash = "".join(traceback.format_exception(error))
            LOGGER.error("quietbit: the app failed, and the server is not told.", exc_info=error)
        finally:
            _ABORTS.clear()
        return Shareable()

    return watched


@cache
def _hear_aborts() -> None:
    """Note what a script in a thread of its own gave up with, once per process."""
    DataBus().subscribe([TOPIC_ABORT], lambda topic, reason, bus: _ABORTS.append(str(reason)))


def _restart(executor: Any, fl_ctx: FLContext) -> None:
    """Start an executor again as at the beginning of a run."""
    for event in (EventType.END_RUN, EventType.START_RUN):
        try:
            with fl_ctx.get_engine().new_context() as context:
                executor.handle_event(event, context)
            with client_api.global_context_lock:  # a script that calls init() again would get what was closed
                client_api.context_dict.clear()
        except BaseException as error:
            LOGGER.error("quietbit: the app cannot be started again (%s); zero is released.", event, exc_info=error)


def _going_on(handle: Execute) -> Execute:
    """Pass on the runner's events, except that of a component which gives up: when a run ends would tell why."""

    def going_on(event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.FATAL_SYSTEM_ERROR:
            why = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
            LOGGER.error("quietbit: a component wants to end the run, which goes on with zero releases: %s", why)
            return
        handle(event_type, fl_ctx)

    return going_on


def _sending(send: Execute, place: int) -> Execute:
    """Keep the auxiliary channel for the engine's own messages alone; the topic is argument ``place``."""

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


def _answered(process: Execute) -> Execute:
    """Wrap the processing of a task: whatever happens in it, its answer comes out at its moment, and no task is told.

    The task runs in a thread and a context of its own, the app and all filters and components of the job in it. What
    is not done in time is abandoned, and answered for as if it had failed; nothing that it does later is seen.
    """

    def answered(task: Any, fl_ctx: FLContext) -> Shareable:
        decided, results, own = threading.Event(), list[Any](), fl_ctx.get_engine().new_context()
        own.props.update(fl_ctx.props)
        own.set_prop(DECIDED, decided, private=True, sticky=False)

        def work() -> None:
            try:
                results.append(process(task, own))
            except BaseException as error:
                LOGGER.error("quietbit: the task failed, and the server is not told.", exc_info=error)
            finally:
                decided.set()

        worker = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
        worker.start()
        decided.wait()  # as long as it takes: this depends on what was asked, and on nothing else
        for key in (TURN, FLContextKey.TASK_ID, FLContextKey.TASK_NAME):
            fl_ctx.set_prop(key, own.get_prop(key), private=True, sticky=False)
        turn = task_of(fl_ctx)
        if turn is None or not turn.runs:
            worker.join()
            return _written(results[0] if results else None, fl_ctx)
        turn.moment.run(worker.join)
        fl_ctx.set_job_is_unsafe(False)
        found = _written(results[0] if results else None, fl_ctx)
        turn.moment.wait()
        return found

    return answered


def _last(send: Execute) -> Execute:
    """Wrap the sending of results, so that each is written anew."""

    def last(result: Shareable, fl_ctx: FLContext, *arguments: Any, **named: Any) -> Any:
        return send(_written(result, fl_ctx), fl_ctx, *arguments, **named)

    return last


def _written(result: Any, fl_ctx: FLContext) -> Shareable:
    """Write a result anew: the answer of its task as it was sealed, or else a return code and no content."""
    _strip(fl_ctx)
    turn, before, heads = task_of(fl_ctx), result, HEAD
    if not isinstance(before, Shareable):
        before = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    if turn is not None:
        content = turn.sealed()
        found = make_reply(ReturnCode.OK, deepcopy(dict(turn.heads)))
        found.update(content)
    else:
        code = before.get_return_code()
        if code not in CODES or set(before) != {ReservedHeaderKey.HEADERS}:
            LOGGER.error("quietbit: a result that is not the release of its task is not sent.")
            code = ReturnCode.TASK_RESULT_FILTER_ERROR
        found, heads = make_reply(code), (*HEAD, ReservedHeaderKey.TASK_NAME, ReservedHeaderKey.TASK_ID)
    for key in heads:
        if before.get_header(key) is not None:
            found.set_header(key, before.get_header(key))
    return found
