from __future__ import annotations

import math
from itertools import combinations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency
from quietbit_lab.baseline.secret_cohort import secret_cohort_cost
from refusals import refuses

REPLACE = Adjacency.REPLACE_ONE


def amplified(curve, cohort, population):
    return secret_cohort_cost(curve, cohort, population, REPLACE, server_learns_cohort=False)


def law(inputs) -> np.ndarray:
    whole = np.ones(1)
    for p in inputs:
        whole = np.convolve(whole, [1 - p, p])
    return whole


@pytest.mark.parametrize(("cohort", "population"), [(1, 3), (2, 5), (3, 4)])
def test_dominates_the_exact_divergence_of_sums_of_bits(cohort: int, population: int) -> None:
    """All cohorts enumerated, with the exact curve over contents on a grid."""
    levels = (0.3, 0.5, 0.7)
    orders = (1.5, 2.0, 2.5, 3.0, 6.0)

    def divergence(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
        return float(np.log((p**alpha * q ** (1 - alpha)).sum()) / (alpha - 1))

    def exact(alpha: float) -> float:
        pairs = [
            (law([*rest, a]), law([*rest, b]))
            for rest in combinations([*levels] * (cohort - 1), cohort - 1)
            for a in levels
            for b in levels
            if a != b
        ]
        return max(divergence(p, q, alpha) for p, q in pairs)

    curve = amplified(Cost.renyi(exact, math.log(7 / 3)), cohort, population)
    rng = np.random.default_rng(2)
    for _ in range(20):
        rest = list(rng.choice(levels, population - 1))
        worlds = []
        for own in (0.3, 0.7):
            everybody = [own, *rest]
            worlds.append(np.mean([law(c) for c in combinations(everybody, cohort)], axis=0))
        for alpha in orders:
            for p, q in (worlds, worlds[::-1]):
                assert divergence(p, q, alpha) <= curve.rdp(alpha)


def test_is_above_the_gaussian_account_of_dp_accounting_and_amplifies() -> None:
    """Theirs is the sharper Theorem 27 of the same paper, for the Gaussian alone."""
    orders = [2, 3, 5, 10, 20]
    accountant = RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, 10, dp_accounting.GaussianDpEvent(4.0)
    )
    theirs = accountant.compose(event)._rdp
    base = Cost.gaussian(2**2 / 4.0**2 / 2)  # replacing moves a sum by twice the clipping norm
    ours = amplified(base, 10, 1000)
    for order, value in zip(orders, theirs, strict=True):
        assert value <= ours.rdp(order) * (1 + 1e-9)
        assert ours.rdp(order) < 0.01 * base.rdp(order)


def test_never_worse_than_knowing_the_cohort_and_equal_for_all() -> None:
    base = Cost.pure(0.7)
    for alpha in (1.1, 2.0, 2.5, 30.0, 513.5, 1e4):
        assert amplified(base, 3, 10).rdp(alpha) <= base.rdp(alpha) * (1 + 1e-9)
        assert amplified(base, 10, 10).rdp(alpha) == pytest.approx(base.rdp(alpha))
    assert amplified(base, 1, 10).pure_epsilon() == pytest.approx(math.log1p(0.1 * math.expm1(0.7)))


def test_refused_where_the_server_learns_who_took_part() -> None:
    with refuses("server_learns_cohort", True):
        secret_cohort_cost(Cost.pure(1.0), 1, 2, REPLACE, server_learns_cohort=True)
    with refuses("replace_one", None):
        secret_cohort_cost(Cost.pure(1.0), 1, 2, Adjacency.ZERO_OUT, server_learns_cohort=False)
    with refuses("cohort", 3):
        secret_cohort_cost(Cost.pure(1.0), 3, 2, REPLACE, server_learns_cohort=False)


@pytest.mark.parametrize(("cohort", "population"), [(1, 2), (2, 5), (3, 4), (3, 6)])
def test_zero_out_dominates_all_cohorts_of_vectors(cohort: int, population: int) -> None:
    """Two coordinates that share who takes part; exact curves over a grid of contents."""
    levels, orders = (0.25, 0.5, 0.75), (1.5, 2.0, 2.5, 3.0, 4.0, 7.0)

    def joint(contents) -> np.ndarray:
        """The law of both sums, for clients with (probability, probability)."""
        return np.outer(law([a for a, _ in contents]), law([b for _, b in contents])).ravel()

    def divergence(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
        return float(np.log((p**alpha * q ** (1 - alpha)).sum()) / (alpha - 1))

    inputs = [(a, b) for a in levels for b in levels]
    zero = (0.5, 0.5)

    def exact(alpha: float, pairs) -> float:
        # Others at the ends are the worst; coordinates are independent given the contents.
        best = 0.0
        for rest in combinations(
            [(a, b) for a in (0.25, 0.75) for b in (0.25, 0.75)] * (cohort - 1), cohort - 1
        ):
            worlds = {x: joint([*rest, x]) for x in inputs}
            best = max(best, *(divergence(worlds[x], worlds[y], alpha) for x, y in pairs))
        return best

    near_pairs = [(x, zero) for x in inputs if x != zero] + [(zero, x) for x in inputs if x != zero]
    far_pairs = [(x, y) for x in inputs for y in inputs if x != y]
    known = {
        a: (exact(a, near_pairs), exact(a, far_pairs)) for a in {*orders, *map(float, range(2, 9))}
    }
    pure = 2 * math.log(2)  # both coordinates' largest ratio, 0.5/0.25
    near = Cost.renyi(lambda alpha: known[alpha][0], pure)
    far = Cost.renyi(lambda alpha: known[alpha][1], 2 * math.log(3))
    curve = secret_cohort_cost(
        near, cohort, population, Adjacency.ZERO_OUT, server_learns_cohort=False, replace_one=far
    )
    rng = np.random.default_rng(7)
    for _ in range(12):
        rest = [inputs[k] for k in rng.integers(0, len(inputs), population - 1)]
        own = inputs[int(rng.integers(len(inputs)))]
        with_own, with_zero = (
            np.mean([joint(c) for c in combinations([x, *rest], cohort)], axis=0)
            for x in (own, zero)
        )
        for alpha in orders:
            for p, q in ((with_own, with_zero), (with_zero, with_own)):
                assert divergence(p, q, alpha) <= curve.rdp(alpha) * (1 + 1e-12)


def test_zero_out_gains_as_the_square_of_the_rate_and_is_below_replace_one() -> None:
    near, far = Cost.gaussian(0.01), Cost.gaussian(0.04)
    zero = secret_cohort_cost(
        near, 10, 1000, Adjacency.ZERO_OUT, server_learns_cohort=False, replace_one=far
    )
    one = secret_cohort_cost(far, 10, 1000, REPLACE, server_learns_cohort=False)
    for alpha in (2.0, 5.0, 20.0):
        assert zero.rdp(alpha) < one.rdp(alpha) < far.rdp(alpha)
        assert zero.rdp(alpha) < 20 * 0.01**2 * near.rdp(alpha)


@pytest.mark.parametrize("population", [2, 3, 10, 100])
def test_zero_out_at_delta_zero_dominates_a_client_replaced_by_its_opposite(
    population: int,
) -> None:
    """Many small coordinates: p/q and q/r are near e^near, so who sits out matters most."""
    laws = [law([1 / (1 + math.exp(-odds))] * 8) for odds in (-0.25, 0.0, 0.25)]
    low, zero, high = laws

    def largest(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.abs(np.log(one / other)).max())

    near = Cost.renyi(lambda alpha: largest(low, zero), largest(low, zero))
    far = Cost.renyi(lambda alpha: largest(low, high), largest(low, high))
    curve = secret_cohort_cost(
        near, 1, population, Adjacency.ZERO_OUT, server_learns_cohort=False, replace_one=far
    )
    rate = 1 / population
    true = max(
        largest(rate * own + (1 - rate) * other, rate * zero + (1 - rate) * other)
        for own in (low, high)
        for other in laws
    )
    assert true <= curve.pure_epsilon() <= near.pure_epsilon()
    assert curve.pure_epsilon() < 1.25 * true
