"""Baselines for sums against exact convolutions: every certified bound is above what a
brute-force sum gives.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from core.statistical.kit import seed
from lab.exact.release_kit import neighbours, renyi
from quietbit import Ball, Norm
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.ball import usual_kernel
from quietbit.target import Adjacency, Trust
from quietbit_lab.baseline.cpsgd import BinomialNoise, binomial_epsilon_upper
from quietbit_lab.baseline.discrete_gaussian import (
    DistributedDiscreteGaussian,
    gaussian_table,
    tau_upper,
)
from quietbit_lab.baseline.poisson_binomial import PoissonBinomial
from quietbit_lab.baseline.sums import Distances


@pytest.mark.parametrize(("variance", "clients"), [(0.25, 2), (0.25, 4), (0.5, 3), (1.0, 3)])
def test_tau_covers_the_sum_of_discrete_gaussians(variance: float, clients: int) -> None:
    """By 40-digit convolutions, at every value within six deviations."""
    reach = math.ceil(16 * math.sqrt(variance))
    with mpmath.workdps(40):
        law = reduce(np.convolve, [discrete_gaussian(variance, reach)] * clients)
        ideal = discrete_gaussian(variance * clients, reach * clients)
        centre, far = len(law) // 2, math.ceil(6 * math.sqrt(variance * clients))
        ratios = (law / ideal)[centre - far : centre + far + 1]
        worst = max(abs(float(mpmath.log(ratio))) for ratio in ratios)
    assert 0 < worst <= tau_upper(variance, clients)
    assert tau_upper(variance, clients) < 60 * worst  # a bound with its constant, not a guess


def discrete_gaussian(variance: float, reach: int) -> Any:
    """Its law on -reach .. reach, in the digits of mpmath."""
    exponents = [-mpmath.mpf(k * k) / (2 * mpmath.mpf(variance)) for k in range(-reach, reach + 1)]
    weights = np.array([mpmath.exp(exponent) for exponent in exponents])
    return weights / weights.sum()


def test_a_table_is_the_discrete_gaussian() -> None:
    variance = 3.7
    table = gaussian_table(variance)
    bits = 64 * table.words
    ends = np.array([0.0, *(float(Fraction(end, 2**bits)) for end in table.thresholds), 1.0])
    values = table.first + np.arange(ends.size - 1)
    ideal = np.exp(-(values.astype(float) ** 2) / (2 * variance))
    assert np.diff(ends) == pytest.approx(ideal / ideal.sum(), abs=1e-15)


@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize(("coins", "delta"), [(2_000, 1e-3), (20_000, 1e-5)])
def test_the_binomial_theorem_covers_exact_tails(coins: int, delta: float, shift: int) -> None:
    epsilon = binomial_epsilon_upper(coins, Distances(shift, shift, shift), 1, delta)
    heads = np.arange(-shift, coins + shift + 1)
    p, q = stats.binom.pmf(heads, coins, 0.5), stats.binom.pmf(heads - shift, coins, 0.5)
    exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
    assert exact <= delta
    assert float(np.maximum(p - math.exp(epsilon / 3) * q, 0).sum()) > exact


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(("theta", "coins", "clients"), [(0.25, 1, 3), (0.1, 2, 4), (0.02, 1, 12)])
def test_sums_of_coins_cost_at_most_what_is_claimed(
    adjacency: Adjacency, theta: float, coins: int, clients: int
) -> None:
    """One coordinate: all inputs on a grid, all ways in which others can be at either end of the
    range.
    """
    mechanism = PoissonBinomial(Ball(Norm.L2, 1), clients, theta, coins)
    claim = mechanism.sum_privacy(adjacency)
    assert claim.trust is Trust.SECURE_AGGREGATION

    def flips(count: int, chance: float) -> Any:
        return stats.binom.pmf(np.arange(count + 1), count, chance)

    worst = dict.fromkeys((1.5, 2.0, 8.0), 0.0)
    for up in range(clients):
        down = coins * (clients - 1 - up)
        others = np.convolve(flips(coins * up, 0.5 + theta), flips(down, 0.5 - theta))
        own = [flips(coins, 0.5 + theta * x) for x in np.linspace(-1, 1, 9)]
        laws = [np.convolve(others, law) for law in [*own, own[4]]]  # zero again, and last
        for alpha in worst:
            pairs = neighbours(laws, adjacency)
            worst[alpha] = max(worst[alpha], *(renyi(p, q, alpha) for p, q in pairs))
    loose = 5.0 if theta > 0.2 else 3.0 if coins > 1 else 1.2
    for alpha, exact in worst.items():
        assert exact <= claim.rdp(alpha) < loose * exact


SUMS: dict[str, Any] = {
    "poisson binomial": PoissonBinomial(Ball(Norm.L2, 50), 60, 0.2, 3, 0.6),
    "discrete gaussian": DistributedDiscreteGaussian(Ball(Norm.L2, 50), 60, 2.0),
    "cpsgd": BinomialNoise(Ball(Norm.L2, 50), 60, 130, 20.0, 1e-6),
}


@pytest.mark.parametrize("name", SUMS)
def test_decoded_sums_have_the_stated_mean_and_error(name: str) -> None:
    """Squared errors of 20 sums of 60 clients: a chi-square of 1,000 terms, 32 % off with a
    probability below 1e-10.
    """
    mechanism, rng, kernel = SUMS[name], seeded_rng(seed(5)), usual_kernel()
    update = Ball(Norm.L2, 50).clip(np.random.default_rng(1).normal(size=50))
    errors, means = [], []
    for _ in range(20):
        total = sum(mechanism.encode([update], rng, kernel) for _ in range(60))
        found = mechanism.mean_from_sum(np.asarray(total) % 2**mechanism.wire_bits)
        errors.append(float(np.mean((found - update) ** 2)))
        means.append(found)
    assert np.mean(errors) == pytest.approx(mechanism.squared_error, rel=0.32)
    away = (np.mean(means, axis=0) - update) / math.sqrt(mechanism.squared_error / 20)
    assert np.abs(away).max() < 7  # 50 coordinates: below 1e-9
    assert (
        np.linalg.norm(away + update / math.sqrt(mechanism.squared_error / 20) * 0.5)
    ) > 7  # half a response shows


@pytest.mark.parametrize("name", SUMS)
def test_sums_refuse_what_is_wrong_before_they_draw(name: str) -> None:
    class Nothing:
        def draw(self, count: int) -> Any:
            raise AssertionError("a word was drawn")

    for bad in (np.full(50, np.nan), np.full(50, np.inf)):
        with pytest.raises(ValueError, match="finite"):
            SUMS[name].encode([bad], Nothing(), usual_kernel())


@pytest.mark.parametrize("name", ["discrete gaussian", "cpsgd"])
def test_sums_are_accounted_under_secure_aggregation(name: str) -> None:
    near, far = (SUMS[name].sum_privacy(one) for one in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE))
    assert 0 < near.epsilon(1e-5) < far.epsilon(1e-5) < math.inf
    assert near.guarantee(1e-5).trust.value == "secure-aggregation"
