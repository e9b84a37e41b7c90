"""The worst pair of inputs of one client's bit, where tables bound the divergence at nodes.

Idea     the moment of two sums exceeds 1 by h^2 Q, Q convex in p and in p': at most its bilinear
         interpolation between nodes. Branch and bound over rectangles of (p, p') finds the largest
         quotient.
Symbols  p, p': the client's two probabilities of a one; h = p - p'; u = log(p/(1-p)); moment =
         1 + h^2 Q.
Source   docs/theory/secure-aggregation.md, steps 3 to 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.privacy.branch import Cells, supremum_upper

__all__ = ["pair_supremum_upper"]

_ACCURACY = 1e-3  # of the supremum over pairs of inputs
_Surfaces: TypeAlias = "Sequence[tuple[_Surface, float]]"


def pair_supremum_upper(
    nodes: FloatVector,
    tables: Sequence[tuple[FloatMatrix, float]],
    alpha: float,
    centre: int | None,
    most_cells: int = 400_000,
) -> float:
    """Bound log(1 + h^2 Q)/(u - u')^2 over all p, p' in the nodes' range, from above.

    Args:
        nodes: probabilities, increasing.
        tables: (table, power) pairs: Q is at most the product of convex functions to these powers,
            each bounded at (nodes[i], nodes[j]) by table[i, j]; usually one, with power 1.
        alpha: the order of a single table.
        centre: one of p and p' is this node; only its row and column of a table are used.
        most_cells: after as many cells the answer is what has been proved by then, still a bound.
    """
    order = alpha if len(tables) == 1 else math.inf
    squares = np.subtract.outer(nodes, nodes) ** 2
    surfaces = []
    for table, power in tables:
        moment = np.log1p(squares * table) * (1 + 1e-15)
        surfaces.append((_Surface(nodes, table, moment, order), power))
    cells = _first_cells(centre, nodes)
    return supremum_upper(surfaces, (cells,), _ACCURACY, most_cells) * (1 + 1e-12)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Rectangles(Cells[_Surfaces]):
    """Rectangles [a, b] x [c, d] of (p, p'), each inside cell (row, column) of the table."""

    row: Any
    column: Any
    a: FloatVector
    b: FloatVector
    c: FloatVector
    d: FloatVector

    def halves(self, split: Any) -> _Rectangles:
        """Split every cell, across p where the mask is set, else across p'."""
        x = (self.a + self.b) / 2
        y = (self.c + self.d) / 2
        lower = (self.a, np.where(split, x, self.b), self.c, np.where(split, self.d, y))
        upper = (np.where(split, x, self.a), self.b, np.where(split, self.c, y), self.d)
        return self.joined((self.row, self.column, *lower), (self.row, self.column, *upper))

    def bounds(self, problem: _Surfaces) -> tuple[FloatVector, FloatVector, Any]:
        """Return the quotient at the middles, a bound on each cell, and its longer side."""
        a = self.a
        b = self.b
        c = self.c
        d = self.d
        x = (a + b) / 2
        y = (c + d) / 2
        largest = np.ones(len(a))
        middle = np.ones(len(a))
        for surface, power in problem:
            corners = [surface.upper(self.row, self.column, p, r) for p in (a, b) for r in (c, d)]
            largest *= np.maximum.reduce(corners) ** power
            middle *= surface.upper(self.row, self.column, x, y) ** power
        nearest = np.maximum(np.maximum(a - d, c - b), 0.0)
        upper = _secant_upper(a, b, c, d) ** 2 * _moment_quotient(nearest, largest)
        value = _secant_upper(x, x, y, y) ** 2 * _moment_quotient(np.abs(x - y), middle)
        return value, upper, b - a >= d - c


def _first_cells(centre: int | None, nodes: FloatVector) -> _Rectangles:
    """Return the table's own cells, or their slices through the centre."""
    index = np.arange(len(nodes) - 1)
    low = nodes[:-1]
    high = nodes[1:]
    if centre is None:
        grids = np.meshgrid(index, index, indexing="ij")
        row = grids[0].ravel()
        column = grids[1].ravel()
        return _Rectangles(row, column, low[row], high[row], low[column], high[column])
    fixed = np.full_like(index, min(centre, index[-1]))
    at = np.full(len(index), nodes[centre])
    return _Rectangles.joined((index, fixed, low, high, at, at), (fixed, index, at, at, low, high))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Surface:
    """Q between the nodes, from above: bilinear, or by chords of powers of the moment.

    ``moment`` has logarithms; with an infinite ``alpha`` the bound is bilinear only.
    """

    nodes: FloatVector
    table: FloatMatrix
    moment: FloatMatrix
    alpha: float

    def upper(self, row: Any, column: Any, x: FloatVector, y: FloatVector) -> Any:
        """Return a bound on Q at points (x, y) of the table's cells."""
        nodes = self.nodes
        table = self.table
        right = (x - nodes[row]) / (nodes[row + 1] - nodes[row])
        up = (y - nodes[column]) / (nodes[column + 1] - nodes[column])
        below = (1 - right) * table[row, column] + right * table[row + 1, column]
        above = (1 - right) * table[row, column + 1] + right * table[row + 1, column + 1]
        bound = (1 - up) * below + up * above
        if math.isinf(self.alpha):
            return bound
        square = (x - y) ** 2
        large = (square * bound > 0.1) & (np.abs(x - y) > 1e-9)
        if large.any():
            log_moment = self._log_moment(row[large], column[large], right[large], up[large])
            bound[large] = np.minimum(bound[large], np.expm1(log_moment) / square[large])
        return bound

    def _log_moment(self, row: Any, column: Any, right: Any, up: Any) -> Any:
        """Bound the logarithm of the moment by chords of its powers (the page, step 3)."""
        alpha = self.alpha
        sides = []
        for beside in (column, column + 1):
            left = np.exp(self.moment[row, beside] / alpha)
            other = np.exp(self.moment[row + 1, beside] / alpha)
            norm = np.log((1 - right) * left + right * other)
            sides.append(np.exp(-norm * alpha / (alpha - 1)))
        logarithm = -(alpha - 1) * np.log((1 - up) * sides[0] + up * sides[1])
        return logarithm + 1e-14 * (alpha + np.abs(logarithm))


def _moment_quotient(distance: FloatVector, table: Any) -> Any:
    """Return log(1 + h^2 Q)/h^2, which falls with h and grows with Q; Q itself at h = 0."""
    z = distance * distance * table
    small = z < 1e-6  # there log(1 + z) <= z costs less than a part in a million
    square = np.where(small, 1.0, distance * distance)
    return np.where(small, table, np.log1p(z) / square)


def _secant_upper(a: FloatVector, b: FloatVector, c: FloatVector, d: FloatVector) -> Any:
    """Bound (p - p')/(u - u') over a cell, at most 1/4, the logistic function's steepest slope."""
    left, right, low, high = (np.log(p) - np.log1p(-p) for p in (a, b, c, d))
    near = np.maximum(np.maximum(left - high, low - right), 0.0) / 2
    far = np.maximum(np.abs(right - low), np.abs(high - left)) / 2
    middle = np.maximum(np.maximum(left + low, -(right + high)), 0.0) / 2
    safe = np.maximum(far, 1e-4)
    growth = np.where(far < 1e-4, 1 + 1e-8, np.sinh(safe) / safe)
    return np.minimum(growth / (2 * (np.cosh(near) + np.cosh(middle))) * (1 + 1e-12), 0.25)
