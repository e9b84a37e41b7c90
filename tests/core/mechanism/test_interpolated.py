from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from attrs import evolve

from core.mechanism.makers import design, table
from quietbit import Ball, InterpolatedMVU, Norm
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
