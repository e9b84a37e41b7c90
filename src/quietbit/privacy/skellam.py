"""The Rényi curve of integer vectors plus Skellam noise.

Idea     the published bound holds at integer orders; (alpha - 1) D_alpha is convex in alpha and vanishes at
         1, so chords between integer orders hold at all real ones.
Symbols  D1, D2: L1 and L2 distance of two neighbouring integer vectors; v: variance of the noise (two
         Poissons of mean v/2 each, independent per coordinate).
Source   Agarwal, Kairouz, Liu (NeurIPS 2021), Theorem 3.5: for integer alpha >= 2 eps(alpha) <= alpha
         D2^2/(2v) + min(((2 alpha - 1) D2^2 + 6 D1)/(4 v^2), 3 D1/(2v)).

Wrapping the sum modulo 2^b afterwards is post-processing and costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from quietbit._validate import finite_real, require
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import FunctionCurve

__all__ = ["skellam_curve", "skellam_rdp_upper"]


def skellam_curve(l1_sensitivity: float, l2_sensitivity: float, variance: float) -> FunctionCurve:
    """The curve of one release; sensitivities are those of the rounded integer vectors, for one adjacency."""
    l1 = finite_real(l1_sensitivity, "l1_sensitivity")
    l2 = finite_real(l2_sensitivity, "l2_sensitivity")
    require(l2 <= l1 * (1 + 1e-9), "l2_sensitivity", l2, f"at most the L1 sensitivity {l1:g}")
    return FunctionCurve(_Bound(l1, l2, finite_real(variance, "variance")), f"Skellam, variance {variance:g}")


def skellam_rdp_upper(alpha: float, l1_sensitivity: float, l2_sensitivity: float, variance: float) -> float:
    """The bound at a real order above 1, by the chord between the two integer orders around it."""
    require(1 < alpha < math.inf, "alpha", alpha, "a finite number above 1")
    below = math.floor(alpha)
    part = alpha - below
    moment = (1 - part) * (below - 1) * _at_integer(below, l1_sensitivity, l2_sensitivity, variance)
    if part > 0:
        moment += part * below * _at_integer(below + 1, l1_sensitivity, l2_sensitivity, variance)
    return round_up(moment / (alpha - 1))


def _at_integer(alpha: int, l1: float, l2: float, variance: float) -> float:
    square = l2 * l2
    fine = ((2 * alpha - 1) * square + 6 * l1) / (4 * variance * variance)
    return alpha * square / (2 * variance) + min(fine, 3 * l1 / (2 * variance))


@final
@dataclass(frozen=True, slots=True)
class _Bound:
    l1: float
    l2: float
    variance: float

    def __call__(self, alpha: float) -> float:
        return skellam_rdp_upper(alpha, self.l1, self.l2, self.variance)
