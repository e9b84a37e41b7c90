"""From Rényi divergences, or a Gaussian pair, to epsilon at a delta.

Idea     every order gives a valid epsilon; report the smallest found, evaluated at its own order. A
         poor search makes the bound looser, never wrong. A Gaussian's privacy profile is known in
         closed form: invert it.
Symbols  z = alpha - 1; ell = log(1/delta); rho(alpha): upper bound on the Rényi divergence of order
         alpha; mu = sensitivity / standard deviation of a Gaussian, whose curve alpha mu^2/2 has
         slope mu^2/2; Phi, phi: the normal distribution and density; s_i^2: largest variance of
         code i's privacy loss under any tilt of its law.
Source   Guo et al. (ICML 2023), equation (rdp_conversion): rho + log(z/(1+z)) + (ell - log(1+z))/z,
         which has one minimum because z rho is convex; besides, epsilon is 0 where delta^2 >= 1 -
         exp(-rho) (TV and KL). Balle and Wang (ICML 2018), Theorem 8: delta = Phi(a) - e^epsilon
         Phi(b), a, b = +-mu/2 - epsilon/mu. Gaussian pairs that dominate codes:
         docs/theory/exact-accounts.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.special import erfcx, log_ndtr

from quietbit._search import bisect
from quietbit.errors import require
from quietbit.privacy.rounding import FEW_OPERATIONS, ROUNDING_MARGIN, round_up
from quietbit.target import check_delta

__all__ = [
    "dominating_square_upper",
    "epsilon_from_linear",
    "epsilon_from_rdp",
    "gaussian_epsilon_upper",
    "gaussian_log_delta",
]

_SMALLEST_STEP = 1e-5  # alpha - 1: below, the term ell/z alone exceeds any epsilon worth reporting
_LARGEST_STEP = 1e9
_GOLDEN = (math.sqrt(5) - 1) / 2
_LOG_SQRT_TAU = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
# Error of log delta: a slightly smaller delta is inverted, so that rounding stays private.
_SAFETY = 1e-10
_LARGEST_BIT = 1.0  # the range of the theorem for bits


def epsilon_from_rdp(
    rdp: Callable[[float], float], delta: float, orders: Iterable[float] | None = None
) -> float:
    """Return the smallest epsilon that the Rényi bound ``rdp(alpha)`` proves at ``delta``.

    Args:
        rdp: an upper bound at every real order above 1, which may be infinite. At delta = 0 it
            proves nothing unless it is zero everywhere.
        delta: in [0, 1).
        orders: minimise over these alone, instead of over all real orders above 1.
    """
    delta = check_delta(delta)
    if delta == 0:
        return 0.0 if rdp(1e12) == 0 else math.inf
    if orders is not None:
        listed = [float(order) for order in orders]
        valid = bool(listed) and all(order > 1 for order in listed)
        require(valid, "orders", listed, "one or more numbers above 1")
        return max(0.0, min(_epsilon_at(rdp(order), order - 1.0, delta) for order in listed))
    computed: dict[float, float] = {}

    def bound(log_step: float) -> float:
        if log_step not in computed:
            step = math.exp(log_step)
            computed[log_step] = _epsilon_at(rdp(1.0 + step), step, delta)
        return computed[log_step]

    if bound(math.log(_SMALLEST_STEP)) == 0:
        return 0.0
    # One valley for one kind of release; the smaller of two bounds can have one for each.
    start = 0.5 * math.log(max(-math.log(delta), 1e-3))
    valleys = {_bracket(bound, start + offset) for offset in (-4.0, 0.0, 6.0)}
    return max(0.0, min(_golden(bound, low, high) for low, high in valleys))


def epsilon_from_linear(slope: float, delta: float) -> float:
    """Return `epsilon_from_rdp` of ``slope * alpha``, by Newton's method for the best order."""
    delta = check_delta(delta)
    require(slope >= 0, "slope", slope, "a number of at least 0")
    if slope == 0:
        return 0.0
    if delta == 0 or math.isinf(slope):
        return math.inf
    if _vanishes(slope, delta):
        return 0.0
    ell = -math.log(delta)
    # The root of slope z^2 + log(1+z) = ell: either term alone gives a start above it.
    step = min(math.sqrt(ell / slope), math.expm1(min(ell, 700.0)))
    if step <= 0 or 1 - delta < 1e-12:
        return round_up(slope * (1 + _SMALLEST_STEP) + ell / _SMALLEST_STEP)
    for _ in range(60):
        value = slope * step * step + math.log1p(step) - ell
        change = value / (2 * slope * step + 1 / (1 + step))
        lower = step - change if change < step else step / 2
        if abs(lower - step) <= 1e-14 * step:
            break
        step = lower
    return max(0.0, _epsilon_at(slope * (1 + step), step, delta))


def _vanishes(divergence: float, delta: float) -> bool:
    """Return whether a divergence of any order proves epsilon = 0 at ``delta``."""
    return delta * delta * (1 - 1e-12) > -math.expm1(-divergence)


def _epsilon_at(divergence: float, step: float, delta: float) -> float:
    """Return equation (rdp_conversion) at alpha = 1 + step, each term rounded towards privacy."""
    if not divergence < math.inf:
        return math.inf
    if _vanishes(divergence, delta):
        return 0.0
    tail = (-math.log(delta) - math.log1p(step)) / step
    terms = (divergence, -math.log1p(1 / step), tail)
    return math.fsum(terms) + ROUNDING_MARGIN * sum(map(abs, terms))


def _bracket(bound: Callable[[float], float], start: float) -> tuple[float, float]:
    """Return two log-steps around the minimum, by walking downhill with growing strides."""
    floor = math.log(_SMALLEST_STEP)
    ceiling = math.log(_LARGEST_STEP)
    here = min(max(start, floor + 1), ceiling - 1)
    stride = 0.7
    direction = 1.0 if bound(here + stride) < bound(here) else -1.0
    behind = here - direction * stride
    while True:
        ahead = min(max(here + direction * stride, floor), ceiling)
        if ahead == here or bound(ahead) > bound(here):
            return min(behind, ahead), max(behind, ahead)
        behind = here
        here = ahead
        stride *= 1.5


def _golden(bound: Callable[[float], float], low: float, high: float) -> float:
    """Minimise by golden section; the bound is flat there, so 1e-5 in log z is plenty."""
    left = high - _GOLDEN * (high - low)
    right = low + _GOLDEN * (high - low)
    best = min(bound(left), bound(right))
    while high - low > 1e-5:
        if bound(left) <= bound(right):
            high = right
            right = left
            left = high - _GOLDEN * (high - low)
        else:
            low = left
            left = right
            right = low + _GOLDEN * (high - low)
        best = min(best, bound(left), bound(right))
    return best


def gaussian_log_delta(epsilon: float, mu: float) -> float:
    """Return the log of a Gaussian's delta at ``epsilon``; ``mu``: sensitivity in deviations.

    delta = phi(a) (m(-a) - m(-b)) with m the Mills ratio, without cancellation of large numbers;
    where mu is small, the difference is the integral of -m'(x) = 1 - x m(x) over an interval of
    length mu, by Gauss and Legendre.
    """
    top = epsilon / mu - mu / 2
    bottom = epsilon / mu + mu / 2
    if mu < 0.5:
        points = epsilon / mu + _NODES * (mu / 2)
        falls = 1 - points * math.sqrt(math.pi / 2) * erfcx(points / math.sqrt(2))
        difference = mu / 2 * float(_WEIGHTS @ falls)
    elif top > -5.0:
        ratios = erfcx(top / math.sqrt(2)) - erfcx(bottom / math.sqrt(2))
        difference = math.sqrt(math.pi / 2) * ratios
    else:
        return _log_difference(float(log_ndtr(-top)), epsilon + float(log_ndtr(-bottom)))
    if difference <= 0:
        return -math.inf
    return -0.5 * top * top - _LOG_SQRT_TAU + math.log(difference)


def _log_difference(first: float, second: float) -> float:
    """Return log(e^first - e^second), or ``first`` where no digits of the difference are left."""
    share = math.exp(min(0.0, second - first))
    if share < 1:
        return first + math.log1p(-share)
    return first


def gaussian_epsilon_upper(slope: float, delta: float) -> float:
    """Return the exact epsilon of Gaussian noise with Rényi curve ``slope * alpha``, rounded up."""
    delta = check_delta(delta)
    require(slope >= 0, "slope", slope, "a number of at least 0")
    if slope == 0:
        return 0.0
    if delta == 0 or math.isinf(slope):
        return math.inf
    mu = math.sqrt(2 * slope)
    target = math.log(delta) - _SAFETY

    def proved(epsilon: float) -> bool:
        return gaussian_log_delta(epsilon, mu) <= target

    if proved(0.0):
        return 0.0
    # delta(epsilon) <= Phi(mu/2 - epsilon/mu) <= exp(-t^2/2): a certain upper end.
    high = mu * (mu / 2 + math.sqrt(-2 * target) + 1)
    return bisect(proved, high, 0.0, relative=1e-13)


def dominating_square_upper(budget: float, largest: float, *, one_bit: bool) -> float:
    """Return mu^2 of a Gaussian pair that dominates every product of codes, rounded up.

    Args:
        budget: bounds the sum over coordinates of s_i^2.
        largest: bounds every single s_i.
        one_bit: every code has only two values, which adds much less to the budget.

    >>> dominating_square_upper(1.0, 0.1, one_bit=True) < 1.019
    True
    """
    require(budget >= 0, "budget", budget, "a number of at least 0")
    require(largest >= 0, "largest", largest, "a number of at least 0")
    largest = min(largest, math.sqrt(budget))  # one coordinate cannot exceed the whole budget
    if budget == 0 or largest == 0:
        return 0.0
    # Both formulas increase in both arguments; the second term keeps the square above underflow.
    square = max(largest * largest * (1 + FEW_OPERATIONS), budget * 1e-30)
    if square == math.inf:
        return math.inf
    bound = budget + square * (2.5 + math.log1p(budget / square))
    if one_bit and square <= _LARGEST_BIT:
        bits = budget + square * (1 + math.log1p(2 * budget / square) / 6)
        bound = min(bound, bits)
    return round_up(bound, FEW_OPERATIONS)
