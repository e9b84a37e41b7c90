"""Rounds that do not wait: who is asked, what late releases are worth, and what each node pays."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg

from quietbit.flower import PrivateStrategy
from quietbit.flower.arriving import ArrivingGrid
from quietbit.run.parts.arrivals import Arrivals
from quietbit.wire.uplink import Uplink
from unit.flower.kit import (
    CONFIG,
    DIMENSION,
    SIMULATED,
    HandGrid,
    app,
    be_the_server,
    context,
    ledger,
    model,
)

NODES = (11, 12, 13, 14, 15, 16)
ASYNC = {
    **CONFIG,
    "quietbit.arrivals.enough": 2,
    "quietbit.arrivals.staleness": 2,
    "quietbit.releases": 6,
}
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


class SlowGrid(HandGrid):
    """Nodes answer when they are asked, by the real mod; ``late`` says after how many looks each
    reply is there.
    """

    def __init__(self, late, config=ASYNC, nodes=NODES):
        super().__init__(nodes)
        self.late, self.looks, self.sent, self.log = late, 0, {}, []
        self.contexts = {node: context(node, place, config) for place, node in enumerate(nodes)}

    def push_messages(self, messages):
        found = []
        for message in messages:
            node, name = message.metadata.dst_node_id, f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            reply = SIMULATED(message, self.contexts[node], app(np.full(DIMENSION, 0.01 * node)))
            reply.metadata.__dict__["_reply_to_message_id"] = name
            self.sent[name] = (self.looks + self.late(node, message), reply)
            self.log.append((node, message.content["quietbit"]["round"]))
            found.append(name)
        return found

    def pull_messages(self, message_ids):
        self.looks += 1
        wanted = [name for name in message_ids if self.sent[name][0] <= self.looks]
        return [self.sent[name][1] for name in wanted]


def run(late, rounds=4, config=ASYNC, **given):
    be_the_server()
    strategy, grid = (
        PrivateStrategy(FedAvg(fraction_train=1.0, fraction_evaluate=0.0, **given), config),
        SlowGrid(late),
    )
    found = ArrivingGrid(grid, strategy.settings.arrivals, sleep=lambda _: None)
    strategy._arriving = found
    models = [model()]
    for number in range(1, rounds + 1):
        messages = strategy.configure_train(number, models[-1], ConfigRecord(), found)
        models.append(
            strategy.aggregate_train(number, found.send_and_receive(messages, timeout=60))[0]
        )
    strategy._run.finish()
    return strategy, grid, models


def test_a_round_ends_with_enough_replies_and_late_ones_join_the_next():
    """Four of six nodes are slow: round 1 steps with two, round 2 asks the free ones only and has
    what came late.
    """
    strategy, grid, models = run(lambda node, _: 1 if node < 13 else 6, rounds=3)
    report = strategy.report()
    assert [entry.round for entry in report.rounds] == [1, 2, 3]
    assert report.rounds[0].asked == 6
    assert report.rounds[0].answered == 6  # two in time and four late
    assert {node for node, number in grid.log if number == 2} == {
        11,
        12,
    }  # who has not answered is not asked
    assert [entry.refused for entry in report.rounds] == [0, 0, 0]
    assert len(models) == 4
    assert report.observers.result is None


def test_late_releases_are_decoded_as_those_of_their_round():
    """With shared rows a payload says nothing without its round: the step is the mean of what each
    round's rows say.
    """
    config = {
        **ASYNC,
        "quietbit.mechanism": "vmvu",
        "quietbit.mechanism.keep": 8,
        "quietbit.mechanism.rows": "shared",
    }
    be_the_server()
    strategy = PrivateStrategy(FedAvg(fraction_train=1.0, fraction_evaluate=0.0), config)
    grid = SlowGrid(lambda node, _: 1 if node < 13 else 4, config)
    found = strategy._arriving = ArrivingGrid(grid, Arrivals(2, 2), sleep=lambda _: None)
    arrays = model()
    for number in (1, 2):
        before = arrays
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), found))
        replies = list(found.send_and_receive(messages, timeout=60))
        arrays, _ = strategy.aggregate_train(number, replies)
    rounds = {name: grid.log[int(name[1:])][1] for name in grid.sent}
    single = []
    for reply in replies:
        mechanism = strategy.settings.mechanism_for(DIMENSION).for_round(
            str(grid.run.run_id).encode(), rounds[reply.metadata.reply_to_message_id]
        )
        single.append(Uplink(mechanism).receive([reply.content["quietbit"]["release"][24:]]))
    assert len({rounds[reply.metadata.reply_to_message_id] for reply in replies}) == 2
    flat = [
        np.concatenate([one.numpy().reshape(-1) for one in given.values()])
        for given in (before, arrays)
    ]
    np.testing.assert_allclose(flat[1], flat[0] - np.mean(single, axis=0), atol=1e-5)


def test_a_node_pays_when_it_releases_and_not_when_it_is_used():
    """The slowest comes too late for any step; its own ledger and the server's account say the
    same.
    """
    strategy, grid, _ = run(lambda node, _: 10**6 if node == 16 else 1, rounds=5)
    report = {node.node: node for node in strategy.report().nodes}
    for node in NODES:
        noted = ledger(grid.contexts[node])
        assert report[node].releases == len([one for one, _ in grid.log if one == node])
        assert (
            sum(entry.count for entry in noted.entries) == report[node].releases
            if hasattr(noted, "entries")
            else True
        )
    assert report[16].answered == 0
    assert report[16].failed == report[16].releases >= 1
    assert report[16].epsilon_upper > 0


def test_a_release_of_another_round_or_a_second_one_is_refused():
    """A node that sends the payload of an old round for a new request, or one reply twice, moves
    nothing.
    """
    be_the_server()
    strategy, grid = (
        PrivateStrategy(FedAvg(fraction_train=1.0, fraction_evaluate=0.0), ASYNC),
        SlowGrid(lambda *_: 0),
    )
    arrays = model()
    first = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    old = [
        SIMULATED(message, grid.contexts[message.metadata.dst_node_id], app(np.ones(DIMENSION)))
        for message in first
    ]
    arrays, _ = strategy.aggregate_train(1, [*old, old[0]])
    strategy.configure_train(2, arrays, ConfigRecord(), grid)
    after, _ = strategy.aggregate_train(2, old)  # yesterday's payloads, for today's requests
    strategy._run.finish()
    entries = strategy.report().rounds
    assert (entries[0].answered, entries[0].refused) == (6, 1)
    assert (entries[1].answered, entries[1].refused, entries[1].skipped) == (0, 6, True)
    assert all(np.array_equal(after[name].numpy(), arrays[name].numpy()) for name in arrays)


def test_the_last_round_waits_for_everybody():
    """What was asked for and paid is in a step: with three rounds planned, all six releases of the
    third are.
    """
    be_the_server()
    strategy = PrivateStrategy(FedAvg(fraction_train=1.0, fraction_evaluate=0.0), ASYNC)
    grid = SlowGrid(lambda node, _: node - 10)
    strategy._planned, arrays = 3, model()
    found = strategy._arriving = ArrivingGrid(grid, Arrivals(2, 2), sleep=lambda _: None)
    for number in (1, 2, 3):
        messages = strategy.configure_train(number, arrays, ConfigRecord(), found)
        arrays, _ = strategy.aggregate_train(number, found.send_and_receive(messages, timeout=60))
    strategy._run.finish()
    assert all(
        entry.failed == 0 and entry.answered == entry.asked for entry in strategy.report().rounds
    )


def test_evaluations_wait_for_everybody():
    class Whole(HandGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return ["all of", len(list(messages))]

    grid = ArrivingGrid(Whole(NODES), Arrivals(2, 1), sleep=lambda _: None)
    asked = [
        Message(
            RecordDict({"arrays": ArrayRecord()}),
            dst_node_id=node,
            message_type=MessageType.EVALUATE,
        )
        for node in NODES
    ]
    assert grid.send_and_receive(asked) == ["all of", 6]
