"""How a clip moves, by hand; what its scouts may cost; and plans that it has no part in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from quietbit import Adjacency, InvalidParameter, Plan
from quietbit.engine.round import Run
from quietbit.mechanism.base import Answers
from quietbit.mechanism.response import RandomisedResponse
from quietbit.plan.clip import MovingClip
from quietbit.privacy.account import Account

MOVES: Any = {"clip": 2.0, "adjacency": "zero-out", "epsilon": 8.0, "releases": 10, "clip_quantile": 0.5}


def after(answers: Answers, steps: int, **given: float) -> float:
    """Return the factor of the step that follows ``steps`` others, which went up and down in turn."""
    moving = MovingClip.from_start(2.0, quantile=0.5, **given)
    for number in range(steps):
        moving.move(Answers(float(number % 2), 0.0))
    before = moving.clip
    moving.move(answers)
    return moving.clip / before


def test_steps_are_long_at_first_and_then_the_rate() -> None:
    sure = Answers(0.9, 0.0)
    assert after(sure, 0) == pytest.approx(math.exp(-1.5 * 0.4))
    assert after(sure, 4) == pytest.approx(math.exp(-0.5 * 0.4))
    assert after(sure, 100) == pytest.approx(math.exp(-0.2 * 0.4))
    assert after(Answers(0.5, 0.0), 3) == 1.0
    assert after(Answers(0.0, 0.0), 3) > 1.0


@pytest.mark.parametrize("share", [-1.4, 0.0, 0.3, 0.5, 0.9, 1.0, 2.4])
def test_an_interval_that_contains_the_aim_moves_nothing(share: float) -> None:
    edge = abs(share - 0.5) / 2
    assert after(Answers(share, edge * 1.01 + 1e-3), 0) == 1.0
    if share != 0.5:
        assert (after(Answers(share, edge * 0.99), 0) < 1) is (share > 0.5)


def test_a_share_beyond_what_is_possible_moves_no_further_than_all_or_none() -> None:
    assert after(Answers(40.0, 0.5), 0) == after(Answers(1.0, 0.0), 0)
    assert after(Answers(-40.0, 0.5), 0) == after(Answers(0.0, 0.0), 0)


def test_answers_about_one_clip_are_pooled_until_they_say_something() -> None:
    moving = MovingClip.from_start(1.0, quantile=0.5)
    for _ in range(4):
        moving.move(Answers(1.0, 0.5))  # a single scout, who always tells the truth
    assert moving.history == [1.0] * 5
    moving.stay()  # a round without a scout
    moving.move(Answers(1.0, 0.5))
    assert moving.clip < 0.5
    moving.move(Answers(1.0, 0.5))  # one answer about the new clip
    assert moving.clip == moving.history[-2]


def test_noise_bounds_the_way_up_and_not_the_way_down() -> None:
    """Updates that undo noise are as long as the noise, which grows with the clip: the clip would follow itself."""
    for noise, highest in ((0.0, 100.0), (0.2, 100.0), (1.0, 5.0), (2.0, 1.25), (3.0, 1.0), (50.0, 1.0)):
        up, down = MovingClip.from_start(2.0, quantile=0.5), MovingClip.from_start(2.0, quantile=0.5)
        for _ in range(80):
            up.move(Answers(0.0, 0.0), noise)
            down.move(Answers(1.0, 0.0), noise)
        assert up.clip == pytest.approx(2 * highest)
        assert down.clip == pytest.approx(0.02)
        up.move(Answers(0.0, 0.0), 50.0)  # half of the nodes are gone: it does not fall for that
        assert up.clip == pytest.approx(2 * highest)


@pytest.mark.parametrize(("truth", "most"), [(1.0, 1.5), (0.55, 2.2), (0.2, 2.2)])
def test_twenty_clients_leave_a_good_clip_where_it_is(truth: float, most: float) -> None:
    """Their median is the clip: nineteen of twenty runs of 40 rounds end within this factor of it."""
    draw = np.random.default_rng(5)
    ends = []
    for _ in range(200):
        moving = MovingClip.from_start(1.0, quantile=0.5)
        for _ in range(40):
            scouts = int(draw.binomial(20, 0.05))
            short = draw.lognormal(0.0, 0.6, scouts) <= moving.clip
            said = np.where(draw.random(scouts) < truth, short, draw.random(scouts) < 0.5)
            if scouts:
                share = (float(said.mean()) - (1 - truth) / 2) / truth
                moving.move(Answers(share, 0.5 / (truth * math.sqrt(scouts))), 1.0)
            else:
                moving.stay()
        ends.append(max(moving.clip, 1 / moving.clip))
    assert np.quantile(ends, 0.95) < most
    assert np.median(ends) < 1.05


def chased(rounds: int, seed: int) -> list[float]:
    """Return the clips of a model that noise drives: 20 clients send their way back, which is as long as the noise."""
    draw, moving = np.random.default_rng(seed), MovingClip.from_start(1.0, quantile=0.5)
    place, noise = np.zeros(650), 4.9  # of 650 parameters at epsilon 60 over 40 releases
    for _ in range(rounds):
        length = float(np.linalg.norm(place))
        mean = place * min(1.0, moving.clip / max(length, 1e-12))
        place = place - mean + draw.normal(size=650) * noise * moving.clip / math.sqrt(650)
        moving.move(Answers(float(length <= moving.clip), 0.5), noise)
    return moving.history


def test_a_clip_does_not_follow_its_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        assert max(chased(40, seed)) == 1.0
    monkeypatch.setattr("quietbit.plan.clip.RISE", 1e12)
    assert chased(40, 0)[-1] > 10  # so it would


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
    assert moving.clip == 0.01
    for _ in range(100):
        moving.move(Answers(-30.0, 0.0))
    assert moving.clip == 100.0


@pytest.mark.parametrize(
    ("dimension", "asked", "rounds", "says"),
    [
        (650, 20, 10, "will hardly move from 2: the run has about 10 answers"),
        (20_000, 400, 40, "will not rise above 2: the noise"),
        (100, 1000, 40, None),
    ],
)
def test_an_engine_says_when_scouts_cannot_move_the_clip(
    dimension: int, asked: int, rounds: int, says: str | None
) -> None:
    said: list[str] = []
    plan = Plan("gaussian", **{**MOVES, "epsilon": 20.0, "releases": 20}, mode="adaptive")
    run = Run(plan, 7, lambda level, line: said.append(line))
    run.mechanism(dimension, 1)
    run.outlook(asked=asked, nodes=asked, rounds=rounds)
    about = [line for line in said if line.startswith("the clip")]
    assert len(about) == (says is not None)
    assert says is None or says in about[0]


@pytest.mark.parametrize("word", ["gaussian", "vmvu", "skellam"])
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("mode", ["planned", "adaptive"])
def test_any_list_of_updates_and_answers_stays_in_the_budget(word: str, adjacency: Adjacency, mode: Any) -> None:
    """On the account that is enforced: an answer is as true as the budget allows, and no truer."""
    cohort = {"cohort": 100} if mode == "planned" else {}
    plan = Plan(word, **{**MOVES, "adjacency": adjacency, "releases": 5}, **cohort, mode=mode)
    mechanism: Any = plan.mechanism_for(40)
    assert (mechanism.clip, mechanism.every) == (2.0, 20)
    account = Account(plan.target, mode)
    assert account.spend(plan.release(mechanism), 5).epsilon() <= 8.0
    truer = evolve(mechanism, truth=min(mechanism.truth * 1.001, 1 - 1e-10))
    assert account.spend(plan.release(truer), 5).epsilon() > 8.0
    assert 0.2 < mechanism.truth < 1


def test_updates_err_as_without_scouts_but_for_those_that_are_missing() -> None:
    still = Plan("vmvu", **{**MOVES, "clip_quantile": None}).mechanism_for(40)
    plan = Plan("vmvu", **MOVES, cohort=1000)
    moved = plan.mechanism_for(40)
    assert moved.layout == still.layout
    for clip in (0.01, 2.0, 300.0):
        assert moved.at_clip(clip).error().squared == pytest.approx(still.error().squared * (clip / 2) ** 2)
    assert 1000 / plan.updates < 1.06
    sums = Plan("imvu", **MOVES, cohort=1000, trust="secure-aggregation")
    assert (sums.clip_scouts, sums.updates, sums.summed_clients) == (40, 975, 975)
    assert (1000 / sums.updates) ** 2 < 1.06  # the noise is that of the whole sum


def test_sums_are_priced_for_answers_that_the_server_sees() -> None:
    plan = Plan("imvu", **MOVES, cohort=100, trust="secure-aggregation")
    mechanism: Any = plan.mechanism_for(40)
    within, answer = mechanism.inner.sum_privacy(98, plan.adjacency), mechanism.truth
    found = mechanism.sum_privacy(98, plan.adjacency)
    assert found.pure_epsilon() >= RandomisedResponse(2, answer).epsilon_upper(plan.adjacency)
    for alpha in (1.5, 3.0, 20.0):
        assert found.rdp(alpha) >= within.rdp(alpha)
    assert (found * 10).epsilon(1e-5) <= 8.0


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"clip_quantile": 0.3}, (2.0, 0.3, 20)),
        ({"clip_scouts": 5}, (2.0, 0.5, 5)),
        ({"clip": "auto"}, (1.0, 0.5, 20)),
        ({"clip": "auto", "clip_scouts": 7, "clip_quantile": 0.4}, (1.0, 0.4, 7)),
        ({}, (2.0, None, None)),
    ],
)
def test_each_word_brings_the_others(given: dict[str, Any], found: tuple[Any, ...]) -> None:
    plan = Plan("vmvu", **{**MOVES, "cohort": 100, "clip_quantile": None, **given})
    assert (plan.clip, plan.clip_quantile, plan.clip_scouts) == found
    assert (plan.moving_clip() is None) is (found[2] is None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clip_quantile": 1.0}, "clip_quantile must be between 0 and 1"),
        ({"clip_quantile": 0.0}, "clip_quantile must be"),
        ({"clip_quantile": math.nan}, "clip_quantile must be"),
        ({"clip_rate": 0.0}, "clip_rate must be"),
        ({"clip_rate": 3.0}, "clip_rate must be"),
        ({"clip_quantile": None, "clip_rate": 0.2}, "clip_rate must be left out unless the clip moves"),
        ({"unit": "sample"}, "unit must be client where the clip moves"),
        ({"cohort": 19}, "clip_scouts must be at most 19"),
        ({"clip_scouts": 1}, "clip_scouts must be"),
        ({"clip": "automatic"}, "clip must be"),
        ({"participation": "secret-order"}, "participation must be left out where scouts answer"),
        ({"design_epsilon": 1.0, "releases": None}, "clip_scouts must be left out where the mechanism's strength"),
    ],
)
def test_a_clip_that_cannot_move_so_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidParameter, match=sentence):
        Plan("imvu", **{**MOVES, "cohort": 100, **changes}).mechanism_for(50)


def test_without_privacy_and_under_central_trust_the_clip_stays() -> None:
    with pytest.raises(InvalidParameter, match="trust must be local or secure-aggregation where the clip moves"):
        Plan("gaussian", **MOVES, cohort=100, trust="central")
    with pytest.raises(InvalidParameter, match="clip_quantile must be left out without privacy"):
        Plan("none", clip=1.0, adjacency="zero-out", clip_quantile=0.5)
