"""The account of MVU, which dithers an update onto its grid and samples a row per coordinate.

Idea     MVU dithers both worlds, so a statement must name what it compares. Given the grid vectors
         the rows are independent; two mixtures are no further apart than their worst pair (joint
         quasi-convexity).
Symbols  S: every grid vector that is ever sampled lies within S of (1/2, ..., 1/2) in the norm
         named; P_i the row of level x_i; Q a reference row. These theorems need nothing else from
         the dithering: rejection enforces S.
Source   Chaudhuri et al. (2022) for MVU; packages/lab/docs/baselines.md, "Rows of MVU", has the
         proofs: a release is (alpha, k distance^2)-RDP, k the largest divergence per squared
         distance of two rows (replace-one, 2S), or of a row and Q, both ways round (zero-out, S).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.table import Design
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import CENTRE, exact_levels
from quietbit.privacy.release import Formula
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = ["dithered_l1_cost", "dithered_l2_cost", "reference_row"]

_CHUNK = 2_000_000
_ULP = 2.0**-50


def dithered_l2_cost(design: Design, radius: float, adjacency: Adjacency) -> Cost:
    """Return the Rényi curve of grid vectors within L2 ``radius`` of (1/2, ..., 1/2)."""
    distance = adjacency.radii * radius
    return Cost.per_square(Formula(_constant, design, adjacency), distance)


def dithered_l1_cost(design: Design, radius: float, adjacency: Adjacency) -> Cost:
    """Return the pure cost of grid vectors within L1 ``radius`` of (1/2, ..., 1/2)."""
    distance = adjacency.radii * radius
    rows = np.log(design.probabilities)
    levels = exact_levels(design)
    if adjacency is Adjacency.REPLACE_ONE:
        # Distances add up along the grid, so neighbouring levels have the largest ratio.
        rate = np.abs(np.diff(rows, axis=0)).max(axis=1) / np.diff(levels)
    else:
        away = levels != CENTRE
        rate = np.abs(rows - np.log(reference_row(design))).max(axis=1)[away] / np.abs(
            levels[away] - CENTRE
        )
    error = _ULP * (4 + float(np.abs(rows).max())) * 2 * (len(levels) - 1)
    return Cost.pure(round_up((float(rate.max()) + error) * distance))


def reference_row(design: Design) -> FloatVector:
    """Return Q: the centre row, or the average of the two middle rows."""
    count = design.spec.input_levels
    middle = design.probabilities[[(count - 1) // 2, count // 2]]
    return np.asarray(middle.mean(axis=0))


@lru_cache(maxsize=1024)
def _constant(alpha: float, design: Design, adjacency: Adjacency) -> float:
    """Return k: the largest divergence per squared distance among the rows compared."""
    rows = np.log(design.probabilities)
    levels = exact_levels(design)
    others = rows
    places = levels
    if adjacency is Adjacency.ZERO_OUT:
        others = np.log(reference_row(design))[None, :]
        places = np.array([CENTRE])
    widest = float(max(np.ptp(rows, axis=0).max(), np.abs(rows - others[0]).max()))
    error = _ULP * (2 * alpha + 2) * (16 + alpha * widest) / (alpha - 1)
    worst = 0.0
    step = max(1, _CHUNK // others.size)
    for first in range(0, len(rows), step):
        left = rows[first : first + step, None, :]
        right = others[None, :, :]
        squares = np.square(levels[first : first + step, None] - places)
        both = np.maximum(_renyi(left, right, alpha), _renyi(right, left, alpha)) + error
        apart = squares > 0
        worst = max(worst, float((both[apart] / squares[apart]).max(initial=0.0)))
    return round_up(worst)


def _renyi(left: FloatMatrix, right: FloatMatrix, alpha: float) -> FloatMatrix:
    """Return D_alpha(left || right) from log-probabilities, along the last axis."""
    exponent = left + (alpha - 1) * (left - right)
    top = exponent.max(axis=-1)
    return np.asarray(top + np.log(np.exp(exponent - top[..., None]).sum(axis=-1))) / (alpha - 1)
