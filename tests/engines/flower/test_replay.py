"""Replayed rounds in Flower: nodes follow the server bit for bit, whoever drops out, restarts,
joins late or lies.
"""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from engines.flower.kit import (
    RUN,
    HandGrid,
    be_the_server,
    context,
    gated,
    ledger,
    simulated,
    trained,
)
from quietbit.errors import InvalidParameter
from quietbit.federation.messages import MODEL, SPEED
from quietbit.flower import PrivateStrategy, Simulation
from quietbit.node.refusal import Reason, Refusal

SIZE = 20_000
CONFIG = {
    "quietbit.mechanism": "vmvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 1000.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.mechanism.design-epsilon": 2.0,
    "quietbit.mechanism.coordinates": 64,
    "quietbit.replay": True,
    "quietbit.local-arrays": "counter",
}
MOD = simulated(gated(simulation=Simulation(seed=7)))
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


def start(_: Context | None = None, kind=np.float32) -> ArrayRecord:
    rng = np.random.default_rng(5)
    return ArrayRecord(
        {
            "weight": Array(rng.normal(size=(SIZE // 100, 99)).astype(kind)),
            "counter": Array(np.array(7, dtype=np.int64)),
            "bias": Array(rng.normal(size=SIZE // 100).astype(kind)),
        }
    )


class Federation:
    """A server and nodes whose models the test sees; `play` is one round."""

    def __init__(self, nodes=(11, 12, 13), inner=None, mod=MOD, more=()):
        be_the_server()
        self.config = {
            key: value for key, value in (CONFIG | dict(more)).items() if value is not None
        }
        self.strategy = PrivateStrategy(
            inner or FedAvg(min_train_nodes=1, min_available_nodes=1), self.config
        )
        self.arrays, self.mod, self.number = start(), mod, 0
        self.contexts, self.seen, self.full = {}, {}, {}
        for node in nodes:
            self.join(node)

    def join(self, node):
        self.contexts[node] = context(node, node, self.config)

    def play(self, among=None, lost=(), silent=(), change=None):
        """One round with these nodes: of those ``lost`` no reply arrives, and those ``silent`` hear
        nothing.
        """
        self.number += 1
        asked = HandGrid(self.contexts if among is None else among)
        messages = list(
            self.strategy.configure_train(self.number, self.arrays, ConfigRecord(), asked)
        )
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.full[node] = bool(message.content.array_records)
            if node in silent:
                continue
            if change is not None:
                change(message)
            reply = self.mod(message, self.contexts[node], self._app(node))
            if node not in lost:
                replies.append(reply)
        self.arrays, metrics = self.strategy.aggregate_train(self.number, replies)
        return replies, metrics

    def _app(self, node):
        def train(message, _):
            self.seen[node] = message.content["arrays"]
            assert {MODEL, SPEED}.isdisjoint(message.content)
            return trained(
                message, np.random.default_rng([node, self.number]).normal(size=SIZE + 1) / 200
            )

        return train

    @property
    def last(self):
        return self.strategy.report().rounds[-1]


def same(one, two):
    return list(one) == list(two) and all(
        one[name].numpy().tobytes() == two[name].numpy().tobytes()
        and one[name].shape == two[name].shape
        for name in one
    )


@pytest.mark.parametrize(
    ("inner", "more"),
    [
        (FedAvgM(server_learning_rate=0.5, server_momentum=0.9), {}),
        (
            FedAvg(),
            {
                "quietbit.mechanism.design-epsilon": None,
                "quietbit.releases": 4,
                "quietbit.adaptive-clip.every": 2,
            },
        ),
    ],
    ids=["FedAvgM", "scouts"],
)
def test_nodes_get_rounds_and_the_app_sees_the_whole_model(inner, more):
    federation = Federation(inner=inner, more=more)
    for number in range(1, 5):
        before = federation.arrays
        federation.play()
        assert all(same(seen, before) for seen in federation.seen.values())
        assert set(federation.full.values()) == {number == 1}
        assert federation.last.answered + federation.last.scouted == 3
    assert not same(federation.arrays, start())
    assert federation.arrays["counter"].numpy() == 7
    first, later = federation.strategy.report().rounds[0], federation.last
    assert later.downlink < first.downlink / 10
    assert later.resyncs == 0


@pytest.mark.parametrize("rounds", [25, pytest.param(100, marks=pytest.mark.long)])
def test_dropouts_restarts_and_late_joiners_end_in_one_model(rounds):
    federation = Federation(range(11, 17))
    rng, resyncs, restarted = np.random.default_rng(3), 0, 0
    for number in range(1, rounds + 1):
        if number in (10, 17):
            federation.join(100 + number)
        known = list(federation.contexts)
        asked = sorted(rng.choice(known, size=int(rng.integers(1, 4)), replace=False).tolist())
        lost = [node for node in asked if rng.random() < 0.2]
        silent = [node for node in asked if rng.random() < 0.1]
        if rng.random() < 0.1:  # a node that starts anew has lost its model
            node = int(rng.choice(known))
            restarted += federation.contexts[node].state.pop(MODEL, None) is not None
        federation.play(asked, lost, silent)
        resyncs += federation.last.resyncs
    assert 0 < resyncs <= restarted
    sent = federation.arrays
    for _ in range(2):
        federation.seen.clear()
        sent = federation.arrays
        federation.play()
    assert set(federation.seen) == set(federation.contexts)
    assert all(same(seen, sent) for seen in federation.seen.values())


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("momentum", "damage"),
    [
        (0.0, lambda content: None),
        (0.9, lambda content: None),
        (0.0, lambda content: content[: len(content) // 2]),
        (0.0, lambda content: flipped(content, 0)),
        (0.9, lambda content: flipped(content, len(content) // 2)),  # a number of the model
    ],
    ids=["lost", "lost, with momentum", "half", "start", "bit"],
)
def test_a_node_that_lost_its_model_says_so_spends_nothing_and_gets_it(momentum, damage):
    """With momentum it gets the speed of the model beside it, which no app is shown."""
    federation = Federation(more={"quietbit.replay.momentum": momentum})
    federation.play()
    state = federation.contexts[12].state
    left = damage(state.pop(MODEL)[f"{RUN}.model"])
    if left is not None:
        state[MODEL] = ConfigRecord({f"{RUN}.model": left})
    spent = ledger(federation.contexts[12]).releases
    replies, metrics = federation.play()
    said = [reply.error.reason for reply in replies if reply.has_error()]
    assert said == [f"quietbit: {Refusal(Reason.NEEDS_MODEL).to_text()}"]
    assert ledger(federation.contexts[12]).releases == spent
    assert (federation.last.resyncs, federation.last.declined, metrics["quietbit-resyncs"]) == (
        1,
        1,
        1,
    )
    federation.play()
    assert federation.full == {11: False, 12: True, 13: False}
    assert federation.last.answered == 3
    federation.play()
    assert not any(federation.full.values())


def test_who_has_the_start_from_the_app_never_gets_the_model():
    mod = simulated(gated(simulation=Simulation(seed=7), start=start))
    federation = Federation(mod=mod, more={"quietbit.replay.start": "app"})
    federation.play(among=[11, 12])
    federation.play(among=[11, 12])
    federation.play()
    assert federation.full == {11: False, 12: False, 13: False}
    assert federation.last.answered == 3
    other = Federation(more={"quietbit.replay.start": "app"})  # and no app that has it
    other.play()
    assert other.last.resyncs == 3
    other.play()
    assert other.last.answered == 3


def test_another_model_put_in_place_goes_out_in_full():
    federation = Federation()
    federation.play()
    federation.play()
    federation.arrays = start()
    federation.play()
    assert all(federation.full.values())
    federation.play()
    assert not any(federation.full.values())
    assert federation.last.answered == 3


def test_other_strategies_and_other_types_keep_the_full_model_and_say_so_once(caplog):
    federation = Federation(inner=FedAdam())
    for _ in range(2):
        federation.play()
    assert all(federation.full.values())
    assert caplog.text.count("nodes get the full model in every round") == 1
    assert "FedAdam is not plain averaging" in caplog.text
    caplog.clear()
    half = Federation()
    half.arrays = start(kind=np.float64)
    for _ in range(2):
        half.play()
    assert all(half.full.values())
    assert caplog.text.count("not everything that is learnt is float32") == 1
    with pytest.raises(InvalidParameter) as refusal:
        Federation(inner=FedAdam(), more={"quietbit.replay.learning-rate": 0.5})
    assert refusal.value.name == "quietbit.replay.learning-rate"


HOSTILE = {
    "another digest": {"digest": bytes(32)},
    "a short digest": {"digest": b"abc"},
    "another round": {"round": 99},
    "a negative round": {"round": -1},
    "another version": {"version": 2},
    "one field more": {"more": 1},
    "text": {"broadcasts": ["abc"]},
    "more than the model": {"broadcasts": [bytes(9 * SIZE)]},
    "none": {"broadcasts": []},
}


@pytest.mark.parametrize("rounds", [0, 1], ids=["full model", "broadcast"])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_hostile_server_sends_is_declined_and_costs_nothing(name, rounds):
    """The attack tests send broadcasts that are cut, forked or rolled back."""
    federation = Federation()
    for _ in range(rounds):
        federation.play()
    kept = [place.state.get(MODEL) for place in federation.contexts.values()]

    def change(message):
        record = {**message.content[MODEL], **HOSTILE[name]}
        message.content = RecordDict({**message.content, MODEL: ConfigRecord(record)})

    federation.seen.clear()
    replies, _ = federation.play(change=change)
    if not rounds and name == "none":
        return  # a full model comes without broadcasts
    assert all(reply.error.reason.startswith("quietbit: ") for reply in replies)
    assert not federation.seen
    places = federation.contexts.values()
    assert [ledger(place).releases for place in places] == [rounds] * 3
    assert [place.state.get(MODEL) for place in places] == kept
    federation.play()
    federation.play()
    assert federation.last.answered == 3
