"""How a clip moves, by hand."""

import math

import numpy as np
import pytest

from quietbit.federation.moving_clip import MovingClip
from quietbit.mechanism.base import Answers


def after(answers, steps):
    """Return the factor of the step after ``steps`` others, which went up and down in turn."""
    moving = MovingClip.from_start(2.0, quantile=0.5)
    for number in range(steps):
        moving.move(Answers(float(number % 2), 0.0))
    before = moving.clip
    moving.move(answers)
    return moving.clip / before


def test_steps_are_long_at_first_and_then_the_rate():
    sure = Answers(0.9, 0.0)
    assert after(sure, 0) == pytest.approx(math.exp(-1.5 * 0.4))
    assert after(sure, 4) == pytest.approx(math.exp(-0.5 * 0.4))
    assert after(sure, 100) == pytest.approx(math.exp(-0.2 * 0.4))
    assert after(Answers(0.5, 0.0), 3) == 1.0
    assert after(Answers(0.0, 0.0), 3) > 1.0


@pytest.mark.parametrize("share", [-1.4, 0.0, 0.3, 0.5, 0.9, 1.0, 2.4])
def test_an_interval_that_contains_the_aim_moves_nothing(share):
    edge = abs(share - 0.5) / 2
    assert after(Answers(share, edge * 1.01 + 1e-3), 0) == 1.0
    if share != 0.5:
        assert (after(Answers(share, edge * 0.99), 0) < 1) is (share > 0.5)


def test_a_share_beyond_what_is_possible_moves_no_further_than_all_or_none():
    assert after(Answers(40.0, 0.5), 0) == after(Answers(1.0, 0.0), 0)
    assert after(Answers(-40.0, 0.5), 0) == after(Answers(0.0, 0.0), 0)


def test_answers_about_one_clip_are_pooled_until_they_say_something():
    moving = MovingClip.from_start(1.0, quantile=0.5)
    for _ in range(4):
        moving.move(Answers(1.0, 0.5))  # a single scout, who always tells the truth
    assert moving.history == [1.0] * 5
    moving.stay()  # a round without a scout
    moving.move(Answers(1.0, 0.5))
    assert moving.clip < 0.5
    moving.move(Answers(1.0, 0.5))  # one answer about the new clip
    assert moving.clip == moving.history[-2]


def test_noise_bounds_the_way_up_and_not_the_way_down():
    """Updates that undo noise are as long as the noise, which grows with the clip.

    The clip would follow itself.
    """
    for noise, highest in (
        (0.0, 100.0),
        (0.2, 100.0),
        (1.0, 5.0),
        (2.0, 1.25),
        (3.0, 1.0),
        (50.0, 1.0),
    ):
        up, down = (
            MovingClip.from_start(2.0, quantile=0.5),
            MovingClip.from_start(2.0, quantile=0.5),
        )
        for _ in range(80):
            up.move(Answers(0.0, 0.0), noise)
            down.move(Answers(1.0, 0.0), noise)
        assert up.clip == pytest.approx(2 * highest)
        assert down.clip == pytest.approx(0.02)
        up.move(Answers(0.0, 0.0), 50.0)  # half of the nodes are gone: it does not fall for that
        assert up.clip == pytest.approx(2 * highest)


@pytest.mark.parametrize(("truth", "most"), [(1.0, 1.5), (0.55, 2.2), (0.2, 2.2)])
def test_twenty_clients_leave_a_good_clip_where_it_is(truth, most):
    """Their median is the clip.

    Nineteen of twenty runs of 40 rounds end within this factor of it.
    """
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


def chased(rounds, seed):
    """Return the clips of a model that noise drives.

    20 clients send their way back, which is as long as the noise.
    """
    draw, moving = np.random.default_rng(seed), MovingClip.from_start(1.0, quantile=0.5)
    place, noise = np.zeros(650), 4.9  # of 650 parameters at epsilon 60 over 40 releases
    for _ in range(rounds):
        length = float(np.linalg.norm(place))
        mean = place * min(1.0, moving.clip / max(length, 1e-12))
        place = place - mean + draw.normal(size=650) * noise * moving.clip / math.sqrt(650)
        moving.move(Answers(float(length <= moving.clip), 0.5), noise)
    return moving.history


def test_a_clip_does_not_follow_its_own_noise(monkeypatch):
    for seed in range(3):
        assert max(chased(40, seed)) == 1.0
    monkeypatch.setattr("quietbit.federation.moving_clip.RISE", 1e12)
    assert chased(40, 0)[-1] > 10  # so it would


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.8])
def test_a_start_ten_times_off_ends_at_the_quantile(factor, quantile):
    lengths = np.random.default_rng(1).lognormal(0.0, 0.7, 4000)
    wanted = float(np.quantile(lengths, quantile))
    moving = MovingClip.from_start(factor * wanted, quantile=quantile)
    for _ in range(60):
        moving.move(Answers(float((lengths <= moving.clip).mean()), 0.0))
    assert moving.clip == pytest.approx(wanted, rel=0.05)
    assert moving.history[0] == factor * wanted
    assert len(moving.history) == 61


def test_a_round_without_answers_goes_back_to_the_last_clip_that_had_some():
    moving = MovingClip.from_start(1.0, quantile=0.5)
    moving.move(None)
    assert moving.clip == 1.0
    moving.move(Answers(0.0, 0.0))
    assert moving.clip > 1.0
    moving.move(None)
    assert moving.clip == 1.0


def test_the_clip_stays_within_reach_of_its_start():
    moving = MovingClip.from_start(1.0, quantile=0.5)
    for _ in range(100):
        moving.move(Answers(1.0, 0.0))
    assert moving.clip == 0.01
    for _ in range(100):
        moving.move(Answers(-30.0, 0.0))
    assert moving.clip == 100.0
