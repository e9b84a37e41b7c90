"""Supremum of the Fisher information of a two-level interpolated design.

Idea     Theorem 2 needs one number, M = sup I(x) over all real x. Branch and bound finds it: an
         interval of the line has the value at its centre and a bound on all of it.
Symbols  theta: slope of the log-probabilities, scaled to [0, 1]; y: place on the line; under
         softmax(start + theta y): m the mean of theta, mu_k its k-th central moment, I = mu_2.
Source   Guo et al. (ICML 2023), Definition 2 (Fisher information), Lemmas 2 and 3, and the
         appendix's algorithm, its line search replaced by a certificate.
         docs/theory/interpolated.md proves every bound used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np

from quietbit._typing import FloatVector
from quietbit.design.table import Design
from quietbit.errors import require
from quietbit.privacy.branch import Cells, supremum_upper
from quietbit.privacy.divergence import Segments, mean_and_law

__all__ = [
    "MOST_CELLS",
    "fisher_supremum_upper",
    "grown_by",
    "line_supremum_upper",
    "variance_supremum_upper",
]

FISHER_ACCURACY = 1e-6
MOST_CELLS = 200_000  # then the best bound so far is returned: valid, only less tight


@lru_cache(maxsize=128)
def fisher_supremum_upper(design: Design) -> float:
    """Return M = sup over all real x of I(x) of a two-level design (Lemma 2).

    The answer is an upper bound, at most a part in a million above M.
    """
    levels = design.spec.input_levels
    require(levels == 2, "input_levels", levels, "2 for Theorem 2", "use RenyiConstant")
    return line_supremum_upper(Segments.over(design, 0.0, 1.0))


def line_supremum_upper(segments: Segments) -> float:
    """Bound the Fisher information of a single segment's line over all real x, from above."""
    variance = variance_supremum_upper(segments.start[0], segments.slope[0])
    if variance == 0:
        return 0.0
    # A slope off by e moves a standard deviation by at most e.
    return (math.sqrt(variance) + segments.slope_error) ** 2


def variance_supremum_upper(start: FloatVector, slope: FloatVector) -> float:
    """Bound Var(slope) under softmax(start + slope x) over all real x, from above."""
    width = float(np.ptp(slope))
    if width == 0:
        return 0.0
    family = _Family(start - start.max(), (slope - slope.min()) / width)
    low, high, best = _search_range(family)
    count = int(min(max(8, math.ceil(high - low)), 512))
    edges = np.linspace(low, high, 1 + count)
    centres = 0.5 * (edges[1:] + edges[:-1])
    cells = _Intervals(centres, 0.5 * np.diff(edges) * (1 + 1e-12))
    bound = supremum_upper(family, (cells,), FISHER_ACCURACY / 2, MOST_CELLS, best=best)
    largest = 16 + float(np.abs(family.start).max()) + max(abs(low), abs(high))
    noise = 2.0**-48 * largest
    return min(bound * (1 + noise), 0.25) * width * width * (1 + 2.0**-50)


def grown_by(value: FloatVector, exponent: FloatVector) -> FloatVector:
    """Bound value e^exponent from above; infinite where the exponent is too large to be useful."""
    factor = np.where(exponent < 300.0, np.exp(np.minimum(exponent, 300.0)), np.inf)
    return np.asarray(np.maximum(value, 1e-300) * factor)  # a value that underflowed still counts


class _Moments(NamedTuple):
    """Mean and central moments of theta; ``rest``: 1 - mean, accurate where it is small."""

    mean: FloatVector
    rest: FloatVector
    second: FloatVector
    third: FloatVector
    fourth: FloatVector


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Family:
    """The laws softmax(start + theta y) with theta in [0, 1]."""

    start: FloatVector
    theta: FloatVector

    def mean(self, y: float) -> float:
        """Return the mean of theta, which grows with y."""
        return float(mean_and_law(self.start + self.theta * y, self.theta)[0])

    def moments(self, y: FloatVector) -> _Moments:
        """Return the moments of theta at every y."""
        mean, law = mean_and_law(self.start + y[:, None] * self.theta, self.theta[None, :])
        rest = law @ (1 - self.theta)
        deviation = self.theta - mean[:, None]
        law *= deviation
        law *= deviation
        second = law.sum(axis=1)
        law *= deviation
        third = law.sum(axis=1)
        fourth = np.einsum("ij,ij->i", law, deviation)
        return _Moments(mean, rest, second, third, fourth)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Intervals(Cells[_Family]):
    """Intervals of the line, y in centre +- half."""

    centre: FloatVector
    half: FloatVector

    def bounds(self, problem: _Family) -> tuple[FloatVector, FloatVector, Any]:
        """Return I at the centre, and a bound on the interval."""
        half = self.half
        mean, rest, value, third, fourth = problem.moments(self.centre)
        growth = grown_by(value, half)
        cumulant = np.maximum(fourth - 3 * value * value, 0)
        upper = value + np.abs(third) * half + cumulant * half**2 / 2
        upper = np.minimum(upper + (3.5 / 6) * growth * half**3, growth)
        with np.errstate(divide="ignore"):
            slack = np.maximum(np.abs(np.log(mean) - np.log(rest)) - half, 0.0)
        shrunk = np.exp(-slack)
        return value, np.minimum(upper, shrunk / np.square(1 + shrunk)), False

    def halves(self, split: Any) -> _Intervals:
        """Split every interval at its centre."""
        half = self.half / 2
        return self.joined((self.centre - half, half), (self.centre + half, half))


def _search_range(family: _Family) -> tuple[float, float, float]:
    """Return two ends outside which I is smaller than a value that is attained, and that value."""
    centre = _middle(family)
    best = float(family.moments(centre + np.linspace(-8.0, 8.0, 33)).second.max())
    ends = []
    for sign in (-1.0, 1.0):
        step = 0.0
        while True:
            moments = family.moments(np.array([centre + sign * step]))
            best = max(best, float(moments.second[0]))
            tail = float((moments.mean if sign < 0 else moments.rest)[0])
            if tail <= 0.5 and tail * (1 - tail) <= best:
                break
            step = 2 * step or 1.0
        ends.append(centre + sign * step)
    return ends[0], ends[1], best


def _middle(family: _Family) -> float:
    """Return about where the mean of theta is 1/2."""
    left = right = 0.0
    step = 1.0
    while family.mean(left) > 0.5:
        left -= step
        step *= 2
    step = 1.0
    while family.mean(right) < 0.5:
        right += step
        step *= 2
    while right - left > 0.5:
        middle = 0.5 * (left + right)
        if family.mean(middle) > 0.5:
            right = middle
        else:
            left = middle
    return 0.5 * (left + right)
