from __future__ import annotations

import math
from itertools import combinations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from quietbit._validate import InvalidParameter
from quietbit.privacy.curve import FunctionCurve, GaussianCurve, PureCurve
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.subsampling import secret_cohort_curve

REPLACE = Adjacency.REPLACE_ONE


def amplified(curve, cohort, population):
    return secret_cohort_curve(curve, cohort, population, REPLACE, server_learns_cohort=False)


def law(inputs) -> np.ndarray:
    whole = np.ones(1)
    for p in inputs:
        whole = np.convolve(whole, [1 - p, p])
    return whole


@pytest.mark.parametrize(("cohort", "population"), [(1, 3), (2, 5), (3, 4)])
def test_dominates_the_exact_divergence_of_sums_of_bits(cohort: int, population: int) -> None:
    """All cohorts enumerated; the cohort's own curve is the exact one over all contents on a grid."""
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

    curve = amplified(FunctionCurve(exact, "exact", math.log(7 / 3)), cohort, population)
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
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, dp_accounting.GaussianDpEvent(4.0))
    theirs = accountant.compose(event)._rdp
    base = GaussianCurve(2**2 / 4.0**2 / 2)  # replacing moves a sum by twice the clipping norm
    ours = amplified(base, 10, 1000)
    for order, value in zip(orders, theirs, strict=True):
        assert value <= ours.rdp(order) * (1 + 1e-9)
        assert ours.rdp(order) < 0.01 * base.rdp(order)


def test_never_worse_than_knowing_the_cohort_and_equal_for_all() -> None:
    base = PureCurve(0.7)
    for alpha in (1.1, 2.0, 2.5, 30.0, 513.5, 1e4):
        assert amplified(base, 3, 10).rdp(alpha) <= base.rdp(alpha) * (1 + 1e-9)
        assert amplified(base, 10, 10).rdp(alpha) == pytest.approx(base.rdp(alpha))
    assert amplified(base, 1, 10).pure_epsilon_upper() == pytest.approx(math.log1p(0.1 * math.expm1(0.7)))


def test_refused_where_the_server_learns_who_took_part() -> None:
    with pytest.raises(InvalidParameter, match="learns who took part"):
        secret_cohort_curve(PureCurve(1.0), 1, 2, REPLACE, server_learns_cohort=True)
    with pytest.raises(InvalidParameter, match="replace-one"):
        secret_cohort_curve(PureCurve(1.0), 1, 2, Adjacency.ZERO_OUT, server_learns_cohort=False)
    with pytest.raises(InvalidParameter, match="cohort"):
        secret_cohort_curve(PureCurve(1.0), 3, 2, REPLACE, server_learns_cohort=False)
