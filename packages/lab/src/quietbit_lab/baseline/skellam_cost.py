"""The cost of Skellam noise: on integer vectors, and between real vectors rounded at random.

Idea     on integer vectors the published theorem. Rounded coordinate by coordinate, the law at y =
         k + p is the mixture (1 - p) S_k + p S_{k+1} of noise around two neighbours: divergences
         add up over coordinates, and one at distance t costs at most c(alpha) t^2, wherever the two
         points lie. Chords between integer orders hold at real ones, since (alpha - 1) D_alpha is
         convex. Wrapping a sum modulo 2^b is post-processing.
Symbols  v = variance of the noise (two Poissons of mean v/2 each, independent per coordinate); D1,
         D2: L1 and L2 distance of two integer neighbours, in steps of the grid; S_k(z) = S(z - k),
         S(z) = e^-v I_z(v); n = alpha - 1; kappa = sup_z log(S(z)^2 / (S(z-1) S(z+1))); g(p) = E
         e^(kappa J (J-1)/2), J binomial (alpha, p); tau: the supremum over p in (0, 1] of log g(p)
         / (kappa alpha n p^2 / 2).
Source   Agarwal, Kairouz, Liu (NeurIPS 2021), Theorem 3.5, for integer alpha >= 2: eps(alpha) <=
         alpha D2^2/(2v) + min(((2 alpha - 1) D2^2 + 6 D1)/(4 v^2), 3 D1/(2v)).
         packages/lab/docs/rounded-skellam.md: c(alpha) = (kappa alpha / 2) (tau (1 + kappa n/8 +
         (kappa n/4)^2) + kappa n/4).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, i0e, i1e, logsumexp

from quietbit._typing import FloatVector
from quietbit.errors import check_real, require
from quietbit.privacy.cost import Cost
from quietbit.privacy.orders import chord_upper
from quietbit.privacy.release import Formula
from quietbit.privacy.rounding import round_up

__all__ = [
    "curvature_upper",
    "rounded_skellam_cost",
    "rounded_skellam_rdp_upper",
    "skellam_cost",
    "skellam_rdp_upper",
]

MOST_ORDERS = 4096  # above it nothing is claimed,
STEEPEST = 1.0  # nor where kappa (alpha - 1) is above this: such noise is too small
DENSE = 64  # every integer order below it
RUNGS = 8  # orders per doubling above it
FLAT = 0.03  # below it, in units where log g = p^2, (g - 1)/p^2 has hardly moved
KNOT = 0.03  # between knots, in log p: a chord is at most 4.5e-4 above a parabola
SERIES_FROM = 4.0
MARGIN = 1e-9  # far above the rounding of a sum of 4096 positive terms


def skellam_cost(l1_sensitivity: float, l2_sensitivity: float, variance: float) -> Cost:
    """Return the curve of one release, by sensitivities of the rounded integer vectors."""
    l1 = check_real(l1_sensitivity, "l1_sensitivity")
    l2 = check_real(l2_sensitivity, "l2_sensitivity")
    require(l2 <= l1 * (1 + 1e-9), "l2_sensitivity", l2, f"at most the L1 sensitivity {l1:g}")
    bound = Formula(skellam_rdp_upper, l1, l2, check_real(variance, "variance"))
    return Cost.renyi(bound)


def skellam_rdp_upper(
    alpha: float, l1_sensitivity: float, l2_sensitivity: float, variance: float
) -> float:
    """Return the bound at a real order above 1, by the chord between integer orders."""
    require(1 < alpha < math.inf, "alpha", alpha, "a finite number above 1")
    below = math.floor(alpha)

    def at_integer(order: float) -> float:
        correction = ((2 * order - 1) * l2_sensitivity**2 + 6 * l1_sensitivity) / (
            4 * variance * variance
        )
        return order * l2_sensitivity**2 / (2 * variance) + min(
            correction, 3 * l1_sensitivity / (2 * variance)
        )

    return chord_upper(at_integer, alpha, below, below + 1)


def curvature_upper(variance: float) -> float:
    """Return kappa = 2 log(I_0(v)/I_1(v)), rounded up: growth of log-ratios; about 1/v."""
    v = check_real(variance, "variance")
    if v < SERIES_FROM:
        return round_up(2 * math.log(float(i0e(v) / i1e(v))))
    return round_up(-2 * math.log1p(-(1 / (2 * v) + 1 / (8 * v * v) + 1 / (4 * v**3))))


def rounded_skellam_cost(distance: float, variance: float) -> Cost:
    """Return the curve of one release between vectors within L2 ``distance`` grid steps."""
    bound = Formula(
        rounded_skellam_rdp_upper,
        check_real(distance, "distance"),
        check_real(variance, "variance"),
    )
    return Cost.renyi(bound)


def rounded_skellam_rdp_upper(alpha: float, distance: float, variance: float) -> float:
    """Return c(alpha) distance^2 at a real order above 1, by chords; or infinity."""
    require(1 < alpha < math.inf, "alpha", alpha, "a finite number above 1")
    if alpha > MOST_ORDERS:
        return math.inf
    constant = chord_upper(
        lambda order: _constant_upper(int(order), variance), alpha, *_around(alpha)
    )
    return round_up(constant * distance * distance)


def _around(alpha: float) -> tuple[int, int]:
    """Return integer orders around alpha: neighbours, and from 64 on rungs of a ladder."""
    if alpha < DENSE:
        return math.floor(alpha), math.floor(alpha) + 1
    step = math.floor(RUNGS * math.log2(alpha))
    orders = [math.floor(2 ** (rung / RUNGS)) for rung in range(step - 1, step + 3)]
    above = next(order for order in orders if order > alpha)
    return orders[orders.index(above) - 1], above


@lru_cache(maxsize=1 << 14)
def _constant_upper(alpha: int, variance: float) -> float:
    """Return c(alpha) from above, at an integer order of at least 2."""
    kappa = curvature_upper(variance)
    n = alpha - 1
    if kappa * n > STEEPEST:
        return math.inf
    bend = kappa * n
    return (
        kappa
        * alpha
        / 2
        * (_tau_upper(alpha, kappa) * (1 + bend / 8 + (bend / 4) ** 2) + bend / 4)
        * (1 + MARGIN)
    )


def _tau_upper(alpha: int, kappa: float) -> float:
    """Bound the supremum over p in (0, 1] of log g(p) / (kappa alpha (alpha-1) p^2 / 2)."""
    half = kappa * alpha * (alpha - 1) / 2
    first = min(1.0, FLAT / math.sqrt(half))
    knots = np.linspace(math.log(first), 0.0, 1 + math.ceil(-math.log(first) / KNOT))
    excess = _log_excess(alpha, kappa, knots)
    best = math.exp(float(excess[0]) - 2 * float(knots[0]))
    if len(knots) > 1:
        level = np.logaddexp(0.0, excess)
        width = float(knots[1] - knots[0])
        rise = np.diff(level)
        # (level + rise u) e^(-2 width u) is largest where its derivative vanishes, or at an end.
        u = np.clip(1 / (2 * width) - level[:-1] / rise, 0.0, 1.0)
        best = max(
            best, float(((level[:-1] + rise * u) * np.exp(-2 * (knots[:-1] + width * u))).max())
        )
    return best / half


def _log_excess(alpha: int, kappa: float, log_p: FloatVector) -> FloatVector:
    """Return log(g(p) - 1) at every p: a sum over J = 2 .. alpha of positive terms."""
    j = np.arange(2, alpha + 1, dtype=np.float64)
    grown = kappa * j * (j - 1) / 2
    weight = (
        gammaln(alpha + 1.0)
        - gammaln(j + 1)
        - gammaln(alpha - j + 1)
        + grown
        + np.log(-np.expm1(-grown))
    )
    with np.errstate(divide="ignore"):
        log_rest = np.log(-np.expm1(log_p))
    excess = np.empty_like(log_p)
    rows = 1 + (1 << 16) // j.size  # at a time: limits memory only
    for start in range(0, log_p.size, rows):
        part = slice(start, start + rows)
        terms = weight + log_p[part, None] * j
        terms[:, :-1] += log_rest[part, None] * (
            alpha - j[:-1]
        )  # the last has no factor 1 - p, which may be zero
        excess[part] = logsumexp(terms, axis=1)
    return excess
