from __future__ import annotations

import math
from fractions import Fraction

import pytest

from quietbit import Ball, Norm
from quietbit.errors import InvalidParameter
from quietbit.kernel.sampler import SAMPLING_ERROR
from quietbit.mechanism.interpolated import InterpolatedMVU, Scaling
from quietbit.privacy.cost import sampling_slack_upper
from quietbit.privacy.divergence import smallest_probability_lower
from quietbit.target import Adjacency
from unit.mechanism.makers import design, table


def test_ranges_of_both_variants() -> None:
    assert (Scaling(1.0, 8.0).low, Scaling(1.0, 8.0).high) == (-3.5, 4.5)
    assert (Scaling(1.0, 8.0, True).low, Scaling(1.0, 8.0, True).high) == (0.0, 1.0)
    assert (Scaling(1.0, 0.5, True).low, Scaling(1.0, 0.5, True).high) == (0.25, 0.75)
    assert (Scaling(1.0).low, Scaling(1.0).high) == (0.0, 1.0)


@pytest.mark.parametrize("radius", [0.1, 0.7, 3.0, 1e-9])
@pytest.mark.parametrize("beta", [0.3, 1.0, 7.7])
def test_the_reach_covers_the_doubles_that_are_used(radius: float, beta: float) -> None:
    scaling = Scaling(radius, beta)
    assert Fraction(scaling.reach) >= Fraction(scaling.scale) * Fraction(radius)
    for adjacency in Adjacency:
        found = scaling.distance(adjacency, Ball(Norm.L2, radius, 5))
        assert found == pytest.approx(beta if adjacency is Adjacency.REPLACE_ONE else beta / 2, rel=1e-14)
    low, high = scaling.certified_range
    assert low < scaling.low
    assert high > scaling.high
    assert 0.5 + scaling.reach < high


def test_a_clamp_shortens_the_distance_in_few_dimensions() -> None:
    scaling = Scaling(1.0, 8.0, True)
    distances = [scaling.distance(Adjacency.ZERO_OUT, Ball(Norm.L2, 1.0, size)) for size in (1, 4, 64, 100)]
    assert distances == pytest.approx([0.5, 1.0, 4.0, 4.0])
    assert all(found >= least for found, least in zip(distances, [0.5, 1.0, 4.0, 4.0], strict=True))
    assert scaling.distance(Adjacency.REPLACE_ONE, Ball(Norm.L1, 1.0, 3)) == pytest.approx(3.0)


def slack_of(values: list[float], scaling: Scaling, design_: object) -> float:
    """The oracle: the slack of one vector, coordinate by coordinate."""
    total = 0.0
    for value in values:
        x = 0.5 + scaling.scale * value
        least = smallest_probability_lower(design_, x - 1e-12, x + 1e-12)  # type: ignore[arg-type]
        total += sampling_slack_upper(1, least, SAMPLING_ERROR)
    return total


@pytest.mark.parametrize("norm", Norm)
def test_the_slack_covers_every_vector_and_is_far_below_the_crude_one(norm: Norm) -> None:
    size, one_bit = 4096, design(2, 1, 20.0)
    scaling, ball = Scaling(1.0), Ball(norm, 1.0, size)
    slack = scaling.slack_upper(one_bit, ball)
    for spread in (1, 4, 64, size):
        share = 1.0 / spread ** (1 / norm.order)
        zeros = slack_of([0.0], scaling, one_bit) * (size - spread)
        assert zeros + spread * slack_of([share], scaling, one_bit) <= slack * (1 + 1e-9)
    crude = sampling_slack_upper(size, smallest_probability_lower(one_bit), SAMPLING_ERROR)
    assert slack < crude / 50


def test_small_dimensions_use_the_plain_bound() -> None:
    kinked = table(5, 3, 2.0)
    scaling = Scaling(1.0, 1.5)
    low, high = scaling.certified_range
    plain = sampling_slack_upper(1, smallest_probability_lower(kinked, low, high), SAMPLING_ERROR)
    assert scaling.slack_upper(kinked, Ball(Norm.L2, 1.0, 1)) == plain


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan, math.inf, 1e9, "8"])
def test_beta_must_be_positive(beta: float) -> None:
    with pytest.raises(InvalidParameter, match="beta"):
        InterpolatedMVU(design(), Ball(Norm.L2, 1.0, 3), beta)


def test_clamp_is_a_truth_value() -> None:
    with pytest.raises(InvalidParameter, match="clamp"):
        InterpolatedMVU(design(), Ball(Norm.L2, 1.0, 3), 1.0, 1)  # type: ignore[arg-type]
