"""The exact (epsilon, delta) of the Gaussian mechanism, and Gaussian pairs that dominate products of codes.

Idea     the Gaussian's privacy profile is known in closed form; invert it, so that comparisons with the Gaussian use
         its tight account.
Symbols  mu = sensitivity / standard deviation; a Rényi curve alpha mu^2/2 has slope mu^2/2.
         a = mu/2 - epsilon/mu, b = -mu/2 - epsilon/mu; Phi, phi: normal distribution and density.
Source   Balle and Wang (ICML 2018), Theorem 8: delta(epsilon) = Phi(a) - e^epsilon Phi(b). T independent
         Gaussian releases are one with mu^2 the sum of theirs.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfcx, log_ndtr

from quietbit._search import bisect
from quietbit.errors import require
from quietbit.privacy.conversion import round_up
from quietbit.target import check_delta

__all__ = ["dominating_square_upper", "gaussian_epsilon_upper", "gaussian_log_delta"]

_LOG_SQRT_TAU = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_SAFETY = 1e-10  # error of log delta: target a slightly smaller delta, so that rounding stays private
_LARGEST_BIT = 1.0  # the range of the theorem for bits
_ROUNDING = 1e-14  # of a handful of operations on positive doubles


def gaussian_log_delta(epsilon: float, mu: float) -> float:
    """Return log of the least delta at which a Gaussian of sensitivity ``mu`` standard deviations is epsilon-DP.

    phi(a) = e^epsilon phi(b), so delta = phi(a) (m(-a) - m(-b)) with m the Mills ratio: no cancellation of
    large numbers where epsilon is large. Where mu is small the two ratios are close, and their difference is the
    integral of -m'(x) = 1 - x m(x) over an interval of length mu, by Gauss and Legendre.
    """
    top, bottom = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if mu < 0.5:
        points = epsilon / mu + _NODES * (mu / 2)
        falls = 1 - points * math.sqrt(math.pi / 2) * erfcx(points / math.sqrt(2))
        integral = mu / 2 * float(_WEIGHTS @ falls)
        return -0.5 * top * top - _LOG_SQRT_TAU + (math.log(integral) if integral > 0 else -math.inf)
    if top > -5.0:
        mills = math.sqrt(math.pi / 2) * (erfcx(top / math.sqrt(2)) - erfcx(bottom / math.sqrt(2)))
        return -0.5 * top * top - _LOG_SQRT_TAU + (math.log(mills) if mills > 0 else -math.inf)
    first = float(log_ndtr(-top))
    share = math.exp(min(0.0, epsilon + float(log_ndtr(-bottom)) - first))
    return first + math.log1p(-share) if share < 1 else first  # no digits are left: at most the first term


def gaussian_epsilon_upper(slope: float, delta: float) -> float:
    """Return the exact epsilon at ``delta`` of Gaussian noise with Rényi curve ``slope * alpha``, rounded up.

    Bisection keeps ``delta(high) <= delta`` throughout, and ``high`` is returned.
    """
    delta = check_delta(delta)
    require(slope >= 0, "slope", slope, "a number of at least 0")
    if slope == 0:
        return 0.0
    if delta == 0 or math.isinf(slope):
        return math.inf
    mu = math.sqrt(2 * slope)
    target = math.log(delta) - _SAFETY
    if gaussian_log_delta(0.0, mu) <= target:
        return 0.0
    # delta(epsilon) <= Phi(mu/2 - epsilon/mu) <= exp(-t^2/2): a certain upper end.
    high = mu * (mu / 2 + math.sqrt(-2 * target) + 1)
    return bisect(lambda epsilon: gaussian_log_delta(epsilon, mu) <= target, high, 0.0, relative=1e-13)


def dominating_square_upper(budget: float, largest: float, *, one_bit: bool) -> float:
    """Return mu^2 of a Gaussian pair that dominates every product of codes with this budget, rounded up.

    Args:
        budget: an upper bound on the sum over coordinates of s_i^2.
        largest: an upper bound on s_i for every single coordinate.
        one_bit: whether every code has only two values, which adds much less to the budget.

    >>> dominating_square_upper(1.0, 0.1, one_bit=True) < 1.019
    True
    """
    budget, largest = _size(budget, "budget"), _size(largest, "largest")
    largest = min(largest, math.sqrt(budget))  # one coordinate cannot exceed the whole budget
    if budget == 0 or largest == 0:
        return 0.0
    # Both formulas increase in both arguments; the second term keeps the square above underflow.
    square = max(largest * largest * (1 + _ROUNDING), budget * 1e-30)
    if square == math.inf:
        return math.inf
    found = budget + square * (2.5 + math.log1p(budget / square))
    if one_bit and square <= _LARGEST_BIT:
        found = min(found, budget + square * (1 + math.log1p(2 * budget / square) / 6))
    return round_up(found, _ROUNDING)


def _size(value: float, name: str) -> float:
    """Return a number of at least 0; infinity is allowed, NaN is not."""
    require(value >= 0, name, value, "a number of at least 0")
    return float(value)
