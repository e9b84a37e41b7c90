"""Lemma 2, Theorem 2 and kappa_alpha against a 60-digit oracle, orders 1.01 to 1000."""

import numpy as np
import pytest

from core.exact.privacy_kit import (
    ORDERS,
    fisher_information,
    law,
    one_bit,
    own_epsilon,
    probing_pairs,
    product_law,
    renyi,
    renyi_grid,
    rough,
    sigmoid_bit,
)
from quietbit.privacy.divergence import lipschitz_upper, zero_out_constant_upper
from quietbit.privacy.fisher import fisher_supremum_upper
from quietbit.privacy.interpolated import interpolated_l2_cost
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


@pytest.mark.parametrize("design", TWO_LEVELS, ids=range(4))
def test_fisher_supremum_is_within_its_accuracy(design):
    grid = np.linspace(-4.0, 5.0, 4001)
    values = [fisher_information(design, x) for x in grid]
    centre = grid[int(np.argmax(values))]
    best = max(
        fisher_information(design, x) for x in np.linspace(centre - 0.003, centre + 0.003, 2001)
    )
    assert best <= fisher_supremum_upper(design) <= best * (1 + 1.1e-6)


@pytest.mark.parametrize("epsilon", [1e-3, 0.25, 1.0, 5.0, 18.0])
def test_one_bit_fisher_supremum_is_epsilon_squared(epsilon):
    design = sigmoid_bit(epsilon)
    epsilon, bound = own_epsilon(design), fisher_supremum_upper(design)
    assert epsilon**2 * (1 - 1e-15) <= bound <= epsilon**2 * (1 + 1e-11)


def test_fisher_information_is_the_limit_of_the_divergence():
    design = rough(4, 3, 6.0, 8)
    for x in (-0.4, 0.1, 0.5, 1.2):
        small = 1e-6
        divergence = float(renyi(law(design, x), law(design, x + small), 2.0))
        assert fisher_information(design, x) == pytest.approx(divergence / small**2, rel=1e-4)


@pytest.mark.parametrize("design", TWO_LEVELS[2:] + MORE_LEVELS, ids=range(6))
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.5, 2.5)])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_kappa_dominates_every_divergence(design, low, high, adjacency):
    constant = RenyiConstant(design, low, high, adjacency)
    bounds = [constant.upper(alpha) for alpha in ORDERS]
    simple = zero_out_constant_upper if adjacency is Adjacency.ZERO_OUT else lipschitz_upper
    for alpha, bound in zip(ORDERS, bounds, strict=True):
        assert bound <= alpha * simple(design, low, high) ** 2 / 2 * (1 + 1e-14)
    for x, other in probing_pairs(low, high, design.spec.input_levels, 10, 3):
        pairs = [(x, other)]
        if adjacency is Adjacency.ZERO_OUT:
            pairs = [(x, 0.5), (0.5, x)] if abs(x - 0.5) > 1e-6 else []
        for first, second in pairs:
            left, right = law(design, first), law(design, second)
            for alpha, bound in zip(ORDERS, bounds, strict=True):
                assert float(renyi(left, right, alpha)) <= bound * (first - second) ** 2


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("alpha", [1.01, 2.0, 12.0])
def test_kappa_is_tight(adjacency, alpha):
    design = rough(5, 2, 6.0, 6)
    points = np.linspace(0, 1, 241)
    others = points if adjacency is Adjacency.REPLACE_ONE else np.array([0.5])
    square = np.square(points[:, None] - others[None])
    both = np.maximum(
        renyi_grid(design, points, others, alpha), renyi_grid(design, others, points, alpha).T
    )
    found = (both[square > 1e-7] / square[square > 1e-7]).max()
    bound = RenyiConstant(design, 0.0, 1.0, adjacency).upper(alpha)
    assert found <= bound <= found * (1 + RENYI_ACCURACY) * 1.01


@pytest.mark.parametrize("seed", range(6))
def test_kappa_never_loses_to_the_diagonal_or_to_random_designs(seed):
    rng = np.random.default_rng(seed)
    design = rough(
        int(rng.integers(3, 9)), int(rng.integers(1, 4)), float(rng.uniform(1, 30)), seed + 50
    )
    low, high = -float(rng.uniform(0, 2)), 1 + float(rng.uniform(0, 2))
    constant = RenyiConstant(design, low, high, Adjacency.REPLACE_ONE)
    diagonal = max(fisher_information(design, x) for x in np.linspace(low, high, 500))
    for alpha in (1.05, 4.0, 60.0):
        assert constant.upper(alpha) >= alpha * diagonal / 2 * (1 - 1e-12)
        assert constant(alpha) >= constant.upper(alpha) * (1 - RENYI_ACCURACY)
        assert constant(alpha) <= constant.upper(alpha) * 1.004


@pytest.mark.parametrize("design", [TWO_LEVELS[1], MORE_LEVELS[2]], ids=["two", "four"])
def test_vectors_add_up(design):
    x, other = (0.2, 0.5, 0.9), (0.4, 0.45, 0.6)
    distance = float(np.linalg.norm(np.subtract(x, other)))
    joint = [product_law([law(design, c) for c in point]) for point in (x, other)]
    curve = interpolated_l2_cost(design, distance, Adjacency.REPLACE_ONE)
    for alpha in (1.5, 8.0, 90.0):
        assert float(renyi(*joint, alpha)) <= curve.rdp(alpha)
