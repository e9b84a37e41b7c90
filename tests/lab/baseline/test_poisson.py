from __future__ import annotations

import bisect
import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from quietbit_lab.baseline.skellam_noise import (
    poisson_table,
    skellam_log2_probability_lower,
    words_needed,
)


@pytest.mark.parametrize("mean", [1e-3, 0.3, 1.0, 5.5, 1000.25])
@pytest.mark.parametrize("words", [1, 3])
def test_thresholds_are_the_distribution_function(mean: float, words: int) -> None:
    made = poisson_table(mean, words)
    bits = 64 * words
    assert list(made.thresholds) == sorted(made.thresholds)
    with mpmath.workdps(90):
        unit = mpmath.mpf(2) ** bits
        for place in np.unique(np.linspace(0, len(made.thresholds) - 1, 40).astype(int)).tolist():
            k = made.first + place
            exact = mpmath.gammainc(k + 1, mpmath.mpf(mean), mpmath.inf, regularized=True)
            assert abs(mpmath.mpf(made.thresholds[place]) - exact * unit) <= 2
        below = (
            mpmath.gammainc(made.first, mpmath.mpf(mean), mpmath.inf, regularized=True)
            if made.first
            else 0
        )
        last = made.first + len(made.thresholds)
        above = 1 - mpmath.gammainc(last + 1, mpmath.mpf(mean), mpmath.inf, regularized=True)
        assert (below + abs(above)) * unit <= 2


class Given:
    """Numbers of several words, chosen one by one."""

    def __init__(self, numbers: list[int], words: int) -> None:
        shifts = [64 * (words - 1 - place) for place in range(words)]
        self.streams = [
            np.array([(number >> shift) % 2**64 for number in numbers], dtype=np.uint64)
            for shift in shifts
        ]

    def uniform64(self, stream: int, start: int, count: int) -> Any:
        return self.streams[stream][start : start + count]


@pytest.mark.parametrize("words", [2, 3])
@pytest.mark.parametrize("mean", [0.125, 5.5, 3e4])
def test_a_draw_counts_the_thresholds_up_to_its_number(mean: float, words: int) -> None:
    """At random numbers, both ends, bucket edges, thresholds themselves and right below them."""
    made = poisson_table(mean, words)
    rng, low = np.random.default_rng(3), 64 * (words - 1)
    numbers = [int(word) << low for word in rng.integers(0, 2**64, 2000, dtype=np.uint64)]
    for bucket in range(0, 1 << 16, 97):
        numbers += [bucket << (low + 48), (bucket << (low + 48)) - 1]
    for threshold in made.thresholds[:: max(1, len(made.thresholds) // 50)]:
        numbers += [threshold, threshold - 1]
    numbers = [number % 2 ** (64 * words) for number in [*numbers, -1]]  # -1: the last of all
    found = made.draw(Given(numbers, words), 0, 0, len(numbers))
    wanted = [made.first + bisect.bisect_right(made.thresholds, number) for number in numbers]
    assert found.tolist() == wanted


@pytest.mark.parametrize("variance", [0.3, 2.0, 50.0, 1e4])
def test_the_probability_bound_is_below_and_not_far(variance: float) -> None:
    for value in (0, 1, 3, 10):
        exact = stats.skellam.pmf(value, variance / 2, variance / 2)
        bound = 2.0 ** skellam_log2_probability_lower(variance, value)
        assert exact * 1e-4 < bound <= exact * (1 + 1e-6)
        assert skellam_log2_probability_lower(variance, -value) == skellam_log2_probability_lower(
            variance, value
        )


def test_words_make_the_slack_vanish() -> None:
    for variance, largest, size in ((1.0, 128, 1), (2e7, 2**15, 2**20), (1e3, 2**15, 4)):
        words = words_needed(variance, largest, size)
        log2_slack = (
            math.log2(size) + 27 - 64 * words - skellam_log2_probability_lower(variance, largest)
        )
        assert log2_slack <= -63
        assert log2_slack > -63 - 64 - 1
