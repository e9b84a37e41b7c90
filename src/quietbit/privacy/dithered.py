"""The account of MVU, which dithers an update onto its grid and samples row by row.

Idea     MVU dithers both worlds, so a statement must name what it compares. Given the grid vectors the rows are
         independent; a mixture is no further from another than its worst pair (joint quasi-convexity).
Symbols  S: every grid vector that is ever sampled lies within S of (1/2, ..., 1/2) in the norm named; P_i the row of
         level x_i; Q a reference row. These theorems need nothing else from the dithering: rejection enforces S.
Source   Chaudhuri et al. (2022) for MVU; its two statements are proved here.

Replace-one. Two grid vectors lie within 2S of each other, so with k = max over i != i' of
D_alpha(P_i||P_i') / (x_i - x_i')^2 the release is (alpha, k (2S)^2)-RDP; with D_inf and |x_i - x_i'| in the
L1 norm it is pure.

Zero-out. The neighbour's release is d independent draws from Q. A coordinate at level i costs at most
max(D_alpha(P_i||Q), D_alpha(Q||P_i)), so with k the largest of these over (x_i - 1/2)^2 it is (alpha, k
S^2)-RDP. With an odd number of levels Q is the centre row: exactly what a zero update sends. With an even
number Q is the average of the two middle rows: each coordinate of a zero update is dithered to x = (1 -+
h)/2 with equal chances, all such vectors have the same norm, and when it is within S none is rejected, so
again Q in every coordinate is exactly what a zero update sends. When it is not (S too small for the grid),
the statement is about Q itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.table import Design
from quietbit.errors import check_real, require
from quietbit.privacy.conversion import round_up
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import CENTRE
from quietbit.target import Adjacency

__all__ = ["dithered_l1_cost", "dithered_l2_cost", "reference_row"]

_CHUNK = 2_000_000
_ULP = 2.0**-50


def dithered_l2_cost(design: Design, radius: float, adjacency: Adjacency) -> Cost:
    """Return the Rényi curve when grid vectors stay within L2 distance ``radius`` of (1/2, ..., 1/2)."""
    radius, scale = _checked(radius, adjacency)
    constant = _row_constant(design, adjacency, (scale * radius) ** 2)
    return Cost.renyi(constant, f"dithered, {adjacency.value}")


def dithered_l1_cost(design: Design, radius: float, adjacency: Adjacency) -> Cost:
    """Pure privacy when grid vectors stay within L1 distance ``radius`` of (1/2, ..., 1/2)."""
    radius, scale = _checked(radius, adjacency)
    rows, levels = np.log(design.probabilities), _levels(design)
    if adjacency is Adjacency.REPLACE_ONE:
        # Distances add up along the grid, so neighbouring levels have the largest ratio.
        rate = np.abs(np.diff(rows, axis=0)).max(axis=1) / np.diff(levels)
    else:
        away = levels != CENTRE
        rate = np.abs(rows - np.log(reference_row(design))).max(axis=1)[away] / np.abs(levels[away] - CENTRE)
    error = _ULP * (4 + float(np.abs(rows).max())) * 2 * (len(levels) - 1)
    return Cost.pure(round_up((float(rate.max()) + error) * scale * radius))


def reference_row(design: Design) -> FloatVector:
    """Q: the centre row, or the average of the two middle rows where no level is the centre."""
    count = design.spec.input_levels
    middle = design.probabilities[[(count - 1) // 2, count // 2]]
    return np.asarray(middle.mean(axis=0))


def _checked(radius: float, adjacency: Adjacency) -> tuple[float, float]:
    require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
    return check_real(radius, "radius"), 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0


def _levels(design: Design) -> FloatVector:
    cells = design.spec.input_levels - 1
    return np.asarray(np.arange(cells + 1) / cells)


@final
class _RowConstant:
    """alpha -> factor times the largest divergence per squared distance among the rows compared."""

    def __init__(self, design: Design, adjacency: Adjacency, factor: float) -> None:
        rows, levels = np.log(design.probabilities), _levels(design)
        self._factor = factor
        self._rows = rows
        if adjacency is Adjacency.REPLACE_ONE:
            self._others = rows
            self._squares = np.square(levels[:, None] - levels[None, :])
        else:
            self._others = np.log(reference_row(design))[None, :]
            self._squares = np.square(levels - CENTRE)[:, None]
        self._widest = float(max(np.ptp(rows, axis=0).max(), np.abs(rows[:, None] - self._others[:1]).max()))
        self._known: dict[float, float] = {}

    def __call__(self, alpha: float) -> float:
        if alpha not in self._known:
            step = max(1, _CHUNK // self._others.size)
            worst = 0.0
            for first in range(0, len(self._rows), step):
                block = slice(first, first + step)
                worst = max(worst, self._worst(alpha, self._rows[block], self._squares[block]))
            self._known[alpha] = round_up(worst * self._factor)
        return self._known[alpha]

    def _worst(self, alpha: float, rows: FloatMatrix, squares: FloatMatrix) -> float:
        left, right = rows[:, None, :], self._others[None, :, :]
        apart = squares > 0
        if not apart.any():
            return 0.0
        error = _ULP * (2 * alpha + 2) * (16 + alpha * self._widest) / (alpha - 1)
        both = np.maximum(_renyi(left, right, alpha), _renyi(right, left, alpha)) + error
        return float((both[apart] / squares[apart]).max())


@lru_cache(maxsize=64)
def _row_constant(design: Design, adjacency: Adjacency, factor: float) -> _RowConstant:
    return _RowConstant(design, adjacency, factor)


def _renyi(left: FloatMatrix, right: FloatMatrix, alpha: float) -> FloatMatrix:
    """D_alpha(left || right) from logarithms of probabilities, along the last axis."""
    exponent = left + (alpha - 1) * (left - right)
    top = exponent.max(axis=-1)
    return np.asarray(top + np.log(np.exp(exponent - top[..., None]).sum(axis=-1))) / (alpha - 1)
