"""kappa_alpha: the Rényi constant of the interpolated mechanism with any number of levels.

Idea     D_alpha(x || x') <= kappa_alpha (x - x')^2, so d independent coordinates within L2 distance S cost
         at most kappa_alpha S^2. The paper stops at two levels, where alpha M/2 does; here the supremum
         over all pairs is certified by branch and bound, for any real order and either adjacency.
Symbols  kappa_alpha = sup over x != x' of D_alpha(x || x')/(x - x')^2; zero-out: one of the two is 1/2.
Source   the statement asked for after Guo et al. (ICML 2023), Theorem 2; the bounds are proved in `chord`,
         `same_cells`, `cross_cells`.

A cell is settled once its bound is within 1e-3 of the largest value met; the largest bound of a settled
cell is returned, so the result is a bound whatever the search does. (alpha - 1) D_alpha is convex in alpha
for every pair, hence so is (alpha - 1) kappa_alpha: the curve computes kappa at a few orders and uses
chords between.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TypeAlias, final

import numpy as np

from quietbit._typing import FloatVector
from quietbit._validate import finite_real, require
from quietbit.design.table import Design
from quietbit.privacy.chord import MOST_SEGMENTS, Problem
from quietbit.privacy.cross_cells import CrossCells
from quietbit.privacy.divergence import lipschitz_upper, zero_out_constant_upper
from quietbit.privacy.fisher import line_supremum_upper
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.same_cells import SameCells
from quietbit.privacy.segments import CENTRE, Segments, check_range

__all__ = ["RENYI_ACCURACY", "RenyiConstant", "kappa_upper"]

RENYI_ACCURACY = 1e-3
_CHUNK = 1_000_000  # cells times symbols evaluated at once
_MOST_NUMBERS = 6_000_000  # cells times symbols before a search is cut short, with what it has proved so far
_MOST_CELLS = 200_000
_NEGLIGIBLE = 1e-10  # of alpha R^2: far below any variance that matters
_KNOTS_PER_DOUBLING = 8
_Cells: TypeAlias = SameCells | CrossCells


@final
class RenyiConstant:
    """kappa_alpha of a design over inputs in [low, high], for one adjacency; remembers orders it computed."""

    def __init__(self, design: Design, low: float, high: float, adjacency: Adjacency) -> None:
        """Refuse a range without the centre for zero-out; cut the range into its segments."""
        self._low, self._high = check_range(low, high)
        require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
        self._known: dict[float, float] = {}
        if adjacency is Adjacency.ZERO_OUT:
            self._lipschitz = zero_out_constant_upper(design, low, high)
            sides = ((CENTRE, self._high, 1.0), (self._low, CENTRE, -1.0))
            self._parts = [(Segments.over(design, a, b), sign) for a, b, sign in sides if a < b]
        else:
            self._lipschitz = lipschitz_upper(design, low, high)
            self._parts = [(Segments.over(design, self._low, self._high), 0.0)]
        self._fisher = math.inf
        if design.spec.input_levels == 2:
            self._fisher = line_supremum_upper(self._parts[0][0])

    def upper(self, alpha: float) -> float:
        """kappa_alpha from above; never more than alpha L^2/2, nor than alpha M/2 with two levels."""
        alpha = finite_real(alpha, "alpha", above=1.0)
        if alpha not in self._known:
            widest = max(float(segments.span.max()) for segments, _ in self._parts)
            simple = min(self._lipschitz**2, self._fisher, widest**2 / 4) * alpha / 2 * (1 + 1e-15)
            found = 0.0
            for segments, sign in self._parts:
                problem = Problem.of(segments, alpha, self._lipschitz)
                found = max(found, _search(problem, sign, found, simple))
            # Slopes off by e move a chord's standard deviation by at most e: see (*) of `chord`.
            slack = math.sqrt(alpha / 2) * max(segments.slope_error for segments, _ in self._parts)
            found = (math.sqrt(found) + slack) ** 2 if found > 0 else 0.0
            self._known[alpha] = min(found * (1 + 1e-12), simple)
        return self._known[alpha]

    def chord_upper(self, alpha: float) -> float:
        """kappa_alpha from above, from `upper` at a fixed ladder of orders and chords between them."""
        alpha = finite_real(alpha, "alpha", above=1.0)
        step = math.floor(math.log2(alpha - 1) * _KNOTS_PER_DOUBLING)
        below, above = (math.pow(2.0, place / _KNOTS_PER_DOUBLING) for place in (step, step + 1))
        part = min(max((alpha - 1 - below) / (above - below), 0.0), 1.0)
        moment = (1 - part) * below * self.upper(1 + below) + part * above * self.upper(1 + above)
        return moment / (alpha - 1) * (1 + 1e-12)


def kappa_upper(design: Design, alpha: float, adjacency: Adjacency, low: float = 0.0, high: float = 1.0) -> float:
    """The certified kappa_alpha of one order; for many orders keep a `RenyiConstant`."""
    return RenyiConstant(design, low, high, adjacency).upper(alpha)


def _search(problem: Problem, sign: float, best: float, ceiling: float) -> float:
    """Branch and bound over all cells; ``sign`` is 0 for replace-one, else the side of the centre.

    With more than 256 segments and replace-one adjacency the simple bounds answer instead.
    """
    if sign == 0 and len(problem.segments.left) > MOST_SEGMENTS:
        return ceiling
    pools: tuple[_Cells, ...] = (_first_same(problem, sign), _first_cross(problem, sign))
    symbols = problem.segments.slope.shape[1]
    chunk, budget = max(1, _CHUNK // symbols), min(_MOST_CELLS, _MOST_NUMBERS // symbols)
    negligible = _NEGLIGIBLE * problem.alpha * float(problem.span.max()) ** 2
    settled = best
    while any(len(cells) for cells in pools):
        halves: list[_Cells] = []
        for cells in pools:
            crude = cells.crude(problem)
            hopeful = crude > max(best * (1 + RENYI_ACCURACY), negligible)
            settled = max(settled, float(crude[~hopeful].max(initial=0.0)))
            cells, upper = cells.take(hopeful), crude[hopeful]
            split = np.zeros(len(cells), dtype=np.bool_)
            for first in range(0, len(cells), chunk):
                part = slice(first, first + chunk)
                if budget > 0:
                    value, upper[part], split[part] = cells.take(part).bounds(problem)
                    budget -= len(value)
                    best = max(best, float(value.max()))
            hopeful = upper > max(best * (1 + RENYI_ACCURACY), negligible)
            if budget <= 0:
                hopeful[:] = False  # out of time: what is proved so far is the answer
            settled = max(settled, float(upper[~hopeful].max(initial=0.0)))
            halves.append(cells.take(hopeful).halves(split[hopeful]))
        pools = tuple(halves)
    return max(settled, best)


def _first_same(problem: Problem, sign: float) -> SameCells:
    """Pairs within a segment: r in growing steps from 0, c in steps of about 2/R (or fixed at the centre)."""
    rows: list[tuple[float, ...]] = []
    segments, alpha = problem.segments, problem.alpha
    for index, span in enumerate(problem.span):
        if span == 0:
            continue
        left, right = float(segments.left[index]), float(segments.right[index])
        steps = _graded(right - left, 0.5 / (max(1.0, alpha - 1) * float(span)), 3.0)
        if sign == 0:
            count = min(max(math.ceil((right - left) * float(span) / 2), 1), 256)
            half = (right - left) / count / 2
            centres = [left + (2 * k + 1) * half for k in range(count)]
            places = [(way, 1.0, c, half * (1 + 1e-12)) for way in (1.0, -1.0) for c in centres]
        elif index == (0 if sign > 0 else len(segments.left) - 1):
            centre = left if sign > 0 else right
            places = [(sign, 0.0, centre, 0.0), (-sign, 1.0, centre, 0.0)]
        else:
            continue
        rows += [(index, *place, near, far) for place in places for near, far in pairwise(steps)]
    table = np.array(rows, dtype=np.float64).reshape(-1, 7)
    return SameCells(table[:, 0].astype(np.intp), *table[:, 1:].T)


def _first_cross(problem: Problem, sign: float) -> CrossCells:
    """Pairs in two segments: graded towards the kink between neighbours, one cell for the others."""
    segments = problem.segments
    left, right = segments.left, segments.right
    count = len(left)
    middle, half = 0.5 * (left + right), 0.5 * (right - left) * (1 + 1e-12)
    rows: list[tuple[float, ...]] = []
    if sign != 0:
        anchor, centre = (0, left[0]) if sign > 0 else (count - 1, right[-1])
        for index in range(count):
            if index != anchor:
                rows.append((index, anchor, middle[index], half[index], centre, 0.0))
                rows.append((anchor, index, centre, 0.0, middle[index], half[index]))
    else:
        finest = 0.01 / (problem.alpha * max(float(problem.span.max()), 1e-300))
        for low in range(count - 1):
            below = right[low] - _graded(float(right[low] - left[low]), finest, 4.0)
            above = left[low + 1] + _graded(float(right[low + 1] - left[low + 1]), finest, 4.0)
            for b, a in pairwise(below):
                for c, d in pairwise(above):
                    lower, upper = ((a + b) / 2, (b - a) / 2), ((c + d) / 2, (d - c) / 2)
                    rows += [(low, low + 1, *lower, *upper), (low + 1, low, *upper, *lower)]
        first, second = np.nonzero(np.abs(np.subtract.outer(np.arange(count), np.arange(count))) > 1)
        far = np.stack((first, second, middle[first], half[first], middle[second], half[second]), axis=1)
        rows += [tuple(row) for row in far]
    table = np.array(rows, dtype=np.float64).reshape(-1, 6)
    return CrossCells(table[:, 0].astype(np.intp), table[:, 1].astype(np.intp), *table[:, 2:].T)


def _graded(length: float, finest: float, ratio: float) -> FloatVector:
    """0, finest, ratio finest, ... , length."""
    inner = []
    edge = finest
    while edge < 0.7 * length:
        inner.append(edge)
        edge *= ratio
    return np.array([0.0, *inner, length])
