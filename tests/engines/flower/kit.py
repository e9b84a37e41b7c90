"""Messages, contexts and a grid for tests of the Flower layer, without an engine."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.simulation.ray_transport.ray_actor import VirtualClientEngineActor
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from quietbit.flower import PrivateClientApp, PrivateStrategy, Simulation
from quietbit.node.ledger import LedgerState, StateLedger


def as_actor():
    """Let this process look like an actor of Flower's simulation runtime."""
    return mock.patch("quietbit.flower.client.in_simulation", return_value=True)


def gated(**settings):
    """A PrivateClientApp to which a function is given with every message."""
    PrivateClientApp(**settings)  # what it refuses, it refuses now

    def call(message, place, function):
        app = PrivateClientApp(**settings)
        kind, _, action = message.metadata.message_type.partition(".")
        register = {"train": app.train, "evaluate": app.evaluate, "query": app.query}[kind]
        register(*filter(None, [action]))(function)
        return app(message=message, context=place)

    return call


def simulated(mod):
    """The app as Flower's simulation runtime calls it: by the actor that runs an app, without ray
    around it.
    """

    def call(message, place, call_next):
        def load():
            return lambda message, context: mod(message, context, call_next)

        with as_actor():
            return VirtualClientEngineActor().run(load, message, "0", place)[1]

    return call


SIMULATED_MOD = gated(simulation=Simulation(seed=7))
SIMULATED = simulated(SIMULATED_MOD)  # the app of every test without a policy of its own
RUN = 2**63 + 5  # Flower's ids use all 64 bits
CONFIG = {
    "quietbit.mechanism": "imvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 20.0,
    "quietbit.adjacency": "replace-one",
    "quietbit.releases": 4,
    "num-server-rounds": 3,
}
NODES = (11, 12, 13, 2**64 - 1)
SHAPES = {"weight": (5, 7), "bias": (7,)}
DIMENSION = 42


def be_the_server(run: int = RUN) -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, 1


def model(seed: int = 0) -> ArrayRecord:
    rng = np.random.default_rng(seed)
    return ArrayRecord({k: Array(rng.normal(size=v).astype(np.float32)) for k, v in SHAPES.items()})


class HandGrid(Grid):
    """A grid whose nodes are a list; messages are carried by the test."""

    def __init__(self, nodes, run=RUN):
        self.nodes, self._run = list(nodes), Run.create_empty(run_id=run)

    def set_run(self, run):
        self._run = run

    @property
    def run(self):
        return self._run

    def create_message(self, *args, **kwargs):
        raise AssertionError

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        raise AssertionError

    def pull_messages(self, message_ids):
        raise AssertionError

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError


def context(node: int, partition: int = 0, config=None, run: int = RUN, **node_config) -> Context:
    """A node's context; keywords of the node config are written with _ for the dot."""
    own = {"partition-id": partition} | {
        key.replace("_", ".", 1): value for key, value in node_config.items()
    }
    return Context(run, node, own, RecordDict(), dict(CONFIG if config is None else config))


def ledger(place: Context) -> LedgerState:
    """What a simulated node has noted."""
    return StateLedger(dict(place.state["quietbit"]) if "quietbit" in place.state else {}).read()


def trained(message: Message, shift, metrics=None) -> Message:
    """What an ordinary app replies: arrays moved by ``-shift`` (so that the update is ``shift``),
    and plaintext.
    """
    record = next(iter(message.content.array_records.values()))
    moved, start = {}, 0
    for name, array in record.items():
        old = array.numpy()
        piece = np.asarray(shift)[start : start + old.size].reshape(old.shape)
        moved[name], start = Array(np.asarray(old.astype(np.float64) - piece)), start + old.size
    plain = MetricRecord({"num-examples": 31, "train_loss": 0.25} if metrics is None else metrics)
    content = RecordDict(
        {"arrays": ArrayRecord(moved), "metrics": plain, "notes": ConfigRecord({"who": "Ada"})}
    )
    return Message(content, reply_to=message)


def app(shift, metrics=None):
    return lambda message, _: trained(message, shift, metrics)


def shift(node):
    """The update of a node."""
    return np.random.default_rng(node % 1000).normal(size=DIMENSION) * 0.05


class Federation:
    """Nodes with their contexts: `messages` opens a round, `answer` answers one of them.

    Nodes learn their `shift`, unless an app is given with the round.
    """

    def __init__(
        self, inner=None, config=None, nodes=NODES, mod=None, strategy=None, **node_config
    ):
        config = CONFIG if config is None else config
        be_the_server()
        self.strategy = strategy or PrivateStrategy(inner or FedAvg(), config)
        self.mod = mod or SIMULATED
        self.grid = HandGrid(nodes)
        self.contexts = {}
        for place, node in enumerate(self.grid.nodes):
            self.contexts[node] = context(node, place, config, **node_config)

    def messages(self, number, arrays=None, kind="train"):
        configure = getattr(self.strategy, f"configure_{kind}")
        return list(configure(number, arrays or model(), ConfigRecord(), self.grid))

    def answer(self, message, metrics=None, call=None):
        node = message.metadata.dst_node_id
        return self.mod(message, self.contexts[node], call or app(shift(node), metrics))

    def ask(self, number, arrays=None, metrics=None, call=None, kind="train"):
        messages = self.messages(number, arrays, kind)
        return [self.answer(message, metrics, call) for message in messages]

    def train(self, number, arrays=None, call=None):
        return self.strategy.aggregate_train(number, self.ask(number, arrays, call=call))

    def evaluate(self, number, call):
        """The requests, the replies, and what the strategy makes of them."""
        messages = self.messages(number, kind="evaluate")
        replies = [self.answer(message, call=call) for message in messages]
        return messages, replies, self.strategy.aggregate_evaluate(number, replies)
