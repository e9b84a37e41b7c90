from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from attrs import evolve

from core.mechanism.makers import design, table
from quietbit import Ball, InterpolatedMVU, Norm
from quietbit.kernel.sampler import SAMPLING_ERROR
from quietbit.privacy.cost import sampling_slack_upper
from quietbit.privacy.divergence import smallest_probability_lower
from quietbit.target import Adjacency
from refusals import refuses

BALL = Ball(Norm.L2, 3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("beta", [0.5, 1.0, 8.0])
def test_one_bit_is_a_logistic_sign(epsilon: float, beta: float) -> None:
    mechanism = InterpolatedMVU(design(2, 1, epsilon), BALL, beta, decoder="alphabet")
    for value in (-1.0, -0.15, 0.0, 0.0005, 0.85):
        likely = 1 / (1 + math.exp(-epsilon * beta * value))
        half = 1 / math.tanh(epsilon / 2) / beta
        stated = (half * (2 * likely - 1), half**2 * 4 * likely * (1 - likely))
        found = (mechanism.expectation(value), mechanism.variance(value))
        assert mechanism.distribution(value)[1] == pytest.approx(likely, rel=1e-12)
        assert found == pytest.approx(stated, rel=1e-12, abs=1e-14)


def test_the_law_agrees_with_sixty_digits() -> None:
    chosen = table(5, 3, 2.0)
    mechanism = InterpolatedMVU(chosen, Ball(Norm.L2, 3), beta=8.0)
    with mpmath.workdps(60):
        logs = np.array([[mpmath.log(p) for p in row] for row in chosen.probabilities.tolist()])
        for value in (-1.0, -0.31, -0.0625, 0.0, 0.02, 0.5, 1.0):
            place = (mpmath.mpf(0.5) + 4 * mpmath.mpf(value)) * 4
            index = min(max(int(mpmath.floor(place)), 0), 3)
            line = logs[index] + (logs[index + 1] - logs[index]) * (place - index)
            weights = np.array([mpmath.exp(one) for one in line])
            exact = (weights / weights.sum()).astype(np.float64)
            assert np.allclose(mechanism.distribution(value), exact, rtol=1e-12)


def test_clamping_stops_at_the_ends_of_the_design() -> None:
    free = InterpolatedMVU(table(5, 3, 2.0), BALL, beta=8.0)
    clamped = evolve(free, clamp=True)
    low, high = clamped.design.probabilities[[0, -1]]
    assert np.allclose(clamped.distribution(1.0), high, rtol=1e-13)
    assert np.allclose(clamped.distribution(-1.0), low, rtol=1e-13)
    assert np.array_equal(clamped.distribution(0.125), clamped.distribution(0.5))
    assert not np.allclose(free.distribution(1.0), high)
    loose = InterpolatedMVU(design(2, 1, 2.0), Ball(Norm.L1, 1), 8.0)
    tight = evolve(loose, clamp=True)
    for adjacency in Adjacency:
        assert tight.privacy(adjacency).epsilon(0.0) < loose.privacy(adjacency).epsilon(0.0)


@pytest.mark.parametrize("levels", [2, 3, 4, 9])
def test_the_unbiased_decoder_is_unbiased_to_first_order(levels: int) -> None:
    mechanism = InterpolatedMVU(table(levels, 2, 2.0), BALL, 1.5, decoder="unbiased-at-zero")
    assert mechanism.expectation(0.0) == pytest.approx(0.0, abs=1e-13)
    step = 1e-5
    slope = (mechanism.expectation(step) - mechanism.expectation(-step)) / (2 * step)
    assert slope == pytest.approx(1.0, rel=1e-4)


def test_a_design_too_steep_for_the_sampler_has_no_account() -> None:
    mechanism = InterpolatedMVU(design(2, 1, 5.0), BALL, beta=40.0)
    with refuses("smallest probability of a symbol"):
        mechanism.privacy(Adjacency.ZERO_OUT)


FIVE = Ball(Norm.L2, 5)


def scaled(ball: Ball = FIVE, beta: float = 1.0, clamp: bool = False) -> InterpolatedMVU:
    return InterpolatedMVU(design(), ball, beta, clamp)


def test_ranges_of_both_variants() -> None:
    assert scaled(beta=8.0).input_range == (-3.5, 4.5)
    assert scaled(beta=8.0, clamp=True).input_range == (0.0, 1.0)
    assert scaled(beta=0.5, clamp=True).input_range == (0.25, 0.75)
    assert scaled().input_range == (0.0, 1.0)


@pytest.mark.parametrize("clip", [1.0, 0.1, 0.7, 3.0, 1e-9])
@pytest.mark.parametrize("beta", [0.3, 1.0, 7.7])
def test_the_reach_covers_the_doubles_that_are_used(clip: float, beta: float) -> None:
    mechanism = scaled(Ball(Norm.L2, 5), beta)
    assert Fraction(mechanism.reach) >= Fraction(mechanism.sampler.scale / clip) * Fraction(clip)
    for adjacency in Adjacency:
        found = mechanism.distance(adjacency)
        assert found == pytest.approx(
            beta if adjacency is Adjacency.REPLACE_ONE else beta / 2, rel=1e-14
        )
    low, high = mechanism.certified_range
    assert low < mechanism.input_range[0]
    assert high > mechanism.input_range[1]
    assert 0.5 + mechanism.reach < high


def test_a_clamp_shortens_the_distance_in_few_dimensions() -> None:
    balls = [Ball(Norm.L2, size) for size in (1, 4, 64, 100)]
    distances = [scaled(ball, 8.0, True).distance(Adjacency.ZERO_OUT) for ball in balls]
    assert distances == pytest.approx([0.5, 1.0, 4.0, 4.0])
    assert all(found >= least for found, least in zip(distances, [0.5, 1.0, 4.0, 4.0], strict=True))
    assert scaled(Ball(Norm.L1, 3), 8.0, True).distance(Adjacency.REPLACE_ONE) == pytest.approx(3.0)


def slack_of(values: list[float], mechanism: InterpolatedMVU) -> float:
    """The oracle: the slack of one vector, coordinate by coordinate."""
    total = 0.0
    for value in values:
        x = 0.5 + mechanism.sampler.scale * value
        least = smallest_probability_lower(mechanism.design, x - 1e-12, x + 1e-12)
        total += sampling_slack_upper(1, least, SAMPLING_ERROR)
    return total


@pytest.mark.parametrize("norm", Norm)
def test_the_slack_covers_every_vector_and_is_far_below_the_crude_one(norm: Norm) -> None:
    size, one_bit = 4096, design(2, 1, 20.0)
    mechanism = InterpolatedMVU(one_bit, Ball(norm, size))
    slack = mechanism._slack
    for spread in (1, 4, 64, size):
        share = 1.0 / spread ** (1 / norm.order)
        zeros = slack_of([0.0], mechanism) * (size - spread)
        assert zeros + spread * slack_of([share], mechanism) <= slack * (1 + 1e-9)
    crude = sampling_slack_upper(size, smallest_probability_lower(one_bit), SAMPLING_ERROR)
    assert slack < crude / 50


def test_small_dimensions_use_the_plain_bound() -> None:
    kinked = table(5, 3, 2.0)
    mechanism = InterpolatedMVU(kinked, Ball(Norm.L2, 1), 1.5)
    low, high = mechanism.certified_range
    plain = sampling_slack_upper(1, smallest_probability_lower(kinked, low, high), SAMPLING_ERROR)
    assert mechanism._slack == plain
