"""Cells of pairs (x, x') that lie in one segment, and the largest F = D_alpha(x || x')/(x - x')^2 in them.

Idea     branch and bound needs, for a cell of pairs, one value inside it and one bound on all of it;
         `renyi` splits cells until the two agree. Within a segment F averages Fisher informations.
Symbols  as in `chord`; y_s = c +- (s - pivot) r, where c is x (pivot 1) or x' (pivot 0); I, mu_3: variance
         and third central moment of the slope.
Source   (*) of `chord`.

Here v = +-slope is fixed and p_s = softmax(eta(y_s)), so F averages (alpha/2) I(y_s). Moving c by dc and r by
dr moves y_s by at most D = dc + max(pivot, alpha - pivot) dr, and I'' <= R^2 I, so on a cell
F <= F_0 + |F_c| dc + |F_r| dr + R^2 D^2/2 F_0 e^(R D). It holds at r = 0 too, where F_0 = (alpha/2) I(c),
F_c = (alpha/2) mu_3 and F_r = +-((alpha+1)/3 - pivot) F_c: cells may touch the diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from quietbit._typing import FloatVector
from quietbit.privacy.chord import ULP, Indices, Problem, chord, dot, grown_by, simple_bound
from quietbit.privacy.segments import log_softmax

__all__ = ["SameCells"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class SameCells:
    """Pairs within one segment: c in c +- dc, r in [near, far], x - x' of the given sign."""

    index: Indices
    sign: FloatVector
    pivot: FloatVector
    c: FloatVector
    dc: FloatVector
    near: FloatVector
    far: FloatVector

    def __len__(self) -> int:
        """How many cells."""
        return len(self.index)

    def take(self, chosen: Any) -> SameCells:
        """The cells at an index or mask."""
        return SameCells(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def crude(self, problem: Problem) -> FloatVector:
        """A bound that costs nothing; minus infinity for a cell without a possible pair."""
        left, right = problem.segments.left[self.index], problem.segments.right[self.index]
        ahead = np.where(self.sign > 0, self.c - left, right - self.c) + self.dc
        possible = (self.near <= ahead * (1 + 1e-9)) | (self.pivot == 0)
        return np.where(possible, simple_bound(problem, problem.span[self.index], self.near), -np.inf)

    def halves(self, by_r: Any) -> SameCells:
        """Every cell cut in two, across r where the mask says so, else across c."""
        middle = 0.5 * (self.near + self.far)
        dc = np.where(by_r, self.dc, 0.5 * self.dc)
        shift = np.where(by_r, 0.0, dc)
        fixed = (self.index, self.sign, self.pivot)
        first = (*fixed, self.c - shift, dc, self.near, np.where(by_r, middle, self.far))
        second = (*fixed, self.c + shift, dc, np.where(by_r, middle, self.near), self.far)
        return SameCells(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))

    def bounds(self, problem: Problem) -> tuple[FloatVector, FloatVector, Any]:
        """F at a pair of each cell, a bound on the cell, and whether to split it across r.

        The value is minus infinity where the pair looked at is not a possible one.
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
