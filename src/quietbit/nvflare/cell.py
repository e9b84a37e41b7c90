"""The cell of a job's process: the channels that tasks and releases need stay open, all others are shut.

Idea     everything that a process of NVFlare sends passes one method of its cell, and everything that it is asked
         another. Both get a list of names. What is not on the list is not sent, not answered with anything but a
         constant, and not even looked at: an honest script's traceback waits in the process for `show_errors`,
         which anybody who can reach the cell may ask for, and so do times, sizes and threads (`process_info`,
         `msg_stats`, pools), logs, components' own messages and the cell of a trainer in a process of its own.
Symbols  a route: channel and topic of a message, those of the stream that it is a part of where it is one.

Leans on names of NVFlare 2.9 that are not public: where one is missing `shut_cell` raises, and nothing is released.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import AdminCommandNames, ReservedTopic, ServerCommandNames
from nvflare.client.cell.defs import CHANNEL as TRAINER_CHANNEL
from nvflare.fuel.f3.cellnet.core_cell import _SM_CHANNEL, _SM_TOPIC
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.download_service import OBJ_DOWNLOADER_CHANNEL, OBJ_DOWNLOADER_TOPIC
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.private.defs import TrainingTopic

__all__ = ["ANSWERED", "SENT", "shut_cell"]

LOGGER = logging.getLogger(__name__)
Route = tuple[str, str]
# What a stream's ends tell each other, and who they are: neither has anything of the app's.
TRANSPORT: frozenset[Route] = frozenset(
    {
        (STREAM_CHANNEL, STREAM_ACK_TOPIC),
        (STREAM_CHANNEL, STREAM_ERROR_TOPIC),
        (CellChannel.CELLNET, CellChannelTopic.Bye),
        (_SM_CHANNEL, _SM_TOPIC),
    }
)
# Requests of this process: tasks, results, that it is there, and arrays of the server's model.
SENT = TRANSPORT | {
    (CellChannel.SERVER_COMMAND, ServerCommandNames.GET_TASK),
    (CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.SYNC_RUNNER),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.JOB_HEART_BEAT),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.TASK_CHECK),
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
DONE = "_quietbit_cell"


def shut_cell(cell: Any) -> None:
    """Shut every channel of a job's cell but those above, once; raise where the cell cannot be watched."""
    core = cell.core_cell
    if hasattr(core, DONE):
        return
    send, process, name = core._send_to_endpoint, core._process_request, core.my_info.fqcn
    stamped = _stamped(core.communicator.send)
    core._forward, core._add_adhoc_connector, core._create_external_listener  # noqa: B018  (raise where one is missing)
    core.communicator.send = stamped
    core._send_to_endpoint = _sending(send, name)
    core._process_request = _answering(process, name)
    core._forward = core._add_adhoc_connector = core._create_external_listener = _nothing
    setattr(core, DONE, True)


def _nothing(*arguments: Any, **named: Any) -> None:
    """Neither carry others' messages nor open ways past the server."""


def _route(message: Message) -> tuple[Route, bool]:
    """Return the route of a message, and whether it answers a request."""
    route = message.get_header(MessageHeaderKey.CHANNEL, ""), message.get_header(MessageHeaderKey.TOPIC, "")
    answers = message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ
    if route == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        route = message.get_header(StreamHeaderKey.CHANNEL, ""), message.get_header(StreamHeaderKey.TOPIC, "")
        answers = route[0] == CellChannel.RETURN_ONLY
        if answers:  # its topic is the route of the request
            channel, _, topic = str(route[1]).partition(":")
            route = channel, topic
    return route, answers


def _sending(send: Callable[..., Any], own: str) -> Callable[..., Any]:
    """Wrap the one method that messages leave by."""

    def sending(to_endpoint: Any, message: Message) -> Any:
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
            return ReturnCode.FILTER_ERROR
        blank = Message({key: value for key, value in message.headers.items() if key in ROUTING})
        blank.set_header(MessageHeaderKey.RETURN_CODE, ReturnCode.PROCESS_EXCEPTION)
        return send(to_endpoint, blank)

    return sending


def _answering(process: Callable[..., Any], own: str) -> Callable[..., Any]:
    """Wrap the one method that requests come to, so that no callback runs for a request that is not on the list."""

    def answering(origin: str, message: Message) -> Any:
        route, answers = _route(message)
        endpoint = message.get_prop(MessagePropKey.ENDPOINT)
        if answers or route in ANSWERED or _inside(own, route, origin, getattr(endpoint, "name", None)):
            return process(origin, message)
        LOGGER.warning("quietbit: not answered: a request of %s on %s", origin, route)
        streamed = message.get_header(MessageHeaderKey.CHANNEL) == STREAM_CHANNEL
        return None if streamed else make_reply(ReturnCode.PROCESS_EXCEPTION)

    return answering


def _inside(own: str, route: Route, *names: Any) -> bool:
    """Whether a message stays between this process and its own trainer."""
    return route[0] in INSIDE and all(isinstance(name, str) and name.startswith(f"{own}.") for name in names)


def _stamped(send: Callable[..., Any]) -> Callable[..., Any]:
    """Round the clocks of messages that are sent: a server must not learn more than when they arrive."""

    def stamped(endpoint: Any, app_id: int, message: Message) -> Any:
        sent, route = MessageHeaderKey.SEND_TIME, message.get_header(MessageHeaderKey.ROUTE)
        if message.get_header(sent) is not None:
            message.set_header(sent, _rounded(message.get_header(sent)))
        if route:
            message.set_header(MessageHeaderKey.ROUTE, [(name, _rounded(moment)) for name, moment in route])
        return send(endpoint, app_id, message)

    return stamped


def _rounded(moment: float) -> float:
    return STAMP * math.floor(moment / STAMP)
