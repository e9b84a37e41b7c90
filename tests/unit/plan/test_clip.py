"""How a clip moves, by hand; what its bits may cost; and plans that it has no part in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from quietbit import Adjacency, InvalidParameter, Plan
from quietbit.mechanism.adaptive_clip import AdaptiveClip
from quietbit.mechanism.base import Answers
from quietbit.plan.clip import ClipRule, MovingClip, usual_bit_epsilon
from quietbit.privacy.cost import Cost

MOVES: Any = {"clip": 2.0, "adjacency": "zero-out", "epsilon": 8.0, "releases": 10, "clip_quantile": 0.5}


def test_steps_are_long_at_first_and_then_the_rate() -> None:
    rule, sure = ClipRule(0.5), Answers(0.9, 0.0)
    assert rule.following(2.0, sure, 0) == pytest.approx(2 * math.exp(-1.5 * 0.4))
    assert rule.following(2.0, sure, 4) == pytest.approx(2 * math.exp(-0.5 * 0.4))
    assert rule.following(2.0, sure, 100) == pytest.approx(2 * math.exp(-0.2 * 0.4))
    assert rule.following(2.0, Answers(0.5, 0.0), 3) == 2.0
    assert rule.following(2.0, Answers(0.0, 0.0), 3) > 2.0


def test_noise_beyond_half_a_share_shortens_the_step_by_as_much() -> None:
    rule = ClipRule(0.5, 1.0)
    assert rule.following(1.0, Answers(1.5, 0.5), 99) == pytest.approx(math.exp(-1))
    assert rule.following(1.0, Answers(1.5, 5.0), 99) == pytest.approx(math.exp(-0.1))


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.8])
def test_a_start_ten_times_off_ends_at_the_quantile(factor: float, quantile: float) -> None:
    lengths = np.random.default_rng(1).lognormal(0.0, 0.7, 4000)
    wanted = float(np.quantile(lengths, quantile))
    moving = MovingClip.from_start(factor * wanted, quantile=quantile)
    for _ in range(60):
        moving.move(Answers(float((lengths <= moving.clip).mean()), 0.0))
    assert moving.clip == pytest.approx(wanted, rel=0.05)
    assert moving.history[0] == factor * wanted
    assert len(moving.history) == 61


def test_a_round_without_answers_goes_back_to_the_last_clip_that_had_some() -> None:
    moving = MovingClip.from_start(1.0, quantile=0.5)
    moving.move(None)
    assert moving.clip == 1.0
    moving.move(Answers(0.0, 0.0))
    assert moving.clip > 1.0
    moving.move(None)
    assert moving.clip == 1.0


def test_the_clip_stays_within_reach_of_its_start() -> None:
    moving = MovingClip.from_start(1.0, quantile=0.5, rate=2.0)
    for _ in range(100):
        moving.move(Answers(1.0, 0.0))
    assert moving.clip == 1e-4
    for _ in range(100):
        moving.move(Answers(-30.0, 0.0))
    assert moving.clip == 1e4


@pytest.mark.parametrize("releases", [1, 10, 600])
def test_bits_alone_cost_a_tenth_of_the_budget(releases: int) -> None:
    each = usual_bit_epsilon(8.0, 1e-5, releases)
    spent = [(Cost.pure(factor * each) * releases).epsilon(1e-5) for factor in (1.0, 1.001)]
    assert spent[0] <= 0.8 < spent[1]


def test_a_plan_prices_the_bit_and_meets_its_budget() -> None:
    plan = Plan("imvu", **MOVES)
    mechanism: Any = plan.mechanism_for(50)
    assert isinstance(mechanism, AdaptiveClip)
    assert mechanism.clip == 2.0
    assert mechanism.bit_epsilon == usual_bit_epsilon(8.0, 1e-5, 10)
    assert 7.99 < (mechanism.privacy(Adjacency.ZERO_OUT) * 10).epsilon(1e-5) <= 8.0
    account = plan.account(mechanism, np.ones(3, dtype=np.int64))
    for _ in range(10):
        account.record(np.array([1]))
    assert account.worst(1e-5).epsilon_upper == (mechanism.privacy(Adjacency.ZERO_OUT) * 10).epsilon(1e-5)
    by_hand: Any = Plan(
        "gaussian", clip=2.0, adjacency="zero-out", noise_multiplier=3.0, clip_quantile=0.7, clip_bit_epsilon=0.3
    ).mechanism_for(50)
    assert (by_hand.inner.noise_multiplier, by_hand.bit_epsilon) == (3.0, 0.3)
    assert plan.moving_clip() is not None
    assert Plan("imvu", **{**MOVES, "clip_quantile": None}).moving_clip() is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clip_quantile": 1.0}, "clip_quantile must be between 0 and 1"),
        ({"clip_quantile": 0.0}, "clip_quantile must be"),
        ({"clip_quantile": math.nan}, "clip_quantile must be"),
        ({"clip_rate": 0.0}, "clip_rate must be"),
        ({"clip_rate": 3.0}, "clip_rate must be"),
        ({"clip_bit_epsilon": math.nan}, "bit_epsilon must be"),
        ({"clip_quantile": None, "clip_rate": 0.2}, "clip_rate must be left out unless the clip moves"),
        ({"clip_quantile": None, "clip_bit_epsilon": 0.2}, "clip_bit_epsilon must be left out unless the clip moves"),
        ({"unit": "sample"}, "unit must be client where the clip moves"),
        ({"trust": "secure-aggregation", "cohort": 10}, "trust must be local where the clip moves"),
        ({"design_epsilon": 1.0, "releases": None}, "clip_bit_epsilon must be given"),
    ],
)
def test_a_clip_that_cannot_move_so_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidParameter, match=sentence):
        Plan("imvu", **{**MOVES, **changes}).mechanism_for(50)


def test_without_privacy_and_under_central_trust_the_clip_stays() -> None:
    with pytest.raises(InvalidParameter, match="trust must be local where the clip moves"):
        Plan("gaussian", **MOVES, trust="central")
    with pytest.raises(InvalidParameter, match="clip_quantile must be left out without privacy"):
        Plan("none", clip=1.0, adjacency="zero-out", clip_quantile=0.5)
