"""Evaluations behind masks: nodes send one masked bit, the server sees how many ones there are, and
no more.
"""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from engines.flower.kit import SIMULATED, be_the_server, ledger, model
from engines.flower.secure_kit import ACTIVE, CONFIG, SUM, Room, asking, run
from engines.flower.test_evaluation import evaluates
from quietbit import Plan
from quietbit.federation.request import request_record
from quietbit.flower import PrivateStrategy
from quietbit.mechanism.response import RandomisedResponse, SummedResponse
from quietbit.node.budget import account_of
from quietbit.node.policy import simulated_members

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
MANY = {"quietbit.masks.threshold": 20, "quietbit.masks.honest": 16, "quietbit.epsilon": 8.0}
ASKS = {"quietbit.evaluate.epsilon": 1.5, "quietbit.evaluate.releases": 2}
NODES = list(range(101, 125))
FEW = CONFIG | {"quietbit.evaluate.epsilon": 0.5, "quietbit.evaluate.releases": 2}
HONEST_BUT_CURIOUS, LYING = CONFIG | MANY | ASKS, ACTIVE | MANY | ASKS


def strategy_of(config, nodes):
    be_the_server()
    members = simulated_members(nodes) if config["quietbit.masks.server"] == "active" else None
    inner = FedAvg(min_train_nodes=nodes, min_available_nodes=nodes, min_evaluate_nodes=nodes)
    return PrivateStrategy(inner, config, members=members)


def evaluate(strategy, room, number=1, call=None):
    """One evaluation; ``call`` says which app a node has."""
    messages = list(strategy.configure_evaluate(number, model(), ConfigRecord(), room))
    apps = call or (lambda node: evaluates(1.0))
    replies = [room.carry(one, apps(one.metadata.dst_node_id)) for one in messages]
    replies = [one for one in replies if one is not None]
    return messages, replies, strategy.aggregate_evaluate(number, replies)


@pytest.mark.parametrize("config", [HONEST_BUT_CURIOUS, LYING], ids=["curious", "active"])
def test_the_server_reads_the_share_of_a_sum_it_cannot_take_apart(config):
    room, strategy = Room(config=config, nodes=NODES), strategy_of(config, len(NODES))
    _, replies, metrics = evaluate(strategy, room, 1, lambda node: evaluates(float(node < 119)))
    assert len(replies) == 24
    vectors = [reply.content["quietbit"]["release"] for reply in replies]
    assert len(set(vectors)) == 24
    outcome = strategy.report().evaluations[0]
    assert (outcome.asked, outcome.answered) == (24, 24)
    (estimate,) = outcome.estimates
    mechanism = Plan.from_run_config(config).evaluation.mechanism
    count = mechanism.frequency(estimate.value) * 24
    assert abs(count - round(count)) < 1e-9  # of whole bits
    assert abs(estimate.value - 0.75) < 6 * np.sqrt(mechanism.error().squared / 24)
    assert metrics["accuracy-low"] <= 0.75 <= metrics["accuracy-high"]


def test_updates_and_answers_are_one_account_at_nodes_and_in_the_report():
    room, plan, strategy = Room(config=FEW), Plan.from_run_config(FEW), strategy_of(FEW, 6)
    for number in (1, 2):
        replies = room.send_and_receive(
            strategy.configure_train(number, model(), ConfigRecord({}), room)
        )
        strategy.aggregate_train(number, replies)
        evaluate(strategy, room, number)
    report = strategy.report()
    assert [entry.answered for entry in (*report.rounds, *report.evaluations)] == [6] * 4
    assert ledger(room.contexts[101]).releases == 4
    account = account_of(ledger(room.contexts[101]), plan.target, 3)
    assert account.holds()
    assert report.guarantee.epsilon_upper == pytest.approx(account.epsilon(), rel=1e-9)
    assert 3.9 < report.guarantee.epsilon_upper <= 4.0  # calibrated to what both cost together,
    apart = (plan.release(plan.mechanism_for(42)) * 2).epsilon(1e-5) + 2 * 0.5
    assert report.guarantee.epsilon_upper < apart  # which is less than what each costs by itself
    _, replies, _ = evaluate(strategy, room, 3)
    assert not replies  # nobody is kept waiting for a sum that no budget is left for
    assert ledger(room.contexts[101]).releases == 4


def test_a_histogram_is_summed_cell_by_cell():
    config = HONEST_BUT_CURIOUS | {
        "quietbit.evaluate.metric": "places",
        "quietbit.evaluate.cells": 3,
    }
    room, strategy = Room(config=config, nodes=NODES), strategy_of(config, len(NODES))
    counts = {0: [9.0, 0.0, 0.0], 1: [0.0, 0.0, 2.0], 2: [0.0, 0.0, 5.0]}
    evaluate(strategy, room, 1, lambda node: evaluates(counts[node % 3], "places"))
    estimates = strategy.report().evaluations[0].estimates
    deviation = np.sqrt(Plan.from_run_config(config).evaluation.mechanism.error().squared / 24)
    assert (
        np.abs(np.array([one.value for one in estimates]) - [1 / 3, 0.0, 2 / 3]).max()
        < 6 * deviation
    )


def test_an_app_that_fails_sends_a_masked_coin_of_the_same_size():
    room, strategy = (
        Room(config=HONEST_BUT_CURIOUS, nodes=NODES),
        strategy_of(HONEST_BUT_CURIOUS, len(NODES)),
    )
    bad = evaluates(float("nan"))
    _, replies, _ = evaluate(strategy, room, 1, lambda node: bad if node == 103 else evaluates(1.0))
    assert len({len(reply.content["quietbit"]["release"]) for reply in replies}) == 1
    assert strategy.report().evaluations[0].answered == 24


def test_too_few_answers_are_never_unmasked():
    gone = {("vector", node) for node in NODES[:6]}
    room, strategy = (
        Room(gone, HONEST_BUT_CURIOUS, NODES),
        strategy_of(HONEST_BUT_CURIOUS, len(NODES)),
    )
    _, _, metrics = evaluate(strategy, room)
    assert set(metrics) == {"quietbit-epsilon"}
    assert "unmask" not in room.steps()
    outcome = strategy.report().evaluations[0]
    assert not outcome.estimates
    assert {node.evaluations for node in strategy.report().nodes} == {
        1
    }  # every request may have been answered


def hostile(change):
    """A room whose server changes the request that brings the model."""
    room, strategy = (
        Room(config=HONEST_BUT_CURIOUS, nodes=NODES),
        strategy_of(HONEST_BUT_CURIOUS, len(NODES)),
    )
    message = next(iter(strategy.configure_evaluate(1, model(), ConfigRecord(), room)))
    before = ledger(room.contexts[101]).releases
    reply = SIMULATED(change(message, room), room.contexts[101], evaluates(1.0))
    assert reply.has_error()
    assert ledger(room.contexts[101]).releases == before == 0
    return reply.error.reason


def renamed(mechanism):
    def change(message, room):
        content = RecordDict(
            {**message.content, "quietbit": ConfigRecord(request_record(1, mechanism))}
        )
        return Message(content, message.metadata.dst_node_id, "evaluate")

    return change


def test_a_server_that_asks_for_fewer_lies_gets_no_answer():
    assert "quietbit.evaluate" in hostile(renamed(SummedResponse(2, 2.0**-20)))


def test_a_server_that_asks_for_other_cells_gets_no_answer():
    plan = Plan.from_run_config(HONEST_BUT_CURIOUS)
    assert "quietbit.evaluate" in hostile(renamed(SummedResponse(5, plan.evaluation.mechanism.lie)))


def test_a_server_that_asks_for_the_answer_in_the_open_gets_none():
    """The same request without its part about a sum: the few lies of a summed answer would protect
    nobody.
    """

    def bare(message, room):
        content = RecordDict(
            {name: record for name, record in message.content.items() if name != SUM}
        )
        return Message(content, message.metadata.dst_node_id, "evaluate")

    assert "masked sum" in hostile(bare)
    assert "quietbit.evaluate" in hostile(renamed(RandomisedResponse.within(1.5, 2, "zero-out")))


def test_a_server_that_names_fewer_clients_than_the_threshold_gets_no_answer():
    def fewer(message, room):
        changed = asking(message, clients=6)
        return Message(changed.content, message.metadata.dst_node_id, "evaluate")

    assert "threshold" in hostile(fewer)


def test_an_answer_is_not_taken_for_an_update_nor_its_masks_for_another_sum():
    """The request about the model as a training message, and the vector of a sum of updates as an
    evaluation.
    """

    def trains(message, room):
        return Message(message.content, message.metadata.dst_node_id, "train")

    assert "parameters must be 2" in hostile(trains)
    room, strategy = Room(config=FEW), strategy_of(FEW, 6)
    message = next(iter(strategy.configure_train(1, model(), ConfigRecord({}), room)))
    reply = room.carry(
        Message(message.content, message.metadata.dst_node_id, "evaluate"), evaluates(1.0)
    )
    assert reply.has_error()
    assert ledger(room.contexts[101]).releases == 0


def test_a_request_that_was_answered_is_not_answered_again():
    room, strategy = Room(config=FEW), strategy_of(FEW, 6)
    messages, _, _ = evaluate(strategy, room)
    again = room.carry(messages[0], evaluates(0.0))
    assert again.has_error()
    strategy, _ = run(room, 1, FEW)  # training goes on beside it
    assert strategy.report().rounds[0].answered == 6
