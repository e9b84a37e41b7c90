"""Poisson batches by quadrature; `core/exact/test_privacy_accounts.py` has another library's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from quietbit.privacy.conversion import gaussian_epsilon_upper
from quietbit.privacy.cost import Cost
from quietbit.privacy.subsampling import poisson_cost, poisson_gaussian
from quietbit.target import Adjacency, Trust, Unit

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
GRID, STEP = np.linspace(-14.0, 20.0, 200_001, retstep=True)


def hockey_stick(first, second, order):
    """Integral of (p - a q)_+ on the grid."""
    return float(np.maximum(first - order * second, 0.0).sum() * STEP)


def laws(mu, q, adjacency):
    """Both densities on the grid."""
    alone = norm.pdf(GRID)
    drawn, other = ((1 - q) * alone + q * norm.pdf(GRID - place) for place in (mu, -mu))
    return drawn, alone if adjacency is ZERO else other


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(
    ("mu", "q"), [(0.3, 0.01), (1.0, 0.1), (2.5, 0.5), (0.05, 0.9), (6.0, 0.001)]
)
def test_one_release_is_bounded_and_nearly_exact(mu, q, adjacency):
    first, second = laws(mu, q, adjacency)
    forward, backward = poisson_gaussian(mu, q, adjacency)
    for epsilon in (0.0, 0.01 * q, 0.5 * q * mu, 0.1, 1.0):
        for way, pair in ((forward, (first, second)), (backward, (second, first))):
            true = hockey_stick(*pair, math.exp(epsilon))
            found = way.delta_upper(epsilon)
            assert found >= true * (1 - 1e-6) - 1e-12
            if adjacency is ZERO:  # replace-one is a bound
                assert found <= true * 1.002 + 1e-9


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("alpha", [2.0, 3.5, 16.0])
def test_divergences_of_a_batch_bound_those_of_the_densities(alpha, adjacency):
    mu, q = 0.7, 0.1
    near = Cost.gaussian(mu**2 / 2).of(ZERO, Unit.SAMPLE, Trust.LOCAL, 1)
    far = Cost.gaussian(adjacency.radii**2 * mu**2 / 2).of(adjacency, Unit.SAMPLE, Trust.LOCAL, 1)
    bound = poisson_cost(near, far, q).rdp(alpha)
    pair = laws(mu, q, adjacency)
    moments = [np.sum(p * (p / r) ** (alpha - 1)) * STEP for p, r in (pair, pair[::-1])]
    exact = math.log(max(moments)) / (alpha - 1)
    assert exact * (1 - 1e-9) <= bound
    if adjacency is ZERO:  # replace-one is a bound
        assert bound <= exact * 1.06


def epsilon(mu, q, adjacency=ZERO, releases=20):
    return (Cost.from_losses(*poisson_gaussian(mu, q, adjacency)) * releases).epsilon(1e-5)


def test_everybody_drawn_is_no_sampling_and_few_drawn_cost_less():
    costs = [epsilon(0.7, q) for q in (1 - 1e-9, 0.9, 0.3, 0.05)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == pytest.approx(gaussian_epsilon_upper(20 * 0.49 / 2, 1e-5), rel=1e-3)


def test_replacing_costs_more_than_removing_and_less_than_twice_the_distance():
    near, far = epsilon(0.5, 0.1), epsilon(1.0, 0.1)
    swapped = epsilon(0.5, 0.1, REPLACE)
    assert near < swapped < min(far, 2.5 * near)
