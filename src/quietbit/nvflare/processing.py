"""One task from its arrival to its sealed result, and the executor that runs in it.

Idea     the runner's thread only waits (`node.guard`). The task runs in a thread and a context of
         its own, with the app and all filters and components of the job in it. When it is decided,
         before the app is called, the zero release is in the outbox; whatever happens then, one
         reply comes out, at its moment. It is written anew and sealed: what a component does to it
         later does not leave.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import traceback
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.client import api as client_api
from nvflare.client.in_process.api import TOPIC_ABORT
from nvflare.fuel.data_event.data_bus import DataBus
from nvflare.private.fed.simulator.simulator_app_runner import SimulatorClientRunManager

from quietbit.errors import one_line
from quietbit.node.guard import Outbox, guarded
from quietbit.nvflare.task import DECIDED, Task, task_of

__all__ = ["execute_task", "hear_aborts", "process_task", "sealed_result"]

LOGGER = logging.getLogger(__name__)
Wrapped = Callable[..., Any]
CODES = {value for name, value in vars(ReturnCode).items() if name.isupper()}
_ABORTS: list[str] = []  # why the trainer of this process gave up, since its last task


def process_task(process: Wrapped, task: Any, fl_ctx: FLContext) -> Shareable:
    """Process a task as the runner does, and return its one answer at its moment; raise nothing.

    In NVFlare's simulator, whose user may interrupt it, nothing is guarded.
    """
    try:
        otherwise = make_reply(ReturnCode.EXECUTION_EXCEPTION)
        outbox = Outbox(otherwise, partial(_seal, fl_ctx), restore_interrupt=False)
        work = partial(_run_task, process, task, fl_ctx)
        if not isinstance(fl_ctx.get_engine(), SimulatorClientRunManager):
            return _answered(outbox, work)
    except BaseException:  # before anything was asked or noted
        return make_reply(ReturnCode.EXECUTION_EXCEPTION)
    work(outbox)
    _seal(fl_ctx, outbox.reply)
    return outbox.reply


def sealed_result(result: Shareable, fl_ctx: FLContext) -> Shareable:
    """Return the result of a context's task as it was sealed, or else a return code alone."""
    decision = task_of(fl_ctx)
    if decision is not None and decision.leaving is not None:
        return deepcopy(decision.leaving)
    return _code_of(result)


def execute_task(
    executor: Any,
    execute: Wrapped,
    unfinished: list[Task],
    task_name: str,
    shareable: Shareable,
    fl_ctx: FLContext,
    abort_signal: Any,
) -> Any:
    """Run an executor so that its failures are results like any other, and restart it after one.

    NVFlare restarts none: all later answers would be zero, quick, and paid for. It happens within
    the time of the next task, so that when that one is fetched says nothing about this one.
    ``unfinished`` is the executor's list of tasks that it has not answered.
    """
    decision = task_of(fl_ctx)
    if decision is None:
        name = one_line(task_name)
        LOGGER.error("quietbit: task %s passed no filter of quietbit's, and is not run.", name)
        return make_reply(ReturnCode.TASK_DATA_FILTER_ERROR)
    if not decision.runs:
        return Shareable()
    if unfinished:
        _restart(executor, fl_ctx)
    unfinished[:] = [decision]  # until it has answered: one that fails or is abandoned does not
    try:
        with decision.serving():
            result = execute(task_name, shareable, fl_ctx, abort_signal)
        if isinstance(result, Shareable) and result.get_return_code() == ReturnCode.OK:
            unfinished[:] = [task for task in unfinished if task is not decision]
            return result
        decision.crash = _ABORTS[0] if _ABORTS else "The app answered with no result."
        LOGGER.error("quietbit: the app answered with no result, and the server is not told.")
    except (
        BaseException
    ) as error:  # panics of native code and cancelled tasks look the same outside
        decision.crash = "".join(traceback.format_exception(error))
        LOGGER.error("quietbit: the app failed, and the server is not told.", exc_info=error)
    finally:
        _ABORTS.clear()
    return Shareable()


@cache
def hear_aborts() -> None:
    """Note what a script in a thread of its own gave up with, from now on."""
    DataBus().subscribe([TOPIC_ABORT], lambda topic, reason, bus: _ABORTS.append(str(reason)))


def _answered(outbox: Outbox[Shareable], work: Callable[[Outbox[Shareable]], None]) -> Shareable:
    try:
        return guarded(outbox, work)
    except BaseException:
        return outbox.leaving


def _run_task(process: Wrapped, task: Any, fl_ctx: FLContext, outbox: Outbox[Shareable]) -> None:
    """Run a task in its own thread, and put its answer into the outbox.

    What is not done in time is abandoned; what it does later is not seen.
    """
    context = fl_ctx.get_engine().new_context()
    context.props.update(fl_ctx.props)
    context.set_job_is_unsafe(False)  # by a component, in an earlier task: the next one is answered
    decided = threading.Event()
    decide = partial(_accept, outbox, fl_ctx, decided)
    context.set_prop(DECIDED, decide, private=True, sticky=False)
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(process(task, context))
        except BaseException as error:
            LOGGER.error("quietbit: the task failed, and the server is not told.", exc_info=error)
        finally:
            decided.set()

    variables = contextvars.copy_context()
    thread = threading.Thread(target=variables.run, args=(run,), daemon=True)
    thread.start()
    while not decided.wait(1.0) and thread.is_alive():
        continue  # as long as it takes: this depends on what was asked, and on nothing else
    decision = task_of(context)
    if decision is None:
        thread.join()
        outbox.put(_code_of(results[0] if results else None))
        return
    if decision.runs:
        if outbox.moment is None:
            decide(decision)
        decision.moment.run(thread.join)
    else:
        thread.join()
    outbox.put(_reply_of(decision, decision.sealed()))
    fl_ctx.set_job_is_unsafe(False)


def _accept(
    outbox: Outbox[Shareable], fl_ctx: FLContext, decided: threading.Event, decision: Task
) -> None:
    """Let the zero release leave at its moment, unless another is ready; then the app may begin."""
    for key, value in decision.props.items():
        fl_ctx.set_prop(key, value, private=True, sticky=False)
    if decision.runs:
        outbox.accept(decision.moment, _reply_of(decision, decision.zero()))
    decided.set()


def _seal(fl_ctx: FLContext, reply: Shareable) -> None:
    """Remember what leaves: the engine sends it later, after events of the job's components."""
    decision = task_of(fl_ctx)
    if decision is not None:
        decision.leaving = deepcopy(reply)


def _reply_of(decision: Task, content: dict[str, Any]) -> Shareable:
    reply = make_reply(ReturnCode.OK, deepcopy(dict(decision.heads)))
    reply.update(content)
    return reply


def _code_of(result: Any) -> Shareable:
    """Return the return code of a result that no filter of ours decided about, and no content."""
    if not isinstance(result, Shareable):
        return make_reply(ReturnCode.EXECUTION_EXCEPTION)
    code = result.get_return_code()
    if code not in CODES or set(result) != {ReservedHeaderKey.HEADERS}:
        LOGGER.error("quietbit: a result that is not the release of its task is not sent.")
        code = ReturnCode.TASK_RESULT_FILTER_ERROR
    reply = make_reply(code)
    for key in (ReservedHeaderKey.TASK_NAME, ReservedHeaderKey.TASK_ID):
        if result.get_header(key) is not None:
            reply.set_header(key, result.get_header(key))
    return reply


def _restart(executor: Any, fl_ctx: FLContext) -> None:
    """Start an executor again as at the beginning of a run."""
    for event in (EventType.END_RUN, EventType.START_RUN):
        try:
            with fl_ctx.get_engine().new_context() as context:
                executor.handle_event(event, context)
            with client_api.global_context_lock:  # or a script's init() returns what was closed
                client_api.context_dict.clear()
        except BaseException as error:
            LOGGER.error("quietbit: the app cannot be restarted (%s).", event, exc_info=error)
