"""Cells of pairs (x, x') in two different segments, and the largest F = D_alpha(x || x')/(x - x')^2 in them.

Idea     as `same_cells`, where the chord's direction v now moves with the pair; near a kink everything is
         expanded around the kink itself.
Symbols  as in `chord`; slope_x, slope_x' of the two segments, spans R_x, R_x'; D_x = range(slope_x - v), D_x'
         likewise: zero where the kinks are; a bar: the largest over the cell.
Source   (*) of `chord` and its derivatives; Guo et al. (ICML 2023), proof of Lemma 2, for those of D_alpha.

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
from typing import Any, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.privacy.chord import ULP, Indices, Problem, chord, dot, grown_by, simple_bound
from quietbit.privacy.segments import Segments, log_softmax

__all__ = ["CrossCells"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class CrossCells:
    """Pairs in two segments: x in x +- dx of segment ``first``, x' in y +- dy of segment ``second``."""

    first: Indices
    second: Indices
    x: FloatVector
    dx: FloatVector
    y: FloatVector
    dy: FloatVector

    def __len__(self) -> int:
        """How many cells."""
        return len(self.first)

    def take(self, chosen: Any) -> CrossCells:
        """The cells at an index or mask."""
        return CrossCells(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def crude(self, problem: Problem) -> FloatVector:
        """A bound that costs little: the simple ones, and the kink's for neighbouring segments."""
        nearest = np.abs(self.x - self.y) - self.dx - self.dy
        low, high = np.minimum(self.first, self.second), np.maximum(self.first, self.second)
        span = problem.hull[low, high] if len(problem.hull) else np.full(len(low), problem.span.max())
        bound = simple_bound(problem, span, np.maximum(nearest, 0.0))
        touching = high - low == 1
        if touching.any():
            bound[touching] = np.minimum(bound[touching], self.take(touching)._kink(problem))
        return bound

    def _kink(self, problem: Problem) -> FloatVector:
        """The bound around the kink, for cells of neighbouring segments."""
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

    def halves(self, by_x: Any) -> CrossCells:
        """Every cell cut in two, across x where the mask says so, else across x'."""
        dx, dy = np.where(by_x, self.dx / 2, self.dx), np.where(by_x, self.dy, self.dy / 2)
        sx, sy = np.where(by_x, dx, 0.0), np.where(by_x, 0.0, dy)
        lower = (self.first, self.second, self.x - sx, dx, self.y - sy, dy)
        upper = (self.first, self.second, self.x + sx, dx, self.y + sy, dy)
        return CrossCells(*(np.concatenate(pair) for pair in zip(lower, upper, strict=True)))

    def bounds(self, problem: Problem) -> tuple[FloatVector, FloatVector, Any]:
        """F at the centre of each cell, a bound on the cell, and whether to split it across x."""
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
        fits = around < 0.9 * r  # cells too wide for their distance are only cut
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
        """(eta(x) - eta(x'))/r, summed piece by piece so that nothing cancels near a kink."""
        upward = self.first > self.second
        edge_x = np.where(upward, segments.left[self.first], segments.right[self.first])
        edge_y = np.where(upward, segments.right[self.second], segments.left[self.second])
        total = tau_x * (self.x - edge_x)[:, None] + tau_y * (edge_y - self.y)[:, None]
        apart = np.abs(self.first - self.second) > 1
        if apart.any():
            at_x = segments.eta(self.first[apart], edge_x[apart])
            total[apart] += at_x - segments.eta(self.second[apart], edge_y[apart])
        return np.asarray(total / r[:, None])
