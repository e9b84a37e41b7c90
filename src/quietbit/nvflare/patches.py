"""What quietbit changes in NVFlare's client process, so that nothing leaves beside a release.

Idea     NVFlare's filters see the results of tasks, and neither failures nor anything else that a
         process sends. So the filter, before the first task, puts itself where the rest would
         leave. Last comes the cell, through which all messages of the process pass: what is not on
         its lists of routes is not sent, and not answered with anything but a constant.
Symbols  a route: channel and topic of a message, or those of the stream that it is a part of.

| replaced | so that |
|---|---|
| `ClientRunner._process_task`, `Executor.execute` | one answer leaves at its moment |
| `ClientRunner.handle_event` | a component that gives up does not end the run |
| `client_runner.apply_filters` | neither does a filter that calls the job unsafe |
| `ClientRunManager.send_task_result` | the result is sent as it was sealed |
| `AuxRunner.send_aux_request`, `multicast_aux_requests` | the engine alone sends there |
| `FLContextManager.public_stickers` | contexts, which travel with messages, say only who we are |
| `Communicator.send` | clocks in heads of messages are rounded |
| `CoreCell._send_to_endpoint`, `_process_request` | routes that are not listed are shut |
| `CoreCell._forward`, `_add_adhoc_connector` | nothing of others is carried, no way is opened |
| `CoreCell._create_external_listener` | likewise |

None of these names is public. Where one is missing `shut` raises, and nothing is released.
`CHECKED` has digests of their source in the version of NVFlare that they were read in: a test fails
when one differs. Then read it again, see that the table still holds, and write down the new digest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any, final

from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import (
    AdminCommandNames,
    FLContextKey,
    ReservedKey,
    ReservedTopic,
    ServerCommandNames,
)
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.client.cell.defs import CHANNEL as TRAINER_CHANNEL
from nvflare.fuel.f3.cellnet import utils as cellnet
from nvflare.fuel.f3.cellnet.core_cell import _SM_CHANNEL, _SM_TOPIC
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
)
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import stream_const as stream
from nvflare.fuel.f3.streaming.download_service import OBJ_DOWNLOADER_CHANNEL, OBJ_DOWNLOADER_TOPIC
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, StreamHeaderKey
from nvflare.private.defs import TrainingTopic
from nvflare.private.fed.client import client_runner
from nvflare.private.fed.simulator.simulator_app_runner import SimulatorClientRunManager

from quietbit.errors import one_line
from quietbit.federation.batch import share_batches
from quietbit.node.guard import quiet_handlers
from quietbit.nvflare.processing import execute_task, hear_aborts, process_task, sealed_result

__all__ = ["ANSWERED", "CHECKED", "SENT", "VERSION", "shut"]

LOGGER = logging.getLogger(__name__)
VERSION = "2.9.0"  # of NVFlare, in which these were read; a test fails when one of them changes
RUNNER = "nvflare.private.fed.client.client_runner:ClientRunner"
MANAGER = "nvflare.private.fed.client.client_run_manager:ClientRunManager"
CELL = "nvflare.fuel.f3.cellnet.core_cell:CoreCell"
CHECKED = {
    "nvflare.apis.fl_context:FLContextManager": "ed1339e109fd5087",
    "nvflare.apis.utils.task_utils:apply_filters": "c9465a3abac919dc",
    "nvflare.apis.utils.task_utils:get_filters": "dd8e07977e461fea",
    "nvflare.app_common.logging.constants:is_log_streaming_allowed": "bd8c7e54b93f4673",
    f"{CELL}._add_adhoc_connector": "c4224c8a179ee1fe",
    f"{CELL}._create_external_listener": "68894a3a1f3c4bdf",
    f"{CELL}._forward": "4bf0172fd346666c",
    f"{CELL}._process_request": "9fd9dacabcf64aa9",
    f"{CELL}._send_to_endpoint": "e3f1fac80ee474ca",
    "nvflare.fuel.f3.communicator:Communicator.send": "4cb94b1a5f5bee76",
    "nvflare.private.aux_runner:AuxRunner.multicast_aux_requests": "9121db381b157545",
    "nvflare.private.aux_runner:AuxRunner.send_aux_request": "dc51af56f320c4ae",
    f"{MANAGER}.send_task_result": "693cc4220c28b839",
    f"{RUNNER}._do_process_task": "200a1e56e8a2af3f",
    f"{RUNNER}._do_task": "29888f10e0ed753b",
    f"{RUNNER}._handle_do_task": "7be2c0ce4c917a83",
    f"{RUNNER}._process_task": "5a1e3743da3e8e9a",
    f"{RUNNER}._try_send_result_once": "c3bbb2d8056e386c",
    f"{RUNNER}.fetch_and_run_one_task": "82bdf8343bff4d0a",
    f"{RUNNER}.handle_event": "c0c5d830168ec662",
    "nvflare.private.fed.client.communicator:Communicator.submit_update": "07fa37a830bf5217",
    "nvflare.private.privacy_manager:Scope": "b526424abfce9f23",
}
Route = tuple[str, str]
Wrapped = Callable[..., Any]
# What the engine itself sends on the auxiliary channel: that a client is there, and which task it
# asks about.
TOPICS = (ReservedTopic.SYNC_RUNNER, ReservedTopic.JOB_HEART_BEAT, ReservedTopic.TASK_CHECK)
# Who and where this client is, which the server knows.
PUBLIC = (
    ReservedKey.RUN_NUM,
    ReservedKey.IDENTITY_NAME,
    ReservedKey.FQSN,
    ReservedKey.IS_LEAF,
    FLContextKey.CLIENT_NAME,
    FLContextKey.CURRENT_RUN,
    FLContextKey.CURRENT_JOB_ID,
)
# What the engine writes into the head of a result when it sends it: a number of its own.
ROOT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
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
# Requests of others that are answered: do a task, and end. Whether a task still runs is not among
# them.
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
    MessageHeaderKey.CHANNEL,
    MessageHeaderKey.TOPIC,
    MessageHeaderKey.FROM_CELL,
    MessageHeaderKey.TO_CELL,
    MessageHeaderKey.ORIGIN,
    MessageHeaderKey.DESTINATION,
    MessageHeaderKey.REQ_ID,
    MessageHeaderKey.MSG_TYPE,
    MessageHeaderKey.ROUTE,
    MessageHeaderKey.SECURE,
    MessageHeaderKey.OPTIONAL,
)
STAMP = 60.0  # seconds to which the clock in a message's head is rounded down
SHUT = ("_forward", "_add_adhoc_connector", "_create_external_listener")  # of a cell
DONE = "_quietbit_gate"  # set on what was changed


def shut(fl_ctx: FLContext) -> bool:
    """Shut the other ways out of this process; return whether they were shut before."""
    engine = fl_ctx.get_engine()
    runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    before = hasattr(runner, DONE)
    hear_aborts()
    share_batches()
    if not isinstance(engine, SimulatorClientRunManager):
        quiet_handlers()
    if not hasattr(client_runner.apply_filters, DONE):
        client_runner.apply_filters = partial(_apply_filters, client_runner.apply_filters)
        setattr(client_runner.apply_filters, DONE, True)
    _shut_cell(engine.get_cell().core_cell)
    for executor in runner.task_router.task_table.values():
        if not hasattr(executor, DONE):
            executor.execute = partial(execute_task, executor, executor.execute, [])
            setattr(executor, DONE, True)
    auxiliary = engine.aux_runner  # raises where it is missing, each time
    if not before:
        auxiliary.send_aux_request = partial(_aux, auxiliary.send_aux_request, 1)
        auxiliary.multicast_aux_requests = partial(_aux, auxiliary.multicast_aux_requests, 0)
        runner._process_task = partial(process_task, runner._process_task)
        runner.handle_event = partial(_handle_event, runner.handle_event)
        engine.send_task_result = partial(_send_task_result, engine.send_task_result)
        setattr(runner, DONE, True)
    manager = engine.fl_ctx_mgr
    if not isinstance(manager.public_stickers, _PublicProps):
        stickers = manager.public_stickers.items()
        known = {key: value for key, value in stickers if key in PUBLIC}
        manager.public_stickers = _PublicProps(known)
    return before


@final
class _PublicProps(dict[str, Any]):
    """Public properties of all contexts to come; no other is taken in, and none is changed."""

    def __setitem__(self, key: str, value: Any) -> None:
        if key in PUBLIC and key not in self:
            super().__setitem__(key, value)


def _strip(fl_ctx: FLContext) -> None:
    """Take every public property out of a context that does not only say who this client is."""
    for key in fl_ctx.get_all_public_props():
        if key not in PUBLIC:
            LOGGER.info("quietbit: not sent to the server: property %s", one_line(key))
            fl_ctx.remove_prop(key, force_removal=True)


def _handle_event(handle: Wrapped, event_type: str, fl_ctx: FLContext) -> None:
    """Pass on the runner's events, except that of a component which gives up.

    When a run ends would tell the server why.
    """
    if event_type != EventType.FATAL_SYSTEM_ERROR:
        handle(event_type, fl_ctx)
        return
    reason = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
    LOGGER.error(
        "quietbit: a component wants to end the run, which goes on with zero: %s", one_line(reason)
    )


def _apply_filters(apply: Wrapped, *arguments: Any, **named: Any) -> Any:
    """Apply a task's filters; one that calls the job unsafe fails like any other."""
    try:
        return apply(*arguments, **named)
    except UnsafeJobError as error:
        LOGGER.error("quietbit: a filter calls the job unsafe; zero is released.", exc_info=error)
        raise ContentBlockedException("quietbit: a filter failed.") from None


def _send_task_result(
    send: Wrapped, result: Shareable, fl_ctx: FLContext, *arguments: Any, **named: Any
) -> Any:
    """Send the result of a task as it was sealed, whatever a component did to it since."""
    try:
        reply = _with_root(result, fl_ctx)
    except BaseException:  # once more: a line of ours must not end the engine's thread
        reply = _with_root(result, fl_ctx)
    return send(reply, fl_ctx, *arguments, **named)


def _with_root(result: Shareable, fl_ctx: FLContext) -> Shareable:
    """Return the sealed result with the number that the runner has just drawn for it."""
    _strip(fl_ctx)
    reply = sealed_result(result, fl_ctx)
    root = result.get_header(ReservedHeaderKey.MSG_ROOT_ID)
    if isinstance(root, str) and ROOT.fullmatch(root):
        reply.set_header(ReservedHeaderKey.MSG_ROOT_ID, root)
    return reply


def _aux(send: Wrapped, place: int, /, *arguments: Any, **named: Any) -> Any:
    """Keep the auxiliary channel for the engine's messages; the topic is argument ``place``."""
    try:
        allowed = _is_engines(place, arguments, named)
    except BaseException:  # once more: a line of ours must not end the engine's thread
        allowed = _is_engines(place, arguments, named)
    return send(*arguments, **named) if allowed else {}


def _is_engines(place: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    topic = named["topic"] if "topic" in named else arguments[place]
    if topic not in TOPICS:
        LOGGER.warning("quietbit: not sent to anybody: a message on %s", one_line(topic))
        return False
    for value in (*arguments, *named.values()):
        if isinstance(value, FLContext):
            _strip(value)
    return True


def _shut_cell(core: Any) -> None:
    """Shut every route of a job's cell but those above, once; raise where it cannot be watched."""
    if hasattr(core, DONE):
        return
    wire = core.communicator
    send = core._send_to_endpoint
    process = core._process_request
    name = core.my_info.fqcn
    for shut_name in SHUT:
        getattr(core, shut_name)  # raises where it is missing
    wire.send = partial(_stamp, wire.send)
    core._send_to_endpoint = partial(_send, send, name)
    core._process_request = partial(_answer, process, name)
    for shut_name in SHUT:
        setattr(core, shut_name, _nothing)
    setattr(core, DONE, True)


def _nothing(*arguments: Any, **named: Any) -> None:
    """Neither carry others' messages nor open ways past the server."""


def _route(message: Message) -> tuple[Route, bool]:
    """Return the route of a message, and whether it answers a request."""
    channel = message.get_header(MessageHeaderKey.CHANNEL, "")
    topic = message.get_header(MessageHeaderKey.TOPIC, "")
    answers = message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ
    if (channel, topic) == (STREAM_CHANNEL, stream.STREAM_DATA_TOPIC):
        channel = message.get_header(StreamHeaderKey.CHANNEL, "")
        topic = message.get_header(StreamHeaderKey.TOPIC, "")
        answers = channel == CellChannel.RETURN_ONLY
        if answers:  # its topic is the route of the request
            channel, _, topic = str(topic).partition(":")
    return (channel, topic), answers


def _send(send: Wrapped, cell: str, to_endpoint: Any, message: Message) -> Any:
    """Send a message of this process that is on the lists; else, of an answer, an error alone."""
    route, answers = _route(message)
    from_here = message.get_header(MessageHeaderKey.ORIGIN) == cell
    destination = message.get_header(MessageHeaderKey.DESTINATION)
    listed = route in (ANSWERED if answers else SENT)
    if from_here and (listed or _inside(cell, route, to_endpoint.name, destination)):
        for key in (StreamHeaderKey.ERROR_MSG, StreamHeaderKey.ERROR_TYPE):
            if key in message.headers:
                message.set_header(key, "quietbit: not said")
        return send(to_endpoint, message)
    LOGGER.warning("quietbit: not sent to anybody: a message on %s", one_line(route))
    streamed = message.get_header(MessageHeaderKey.CHANNEL) == STREAM_CHANNEL
    if not from_here or not answers or streamed:
        return CellCode.FILTER_ERROR
    blank = Message({key: value for key, value in message.headers.items() if key in ROUTING})
    blank.set_header(MessageHeaderKey.RETURN_CODE, CellCode.PROCESS_EXCEPTION)
    return send(to_endpoint, blank)


def _answer(process: Wrapped, cell: str, origin: str, message: Message) -> Any:
    """Let no callback run for a request that is not on the list."""
    route, answers = _route(message)
    endpoint = message.get_prop(MessagePropKey.ENDPOINT)
    inside = _inside(cell, route, origin, getattr(endpoint, "name", None))
    if answers or route in ANSWERED or inside:
        return process(origin, message)
    asked = f"a request of {one_line(origin)} on {one_line(route)}"
    LOGGER.warning("quietbit: not answered: %s", asked)
    if message.get_header(MessageHeaderKey.CHANNEL) == STREAM_CHANNEL:
        return None
    return cellnet.make_reply(CellCode.PROCESS_EXCEPTION)


def _inside(cell: str, route: Route, *names: Any) -> bool:
    """Return whether a message stays between this process and its own trainer."""
    if route[0] not in INSIDE:
        return False
    return all(isinstance(name, str) and name.startswith(f"{cell}.") for name in names)


def _stamp(send: Wrapped, endpoint: Any, app_id: int, message: Message) -> Any:
    """Round the clocks of a message: a server must not learn more than when it arrives."""
    sent = message.get_header(MessageHeaderKey.SEND_TIME)
    if sent is not None:
        message.set_header(MessageHeaderKey.SEND_TIME, _rounded(sent))
    route = message.get_header(MessageHeaderKey.ROUTE)
    if route:
        hops = [(name, _rounded(moment)) for name, moment in route]
        message.set_header(MessageHeaderKey.ROUTE, hops)
    return send(endpoint, app_id, message)


def _rounded(moment: float) -> float:
    return moment // STAMP * STAMP
