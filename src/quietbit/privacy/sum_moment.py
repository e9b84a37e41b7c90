"""Sums of bits: their laws, the divergence when one bit changes, and the worst pair of inputs.

Idea     k bits with one probability and m with another: two binomials, each built by products of ratios from its
         mode outwards, and one convolution. Everything is positive, so relative errors are counted, not guessed.
         With the others' law q fixed, the sum's law is affine in the client's own probability p, and the Rényi moment
         exceeds 1 by (p - p')^2 times a positive sum Q, evaluated at a table of nodes, from above. Q is convex in p and
         in p', so between nodes it is at most the bilinear interpolation; the rest of the quotient is explicit, and
         branch and bound finds its supremum from above. Where moments are large, chords of their powers are sharper
         and are used as well.
Symbols  q(s): probability of the sum s; reach T: probabilities below about e^-T are dropped; tail: an upper bound
         on the probability of everything outside `first .. last`; error: |log computed - log q| inside.
         q_0 = q, q_1(s) = q(s-1), delta = q_1 - q_0, P_p = q_0 + p delta; moment(p, p') = sum P_p^alpha P_p'^(1-alpha);
         phi(x, y) = (x^alpha y^(1-alpha) - y - alpha (x - y))/(x - y)^2 > 0, of degree -1;
         Q = sum delta^2 phi(P_p, P_p') = (moment - 1)/(p - p')^2; Qbar = Q/(alpha (alpha - 1)/2).
         u = log(p/(1-p)); h = p - p'; c, t = (u + u')/2, (u - u')/2, and
         (p - p')/(u - u') = (sinh t / t) / (2 (cosh t + cosh c)).
Source   docs/theory/secure-aggregation.md, steps 3 and 6; a sum of independent bits is log-concave (Newton's
         inequalities), so beyond an edge its probabilities fall at least as fast as a geometric series.

Rounding. If the computed law is within a factor e^(+-eta) of q, then delta is off by at most 2 eta (q_0 + q_1) and
phi by a factor e^((2 alpha + 1) eta), so that sqrt(Q) <= e^((alpha + 1) eta) (sqrt(computed Q) +
2 eta sqrt(sum (q_0 + q_1)^2 phi)); and (q_0 + q_1) <= P_p / min(p, 1 - p) bounds the last sum by the moment itself.
Outside the window phi(x, y) <= alpha (alpha - 1)/2 max(1, x/y)^alpha / y and x/y <= e^loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.privacy.branch import Cells, supremum_upper

__all__ = ["MOST_REACH", "BitSum", "SumMoments", "bit_sum", "pair_supremum_upper"]

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
    """Return the law of Bin(many, probability) + Bin(others, other_probability), to a tail of about e^-reach."""
    # Both parts are kept further out than the sum, so that what they lack does not show inside the sum's window.
    a, b = _binomial(many, probability, reach + 40), _binomial(others, other_probability, reach + 40)
    law = np.convolve(a.law, b.law)
    error = a.error + b.error + (min(len(a.law), len(b.law)) + 2) * _UNIT + 1e-16
    missing = a.tail + b.tail
    kept = np.flatnonzero(law >= max(missing * 1e16, math.exp(-reach - 10)))
    low, high = int(kept[0]), int(kept[-1])
    first, size = a.first + b.first + low, many + others
    tail = missing
    if first > 0:
        tail += _beyond(law[low], law[low] / law[low + 1])
    if a.first + b.first + high < size:
        tail += _beyond(law[high], law[high] / law[high - 1])
    return BitSum(law[low : high + 1], first, size, tail * (1 + 1e-9), error)


def _beyond(edge: float, ratio: float) -> float:
    """Bound the mass beyond the edge of a law that falls there by ``ratio`` at least: edge (r + r^2 + ...)."""
    ratio = float(ratio) * (1 + 1e-9)
    return float(edge) * ratio / (1 - ratio) if ratio < 1 else math.inf


def _binomial(count: int, probability: float, reach: float) -> BitSum:
    """Return Bin(count, probability), from the mode outwards until e^-reach of the mode."""
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
    first, last = mode - len(below), mode + len(above)
    tail = _beyond(law[0], first / ((count - first + 1) * odds)) if first > 0 else 0.0
    if last < count:
        tail += _beyond(law[-1], (count - last) / (last + 1) * odds)
    steps = max(len(above), len(below), 1)
    return BitSum(law, first, count, tail, (10 * steps + 40) * _UNIT)


_CHUNK = 64
_MOST_NUMBERS = 1 << 19  # of a stack's logarithms: small enough for the cache of most machines


@final
@dataclass(frozen=True, slots=True, eq=False)
class SumMoments:
    """Several laws of the others' sum, one row each, padded with zeros; used for many orders and nodes."""

    q_0: FloatMatrix
    delta: FloatMatrix
    mass: FloatVector  # sum of q_0 over the window
    outside: FloatVector  # upper bound on the probability outside the window, edges included
    error: FloatVector

    @classmethod
    def of(cls, laws: list[BitSum]) -> SumMoments:
        """Build the rows; leave out values of a sum whose probability needs a dropped one."""
        rows, outside = [], []
        for sums in laws:
            q_0, q_1 = np.append(sums.law, 0.0), np.concatenate(([0.0], sums.law))
            beyond = sums.tail
            if sums.first > 0:
                beyond, q_0, q_1 = beyond + float(q_0[0]), q_0[1:], q_1[1:]
            if sums.last < sums.size:
                beyond, q_0, q_1 = beyond + float(q_1[-1]), q_0[:-1], q_1[:-1]
            rows.append((q_0, q_1 - q_0))
            outside.append(beyond * (1 + 1e-9))
        length = -(-max(len(row[0]) for row in rows) // _CHUNK) * _CHUNK
        stack = np.zeros((2, len(rows), length))
        for index, pair in enumerate(rows):
            stack[:, index, : len(pair[0])] = pair
        mass = np.array([row[0].sum() for row in rows])
        return cls(stack[0], stack[1], mass, np.array(outside), np.array([sums.error for sums in laws]))

    def table(self, alpha: float, rows: FloatVector, columns: FloatVector, loss: float) -> FloatMatrix:
        """Bound the largest Qbar(rows[i], columns[j]) over the laws from above; ``loss`` bounds |log P_p/P_p'|."""
        h = np.subtract.outer(rows, columns)
        same = h == 0
        h[same] = 1.0
        best = np.zeros_like(h)
        most = max(1, _MOST_NUMBERS // (max(h.shape) * self.q_0.shape[1]))  # laws at once, to stay in the cache
        for first in range(0, len(self.mass), most):
            part = SumMoments(*(getattr(self, name)[first : first + most] for name in self.__slots__))
            base = part.q_0 + columns[len(columns) // 2] * part.delta
            ratio = np.divide(part.delta, base, out=np.zeros_like(base), where=base > 0)[:, None, :]
            left, right = (np.log1p((p - columns[len(columns) // 2])[:, None] * ratio) for p in (rows, columns))
            for logs, order in ((left, alpha), (right, 1 - alpha)):
                np.exp(np.multiply(logs, order, out=logs), out=logs)
            left *= base[:, None, :]
            moment = _products(left, right)
            found = part._exceeding(moment, alpha, loss) / (h * h)
            found[:, same] = part._local(rows[same.any(axis=1)])
            spread = 1 / min(rows.min(), columns.min(), 1 - rows.max(), 1 - columns.max())
            best = np.maximum(best, part._rounded(found, moment, alpha, spread, loss).max(axis=0))
        return best

    def _local(self, nodes: FloatVector) -> FloatMatrix:
        """Return Qbar on the diagonal: sum delta^2 / P, the same at all orders."""
        q_0, delta = self.q_0[:, None, :], self.delta[:, None, :]
        law = q_0 + nodes[:, None] * delta
        terms = np.divide(delta**2, law, out=np.zeros_like(law), where=law > 0)
        return np.asarray(terms.sum(axis=-1) * (1 + 1e-13))

    def _exceeding(self, moment: FloatMatrix, alpha: float, loss: float) -> FloatMatrix:
        """Return (moment - 1)/(alpha (alpha - 1)/2), rounded up."""
        # A chunked sum of positive terms, two exponentials, and logarithms times the order.
        units = 3 * _CHUNK + self.q_0.shape[1] / _CHUNK + 60 + 8 * alpha * loss
        edges = ((3 + alpha) * self.outside + 1e-60)[:, None, None]
        rounding = units * _UNIT * (1 + moment) + edges
        return np.asarray((moment - self.mass[:, None, None] + rounding) / (alpha * (alpha - 1) / 2))

    def _rounded(
        self, table: FloatMatrix, moment: FloatMatrix, alpha: float, spread: float, loss: float
    ) -> FloatMatrix:
        """Round the table up as in the module header; ``spread``: 1 / min(p, 1 - p)."""
        error = self.error[:, None, None]
        shift = 2 * error * spread * np.sqrt(3 + moment)
        outside = spread**2 * np.exp(alpha * loss + np.log(self.outside + 1e-300))[:, None, None]
        root = np.sqrt(np.maximum(table, 0.0)) + shift
        return np.asarray(root * root * np.exp(2 * (alpha + 1) * error) + outside)


def _products(left: FloatMatrix, right: FloatMatrix) -> FloatMatrix:
    """Return left @ right.T, law by law, added up in short chunks so that rounding stays small."""
    a, b = (part.reshape(*part.shape[:2], -1, _CHUNK).transpose(0, 2, 1, 3) for part in (left, right))
    return np.asarray((a @ b.transpose(0, 1, 3, 2)).sum(axis=1))


_ACCURACY = 1e-3
_Surfaces: TypeAlias = "Sequence[tuple[_Surface, float]]"


def pair_supremum_upper(
    nodes: FloatVector,
    tables: Sequence[tuple[FloatMatrix, float]],
    alpha: float,
    centre: int | None,
    most_cells: int = 400_000,
) -> float:
    """Bound the supremum of log(1 + h^2 Q)/(u - u')^2 over p, p' in the nodes' range, from above.

    ``tables`` are (table, power) pairs: Q is at most the product of convex functions to these powers, each bounded at
    (nodes[i], nodes[j]) by table[i, j]; usually there is one, with power 1. With a ``centre``, one of p and p' is that
    node, and only its row and column of a table are used. A single table has order ``alpha``. After ``most_cells``
    cells the answer is what has been proved by then, which is still a bound.
    """
    order = alpha if len(tables) == 1 else math.inf
    surfaces = [(_Surface.of(nodes, table, order), power) for table, power in tables]
    return supremum_upper(surfaces, (_first(centre, nodes),), _ACCURACY, most_cells) * (1 + 1e-12)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Cells(Cells[_Surfaces]):
    """Rectangles [a, b] x [c, d] of (p, p'), each inside cell (row, column) of the table."""

    row: Any
    column: Any
    a: FloatVector
    b: FloatVector
    c: FloatVector
    d: FloatVector

    def halves(self, split: Any) -> _Cells:
        """Split every cell, across p where the mask is set."""
        x, y = (self.a + self.b) / 2, (self.c + self.d) / 2
        lower = (self.a, np.where(split, x, self.b), self.c, np.where(split, self.d, y))
        upper = (np.where(split, x, self.a), self.b, np.where(split, self.c, y), self.d)
        return self.joined((self.row, self.column, *lower), (self.row, self.column, *upper))

    def bounds(self, problem: _Surfaces) -> tuple[FloatVector, FloatVector, Any]:
        """Return the quotient at the middles, by the interpolated tables, a bound on each cell, and its longer side."""
        a, b, c, d = self.a, self.b, self.c, self.d
        x, y = (a + b) / 2, (c + d) / 2
        most, middle = np.ones(len(a)), np.ones(len(a))
        for surface, power in problem:
            corners = [surface.upper(self.row, self.column, p, r) for p in (a, b) for r in (c, d)]
            most *= np.maximum.reduce(corners) ** power
            middle *= surface.upper(self.row, self.column, x, y) ** power
        near = np.maximum(np.maximum(a - d, c - b), 0.0)
        upper = _secant_upper(a, b, c, d) ** 2 * _moment_quotient(near, most)
        value = _secant_upper(x, x, y, y) ** 2 * _moment_quotient(np.abs(x - y), middle)
        return value, upper, b - a >= d - c


def _first(centre: int | None, nodes: FloatVector) -> _Cells:
    """Return the table's own cells, or their slices through the centre."""
    index = np.arange(len(nodes) - 1)
    low, high = nodes[:-1], nodes[1:]
    if centre is None:
        row, column = (grid.ravel() for grid in np.meshgrid(index, index, indexing="ij"))
        return _Cells(row, column, low[row], high[row], low[column], high[column])
    fixed, at = np.full_like(index, min(centre, index[-1])), np.full(len(index), nodes[centre])
    return _Cells.joined((index, fixed, low, high, at, at), (fixed, index, at, at, low, high))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Surface:
    """Q between the nodes, from above: bilinear, or by chords of powers of the moment m = 1 + h^2 Q.

    m^(1/alpha) is a norm of something affine in p, hence convex in p; m^(-1/(alpha-1)) is concave in p' (Minkowski's
    inequality, and its reverse for negative exponents).
    """

    nodes: FloatVector
    table: FloatMatrix
    moment: FloatMatrix  # logarithms
    alpha: float  # infinite: bilinear only

    @classmethod
    def of(cls, nodes: FloatVector, table: FloatMatrix, alpha: float) -> _Surface:
        moment = np.log1p(np.subtract.outer(nodes, nodes) ** 2 * table) * (1 + 1e-15)
        return cls(nodes, table, moment, alpha)

    def upper(self, row: Any, column: Any, x: FloatVector, y: FloatVector) -> Any:
        """Return a bound on Q at points (x, y) of the table's cells."""
        nodes, table = self.nodes, self.table
        right = (x - nodes[row]) / (nodes[row + 1] - nodes[row])
        up = (y - nodes[column]) / (nodes[column + 1] - nodes[column])
        below = (1 - right) * table[row, column] + right * table[row + 1, column]
        above = (1 - right) * table[row, column + 1] + right * table[row + 1, column + 1]
        bilinear = (1 - up) * below + up * above
        if math.isinf(self.alpha):
            return bilinear
        square = (x - y) ** 2
        large = (square * bilinear > 0.1) & (np.abs(x - y) > 1e-9)
        if not large.any():
            return bilinear
        row, column, right, up = row[large], column[large], right[large], up[large]
        sides = []
        for beside in (column, column + 1):
            left, other = self.moment[row, beside] / self.alpha, self.moment[row + 1, beside] / self.alpha
            norm = np.log((1 - right) * np.exp(left) + right * np.exp(other))
            sides.append(np.exp(-norm * self.alpha / (self.alpha - 1)))
        logarithm = -(self.alpha - 1) * np.log((1 - up) * sides[0] + up * sides[1])
        logarithm += 1e-14 * (self.alpha + np.abs(logarithm))
        bilinear[large] = np.minimum(bilinear[large], np.expm1(logarithm) / square[large])
        return bilinear


def _moment_quotient(distance: FloatVector, table: Any) -> Any:
    """Return log(1 + h^2 Q)/h^2, which falls with h and grows with Q; Q itself at h = 0."""
    z = distance * distance * table
    small = z < 1e-6  # there log(1 + z) <= z costs less than a part in a million
    square = np.where(small, 1.0, distance * distance)
    return np.where(small, table, np.log1p(z) / square)


def _secant_upper(a: FloatVector, b: FloatVector, c: FloatVector, d: FloatVector) -> Any:
    """Bound (p - p')/(u - u') over a cell from above, at most 1/4, the logistic function's steepest slope."""
    left, right, low, high = (np.log(p) - np.log1p(-p) for p in (a, b, c, d))
    near = np.maximum(np.maximum(left - high, low - right), 0.0) / 2
    far = np.maximum(np.abs(right - low), np.abs(high - left)) / 2
    middle = np.maximum(np.maximum(left + low, -(right + high)), 0.0) / 2
    safe = np.maximum(far, 1e-4)
    growth = np.where(far < 1e-4, 1 + 1e-8, np.sinh(safe) / safe)
    return np.minimum(growth / (2 * (np.cosh(near) + np.cosh(middle))) * (1 + 1e-12), 0.25)
