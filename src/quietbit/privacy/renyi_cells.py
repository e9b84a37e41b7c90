"""Cells of pairs of inputs, and bounds on the divergence over them: the steps of `renyi`'s search.

Idea     at one pair of a cell F and its derivatives are computed; what the second derivative can
         add in the cell is bounded. Near a kink, where two segments meet, chords are bounded by the
         moments of both slopes there.
Symbols  tau: slopes of the log-probabilities; R = max tau - min tau; r = |x - x'|; v = (eta(x) -
         eta(x'))/r, the chord's direction; p_s = softmax((1-s) eta(x') + s eta(x)), p_0 and p_1 the
         two laws, q = p_alpha; F = D_alpha(x || x')/r^2. Within a segment c is x (pivot 1) or x'
         (pivot 0).
Source   docs/theory/interpolated.md proves every bound used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.privacy.branch import Cells
from quietbit.privacy.divergence import Segments, log_softmax, mean_and_law
from quietbit.privacy.fisher import grown_by

__all__ = ["MOST_SEGMENTS", "Chord", "CrossCells", "Problem", "SameCells", "chord"]

MOST_SEGMENTS = 256  # beyond, there are too many pairs of segments
ULP = 2.0**-50
_MIRRORED = [2, 1, 0, 6, 5, 4, 3]  # a kink's moments with its two sides exchanged
_Index: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One order over one set of segments, with precomputed inputs of the cell bounds.

    ``kinks`` has, per kink, with l the slopes below it and u those above: Var l, Cov, Var u, and
    the third moments lll, llu, luu, uuu. ``hull`` has the largest span among segments i..j; it is
    empty where there are too many.
    """

    segments: Segments
    alpha: float
    lipschitz: float
    span: FloatVector
    kinks: FloatMatrix
    hull: FloatMatrix

    @classmethod
    def of(cls, segments: Segments, alpha: float, lipschitz: float) -> Problem:
        """Precompute the moments of the slopes at every kink."""
        below = segments.slope[:-1]
        above = segments.slope[1:]
        law = mean_and_law(segments.start[1:], above)[1]
        below = below - dot(law, below)[:, None]
        above = above - dot(law, above)[:, None]
        squares = (below * below, below * above, above * above)
        cubes = (squares[0] * below, squares[0] * above, squares[2] * below, squares[2] * above)
        kinks = np.stack([dot(law, product) for product in (*squares, *cubes)], axis=1)
        span = segments.span
        count = len(span)
        hull = np.zeros((0, 0))
        if count <= MOST_SEGMENTS:
            hull = np.maximum.accumulate(np.triu(np.broadcast_to(span, (count, count))), axis=1)
        return cls(segments, alpha, lipschitz, span, kinks, hull)

    def simple_bound(self, span: FloatVector, nearest: FloatVector) -> FloatVector:
        """Return min(alpha R^2/8, L/r), which needs no evaluation; ``nearest``: the least r."""
        with np.errstate(divide="ignore"):
            by_distance = self.lipschitz / nearest
        return np.minimum(self.alpha * span**2 / 8 * (1 + 8 * ULP), by_distance)


def dot(weights: FloatMatrix, vector: FloatMatrix) -> FloatVector:
    """Return the row-wise sums of products."""
    return np.asarray(np.einsum("ij,ij->i", weights, vector))


class Chord(NamedTuple):
    """F of pairs of inputs, a bound on its rounding error, and the three laws along the chord."""

    value: FloatVector
    error: FloatVector
    p_0: FloatMatrix
    p_1: FloatMatrix
    q: FloatMatrix


def chord(
    law: FloatMatrix, v: FloatMatrix, r: FloatVector, alpha: float, span: FloatVector
) -> Chord:
    """Compute F from log p_0, ``law``, and the chord's direction ``v``, of the given ``span``."""
    p_0 = np.exp(law)
    u = (v - dot(p_0, v)[:, None]) * r[:, None]
    p_0 = p_0 / p_0.sum(axis=1)[:, None]
    log_1, p_1 = _log_sum(law + u)
    log_q, q = _log_sum(law + alpha * u)
    phi = (log_q - alpha * log_1) / (alpha - 1)
    # A term's exponent z = log q_j + log-sum errs by an ulp of z; averaged over q: its entropy and
    # the sum.
    error = ULP * (1 + alpha) * (16 + alpha * r * span) / (alpha - 1) / (r * r)
    small = alpha * np.abs(u).max(axis=1) < 0.5
    if small.any():
        # u has mean 0, so log E e^(su) = log1p(E[e^(su) - 1 - su]): nothing of first order to
        # cancel.
        log_1 = np.log1p(dot(p_0[small], _second_order(u[small])))
        log_q = np.log1p(dot(p_0[small], _second_order(alpha * u[small])))
        phi[small] = (log_q - alpha * log_1) / (alpha - 1)
        error[small] = phi[small] / np.square(r[small]) * (64 * ULP * alpha / (alpha - 1))
    return Chord(phi / (r * r), error, p_0, p_1, q)


def _log_sum(exponent: FloatMatrix) -> tuple[FloatVector, FloatMatrix]:
    """Return the logarithm of the sum of exponentials of each row, and their shares of it."""
    top = exponent.max(axis=1)
    weights = np.exp(exponent - top[:, None])
    mass = weights.sum(axis=1)
    weights /= mass[:, None]
    return top + np.log(mass), weights


def _second_order(z: FloatMatrix) -> FloatMatrix:
    """Return e^z - 1 - z for |z| <= 1/2, by its series: what is left out is below 2^-53 of it."""
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
        """Return a bound without evaluation; minus infinity for a cell without a possible pair."""
        left = problem.segments.left[self.index]
        right = problem.segments.right[self.index]
        ahead = np.where(self.sign > 0, self.c - left, right - self.c) + self.dc
        possible = (self.near <= ahead * (1 + 1e-9)) | (self.pivot == 0)
        bound = problem.simple_bound(problem.span[self.index], self.near)
        return np.where(possible, bound, -np.inf)

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
        """Return F at a pair of each cell, a bound on the cell, and whether to split it across r.

        F is minus infinity where the pair leaves the segment.
        """
        alpha = problem.alpha
        segments = problem.segments
        sign = self.sign
        pivot = self.pivot
        span = problem.span[self.index]
        bottom = self.near == 0  # cells from r = 0 on are expanded there
        r = np.where(bottom, 0.0, 0.5 * (self.near + self.far))
        dr = np.where(bottom, self.far, 0.5 * (self.far - self.near))
        x = self.c + sign * (1 - pivot) * r
        other = self.c - sign * pivot * r
        value, error, by_c, by_r = self._expansion(problem, bottom, r, other, span)
        safe = np.where(bottom, 1.0, r)
        stretch = np.maximum(pivot, alpha - pivot)
        reach = span * (self.dc + stretch * dr)
        grown = value + error
        upper = grown + np.abs(by_c) * self.dc + by_r * dr
        # Rounding of the two derivatives: means of slopes, each good to some ulps of the span.
        rounding = 16 * ULP * alpha / (alpha - 1) * reach / safe**2 + 4 * error * dr / safe
        upper += np.where(bottom, 0.0, rounding)
        upper += 0.5 * reach**2 * grown_by(grown, reach)
        upper = np.minimum(upper * (1 + 4 * segments.noise), self.crude(problem))
        left = segments.left[self.index]
        right = segments.right[self.index]
        inside = (other >= left) & (other <= right) & (x >= left) & (x <= right)
        across_r = stretch * (self.far - self.near) >= 2 * self.dc
        return np.where(inside, value, -np.inf), upper, across_r

    def _expansion(
        self,
        problem: Problem,
        bottom: Any,
        r: FloatVector,
        other: FloatVector,
        span: FloatVector,
    ) -> tuple[FloatVector, ...]:
        """Return F, its error and its derivatives by c and by r, the last bounded by its size."""
        alpha = problem.alpha
        sign = self.sign
        pivot = self.pivot
        slope = problem.segments.slope[self.index]
        law = log_softmax(problem.segments.eta(self.index, other))
        safe = np.where(bottom, 1.0, r)
        value, error, p_0, p_1, q = chord(law, sign[:, None] * slope, safe, alpha, span)
        centred = slope - dot(p_0, slope)[:, None]
        m_1 = dot(p_1, centred)  # and m_0 = 0
        m_q = dot(q, centred)
        by_c = (m_q - alpha * m_1) / (alpha - 1) / safe**2
        turned = (alpha - pivot) * m_q - alpha * (1 - pivot) * m_1
        by_r = turned / (alpha - 1) / safe**2
        by_r = np.abs(sign * by_r - 2 * value / safe)
        if bottom.any():
            square = p_0 * np.square(centred)
            third = dot(square, centred) * (alpha / 2)
            start = np.maximum(sign * ((alpha + 1) / 3 - pivot) * third, 0.0)
            value = np.where(bottom, square.sum(axis=1) * (alpha / 2), value)
            error = np.where(bottom, 0.0, error)
            by_c = np.where(bottom, third, by_c)
            by_r = np.where(bottom, start, by_r)
        return value, error, by_c, by_r


@final
@dataclass(frozen=True, slots=True, eq=False)
class CrossCells(Cells[Problem]):
    """Pairs in two segments: x in x +- dx of ``first``, x' in y +- dy of ``second``."""

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
        bound = problem.simple_bound(span, np.maximum(nearest, 0.0))
        touching = high - low == 1
        if touching.any():
            bound[touching] = np.minimum(bound[touching], self.take(touching)._kink(problem))
        return bound

    def _kink(self, problem: Problem) -> FloatVector:
        """Return the bound around the kink, for cells of neighbouring segments."""
        segments = problem.segments
        alpha = problem.alpha
        upward = self.first > self.second
        kink = np.where(upward, segments.left[self.first], segments.right[self.first])
        moments = problem.kinks[np.minimum(self.first, self.second)]
        # The role of x is the upper segment's when x > x', the lower one's otherwise.
        moments = np.where(upward[:, None], moments, moments[:, _MIRRORED])
        var_y, both, var_x, yyy, yyx, yxx, xxx = moments.T
        away_x = np.abs(self.x - kink)
        away_y = np.abs(self.y - kink)
        farthest = (away_x + self.dx) + (away_y + self.dy)
        z = farthest * np.maximum(problem.span[self.first], problem.span[self.second])

        variance = self._largest_variance(away_x, away_y, var_x, both, var_y)
        mean = _mean_growth((alpha - 1) * z)
        tilted = grown_by(variance, z) * (1 / alpha + (alpha - 1) / alpha * mean)

        s = (alpha + 1) / 3
        step = np.where(upward, farthest, -farthest)
        levels = (var_y, (var_y + 2 * both) / 3, (2 * both + var_x) / 3, var_x)
        rates = ((s - 1) * yyy, (s - 2 / 3) * yyx, (s - 1 / 3) * yxx, s * xxx)
        controls = [
            level + np.maximum(step * rate, 0.0) for level, rate in zip(levels, rates, strict=True)
        ]
        spread = (alpha * alpha + alpha + 1) / 6 + 1 / alpha
        second = 0.5 * z * z * spread * grown_by(np.maximum(var_x, var_y), alpha * z)
        expanded = np.max(controls, axis=0) + second
        return np.asarray(alpha / 2 * np.minimum(tilted, expanded) * (1 + 16 * segments.noise))

    def _largest_variance(
        self,
        away_x: FloatVector,
        away_y: FloatVector,
        var_x: FloatVector,
        both: FloatVector,
        var_y: FloatVector,
    ) -> FloatVector:
        """Return the larger variance of the chord's direction at its two extremes in the cell."""
        least_x = np.maximum(away_x - self.dx, 0.0)
        least_y = np.maximum(away_y - self.dy, 0.0)
        most_x = away_x + self.dx
        most_y = away_y + self.dy
        shares = (least_x / (least_x + most_y), most_x / (most_x + least_y))
        variances = [
            share * share * var_x + 2 * share * (1 - share) * both + (1 - share) ** 2 * var_y
            for share in shares
        ]
        return np.maximum(*variances)

    def halves(self, split: Any) -> CrossCells:
        """Split every cell, across x where the mask is set, else across x'."""
        dx = np.where(split, self.dx / 2, self.dx)
        dy = np.where(split, self.dy, self.dy / 2)
        shift_x = np.where(split, dx, 0.0)
        shift_y = np.where(split, 0.0, dy)
        lower = (self.first, self.second, self.x - shift_x, dx, self.y - shift_y, dy)
        upper = (self.first, self.second, self.x + shift_x, dx, self.y + shift_y, dy)
        return self.joined(lower, upper)

    def bounds(self, problem: Problem) -> tuple[FloatVector, FloatVector, Any]:
        """Return F at the centre of each cell, a bound on it, and whether to split across x."""
        alpha = problem.alpha
        segments = problem.segments
        dx = self.dx
        dy = self.dy
        tau_x = segments.slope[self.first]
        tau_y = segments.slope[self.second]
        r = np.abs(self.x - self.y)
        sign = np.where(self.x > self.y, 1.0, -1.0)
        v = self._direction(segments, tau_x, tau_y, r)
        v_span = np.ptp(v, axis=1)
        law = log_softmax(segments.eta(self.second, self.y))
        value, error, p_0, p_1, q = chord(law, v, r, alpha, v_span)
        by_x = alpha / (alpha - 1) * (dot(q, tau_x) - dot(p_1, tau_x))
        by_y = dot(p_0, tau_y) - dot(q, tau_y)
        span_x = problem.span[self.first]
        span_y = problem.span[self.second]
        move_x = span_x * dx
        move_y = span_y * dy
        grown = value + error
        around = dx + dy
        fits = around < 0.9 * r  # cells too wide for their distance are only split
        nearest = np.where(fits, r - around, r)

        pull = 2 * sign * grown / r
        first = np.abs(by_x / r**2 - pull) * dx + np.abs(by_y / r**2 + pull) * dy
        first += 4 * error + 16 * ULP * alpha / (alpha - 1) * (move_x + move_y) / r**2
        # The chord is signed: v points from x' to x, the slopes along increasing x.
        apart_x = np.ptp(tau_x * sign[:, None] - v, axis=1) + 2 * segments.slope_error
        apart_y = np.ptp(tau_y * sign[:, None] - v, axis=1) + 2 * segments.slope_error
        drift = (apart_x * dx + apart_y * dy) / nearest
        bend = ((apart_x + drift) * dx + (apart_y + drift) * dy) / nearest
        tilt = alpha * move_x + max(1.0, alpha - 1) * move_y
        unit = np.sqrt(alpha / 8)
        norm = grown_by(np.sqrt(grown) + unit * drift, tilt / 2)
        turn = unit * bend
        second = turn**2 + norm * turn * 2 * around / nearest
        second += 2 * tilt * norm * turn + 0.5 * tilt**2 * norm**2
        expanded = grown + first + second

        widest = (r + around) * np.maximum(v_span, np.maximum(span_x, span_y))
        growth = np.minimum(alpha / (alpha - 1), alpha * widest / 4) * move_x
        growth += np.minimum(1.0, alpha * widest / 4) * move_y
        wide = (grown * r * r + growth) / nearest**2
        upper = np.where(fits, np.minimum(expanded, wide) * (1 + 4 * segments.noise), np.inf)

        weight_x = apart_x / nearest + alpha * span_x
        weight_y = apart_y / nearest + alpha * span_y
        across_x = np.where(fits, weight_x * dx >= weight_y * dy, dx >= dy)
        return value, np.minimum(upper, self.crude(problem)), across_x

    def _direction(
        self, segments: Segments, tau_x: FloatMatrix, tau_y: FloatMatrix, r: FloatVector
    ) -> FloatMatrix:
        """Return (eta(x) - eta(x'))/r, summed piece by piece so that nothing cancels at a kink."""
        upward = self.first > self.second
        edge_x = np.where(upward, segments.left[self.first], segments.right[self.first])
        edge_y = np.where(upward, segments.right[self.second], segments.left[self.second])
        total = tau_x * (self.x - edge_x)[:, None] + tau_y * (edge_y - self.y)[:, None]
        apart = np.abs(self.first - self.second) > 1
        if apart.any():
            at_x = segments.eta(self.first[apart], edge_x[apart])
            total[apart] += at_x - segments.eta(self.second[apart], edge_y[apart])
        return np.asarray(total / r[:, None])


def _mean_growth(k: FloatVector) -> FloatVector:
    """Return the average of e^(k t) under the density 2 (1 - t): 2 (e^k - 1 - k)/k^2."""
    clipped = np.clip(k, 1e-2, 300.0)
    exact = 2 * (np.expm1(clipped) - clipped) / clipped**2
    mean = np.where(k > 1e-2, exact, 1 + k / 3 + k * k / 6)
    return np.where(k < 300.0, mean, np.inf)
