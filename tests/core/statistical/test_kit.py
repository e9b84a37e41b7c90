"""The kit can fail, fails when it should, and keeps its false-alarm rate exactly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from core.statistical.kit import (
    StatisticalFailure,
    assert_binomial,
    assert_frequencies,
    assert_mean,
    seed,
    tail_probability,
)


def rejected(count: int, trials: int, probability: float, false_alarm: float) -> bool:
    try:
        assert_binomial(count, trials, probability, false_alarm)
    except StatisticalFailure:
        return True
    return False


@pytest.mark.parametrize("probability", [0.5, 0.03, 0.9])
@pytest.mark.parametrize("false_alarm", [0.1, 1e-3, 1e-9])
def test_the_chance_of_rejection_is_at_most_the_rate(
    probability: float, false_alarm: float
) -> None:
    """Summed exactly over all outcomes, and not far below the rate: neither blunt nor
    trigger-happy.
    """
    trials = 200
    outcomes = [k for k in range(trials + 1) if rejected(k, trials, probability, false_alarm)]
    chance = float(stats.binom.pmf(outcomes, trials, probability).sum())
    assert false_alarm / 50 < chance <= false_alarm


def test_a_stuck_bit_and_a_small_bias_are_caught() -> None:
    rng = np.random.default_rng(seed(1))
    counts = rng.binomial(4000, 0.45, size=67)
    assert_binomial(counts, 4000, 0.45)
    counts[-1] = 0
    with pytest.raises(StatisticalFailure, match="at \\(66,\\)"):
        assert_binomial(counts, 4000, 0.45)
    with pytest.raises(StatisticalFailure):
        assert_binomial(rng.binomial(1_000_000, 0.504), 1_000_000, 0.5)


@pytest.mark.parametrize(
    ("counts", "probability"),
    [(np.empty(0), 0.5), ([-1], 0.5), ([11], 0.5), ([5], np.nan), ([1], 0.0)],
    ids=["nothing", "negative", "too many", "NaN", "impossible"],
)
def test_nothing_and_nonsense_fail(counts: object, probability: float) -> None:
    with pytest.raises(StatisticalFailure):
        assert_binomial(counts, 10, probability)
    assert_binomial([0, 10], 10, [0.0, 1.0])


def test_frequencies() -> None:
    law = np.array([0.1, 0.2, 0.3, 0.4])
    codes = np.random.default_rng(seed(2)).choice(4, size=(20_000, 3), p=law)
    assert_frequencies(codes, np.tile(law, (3, 1)))
    for wrong in ([0.1, 0.2, 0.4, 0.3], [0.13, 0.2, 0.3, 0.37], [0.5, 0.3, 0.2]):
        with pytest.raises(StatisticalFailure):
            assert_frequencies(codes, np.tile(wrong, (3, 1)))


def test_means() -> None:
    values = np.random.default_rng(seed(3)).uniform(-1, 1, size=(100_000, 2))
    assert_mean(values, 0.0, -1, 1)
    with pytest.raises(StatisticalFailure):
        assert_mean(values + 0.05, 0.0, -1, 1.05)
    with pytest.raises(StatisticalFailure):
        assert_mean(values, 0.0, -0.5, 0.5)


def test_tails_are_exact_far_out() -> None:
    assert tail_probability(400, 400, 0.5) == pytest.approx(2.0**-400, rel=1e-9)


def test_seeds_can_be_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert seed(5) == 5
    monkeypatch.setenv("QUIETBIT_SEED", "1000")
    assert seed(5) == 1005
    assert "seed 1005" in capsys.readouterr().out
