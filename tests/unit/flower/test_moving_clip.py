"""A clip that moves through Flower: told before a release, bound to it, followed by the server, priced at both ends."""

import math

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from quietbit import Plan
from quietbit.errors import InvalidParameter
from quietbit.node.release import account_of
from quietbit.privacy.account import Account
from unit.flower.kit import CONFIG, DIMENSION, ledger, model
from unit.flower.test_strategy import NODES, Federation, numbers

STRENGTH = {"quietbit.design-epsilon": 0.5, "quietbit.clip-quantile": 0.5, "quietbit.clip-bit-epsilon": 2.0}
MOVING = {key: value for key, value in CONFIG.items() if key != "quietbit.releases"} | STRENGTH
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


def clips(federation):
    return [entry.clip for entry in federation.strategy.report().rounds]


def test_the_clip_follows_what_nodes_say():
    federation = Federation(config=MOVING)
    for number in (1, 2, 3):
        replies = federation.ask(number, model())
        _, metrics = federation.strategy.aggregate_train(number, replies)
        assert metrics["quietbit-clip"] == clips(federation)[-1]
        assert numbers(federation.strategy) == (4, 4, 0, 0)
    found = clips(federation)
    assert found[0] == 1.0
    assert len(set(found)) == 3
    assert f"clip {found[1]:.3g}\n" in str(federation.strategy.report())


def test_a_release_for_the_clip_of_another_round_is_refused():
    federation = Federation(config=MOVING)
    old = federation.ask(1, model())
    federation.strategy.aggregate_train(1, old)
    replies = federation.ask(2, model())
    for reply, before in zip(replies[:2], old[:2], strict=True):
        # The frame of round 2 around a payload of round 1: run, round and node are right, the clip is not.
        whole = reply.content["quietbit"]["release"][:24] + before.content["quietbit"]["release"][24:]
        reply.content["quietbit"]["release"] = whole
    federation.strategy.aggregate_train(2, replies)
    assert numbers(federation.strategy) == (4, 2, 0, 2)
    assert "mechanism identity" in federation.strategy.report().rounds[-1].reasons[0]


def test_server_and_node_agree_on_what_bits_and_releases_cost():
    federation = Federation(config=MOVING)
    for number in (1, 2):
        federation.strategy.aggregate_train(number, federation.ask(number, model()))
    report = federation.strategy.report()
    books = ledger(federation.contexts[NODES[0]])
    cap = federation.strategy.settings.target
    assert books.releases == 2
    assert len(books.mechanisms) == 1
    assert report.guarantee.epsilon_upper == account_of(books, cap, 0).epsilon()


def test_a_budget_holds_for_all_releases_with_their_bits():
    settings = Plan.from_run_config({**CONFIG, "quietbit.clip-quantile": 0.6})
    mechanism = settings.mechanism_for(DIMENSION)
    cap = settings.target
    reached = Account(cap, "adaptive").spend(settings.release(mechanism), 4).epsilon()
    assert 0.98 * 20 < reached <= 20
    assert settings.to_run_config()["quietbit.clip-quantile"] == 0.6
    assert Plan.from_run_config(settings.to_run_config()) == settings


def test_a_round_without_an_answer_leaves_the_clip():
    federation = Federation(config=MOVING)
    federation.ask(1, model())
    federation.strategy.aggregate_train(1, [])
    federation.ask(2, model())
    federation.strategy.aggregate_train(2, [])
    assert clips(federation) == [1.0, 1.0]


def test_a_clip_without_a_meaning_is_refused():
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(InvalidParameter, match=r"quietbit\.clip-quantile"):
            Plan.from_run_config({**CONFIG, "quietbit.clip-quantile": wrong})
    with pytest.raises(InvalidParameter, match=r"quietbit\.clip-rate must be left out"):
        Plan.from_run_config({**CONFIG, "quietbit.clip-rate": 0.3})
    sums = {
        **CONFIG, "quietbit.clip-quantile": 0.5, "quietbit.trust": "secure-aggregation", "quietbit.threshold": 3,
        "quietbit.server": "honest-but-curious",
    }  # fmt: skip
    with pytest.raises(InvalidParameter, match="trust must be local where the clip moves"):
        Plan.from_run_config(sums)


def test_a_fixed_clip_says_nothing_about_itself():
    federation = Federation()
    _, metrics = federation.strategy.aggregate_train(1, federation.ask(1, model()))
    assert clips(federation) == [None]
    assert "quietbit-clip" not in metrics
    assert np.isfinite(metrics["quietbit-epsilon"])
