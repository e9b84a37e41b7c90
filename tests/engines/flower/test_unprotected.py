"""Replies that passed no gate: no number and no epsilon comes of them, and their nodes are asked no
more; and releases that nobody asked for, which count.
"""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from engines.flower.kit import NODES, Federation, model, shift, trained
from quietbit import InvalidParameter, QuietbitError
from quietbit.federation.messages import CRASHED, METRICS, RECORD, SUM

SECRET = 417.25
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


def raw(message, node):
    """What an app without quietbit answers: its weights, and a number of its own."""
    return trained(message, shift(node), {"num-examples": 31, "loss": SECRET})


def play(federation, number, unprotected=()):
    """Train a round in which some nodes have no gate; return who was asked, and the metrics."""
    messages = federation.messages(number)
    replies = []
    for message in messages:
        node = message.metadata.dst_node_id
        replies.append(raw(message, node) if node in unprotected else federation.answer(message))
    _, metrics = federation.strategy.aggregate_train(number, replies)
    return {message.metadata.dst_node_id for message in messages}, metrics


def evaluate(federation, number, content):
    """Let every node that is asked for an evaluation answer with this content."""
    messages = federation.messages(number, kind="evaluate")
    replies = [Message(RecordDict(dict(content)), reply_to=message) for message in messages]
    return len(messages), federation.strategy.aggregate_evaluate(number, replies)


def said(federation):
    """All that a report says, as people and programs read it."""
    report = federation.strategy.report()
    return f"{report} {json.dumps(report.to_json())}"


def test_a_run_of_apps_without_quietbit_ends_in_its_first_round(caplog):
    federation = Federation()
    with caplog.at_level(logging.INFO), pytest.raises(QuietbitError) as error:
        play(federation, 1, NODES)
    assert str(error.value).startswith("No guarantee: 4 nodes sent unprotected replies. ")
    assert "app = PrivateClientApp()" in str(error.value)
    assert "epsilon <=" not in caplog.text + said(federation).replace("epsilon <=\n", "")
    report = federation.strategy.report()
    assert report.guarantee is None
    assert {node.epsilon_upper for node in report.nodes} == {None}
    assert [entry.epsilon_upper for entry in report.rounds] == [None]


def test_nodes_without_quietbit_are_asked_no_more_and_the_run_has_no_epsilon(caplog):
    federation = Federation()
    caplog.set_level(logging.INFO)
    _, first = play(federation, 1)
    assert "quietbit-epsilon" in first
    asked, second = play(federation, 2, NODES[:2])
    assert asked == set(NODES)
    assert "quietbit-epsilon" not in second
    assert "quietbit-epsilon" not in first  # the history that Flower keeps is the same record
    asked, third = play(federation, 3, NODES[:2])
    assert asked == set(NODES[2:])
    assert "quietbit-epsilon" not in third
    assert third["quietbit-answered"] == 2
    assert str(SECRET) not in said(federation) + str(third) + str(second)
    report = federation.strategy.report()
    assert report.promise() == "No guarantee: 2 nodes sent unprotected replies."
    assert report.promise() in str(report)
    assert report.to_json()["guarantee"] is None
    assert [entry["epsilon_upper"] for entry in report.to_json()["rounds"]] == [None] * 3
    assert caplog.text.count(") sent an unprotected reply: ") == 1


@pytest.mark.parametrize(
    "more",
    [
        {"leak": ArrayRecord({"x": Array(np.ones(3))})},
        {"more": MetricRecord({"secret": SECRET})},
        {"quietbit-more": ConfigRecord({"x": 1})},
        {"quietbit-1x": ConfigRecord({"x": 1})},
        {"quietbit-5": ConfigRecord({"weights": [SECRET]})},
        {CRASHED: ConfigRecord({"weights": [SECRET]})},
        {SUM: ConfigRecord({"step": "update", "answer": b"more"})},
        {METRICS: MetricRecord({"weights": [SECRET]})},
        lambda release: {RECORD: ConfigRecord({**release, "loss": SECRET})},
        lambda release: {RECORD: ConfigRecord({"weights": [SECRET]})},
        lambda release: {"quietbit-1": release},
        lambda release: {"quietbit-2": release, "quietbit-3": release},
    ],
)
def test_a_release_with_something_beside_it_is_unprotected(more):
    """Three releases in one reply counted as one, where the second had the number of a third."""
    federation = Federation()
    replies = federation.ask(1, model())
    records = more(replies[0].content[RECORD]) if callable(more) else more
    replies[0].content = RecordDict({**replies[0].content, **records})
    federation.strategy.aggregate_train(1, replies)
    assert federation.strategy.report().unprotected == 1
    assert federation.strategy.report().rounds[0].answered == 3


@pytest.mark.parametrize(
    "records", [{}, {RECORD: {"release": b""}}, {RECORD: {"release": bytes(100)}}]
)
def test_what_is_no_release_is_not_valid_and_tells_nothing(records):
    federation = Federation()
    replies = federation.ask(1, model())
    replies[0].content = RecordDict({name: ConfigRecord(one) for name, one in records.items()})
    federation.strategy.aggregate_train(1, replies)
    report = federation.strategy.report()
    assert (report.unprotected, report.rounds[0].refused, report.rounds[0].answered) == (0, 1, 3)


def test_what_an_app_raises_past_the_gate_is_quoted_nowhere():
    """Flower sends the text of the exception: one line of it stood in the report."""
    federation = Federation()
    replies = federation.ask(1, model())
    raised = Error(2, f"<class 'ValueError'>:<'the loss is {SECRET}'>")
    lost = Message(raised, reply_to=replies[0])
    lost.metadata.__dict__["_src_node_id"] = replies[0].metadata.src_node_id
    federation.strategy.aggregate_train(1, [lost, *replies[1:]])
    assert str(SECRET) not in said(federation)
    assert "did not answer: Flower says CLIENT_APP_RAISED_EXCEPTION" in said(federation)
    assert {node.releases for node in federation.strategy.report().nodes} == {1}


def test_an_evaluation_past_the_gate_is_published_nowhere():
    federation = Federation()
    play(federation, 1)
    asked, metrics = evaluate(federation, 1, {"metrics": MetricRecord({"loss": SECRET})})
    assert (asked, metrics) == (4, None)
    assert str(SECRET) not in said(federation)
    assert federation.strategy.report().promise().startswith("No guarantee: 4 nodes ")
    assert evaluate(federation, 2, {})[0] == 0  # nobody is asked again
    with pytest.raises(QuietbitError, match="No other node is left"):
        play(federation, 2)
    assert "sent an unprotected reply" in said(federation)


def test_a_strategy_that_asks_a_node_twice_in_a_round_is_refused():
    class Twice(FedAvg):
        def configure_train(self, *args):
            messages = list(super().configure_train(*args))
            messages[1].metadata.dst_node_id = messages[0].metadata.dst_node_id
            return messages

    with pytest.raises(InvalidParameter, match="requests to one node in a round"):
        Federation(Twice()).ask(1, model())
