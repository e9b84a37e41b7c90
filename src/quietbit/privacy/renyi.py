"""Rényi constants of the interpolated mechanism: M for two levels, kappa_alpha for any number.

Idea     the L2 curve of a two-level design needs one number, M = sup_x I(x). In general D_alpha(x
         || x') <= kappa_alpha (x - x')^2, so d independent coordinates within L2 distance S cost at
         most kappa_alpha S^2. Both are found by branch and bound: a cell of inputs, or of pairs,
         has one value in it and a bound on all of it.
Symbols  theta = slope of the log-probabilities, R = max theta - min theta; under sigma(eta(x)): m
         the mean of theta, mu_k its k-th central moment, I = mu_2. r = |x - x'|; v = (eta(x) -
         eta(x'))/r, the chord's direction; p_s = softmax((1-s) eta(x') + s eta(x)), p_0 and p_1 the
         two laws, q = p_alpha; F = D_alpha(x || x')/r^2, whose supremum is kappa_alpha (zero-out:
         one of the two is 1/2). In one segment c is x (pivot 1) or x' (pivot 0).
Source   Guo et al. (ICML 2023), Definition (Fisher information), Lemmas 2 and 3, Theorem 2 and the
         appendix's algorithm, its line search replaced by a certificate.
         docs/theory/interpolated.md proves every bound used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.table import Design
from quietbit.errors import require
from quietbit.privacy.branch import Cells, supremum_upper
from quietbit.privacy.conversion import OrderConstant
from quietbit.privacy.divergence import (
    CENTRE,
    Segments,
    check_range,
    lipschitz_upper,
    log_softmax,
    mean_and_law,
    zero_out_constant_upper,
)
from quietbit.target import Adjacency

__all__ = [
    "RENYI_ACCURACY",
    "CrossCells",
    "Problem",
    "RenyiConstant",
    "SameCells",
    "chord",
    "fisher_supremum_upper",
    "kappa_upper",
    "variance_supremum_upper",
]

FISHER_ACCURACY = 1e-6
RENYI_ACCURACY = 1e-3
MOST_SEGMENTS = 256  # beyond, there are too many pairs of segments
ULP = 2.0**-50
_MOST_CELLS = 200_000  # then the best bound so far is returned: valid, only less tight
_CHUNK = 1_000_000  # cells times symbols evaluated at once
_MOST_NUMBERS = (
    6_000_000  # cells times symbols after which a search stops, with what it has proved so far
)
_NEGLIGIBLE = 1e-10  # of alpha R^2: far below any variance that matters
_Index: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]


@lru_cache(maxsize=128)
def fisher_supremum_upper(design: Design) -> float:
    """Return M = sup over all real x of I(x), from above, to a relative accuracy of 1e-6 (Lemma 2); two levels only."""
    levels = design.spec.input_levels
    require(levels == 2, "input_levels", levels, "2 for Theorem 2 (more levels: kappa_upper)")
    return line_supremum_upper(Segments.over(design, 0.0, 1.0))


def line_supremum_upper(segments: Segments) -> float:
    """Bound the supremum over all real x of the Fisher information of a single segment's line, from above."""
    found = variance_supremum_upper(segments.start[0], segments.slope[0])
    # A slope off by e moves a standard deviation by at most e.
    if found > 0:
        return (math.sqrt(found) + segments.slope_error) ** 2
    return 0.0


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
        upper = (
            value + np.abs(third) * half + np.maximum(fourth - 3 * value * value, 0) * half**2 / 2
        )
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
    ends = []
    for sign in (-1.0, 1.0):
        end = 0.0
        step = 1.0
        while sign * (family.mean(end) - 0.5) < 0:
            end = end + sign * step
            step = 2 * step
        ends.append(end)
    left, right = ends
    while right - left > 0.5:
        middle = 0.5 * (left + right)
        if family.mean(middle) > 0.5:
            left = left
            right = middle
        else:
            left = middle
            right = right
    centre = 0.5 * (left + right)  # about where m = 1/2
    best = float(family.moments(centre + np.linspace(-8.0, 8.0, 33))[2].max())
    ends = []
    for sign, tail in ((-1.0, 0), (1.0, 1)):  # of `moments`: m below the centre, 1 - m above
        step = 0.0
        while True:
            found = family.moments(np.array([centre + sign * step]))
            best = max(best, float(found[2][0]))
            beyond = float(found[tail][0])
            if beyond <= 0.5 and beyond * (1 - beyond) <= best:
                break
            step = 2 * step or 1.0
        ends.append(centre + sign * step)
    return ends[0], ends[1], best


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
        # Slopes off by e move a chord's standard deviation by at most e: see the chord identity.
        slack = math.sqrt(alpha / 2) * max(segments.slope_error for segments, _ in self._parts)
        if found > 0:
            found = (math.sqrt(found) + slack) ** 2
        else:
            found = 0.0
        return min(found * (1 + 1e-12), simple)


def kappa_upper(
    design: Design, alpha: float, adjacency: Adjacency, low: float = 0.0, high: float = 1.0
) -> float:
    """Return the certified kappa_alpha of one order; for many orders keep a `RenyiConstant`."""
    return RenyiConstant(design, low, high, adjacency).upper(alpha)


def _search(problem: Problem, sign: float, best: float, ceiling: float) -> float:
    """Branch and bound over all cells; ``sign`` is 0 for replace-one, else the side of the centre."""
    if sign == 0 and len(problem.segments.left) > MOST_SEGMENTS:
        return ceiling  # too many pairs of segments: the simple bounds alone
    symbols = problem.segments.slope.shape[1]
    pools = _first_same(problem, sign), _first_cross(problem, sign)
    budget = min(_MOST_CELLS, _MOST_NUMBERS // symbols)
    chunk = max(1, _CHUNK // symbols)
    negligible = _NEGLIGIBLE * problem.alpha * float(problem.span.max()) ** 2
    return supremum_upper(
        problem, pools, RENYI_ACCURACY, budget, best=best, negligible=negligible, chunk=chunk
    )


def _first_same(problem: Problem, sign: float) -> SameCells:
    """Return pairs within a segment: r in growing steps from 0, c in steps of about 2/R (or fixed at the centre)."""
    rows: list[tuple[float, ...]] = []
    segments = problem.segments
    alpha = problem.alpha
    for index, span in enumerate(problem.span):
        if span == 0:
            continue
        left = float(segments.left[index])
        right = float(segments.right[index])
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
    left = segments.left
    right = segments.right
    count = len(left)
    middle = 0.5 * (left + right)
    half = 0.5 * (right - left) * (1 + 1e-12)
    rows: list[tuple[float, ...]] = []
    if sign != 0:
        if sign > 0:
            anchor = 0
            centre = left[0]
        else:
            anchor = count - 1
            centre = right[-1]
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
                    lower = ((a + b) / 2, (b - a) / 2)
                    upper = ((c + d) / 2, (d - c) / 2)
                    rows += [(low, low + 1, *lower, *upper), (low + 1, low, *upper, *lower)]
        first, second = np.nonzero(
            np.abs(np.subtract.outer(np.arange(count), np.arange(count))) > 1
        )
        far = np.stack(
            (first, second, middle[first], half[first], middle[second], half[second]), axis=1
        )
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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One order over one set of segments, with precomputed inputs of the cell bounds."""

    segments: Segments
    alpha: float
    lipschitz: float
    span: FloatVector
    # per kink, l below and u above: Var l, Cov, Var u, k3(lll), k3(llu), k3(luu), k3(uuu)
    kinks: FloatMatrix
    hull: FloatMatrix  # largest span among segments i..j; empty when there are too many

    @classmethod
    def of(cls, segments: Segments, alpha: float, lipschitz: float) -> Problem:
        """Precompute the moments of the slopes at every kink."""
        slope = segments.slope
        law = mean_and_law(segments.start[1:], slope[1:])[1]
        lower, upper = (part - dot(law, part)[:, None] for part in (slope[:-1], slope[1:]))
        products = (lower * lower, lower * upper, upper * upper)
        third = (products[0] * lower, products[0] * upper, products[2] * lower, products[2] * upper)
        kinks = np.stack([dot(law, product) for product in (*products, *third)], axis=1)
        span = segments.span
        count = len(segments.left)
        hull = np.zeros((0, 0))
        if count <= MOST_SEGMENTS:
            hull = np.maximum.accumulate(np.triu(np.broadcast_to(span, (count, count))), axis=1)
        return cls(segments, alpha, lipschitz, span, kinks, hull)


def dot(weights: FloatMatrix, vector: FloatMatrix) -> FloatVector:
    """Return the row-wise sums of products."""
    return np.asarray(np.einsum("ij,ij->i", weights, vector))


def grown_by(value: FloatVector, exponent: FloatVector) -> FloatVector:
    """Bound value e^exponent from above; infinite where the exponent is too large to be useful."""
    factor = np.where(exponent < 300.0, np.exp(np.minimum(exponent, 300.0)), np.inf)
    return np.asarray(np.maximum(value, 1e-300) * factor)  # a value that underflowed still counts


def simple_bound(problem: Problem, span: FloatVector, nearest: FloatVector) -> FloatVector:
    """Return min(alpha R^2/8, L/r): the bounds that need no evaluation."""
    with np.errstate(divide="ignore"):
        return np.minimum(problem.alpha * span**2 / 8 * (1 + 8 * ULP), problem.lipschitz / nearest)


def chord(
    law: FloatMatrix, v: FloatMatrix, r: FloatVector, alpha: float, span: FloatVector
) -> tuple[FloatVector, FloatVector, FloatMatrix, FloatMatrix, FloatMatrix]:
    """Return F, a bound on its rounding error, and p_0, p_1, q, from log p_0 and the chord's direction."""
    p_0 = np.exp(law)
    u = (v - dot(p_0, v)[:, None]) * r[:, None]
    p_0 = p_0 / p_0.sum(axis=1)[:, None]
    scale = alpha * np.abs(u).max(axis=1)
    logs = []
    laws = []
    for s in (1.0, alpha):
        exponent = law + s * u
        top = exponent.max(axis=1)
        weights = np.exp(exponent - top[:, None])
        mass = weights.sum(axis=1)
        weights /= mass[:, None]
        logs.append(top + np.log(mass))
        laws.append(weights)
    phi = (logs[1] - alpha * logs[0]) / (alpha - 1)
    # A term's exponent z = log q_j + log-sum errs by an ulp of z; averaged over q: its entropy and
    # the sum.
    error = ULP * (1 + alpha) * (16 + alpha * r * span) / (alpha - 1) / (r * r)
    small = scale < 0.5
    if small.any():
        # u has mean 0, so log E e^(su) = log1p(E[e^(su) - 1 - su]): nothing of first order to
        # cancel.
        first, second = (
            np.log1p(dot(p_0[small], _second_order(s * u[small]))) for s in (1.0, alpha)
        )
        phi[small] = (second - alpha * first) / (alpha - 1)
        error[small] = phi[small] / np.square(r[small]) * (64 * ULP * alpha / (alpha - 1))
    return phi / (r * r), error, p_0, laws[0], laws[1]


def _second_order(z: FloatMatrix) -> FloatMatrix:
    """Return e^z - 1 - z for |z| <= 1/2, by its series: the terms left out are below 2^-53 of the first."""
    total = np.full_like(z, 1 / 15)
    for k in range(14, 2, -1):
        total = (1 + total * z) / k
    return np.asarray(z * z / 2 * (1 + total * z))


@final
@dataclass(frozen=True, slots=True, eq=False)
class SameCells(Cells[Problem]):
    """Pairs within one segment: c in c +- dc, r in [near, far], x - x' of the given sign."""

    index: _Index
    sign: FloatVector
    pivot: FloatVector
    c: FloatVector
    dc: FloatVector
    near: FloatVector
    far: FloatVector

    def crude(self, problem: Problem) -> FloatVector:
        """Return a bound that needs no evaluation; minus infinity for a cell without a possible pair."""
        left = problem.segments.left[self.index]
        right = problem.segments.right[self.index]
        ahead = np.where(self.sign > 0, self.c - left, right - self.c) + self.dc
        possible = (self.near <= ahead * (1 + 1e-9)) | (self.pivot == 0)
        return np.where(
            possible, simple_bound(problem, problem.span[self.index], self.near), -np.inf
        )

    def halves(self, split: Any) -> SameCells:
        """Split every cell, across r where the mask is set, else across c."""
        middle = 0.5 * (self.near + self.far)
        dc = np.where(split, self.dc, 0.5 * self.dc)
        shift = np.where(split, 0.0, dc)
        fixed = (self.index, self.sign, self.pivot)
        first = (*fixed, self.c - shift, dc, self.near, np.where(split, middle, self.far))
        second = (*fixed, self.c + shift, dc, np.where(split, middle, self.near), self.far)
        return self.joined(first, second)

    def bounds(self, problem: Problem) -> tuple[FloatVector, FloatVector, Any]:
        """Return F at a pair of each cell (-inf where it is not possible), a bound on the cell, whether to split r."""
        alpha = problem.alpha
        segments = problem.segments
        bottom = self.near == 0
        r = np.where(bottom, 0.0, 0.5 * (self.near + self.far))
        dr = np.where(bottom, self.far, 0.5 * (self.far - self.near))
        slope = segments.slope[self.index]
        span = problem.span[self.index]
        other = self.c - self.sign * self.pivot * r  # x' = y_0
        law = log_softmax(segments.eta(self.index, other))
        safe = np.where(bottom, 1.0, r)
        value, error, p_0, p_1, q = chord(law, self.sign[:, None] * slope, safe, alpha, span)
        centred = slope - dot(p_0, slope)[:, None]
        m_1 = dot(p_1, centred)  # and m_0 = 0
        m_q = dot(q, centred)
        by_c = (m_q - alpha * m_1) / (alpha - 1) / safe**2
        by_r = ((alpha - self.pivot) * m_q - alpha * (1 - self.pivot) * m_1) / (alpha - 1) / safe**2
        by_r = np.abs(self.sign * by_r - 2 * value / safe)
        if bottom.any():
            square = p_0 * np.square(centred)
            third = dot(square, centred) * (alpha / 2)
            value = np.where(bottom, square.sum(axis=1) * (alpha / 2), value)
            error = np.where(bottom, 0.0, error)
            by_c = np.where(bottom, third, by_c)
            start = np.maximum(self.sign * ((alpha + 1) / 3 - self.pivot) * third, 0.0)
            by_r = np.where(bottom, start, by_r)
        stretch = np.maximum(self.pivot, alpha - self.pivot)
        reach = span * (self.dc + stretch * dr)
        grown = value + error
        upper = grown + np.abs(by_c) * self.dc + by_r * dr
        # Rounding of the two derivatives: means of slopes, each good to some ulps of the span.
        rounding = 16 * ULP * alpha / (alpha - 1) * reach / safe**2 + 4 * error * dr / safe
        upper += np.where(bottom, 0.0, rounding)
        upper += 0.5 * reach**2 * grown_by(grown, reach)
        inside = (other >= segments.left[self.index]) & (other <= segments.right[self.index])
        x = self.c + self.sign * (1 - self.pivot) * r
        inside &= (x >= segments.left[self.index]) & (x <= segments.right[self.index])
        upper = np.minimum(upper * (1 + 4 * segments.noise), self.crude(problem))
        return (
            np.where(inside, value, -np.inf),
            upper,
            stretch * (self.far - self.near) >= 2 * self.dc,
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class CrossCells(Cells[Problem]):
    """Pairs in two segments: x in x +- dx of segment ``first``, x' in y +- dy of segment ``second``."""

    first: _Index
    second: _Index
    x: FloatVector
    dx: FloatVector
    y: FloatVector
    dy: FloatVector

    def crude(self, problem: Problem) -> FloatVector:
        """Return a cheap bound: the simple ones, and the kink's for neighbouring segments."""
        nearest = np.abs(self.x - self.y) - self.dx - self.dy
        low = np.minimum(self.first, self.second)
        high = np.maximum(self.first, self.second)
        if len(problem.hull):
            span = problem.hull[low, high]
        else:
            span = np.full(len(low), problem.span.max())
        bound = simple_bound(problem, span, np.maximum(nearest, 0.0))
        touching = high - low == 1
        if touching.any():
            bound[touching] = np.minimum(bound[touching], self.take(touching)._kink(problem))
        return bound

    def _kink(self, problem: Problem) -> FloatVector:
        """Return the bound around the kink, for cells of neighbouring segments."""
        segments = problem.segments
        alpha = problem.alpha
        upward = self.first > self.second
        g = np.where(upward, segments.left[self.first], segments.right[self.first])
        moments = problem.kinks[np.minimum(self.first, self.second)]
        # The role of x is the upper segment's when x > x', the lower one's otherwise.
        moments = np.where(upward[:, None], moments, moments[:, [2, 1, 0, 6, 5, 4, 3]])
        var_y, both, var_x, yyy, yyx, yxx, xxx = moments.T
        least_x = np.maximum(np.abs(self.x - g) - self.dx, 0.0)
        least_y = np.maximum(np.abs(self.y - g) - self.dy, 0.0)
        most_x = np.abs(self.x - g) + self.dx
        most_y = np.abs(self.y - g) + self.dy
        ends = (least_x / (least_x + most_y), most_x / (most_x + least_y))
        inner = [a * a * var_x + 2 * a * (1 - a) * both + (1 - a) ** 2 * var_y for a in ends]
        farthest = most_x + most_y
        z = farthest * np.maximum(problem.span[self.first], problem.span[self.second])
        k = (alpha - 1) * z
        # The average of e^(k t) under the density 2 (1 - t) is 2 (e^k - 1 - k)/k^2.
        some = np.clip(k, 1e-2, 300.0)
        mean = np.where(k > 1e-2, 2 * (np.expm1(some) - some) / some**2, 1 + k / 3 + k * k / 6)
        mean = np.where(k < 300.0, mean, np.inf)
        tilted = grown_by(np.maximum(*inner), z) * (1 / alpha + (alpha - 1) / alpha * mean)
        s = (alpha + 1) / 3
        step = np.where(upward, farthest, -farthest)
        level = (var_y, (var_y + 2 * both) / 3, (2 * both + var_x) / 3, var_x)
        drift = ((s - 1) * yyy, (s - 2 / 3) * yyx, (s - 1 / 3) * yxx, s * xxx)
        expanded = np.max(
            [at + np.maximum(step * rate, 0.0) for at, rate in zip(level, drift, strict=True)],
            axis=0,
        )
        spread = (alpha * alpha + alpha + 1) / 6 + 1 / alpha
        expanded += 0.5 * z * z * spread * grown_by(np.maximum(var_x, var_y), alpha * z)
        return np.asarray(alpha / 2 * np.minimum(tilted, expanded) * (1 + 16 * segments.noise))

    def halves(self, split: Any) -> CrossCells:
        """Split every cell, across x where the mask is set, else across x'."""
        dx = np.where(split, self.dx / 2, self.dx)
        dy = np.where(split, self.dy, self.dy / 2)
        sx = np.where(split, dx, 0.0)
        sy = np.where(split, 0.0, dy)
        lower = (self.first, self.second, self.x - sx, dx, self.y - sy, dy)
        upper = (self.first, self.second, self.x + sx, dx, self.y + sy, dy)
        return self.joined(lower, upper)

    def bounds(self, problem: Problem) -> tuple[FloatVector, FloatVector, Any]:
        """Return F at the centre of each cell, a bound on the cell, and whether to split it across x."""
        alpha = problem.alpha
        segments = problem.segments
        tau_x = segments.slope[self.first]
        tau_y = segments.slope[self.second]
        r = np.abs(self.x - self.y)
        sign = np.where(self.x > self.y, 1.0, -1.0)
        v = self._direction(segments, tau_x, tau_y, r)
        law = log_softmax(segments.eta(self.second, self.y))
        v_span = np.ptp(v, axis=1)
        value, error, p_0, p_1, q = chord(law, v, r, alpha, v_span)
        by_x = alpha / (alpha - 1) * (dot(q, tau_x) - dot(p_1, tau_x))
        by_y = dot(p_0, tau_y) - dot(q, tau_y)
        span_x = problem.span[self.first]
        span_y = problem.span[self.second]
        move_x = span_x * self.dx
        move_y = span_y * self.dy
        grown = value + error
        around = self.dx + self.dy
        fits = around < 0.9 * r  # cells too wide for their distance are only split
        nearest = np.where(fits, r - around, r)

        pull = 2 * sign * grown / r
        first = np.abs(by_x / r**2 - pull) * self.dx + np.abs(by_y / r**2 + pull) * self.dy
        first += 4 * error + 16 * ULP * alpha / (alpha - 1) * (move_x + move_y) / r**2
        # The chord is signed: v points from x' to x, the slopes along increasing x.
        apart_x = np.ptp(tau_x * sign[:, None] - v, axis=1) + 2 * segments.slope_error
        apart_y = np.ptp(tau_y * sign[:, None] - v, axis=1) + 2 * segments.slope_error
        drift = (apart_x * self.dx + apart_y * self.dy) / nearest
        bend = ((apart_x + drift) * self.dx + (apart_y + drift) * self.dy) / nearest
        tilt = alpha * move_x + max(1.0, alpha - 1) * move_y
        unit = np.sqrt(alpha / 8)
        norm = grown_by(np.sqrt(grown) + unit * drift, tilt / 2)
        turn = unit * bend
        rest = turn**2 + norm * turn * 2 * around / nearest
        rest += 2 * tilt * norm * turn + 0.5 * tilt**2 * norm**2
        upper = grown + first + rest

        widest = (r + around) * np.maximum(v_span, np.maximum(span_x, span_y))
        grow = np.minimum(alpha / (alpha - 1), alpha * widest / 4) * move_x
        grow += np.minimum(1.0, alpha * widest / 4) * move_y
        wide = (grown * r * r + grow) / nearest**2
        upper = np.where(fits, np.minimum(upper, wide) * (1 + 4 * segments.noise), np.inf)
        split = (apart_x / nearest + alpha * span_x) * self.dx >= (
            apart_y / nearest + alpha * span_y
        ) * self.dy
        split = np.where(fits, split, self.dx >= self.dy)
        return value, np.minimum(upper, self.crude(problem)), split

    def _direction(
        self, segments: Segments, tau_x: FloatMatrix, tau_y: FloatMatrix, r: FloatVector
    ) -> FloatMatrix:
        """Return (eta(x) - eta(x'))/r, summed piece by piece so that nothing cancels near a kink."""
        upward = self.first > self.second
        edge_x = np.where(upward, segments.left[self.first], segments.right[self.first])
        edge_y = np.where(upward, segments.right[self.second], segments.left[self.second])
        total = tau_x * (self.x - edge_x)[:, None] + tau_y * (edge_y - self.y)[:, None]
        apart = np.abs(self.first - self.second) > 1
        if apart.any():
            at_x = segments.eta(self.first[apart], edge_x[apart])
            total[apart] += at_x - segments.eta(self.second[apart], edge_y[apart])
        return np.asarray(total / r[:, None])
