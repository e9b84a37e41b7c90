"""Supremum of the Fisher information of the interpolated mechanism.

Idea     the L2 curve of a two-level design needs one number, M = sup_x I(x); this file bounds it from above
         by branch and bound.
Symbols  theta = slope of the log-probabilities, R = max theta - min theta; under sigma(eta(x)): m the mean of
         theta, mu_k its k-th central moment, I = mu_2. Scaled here so that theta lies in [0, 1] and R = 1.
Source   Guo et al. (ICML 2023), Definition (Fisher information), Lemmas 2 and 3, Theorem 2 and the appendix's
         algorithm, whose line search is replaced by a certificate.

Bounds used, all for R = 1:
- I' = mu_3, I'' = mu_4 - 3 I^2, I''' = mu_5 - 10 mu_3 I. As |theta - m| <= 1 and I <= 1/4: |I'| <= I, so
  log I is 1-Lipschitz, and |I'''| <= 3.5 I. Hence on [c - w, c + w] I <= I(c) + |I'(c)| w + max(I''(c), 0)
  w^2/2 + (3.5/6) I(c) e^w w^3.
- I <= (1 - m) m (Bhatia and Davis); m is non-decreasing, so beyond a point with m >= 1/2 nothing exceeds
  its m (1 - m). That bounds the range to search as Lemma 3 (vi) does, without asking for anadromic rows or
  for a unique largest theta. It also makes logit(m) 1-Lipschitz, which bounds I on wide cells.
"""

from __future__ import annotations

import math

import numpy as np

from quietbit._typing import FloatVector
from quietbit._validate import finite_real, require
from quietbit.design.table import Design
from quietbit.privacy.segments import Segments, mean_and_law

__all__ = [
    "FISHER_ACCURACY",
    "fisher_information",
    "fisher_supremum_upper",
    "fisher_upper_between",
    "line_supremum_upper",
]

FISHER_ACCURACY = 1e-6
_MOST_CELLS = 200_000  # then the bound so far is returned: still a bound, only less tight


def fisher_information(design: Design, x: float) -> float:
    """I(x), the expected squared derivative of log P(J|x) in x (Definition of Fisher information).

    At a kink between two segments the derivative from the right is meant. Outside [0, 1] the end segments
    continue.
    """
    x = finite_real(x, "x", above=-math.inf)
    segments = Segments.over(design, min(x, 0.0), max(x, 0.0) + 1.0)
    index = int(np.searchsorted(segments.left, x, side="right")) - 1
    eta = segments.start[index] + segments.slope[index] * (x - segments.left[index])
    mean, law = mean_and_law(eta, segments.slope[index])
    return float(law @ np.square(segments.slope[index] - mean))


def fisher_supremum_upper(design: Design) -> float:
    """M = sup over all real x of I(x), from above, to a relative accuracy of 1e-6 (Lemma 2).

    Requires two input levels; with more the log-probabilities have kinks and `renyi` has the constant.
    """
    levels = design.spec.input_levels
    require(levels == 2, "input_levels", levels, "2 for Theorem 2 (more levels: kappa_upper)")
    return line_supremum_upper(Segments.over(design, 0.0, 1.0))


def line_supremum_upper(segments: Segments) -> float:
    """The supremum over all real x of the Fisher information of a single segment's line, from above."""
    found = fisher_upper_between(segments.start[0], segments.slope[0], -math.inf, math.inf)
    # A slope off by e moves a standard deviation by at most e.
    return (math.sqrt(found) + segments.slope_error) ** 2 if found > 0 else 0.0


def fisher_upper_between(
    start: FloatVector, slope: FloatVector, low: float, high: float, accuracy: float = FISHER_ACCURACY
) -> float:
    """The supremum of Var(slope) under softmax(start + slope x) over x in [low, high], from above.

    Either end may be infinite.
    """
    width = float(np.ptp(slope))
    if width == 0:
        return 0.0
    theta = (slope - slope.min()) / width
    family = _Family(start - start.max(), theta)
    low, high, best = _search_range(family, low * width, high * width)
    bound = _branch_and_bound(family, low, high, best, accuracy / 2)
    noise = 2.0**-48 * (16 + float(np.abs(family.start).max()) + max(abs(low), abs(high)))
    return min(bound * (1 + noise), 0.25) * width * width * (1 + 2.0**-50)


class _Family:
    """sigma(start + theta y) with theta in [0, 1]: mean and central moments of theta at many y at once."""

    __slots__ = ("start", "theta")

    def __init__(self, start: FloatVector, theta: FloatVector) -> None:
        self.start, self.theta = start, theta

    def mean(self, y: float) -> float:
        return float(mean_and_law(self.start + self.theta * y, self.theta)[0])

    def moments(self, y: FloatVector) -> tuple[FloatVector, ...]:
        """m, 1 - m (accurate where m is close to 1), I, mu_3, mu_4 at every y."""
        mean, law = mean_and_law(self.start + y[:, None] * self.theta, self.theta[None, :])
        rest = law @ (1 - self.theta)
        deviation = self.theta - mean[:, None]
        law *= deviation
        law *= deviation
        second = law.sum(axis=1)
        law *= deviation
        third = law.sum(axis=1)
        return mean, rest, second, third, np.einsum("ij,ij->i", law, deviation)


def _search_range(family: _Family, low: float, high: float) -> tuple[float, float, float]:
    """A bounded range outside which nothing exceeds the value found, and that value."""
    centre = _middle(family, max(low, -1e300), min(high, 1e300))
    around = np.clip(centre + np.linspace(-8.0, 8.0, 33), low, high)
    best = float(family.moments(around)[2].max())
    ends = []
    for limit, sign in ((low, -1.0), (high, 1.0)):
        end, step = centre, 1.0
        while end != limit:
            mean, rest, second, _, _ = family.moments(np.array([end]))
            best = max(best, float(second[0]))
            beyond = float((mean if sign < 0 else rest)[0])
            if beyond <= 0.5 and beyond * (1 - beyond) <= best:
                break
            end = centre + sign * step if abs(limit - centre) > step else limit
            step *= 2
        ends.append(end)
    return ends[0], ends[1], best


def _middle(family: _Family, low: float, high: float) -> float:
    """About where m = 1/2, or the end of the range nearest to it."""
    step = 1.0
    left = right = min(max(0.0, low), high)
    while left > low and family.mean(left) > 0.5:
        left, step = max(low, left - step), 2 * step
    step = 1.0
    while right < high and family.mean(right) < 0.5:
        right, step = min(high, right + step), 2 * step
    while right - left > 0.5:
        middle = 0.5 * (left + right)
        if family.mean(middle) > 0.5:
            right = middle
        else:
            left = middle
    return 0.5 * (left + right)


def _branch_and_bound(family: _Family, low: float, high: float, best: float, accuracy: float) -> float:
    """An upper bound on I over [low, high] within ``accuracy`` of the largest value met."""
    cells = int(min(max(8, math.ceil(high - low)), 512))
    edges = np.linspace(low, high, cells + 1)
    centre, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges) * (1 + 1e-12)
    settled, spent = best, 0
    while True:
        spent += len(centre)
        mean, rest, value, third, fourth = family.moments(centre)
        best = max(best, float(value.max()))
        # A value that underflowed still counts, and a cell too wide says nothing by its centre.
        growth = np.where(half < 300.0, np.exp(np.minimum(half, 300.0)), np.inf) * np.maximum(value, 1e-300)
        upper = value + np.abs(third) * half + np.maximum(fourth - 3 * value * value, 0) * half**2 / 2
        upper = np.minimum(upper + (3.5 / 6) * growth * half**3, growth)
        with np.errstate(divide="ignore"):
            slack = np.maximum(np.abs(np.log(mean) - np.log(rest)) - half, 0.0)
        shrunk = np.exp(-slack)
        upper = np.minimum(upper, shrunk / np.square(1 + shrunk))
        open_ = upper > best * (1 + accuracy)
        settled = max(settled, float(upper[~open_].max(initial=0.0)))
        if not open_.any():
            return max(settled, best)
        if spent > _MOST_CELLS:
            return max(settled, float(upper.max()))
        half = np.repeat(half[open_] / 2, 2)
        centre = np.repeat(centre[open_], 2)
        centre[0::2] -= half[0::2]
        centre[1::2] += half[1::2]
