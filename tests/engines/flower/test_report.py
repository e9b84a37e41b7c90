"""The report: a table, JSON that a parser reads, and sizes that are those of Flower's own
objects.
"""

import json
import pickle

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from engines.flower.kit import (
    CONFIG,
    DIMENSION,
    RUN,
    SIMULATED,
    HandGrid,
    app,
    be_the_server,
    context,
    model,
)
from quietbit.flower import PrivateStrategy
from quietbit.flower.transport import wire_sizes
from quietbit.privacy.guarantee import shown_epsilon

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


def run(nodes=3, rounds=2):
    be_the_server()
    strategy, grid, arrays = (
        PrivateStrategy(FedAvg(), CONFIG),
        HandGrid(range(1, nodes + 1)),
        model(),
    )
    contexts = {node: context(node, node) for node in grid.nodes}
    sent = received = 0
    for number in range(1, rounds + 1):
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        replies = [
            SIMULATED(m, contexts[m.metadata.dst_node_id], app(np.zeros(DIMENSION)))
            for m in messages
        ]
        sent += sum(serialised(message) for message in messages)
        received += sum(serialised(reply) for reply in replies)
        arrays, _ = strategy.aggregate_train(number, replies)
    return strategy.report(), sent, received


def serialised(message):
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


def test_bytes_are_those_of_the_serialised_messages():
    report, sent, received = run()
    assert abs(report.downlink - sent) <= 8 * len(
        report.rounds
    )  # ids of nodes differ by a few digits
    assert report.uplink == received
    for entry in report.rounds:
        assert entry.uplink_payload == 3 * (64 + (DIMENSION + 7) // 8)
        assert entry.uplink <= 3 * ((DIMENSION + 7) // 8 + 1024)


def test_json_and_table():
    report, _, _ = run(nodes=15)
    values = json.loads(json.dumps(report.to_json()))
    assert values == report.to_json()
    assert values["run"] == str(RUN)
    assert len(values["nodes"]) == 15
    assert values["guarantee"]["adjacency"] == "replace-one"
    assert values["settings"]["quietbit.mechanism"] == "imvu"
    text = str(report)
    worst = values["nodes"][0]["epsilon_upper"]
    releases = f"fewest 2 (epsilon {shown_epsilon(worst)}), median 2"
    assert f"Releases per node, in this run: {releases}" in text
    assert text.count("asked  answered  declined  failed  refused") == 1
    assert (values["format"], values["version"]) == ("quietbit federated run", 1)
    assert text.splitlines()[-1].startswith(
        "The worst client, per node number in this run: epsilon <= "
    )
    assert max(map(len, text.splitlines()[:-2])) <= 100


def test_a_run_that_has_not_begun():
    be_the_server()
    report = PrivateStrategy(FedAvg(), CONFIG).report()
    assert report.guarantee is None
    assert report.to_json()["guarantee"] is None
    assert "0 parameters" in str(report)


def test_shared_contents_are_measured_once_and_others_apart():
    be_the_server()
    content = RecordDict({"arrays": model()})
    one, two, small = (
        Message(content, 1, "train"),
        Message(content, 2, "train"),
        Message(RecordDict(), 1, "train"),
    )
    sizes = wire_sizes([one, two, small])
    assert sizes == [serialised(one), serialised(one), serialised(small)]
    assert sizes[2] < sizes[0]
    fresh = Message(RecordDict({"arrays": model()}), 1, "train")
    before = len(pickle.dumps(fresh))
    wire_sizes([fresh])
    assert len(pickle.dumps(fresh)) == before  # measuring leaves nothing behind
