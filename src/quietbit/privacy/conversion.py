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
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from typing import ClassVar

import numpy as np
from scipy.special import erfcx, log_ndtr

from quietbit._search import bisect
from quietbit.errors import check_real, require
from quietbit.target import check_delta

__all__ = [
    "ROUNDING_MARGIN",
    "OrderConstant",
    "chord_upper",
    "dominating_square_upper",
    "epsilon_from_linear",
    "epsilon_from_rdp",
    "gaussian_epsilon_upper",
    "gaussian_log_delta",
    "round_up",
]

ROUNDING_MARGIN = 1e-12
_SMALLEST_STEP = 1e-5  # alpha - 1: below, the term ell/z alone exceeds any epsilon worth reporting
_LARGEST_STEP = 1e9
_GOLDEN = (math.sqrt(5) - 1) / 2
_LOG_SQRT_TAU = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_SAFETY = (
    1e-10  # error of log delta: target a slightly smaller delta, so that rounding stays private
)
_LARGEST_BIT = 1.0  # the range of the theorem for bits
_ROUNDING = 1e-14  # of a handful of operations on positive doubles


def round_up(value: float, margin: float = ROUNDING_MARGIN) -> float:
    """Return ``value`` enlarged by a relative margin, for bounds computed in floating point; zero stays zero."""
    return value + abs(value) * margin


def chord_upper(upper: Callable[[float], float], alpha: float, below: float, above: float) -> float:
    """Bound D_alpha from ``upper`` at two orders around alpha: (alpha - 1) D_alpha is convex in alpha, and 0 at 1."""
    part = min(max((alpha - below) / (above - below), 0.0), 1.0)
    if below > 1:
        moment = (1 - part) * (below - 1) * upper(below)
    else:
        moment = 0.0
    if part > 0:
        moment += part * (above - 1) * upper(above)
    return round_up(moment / (alpha - 1))


class OrderConstant(ABC):
    """An upper bound kappa_alpha, computed once per order, with chords in between; equal where its arguments are."""

    RUNGS: ClassVar[int]  # rungs of the ladder of orders per doubling of alpha - 1

    def __init__(self, *given: Hashable) -> None:
        self._given = given
        self._known: dict[float, float] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderConstant) and (type(self), self._given) == (
            type(other),
            other._given,
        )

    def __hash__(self) -> int:
        return hash(self._given)

    @abstractmethod
    def _upper(self, alpha: float) -> float:
        """Compute the bound at an order."""

    def upper(self, alpha: float) -> float:
        """Return kappa_alpha from above."""
        alpha = check_real(alpha, "alpha", above=1.0)
        if alpha not in self._known:
            self._known[alpha] = self._upper(alpha)
        return self._known[alpha]

    def __call__(self, alpha: float) -> float:
        """Return kappa_alpha from above, from `upper` at the two orders around it on the ladder."""
        alpha = check_real(alpha, "alpha", above=1.0)
        rung = math.floor(math.log2(alpha - 1) * self.RUNGS)
        below, above = (1 + math.pow(2.0, place / self.RUNGS) for place in (rung, rung + 1))
        return chord_upper(self.upper, alpha, below, above)


def epsilon_from_rdp(
    rdp: Callable[[float], float], delta: float, orders: Iterable[float] | None = None
) -> float:
    """Return the smallest epsilon that the Rényi bound ``rdp(alpha)`` proves at ``delta``.

    ``rdp`` holds at every real order above 1, and may be infinite. At delta = 0 it proves nothing
    unless it is zero everywhere. ``orders``: minimise over these alone, instead of over all real
    orders above 1.
    """
    delta = check_delta(delta)
    if delta == 0:
        return 0.0 if rdp(1e12) == 0 else math.inf
    ell = -math.log(delta)
    seen: dict[float, float] = {}

    def bound(log_step: float) -> float:
        if log_step not in seen:
            step = math.exp(log_step)
            seen[log_step] = _at(rdp(1.0 + step), step, ell, delta)
        return seen[log_step]

    if orders is not None:
        chosen = [float(order) for order in orders]
        require(chosen and all(order > 1 for order in chosen), "orders", chosen, "numbers above 1")
        return max(0.0, min(_at(rdp(order), order - 1.0, ell, delta) for order in chosen))
    if bound(math.log(_SMALLEST_STEP)) == 0:
        return 0.0
    # One valley for one kind of release; the smaller of two bounds can have one for each.
    start = 0.5 * math.log(max(ell, 1e-3))
    valleys = {_bracket(bound, start + offset) for offset in (-4.0, 0.0, 6.0)}
    return max(0.0, min(_golden(bound, low, high) for low, high in valleys))


def epsilon_from_linear(slope: float, delta: float) -> float:
    """Return `epsilon_from_rdp` for ``rdp(alpha) = slope * alpha``: the bound at the order that Newton finds."""
    delta = check_delta(delta)
    require(slope >= 0, "slope", slope, "a number of at least 0")
    if slope == 0:
        return 0.0
    if delta == 0 or math.isinf(slope):
        return math.inf
    ell = -math.log(delta)
    # Both terms of a z^2 + log(1+z) are increasing; either alone gives a start above the root.
    step = min(math.sqrt(ell / slope), math.expm1(min(ell, 700.0)))
    if step <= 0 or 1 - delta < 1e-12:
        if _vanishes(slope, delta):
            return 0.0
        return round_up(slope * (1 + _SMALLEST_STEP) + ell / _SMALLEST_STEP)
    for _ in range(60):
        value = slope * step * step + math.log1p(step) - ell
        change = value / (2 * slope * step + 1 / (1 + step))
        if change < step:
            new = step - change
        else:
            new = step / 2
        if abs(new - step) <= 1e-14 * step:
            break
        step = new
    if _vanishes(slope, delta):
        return 0.0
    return max(0.0, _at(slope * (1 + step), step, ell, delta))


def _vanishes(divergence: float, delta: float) -> bool:
    return delta * delta * (1 - 1e-12) > -math.expm1(-divergence)


def _at(divergence: float, step: float, ell: float, delta: float) -> float:
    """Return equation (rdp_conversion) at alpha = 1 + step, each term rounded towards privacy."""
    if not divergence < math.inf:
        return math.inf
    if _vanishes(divergence, delta):
        return 0.0
    terms = (divergence, -math.log1p(1 / step), (ell - math.log1p(step)) / step)
    return math.fsum(terms) + ROUNDING_MARGIN * sum(abs(term) for term in terms)


def _bracket(bound: Callable[[float], float], start: float) -> tuple[float, float]:
    """Return two log-steps around the minimum, by walking downhill with growing strides."""
    floor = math.log(_SMALLEST_STEP)
    ceiling = math.log(_LARGEST_STEP)
    middle = min(max(start, floor + 1), ceiling - 1)
    stride = 0.7
    direction = 1.0 if bound(middle + stride) < bound(middle) else -1.0
    here = middle
    behind = middle - direction * stride
    while True:
        ahead = min(max(here + direction * stride, floor), ceiling)
        if ahead == here or bound(ahead) > bound(here):
            return min(behind, ahead), max(behind, ahead)
        behind = here
        here = ahead
        stride *= 1.5


def _golden(bound: Callable[[float], float], low: float, high: float) -> float:
    """Minimise by golden section on [low, high]; the bound is flat there, so 1e-5 in log z is plenty."""
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
    """Return log of the least delta at which a Gaussian of sensitivity ``mu`` standard deviations is epsilon-DP.

    delta = phi(a) (m(-a) - m(-b)) with m the Mills ratio, without cancellation of large numbers;
    where mu is small, the difference is the integral of -m'(x) = 1 - x m(x) over an interval of
    length mu, by Gauss and Legendre.
    """
    top = epsilon / mu - mu / 2
    bottom = epsilon / mu + mu / 2
    if mu < 0.5:
        points = epsilon / mu + _NODES * (mu / 2)
        falls = 1 - points * math.sqrt(math.pi / 2) * erfcx(points / math.sqrt(2))
        integral = mu / 2 * float(_WEIGHTS @ falls)
        return (
            -0.5 * top * top - _LOG_SQRT_TAU + (math.log(integral) if integral > 0 else -math.inf)
        )
    if top > -5.0:
        mills = math.sqrt(math.pi / 2) * (erfcx(top / math.sqrt(2)) - erfcx(bottom / math.sqrt(2)))
        return -0.5 * top * top - _LOG_SQRT_TAU + (math.log(mills) if mills > 0 else -math.inf)
    first = float(log_ndtr(-top))
    share = math.exp(min(0.0, epsilon + float(log_ndtr(-bottom)) - first))
    if share < 1:  # no digits are left: at most the first term
        return first + math.log1p(-share)
    return first


def gaussian_epsilon_upper(slope: float, delta: float) -> float:
    """Return the exact epsilon at ``delta`` of Gaussian noise with Rényi curve ``slope * alpha``, rounded up."""
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
    return bisect(
        lambda epsilon: gaussian_log_delta(epsilon, mu) <= target, high, 0.0, relative=1e-13
    )


def dominating_square_upper(budget: float, largest: float, *, one_bit: bool) -> float:
    """Return mu^2 of a Gaussian pair that dominates every product of codes with this budget, rounded up.

    ``budget`` bounds the sum over coordinates of s_i^2, ``largest`` every single s_i; ``one_bit``:
    every code has only two values, which adds much less to the budget.

    >>> dominating_square_upper(1.0, 0.1, one_bit=True) < 1.019
    True
    """
    for name, value in (("budget", budget), ("largest", largest)):
        require(value >= 0, name, value, "a number of at least 0")
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
