from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from quietbit import Ball, Gaussian, Norm, audit
from quietbit._validate import InvalidParameter
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.audit import clopper_pearson
from quietbit.privacy.guarantee import Adjacency


@pytest.mark.parametrize("trials", [10, 137])
@pytest.mark.parametrize("doubt", [0.05, 1e-7])
def test_clopper_pearson_inverts_the_binomial_tails(trials: int, doubt: float) -> None:
    for hits in (0, 1, trials // 2, trials):
        low, high = clopper_pearson(hits, trials, doubt)
        assert 0 <= low <= hits / trials <= high <= 1
        if hits:
            assert stats.binom.sf(hits - 1, trials, low) == pytest.approx(doubt, rel=1e-6)
        if hits < trials:
            assert stats.binom.cdf(hits, trials, high) == pytest.approx(doubt, rel=1e-6)


def test_it_finds_a_good_part_of_a_gaussians_epsilon() -> None:
    mechanism = Gaussian(Ball(Norm.L2, 1.0, 1), 0.5)
    found = audit(mechanism, Adjacency.REPLACE_ONE, rng=seeded_rng(1), delta=1e-3, samples=2000)
    exact = mechanism.privacy(Adjacency.REPLACE_ONE).epsilon_upper(1e-3)
    assert 0.2 * exact < found.epsilon_lower < exact
    assert found.passed
    assert (found.delta, found.adjacency, found.samples) == (1e-3, Adjacency.REPLACE_ONE, 2000)


@pytest.mark.parametrize(
    "changed", [{"samples": 10}, {"confidence": 0.3}, {"confidence": 1.0}, {"delta": -1.0}, {"rng": 3}]
)
def test_refusals(changed: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"rng": seeded_rng(1), "samples": 100}
    with pytest.raises(InvalidParameter):
        audit(Gaussian(Ball(Norm.L2, 1.0, 1), 0.5), Adjacency.ZERO_OUT, **(usual | changed))
