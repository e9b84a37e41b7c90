"""The cell of a job's process, NVFlare's own with its agents: which requests it answers, and with
what.
"""

import threading

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.filter import Filter
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import AdminCommandNames, ReservedTopic
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.utils import fobs

from engines.nvflare.kit import (
    JOB,
    NEARLY_EXACT,
    Server,
    Site,
    content,
    flat,
    owned,
    script_site,
    trained,
)
from quietbit.nvflare.patches import ANSWERED, SENT

PATIENT = "glucose 417.25"


FAILS = f"""
import nvflare.client as flare

flare.init()
while flare.is_running():
    flare.receive()
    raise ValueError("cannot train on {PATIENT}")
"""


def failed_site(tmp_path, **options) -> Site:
    """A site whose honest script has failed on a patient's value in two rounds."""
    site, server = script_site(tmp_path, FAILS, **options), Server()
    for number in range(2):
        site.does(server.asks(number=number))
    site.starts("_end_run")
    return site


def registered(site: Site) -> list[tuple[str, str]]:
    """Every channel and topic that anything in the process answers on, and each command of the
    command channel.
    """
    cell = site.engine.cell
    keys = {*cell.core_cell.req_reg.reg, *cell.byte_receiver.registry.reg}
    routes = [tuple(key.rsplit(":", 1)) for key in sorted(keys)]
    commands = [name for key, name in vars(AdminCommandNames).items() if key.isupper()]
    topics = {
        CellChannel.CLIENT_COMMAND: commands,
        CellChannel.AUX_COMMUNICATION: ["ask", "fed.event", "RM.request"],
    }
    return [
        (channel, one)
        for channel, topic in routes
        for one in (topics.get(channel, ["x"]) if topic == "*" else [topic])
    ]


def body(message) -> bytes:
    parts = message.payload if isinstance(message.payload, list) else [message.payload or b""]
    return b"".join(bytes(part) for part in parts)


def said(messages) -> bytes:
    return b"".join(body(message) + fobs.dumps(message.headers) for message in messages)


def heads(messages) -> list[dict]:
    """Headers that do not name the cell or the minute."""
    own = {
        MessageHeaderKey.FROM_CELL,
        MessageHeaderKey.ORIGIN,
        MessageHeaderKey.ROUTE,
        MessageHeaderKey.SEND_TIME,
    }
    return [
        {key: value for key, value in one.headers.items() if key not in own} for one in messages
    ]


dying = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # a trainer's thread


@dying
def test_a_traceback_leaves_by_show_errors_where_no_filter_stands(tmp_path):
    """The attack, against NVFlare as it is: the test below can fail."""
    site = failed_site(tmp_path, filters=[None, None])
    replies = site.asked(CellChannel.CLIENT_COMMAND, AdminCommandNames.SHOW_ERRORS)
    assert PATIENT.encode() in said(replies)
    threads = site.asked("_net_manager", "process_info")
    assert threading.main_thread().name.encode() in said(threads)


@dying
def test_no_channel_of_the_job_answers_with_anything_but_a_constant(tmp_path):
    """Every channel that is registered in the process, of a site whose script failed and of one
    without a run.
    """
    quiet, loud = Site(trained()), failed_site(tmp_path)
    routes = [route for route in registered(loud) if route not in ANSWERED]
    assert len(routes) > 50
    assert {"show_errors", "show_stats", "process_info", "reset_errors", "configure_job_log"} <= {
        t for _, t in routes
    }
    for channel, topic in routes:
        first, second = (one.asked(channel, topic) for one in (quiet, loud))
        for reply in (*first, *second):
            assert not body(reply), (channel, topic)
            assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.PROCESS_EXCEPTION
            assert MessageHeaderKey.ERROR not in reply.headers
        assert heads(first) == heads(second), (channel, topic)
        assert PATIENT.encode() not in said(second)


def test_what_is_not_answered_is_not_done():
    site, called = Site(trained(), started=False), []
    site.engine.register_aux_message_handler(
        "ask", lambda topic, request, fl_ctx: called.append(topic) or Shareable()
    )
    request = Shareable()
    request.set_peer_props({"__run_num__": JOB})
    assert site.asked(CellChannel.AUX_COMMUNICATION, "ask", request)
    assert called == ["ask"]
    site.starts()
    site.asked(CellChannel.AUX_COMMUNICATION, "ask", request)
    site.asked(
        STREAM_CHANNEL,
        STREAM_DATA_TOPIC,
        fobs.dumps(request),
        **{StreamHeaderKey.CHANNEL: CellChannel.AUX_COMMUNICATION, StreamHeaderKey.TOPIC: "ask"},
    )
    assert called == ["ask"]


def test_a_run_can_still_be_ended_and_a_task_pushed():
    site = Site(trained())
    task = Server().asks()
    task.set_peer_props({"__run_num__": JOB, "__identity_name__": "server"})
    (reply,) = site.asked(CellChannel.AUX_COMMUNICATION, ReservedTopic.DO_TASK, task)
    assert set(content(fobs.loads(body(reply)))["quietbit"]) == {"release"}
    assert not site.runner.run_abort_signal.triggered
    (reply,) = site.asked(CellChannel.CLIENT_COMMAND, AdminCommandNames.ABORT)
    assert site.runner.run_abort_signal.triggered
    assert not body(reply)


def sent(site, channel, topic, payload=b"x", target="server", **headers):
    """What reaches the wire when something in the process sends a message."""
    core, before = site.engine.cell.core_cell, len(site.engine.on_the_wire)
    core.running = True
    core.agents["server"] = core.agents[f"{site.name}"] = None
    core._find_endpoint = lambda name, message: ("", Endpoint(name))
    core.fire_and_forget(channel, topic, target, Message(dict(headers), payload))
    return site.engine.on_the_wire[before:]


@pytest.mark.parametrize(
    ("channel", "topic"),
    [
        (CellChannel.AUX_COMMUNICATION, "fed.event"),
        (CellChannel.AUX_COMMUNICATION, "stream"),
        (CellChannel.SERVER_MAIN, "report_job_failure"),
        (CellChannel.CELLNET, "bulk"),
        (CellChannel.CLIENT_COMMAND, "show_errors"),
        ("log_streaming", "live_log"),
        ("metrics", "log"),
        ("client_api", "result_ready"),
        ("anything", "get_task"),
    ],
)
def test_nothing_is_sent_on_other_channels(channel, topic):
    site = Site(trained(), started=False)
    assert sent(site, channel, topic)  # the test can fail
    site.starts()
    assert not sent(site, channel, topic)
    streamed = {StreamHeaderKey.CHANNEL: channel, StreamHeaderKey.TOPIC: topic}
    assert not sent(site, STREAM_CHANNEL, STREAM_DATA_TOPIC, **streamed)
    for route in SENT:
        assert sent(site, *route)


def test_a_trainer_in_a_process_of_its_own_reaches_the_job_and_nobody_else():
    site = Site(trained())
    own = site.engine.cell.get_fqcn()
    trainer = f"{own}.trainer_1"
    assert sent(site, "client_api", "task_ready", target=trainer)
    assert not sent(site, "client_api", "task_ready", target=f"{own}x")
    assert not sent(site, CellChannel.CLIENT_COMMAND, "show_errors", target=trainer)
    assert not site.asked("client_api", "result_ready", origin=trainer, via="server", payload=None)[
        0
    ].payload
    # What the trainer would say to others, and others to it, is not carried.
    before = len(site.engine.on_the_wire)
    for origin, target, via in ((trainer, "server", trainer), ("server", trainer, "server")):
        head = {MessageHeaderKey.DESTINATION: target}
        site.asked("_net_manager", "process_info", origin=origin, via=via, **head)
    assert len(site.engine.on_the_wire) == before


def test_the_clock_in_a_messages_head_is_rounded():
    site = Site(trained())
    (message,) = sent(site, CellChannel.SERVER_COMMAND, "get_task")
    moments = [
        message.get_header(MessageHeaderKey.SEND_TIME),
        *(m for _, m in message.get_header(MessageHeaderKey.ROUTE)),
    ]
    assert len(moments) == 2
    assert all(moment % 60 == 0 for moment in moments)


CELL = ("_send_to_endpoint", "_process_request", "_forward", "communicator", "my_info")


@pytest.mark.parametrize("name", ["aux_runner", *CELL])
def test_an_engine_or_a_cell_that_cannot_be_watched_gets_nothing(name):
    site = Site(trained(), started=False)
    watched = site.engine.cell.core_cell if name in CELL else site.engine

    class Odd(type(watched)):
        def __getattribute__(self, key):
            if key == name:
                raise AttributeError(key)
            return super().__getattribute__(key)

    watched.__class__ = Odd
    site.starts()
    answered = {"server": make_reply("OK")}
    site.engine.send_aux_request = lambda **sent: answered  # NVFlare's own, before a result
    reply = site.does(Server().asks())
    assert content(reply) == {}
    assert reply.get_return_code() != "OK"
    assert site.app.calls == 0


FAILS_ONCE = """
import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if model.current_round == 0:
        raise FloatingPointError("the loss is not a number")
    params = {name: value + 0.05 for name, value in model.params.items()}
    flare.send(flare.FLModel(params=params, params_type=flare.ParamsType.FULL))
"""


def unsafe(task_name, shareable, fl_ctx):
    """A component that calls the job unsafe, as one may that has looked at the data."""
    fl_ctx.set_job_is_unsafe()
    return trained()(task_name, shareable, fl_ctx)


def panics(task_name, shareable, fl_ctx):
    """A component that gives up."""
    FLComponent().system_panic(f"cannot load {PATIENT}", fl_ctx)
    raise RuntimeError


@pytest.mark.parametrize(
    ("app", "chain"),
    [(panics, None), (unsafe, None), (trained(), "data"), (trained(), "result")],
)
def test_whoever_gives_up_or_calls_the_job_unsafe_does_not_end_the_run(tmp_path, app, chain):
    """NVFlare ends it, and when a run ends would tell the server what somebody saw in the data."""
    site, server = Site(app, properties=owned(tmp_path)), Server()
    site.engine.add_handler(site.runner)
    if chain == "data":
        site.runner.task_data_filters["train/in"].append(Unsafe())
    elif chain == "result":
        site.runner.task_result_filters["train/out"].insert(0, Unsafe())
    for number in range(2):
        reply = site.does(server.asks(number=number))
        assert reply.get_return_code() == "OK"
        assert set(content(reply)["quietbit"]) == {"release"}
    assert not site.runner.run_abort_signal.triggered
    assert not site.engine.new_context().is_job_unsafe()


@dying
def test_a_trainer_that_failed_is_started_again(tmp_path):
    """NVFlare starts none again: every later round was zero, quick, and paid for."""
    site, server = script_site(tmp_path, FAILS_ONCE), Server(NEARLY_EXACT)
    means = []
    for number in range(3):
        seen = server.takes(site.does(server.asks(number=number)), number=number)["DXO"]
        means.append(flat(seen["data"]).mean())
    site.starts("_end_run")
    # Noise of 0.02 in each of 42 places: 0.025 is 8 deviations of the mean, a false alarm below
    # 1e-14.
    np.testing.assert_allclose(means, [0.0, 0.05, 0.05], atol=0.025)


class Unsafe(Filter):
    """A job's filter that calls the job unsafe, as one may that has looked at the data."""

    def process(self, shareable, fl_ctx):
        raise UnsafeJobError(PATIENT)


@pytest.mark.parametrize("pushed", [True, False])
def test_headers_of_a_result_are_the_engines_and_not_a_components(tmp_path, pushed):
    """How long a result is kept (``__msg_root_ttl__``) left as a component had set it."""

    def marked(task_name, shareable, fl_ctx):
        result = trained()(task_name, shareable, fl_ctx)
        for key in (ReservedHeaderKey.MSG_ROOT_TTL, ReservedHeaderKey.MSG_ROOT_ID, "glucose"):
            result.set_header(key, 417.25)
        return result

    heads = []
    for site in (Site(marked, properties=owned(tmp_path)), Site(trained())):
        carry = site.is_pushed if pushed else site.does
        heads.append(carry(Server().asks())["__headers__"])
    assert "417.25" not in str(heads[0])
    assert ReservedHeaderKey.MSG_ROOT_TTL not in heads[0]
    assert set(heads[0]) == set(heads[1])
    if not pushed:
        assert len(heads[0][ReservedHeaderKey.MSG_ROOT_ID]) == 36
