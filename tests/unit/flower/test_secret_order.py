"""A secret order in Flower: every node once per epoch, whomever the inner strategy picked, and two
guarantees.
"""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from quietbit.errors import InvalidParameter
from quietbit.flower import PrivateStrategy, Simulation
from unit.flower.kit import (
    CONFIG,
    DIMENSION,
    SIMULATED,
    HandGrid,
    app,
    be_the_server,
    context,
    gated,
    model,
    simulated,
)

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")
NODES = range(1, 25)
VECTOR = {key: value for key, value in CONFIG.items() if key != "quietbit.releases"} | {
    "quietbit.mechanism": "vmvu",
    "quietbit.mechanism.design-epsilon": 1.0,
}
SECRET = {**VECTOR, "quietbit.participation": "secret-order"}


def run(config, rounds, silent=()):
    """Half of the nodes a round; those of ``silent`` never answer."""
    be_the_server()
    strategy, grid, arrays = (
        PrivateStrategy(FedAvg(fraction_train=0.5), config),
        HandGrid(NODES),
        model(),
    )
    contexts = {node: context(node, node, config) for node in NODES}
    asked = []
    for number in range(1, rounds + 1):
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        asked.append([message.metadata.dst_node_id for message in messages])
        replies = [
            SIMULATED(message, contexts[node], app(np.zeros(DIMENSION)))
            for message, node in zip(messages, asked[-1], strict=True)
            if node not in silent
        ]
        arrays, _ = strategy.aggregate_train(number, replies)
    return strategy.report(), asked


def test_everybody_is_asked_once_per_epoch():
    report, asked = run(SECRET, 4)
    for epoch in (asked[:2], asked[2:]):
        assert sorted(epoch[0] + epoch[1]) == list(NODES)
    pair = report.observers
    assert pair is not None
    assert pair.result is not None
    assert (pair.crowd, pair.shuffles, pair.secret_order) == (24, 2, True)
    assert pair.result.epsilon_upper < pair.server.epsilon_upper == report.guarantee.epsilon_upper
    said = json.loads(json.dumps(report.to_json()))["observers"]
    assert said["result_epsilon_upper"] == pair.result.epsilon_upper
    assert str(report).splitlines()[-1] == pair.second()


def test_nothing_in_the_result_depends_on_who_took_part():
    """The bytes of a round gave the lengths of its nodes' ids away, and a loss that owners let out
    whose it was.
    """
    be_the_server()
    nodes, results = [1, 2**62 + 1], []
    mod = simulated(gated(simulation=Simulation(seed=7, metrics=("train_loss",))))
    inner = FedAvg(fraction_train=0.5, min_train_nodes=1)
    strategy, grid, arrays = PrivateStrategy(inner, SECRET), HandGrid(nodes), model()
    for number in range(1, 3):  # one of the two in each round, in a secret order
        (message,) = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        node = message.metadata.dst_node_id
        loss = app(np.zeros(DIMENSION), {"train_loss": float(node)})
        arrays, metrics = strategy.aggregate_train(
            number, [mod(message, context(node, 0, SECRET), loss)]
        )
        results.append(
            {name: value for name, value in metrics.items() if name != "quietbit-epsilon"}
        )
    assert results[0] == results[1]
    uplink = [entry.uplink for entry in strategy.report().rounds]
    assert uplink[0] != uplink[1]  # which the server's own report still says


def test_dropouts_leave_the_crowd():
    report, _ = run(SECRET, 2, silent=set(range(1, 9)))
    assert report.observers is not None
    assert report.observers.crowd == 16
    whole, _ = run(SECRET, 2)
    assert whole.observers is not None
    assert report.observers.result.epsilon_upper > whole.observers.result.epsilon_upper


def test_in_open_order_a_round_is_the_crowd():
    report, _ = run(VECTOR, 2)
    pair = report.observers
    assert pair is not None
    assert (pair.crowd, pair.secret_order) == (12, False)


def test_without_a_guarantee_at_delta_0_the_report_says_why():
    report, _ = run(CONFIG, 1)
    assert report.observers is not None
    assert report.observers.result is None
    assert "delta = 0" in str(report).splitlines()[-1]


def test_requests_that_differ_by_node_are_refused():
    class Personal(FedAvg):
        def _construct_messages(self, record, node_ids, message_type):
            return [
                Message(RecordDict(dict(record)), dst_node_id=n, message_type=message_type)
                for n in node_ids
            ]

    be_the_server()
    strategy = PrivateStrategy(Personal(), SECRET)
    with pytest.raises(InvalidParameter, match="asks all nodes alike"):
        strategy.configure_train(1, model(), ConfigRecord(), HandGrid(NODES))
