"""Statistical assertions with a stated false-alarm rate.

Idea     a correct sampler fails one of these with probability at most ``false_alarm``, whatever the
         number of coordinates: the rate is divided by the number of comparisons (Bonferroni) and
         tails are exact binomial ones. Nobody widens a tolerance; one raises the number of trials
         or finds the bug.
Seeds    fixed on every change; the environment variable QUIETBIT_SEED replaces them, and failures
         print what was used.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-9


class StatisticalFailure(AssertionError):
    """Counts that a correct sampler produces with probability below the false-alarm rate."""


def seed(default: int) -> int:
    """The seed of a test: the default, plus QUIETBIT_SEED where set; printed so that failures
    show it.
    """
    chosen = int(os.environ.get("QUIETBIT_SEED", "0")) + default
    print(f"seed {chosen}")
    return chosen


def tail_probability(count: Any, trials: Any, probability: Any) -> Any:
    """The smaller of P(X <= count) and P(X >= count) for X ~ Binomial(trials, probability)."""
    return np.minimum(
        stats.binom.cdf(count, trials, probability), stats.binom.sf(count - 1, trials, probability)
    )


def assert_binomial(
    counts: Any, trials: Any, probability: Any, false_alarm: float = FALSE_ALARM
) -> None:
    """Each count is Binomial(trials, probability), independent or not; arguments broadcast.

    Each of the two tails of each count gets its share of the false-alarm rate.
    """
    counts, trials, probability = np.broadcast_arrays(np.asarray(counts), trials, probability)
    if counts.size == 0:
        raise StatisticalFailure("There is nothing to test.")
    if np.any(counts < 0) or np.any(counts > trials):
        raise StatisticalFailure("A count lies outside 0 .. trials.")
    tails = tail_probability(counts, trials, probability).reshape(-1)
    level = false_alarm / (2 * counts.size)
    worst = int(np.argmin(tails))
    if not tails[worst] >= level:
        at = tuple(int(i) for i in np.unravel_index(worst, counts.shape))
        raise StatisticalFailure(
            f"Count {counts[at]} of {trials[at]} at {at} has tail probability {tails[worst]:.3g} under "
            f"p = {probability[at]:.6g}; the level is {level:.3g}, and {np.sum(tails < level)} of "
            f"{counts.size} counts fall below it."
        )


def assert_frequencies(codes: Any, probabilities: Any, false_alarm: float = FALSE_ALARM) -> None:
    """Codes (trials, ...) follow the law ``probabilities`` (..., symbols), coordinate by
    coordinate.
    """
    codes, probabilities = np.asarray(codes), np.asarray(probabilities, dtype=np.float64)
    symbols = probabilities.shape[-1]
    if codes.size and int(codes.max()) >= symbols:
        raise StatisticalFailure(f"Code {int(codes.max())} is not one of {symbols} symbols.")
    counts = np.stack([(codes == symbol).sum(axis=0) for symbol in range(symbols)], axis=-1)
    assert_binomial(counts, codes.shape[0], probabilities, false_alarm)


def assert_mean(
    values: Any, expected: Any, low: float, high: float, false_alarm: float = FALSE_ALARM
) -> None:
    """Means over axis 0 of independent values in [low, high] are as expected (Hoeffding's
    inequality).
    """
    values = np.asarray(values, dtype=np.float64)
    if values.size == 0 or values.min() < low or values.max() > high:
        raise StatisticalFailure(f"Values are missing or leave [{low}, {high}].")
    means = values.mean(axis=0)
    reach = (high - low) * math.sqrt(
        math.log(2 * np.size(means) / false_alarm) / (2 * values.shape[0])
    )
    off = np.max(np.abs(means - expected))
    if not off <= reach:
        raise StatisticalFailure(
            f"A mean is off by {off:.4g}, more than the {reach:.4g} that chance allows."
        )
