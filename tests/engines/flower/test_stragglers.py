"""Rounds that do not wait: late releases are in no mean, and each node pays for what it made."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg

from engines.flower.kit import (
    CONFIG,
    DIMENSION,
    SIMULATED,
    HandGrid,
    app,
    be_the_server,
    context,
    model,
)
from quietbit.federation.parts.stragglers import Stragglers
from quietbit.flower import PrivateStrategy
from quietbit.flower.transport import PAUSE, HurriedGrid
from quietbit.wire.uplink import Uplink

NODES = (11, 12, 13, 14, 15, 16)
HURRIED = {
    **CONFIG,
    "quietbit.stragglers.enough": 2,
    "quietbit.stragglers.timeout": 10.0,
    "quietbit.releases": 6,
}
NEVER = 10**9
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


class SlowGrid(HandGrid):
    """Nodes answer when they are asked, by the real mod; ``delay`` says after how many looks a
    node's reply is there.
    """

    def __init__(self, delay, config=HURRIED):
        super().__init__(NODES)
        self.delay = delay
        self.looks = 0
        self.sent = {}
        self.log = []
        self.contexts = {node: context(node, place, config) for place, node in enumerate(NODES)}

    def push_messages(self, messages):
        names = []
        for message in messages:
            node = message.metadata.dst_node_id
            name = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            reply = SIMULATED(message, self.contexts[node], app(np.full(DIMENSION, 0.01 * node)))
            reply.metadata.__dict__["_reply_to_message_id"] = name
            self.sent[name] = (self.looks + self.delay(node), reply)
            self.log.append((node, message.content["quietbit"]["round"]))
            names.append(name)
        return names

    def pull_messages(self, message_ids):
        self.looks += 1
        return [self.sent[name][1] for name in message_ids if self.sent[name][0] <= self.looks]


def play(delay, rounds=3, grid=SlowGrid):
    """Play rounds; return the strategy, its grid, the models and the replies of the last round."""
    be_the_server()
    strategy = PrivateStrategy(FedAvg(fraction_train=1.0, fraction_evaluate=0.0), HURRIED)
    slow = grid(delay)
    waited = []
    grid = HurriedGrid(
        slow, strategy.settings.stragglers, waited.append, lambda: PAUSE * len(waited)
    )
    models = [model()]
    for number in range(1, rounds + 1):
        messages = strategy.configure_train(number, models[-1], ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages, timeout=3600.0))
        models.append(strategy.aggregate_train(number, replies)[0])
    return strategy, slow, models, replies


def test_a_round_ends_with_enough_replies_and_has_no_late_one():
    strategy, slow, models, replies = play(lambda node: 1 if node < 13 else 6)
    report = strategy.report()
    assert [entry.asked for entry in report.rounds] == [6, 6, 6]
    assert [entry.answered for entry in report.rounds] == [2, 2, 2]
    assert [entry.failed for entry in report.rounds] == [4, 4, 4]
    assert {number for _, number in slow.log} == {1, 2, 3}
    uplink = Uplink(strategy.settings.mechanism_for(DIMENSION))
    mean = uplink.receive([reply.content["quietbit"]["release"][24:] for reply in replies])
    flat = []
    for arrays in models[-2:]:
        flat.append(np.concatenate([array.numpy().reshape(-1) for array in arrays.values()]))
    np.testing.assert_allclose(flat[1], flat[0] - mean, atol=1e-5)


def test_nodes_that_decline_are_not_enough():
    """Two whose budget is spent decline at once, and ended every round before anybody answered."""
    decline = {11, 12}

    class Declining(SlowGrid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            for place, reply in enumerate(replies):
                if reply.metadata.src_node_id in decline:
                    name = reply.metadata.reply_to_message_id
                    error = Message(Error(6, "quietbit: budget-spent"), reply_to=reply)
                    error.metadata.__dict__.update(reply.metadata.__dict__)
                    assert error.metadata.reply_to_message_id == name
                    replies[place] = error
            return replies

    strategy, *_ = play(lambda node: 1 if node in decline else 6, grid=Declining)
    assert [entry.answered for entry in strategy.report().rounds] == [4, 4, 4]
    assert [entry.declined for entry in strategy.report().rounds] == [2, 2, 2]


def test_a_round_of_silent_nodes_ends():
    """Nobody answers in any round: every round ends after its seconds, and all releases count."""
    strategy, slow, models, replies = play(lambda node: NEVER, rounds=2)
    assert replies == []
    assert slow.looks <= 2 * (10.0 / PAUSE + 2)
    report = strategy.report()
    assert [entry.skipped for entry in report.rounds] == [True, True]
    assert [node.releases for node in report.nodes] == [2] * 6
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip_arrays(models))


def zip_arrays(models):
    return [(models[0][name], models[-1][name]) for name in models[0]]


def test_evaluations_wait_for_everybody():
    class Whole(HandGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return ["all of", len(list(messages))]

    grid = HurriedGrid(Whole(NODES), Stragglers(2))
    asked = []
    for node in NODES:
        content = RecordDict({"arrays": ArrayRecord()})
        asked.append(Message(content, dst_node_id=node, message_type=MessageType.EVALUATE))
    assert grid.send_and_receive(asked) == ["all of", 6]
