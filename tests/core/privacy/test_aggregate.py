from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from quietbit.design.solve import closed_design
from quietbit.design.table import DesignSpec
from quietbit.privacy.aggregate import AggregateConstant, aggregate_cost
from quietbit.privacy.bit_pairs import pair_supremum_upper
from quietbit.privacy.bit_sums import SumMoments, bit_sum
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency
from refusals import refuses

DESIGN = closed_design(DesignSpec(2, 1, 1.0))


def test_curve_scales_with_the_squared_distance_and_composes() -> None:
    near, far = (
        aggregate_cost(DESIGN, distance, 200, Adjacency.ZERO_OUT) for distance in (0.25, 0.5)
    )
    assert far.rdp(3.0) == pytest.approx(4 * near.rdp(3.0))
    assert (far * 3).rdp(3.0) == pytest.approx(3 * far.rdp(3.0))
    assert far.pure_epsilon() == float("inf")


def test_epsilon_is_close_to_a_gaussian_with_the_same_information() -> None:
    curve = aggregate_cost(DESIGN, 0.5, 1000, Adjacency.ZERO_OUT) * 100
    ideal = Cost.linear(100 * 0.5**2 / 2 / 1000)  # one client's, over n
    assert ideal.epsilon(1e-5) < curve.epsilon(1e-5) < 1.15 * ideal.epsilon(1e-5)


def test_refusals_name_the_value() -> None:
    wide = closed_design(DesignSpec(2, 2, 1.0))
    with refuses("output bits of the design", 2):
        AggregateConstant(wide, 0, 1, 10, Adjacency.ZERO_OUT)
    for clients in (1, 100_001, 2.5):
        with refuses("clients", clients):
            AggregateConstant(DESIGN, 0, 1, clients, Adjacency.ZERO_OUT)
    with refuses("input range", (0.6, 1.0)):
        AggregateConstant(DESIGN, 0.6, 1, 10, Adjacency.ZERO_OUT)
    with refuses("alpha", 1.0):
        AggregateConstant(DESIGN, 0, 1, 10, Adjacency.ZERO_OUT).upper(1.0)


def test_an_asymmetric_range_is_covered_without_the_mirror() -> None:
    one_sided = AggregateConstant(DESIGN, 0.4, 1.0, 20, Adjacency.REPLACE_ONE).upper(4.0)
    both = AggregateConstant(DESIGN, 0.0, 1.0, 20, Adjacency.REPLACE_ONE).upper(4.0)
    assert one_sided <= both * (1 + 1e-9)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("reach", [15.25, 16.0, 17.0])
def test_symbols_rarer_than_a_samplers_error_hide_nobody(
    reach: float, adjacency: Adjacency
) -> None:
    """Log-odds of +-31 and beyond: the bound is one client's own, never less."""
    constant = AggregateConstant(DESIGN, 0.5 - reach, 0.5 + reach, 50, adjacency)
    for alpha in (1.1, 2.0, 4.0):
        assert constant.upper(alpha) == pytest.approx(alpha / 2)


def exact(many: int, p: float, others: int, r: float) -> list[mpmath.mpf]:
    law = [mpmath.mpf(1)]
    for count, chance in ((many, mpmath.mpf(p)), (others, mpmath.mpf(r))):
        part = [
            mpmath.binomial(count, i) * chance**i * (1 - chance) ** (count - i)
            for i in range(count + 1)
        ]
        law = [
            mpmath.fsum(
                law[i] * part[s - i] for i in range(max(0, s - count), min(s, len(law) - 1) + 1)
            )
            for s in range(len(law) + count)
        ]
    return law


@pytest.mark.parametrize(
    ("many", "others", "reach"), [(0, 1, 150), (3, 9, 150), (60, 0, 20), (40, 80, 15), (90, 90, 60)]
)
def test_error_and_tail_are_upper_bounds(many: int, others: int, reach: float) -> None:
    with mpmath.workdps(50):
        law = exact(many, 0.73, others, 0.27)
        found = bit_sum(many, 0.73, others, 0.27, reach)
        assert found.size == many + others
        for place, value in enumerate(found.law):
            assert (
                abs(mpmath.log(mpmath.mpf(float(value)) / law[found.first + place])) <= found.error
            )
        outside = mpmath.fsum(law[: found.first]) + mpmath.fsum(law[found.first + len(found.law) :])
        assert outside <= found.tail
        assert found.tail <= 1e-3 * np.exp(-reach / 2)


def test_many_bits_stay_in_a_narrow_window() -> None:
    found = bit_sum(50_000, 0.7, 49_999, 0.3, 150)
    assert len(found.law) < 6000
    assert found.tail < 1e-60
    assert found.law.sum() == pytest.approx(1, abs=1e-11)
    assert found.error < 1e-10


NODES = np.linspace(0.3, 0.7, 5)
LOSS = float(np.log(7 / 3))


def exact_qbar(law: list[mpmath.mpf], alpha: float, p: float, r: float) -> mpmath.mpf:
    a, p, r = mpmath.mpf(alpha), mpmath.mpf(p), mpmath.mpf(r)
    total = mpmath.mpf(0)
    padded = [mpmath.mpf(0), *law, mpmath.mpf(0)]
    for s in range(len(law) + 1):
        q_0, q_1 = padded[s + 1], padded[s]
        x, y = (1 - p) * q_0 + p * q_1, (1 - r) * q_0 + r * q_1
        if p == r:
            total += (q_1 - q_0) ** 2 / x
        else:
            total += (x**a * y ** (1 - a) - y - a * (x - y)) / (p - r) ** 2 / (a * (a - 1) / 2)
    return total


@pytest.mark.parametrize("alpha", [1.0625, 2.0, 7.5])
def test_dominates_the_exact_sum_closely(alpha: float) -> None:
    stack = SumMoments.of([bit_sum(12, 0.7, 8, 0.3, 150.0)])
    table = stack.table(alpha, NODES, NODES, LOSS)
    rows = [
        stack.table(alpha, NODES, NODES[2:3], LOSS)[:, 0],
        stack.table(alpha, NODES[2:3], NODES, LOSS)[0],
    ]
    with mpmath.workdps(50):
        law = [mpmath.mpf(1)]
        for chance, count in ((0.7, 12), (0.3, 8)):
            for _ in range(count):
                c = mpmath.mpf(chance)
                law = [
                    (1 - c) * (law[s] if s < len(law) else 0) + c * (law[s - 1] if s else 0)
                    for s in range(len(law) + 1)
                ]
        for i, p in enumerate(NODES):
            for j, r in enumerate(NODES):
                truth = float(exact_qbar(law, alpha, float(p), float(r)))
                assert truth <= table[i, j] <= truth * (1 + 1e-8)
        np.testing.assert_allclose(rows, [table[:, 2], table[2, :]], rtol=1e-9)


@pytest.mark.parametrize("alpha", [1.3, 2.0, 3.0, 8.0])
def test_is_convex_in_each_argument_and_log_convex_in_the_order(alpha: float) -> None:
    stack = SumMoments.of([bit_sum(30, 0.7, 3, 0.3, 150.0)])
    table = stack.table(alpha, *[np.linspace(0.3, 0.7, 21)] * 2, LOSS)
    assert (np.diff(table, 2, axis=0) > -1e-7 * table.max()).all()
    assert (np.diff(table, 2, axis=1) > -1e-7 * table.max()).all()
    between = stack.table(alpha + 0.5, NODES, NODES, LOSS)
    ends = stack.table(alpha, NODES, NODES, LOSS) + stack.table(alpha + 1, NODES, NODES, LOSS)
    assert (between <= ends / 2 * (1 + 1e-12)).all()
    product = stack.table(alpha, NODES, NODES, LOSS) * stack.table(alpha + 1, NODES, NODES, LOSS)
    assert (between**2 <= product * (1 + 1e-9)).all()


def test_several_laws_give_the_largest() -> None:
    laws = [bit_sum(k, 0.7, 200 - k, 0.3, 150.0) for k in (0, 77, 200)]
    whole = SumMoments.of(laws).table(5.0, NODES, NODES, LOSS)
    single = [SumMoments.of([law]).table(5.0, NODES, NODES, LOSS) for law in laws]
    np.testing.assert_allclose(whole, np.maximum.reduce(single), rtol=1e-10)


def brute(nodes: np.ndarray, q: float, centre: float | None) -> float:
    p = np.linspace(nodes[0], nodes[-1], 401)
    r = p if centre is None else np.array([centre])
    gap = np.subtract.outer(p, r)
    distance = np.subtract.outer(np.log(p / (1 - p)), np.log(r / (1 - r)))
    keep = np.abs(gap) > 1e-9
    return float((np.log1p(gap[keep] ** 2 * q) / distance[keep] ** 2).max())


@pytest.mark.parametrize("q", [1e-4, 1.0, 300.0, 1e6])
@pytest.mark.parametrize("ends", [(0.3, 0.7), (0.02, 0.4)])
def test_is_the_supremum_for_a_flat_table(q: float, ends: tuple[float, float]) -> None:
    nodes = np.linspace(*ends, 9)
    found = pair_supremum_upper(nodes, [(np.full((9, 9), q), 1.0)], math.inf, None)
    assert brute(nodes, q, None) <= found <= 1.003 * max(brute(nodes, q, None), _local(nodes, q))
    row = pair_supremum_upper(nodes, [(np.full((9, 9), q), 1.0)], math.inf, 4)
    assert brute(nodes, q, float(nodes[4])) <= row <= found * (1 + 1e-9)


def _local(nodes: np.ndarray, q: float) -> float:
    """The limit of equal inputs: Q (p (1 - p))^2 where that is largest."""
    p = min(max(0.5, nodes[0]), nodes[-1])
    return float(q * (p * (1 - p)) ** 2)


def test_a_table_with_holes_bounds_nothing() -> None:
    table = np.full((9, 9), 1.0)
    table[3, 4] = math.nan
    assert (
        pair_supremum_upper(np.linspace(0.3, 0.7, 9), [(table, 1.0)], math.inf, None, 2000)
        == math.inf
    )
