"""Skellam noise: its law to any precision, as the difference of two Poissons, and its tails.

Idea     weights of a Poisson law follow from its mode outwards in whole numbers; a draw is a
         `ThresholdTable`'s. `words_needed` says how long words must be for a law that is right to
         e^(2^-62), which accounts add as slack.
Source   packages/lab/docs/rounded-skellam.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quietbit._search import bisect
from quietbit.kernel.rng import WordBlock
from quietbit.mechanism.accumulate import DOUBT, ROUNDING
from quietbit_lab.baseline.thresholds import ThresholdTable

__all__ = [
    "largest_scale",
    "noise_length_upper",
    "poisson_table",
    "skellam_log2_probability_lower",
    "skellam_noise",
    "stays_within",
    "words_needed",
]

GUARD = 96
CHUNK = 1 << 20
FIRST_STREAM = 1000  # streams below are left to the rounding that comes before the noise


@lru_cache(maxsize=8)
def poisson_table(mean: float, words: int) -> ThresholdTable:
    """Return the table of a Poisson law of this mean, to ``64 * words`` bits."""
    exact = Fraction(mean)
    top = exact.numerator
    bottom = exact.denominator
    mode = math.floor(exact)
    unit = 1 << (64 * words + GUARD)
    right = []
    k = mode
    weight = unit
    while weight:
        right.append(weight)
        k += 1
        weight = weight * top // (bottom * k)
    left = []
    k = mode
    weight = unit * mode * bottom // top
    while weight and k > 0:
        left.append(weight)
        k -= 1
        weight = weight * k * bottom // top
    return ThresholdTable.of_weights(mode - len(left), words, left[::-1] + right)


def skellam_noise(variance: float, words: int, block: WordBlock, count: int) -> NDArray[np.int64]:
    """Return Skellam noise for ``count`` coordinates: the difference of two Poissons."""
    table = poisson_table(variance / 2, words)
    noise = np.empty(count, dtype=np.int64)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        plus = table.draw(block, FIRST_STREAM, start, size)
        noise[start : start + size] = plus - table.draw(block, FIRST_STREAM + words, start, size)
    return noise


def skellam_log2_probability_lower(variance: float, value: int) -> float:
    """Return a lower bound on log2 P(noise = value): the largest term of its sum."""
    mean = variance / 2
    size = abs(value)
    other = max(0, math.floor(math.hypot(size / 2, mean) - size / 2))
    terms = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in (other + size, other))
    margin = 1e-12 * (1 + mean + size * (1 + abs(math.log(mean))))
    return (sum(terms) - margin) / math.log(2)


def words_needed(variance: float, largest: int, dimension: int) -> int:
    """Return how many words make the law right to e^(2^-62) for values up to ``largest``."""
    bits = 90 + math.log2(dimension) - skellam_log2_probability_lower(variance, largest)
    return math.ceil(bits / 64)


@lru_cache(maxsize=256)
def largest_scale(multiplier: float, bits: int, size: int, wrap: float) -> float:
    """Find the largest s C at which coordinates stay inside the modulus, by bisection from below.

    A rotated coordinate is sub-Gaussian with variance proxy (s C)^2/D. Wrapping costs accuracy,
    never privacy.
    """
    doubt = math.log(
        4 * size / wrap
    )  # two events per coordinate, two sides each: value too large, noise too large

    def fits(reach: float) -> bool:
        signal = min(1.0, math.sqrt(2 * doubt / size)) * reach + 1
        return stays_within(2.0 ** (bits - 1) - 1 - signal, (multiplier * reach) ** 2, doubt)

    return bisect(fits, 0.0, 2.0**bits * (1 + 1 / multiplier), halvings=60)


def stays_within(room: float, variance: float, doubt: float) -> bool:
    """Return whether Skellam noise exceeds ``room`` with chance at most e^-doubt (Chernoff).

    P(noise >= t) <= exp(sqrt(v^2 + t^2) - v - t asinh(t/v)).
    """
    if room <= 0 or variance == 0:
        return room > 0
    root = math.hypot(variance, room)
    return room * math.asinh(room / variance) - room * room / (root + variance) >= doubt


def noise_length_upper(count: int, variance: float) -> float:
    """Return a length that noise of ``count`` coordinates exceeds with chance 2^-40 at most.

    A single noise too large and a vector too long have half of the probability each.
    """
    doubt = DOUBT + math.log(2)
    each = doubt + math.log(2 * count)
    largest = bisect(lambda room: stays_within(room, variance, each), 2.0**40, 0.0, relative=1e-9)
    fourth = variance + 3 * variance**2
    squares = count * variance + math.sqrt(2 * count * fourth * doubt) + largest**2 * doubt / 3
    return math.sqrt(squares * ROUNDING)
