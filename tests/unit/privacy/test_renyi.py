import math

import pytest

from exact.privacy_kit import flat, rough
from quietbit._validate import InvalidParameter
from quietbit.privacy.divergence import lipschitz_upper, zero_out_constant_upper
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.renyi import RENYI_ACCURACY, RenyiConstant, fisher_supremum_upper, kappa_upper

ALPHAS = (1.0001, 1.01, 3.0, 50.0, 1000.0, 1e5)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_two_levels_never_lose_to_theorem_2(adjacency):
    design = rough(2, 3, 6.0, 0)
    supremum = fisher_supremum_upper(design)
    for alpha in ALPHAS:
        assert kappa_upper(design, alpha, adjacency) <= alpha * supremum / 2 * (1 + 1e-12)


@pytest.mark.parametrize("levels", [3, 6, 40])
def test_zero_out_is_never_above_replace_one(levels):
    design = rough(levels, 2, 5.0, 1)
    for alpha in ALPHAS:
        zero_out = kappa_upper(design, alpha, Adjacency.ZERO_OUT)
        assert zero_out <= kappa_upper(design, alpha, Adjacency.REPLACE_ONE) * (1 + RENYI_ACCURACY)
        assert zero_out <= alpha * zero_out_constant_upper(design) ** 2 / 2 * (1 + 1e-12)


def test_too_many_levels_fall_back_on_simple_bounds():
    design = rough(300, 2, 5.0, 2)
    assert kappa_upper(design, 4.0, Adjacency.REPLACE_ONE) <= 4.0 * lipschitz_upper(design) ** 2 / 2 * (1 + 1e-12)
    assert kappa_upper(design, 4.0, Adjacency.ZERO_OUT) < kappa_upper(design, 4.0, Adjacency.REPLACE_ONE)


def test_a_smaller_range_costs_no_more():
    design = rough(5, 3, 8.0, 3)
    small = RenyiConstant(design, 0.2, 0.8, Adjacency.REPLACE_ONE)
    large = RenyiConstant(design, -1.0, 2.0, Adjacency.REPLACE_ONE)
    for alpha in ALPHAS:
        assert small.upper(alpha) <= large.upper(alpha) * (1 + RENYI_ACCURACY)


def test_moments_are_convex_in_the_order_up_to_the_accuracy():
    constant = RenyiConstant(rough(4, 2, 5.0, 4), 0.0, 1.0, Adjacency.REPLACE_ONE)
    moment = lambda alpha: (alpha - 1) * constant.upper(alpha)  # noqa: E731
    for low, high in ((1.1, 1.9), (2.0, 8.0), (20.0, 300.0)):
        assert moment((low + high) / 2) <= (moment(low) + moment(high)) / 2 * (1 + RENYI_ACCURACY)


def test_orders_are_remembered():
    constant = RenyiConstant(rough(3, 2, 5.0, 4), 0.0, 1.0, Adjacency.ZERO_OUT)
    assert constant.upper(2.5) is constant.upper(2.5)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_constant_table_costs_nothing(adjacency):
    assert kappa_upper(flat(4, 2), 3.0, adjacency) == 0


@pytest.mark.parametrize("bad", [1.0, 0.2, math.nan, math.inf, "2"])
def test_refuses_orders_that_are_none(bad):
    with pytest.raises(InvalidParameter, match="alpha must be"):
        kappa_upper(rough(3, 2, 2.0, 0), bad, Adjacency.ZERO_OUT)


def test_refuses_ranges_and_adjacencies_that_are_none():
    design = rough(3, 2, 2.0, 0)
    with pytest.raises(InvalidParameter, match="around 1/2"):
        RenyiConstant(design, 0.6, 1.0, Adjacency.ZERO_OUT)
    with pytest.raises(InvalidParameter, match="increasing"):
        RenyiConstant(design, 1.0, 0.0, Adjacency.REPLACE_ONE)
    with pytest.raises(InvalidParameter, match="adjacency"):
        RenyiConstant(design, 0.0, 1.0, "zero-out")
