from __future__ import annotations

import math

import pytest

from quietbit import Ball, Norm
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency
from quietbit_lab.baseline.noise import Laplace
from refusals import refuses

BALL = Ball(Norm.L1, 5)


def divergence(shift: float, alpha: float) -> float:
    """D_alpha between Laplace laws of scale 1 (Mironov 2017, Proposition 6)."""
    ahead = alpha * math.exp((alpha - 1) * shift)
    behind = (alpha - 1) * math.exp(-alpha * shift)
    return math.log((ahead + behind) / (2 * alpha - 1)) / (alpha - 1)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0])
def test_the_curve_is_pure_and_bounds_the_exact_divergence_tightly(multiplier: float) -> None:
    mechanism = Laplace(BALL, multiplier)
    for adjacency, times in ((Adjacency.ZERO_OUT, 1), (Adjacency.REPLACE_ONE, 2)):
        curve = mechanism.privacy(adjacency)
        epsilon = times / multiplier
        assert curve.epsilon(0.0) == pytest.approx(epsilon, rel=1e-12)
        assert curve.epsilon(0.0) >= epsilon
        for alpha in (1.1, 2.0, 5.0):
            exact = divergence(epsilon, alpha)
            assert exact * (1 - 1e-9) <= curve.rdp(alpha) <= exact * (1 + 1e-6)
        for alpha in (1.0001, 1.5, 30.0, 1e6):
            assert curve.rdp(alpha) <= Cost.pure(epsilon * (1 + 1e-13)).rdp(alpha) * (1 + 1e-12)


def test_moving_several_coordinates_costs_no_more_than_moving_one_by_their_sum() -> None:
    for alpha in (1.3, 2.0, 9.0):
        parts = sum(divergence(shift, alpha) for shift in (0.2, 0.5, 0.9))
        assert parts <= divergence(1.6, alpha) * (1 + 1e-9)


def test_refusals() -> None:
    with refuses("norm of the ball", "l2"):
        Laplace(Ball(Norm.L2, 5), 1.0)
    with refuses("scale_multiplier", 0.0):
        Laplace(BALL, 0.0)
