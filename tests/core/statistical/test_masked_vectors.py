"""A server's view: masked vectors are uniform modulo 2^k whatever they hide, alone and in pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from quietbit.secagg.client import SumClient
from quietbit.secagg.plan import SumPlan

FALSE_ALARM = 1e-9
DIMENSION = 60_000


def assert_uniform(values: np.ndarray, cells: int) -> None:
    """Pearson's chi-squared; fails by chance with probability about 1e-9 (cells hold over 500
    each).
    """
    counts = np.bincount(values.reshape(-1), minlength=cells)
    statistic = float(((counts - values.size / cells) ** 2).sum() / (values.size / cells))
    assert stats.chi2.cdf(statistic, cells - 1) < 1 - FALSE_ALARM / 2, statistic
    assert stats.chi2.cdf(statistic, cells - 1) > FALSE_ALARM / 2, statistic


def masked(ones: int) -> list[np.ndarray]:
    """Masked vectors of five clients who all hold the same bit everywhere; keys are the
    operating system's.
    """
    plan = SumPlan(5, 3, DIMENSION, b"view")
    clients = {i: SumClient(plan, i) for i in range(1, 6)}
    roster = {i: client.advertise() for i, client in clients.items()}
    dealt = {i: client.share(roster) for i, client in clients.items()}
    codes = np.full(DIMENSION, ones, dtype=np.uint32)
    vectors = []
    for i, client in clients.items():
        inbox = {dealer: dealt[dealer][i] for dealer in dealt if dealer != i}
        vectors.append(plan.unpack(i, client.mask(codes, range(1, 6), inbox)))
    return vectors


@pytest.mark.parametrize("ones", [0, 1])
def test_masked_vectors_are_uniform(ones: int) -> None:
    vectors = masked(ones)
    for vector in vectors:
        assert_uniform(vector, 8)
    for first, second in itertools.pairwise(vectors):
        assert_uniform(8 * first + second, 64)
    assert_uniform(sum(vectors) % 8, 8)  # own masks are still in the sum
    assert_uniform(8 * vectors[0][:-1] + vectors[0][1:], 64)


def test_the_test_can_fail() -> None:
    rng = np.random.default_rng(3)
    biased = np.where(rng.random(DIMENSION) < 0.02, 0, rng.integers(0, 8, DIMENSION))
    with pytest.raises(AssertionError):
        assert_uniform(biased, 8)
