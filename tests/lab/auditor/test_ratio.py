"""The lower bound from counts, the exact binomial bounds in it, and what it could have found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from quietbit.federation.intervals import clopper_pearson
from quietbit_lab.auditor.ratio import counted, detectable_lower, measurable, ratio_lower


def test_the_best_of_samples_gives_what_is_measurable() -> None:
    first, second = np.ones(400), np.zeros(400)
    top = measurable(400, 0.0, 1e-6)
    assert ratio_lower(first, second, 0.0, 1e-6) == top
    assert counted(400) == 300
    # 300 of 300 and 0 of 300: the bounds are q and 1 - q with q^300 = 1e-6.
    low = 1e-6 ** (1 / 300)
    assert top == pytest.approx(math.log(low / (1 - low)), rel=1e-9)


def test_all_directions_are_tried() -> None:
    """Whichever update makes the statistic larger, and whichever is the rare one."""
    rng = np.random.default_rng(1)
    rare, often = (rng.random(4000) < 0.01).astype(float), (rng.random(4000) < 0.4).astype(float)
    found = [
        ratio_lower(*pair, 0.0, 1e-6)
        for pair in ((often, rare), (rare, often), (-often, -rare), (-rare, -often))
    ]
    assert min(found) > 2.0
    assert max(found) < math.log(0.45 / 0.005)


def test_equal_laws_give_nothing() -> None:
    rng = np.random.default_rng(2)
    assert ratio_lower(rng.normal(size=4000), rng.normal(size=4000), 0.0, 1e-6) <= 0
    assert ratio_lower(np.zeros(100), np.zeros(100), 0.5, 1e-6) <= 0


@pytest.mark.parametrize("claim", [0.5, 2.0])
def test_what_is_detectable_is_found_by_randomised_response_nine_times_in_ten(claim: float) -> None:
    samples, doubt = 2000, 1e-6
    epsilon = detectable_lower(samples, claim, 0.0, doubt)
    likely = 1 / (1 + math.exp(-epsilon))
    rng = np.random.default_rng(3)
    tries = [
        ratio_lower(
            (rng.random(samples) < likely) * 1.0,
            (rng.random(samples) < 1 - likely) * 1.0,
            0.0,
            doubt,
        )
        for _ in range(40)
    ]
    assert sum(found > claim for found in tries) >= 36
    assert claim < epsilon < claim + 2


def test_a_claim_above_what_is_measurable_is_never_exceeded() -> None:
    assert detectable_lower(1000, measurable(1000, 0.0, 1e-6) + 0.01, 0.0, 1e-6) == math.inf


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (1, 10), (68, 137), (137, 137)])
@pytest.mark.parametrize("doubt", [0.05, 1e-7])
def test_clopper_pearson_inverts_the_binomial_tails(hits: int, trials: int, doubt: float) -> None:
    low, high = clopper_pearson(hits, trials, doubt)
    assert 0 <= low <= hits / trials <= high <= 1
    if hits:
        assert stats.binom.sf(hits - 1, trials, low) == pytest.approx(doubt, rel=1e-6)
    if hits < trials:
        assert stats.binom.cdf(hits, trials, high) == pytest.approx(doubt, rel=1e-6)
