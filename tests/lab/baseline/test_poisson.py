from __future__ import annotations

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


class GivenStreams:
    """Words chosen per stream."""

    def __init__(self, *streams: int) -> None:
        self.streams = streams

    def uniform64(self, stream: int, start: int, count: int) -> Any:
        return np.full(count, self.streams[stream], dtype=np.uint64)


class GivenWords:
    """First words chosen one by one; further ones are zero."""

    def __init__(self, first: Any) -> None:
        self.first = first

    def uniform64(self, stream: int, start: int, count: int) -> Any:
        return (
            self.first[start : start + count] if stream == 0 else np.zeros(count, dtype=np.uint64)
        )


@pytest.mark.parametrize("mean", [0.125, 5.5, 3e4])
def test_a_guided_search_counts_thresholds_as_a_plain_one_does(mean: float) -> None:
    """At random words, both ends, bucket edges and beside heads; further words decide ties."""
    made = poisson_table(mean, 2)
    edges, one = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48), np.uint64(1)
    drawn = np.random.default_rng(3).integers(0, 2**64, 20_000, dtype=np.uint64)
    words = np.concatenate(
        [drawn, edges, edges - one, made.heads + one, made.heads - one]
    )  # 0 - 1 wraps to the last
    words = words[~np.isin(words, made.heads)]
    found = made.draw(GivenWords(words), 0, 0, words.size)
    assert np.array_equal(found, made.first + np.searchsorted(made.heads, words, side="right"))
    some = made.heads[:: max(1, made.heads.size // 20)]
    plain = np.array([sum(t <= int(word) << 64 for t in made.thresholds) for word in some.tolist()])
    assert np.array_equal(made.draw(GivenWords(some), 0, 0, some.size), made.first + plain)


def test_ties_are_settled_by_the_further_words() -> None:
    made = poisson_table(3.7, 3)
    place = 5
    threshold = made.thresholds[place]
    parts = [(threshold >> (64 * (2 - w))) & (2**64 - 1) for w in range(3)]

    def drawn(word: int) -> int:
        given: Any = GivenStreams(*[(word >> (64 * (2 - w))) & (2**64 - 1) for w in range(3)])
        return int(made.draw(given, 0, 0, 1)[0])

    assert all(part > 0 for part in parts)
    assert drawn(threshold) == made.first + place + 1
    assert drawn(threshold - 1) == made.first + place
    assert drawn(0) == made.first
    assert drawn(2**192 - 1) == made.first + len(made.thresholds)


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
