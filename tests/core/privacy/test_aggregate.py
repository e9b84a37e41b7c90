"""Sums of bits: laws and moments against 60 digits, the worst pair of inputs, and refusals;
`core/exact/test_privacy_aggregate.py` holds whole accounts against brute force.
"""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from core.exact.privacy_kit import DIGITS
from quietbit.design.solve import closed_design
from quietbit.design.table import DesignSpec
from quietbit.privacy.aggregate import AggregateConstant, aggregate_cost
from quietbit.privacy.bit_pairs import pair_supremum_upper
from quietbit.privacy.bit_sums import SumMoments, bit_sum
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
DESIGN = closed_design(DesignSpec(2, 1, 1.0))


def test_curve_scales_with_the_squared_distance_and_is_nearly_a_gaussians() -> None:
    near, far = (aggregate_cost(DESIGN, distance, 1000, ZERO) for distance in (0.25, 0.5))
    assert far.rdp(3.0) == pytest.approx(4 * near.rdp(3.0))
    assert far.pure_epsilon() == math.inf
    ideal = Cost.linear(100 * 0.5**2 / 2 / 1000)  # one client's, over n
    assert ideal.epsilon(1e-5) < (far * 100).epsilon(1e-5) < 1.15 * ideal.epsilon(1e-5)


def test_an_asymmetric_range_is_covered_without_the_mirror() -> None:
    one_sided, both = (
        AggregateConstant(DESIGN, low, 1.0, 20, REPLACE).upper(4.0) for low in (0.4, 0.0)
    )
    assert one_sided <= both * (1 + 1e-9)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("reach", [15.25, 16.0, 17.0])
def test_symbols_rarer_than_a_samplers_error_hide_nobody(
    reach: float, adjacency: Adjacency
) -> None:
    """Log-odds of +-31 and beyond: the bound is one client's own, never less."""
    constant = AggregateConstant(DESIGN, 0.5 - reach, 0.5 + reach, 50, adjacency)
    for alpha in (1.1, 2.0, 4.0):
        assert constant.upper(alpha) == pytest.approx(alpha / 2)


def law_of(*bits: tuple[int, float]) -> list[mp.mpf]:
    """The law of a sum of independent bits, given as (how many, probability of a one)."""
    law = [mp.mpf(1)]
    for count, chance in bits:
        p = mp.mpf(chance)
        for _ in range(count):
            law = [(1 - p) * a + p * b for a, b in zip([*law, 0], [0, *law], strict=True)]
    return law


@pytest.mark.parametrize(
    ("many", "others", "reach"), [(0, 1, 150), (3, 9, 150), (60, 0, 20), (40, 80, 15), (90, 90, 60)]
)
def test_error_and_tail_are_upper_bounds(many: int, others: int, reach: float) -> None:
    found = bit_sum(many, 0.73, others, 0.27, reach)
    assert found.size == many + others
    with mp.workdps(DIGITS):
        law = law_of((many, 0.73), (others, 0.27))
        inside = law[found.first : found.first + len(found.law)]
        for value, exact in zip(found.law.tolist(), inside, strict=True):
            assert abs(mp.log(value / exact)) <= found.error
        assert 1 - mp.fsum(inside) <= found.tail <= 1e-3 * np.exp(-reach / 2)


def test_many_bits_stay_in_a_narrow_window() -> None:
    found = bit_sum(50_000, 0.7, 49_999, 0.3, 150)
    assert len(found.law) < 6000
    assert found.tail < 1e-60
    assert found.law.sum() == pytest.approx(1, abs=1e-11)
    assert found.error < 1e-10


NODES = np.linspace(0.3, 0.7, 5)
LOSS = float(np.log(7 / 3))
OTHERS = SumMoments.of([bit_sum(12, 0.7, 8, 0.3, 150.0)])


def exact_qbar(law: list[mp.mpf], alpha: float, p: float, r: float) -> mp.mpf:
    before, after = [*law, mp.mpf(0)], [mp.mpf(0), *law]
    x, y = ([(1 - c) * a + c * b for a, b in zip(before, after, strict=True)] for c in (p, r))
    if p == r:
        squares = [(b - a) ** 2 for a, b in zip(before, after, strict=True)]
        return mp.fsum(square / mass for square, mass in zip(squares, x, strict=True))
    moment = mp.fsum(a**alpha * b ** (1 - alpha) for a, b in zip(x, y, strict=True))
    return (moment - 1) / (p - r) ** 2 / (alpha * (alpha - 1) / 2)


@pytest.mark.parametrize("alpha", [1.0625, 2.0, 7.5])
def test_dominates_the_exact_sum_closely(alpha: float) -> None:
    table = OTHERS.table(alpha, NODES, NODES, LOSS)
    with mp.workdps(DIGITS):
        law = law_of((12, 0.7), (8, 0.3))
        points = [mp.mpf(p) for p in NODES.tolist()]
        exact = [[float(exact_qbar(law, mp.mpf(alpha), p, r)) for r in points] for p in points]
    assert np.all(exact <= table)
    np.testing.assert_allclose(table, exact, rtol=1e-8)
    row = OTHERS.table(alpha, NODES, NODES[2:3], LOSS)[:, 0]
    np.testing.assert_allclose(row, table[:, 2], rtol=1e-9)


@pytest.mark.parametrize("alpha", [1.3, 2.0, 3.0, 8.0])
def test_is_convex_in_each_argument_and_log_convex_in_the_order(alpha: float) -> None:
    fine = np.linspace(0.3, 0.7, 21)
    low, between, high = (
        OTHERS.table(order, fine, fine, LOSS) for order in (alpha, alpha + 0.5, alpha + 1)
    )
    for axis in (0, 1):
        assert (np.diff(low, 2, axis=axis) > -1e-7 * low.max()).all()
    assert (between**2 <= low * high * (1 + 1e-9)).all()


def test_several_laws_give_the_largest() -> None:
    laws = [bit_sum(k, 0.7, 200 - k, 0.3, 150.0) for k in (0, 77, 200)]
    whole = SumMoments.of(laws).table(5.0, NODES, NODES, LOSS)
    single = [SumMoments.of([law]).table(5.0, NODES, NODES, LOSS) for law in laws]
    np.testing.assert_allclose(whole, np.maximum.reduce(single), rtol=1e-10)


def brute(nodes: np.ndarray, q: float, others: np.ndarray) -> float:
    """The supremum for Q that is the same everywhere, between points of two grids."""
    p = np.linspace(nodes[0], nodes[-1], 401)
    gap = np.subtract.outer(p, others)
    distance = np.subtract.outer(np.log(p / (1 - p)), np.log(others / (1 - others)))
    keep = np.abs(gap) > 1e-9
    found = float((np.log1p(gap[keep] ** 2 * q) / distance[keep] ** 2).max())
    # The limit of equal inputs: Q (p (1 - p))^2 where that is largest.
    middle = others[np.argmin(np.abs(others - 0.5))]
    return max(found, float(q * (middle * (1 - middle)) ** 2))


@pytest.mark.parametrize("q", [1e-4, 1.0, 300.0, 1e6])
@pytest.mark.parametrize("ends", [(0.3, 0.7), (0.02, 0.4)])
def test_is_the_supremum_for_a_flat_table(q: float, ends: tuple[float, float]) -> None:
    nodes = np.linspace(*ends, 9)
    tables = [(np.full((9, 9), q), 1.0)]
    found = pair_supremum_upper(nodes, tables, math.inf, None)
    exact = brute(nodes, q, np.linspace(*ends, 401))
    assert exact <= found <= 1.003 * exact
    row = pair_supremum_upper(nodes, tables, math.inf, 4)
    assert brute(nodes, q, nodes[4:5]) <= row <= found * (1 + 1e-9)


def test_a_table_with_holes_bounds_nothing() -> None:
    table = np.full((9, 9), 1.0)
    table[3, 4] = math.nan
    nodes = np.linspace(0.3, 0.7, 9)
    assert pair_supremum_upper(nodes, [(table, 1.0)], math.inf, None, 2000) == math.inf
