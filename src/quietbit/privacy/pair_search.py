"""The largest divergence per squared distance over all pairs of inputs, from a table of it at a few.

Idea     the chi-square-like quantity Q(p, p') is convex in p and in p' (docs/theory/secure-aggregation.md), so
         between the nodes of a table it is at most the bilinear interpolation; the rest of the quotient is
         explicit, and branch and bound finds its supremum from above.
         Where moments are large, chords of their powers are sharper and are used as well.
Symbols  u = log(p/(1-p)); h = p - p'; the moment is 1 + h^2 Q; c, t = (u + u')/2, (u - u')/2, and
         (p - p')/(u - u') = (sinh t / t) / (2 (cosh t + cosh c)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector

__all__ = ["pair_supremum_upper"]

_ACCURACY = 1e-3
_MOST_ROUNDS = 60


def pair_supremum_upper(
    nodes: FloatVector,
    tables: Sequence[tuple[FloatMatrix, float]],
    alpha: float,
    centre: int | None,
    most_cells: int = 400_000,
) -> float:
    """The supremum of log(1 + h^2 Q)/(u - u')^2 over p, p' in the nodes' range, from above.

    ``tables`` are (table, power) pairs: Q is at most the product of convex functions to these powers, each bounded at
    (nodes[i], nodes[j]) by table[i, j]; usually there is one, with power 1. With a ``centre``, one of p and p' is
    that node, and a table has two rows: (nodes[i], centre) and (centre, nodes[i]). A single table has order ``alpha``.
    After ``most_cells`` cells the answer is what has been proved by then: a bound all the same.
    """
    if centre is not None:
        tables = [(_spread(table, centre), power) for table, power in tables]
    order = alpha if len(tables) == 1 else math.inf
    surfaces = [(_Surface.of(nodes, table, order), power) for table, power in tables]
    cells = _first(len(nodes), centre, nodes)
    best = settled = 0.0
    budget = most_cells
    for _ in range(_MOST_ROUNDS):
        value, upper = cells.bounds(surfaces)
        budget -= len(upper)
        best = max(best, float(value.max()))
        hopeful = upper > best * (1 + _ACCURACY)
        settled = max(settled, float(upper[~hopeful].max(initial=0.0)))
        if not hopeful.any() or budget <= 0:
            settled = max(settled, float(upper[hopeful].max(initial=0.0)))
            break
        cells = cells.take(hopeful).halves()
    else:
        settled = max(settled, float(cells.bounds(surfaces)[1].max()))
    return max(settled, best) * (1 + 1e-12)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Rectangles [a, b] x [c, d] of (p, p'), each inside cell (row, column) of the table."""

    row: Any
    column: Any
    a: FloatVector
    b: FloatVector
    c: FloatVector
    d: FloatVector

    def take(self, chosen: Any) -> _Cells:
        return _Cells(*(getattr(self, name)[chosen] for name in self.__slots__))

    def halves(self) -> _Cells:
        """Both halves of every cell, cut across its longer side."""
        wide = self.b - self.a >= self.d - self.c
        x, y = (self.a + self.b) / 2, (self.c + self.d) / 2
        lower = (self.a, np.where(wide, x, self.b), self.c, np.where(wide, self.d, y))
        upper = (np.where(wide, x, self.a), self.b, np.where(wide, self.c, y), self.d)
        sides = (np.concatenate(pair) for pair in zip(lower, upper, strict=True))
        return _Cells(np.tile(self.row, 2), np.tile(self.column, 2), *sides)

    def bounds(self, surfaces: Sequence[tuple[_Surface, float]]) -> tuple[FloatVector, FloatVector]:
        """The quotient at the middles with the interpolated tables, and an upper bound over each cell."""
        a, b, c, d = self.a, self.b, self.c, self.d
        x, y = (a + b) / 2, (c + d) / 2
        most, middle = np.ones(len(a)), np.ones(len(a))
        for surface, power in surfaces:
            corners = [surface.upper(self.row, self.column, p, r) for p in (a, b) for r in (c, d)]
            most *= np.maximum.reduce(corners) ** power
            middle *= surface.upper(self.row, self.column, x, y) ** power
        near = np.maximum(np.maximum(a - d, c - b), 0.0)
        upper = _secant_upper(a, b, c, d) ** 2 * _moment_quotient(near, most)
        upper[np.isnan(upper)] = math.inf  # what is no number is no bound
        value = _secant_upper(x, x, y, y) ** 2 * _moment_quotient(np.abs(x - y), middle)
        return value, upper


def _first(count: int, centre: int | None, nodes: FloatVector) -> _Cells:
    """The table's own cells, or the slices of them through the centre."""
    index = np.arange(count - 1)
    if centre is None:
        row, column = (grid.ravel() for grid in np.meshgrid(index, index, indexing="ij"))
        return _Cells(row, column, nodes[row], nodes[row + 1], nodes[column], nodes[column + 1])
    fixed = np.full(count - 1, min(centre, count - 2))
    at = np.full(count - 1, nodes[centre])
    along = (nodes[index], nodes[index + 1])
    first, second = (*along, at, at), (at, at, *along)
    sides = (np.concatenate(pair) for pair in zip(first, second, strict=True))
    return _Cells(np.concatenate((index, fixed)), np.concatenate((fixed, index)), *sides)


def _spread(rows: FloatMatrix, centre: int) -> FloatMatrix:
    """Two rows through the centre as a table; the rest of it is never looked at."""
    table = np.zeros((rows.shape[1], rows.shape[1]))
    table[:, centre], table[centre, :] = rows
    return table


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
        """A bound on Q at points (x, y) of the table's cells."""
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
    """log(1 + h^2 Q)/h^2, which falls with h and grows with Q; Q itself at h = 0."""
    z = distance * distance * table
    small = z < 1e-6  # there log(1 + z) <= z costs less than a part in a million
    square = np.where(small, 1.0, distance * distance)
    return np.where(small, table, np.log1p(z) / square)


def _secant_upper(a: FloatVector, b: FloatVector, c: FloatVector, d: FloatVector) -> Any:
    """(p - p')/(u - u') over a cell, from above; at most 1/4, the logistic function's steepest slope."""
    left, right, low, high = (np.log(p) - np.log1p(-p) for p in (a, b, c, d))
    near = np.maximum(np.maximum(left - high, low - right), 0.0) / 2
    far = np.maximum(np.abs(right - low), np.abs(high - left)) / 2
    middle = np.maximum(np.maximum(left + low, -(right + high)), 0.0) / 2
    safe = np.maximum(far, 1e-4)
    growth = np.where(far < 1e-4, 1 + 1e-8, np.sinh(safe) / safe)
    return np.minimum(growth / (2 * (np.cosh(near) + np.cosh(middle))) * (1 + 1e-12), 0.25)
