"""Rényi constants of the interpolated mechanism with any number of levels: kappa_alpha.

Idea     D_alpha(x || x') <= kappa_alpha (x - x')^2, so d independent coordinates within L2 distance
         S cost at most kappa_alpha S^2. Branch and bound finds kappa_alpha over cells of pairs
         (x, x'), within one segment and between two.
Symbols  as in `renyi_cells`; R: span of a segment's slopes; L: Lipschitz constant; M: supremum of
         the Fisher information (`fisher`).
Source   Guo et al. (ICML 2023), Lemma 2 and Theorem 2, extended to more than two levels:
         docs/theory/interpolated.md proves every bound used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, final

import numpy as np

from quietbit._typing import FloatVector
from quietbit.design.table import Design
from quietbit.privacy.branch import supremum_upper
from quietbit.privacy.divergence import (
    CENTRE,
    Segments,
    check_range,
    lipschitz_upper,
    zero_out_constant_upper,
)
from quietbit.privacy.fisher import MOST_CELLS, line_supremum_upper
from quietbit.privacy.orders import OrderConstant
from quietbit.privacy.renyi_cells import MOST_SEGMENTS, CrossCells, Problem, SameCells
from quietbit.target import Adjacency

__all__ = ["RENYI_ACCURACY", "RenyiConstant"]

RENYI_ACCURACY = 1e-3
_CHUNK = 1_000_000  # cells times symbols evaluated at once
# Cells times symbols after which a search stops, with what it has proved so far.
_MOST_NUMBERS = 6_000_000
_NEGLIGIBLE = 1e-10  # of alpha R^2: far below any variance that matters
_WIDER = 1 + 1e-12  # cells overlap by more than the rounding of their edges
_Rows: TypeAlias = list[tuple[float, ...]]  # one cell each, in the order of a class's fields


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Pairs of inputs to compare: any two of the segments, or one of them with an ``anchor``.

    For zero-out adjacency one input of every pair is the centre, an end of the segment ``anchor``;
    the others lie in direction ``sign`` from it.
    """

    segments: Segments
    sign: float = 0.0
    anchor: int | None = None


@final
class RenyiConstant(OrderConstant):
    """kappa_alpha of a design over inputs in [low, high], for one adjacency.

    For zero-out adjacency the range must contain 1/2, the input of a zero update.
    """

    RUNGS = 8

    def __init__(self, design: Design, low: float, high: float, adjacency: Adjacency) -> None:
        adjacency = Adjacency(adjacency)
        low, high = check_range(low, high)
        super().__init__(design, low, high, adjacency)
        if adjacency is Adjacency.REPLACE_ONE:
            self._lipschitz = lipschitz_upper(design, low, high)
            self._pairs = [_Pairs(Segments.over(design, low, high))]
        else:
            self._lipschitz = zero_out_constant_upper(design, low, high)
            self._pairs = []
            if high > CENTRE:
                self._pairs.append(_Pairs(Segments.over(design, CENTRE, high), 1.0, 0))
            if low < CENTRE:
                segments = Segments.over(design, low, CENTRE)
                self._pairs.append(_Pairs(segments, -1.0, len(segments.left) - 1))
        self._fisher = math.inf
        if design.spec.input_levels == 2:
            self._fisher = line_supremum_upper(self._pairs[0].segments)

    def _upper(self, alpha: float) -> float:
        """Return the bound, at most alpha L^2/2, and at most alpha M/2 with two levels."""
        widest = max(float(pairs.segments.span.max()) for pairs in self._pairs)
        square = min(self._lipschitz**2, self._fisher, widest**2 / 4)
        simple = square * alpha / 2 * (1 + 1e-15)
        supremum = 0.0
        for pairs in self._pairs:
            problem = Problem.of(pairs.segments, alpha, self._lipschitz)
            supremum = max(supremum, _search(problem, pairs, supremum, simple))
        if supremum == 0:
            return 0.0
        # Slopes off by e move a chord's standard deviation by at most e: see the chord identity.
        error = max(pairs.segments.slope_error for pairs in self._pairs)
        bound = (math.sqrt(supremum) + math.sqrt(alpha / 2) * error) ** 2
        return min(bound * (1 + 1e-12), simple)


def _search(problem: Problem, pairs: _Pairs, best: float, ceiling: float) -> float:
    """Return the supremum over all cells, rounded up; ``ceiling`` where there are too many."""
    if pairs.anchor is None and len(problem.segments.left) > MOST_SEGMENTS:
        return ceiling
    symbols = problem.segments.slope.shape[1]
    return supremum_upper(
        problem,
        (_same_cells(problem, pairs), _cross_cells(problem, pairs)),
        RENYI_ACCURACY,
        budget=min(MOST_CELLS, _MOST_NUMBERS // symbols),
        best=best,
        negligible=_NEGLIGIBLE * problem.alpha * float(problem.span.max()) ** 2,
        chunk=max(1, _CHUNK // symbols),
    )


def _same_cells(problem: Problem, pairs: _Pairs) -> SameCells:
    """Return cells of pairs within a segment, narrow in r near 0."""
    rows: _Rows = []
    segments = problem.segments
    for index, span in enumerate(problem.span.tolist()):
        if span == 0 or pairs.anchor not in (None, index):
            continue
        left = float(segments.left[index])
        right = float(segments.right[index])
        if pairs.anchor is None:
            places = _places(left, right, span)
        else:
            places = [(pairs.sign, 0.0, CENTRE, 0.0), (-pairs.sign, 1.0, CENTRE, 0.0)]
        finest = 0.5 / (max(1.0, problem.alpha - 1) * span)
        steps = list(pairwise(_graded(right - left, finest, 3.0)))
        rows += [(index, *place, *step) for place in places for step in steps]
    table = np.array(rows, dtype=np.float64).reshape(-1, 7)
    return SameCells(table[:, 0].astype(np.intp), *table[:, 1:].T)


def _places(left: float, right: float, span: float) -> _Rows:
    """Return (sign, pivot, c, dc) of cells that cover a segment in steps of about 2/R."""
    count = min(max(math.ceil((right - left) * span / 2), 1), 256)
    half = (right - left) / count / 2
    centres = [left + (2 * k + 1) * half for k in range(count)]
    return [(sign, 1.0, c, half * _WIDER) for sign in (1.0, -1.0) for c in centres]


def _cross_cells(problem: Problem, pairs: _Pairs) -> CrossCells:
    """Return cells of pairs in two segments, narrow near the kink between neighbours."""
    segments = problem.segments
    middle = 0.5 * (segments.left + segments.right)
    half = 0.5 * (segments.right - segments.left) * _WIDER
    rows: _Rows = []
    if pairs.anchor is not None:
        for index in range(len(middle)):
            if index != pairs.anchor:
                place = (middle[index], half[index])
                rows.append((index, pairs.anchor, *place, CENTRE, 0.0))
                rows.append((pairs.anchor, index, CENTRE, 0.0, *place))
    else:
        for index in range(len(middle) - 1):
            rows += _kink_rows(problem, index)
        first, second = np.indices((len(middle), len(middle)))
        apart = np.abs(first - second) > 1
        first = first[apart]
        second = second[apart]
        columns = (first, second, middle[first], half[first], middle[second], half[second])
        rows += zip(*columns, strict=True)
    table = np.array(rows, dtype=np.float64).reshape(-1, 6)
    indices = table[:, :2].astype(np.intp)
    return CrossCells(indices[:, 0], indices[:, 1], *table[:, 2:].T)


def _kink_rows(problem: Problem, index: int) -> _Rows:
    """Return the cells of pairs in segments ``index`` and ``index + 1``, in both orders."""
    segments = problem.segments
    kink = segments.right[index]
    finest = 0.01 / (problem.alpha * max(float(problem.span.max()), 1e-300))
    below = kink - _graded(float(kink - segments.left[index]), finest, 4.0)
    length = float(segments.right[index + 1] - segments.left[index + 1])
    above = segments.left[index + 1] + _graded(length, finest, 4.0)
    rows: _Rows = []
    for b, a in pairwise(below):
        lower = ((a + b) / 2, (b - a) / 2)
        for c, d in pairwise(above):
            upper = ((c + d) / 2, (d - c) / 2)
            rows.append((index, index + 1, *lower, *upper))
            rows.append((index + 1, index, *upper, *lower))
    return rows


def _graded(length: float, finest: float, ratio: float) -> FloatVector:
    """Return 0, finest, ratio finest, ... , length."""
    edges = [0.0]
    edge = finest
    while edge < 0.7 * length:
        edges.append(edge)
        edge *= ratio
    return np.array([*edges, length])
