"""Rényi constants of the interpolated mechanism: M for two levels, kappa_alpha for any number.

Idea     the L2 curve of a two-level design needs one number, M = sup_x I(x), bounded from above by branch and bound.
         In general D_alpha(x || x') <= kappa_alpha (x - x')^2, so d independent coordinates within L2 distance S cost
         at most kappa_alpha S^2; the supremum over all pairs is certified for any real order and either adjacency.
Symbols  theta = slope of the log-probabilities, R = max theta - min theta; under sigma(eta(x)): m the mean of
         theta, mu_k its k-th central moment, I = mu_2. Scaled here so that theta lies in [0, 1] and R = 1.
         kappa_alpha = sup over x != x' of D_alpha(x || x')/(x - x')^2; zero-out: one of the two is 1/2.
Source   Guo et al. (ICML 2023), Definition (Fisher information), Lemmas 2 and 3, Theorem 2 and the appendix's
         algorithm, whose line search is replaced by a certificate; kappa is the statement asked for after Theorem 2,
         its bounds are proved in `cells`.

Fisher information. Bounds used, all for R = 1:
- I' = mu_3, I'' = mu_4 - 3 I^2, I''' = mu_5 - 10 mu_3 I. As |theta - m| <= 1 and I <= 1/4: |I'| <= I, so
  log I is 1-Lipschitz, and |I'''| <= 3.5 I. Hence on [c - w, c + w] I <= I(c) + |I'(c)| w + max(I''(c), 0)
  w^2/2 + (3.5/6) I(c) e^w w^3.
- I <= (1 - m) m (Bhatia and Davis); m is non-decreasing, so beyond a point with m >= 1/2 nothing exceeds
  its m (1 - m). That bounds the range to search as Lemma 3 (vi) does, without asking for anadromic rows or
  for a unique largest theta. It also makes logit(m) 1-Lipschitz, which bounds I on wide cells.

kappa. A cell is settled once its bound is within 1e-3 of the largest value found; the largest bound of a settled
cell is returned, so the result is a bound whatever the search does. (alpha - 1) D_alpha is convex in alpha
for every pair, hence so is (alpha - 1) kappa_alpha: the curve computes kappa at a few orders and uses
chords between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, final

import numpy as np

from quietbit._typing import FloatVector
from quietbit.design.table import Design
from quietbit.errors import require
from quietbit.privacy.branch import Cells, supremum_upper
from quietbit.privacy.cells import MOST_SEGMENTS, CrossCells, Problem, SameCells, grown_by
from quietbit.privacy.conversion import OrderConstant
from quietbit.privacy.divergence import (
    CENTRE,
    Segments,
    check_range,
    lipschitz_upper,
    mean_and_law,
    zero_out_constant_upper,
)
from quietbit.target import Adjacency

__all__ = [
    "RENYI_ACCURACY", "RenyiConstant", "fisher_supremum_upper", "kappa_upper",
    "variance_supremum_upper",
]  # fmt: skip

FISHER_ACCURACY = 1e-6
_MOST_CELLS = 200_000  # then the best bound so far is returned: valid, only less tight


@lru_cache(maxsize=128)
def fisher_supremum_upper(design: Design) -> float:
    """Return M = sup over all real x of I(x), from above, to a relative accuracy of 1e-6 (Lemma 2).

    Requires two input levels; with more the log-probabilities have kinks and `renyi` has the constant.
    """
    levels = design.spec.input_levels
    require(levels == 2, "input_levels", levels, "2 for Theorem 2 (more levels: kappa_upper)")
    return line_supremum_upper(Segments.over(design, 0.0, 1.0))


def line_supremum_upper(segments: Segments) -> float:
    """Bound the supremum over all real x of the Fisher information of a single segment's line, from above."""
    found = variance_supremum_upper(segments.start[0], segments.slope[0])
    # A slope off by e moves a standard deviation by at most e.
    return (math.sqrt(found) + segments.slope_error) ** 2 if found > 0 else 0.0


def variance_supremum_upper(start: FloatVector, slope: FloatVector) -> float:
    """Bound the supremum of Var(slope) under softmax(start + slope x) over all real x, from above."""
    width = float(np.ptp(slope))
    if width == 0:
        return 0.0
    family = _Family(start - start.max(), (slope - slope.min()) / width)
    low, high, best = _search_range(family)
    edges = np.linspace(low, high, 1 + int(min(max(8, math.ceil(high - low)), 512)))
    cells = _Stretches(0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges) * (1 + 1e-12))
    bound = supremum_upper(family, (cells,), FISHER_ACCURACY / 2, _MOST_CELLS, best=best)
    noise = 2.0**-48 * (16 + float(np.abs(family.start).max()) + max(abs(low), abs(high)))
    return min(bound * (1 + noise), 0.25) * width * width * (1 + 2.0**-50)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Family:
    """The laws sigma(start + theta y) with theta in [0, 1]: mean and central moments of theta at many y at once."""

    start: FloatVector
    theta: FloatVector

    def mean(self, y: float) -> float:
        return float(mean_and_law(self.start + self.theta * y, self.theta)[0])

    def moments(self, y: FloatVector) -> tuple[FloatVector, ...]:
        """Return m, 1 - m (accurate where m is close to 1), I, mu_3, mu_4 at every y."""
        mean, law = mean_and_law(self.start + y[:, None] * self.theta, self.theta[None, :])
        rest = law @ (1 - self.theta)
        deviation = self.theta - mean[:, None]
        law *= deviation
        law *= deviation
        second = law.sum(axis=1)
        law *= deviation
        third = law.sum(axis=1)
        return mean, rest, second, third, np.einsum("ij,ij->i", law, deviation)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Stretches(Cells[_Family]):
    """Intervals of the line, y in centre +- half."""

    centre: FloatVector
    half: FloatVector

    def bounds(self, problem: _Family) -> tuple[FloatVector, FloatVector, Any]:
        """Return I at the centre, and a bound on the interval."""
        half = self.half
        mean, rest, value, third, fourth = problem.moments(self.centre)
        growth = grown_by(value, half)
        upper = value + np.abs(third) * half + np.maximum(fourth - 3 * value * value, 0) * half**2 / 2
        upper = np.minimum(upper + (3.5 / 6) * growth * half**3, growth)
        with np.errstate(divide="ignore"):
            slack = np.maximum(np.abs(np.log(mean) - np.log(rest)) - half, 0.0)
        shrunk = np.exp(-slack)
        return value, np.minimum(upper, shrunk / np.square(1 + shrunk)), False

    def halves(self, split: Any) -> _Stretches:
        half = self.half / 2
        return self.joined((self.centre - half, half), (self.centre + half, half))


def _search_range(family: _Family) -> tuple[float, float, float]:
    """Return a bounded range outside which nothing exceeds the value found, and that value."""
    centre = _middle(family)
    best = float(family.moments(centre + np.linspace(-8.0, 8.0, 33))[2].max())
    ends = []
    for sign, tail in ((-1.0, 0), (1.0, 1)):  # of `moments`: m below the centre, 1 - m above
        step = 0.0
        while True:
            found = family.moments(np.array([centre + sign * step]))
            best, beyond = max(best, float(found[2][0])), float(found[tail][0])
            if beyond <= 0.5 and beyond * (1 - beyond) <= best:
                break
            step = 2 * step or 1.0
        ends.append(centre + sign * step)
    return ends[0], ends[1], best


def _middle(family: _Family) -> float:
    """Return about where m = 1/2."""
    ends = []
    for sign in (-1.0, 1.0):
        end, step = 0.0, 1.0
        while sign * (family.mean(end) - 0.5) < 0:
            end, step = end + sign * step, 2 * step
        ends.append(end)
    left, right = ends
    while right - left > 0.5:
        middle = 0.5 * (left + right)
        left, right = (left, middle) if family.mean(middle) > 0.5 else (middle, right)
    return 0.5 * (left + right)


RENYI_ACCURACY = 1e-3
_CHUNK = 1_000_000  # cells times symbols evaluated at once
_MOST_NUMBERS = 6_000_000  # cells times symbols after which a search stops, with what it has proved so far
_NEGLIGIBLE = 1e-10  # of alpha R^2: far below any variance that matters


@final
class RenyiConstant(OrderConstant):
    """kappa_alpha of a design over inputs in [low, high], for one adjacency."""

    RUNGS = 8

    def __init__(self, design: Design, low: float, high: float, adjacency: Adjacency) -> None:
        """Refuse a range without the centre for zero-out; divide the range into its segments."""
        super().__init__(design, *check_range(low, high), adjacency)
        require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
        if adjacency is Adjacency.ZERO_OUT:
            self._lipschitz = zero_out_constant_upper(design, low, high)
            sides = ((CENTRE, high, 1.0), (low, CENTRE, -1.0))
            self._parts = [(Segments.over(design, a, b), sign) for a, b, sign in sides if a < b]
        else:
            self._lipschitz = lipschitz_upper(design, low, high)
            self._parts = [(Segments.over(design, low, high), 0.0)]
        self._fisher = math.inf
        if design.spec.input_levels == 2:
            self._fisher = line_supremum_upper(self._parts[0][0])

    def _upper(self, alpha: float) -> float:
        """Return the bound, at most alpha L^2/2, and at most alpha M/2 with two levels."""
        widest = max(float(segments.span.max()) for segments, _ in self._parts)
        simple = min(self._lipschitz**2, self._fisher, widest**2 / 4) * alpha / 2 * (1 + 1e-15)
        found = 0.0
        for segments, sign in self._parts:
            problem = Problem.of(segments, alpha, self._lipschitz)
            found = max(found, _search(problem, sign, found, simple))
        # Slopes off by e move a chord's standard deviation by at most e: see (*) of `cells`.
        slack = math.sqrt(alpha / 2) * max(segments.slope_error for segments, _ in self._parts)
        found = (math.sqrt(found) + slack) ** 2 if found > 0 else 0.0
        return min(found * (1 + 1e-12), simple)


def kappa_upper(design: Design, alpha: float, adjacency: Adjacency, low: float = 0.0, high: float = 1.0) -> float:
    """Return the certified kappa_alpha of one order; for many orders keep a `RenyiConstant`."""
    return RenyiConstant(design, low, high, adjacency).upper(alpha)


def _search(problem: Problem, sign: float, best: float, ceiling: float) -> float:
    """Branch and bound over all cells; ``sign`` is 0 for replace-one, else the side of the centre.

    With more than 256 segments and replace-one adjacency the simple bounds are used instead.
    """
    if sign == 0 and len(problem.segments.left) > MOST_SEGMENTS:
        return ceiling
    symbols = problem.segments.slope.shape[1]
    return supremum_upper(
        problem,
        (_first_same(problem, sign), _first_cross(problem, sign)),
        RENYI_ACCURACY,
        min(_MOST_CELLS, _MOST_NUMBERS // symbols),
        best=best,
        negligible=_NEGLIGIBLE * problem.alpha * float(problem.span.max()) ** 2,
        chunk=max(1, _CHUNK // symbols),
    )


def _first_same(problem: Problem, sign: float) -> SameCells:
    """Return pairs within a segment: r in growing steps from 0, c in steps of about 2/R (or fixed at the centre)."""
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
    """Return pairs in two segments: graded towards the kink between neighbours, one cell for the others."""
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
    """Return 0, finest, ratio finest, ... , length."""
    inner = []
    edge = finest
    while edge < 0.7 * length:
        inner.append(edge)
        edge *= ratio
    return np.array([0.0, *inner, length])
