"""The other ways out of a client's process, and how they are shut before the app runs.

Idea     NVFlare's filters see the results of tasks, and neither failures nor anything else that a process sends. So
         the filter, before the first task, puts itself where the rest would leave: around the processing of a task
         (whatever executors, filters and components did or raised, its one answer leaves, at a moment that was
         fixed before they began), around every executor (one that fails is started again), on what would end the
         run, on the auxiliary channel and on the public properties of contexts, which travel with every message.
         Last comes the cell, through which all messages of the process pass: what is not on its lists of routes is not
         sent, and not answered with anything but a constant, whoever asks for tracebacks, times or logs.
Symbols  a route: channel and topic of a message, those of the stream that it is a part of where it is one.

This leans on names of NVFlare 2.9 that are not public: where one is missing `shut` raises, and nothing is released.
"""

from __future__ import annotations

import contextvars
import logging
import re
import threading
import traceback
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from typing import Any, NamedTuple, final

from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import (
    AdminCommandNames,
    FLContextKey,
    ReservedKey,
    ReservedTopic,
    ReturnCode,
    ServerCommandNames,
)
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.client import api as client_api
from nvflare.client.cell.defs import CHANNEL as TRAINER_CHANNEL
from nvflare.client.in_process.api import TOPIC_ABORT
from nvflare.fuel.data_event.data_bus import DataBus
from nvflare.fuel.f3.cellnet import utils as cellnet
from nvflare.fuel.f3.cellnet.core_cell import _SM_CHANNEL, _SM_TOPIC
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessagePropKey, MessageType
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import stream_const as stream
from nvflare.fuel.f3.streaming.download_service import OBJ_DOWNLOADER_CHANNEL, OBJ_DOWNLOADER_TOPIC
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, StreamHeaderKey
from nvflare.private.defs import TrainingTopic
from nvflare.private.fed.client import client_runner
from nvflare.private.fed.simulator.simulator_app_runner import SimulatorClientRunManager

from quietbit.node.guard import Outbox, guarded, quiet_handlers
from quietbit.nvflare.task import DECIDED, TURN, Task, task_of
from quietbit.run.batch import share_batches

__all__ = ["ANSWERED", "CHECKED", "SENT", "VERSION", "shut"]

LOGGER = logging.getLogger(__name__)
VERSION = "2.9.0"  # of NVFlare, in which these were read; a test fails when one of them changes
CHECKED = {
    "nvflare.apis.fl_context:FLContextManager": "ed1339e109fd5087",
    "nvflare.apis.utils.task_utils:apply_filters": "c9465a3abac919dc",
    "nvflare.apis.utils.task_utils:get_filters": "dd8e07977e461fea",
    "nvflare.app_common.logging.constants:is_log_streaming_allowed": "bd8c7e54b93f4673",
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell._add_adhoc_connector": "c4224c8a179ee1fe",
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell._create_external_listener": "68894a3a1f3c4bdf",
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell._forward": "4bf0172fd346666c",
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell._process_request": "9fd9dacabcf64aa9",
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell._send_to_endpoint": "e3f1fac80ee474ca",
    "nvflare.fuel.f3.communicator:Communicator.send": "4cb94b1a5f5bee76",
    "nvflare.private.aux_runner:AuxRunner.multicast_aux_requests": "9121db381b157545",
    "nvflare.private.aux_runner:AuxRunner.send_aux_request": "dc51af56f320c4ae",
    "nvflare.private.fed.client.client_run_manager:ClientRunManager.send_task_result": "693cc4220c28b839",
    "nvflare.private.fed.client.client_runner:ClientRunner._do_process_task": "200a1e56e8a2af3f",
    "nvflare.private.fed.client.client_runner:ClientRunner._do_task": "29888f10e0ed753b",
    "nvflare.private.fed.client.client_runner:ClientRunner._handle_do_task": "7be2c0ce4c917a83",
    "nvflare.private.fed.client.client_runner:ClientRunner._process_task": "5a1e3743da3e8e9a",
    "nvflare.private.fed.client.client_runner:ClientRunner._try_send_result_once": "c3bbb2d8056e386c",
    "nvflare.private.fed.client.client_runner:ClientRunner.fetch_and_run_one_task": "82bdf8343bff4d0a",
    "nvflare.private.fed.client.client_runner:ClientRunner.handle_event": "c0c5d830168ec662",
    "nvflare.private.fed.client.communicator:Communicator.submit_update": "07fa37a830bf5217",
    "nvflare.private.privacy_manager:Scope": "b526424abfce9f23",
}
Route = tuple[str, str]
Wrapped = Callable[..., Any]
# What the engine itself sends on the auxiliary channel: that a client is there, and which task it asks about.
TOPICS = (ReservedTopic.SYNC_RUNNER, ReservedTopic.JOB_HEART_BEAT, ReservedTopic.TASK_CHECK)
# Who and where this client is, which the server knows.
PUBLIC = (
    ReservedKey.RUN_NUM, ReservedKey.IDENTITY_NAME, ReservedKey.FQSN, ReservedKey.IS_LEAF, FLContextKey.CLIENT_NAME,
    FLContextKey.CURRENT_RUN, FLContextKey.CURRENT_JOB_ID,
)  # fmt: skip
# What the engine writes into the head of a result when it sends it: a number of its own.
ROOT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CODES = {value for name, value in vars(ReturnCode).items() if name.isupper()}
# What a stream's ends tell each other, and who they are: neither has anything of the app's.
TRANSPORT: frozenset[Route] = frozenset(
    {
        (STREAM_CHANNEL, stream.STREAM_ACK_TOPIC),
        (STREAM_CHANNEL, stream.STREAM_ERROR_TOPIC),
        (CellChannel.CELLNET, CellChannelTopic.Bye),
        (_SM_CHANNEL, _SM_TOPIC),
    }
)
# Requests of this process: tasks, results, that it is there, and arrays of the server's model.
SENT = TRANSPORT | {
    (CellChannel.SERVER_COMMAND, ServerCommandNames.GET_TASK),
    (CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE),
    *((CellChannel.AUX_COMMUNICATION, topic) for topic in TOPICS),
    (CellChannel.CLIENT_MAIN, TrainingTopic.NOTIFY_JOB_STATUS),
    (OBJ_DOWNLOADER_CHANNEL, OBJ_DOWNLOADER_TOPIC),
}
# Requests of others that are answered: do a task, and end. Whether a task still runs is not among them.
ANSWERED = TRANSPORT | {
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.DO_TASK),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.END_RUN),
    (CellChannel.CLIENT_COMMAND, AdminCommandNames.ABORT),
    (CellChannel.CLIENT_COMMAND, AdminCommandNames.SHUTDOWN),
}
# Between this process and a trainer that it has started, whose cell hangs on this one.
INSIDE = (TRAINER_CHANNEL, OBJ_DOWNLOADER_CHANNEL)
# All that is left of an answer that is not on the list.
ROUTING = (
    MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC, MessageHeaderKey.FROM_CELL, MessageHeaderKey.TO_CELL,
    MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION, MessageHeaderKey.REQ_ID, MessageHeaderKey.MSG_TYPE,
    MessageHeaderKey.ROUTE, MessageHeaderKey.SECURE, MessageHeaderKey.OPTIONAL,
)  # fmt: skip
STAMP = 60.0  # seconds to which the clock in a message's head is rounded down
DONE = "_quietbit_gate"
_ABORTS: list[str] = []  # why the trainer of this process gave up, since its last task


def shut(fl_ctx: FLContext) -> bool:
    """Shut them for this process; return whether they were shut before."""
    engine, runner = fl_ctx.get_engine(), fl_ctx.get_prop(FLContextKey.RUNNER)
    before = hasattr(runner, DONE)
    _hear_aborts()
    share_batches()
    if not isinstance(engine, SimulatorClientRunManager):
        quiet_handlers()
    if not hasattr(client_runner.apply_filters, DONE):
        client_runner.apply_filters = partial(_applied, client_runner.apply_filters)
        setattr(client_runner.apply_filters, DONE, True)
    _shut_cell(engine.get_cell().core_cell)
    for executor in runner.task_router.task_table.values():
        if not hasattr(executor, DONE):
            executor.execute = partial(_watched, executor, executor.execute, [])
            setattr(executor, DONE, True)
    auxiliary, manager = engine.aux_runner, engine.fl_ctx_mgr
    if not before:
        auxiliary.send_aux_request = partial(_aux, auxiliary.send_aux_request, 1)
        auxiliary.multicast_aux_requests = partial(_aux, auxiliary.multicast_aux_requests, 0)
        runner._process_task = partial(_process, runner._process_task)
        runner.handle_event = partial(_going_on, runner.handle_event)
        engine.send_task_result = partial(_send_result, engine.send_task_result)
        setattr(runner, DONE, True)
    if not isinstance(manager.public_stickers, _Known):
        manager.public_stickers = _Known({k: v for k, v in manager.public_stickers.items() if k in PUBLIC})
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

    def __setitem__(self, key: str, value: Any) -> None:
        if key in PUBLIC and key not in self:
            super().__setitem__(key, value)


def _watched(
    executor: Any, execute: Wrapped, unfinished: list[object],
    task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Any,
) -> Any:  # fmt: skip
    """Run an executor so that its failures are results like any other, and restart it after one.

    NVFlare starts none again: all later answers would be zero, quick, and paid for. It happens within the time of the
    next task, so that when that one is fetched says nothing about this one.
    """
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


def _going_on(handle: Wrapped, event_type: str, fl_ctx: FLContext) -> None:
    """Pass on the runner's events, except that of a component which gives up: when a run ends would tell why."""
    if event_type != EventType.FATAL_SYSTEM_ERROR:
        handle(event_type, fl_ctx)
        return
    why = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
    LOGGER.error("quietbit: a component wants to end the run, which goes on with zero releases: %s", why)


def _aux(send: Wrapped, place: int, /, *arguments: Any, **named: Any) -> Any:
    """Keep the auxiliary channel for the engine's own messages; the topic is argument ``place``."""
    try:
        allowed = _is_engines(place, arguments, named)
    except BaseException:  # once more: the engine's thread must not end because of a line of ours
        allowed = _is_engines(place, arguments, named)
    return send(*arguments, **named) if allowed else {}


def _is_engines(place: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    topic = named["topic"] if "topic" in named else arguments[place]
    if topic not in TOPICS:
        LOGGER.warning("quietbit: not sent to anybody: a message on %s", topic)
        return False
    for value in (*arguments, *named.values()):
        if isinstance(value, FLContext):
            _strip(value)
    return True


def _process(process: Wrapped, task: Any, fl_ctx: FLContext) -> Shareable:
    """Process a task: whatever happens in it, its one answer comes out, at its moment.

    The runner's thread waits (`node.guard`). The task runs in a thread and a context of its own, with
    the app and all filters and components of the job in it. What is not done in time is abandoned; what
    it does later is not seen.
    """
    try:
        outbox = _new_outbox()
        work = partial(_run_task, process, task, fl_ctx)
        if not isinstance(fl_ctx.get_engine(), SimulatorClientRunManager):
            return _answered(outbox, work)
    except BaseException:  # before anything was asked or noted
        return make_reply(ReturnCode.EXECUTION_EXCEPTION)
    work(outbox)  # whose user may interrupt it
    _seal(outbox.reply)
    return outbox.reply.reply


def _answered(outbox: Outbox[_Result], work: Callable[[Outbox[_Result]], None]) -> Shareable:
    try:
        return guarded(outbox, work).reply
    except BaseException:
        return outbox.leaving.reply


def _new_outbox() -> Outbox[_Result]:
    otherwise = _Result(make_reply(ReturnCode.EXECUTION_EXCEPTION), None)
    return Outbox(otherwise, _seal, restore_interrupt=False)


class _Result(NamedTuple):
    """A reply, and the task that it answers, if one was decided about."""

    reply: Shareable
    task: Task | None


def _seal(result: _Result) -> None:
    """Remember what leaves: the engine sends it later, after events of the job's components."""
    if result.task is not None:
        result.task.leaving = deepcopy(result.reply)


def _run_task(process: Wrapped, task: Any, fl_ctx: FLContext, outbox: Outbox[_Result]) -> None:
    """Run a task in its own thread, and put its answer into the outbox."""
    context = fl_ctx.get_engine().new_context()
    context.props.update(fl_ctx.props)
    context.set_job_is_unsafe(False)  # by a component, in an earlier task: the next one is answered
    decided = threading.Event()
    decide = partial(_accept, outbox, decided)
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
    for key in (TURN, FLContextKey.TASK_ID, FLContextKey.TASK_NAME):
        fl_ctx.set_prop(key, context.get_prop(key), private=True, sticky=False)
    decision = task_of(fl_ctx)
    if decision is None or not decision.runs:
        thread.join()
        outbox.put(_Result(_written(results, decision), decision))
        return
    if outbox.moment is None:
        decide(decision)
    decision.moment.run(thread.join)
    outbox.put(_Result(_written(results, decision), decision))
    fl_ctx.set_job_is_unsafe(False)


def _accept(outbox: Outbox[_Result], decided: threading.Event, decision: Task) -> None:
    """Let the zero release leave at its moment, unless another is ready; then the app may begin."""
    if decision.runs:
        reply = _reply_of(decision, decision.zero())
        outbox.accept(decision.moment, _Result(reply, decision))
    decided.set()


def _written(results: list[Any], decision: Task | None) -> Shareable:
    """Write a result anew: the answer of its task, or else a return code and no content."""
    if decision is not None:
        return _reply_of(decision, decision.sealed())
    result = results[0] if results else None
    code = ReturnCode.EXECUTION_EXCEPTION
    if isinstance(result, Shareable):
        code = result.get_return_code()
        if code not in CODES or set(result) != {ReservedHeaderKey.HEADERS}:
            LOGGER.error("quietbit: a result that is not the release of its task is not sent.")
            code = ReturnCode.TASK_RESULT_FILTER_ERROR
    reply = make_reply(code)
    if isinstance(result, Shareable):
        for key in (ReservedHeaderKey.TASK_NAME, ReservedHeaderKey.TASK_ID):
            if result.get_header(key) is not None:
                reply.set_header(key, result.get_header(key))
    return reply


def _reply_of(decision: Task, content: dict[str, Any]) -> Shareable:
    reply = make_reply(ReturnCode.OK, deepcopy(dict(decision.heads)))
    reply.update(content)
    return reply


def _send_result(send: Wrapped, result: Shareable, fl_ctx: FLContext, *arguments: Any, **named: Any) -> Any:
    """Send the result of a task as it was sealed, whatever a component did to it since."""
    try:
        reply = _sealed(result, fl_ctx)
    except BaseException:
        reply = _sealed(result, fl_ctx)
    return send(reply, fl_ctx, *arguments, **named)


def _sealed(result: Shareable, fl_ctx: FLContext) -> Shareable:
    _strip(fl_ctx)
    decision = task_of(fl_ctx)
    leaving = None if decision is None else decision.leaving
    reply = _written([result], None) if leaving is None else deepcopy(leaving)
    root = result.get_header(ReservedHeaderKey.MSG_ROOT_ID)
    if isinstance(root, str) and ROOT.fullmatch(root):  # as the runner has just drawn it
        reply.set_header(ReservedHeaderKey.MSG_ROOT_ID, root)
    return reply


def _applied(apply: Wrapped, *arguments: Any, **named: Any) -> Any:
    """Apply a task's filters; one that calls the job unsafe fails like any other.

    NVFlare would end the run, and when a run ends would tell the server why.
    """
    try:
        return apply(*arguments, **named)
    except UnsafeJobError as error:
        LOGGER.error("quietbit: a filter calls the job unsafe; zero is released.", exc_info=error)
        raise ContentBlockedException("quietbit: a filter failed.") from None


def _shut_cell(core: Any) -> None:
    """Shut every route of a job's cell but those above, once; raise where the cell cannot be watched."""
    if hasattr(core, DONE):
        return
    wire, send, process, name = core.communicator, core._send_to_endpoint, core._process_request, core.my_info.fqcn
    core._forward, core._add_adhoc_connector, core._create_external_listener  # noqa: B018  (raise where one is missing)
    wire.send = partial(_stamp, wire.send)
    core._send_to_endpoint = partial(_send, send, name)
    core._process_request = partial(_answer, process, name)
    core._forward = core._add_adhoc_connector = core._create_external_listener = _nothing
    setattr(core, DONE, True)


def _nothing(*arguments: Any, **named: Any) -> None:
    """Neither carry others' messages nor open ways past the server."""


def _route(message: Message) -> tuple[Route, bool]:
    """Return the route of a message, and whether it answers a request."""
    route = message.get_header(MessageHeaderKey.CHANNEL, ""), message.get_header(MessageHeaderKey.TOPIC, "")
    answers = message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ
    if route == (STREAM_CHANNEL, stream.STREAM_DATA_TOPIC):
        route = message.get_header(StreamHeaderKey.CHANNEL, ""), message.get_header(StreamHeaderKey.TOPIC, "")
        answers = route[0] == CellChannel.RETURN_ONLY
        if answers:  # its topic is the route of the request
            channel, _, topic = str(route[1]).partition(":")
            route = channel, topic
    return route, answers


def _send(send: Wrapped, own: str, to_endpoint: Any, message: Message) -> Any:
    """Send a message of this process that is on the lists; of an answer that is not, its routing and an error alone."""
    route, answers = _route(message)
    mine = message.get_header(MessageHeaderKey.ORIGIN) == own
    names = to_endpoint.name, message.get_header(MessageHeaderKey.DESTINATION)
    if mine and (route in (ANSWERED if answers else SENT) or _inside(own, route, *names)):
        for key in (StreamHeaderKey.ERROR_MSG, StreamHeaderKey.ERROR_TYPE):
            if key in message.headers:
                message.set_header(key, "quietbit: not said")
        return send(to_endpoint, message)
    LOGGER.warning("quietbit: not sent to anybody: a message on %s", route)
    if not mine or not answers or message.get_header(MessageHeaderKey.CHANNEL) == STREAM_CHANNEL:
        return CellCode.FILTER_ERROR
    blank = Message({key: value for key, value in message.headers.items() if key in ROUTING})
    blank.set_header(MessageHeaderKey.RETURN_CODE, CellCode.PROCESS_EXCEPTION)
    return send(to_endpoint, blank)


def _answer(process: Wrapped, own: str, origin: str, message: Message) -> Any:
    """Let no callback run for a request that is not on the list."""
    route, answers = _route(message)
    endpoint = message.get_prop(MessagePropKey.ENDPOINT)
    if answers or route in ANSWERED or _inside(own, route, origin, getattr(endpoint, "name", None)):
        return process(origin, message)
    LOGGER.warning("quietbit: not answered: a request of %s on %s", origin, route)
    streamed = message.get_header(MessageHeaderKey.CHANNEL) == STREAM_CHANNEL
    return None if streamed else cellnet.make_reply(CellCode.PROCESS_EXCEPTION)


def _inside(own: str, route: Route, *names: Any) -> bool:
    """Whether a message stays between this process and its own trainer."""
    return route[0] in INSIDE and all(isinstance(name, str) and name.startswith(f"{own}.") for name in names)


def _stamp(send: Wrapped, endpoint: Any, app_id: int, message: Message) -> Any:
    """Round the clocks of a message that is sent: a server must not learn more than when it arrives."""
    sent, route = MessageHeaderKey.SEND_TIME, message.get_header(MessageHeaderKey.ROUTE)
    if message.get_header(sent) is not None:
        message.set_header(sent, message.get_header(sent) // STAMP * STAMP)
    if route:
        message.set_header(MessageHeaderKey.ROUTE, [(name, moment // STAMP * STAMP) for name, moment in route])
    return send(endpoint, app_id, message)
