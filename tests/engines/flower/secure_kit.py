"""A room of nodes that answer masked sums in this process, for tests without an engine."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord
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


def shift(node: int) -> np.ndarray:
    """A node's update; some are longer than the clip."""
    return np.random.default_rng(node).normal(size=DIMENSION) * 0.05 * (node - 99)


class Room(HandGrid):
    """Nodes in this process; ``gone`` are the (step, node) that are never answered."""

    def __init__(self, gone=(), config=CONFIG, nodes=NODES, **node_config):
        super().__init__(nodes)
        self.gone = set(gone)
        self.seen = []  # the step, node and reply of each answer
        self.contexts = {
            n: context(n, place, config, **node_config) for place, n in enumerate(nodes)
        }

    def send_and_receive(self, messages, *, timeout=None):
        return [reply for message in messages if (reply := self.carry(message)) is not None]

    def carry(self, message, app_of=None):
        node, step = message.metadata.dst_node_id, "answer"  # to an evaluation
        if SUM in message.content:
            step = message.content[SUM]["step"]
        if (step, node) in self.gone:
            return None
        reply = SIMULATED(message, self.contexts[node], app_of or app(shift(node)))
        self.seen.append((step, node, reply))
        reply.metadata._src_node_id = node
        return reply


def strategy_of(config=CONFIG, nodes=6, basis=None):
    be_the_server()
    active = config["quietbit.secure-aggregation.adversary"] == "active"
    members = simulated_members(nodes) if active else None
    inner = FedAvg(min_train_nodes=nodes, min_available_nodes=nodes, min_evaluate_nodes=nodes)
    return PrivateStrategy(inner, config, members=members, basis=basis)


def run(room, rounds=1, config=CONFIG, basis=None):
    """The strategy after some rounds, and the model after each."""
    strategy, history = strategy_of(config, len(room.nodes), basis), [model()]
    for number in range(1, rounds + 1):
        asked = strategy.configure_train(number, history[-1], ConfigRecord({}), room)
        replies = room.send_and_receive(asked)
        history.append(strategy.aggregate_train(number, replies)[0])
    return strategy, history


def requests(room, config=CONFIG):
    """The messages that ask for vectors, keys and shares being done."""
    strategy = strategy_of(config, len(room.nodes))
    return strategy, list(strategy.configure_train(1, model(), ConfigRecord({}), room))


def flat(arrays) -> np.ndarray:
    return np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])


def stepped(arrays, stayed, config) -> np.ndarray:
    """The model after a first round in which these nodes' codes were added up in the open."""
    mechanism = Plan.from_run_config(config).mechanism_for(DIMENSION)
    old = flat(arrays).astype(np.float64)
    total = np.zeros(mechanism.layout.count, np.int64)
    for node in stayed:
        words = seeded_client_rng(7)(0, NODES.index(node))
        payload = Uplink(mechanism).send(old - (old - shift(node)), words)
        total += Payload.from_bytes(payload).codes()
    return (old - mechanism.mean_from_sum(total, len(stayed))).astype(np.float32)
