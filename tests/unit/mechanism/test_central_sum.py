from __future__ import annotations

import math

import pytest

from quietbit._validate import InvalidParameter
from quietbit.mechanism.central_sum import calibrate_sum, compare_sums
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.privacy.guarantee import Adjacency, Trust

BALL = Ball(Norm.L2, 2.0, 5000)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_meets_the_target_from_below(adjacency: Adjacency) -> None:
    found = calibrate_sum(ball=BALL, epsilon=1.0, delta=1e-5, adjacency=adjacency, clients=300, releases=20)
    assert 0.999 <= found.guarantee.epsilon_upper <= 1.0
    assert found.guarantee.trust is Trust.SECURE_AGGREGATION
    assert "secure-aggregation trust" in found.guarantee.sentence()
    again = found.mechanism.aggregate_privacy(300, adjacency).repeat(20).epsilon_upper(1e-5)
    assert again == found.guarantee.epsilon_upper
    assert found.wire_bits == math.ceil(math.log2(301)) == 9
    assert found.clamped_at == 2.0 / found.mechanism.beta
    assert not found.saturated


def test_one_bit_is_next_to_the_ideal_and_far_from_local() -> None:
    one, ideal, skellam, local = compare_sums(
        ball=BALL, epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT, clients=1000, releases=10
    )
    assert (one.bits, ideal.bits, skellam.bits, local.bits) == (10, 32, 16, 1)
    assert all(0.999 <= row.epsilon_upper <= 1.0 for row in (one, ideal, skellam, local))
    assert ideal.squared_error < one.squared_error < 1.09 * ideal.squared_error
    assert ideal.squared_error < skellam.squared_error
    assert 900 < local.squared_error / ideal.squared_error < 1100  # one n
    assert local.trust is Trust.LOCAL


def test_refusals() -> None:
    given = {"ball": BALL, "adjacency": Adjacency.ZERO_OUT, "clients": 10}
    with pytest.raises(InvalidParameter, match="delta must be above 0"):
        calibrate_sum(epsilon=1.0, delta=0.0, **given)
    with pytest.raises(InvalidParameter, match="epsilon"):
        calibrate_sum(epsilon=0.0, delta=1e-5, **given)
    with pytest.raises(InvalidParameter, match="L2 ball"):
        compare_sums(ball=Ball(Norm.L1, 1.0, 4), epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT, clients=10)
