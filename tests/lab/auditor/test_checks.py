"""Limits hold: exact binomial tails, and sums of laws whose tails are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from quietbit_lab.auditor.checks import bernstein_limit, bernstein_tail, lower_limit


@pytest.mark.parametrize("trials", [30, 1000])
@pytest.mark.parametrize("chance", [0.5, 0.02, 0.98])
@pytest.mark.parametrize("doubt", [1e-3, 1e-9])
def test_a_binomial_exceeds_its_limits_with_no_more_than_the_doubt(
    trials: int, chance: float, doubt: float
) -> None:
    mean, variance = trials * chance, trials * chance * (1 - chance)
    limit = bernstein_limit(variance, max(chance, 1 - chance), doubt)
    assert stats.binom.sf(math.ceil(mean + limit) - 1, trials, chance) <= doubt
    assert stats.binom.cdf(math.floor(mean - limit), trials, chance) <= doubt
    below = float(lower_limit(trials * chance, doubt))  # X^2 = X for zeros and ones
    assert stats.binom.cdf(math.floor(mean - below), trials, chance) <= doubt


def test_limit_and_tail_are_inverse_to_one_another() -> None:
    for variance, reach, doubt in ((1.0, 0.0, 1e-3), (50.0, 2.0, 1e-9), (1e-3, 5.0, 1e-6)):
        limit = bernstein_limit(variance, reach, doubt)
        assert math.exp(bernstein_tail(limit, variance, reach)) == pytest.approx(doubt)
    assert bernstein_tail(-1.0, 1.0, 1.0) == 0.0
    assert bernstein_limit(np.array([1.0, 4.0]), 0.0, 0.01).tolist() == pytest.approx(
        [3.0349, 6.0697], abs=1e-3
    )
