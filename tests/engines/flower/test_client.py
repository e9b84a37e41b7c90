"""The mod: one release per answer and nothing beside it; a ledger that is written first; reasons to
decline.
"""

import asyncio
import importlib
import logging
import pickle
import threading

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.simulation.ray_transport.ray_actor import VirtualClientEngineActor

from engines.flower.kit import (
    CONFIG,
    DIMENSION,
    RUN,
    SIMULATED,
    SIMULATED_MOD,
    app,
    as_actor,
    be_the_server,
    context,
    gated,
    ledger,
    model,
    simulated,
    trained,
)
from federation.node.makers import books, write_policy
from quietbit import Plan
from quietbit.errors import InvalidParameter
from quietbit.federation.messages import request_record
from quietbit.flower import PrivateClientApp, Simulation
from quietbit.flower import client as client_module
from quietbit.node.gate import LocalGate
from quietbit.node.gatekeeper import Gatekeeper
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.wire.uplink import Uplink

SETTINGS = Plan.from_run_config(CONFIG)
MECHANISM = SETTINGS.mechanism_for(DIMENSION)
SHIFT = np.linspace(-0.2, 0.3, DIMENSION)
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


def request(number=1, node=11, kind="train", mechanism=MECHANISM, run=RUN, arrays=None, clip=1.0):
    be_the_server(run)
    content = RecordDict({"arrays": arrays or model(), "config": ConfigRecord({"lr": 0.1})})
    content["quietbit"] = ConfigRecord(request_record(number, mechanism, clip))
    message = Message(content, node, kind)
    message.metadata.__dict__["_message_id"] = f"request-{number}"
    return message


def reason(reply, begins="quietbit: "):
    assert reply.has_error()
    assert not reply.has_content()
    assert reply.error.reason.startswith(begins)
    assert "\n" not in reply.error.reason
    return reply.error.reason


def never(*_):
    raise AssertionError("the app must not be called")


def test_the_ledger_is_written_before_the_app_is_called_and_a_word_is_drawn(monkeypatch):
    place, seen = context(11), []
    plain = Uplink.send

    def send(self, *args):
        seen.append(("drawn", ledger(place).releases))
        return plain(self, *args)

    def watched(message, _):
        seen.append(("called", ledger(place).releases))
        return trained(message, SHIFT)

    monkeypatch.setattr(Uplink, "send", send)
    for number in (1, 2):
        assert SIMULATED(request(number), place, watched).has_content()
    assert seen == [("called", 1), ("drawn", 1), ("called", 2), ("drawn", 2)]


def fails(*_):
    raise ValueError("label 7 of patient Ada")


def says(message, _):
    return Message(Error(1, "patient Ada"), reply_to=message)


def is_cancelled(*_):
    raise asyncio.CancelledError


def other(message, _):
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(3))})}), reply_to=message)


def nothing(message, _):
    return Message(RecordDict(), reply_to=message)


def two_models(message, _):
    return Message(RecordDict({"arrays": model(), "more": model()}), reply_to=message)


def garbled(message, _):
    arrays = dict(model())
    arrays["weight"].data = b"PK\x03\x04 is no archive"
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)


FAILURES = {
    "raises": fails,
    "cancelled": is_cancelled,
    "an error": says,
    "None": lambda *_: None,
    "other arrays": other,
    "nothing": nothing,
    "two models": two_models,
    "garbled": garbled,
    "one NaN": app(np.where(np.arange(DIMENSION) == 3, np.nan, SHIFT)),
    "infinite": app(np.full(DIMENSION, np.inf)),
}


@pytest.mark.parametrize("what", FAILURES)
def test_failing_cannot_be_told_from_an_update_of_zero(what, tmp_path):
    """The same records, the same size, the same ledger: to the last bit what an app gives that
    learns nothing.

    Whoever simulates nodes owns them all, and is told which apps crashed or trained to a NaN.
    """
    replies = []
    for folder, work in (("failing", FAILURES[what]), ("still", app(np.zeros(DIMENSION)))):
        (tmp_path / folder).mkdir()
        own = owned(tmp_path / folder, response_seconds=0.0)
        replies.append(SIMULATED(request(3), context(11, partition=2, **own), work))
        assert books(tmp_path / folder).releases == 1
    assert not replies[0].has_error()
    assert replies[0].content == replies[1].content
    place = context(11, partition=2)
    told = SIMULATED(request(3), place, FAILURES[what]).content
    usual = SIMULATED(request(3), context(11, partition=2), app(np.zeros(DIMENSION))).content
    assert told["quietbit"] == usual["quietbit"]
    assert "quietbit.crashed" in told
    assert ledger(place).releases == 1


def test_a_simulation_needs_no_policy_and_says_once_which_rules_hold(caplog):
    client_module._say.cache_clear()
    with caplog.at_level(logging.INFO):
        for node in (11, 12):
            assert simulated(gated())(request(), context(node), app(SHIFT)).has_content()
    assert caplog.text.count("simulated nodes have no owner") == 1
    assert "quietbit node init" in caplog.text


def test_a_server_that_chooses_weights_to_overflow_learns_nothing():
    """The attack that read a training image bit by bit: whether a step overflows depended on a
    pixel.
    """

    def step(pixel):
        return app(np.full(DIMENSION, np.inf if pixel else 1e300))

    replies = [SIMULATED(request(1), context(11), step(pixel)) for pixel in (True, False)]
    assert [reply.has_error() for reply in replies] == [False, False]
    sizes = {len(reply.content["quietbit"]["release"]) for reply in replies}
    assert len(sizes) == 1


def owned(folder, **changes):
    """The node config of a node with a policy."""
    return {"quietbit_policy": write_policy(folder, **{"seed": 7, "epsilon": 1e4} | changes)}


def test_a_simulations_rules_hold_where_flowers_simulation_is_the_host_and_nowhere_else():
    assert "releases nothing without one" in reason(SIMULATED_MOD(request(), context(11), never))
    assert SIMULATED(request(), context(11), app(SHIFT)).has_content()


def test_the_nodes_policy_goes_before_a_simulations_rules(tmp_path):
    own = owned(tmp_path, mechanisms=("gaussian",))
    assert "(mechanisms)" in reason(SIMULATED(request(), context(11, **own), never))


@pytest.mark.parametrize(
    "own",
    [
        {"quietbit_epsilon": 1.0},
        {"Quietbit_policy": "/x"},
        {"quietbit_policy": 3},
        {"quietbit_policy": "policy.toml"},
        {"quietbit_policy": "/nowhere/policy.toml"},
        {"quietbit_policy": "/x", "quietbit_gatekeeper": "/y"},
        {"quietbit_gatekeeper": "gate"},
        {"quietbit_gatekeeper": "/nowhere/gate"},
    ],
)
def test_a_node_config_with_a_mistake_releases_nothing_and_tells_nobody_what_is_in_it(own):
    said = reason(SIMULATED(request(), context(11, **own), never))
    assert "its owner's log says why" in said
    assert not any(str(value) in said for value in own.values())


def test_the_gatekeeper_gives_the_release_of_the_process(tmp_path):
    """The same request through the socket and without: the same bytes, and the same line in the
    ledger.
    """
    replies = []
    for way in ("policy", "gatekeeper"):
        folder = tmp_path / way
        folder.mkdir()
        own = owned(folder)
        if way == "gatekeeper":
            policy = Policy.load(own.pop("quietbit_policy"))
            gate = Gatekeeper(
                LocalGate(policy, FileLedger(policy.ledger, policy.counter), {}), folder / "gate"
            )
            thread = threading.Thread(target=gate.serve)
            thread.start()
            own = {"quietbit_gatekeeper": str(folder / "gate")}
        place = context(11, partition=2, **own)
        replies.append(
            [
                gated()(request(number), place, call)
                for number, call in ((1, app(SHIFT)), (2, fails))
            ]
        )
        assert "answered-before: " in reason(
            gated()(request(2), place, never), "quietbit, answered before: "
        )
        assert books(folder).releases == 2
    gate.stop()
    thread.join()
    for one, two in zip(*replies, strict=True):
        assert one.content == two.content


def test_requests_that_are_none_are_declined_before_training():
    wider = SETTINGS.mechanism_for(DIMENSION + 1)
    assert "number of trainable parameters must be 43" in reason(
        SIMULATED(request(mechanism=wider), context(11), never)
    )
    plain = request()
    del plain.content["quietbit"]
    assert "in a PrivateStrategy" in reason(SIMULATED(plain, context(11), never))
    two = request()
    two.content["more"] = model(1)
    assert "number of ArrayRecords" in reason(SIMULATED(two, context(11), never))
    arrays = model()
    arrays["bias"] = Array(np.full(7, np.nan, dtype=np.float32))
    assert "NaN" in reason(SIMULATED(request(arrays=arrays), context(11), never))


@pytest.mark.parametrize("kind", ["evaluate", "evaluate.mine", "query"])
@pytest.mark.parametrize("own", [{}, {"quietbit_x": 1}], ids=["no policy", "a mistake"])
def test_evaluations_and_queries_are_answered_with_a_constant(kind, own):
    """The app is not called: its time would tell."""
    for mod in (SIMULATED, gated()):
        reply = mod(request(kind=kind), context(11, **own), never)
        assert not reply.has_error()
        assert dict(reply.content) == {}


class Mixed(MetricRecord):
    """Metrics whose names cannot be put in order."""

    def keys(self):
        return {1, "train_loss", "patient"}


def mixed(message, _):
    return Message(RecordDict({"metrics": Mixed({"train_loss": 0.5})}), reply_to=message)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
@pytest.mark.parametrize(
    ("call", "number"),
    [
        (app(SHIFT), 0.25),
        (fails, 0.0),
        (nothing, 0.0),
        (app(SHIFT, {"train_loss": [0.5, 1.5]}), 0.0),
        (app(SHIFT, {"train_loss": float("nan"), "num-examples": 3}), 0.0),
        (app(SHIFT, {"train_loss": 10**400}), 0.0),
        (mixed, 0.5),
    ],
    ids=["there", "crash", "missing", "a list", "NaN", "too large", "odd names"],
)
def test_a_metric_that_the_owner_names_is_one_number_whatever_happens(kind, call, number, tmp_path):
    own = owned(tmp_path, metrics=["train_loss"], response_seconds=0.0)
    reply = gated()(request(kind=kind), context(11, **own), call)
    records = {name: dict(record) for name, record in reply.content.metric_records.items()}
    assert records == {"quietbit-metrics": {"train_loss": number}}
    others = set(reply.content) - {"quietbit-metrics"}
    assert others == ({"quietbit"} if kind == "train" else set())


def test_it_is_a_client_app_and_travels():
    private = PrivateClientApp(simulation=Simulation(seed=7))
    client = pickle.loads(pickle.dumps(private))  # noqa: S301

    @client.train()
    def train(message, context):
        return trained(message, SHIFT)

    @client.evaluate()
    def evaluate(message, context):
        return trained(message, SHIFT)

    place = context(11)
    with as_actor():
        reply = VirtualClientEngineActor().run(lambda: client, request(kind="train"), "0", place)[1]
    assert reply.content == SIMULATED(request(), context(11), app(SHIFT)).content
    assert dict(client(request(kind="evaluate"), place).content) == {}


def test_a_lifespan_runs_inside_the_gate(tmp_path):
    """It ran outside every mod: Flower sent the text of its exception to the server, and no ledger
    knew.
    """

    def spans(context):
        raise ValueError("record of patient 4711")
        yield

    client = PrivateClientApp()
    client.lifespan()(spans)
    client.train()(app(SHIFT))
    owned = context(11, quietbit_policy=write_policy(tmp_path, epsilon=100.0))
    reply = client(request(), owned)
    assert set(reply.content) == {"quietbit"}  # a release of zero, which is noted
    assert books(tmp_path).releases == 1


def adds(message, place, call_next):
    """A mod of somebody else's: it sends more than it was given."""
    reply = call_next(message, place)
    reply.content["leak"] = ConfigRecord({"x": [417.25]})
    reply.content["more"] = MetricRecord({"secret": 417.25})
    return reply


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_every_mod_and_function_is_inside_the_gate(kind):
    """Behind another mod, among a function's mods, or missing on evaluate, raw arrays left."""
    private = PrivateClientApp(mods=[adds], simulation=Simulation(seed=7))
    getattr(private, kind)(mods=[adds])(app(SHIFT))

    def call(message, place):
        return private(message=message, context=place)

    with as_actor():
        reply = call(request(kind=kind), context(11))
    assert set(reply.content) == ({"quietbit"} if kind == "train" else set())


def test_a_gate_stands_in_no_other_gate_and_is_no_mod():
    """Twice, an update of 0.1 arrived as 0.001."""
    inner = PrivateClientApp()
    with pytest.raises(InvalidParameter, match="cannot stand inside another"):
        PrivateClientApp(mods=[inner])
    with pytest.raises(InvalidParameter, match="cannot stand inside another"):
        PrivateClientApp().train()(inner)
    with pytest.raises(InvalidParameter, match="cannot stand inside another"):
        PrivateClientApp().evaluate(mods=[inner])
    with pytest.raises(InvalidParameter, match="a Simulation"):
        PrivateClientApp(simulation=7)
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Mine", (PrivateClientApp,), {})


def test_a_gate_among_the_mods_of_another_app_answers_nothing_and_says_why(tmp_path, caplog):
    plain = ClientApp(mods=[PrivateClientApp()])
    plain.train()(app(SHIFT))
    place = context(11, quietbit_policy=write_policy(tmp_path, epsilon=100.0))
    reply = plain(request(), place)
    assert reply.has_error()
    assert books(tmp_path).releases == 0
    assert "PrivateClientApp is an app, not a mod" in caplog.text


def test_the_name_that_it_had_is_refused_with_the_new_one():
    with pytest.raises(ImportError, match=r"PrivateUplink is now PrivateClientApp: write app = "):
        importlib.import_module("quietbit.flower").PrivateUplink  # noqa: B018


def test_ctrl_c_is_the_owners():
    def stops(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SIMULATED(request(), context(11), stops)


def test_what_an_app_writes_into_its_context_stays_but_for_our_records():
    def writes(message, own):
        for name in ("mine", "quietbit", "quietbit-model", "quietbit-sum"):
            own.state[name] = ConfigRecord({"ledger": ""})
        return trained(message, SHIFT)

    place = context(11)
    assert SIMULATED(request(), place, writes).has_content()
    assert set(place.state) == {"mine", "quietbit"}
    assert ledger(place).releases == 1


def test_a_release_that_is_noted_and_cannot_be_made_says_so(monkeypatch):
    def broken(*_):
        raise MemoryError

    monkeypatch.setattr(Uplink, "send", broken)
    place = context(11)
    reason(SIMULATED(request(), place, app(SHIFT)), "quietbit, answered before: ")
    assert ledger(place).releases == 1
