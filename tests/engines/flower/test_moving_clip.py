"""A clip that moves through Flower by scouts: who scouts sends no update, and both ends price and
count alike.
"""

import math

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import ConfigRecord

from engines.flower.kit import CONFIG, DIMENSION, NODES, RUN, Federation, ledger, model
from engines.flower.secure_kit import CONFIG as SECURE
from engines.flower.secure_kit import SUM, Room, strategy_of
from engines.flower.test_strategy import vector
from quietbit import MovingClip, Plan
from quietbit.errors import InvalidParameter
from quietbit.node.budget import account_of
from quietbit.node.request import run_name
from quietbit.wire.uplink import Uplink

SCOUTED = {**CONFIG, "quietbit.scouts.every": 2, "quietbit.releases": 6}
SUMS = {**SECURE, "quietbit.scouts.every": 3, "quietbit.masks.threshold": 3, "quietbit.releases": 3}
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


@pytest.fixture
def eager(monkeypatch):
    """Let the clip move with every answer, however few there are and however loud the noise."""
    monkeypatch.setattr("quietbit.federation.moving_clip.SURE", 0.0)
    monkeypatch.setattr("quietbit.federation.moving_clip.RISE", 1e12)


def clips(strategy):
    return [entry.clip for entry in strategy.report().rounds]


def scouts(strategy, number, nodes):
    mechanism = strategy.settings.mechanism_for(DIMENSION)
    return {node for node in nodes if not mechanism.is_turn_of(run_name(RUN), number, node)}


def test_the_clip_follows_scouts_who_send_no_update(eager):
    federation, moving = Federation(config=SCOUTED), MovingClip.from_start(1.0, quantile=0.5)
    for number in range(1, 7):
        replies, who = federation.ask(number, model()), scouts(federation.strategy, number, NODES)
        at = federation.strategy.settings.mechanism_for(DIMENSION).at_clip(moving.clip)
        said, sent = Uplink(at.scout()).aggregator(), []
        for reply in replies:
            data = reply.content["quietbit"]["release"][24:]
            said.add(data) if reply.metadata.src_node_id in who else sent.append(data)
        old = model()
        found, metrics = federation.strategy.aggregate_train(number, replies)
        last = federation.strategy.report().rounds[-1]
        assert (last.scouts, last.scouted, last.asked, last.answered) == (
            len(who),
            len(who),
            *[4 - len(who)] * 2,
        )
        assert metrics["quietbit-clip"] == last.clip == moving.clip
        assert metrics["quietbit-scouted"] == len(who)
        if sent:
            expected = (vector(old) - Uplink(at).receive(sent)).astype(np.float32)
            assert np.array_equal(vector(found), expected.astype(np.float64))
        moving.move(said.answers()) if who else moving.stay()
    found = clips(federation.strategy)
    assert len(set(found)) > 3
    assert f"clip {found[1]:.3g}, " in str(federation.strategy.report())


def test_a_release_for_another_round_or_kind_is_refused(eager):
    federation = Federation(config=SCOUTED)
    old = {reply.metadata.src_node_id: reply for reply in federation.ask(1, model())}
    federation.strategy.aggregate_train(1, list(old.values()))
    replies = federation.ask(2, model())
    for reply in replies:
        # The frame of round 2 around a payload of round 1: run, round and node are right, the clip
        # or the kind is not.
        before = old[reply.metadata.src_node_id].content["quietbit"]["release"]
        reply.content["quietbit"]["release"] = (
            reply.content["quietbit"]["release"][:24] + before[24:]
        )
    federation.strategy.aggregate_train(2, replies)
    last = federation.strategy.report().rounds[-1]
    assert (last.answered, last.scouted, last.refused) == (0, 0, 4)
    assert clips(federation.strategy)[1:] == [clips(federation.strategy)[1]]


def test_a_round_without_an_answer_leaves_the_clip():
    federation = Federation(config=SCOUTED)
    for number in (1, 2):
        federation.ask(number, model())
        federation.strategy.aggregate_train(number, [])
    assert clips(federation.strategy) == [1.0, 1.0]
    assert {node.failed for node in federation.strategy.report().nodes} == {2}


@pytest.mark.parametrize("server", ["honest-but-curious", "active"])
def test_scouts_of_sums_answer_alone_and_the_others_are_summed(server, eager):
    nodes, config = list(range(101, 107)), {**SUMS, "quietbit.masks.server": server}
    if server == "active":
        config["quietbit.masks.threshold"] = 4
    room, strategy = Room(config=config, nodes=nodes), strategy_of(config, len(nodes))
    arrays, moved = model(), []
    for number in range(1, 4):
        who = scouts(strategy, number, nodes)
        messages = strategy.configure_train(number, arrays, ConfigRecord({}), room)
        alone = {m.metadata.dst_node_id for m in messages if m.content[SUM]["step"] == "alone"}
        assert alone == who
        arrays, _ = strategy.aggregate_train(number, room.send_and_receive(messages))
        last = strategy.report().rounds[-1]
        assert (last.scouts, last.scouted) == (len(who), len(who))
        fits = len(nodes) - len(who) >= config["quietbit.masks.threshold"] and (
            server == "active" or len(nodes) - len(who) <= 5
        )
        assert last.answered == (len(nodes) - len(who) if fits else 0), last.sentences()
        moved.append(last.answered)
        for node in who:
            assert ledger(room.contexts[node]).last_round(str(RUN)) == number
    assert any(moved)
    assert len(set(clips(strategy))) > 1
    report = strategy.report()
    cap = strategy.settings.target
    for entry in report.nodes:
        if entry.releases == ledger(room.contexts[entry.node]).releases:
            assert (
                entry.epsilon_upper
                == account_of(ledger(room.contexts[entry.node]), cap, 3).epsilon()
            )


def test_settings_come_back_and_those_without_a_meaning_are_refused():
    settings = Plan.from_run_config({**CONFIG, "quietbit.clip": "auto"})
    assert settings.to_run_config()["quietbit.scouts.every"] == 20
    assert Plan.from_run_config(settings.to_run_config()) == settings
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(InvalidParameter) as refusal:
            Plan.from_run_config({**CONFIG, "quietbit.scouts.quantile": wrong})
        assert refusal.value.name == "quietbit.scouts.quantile"


def test_a_fixed_clip_says_nothing_about_itself():
    federation = Federation()
    _, metrics = federation.strategy.aggregate_train(1, federation.ask(1, model()))
    assert clips(federation.strategy) == [None]
    assert "quietbit-clip" not in metrics
    assert np.isfinite(metrics["quietbit-epsilon"])
