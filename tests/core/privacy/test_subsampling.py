from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from quietbit.privacy.conversion import gaussian_epsilon_upper
from quietbit.privacy.subsampling import poisson_gaussian
from quietbit.target import Adjacency

REPLACE = Adjacency.REPLACE_ONE


SETTINGS = [(0.3, 0.01), (1.0, 0.1), (2.5, 0.5), (0.05, 0.9), (6.0, 0.001)]


GRID, STEP = np.linspace(
    -14.0, 20.0, 2_000_001, retstep=True
)  # its error is far below what is asked


def hockey_stick(first, second, order):
    """Integral of (p - a q)_+ on the grid."""
    return float(np.maximum(first - order * second, 0.0).sum() * STEP)


def laws(mu, q, adjacency):
    """Both densities on the grid."""
    alone = norm.pdf(GRID)

    def mixed(place):
        return (1 - q) * alone + q * norm.pdf(GRID - place)

    return mixed(mu), alone if adjacency is Adjacency.ZERO_OUT else mixed(-mu)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(("mu", "q"), SETTINGS)
def test_one_release_is_bounded_and_nearly_exact(mu, q, adjacency):
    ways = poisson_gaussian(mu, q, adjacency)
    first, second = laws(mu, q, adjacency)
    for epsilon in (0.0, 0.01 * q, 0.5 * q * mu, 0.1, 1.0):
        for way, pair in zip(ways, ((first, second), (second, first)), strict=True):
            true = hockey_stick(*pair, math.exp(epsilon))
            found = way.delta_upper(epsilon)
            assert found >= true * (1 - 1e-6) - 1e-12
            if adjacency is Adjacency.ZERO_OUT:  # replace-one is a bound
                assert found <= true * 1.002 + 1e-9


@pytest.mark.parametrize(
    ("mu", "q", "steps"),
    [
        (1 / 0.8, 0.01, 1000),
        (0.5, 0.1, 150),
        pytest.param(2.0, 0.001, 5000, marks=pytest.mark.long),
    ],
)
def test_many_releases_agree_with_dp_accounting(mu, q, steps):
    accounting = pytest.importorskip("dp_accounting")
    event = accounting.SelfComposedDpEvent(
        accounting.PoissonSampledDpEvent(q, accounting.GaussianDpEvent(1 / mu)), steps
    )
    theirs = accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    ours = max(
        way.repeat(steps).epsilon_upper(1e-5) for way in poisson_gaussian(mu, q, Adjacency.ZERO_OUT)
    )
    assert ours == pytest.approx(theirs, rel=0.01)
    assert ours >= 0.999 * theirs


def test_everybody_drawn_is_no_sampling_and_few_drawn_cost_less():
    whole = poisson_gaussian(0.7, 1 - 1e-9, Adjacency.ZERO_OUT)[0].repeat(20).epsilon_upper(1e-5)
    assert whole == pytest.approx(gaussian_epsilon_upper(20 * 0.49 / 2, 1e-5), rel=1e-3)
    costs = [
        poisson_gaussian(0.7, q, Adjacency.ZERO_OUT)[0].repeat(20).epsilon_upper(1e-5)
        for q in (0.9, 0.3, 0.05)
    ]
    assert whole > costs[0] > costs[1] > costs[2]


def test_replacing_costs_more_than_removing_and_less_than_twice_the_distance():
    near, far = (poisson_gaussian(mu, 0.1, Adjacency.ZERO_OUT) for mu in (0.5, 1.0))
    swapped = poisson_gaussian(0.5, 0.1, Adjacency.REPLACE_ONE)
    cost = [
        max(way.repeat(50).epsilon_upper(1e-5) for way in ways) for ways in (near, swapped, far)
    ]
    assert cost[0] < cost[1] < 2.5 * cost[0]
    assert cost[1] < cost[2]
