"""Sums of independent bits: their laws, and the moments that compare two of them.

Idea     the other clients' bits are the noise that hides one client's. Laws of their sum are exact
         convolutions on a window; what lies outside, and every rounding, is bounded and added.
Symbols  q: law of the others' sum; q_0 = q, q_1(s) = q(s-1), delta = q_1 - q_0; P_p = q_0 + p
         delta: with the client's own bit; moment = sum P_p^alpha P_p'^(1-alpha); h = p - p'; Q =
         (moment - 1)/h^2, Qbar = Q/(alpha (alpha-1)/2).
Source   docs/theory/secure-aggregation.md: proofs and rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.privacy.rounding import UNIT

__all__ = ["BitSum", "SumMoments", "bit_sum"]

MOST_REACH = 690.0  # e^-690 is still a normal double
_BLOCK = 0.004  # share of the clients whose ends are treated together
_CHUNK = 64
_STACK = 1 << 19  # logarithms at once: small enough for the cache of most machines


@final
@dataclass(frozen=True, slots=True, eq=False)
class BitSum:
    """Probabilities of ``first .. first + len(law) - 1``; the sum ranges over ``0 .. size``.

    ``tail`` bounds the mass outside, ``error`` the relative error of a probability.
    """

    law: FloatVector
    first: int
    size: int
    tail: float
    error: float


def bit_sum(
    count: int, probability: float, others: int, other_probability: float, reach: float
) -> BitSum:
    """Return the law of Bin(count, probability) + Bin(others, other_probability).

    The mass outside the window is about e^-``reach``.
    """
    # Both parts are computed further out than the sum, so that what they lack does not show inside
    # the sum's window.
    a = _binomial(count, probability, reach + 40)
    b = _binomial(others, other_probability, reach + 40)
    law = np.convolve(a.law, b.law)
    error = a.error + b.error + (min(len(a.law), len(b.law)) + 2) * UNIT + 1e-16
    tail = a.tail + b.tail
    window = np.flatnonzero(law >= max(tail * 1e16, math.exp(-reach - 10)))
    low = int(window[0])
    high = int(window[-1])
    start = a.first + b.first
    size = count + others
    if start + low > 0:
        tail += _beyond(law[low], law[low] / law[low + 1])
    if start + high < size:
        tail += _beyond(law[high], law[high] / law[high - 1])
    return BitSum(law[low : high + 1], start + low, size, tail * (1 + 1e-9), error)


def _beyond(edge: float, ratio: float) -> float:
    """Bound the mass beyond the edge of a law that falls there by ``ratio`` at least."""
    ratio = float(ratio) * (1 + 1e-9)
    if ratio >= 1:
        return math.inf
    return float(edge) * ratio / (1 - ratio)  # edge (r + r^2 + ...)


def _binomial(count: int, probability: float, reach: float) -> BitSum:
    """Return Bin(count, probability), from the mode outwards until e^-reach of the mode."""
    reach = min(reach, MOST_REACH)
    mode = min(int((count + 1) * probability), count)
    odds = probability / (1 - probability)
    # Bernstein's inequality says how far to go; the edges are then measured.
    variance = count * probability * (1 - probability)
    far = math.ceil(reach / 3 + math.sqrt(reach * reach / 9 + 2 * reach * variance)) + 2
    up = np.arange(mode, min(count, mode + far))
    down = np.arange(mode, max(0, mode - far), -1)
    above = np.cumprod((count - up) / (up + 1) * odds)
    below = np.cumprod(down / ((count - down + 1) * odds))
    floor = math.exp(-reach)
    above = above[above >= floor]
    below = below[below >= floor]
    law = np.concatenate((below[::-1], [1.0], above))
    law /= law.sum()
    first = mode - len(below)
    last = mode + len(above)
    tail = 0.0
    if first > 0:
        tail += _beyond(law[0], first / ((count - first + 1) * odds))
    if last < count:
        tail += _beyond(law[-1], (count - last) / (last + 1) * odds)
    steps = max(len(above), len(below), 1)
    return BitSum(law, first, count, tail, (10 * steps + 40) * UNIT)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SumMoments:
    """Several laws of the others' sum, one row each, padded with zeros.

    ``mass`` is the sum of q_0 over the window, ``outside`` bounds the probability outside it, edges
    included, and ``error`` the relative error of a probability.
    """

    q_0: FloatMatrix
    delta: FloatMatrix
    mass: FloatVector
    outside: FloatVector
    error: FloatVector

    @classmethod
    def of(cls, laws: list[BitSum]) -> SumMoments:
        """Build the rows; leave out values of a sum whose probability needs a dropped one."""
        rows = []
        outside = []
        for sums in laws:
            q_0 = np.append(sums.law, 0.0)
            q_1 = np.append(0.0, sums.law)
            beyond = sums.tail
            if sums.first > 0:
                beyond += float(q_0[0])
                q_0 = q_0[1:]
                q_1 = q_1[1:]
            if sums.first + len(sums.law) <= sums.size:
                beyond += float(q_1[-1])
                q_0 = q_0[:-1]
                q_1 = q_1[:-1]
            rows.append((q_0, q_1 - q_0))
            outside.append(beyond * (1 + 1e-9))
        chunks = math.ceil(max(len(q_0) for q_0, _ in rows) / _CHUNK)
        stack = np.zeros((2, len(rows), chunks * _CHUNK))
        for index, row in enumerate(rows):
            stack[:, index, : len(row[0])] = row
        mass = np.array([q_0.sum() for q_0, _ in rows])
        error = np.array([sums.error for sums in laws])
        return cls(stack[0], stack[1], mass, np.array(outside), error)

    @classmethod
    def of_others(
        cls, others: int, low: float, high: float, reach: float, *, half: bool
    ) -> SumMoments:
        """Build laws that dominate those of k others at ``high`` and the rest at ``low``.

        All k from 0 to ``others`` are covered, or with ``half`` those up to half of it.
        """
        # A block of k counts as if its width were absent: fewer others are worse (data processing).
        width = math.floor(_BLOCK * (others + 1))
        stop = others // 2 if half else others
        laws = []
        for first in range(0, stop + 1, width + 1):
            last = min(first + width, stop)
            laws.append(bit_sum(first, high, others - last, low, reach))
        return cls.of(laws)

    def table(
        self, alpha: float, rows: FloatVector, columns: FloatVector, loss: float
    ) -> FloatMatrix:
        """Bound the largest Qbar(rows[i], columns[j]) over the laws from above.

        ``loss`` bounds |log P_p/P_p'|.
        """
        best = np.zeros((len(rows), len(columns)))
        numbers = max(best.shape) * self.q_0.shape[1]
        laws_at_once = max(1, _STACK // numbers)
        for first in range(0, len(self.mass), laws_at_once):
            chosen = slice(first, first + laws_at_once)
            part = SumMoments(*(getattr(self, name)[chosen] for name in self.__slots__))
            best = np.maximum(best, part._largest(alpha, rows, columns, loss))
        return best

    def _largest(
        self, alpha: float, rows: FloatVector, columns: FloatVector, loss: float
    ) -> FloatMatrix:
        """Return the table of these laws, all at once."""
        h = np.subtract.outer(rows, columns)
        same = h == 0
        h[same] = 1.0
        moment = self._moment(alpha, rows, columns)
        # A chunked sum of positive terms, two exponentials, and logarithms times the order.
        units = 3 * _CHUNK + self.q_0.shape[1] / _CHUNK + 60 + 8 * alpha * loss
        rounding = units * UNIT * (1 + moment)
        rounding += ((3 + alpha) * self.outside + 1e-60)[:, None, None]
        excess = moment - self.mass[:, None, None] + rounding
        qbar = excess / (alpha * (alpha - 1) / 2) / (h * h)
        qbar[:, same] = self._local(rows[same.any(axis=1)])
        # From here on, step 6 of the page.
        error = self.error[:, None, None]
        spread = 1 / min(rows.min(), columns.min(), 1 - rows.max(), 1 - columns.max())
        root = np.sqrt(np.maximum(qbar, 0.0)) + 2 * error * spread * np.sqrt(3 + moment)
        outside = np.exp(alpha * loss + np.log(self.outside + 1e-300))
        beyond = spread**2 * outside[:, None, None]
        largest = (root * root * np.exp(2 * (alpha + 1) * error) + beyond).max(axis=0)
        return np.asarray(largest)

    def _moment(self, alpha: float, rows: FloatVector, columns: FloatVector) -> FloatMatrix:
        """Return sum P_p^alpha P_p'^(1-alpha) over the window, for every law and pair."""
        middle = columns[len(columns) // 2]
        base = self.q_0 + middle * self.delta
        ratio = np.divide(self.delta, base, out=np.zeros_like(base), where=base > 0)[:, None, :]
        left = np.log1p((rows - middle)[:, None] * ratio)
        right = np.log1p((columns - middle)[:, None] * ratio)
        for logs, order in ((left, alpha), (right, 1 - alpha)):
            np.exp(np.multiply(logs, order, out=logs), out=logs)
        left *= base[:, None, :]
        # left @ right.T, law by law, added up in short chunks so that rounding stays small.
        return np.asarray((_chunked(left) @ _chunked(right).swapaxes(2, 3)).sum(axis=1))

    def _local(self, nodes: FloatVector) -> FloatMatrix:
        """Return Qbar on the diagonal: sum delta^2 / P, the same at all orders."""
        delta = self.delta[:, None, :]
        law = self.q_0[:, None, :] + nodes[:, None] * delta
        terms = np.divide(delta**2, law, out=np.zeros_like(law), where=law > 0)
        return np.asarray(terms.sum(axis=-1) * (1 + 1e-13))


def _chunked(values: FloatMatrix) -> FloatMatrix:
    """Return (law, chunk, node, place) of values by (law, node, place)."""
    laws, nodes, _ = values.shape
    return values.reshape(laws, nodes, -1, _CHUNK).transpose(0, 2, 1, 3)
