"""Poisson and Skellam noise by tables of exact integer thresholds.

Idea     a draw is the number of thresholds T_k = floor(2^P F_k) that a P-bit word reaches, F the
         distribution function. The first 64 bits of the word nearly always decide; on a tie the other bits
         are read. So P can be as large as the account asks for, at no cost per draw.
Symbols  mu = v/2: mean of each of two Poissons; their difference is Skellam noise of variance v. P = 64 w
         bits.
Source   Devroye (1986), chapter III (inversion); weights follow p_{k+1} = p_k mu/(k+1) from the mode
         outwards, in integers, so nothing depends on a floating-point library.

Error. Weights are kept with GUARD further bits and cut off below 2^-(P + GUARD) of the mode's. Each step
rounds down by less than one unit, so a weight is short by at most k units after k steps and all together by
less than N^2 units, N < 2^24 the number of steps; the tails that are cut off are shorter still. With F's
own rounding down, the law of a draw is within 2^(25 - P) of Poisson's in total variation.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit.kernel.rng import WordBlock

__all__ = ["PoissonTable", "poisson_table", "skellam_log2_probability_lower", "skellam_noise", "words_needed"]

GUARD = 96
CHUNK = 1 << 20
FIRST_STREAM = 1000  # streams below are left to the rounding that comes before the noise


@final
@frozen(eq=False)
class PoissonTable:
    """Thresholds of a Poisson law; ``first`` is the value drawn when no threshold is reached."""

    first: int
    words: int
    thresholds: tuple[int, ...]
    heads: NDArray[np.uint64]  # the first 64 bits of each threshold
    guide: NDArray[np.int64] = field(init=False)  # the number of heads before each of 2^16 equal parts, and in all

    @guide.default
    def _guide(self) -> NDArray[np.int64]:
        """Return the indices at which a search begins, and nearly always ends."""
        starts = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
        guide = np.append(np.searchsorted(self.heads, starts), self.heads.size)
        guide.setflags(write=False)
        return guide

    def draw(self, block: WordBlock, stream: int, start: int, count: int) -> NDArray[np.int64]:
        """Return the draws of coordinates ``start ..``, from streams ``stream .. stream + words - 1``."""
        head = block.uniform64(stream, start, count)
        place = self._reached(head)
        tied = np.flatnonzero(self.heads[np.maximum(place, 1) - 1] == head)
        for k in tied.tolist():
            place[k] = bisect_right(self.thresholds, self._whole_word(block, stream, start + k))
        return np.asarray(place + self.first, dtype=np.int64)

    def _reached(self, head: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return how many heads each word reaches; most buckets of the guide hold one or none, others are searched."""
        bucket = (head >> np.uint64(48)).astype(np.int64)
        first, last = self.guide[bucket], self.guide[bucket + 1]
        place = first + ((first < last) & (self.heads[np.minimum(first, self.heads.size - 1)] <= head))
        many = np.flatnonzero(last - first > 1)
        place[many] = np.searchsorted(self.heads, head[many], side="right")
        return np.asarray(place)

    def _whole_word(self, block: WordBlock, stream: int, position: int) -> int:
        parts = [int(block.uniform64(stream + w, position, 1)[0]) for w in range(self.words)]
        return sum(part << (64 * (self.words - 1 - w)) for w, part in enumerate(parts))


@lru_cache(maxsize=8)
def poisson_table(mean: float, words: int) -> PoissonTable:
    """Return the table of a Poisson law of this mean, to ``64 * words`` bits."""
    exact = Fraction(mean)
    top, bottom = exact.numerator, exact.denominator
    mode = math.floor(exact)
    unit = 1 << (64 * words + GUARD)
    right, k, weight = [], mode, unit
    while weight:
        right.append(weight)
        k += 1
        weight = weight * top // (bottom * k)
    left, k, weight = [], mode, unit * mode * bottom // top
    while weight and k > 0:
        left.append(weight)
        k -= 1
        weight = weight * k * bottom // top
    weights = left[::-1] + right
    total, running, thresholds = sum(weights), 0, []
    for weight in weights[:-1]:
        running += weight
        thresholds.append((running << (64 * words)) // total)
    heads = np.array([value >> (64 * (words - 1)) for value in thresholds], dtype=np.uint64)
    heads.setflags(write=False)
    return PoissonTable(mode - len(left), words, tuple(thresholds), heads)


def skellam_noise(variance: float, words: int, block: WordBlock, count: int) -> NDArray[np.int64]:
    """Return Skellam noise of this variance for ``count`` coordinates: the difference of two Poissons."""
    table = poisson_table(variance / 2, words)
    noise = np.empty(count, dtype=np.int64)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        plus = table.draw(block, FIRST_STREAM, start, size)
        noise[start : start + size] = plus - table.draw(block, FIRST_STREAM + words, start, size)
    return noise


def skellam_log2_probability_lower(variance: float, value: int) -> float:
    """Return a lower bound on log2 P(noise = value): the largest single term of its sum over pairs of Poissons."""
    mean, size = variance / 2, abs(value)
    other = max(0, math.floor(math.hypot(size / 2, mean) - size / 2))
    terms = (_log_poisson(mean, other + size), _log_poisson(mean, other))
    margin = 1e-12 * (1 + mean + size * (1 + abs(math.log(mean))))
    return (sum(terms) - margin) / math.log(2)


def words_needed(variance: float, largest: int, dimension: int) -> int:
    """Return how many 64-bit words make the release's law right to a factor e^(2^-62).

    The law of a coordinate modulo 2^b is off by at most 2 x 2^(25 - P), and no value up to ``largest`` is
    less likely than p; d coordinates then have a slack of at most d 2^(27 - P) / p.
    """
    bits = 90 + math.log2(dimension) - skellam_log2_probability_lower(variance, largest)
    return math.ceil(bits / 64)


def _log_poisson(mean: float, k: int) -> float:
    return k * math.log(mean) - mean - math.lgamma(k + 1)
