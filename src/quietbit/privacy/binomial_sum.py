"""The law of a sum of Bernoulli bits of two kinds, with what is known about its error.

Idea     k bits with one probability and m with another: two binomials, each built by products of ratios from its
         mode outwards, and one convolution. Everything is positive, so relative errors are counted, not guessed.
Symbols  q(s): probability of the sum s; reach T: probabilities below about e^-T are dropped; tail: an upper bound
         on the probability of everything outside `first .. last`; error: |log computed - log q| inside.
Source   the recurrence of the binomial law; a sum of independent bits is log-concave (Newton's inequalities), so
         beyond an edge its probabilities fall at least as fast as a geometric series.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from quietbit._typing import FloatVector

__all__ = ["MOST_REACH", "BitSum", "bit_sum"]

MOST_REACH = 690.0  # e^-690 is still a normal double
_UNIT = 2.0**-53


@final
@dataclass(frozen=True, slots=True, eq=False)
class BitSum:
    """Probabilities of ``first .. first + len(law) - 1``; the sum ranges over ``0 .. size``."""

    law: FloatVector
    first: int
    size: int
    tail: float
    error: float

    @property
    def last(self) -> int:
        """The largest value kept."""
        return self.first + len(self.law) - 1


def bit_sum(many: int, probability: float, others: int, other_probability: float, reach: float) -> BitSum:
    """The law of Bin(many, probability) + Bin(others, other_probability), to a tail of about e^-reach."""
    # Both parts are kept further out than the sum, so that what they miss is invisible inside the sum's window.
    a, b = _binomial(many, probability, reach + 40), _binomial(others, other_probability, reach + 40)
    law = np.convolve(a.law, b.law)
    error = a.error + b.error + (min(len(a.law), len(b.law)) + 2) * _UNIT + 1e-16
    missing = a.tail + b.tail
    kept = np.flatnonzero(law >= max(missing * 1e16, math.exp(-reach - 10)))
    low, high = int(kept[0]), int(kept[-1])
    first, size = a.first + b.first + low, many + others
    tail = missing
    if first > 0:
        tail += _geometric(float(law[low]), float(law[low + 1]))
    if a.first + b.first + high < size:
        tail += _geometric(float(law[high]), float(law[high - 1]))
    return BitSum(law[low : high + 1], first, size, tail * (1 + 1e-9), error)


def _geometric(edge: float, inner: float) -> float:
    """What lies beyond an edge of a log-concave law: at most edge (r + r^2 + ...), r = edge/inner."""
    ratio = edge / inner * (1 + 1e-9)
    return edge * ratio / (1 - ratio) if ratio < 1 else math.inf


def _binomial(count: int, probability: float, reach: float) -> BitSum:
    """Bin(count, probability), from the mode outwards until e^-reach of the mode."""
    reach = min(reach, MOST_REACH)
    mode = min(int((count + 1) * probability), count)
    odds = probability / (1 - probability)
    # Bernstein's inequality says how far to go; the edges are then measured.
    far = math.ceil(reach / 3 + math.sqrt(reach * reach / 9 + 2 * reach * count * probability * (1 - probability))) + 2
    up = np.arange(mode, min(count, mode + far))
    down = np.arange(mode, max(0, mode - far), -1)
    above = np.cumprod((count - up) / (up + 1) * odds)
    below = np.cumprod(down / ((count - down + 1) * odds))
    floor = math.exp(-reach)
    above, below = above[above >= floor], below[below >= floor]
    law = np.concatenate((below[::-1], [1.0], above))
    law /= law.sum()
    first = mode - len(below)
    tail = 0.0
    if first > 0:
        ratio = first / ((count - first + 1) * odds) * (1 + 1e-9)
        tail += float(law[0]) * ratio / (1 - ratio)
    last = mode + len(above)
    if last < count:
        ratio = (count - last) / (last + 1) * odds * (1 + 1e-9)
        tail += float(law[-1]) * ratio / (1 - ratio)
    steps = max(len(above), len(below), 1)
    return BitSum(law, first, count, tail, (10 * steps + 40) * _UNIT)
