"""What a server reports is never less than what its nodes have in their ledgers.

Idea     requests and replies are lost, sent again, late and refused at random, under every section
         that changes what a node is asked for. After each round the report's epsilon of each node
         is held against that node's own ledger, priced anew from the mechanisms that it notes.
"""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from attack.test_every_epsilon import epsilon_of
from engines.flower.kit import (
    DIMENSION,
    HandGrid,
    be_the_server,
    context,
    gated,
    ledger,
    model,
    simulated,
    trained,
)
from quietbit.federation.plan import Plan
from quietbit.flower import PrivateStrategy, Simulation
from spaces import space_of_seed

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
K = 8
PLAIN = {
    "quietbit.mechanism": "imvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 60.0,
    "quietbit.adjacency": "replace-one",
    "quietbit.releases": 6,
}
SPACE = {"quietbit.subspace": K}
EVALUATES = {"quietbit.evaluate.epsilon": 0.5, "quietbit.evaluate.releases": 4}
SUMMED = {
    "quietbit.adjacency": "zero-out",
    "quietbit.trust": "secure-aggregation",
    "quietbit.secure-aggregation.adversary": "honest-but-curious",
    "quietbit.secure-aggregation.threshold": 5,
    "quietbit.secure-aggregation.honest-clients": 3,
}
SECTIONS = {
    "plain": {},
    "subspace": SPACE,
    "scouts": {"quietbit.adaptive-clip.every": 2},
    "scouts in a subspace": SPACE | {"quietbit.adaptive-clip.every": 2},
    "evaluations": EVALUATES,
    "groups in a subspace": SPACE | EVALUATES | {"quietbit.evaluate.groups": "old, young, rest"},
    "weights in a subspace": SPACE | {"quietbit.weights.most-examples": 100},
    "replay in a subspace": SPACE
    | {"quietbit.replay": True, "quietbit.mechanism.rows": "shared", "quietbit.mechanism": "vmvu"},
    "sums": SUMMED,
    "sums in a subspace": SUMMED | SPACE,
    "sums with scouts": SUMMED
    | {"quietbit.adaptive-clip.every": 8, "quietbit.secure-aggregation.threshold": 4},
    "sums of answers": SUMMED | EVALUATES,
}
MOD = simulated(gated(simulation=Simulation(seed=7, metrics=("num-examples",))))


class Network(HandGrid):
    """Nodes whose messages get lost: some never arrive, and the replies to some others."""

    def __init__(self, config, seed):
        super().__init__(range(101, 109))
        self.rng = np.random.default_rng(seed)
        self.contexts = {node: context(node, node - 101, config) for node in self.nodes}

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            fate = self.rng.random()
            if fate < 0.06:  # it never arrives
                continue
            node = message.metadata.dst_node_id
            reply = MOD(message, self.contexts[node], self.app)
            reply.metadata._src_node_id = node
            if fate < 0.12:  # the reply is lost
                continue
            replies.append(reply)
            if fate < 0.2:  # the message is sent again, as engines may do
                again = MOD(message, self.contexts[node], self.app)
                again.metadata._src_node_id = node
                replies.append(again)
        if len(replies) > 1 and self.rng.random() < 0.5:
            self.rng.shuffle(replies)
        return replies

    def app(self, message, _):
        if self.rng.random() < 0.1:
            raise RuntimeError("an app that fails")
        if message.metadata.message_type == "evaluate":
            record = MetricRecord({"accuracy": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]})
            if self.rng.random() < 0.5:
                record = MetricRecord({"accuracy": 0.7})
            return Message(RecordDict({"metrics": record}), reply_to=message)
        return trained(message, self.rng.normal(size=DIMENSION))


@pytest.mark.parametrize("name", SECTIONS)
def test_no_report_is_below_a_nodes_ledger(name):
    config = PLAIN | SECTIONS[name]
    plan = Plan.from_run_config(config)
    be_the_server()
    basis = None
    if plan.subspace is not None:
        basis = space_of_seed(1, K, DIMENSION)
    network = Network(config, seed=sum(name.encode()))
    inner = FedAvg(min_train_nodes=8, min_available_nodes=8)
    strategy = PrivateStrategy(inner, config, basis=basis)
    arrays = model()
    noted = 0
    for number in range(1, 9):
        asked = strategy.configure_train(number, arrays, ConfigRecord(), network)
        replies = network.send_and_receive(list(asked))
        try:
            arrays, _ = strategy.aggregate_train(number, replies)
        except Exception as error:  # a run ends where all apps crashed
            assert "crashed" in str(error)  # noqa: PT017
        if plan.evaluate is not None:
            asked = strategy.configure_evaluate(number, arrays, ConfigRecord(), network)
            strategy.aggregate_evaluate(number, network.send_and_receive(list(asked)))
        noted = check(strategy, network, plan)
    assert noted > 8


def check(strategy, network, plan):
    """Hold the report against every ledger; return the releases of all ledgers."""
    report = strategy.report()
    nodes = {entry.node: entry for entry in report.nodes}
    noted = 0
    for node, place in network.contexts.items():
        state = ledger(place)
        noted += state.releases
        if not state.releases:
            continue
        entry = nodes[node]
        assert entry.releases + entry.evaluations >= state.releases
        assert entry.epsilon_upper >= epsilon_of(state, plan) * (1 - 1e-12)
        assert report.guarantee.epsilon_upper >= entry.epsilon_upper * (1 - 1e-12)
        assert report.rounds[-1].epsilon_upper >= entry.epsilon_upper * (1 - 1e-12)
    return noted
