"""Lemma 2, Theorem 2 and kappa_alpha against a 60-digit oracle, orders 1.01 to 1000."""

import numpy as np
import pytest

from core.exact.privacy_kit import (
    ORDERS,
    fisher_information,
    law,
    log_laws,
    one_bit,
    own_epsilon,
    probing_pairs,
    renyi,
    renyi_grid,
    rough,
    sigmoid_bit,
)
from quietbit.privacy.divergence import lipschitz_upper, zero_out_constant_upper
from quietbit.privacy.fisher import fisher_supremum_upper
from quietbit.privacy.renyi import RENYI_ACCURACY, RenyiConstant
from quietbit.target import Adjacency

TWO_LEVELS = [sigmoid_bit(0.5), one_bit(5.0), rough(2, 2, 4.0, 0), rough(2, 4, 15.0, 1)]
MORE_LEVELS = [one_bit(4.0, 5), rough(3, 2, 7.0, 2), rough(4, 3, 5.0, 3), rough(9, 3, 14.0, 4)]


@pytest.mark.parametrize("design", TWO_LEVELS, ids=range(4))
def test_fisher_bound_dominates_every_divergence(design):
    supremum = fisher_supremum_upper(design)
    for x, other in probing_pairs(-2.0, 3.0, 2, 12, 7):
        left, right = law(design, x), law(design, other)
        for alpha in ORDERS:
            assert float(renyi(left, right, alpha)) <= alpha * supremum * (x - other) ** 2 / 2


@pytest.mark.parametrize("epsilon", [1e-3, 0.25, 1.0, 5.0, 18.0])
def test_one_bit_fisher_supremum_is_epsilon_squared(epsilon):
    design = sigmoid_bit(epsilon)
    exact = own_epsilon(design) ** 2
    assert exact * (1 - 1e-15) <= fisher_supremum_upper(design) <= exact * (1 + 1e-11)


@pytest.mark.parametrize("x", [-0.4, 0.1, 0.5, 1.2])
def test_fisher_information_is_the_limit_of_the_divergence(x):
    design, small = rough(4, 3, 6.0, 8), 1e-6
    divergence = float(renyi(law(design, x), law(design, x + small), 2.0))
    assert fisher_information(design, x) == pytest.approx(divergence / small**2, rel=1e-4)


@pytest.mark.parametrize("design", TWO_LEVELS[2:] + MORE_LEVELS, ids=range(6))
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.5, 2.5)])
def test_kappa_dominates_every_divergence(design, low, high):
    """In both directions; zero-out where one of the pair is the centre."""
    bounds = {}
    for adjacency, simple in (
        (Adjacency.ZERO_OUT, zero_out_constant_upper),
        (Adjacency.REPLACE_ONE, lipschitz_upper),
    ):
        constant = RenyiConstant(design, low, high, adjacency)
        bounds[adjacency] = [constant.upper(alpha) for alpha in ORDERS]
        limits = np.array(ORDERS) * simple(design, low, high) ** 2 / 2
        assert np.all(bounds[adjacency] <= limits * (1 + 1e-14))
    pairs = probing_pairs(low, high, design.spec.input_levels, 7, 3)
    triples = [(*pair, Adjacency.REPLACE_ONE) for pair in pairs]
    for x, _ in pairs:
        triples += [(x, 0.5, Adjacency.ZERO_OUT), (0.5, x, Adjacency.ZERO_OUT)]
    for first, second, adjacency in triples:
        left, right = law(design, first), law(design, second)
        square = (first - second) ** 2
        for alpha, bound in zip(ORDERS, bounds[adjacency], strict=True):
            assert float(renyi(left, right, alpha)) <= bound * square + 1e-50


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("alpha", [1.01, 2.0, 12.0])
def test_kappa_is_tight(adjacency, alpha):
    design = rough(5, 2, 6.0, 6)
    points = np.linspace(0, 1, 241)
    others = points if adjacency is Adjacency.REPLACE_ONE else np.array([0.5])
    square = np.square(points[:, None] - others[None])
    left, right = log_laws(design, points), log_laws(design, others)
    both = np.maximum(renyi_grid(left, right, alpha), renyi_grid(right, left, alpha).T)
    found = (both[square > 1e-7] / square[square > 1e-7]).max()
    bound = RenyiConstant(design, 0.0, 1.0, adjacency).upper(alpha)
    assert found <= bound <= found * (1 + RENYI_ACCURACY) * 1.01


@pytest.mark.parametrize("seed", range(6))
def test_kappa_never_loses_to_the_diagonal_or_to_random_designs(seed):
    rng = np.random.default_rng(seed)
    levels, bits = int(rng.integers(3, 9)), int(rng.integers(1, 4))
    design = rough(levels, bits, float(rng.uniform(1, 30)), seed + 50)
    low, high = -float(rng.uniform(0, 2)), 1 + float(rng.uniform(0, 2))
    constant = RenyiConstant(design, low, high, Adjacency.REPLACE_ONE)
    diagonal = max(fisher_information(design, x) for x in np.linspace(low, high, 500))
    for alpha in (1.05, 4.0, 60.0):
        computed = constant.upper(alpha)
        assert computed >= alpha * diagonal / 2 * (1 - 1e-12)
        assert computed * (1 - RENYI_ACCURACY) <= constant(alpha) <= computed * 1.004
