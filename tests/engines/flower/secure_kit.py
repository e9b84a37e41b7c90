"""A room of nodes that answer masked sums in this process, for tests without an engine."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from engines.flower.kit import DIMENSION, SIMULATED, HandGrid, app, be_the_server, context, model
from quietbit import Plan
from quietbit.flower import PrivateStrategy
from quietbit.kernel.client_rng import seeded_client_rng
from quietbit.node.policy import simulated_members
from quietbit.wire.payload import Payload
from quietbit.wire.uplink import Uplink

SUM = "quietbit-sum"
CONFIG = {
    "quietbit.mechanism": "imvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 4.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": 2,
    "quietbit.trust": "secure-aggregation",
    "quietbit.secure-aggregation.adversary": "honest-but-curious",
    "quietbit.secure-aggregation.threshold": 4,
    "quietbit.secure-aggregation.honest-clients": 3,
}
ACTIVE = CONFIG | {
    "quietbit.secure-aggregation.adversary": "active",
    "quietbit.secure-aggregation.threshold": 5,
}
NODES = list(range(101, 107))
SETTINGS = Plan.from_run_config(CONFIG)


@cache
def mechanism():
    """Calibrated by whoever asks first: collecting the tests need not."""
    return SETTINGS.mechanism_for(DIMENSION)


def shift(node: int) -> np.ndarray:
    """A node's update; some are longer than the clip."""
    return np.random.default_rng(node).normal(size=DIMENSION) * 0.05 * (node - 99)


class Room(HandGrid):
    """Nodes in this process; ``gone`` are the (step, node) that are never answered; ``alter`` may
    change a reply.
    """

    def __init__(self, gone=(), config=CONFIG, nodes=NODES, alter=None, **node_config):
        super().__init__(nodes)
        self.gone, self.alter = set(gone), alter
        self.seen: list[tuple[str, int, Message]] = []
        self.contexts = {
            n: context(n, place, config, **node_config) for place, n in enumerate(nodes)
        }

    def send_and_receive(self, messages, *, timeout=None):
        assert timeout is None or timeout == SETTINGS.secure_aggregation.timeout
        return [reply for message in messages if (reply := self.carry(message)) is not None]

    def carry(self, message, app_of=None):
        node, step = message.metadata.dst_node_id, "answer"  # to an evaluation
        if SUM in message.content:
            step = message.content[SUM]["step"]
        if (step, node) in self.gone:
            return None
        reply = SIMULATED(message, self.contexts[node], app_of or app(shift(node)))
        if self.alter is not None and not reply.has_error():
            reply = self.alter(step, node, reply)
        self.seen.append((step, node, reply))
        reply.metadata._src_node_id = node
        return reply

    def steps(self):
        return [step for step, _, reply in self.seen if not reply.has_error()]


def strategy_of(config=CONFIG, nodes=6, basis=None):
    be_the_server()
    members = (
        simulated_members(nodes)
        if config["quietbit.secure-aggregation.adversary"] == "active"
        else None
    )
    inner = FedAvg(min_train_nodes=nodes, min_available_nodes=nodes, min_evaluate_nodes=nodes)
    return PrivateStrategy(inner, config, members=members, basis=basis)


def run(room, rounds=1, config=CONFIG, basis=None):
    """The strategy after some rounds, and the model after each (None: skipped)."""
    strategy, arrays, history = strategy_of(config, len(room.nodes), basis), model(), [model()]
    for number in range(1, rounds + 1):
        replies = room.send_and_receive(
            strategy.configure_train(number, arrays, ConfigRecord({}), room)
        )
        before, (arrays, _) = arrays, strategy.aggregate_train(number, replies)
        skipped = strategy.report().rounds[-1].skipped
        assert not skipped or all(
            arrays[name].data == before[name].data for name in before
        )  # it is as it was
        history.append(None if skipped else arrays)
    return strategy, history


def requests(room, number=1, config=CONFIG):
    """The messages that ask for vectors, keys and shares being done."""
    strategy = strategy_of(config, len(room.nodes))
    return strategy, list(strategy.configure_train(number, model(), ConfigRecord({}), room))


def asking(message, **changes):
    """The same request with other values."""
    content = RecordDict(
        {**message.content, SUM: ConfigRecord(dict(message.content[SUM]) | changes)}
    )
    return Message(content, message.metadata.dst_node_id, "train")


def flat(arrays) -> np.ndarray:
    return np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])


def codes_of(node, number=1, nodes=NODES, arrays=None) -> np.ndarray:
    """The codes that a node draws, from the words it draws them with."""
    old = flat(model() if arrays is None else arrays).astype(np.float64)
    update = old - (old - shift(node))
    words = seeded_client_rng(7)(number - 1, nodes.index(node))
    return Payload.from_bytes(Uplink(mechanism()).send(update, words)).codes().astype(np.int64)


def stepped(arrays, stayed, number=1, nodes=NODES) -> np.ndarray:
    """The model after a round in which these nodes' codes were added up in the open."""
    total = sum(codes_of(node, number, nodes, arrays) for node in stayed)
    mean = mechanism().mean_from_sum(total, len(stayed))
    return (flat(arrays).astype(np.float64) - mean).astype(np.float32)
