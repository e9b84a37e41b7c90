from __future__ import annotations

from fractions import Fraction

import pytest

from core.mechanism.makers import design, table
from quietbit import Ball, Norm
from quietbit.kernel.sampler import SAMPLING_ERROR
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.privacy.cost import sampling_slack_upper
from quietbit.privacy.divergence import smallest_probability_lower
from quietbit.target import Adjacency

BALL = Ball(Norm.L2, 5)


def scaled(ball: Ball = BALL, beta: float = 1.0, clamp: bool = False) -> InterpolatedMVU:
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
