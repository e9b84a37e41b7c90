r"""Cells of pairs (x, x'), and the largest Rényi divergence per squared distance in them.

Idea     two inputs span a straight line of log-probabilities, the chord, and a divergence is an average of
         variances along it. Branch and bound needs, for a cell of pairs, one value inside it and one bound on all of
         it; `renyi` splits cells until the two agree. Pairs lie in one segment, where F averages Fisher informations,
         or in two, where the chord's direction moves with the pair and near a kink all is expanded around the kink.
Symbols  r = |x - x'|; v = (eta(x) - eta(x'))/r, the chord's direction; p_s = softmax((1-s) eta(x') +
         s eta(x)), so p_0, p_1 are the two laws and q = p_alpha; F = D_alpha(x || x')/r^2;
         R_i = max slope_i - min slope_i. One segment: y_s = c +- (s - pivot) r, where c is x (pivot 1) or x' (pivot 0);
         I, mu_3: variance and third central moment of the slope. Two segments: slope_x, slope_x', spans R_x, R_x';
         D_x = range(slope_x - v), D_x' likewise: zero where the kinks are; a bar: the largest over the cell.
Source   Guo et al. (ICML 2023), proof of Lemma 2, where v is the same for all pairs.

The chord identity.
K(s) = log sum_j p_0^(1-s) p_1^s is convex with K(0) = K(1) = 0, K'' = r^2 Var_{p_s}(v) and D_alpha =
K(alpha)/(alpha-1). Solving for K(alpha), with triangular weights w on [0, alpha] (peak at s = 1, total 1),

    F = (alpha/2) \int w(s) Var_{p_s}(v) ds.                                                        (*)

Hence F <= alpha max_i R_i^2/8 (a variance is at most a quarter of the squared range, and v averages slopes),
and F <= L/r because D_alpha <= D_inf <= L r. Under w the mean of s is (alpha+1)/3.

Tilting: moving a law along e^(tf) changes the variance of a fixed vector at a rate within +-(max f - min f)
of itself, as the rate is a covariance with f. In general, for laws with exponent E(t) and a vector v(t),
d/dt Var(v) = 2 Cov(v, v') + k3(E', v, v) and
d2/dt2 Var(v) = 2 Var(v') + 2 Cov(v, v'') + 4 k3(E', v, v') + k3(E'', v, v) + k4(E', E', v, v),
with joint cumulants |k3(f, v, w)| <= range(f) sd(v) sd(w) and k4(f, f, v, v) <= range(f)^2 Var(v).

One segment.
Here v = +-slope is fixed and p_s = softmax(eta(y_s)), so F averages (alpha/2) I(y_s). Moving c by dc and r by
dr moves y_s by at most D = dc + max(pivot, alpha - pivot) dr, and I'' <= R^2 I, so on a cell
F <= F_0 + |F_c| dc + |F_r| dr + R^2 D^2/2 F_0 e^(R D). It holds at r = 0 too, where F_0 = (alpha/2) I(c),
F_c = (alpha/2) mu_3 and F_r = +-((alpha+1)/3 - pivot) F_c: cells may touch the diagonal.

Two segments.
First derivatives. With Phi = D_alpha: Phi_x = alpha/(alpha-1) (q - p_1).slope_x and Phi_x' = (p_0 -
q).slope_x', hence those of F = Phi/r^2.

Second order, along a straight path in the cell. r (v - v_0) = (slope_x - v_0) dx - (slope_x' - v_0) dx'
exactly, so range(v - v_0) <= d = (D_x dx + D_x' dx')/r_min, range(v') <= b = ((D_x + d) dx + (D_x' + d)
dx')/r_min and range(v'') <= 2 b (dx + dx')/r_min. The exponent of p_s moves by a range of at most t = alpha
R_x dx + max(1, alpha-1) R_x' dx', linearly. With N(v)^2 = (alpha/2) avg Var(v), so that N^2 = F for the
chord, N <= (N_0 + sqrt(alpha/2) d/2) e^(t/2) on the cell and N(w) <= sqrt(alpha/2) range(w)/2, the
remainder is at most N(v')^2 + N N(v'') + 2 t N N(v') + t^2 N^2/2.

First order, for wide cells: |(q - p_1).slope_x| <= R_x, and <= (alpha-1) range(r v) R_x/4 as a covariance
integrated over tilts; likewise for x'; divided by r_min^2.

Around the kink g of neighbouring segments v = a slope_x + (1-a) slope_x', a = |x - g|/r, and p_s is
softmax(eta(g)) tilted by r e_s, e_s = +-(s a slope_x + (s-1)(1-a) slope_x'), of range at most max(1, s) R,
R = max(R_x, R_x'). To first order in r, F/(alpha/2) is Var_g(v) + r k3(e_avg, v, v): for each r a cubic in
a, at most its largest Bernstein coefficient on [0, 1], which is linear in r. The rest is at most r^2 R^2/2
avg max(1, s)^2 Var_g(v) e^(alpha r R), avg max(1, s)^2 <= (alpha^2 + alpha + 1)/6 + 1/alpha. Alternatively
Var_g(v), which is convex in a, times the average of e^(max(1, s) r R).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.privacy.branch import Cells
from quietbit.privacy.divergence import Segments, log_softmax, mean_and_law

__all__ = ["MOST_SEGMENTS", "CrossCells", "Problem", "SameCells", "chord", "grown_by", "simple_bound"]

MOST_SEGMENTS = 256  # beyond, there are too many pairs of segments
ULP = 2.0**-50
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One order over one set of segments, with precomputed inputs of the cell bounds."""

    segments: Segments
    alpha: float
    lipschitz: float
    span: FloatVector
    kinks: FloatMatrix  # per kink, l below and u above: Var l, Cov, Var u, k3(lll), k3(llu), k3(luu), k3(uuu)
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
        span, count = segments.span, len(segments.left)
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
    p_0, scale = p_0 / p_0.sum(axis=1)[:, None], alpha * np.abs(u).max(axis=1)
    logs, laws = [], []
    for s in (1.0, alpha):
        exponent = law + s * u
        top = exponent.max(axis=1)
        weights = np.exp(exponent - top[:, None])
        mass = weights.sum(axis=1)
        weights /= mass[:, None]
        logs.append(top + np.log(mass))
        laws.append(weights)
    phi = (logs[1] - alpha * logs[0]) / (alpha - 1)
    # A term's exponent z = log q_j + log-sum errs by an ulp of z; averaged over q: its entropy and the sum.
    error = ULP * (1 + alpha) * (16 + alpha * r * span) / (alpha - 1) / (r * r)
    small = scale < 0.5
    if small.any():
        # u has mean 0, so log E e^(su) = log1p(E[e^(su) - 1 - su]): nothing of first order to cancel.
        first, second = (np.log1p(dot(p_0[small], _second_order(s * u[small]))) for s in (1.0, alpha))
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

    index: Indices
    sign: FloatVector
    pivot: FloatVector
    c: FloatVector
    dc: FloatVector
    near: FloatVector
    far: FloatVector

    def crude(self, problem: Problem) -> FloatVector:
        """Return a bound that needs no evaluation; minus infinity for a cell without a possible pair."""
        left, right = problem.segments.left[self.index], problem.segments.right[self.index]
        ahead = np.where(self.sign > 0, self.c - left, right - self.c) + self.dc
        possible = (self.near <= ahead * (1 + 1e-9)) | (self.pivot == 0)
        return np.where(possible, simple_bound(problem, problem.span[self.index], self.near), -np.inf)

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

        The value is minus infinity where that pair is not possible.
        """
        alpha, segments = problem.alpha, problem.segments
        bottom = self.near == 0
        r = np.where(bottom, 0.0, 0.5 * (self.near + self.far))
        dr = np.where(bottom, self.far, 0.5 * (self.far - self.near))
        slope, span = segments.slope[self.index], problem.span[self.index]
        other = self.c - self.sign * self.pivot * r  # x' = y_0
        law = log_softmax(segments.eta(self.index, other))
        safe = np.where(bottom, 1.0, r)
        value, error, p_0, p_1, q = chord(law, self.sign[:, None] * slope, safe, alpha, span)
        centred = slope - dot(p_0, slope)[:, None]
        m_1, m_q = dot(p_1, centred), dot(q, centred)  # and m_0 = 0
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
        return np.where(inside, value, -np.inf), upper, stretch * (self.far - self.near) >= 2 * self.dc


@final
@dataclass(frozen=True, slots=True, eq=False)
class CrossCells(Cells[Problem]):
    """Pairs in two segments: x in x +- dx of segment ``first``, x' in y +- dy of segment ``second``."""

    first: Indices
    second: Indices
    x: FloatVector
    dx: FloatVector
    y: FloatVector
    dy: FloatVector

    def crude(self, problem: Problem) -> FloatVector:
        """Return a cheap bound: the simple ones, and the kink's for neighbouring segments."""
        nearest = np.abs(self.x - self.y) - self.dx - self.dy
        low, high = np.minimum(self.first, self.second), np.maximum(self.first, self.second)
        span = problem.hull[low, high] if len(problem.hull) else np.full(len(low), problem.span.max())
        bound = simple_bound(problem, span, np.maximum(nearest, 0.0))
        touching = high - low == 1
        if touching.any():
            bound[touching] = np.minimum(bound[touching], self.take(touching)._kink(problem))
        return bound

    def _kink(self, problem: Problem) -> FloatVector:
        """Return the bound around the kink, for cells of neighbouring segments."""
        segments, alpha = problem.segments, problem.alpha
        upward = self.first > self.second
        g = np.where(upward, segments.left[self.first], segments.right[self.first])
        moments = problem.kinks[np.minimum(self.first, self.second)]
        # The role of x is the upper segment's when x > x', the lower one's otherwise.
        moments = np.where(upward[:, None], moments, moments[:, [2, 1, 0, 6, 5, 4, 3]])
        var_y, both, var_x, yyy, yyx, yxx, xxx = moments.T
        least_x = np.maximum(np.abs(self.x - g) - self.dx, 0.0)
        least_y = np.maximum(np.abs(self.y - g) - self.dy, 0.0)
        most_x, most_y = np.abs(self.x - g) + self.dx, np.abs(self.y - g) + self.dy
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
        expanded = np.max([at + np.maximum(step * rate, 0.0) for at, rate in zip(level, drift, strict=True)], axis=0)
        spread = (alpha * alpha + alpha + 1) / 6 + 1 / alpha
        expanded += 0.5 * z * z * spread * grown_by(np.maximum(var_x, var_y), alpha * z)
        return np.asarray(alpha / 2 * np.minimum(tilted, expanded) * (1 + 16 * segments.noise))

    def halves(self, split: Any) -> CrossCells:
        """Split every cell, across x where the mask is set, else across x'."""
        dx, dy = np.where(split, self.dx / 2, self.dx), np.where(split, self.dy, self.dy / 2)
        sx, sy = np.where(split, dx, 0.0), np.where(split, 0.0, dy)
        lower = (self.first, self.second, self.x - sx, dx, self.y - sy, dy)
        upper = (self.first, self.second, self.x + sx, dx, self.y + sy, dy)
        return self.joined(lower, upper)

    def bounds(self, problem: Problem) -> tuple[FloatVector, FloatVector, Any]:
        """Return F at the centre of each cell, a bound on the cell, and whether to split it across x."""
        alpha, segments = problem.alpha, problem.segments
        tau_x, tau_y = segments.slope[self.first], segments.slope[self.second]
        r = np.abs(self.x - self.y)
        sign = np.where(self.x > self.y, 1.0, -1.0)
        v = self._direction(segments, tau_x, tau_y, r)
        law = log_softmax(segments.eta(self.second, self.y))
        v_span = np.ptp(v, axis=1)
        value, error, p_0, p_1, q = chord(law, v, r, alpha, v_span)
        by_x = alpha / (alpha - 1) * (dot(q, tau_x) - dot(p_1, tau_x))
        by_y = dot(p_0, tau_y) - dot(q, tau_y)
        span_x, span_y = problem.span[self.first], problem.span[self.second]
        move_x, move_y = span_x * self.dx, span_y * self.dy
        grown, around = value + error, self.dx + self.dy
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
        split = (apart_x / nearest + alpha * span_x) * self.dx >= (apart_y / nearest + alpha * span_y) * self.dy
        split = np.where(fits, split, self.dx >= self.dy)
        return value, np.minimum(upper, self.crude(problem)), split

    def _direction(self, segments: Segments, tau_x: FloatMatrix, tau_y: FloatMatrix, r: FloatVector) -> FloatMatrix:
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
