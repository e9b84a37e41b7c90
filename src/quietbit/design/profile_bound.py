"""Proved upper bounds on the gain of any profile, and the step function that attains them.

Idea     Without delta the worst loss of a release decides, and worst losses add up: T releases are epsilon-private if
         and only if one is (epsilon/T)-private. Then h lies between two bounds whose ratio is fixed, and for every
         real nu, gain = E[t h] = nu + E[(t - nu) h] is largest for the step at nu: weak duality with one multiplier.
         With delta and one release, the part beyond the two bounds has little mass and is bounded separately.
Symbols  e = epsilon/T; a(nu) = E(t - nu)_+ = phi(nu) - nu Phi(-nu); E(nu - t)_+ = a(nu) + nu. H: cap on h.
Source   docs/theory/vector-mechanism.md, "How large can the gain be".
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

from scipy.optimize import brentq
from scipy.special import ndtri

from quietbit.design.normal import LARGEST, density, distribution, float_upper
from quietbit.errors import check_real, require
from quietbit.target import Adjacency, Target

__all__ = ["gain_upper", "pure_edge"]

SLACK = 1e-12  # relative, for a dozen operations in doubles


def pure_edge(epsilon: float, adjacency: Adjacency | str) -> float:
    """Return the edge of the optimal two-level profile of one epsilon-private release.

    Replace-one: the root of (e^epsilon - 1) a(nu) = nu, which is also the largest gain. Zero-out: Phi(-nu) =
    (1 - e^-epsilon)/(e^epsilon - e^-epsilon), so that levels e^-epsilon and e^epsilon have mean one.

    >>> round(pure_edge(1.0, "replace-one") ** -2, 3)
    6.33
    """
    epsilon = check_real(epsilon, "epsilon")
    if Adjacency(adjacency) is Adjacency.ZERO_OUT:
        # (1 - e^-x)/(e^x - e^-x) = 1/(1 + e^x)
        return -float(ndtri(1 / (1 + math.exp(epsilon))))

    def excess(nu: float) -> float:
        return math.log(math.expm1(epsilon) * _above(nu) / nu)

    return float(brentq(excess, 1e-18, LARGEST - 1e-6, xtol=1e-17, rtol=1e-14))


def gain_upper(target: Target, largest: float = math.inf) -> float:
    """Bound the gain of every profile that meets the target with h at most ``largest``; infinite where unproved.

    Proved for delta = 0 with any number of releases and any h, and for one release with delta > 0 and a finite cap
    (without a cap the gain is then unbounded: a mass delta may lie arbitrarily far out). For several releases with
    delta, the bound for one of them holds, since one reveals no more than all; it is loose.
    """
    require(largest > 1, "largest", largest, "above 1")
    if target.delta == 0:
        return _pure_gain_upper(target.epsilon / target.releases, target.adjacency) * (1 + SLACK)
    if math.isinf(largest):
        return math.inf
    nu = pure_edge(target.epsilon, target.adjacency)
    pure = _pure_gain_upper(target.epsilon, target.adjacency)
    # g in [0, H] with E g <= delta: E[(t - nu) g] <= E[t g] <= H phi(tau) where Phi(-tau) = delta / H; by duality
    # H phi(tau) <= delta tau' + H a(tau') for every tau', so the rounding of tau cannot matter.
    extra = _tail_upper(target.delta, largest)
    if target.adjacency is Adjacency.ZERO_OUT:
        extra += math.exp(-target.epsilon) * (_tail_upper(target.delta, 1.0) + max(nu, 0.0) * target.delta)
    return (pure + extra) * (1 + SLACK)


def _pure_gain_upper(epsilon: float, adjacency: Adjacency) -> float:
    """Return nu + sup E[(t - nu) h] for a nu near the best one: an upper bound whatever nu is."""
    nu = pure_edge(epsilon, adjacency)
    a = _above(nu)
    if adjacency is Adjacency.ZERO_OUT:
        return nu + math.exp(epsilon) * a - math.exp(-epsilon) * (a + nu)
    # What (e^epsilon - 1) a(nu) - nu is above zero, by rounding, multiplies a value of h left of zero: at most two.
    return nu + 2 * max(math.expm1(epsilon) * a - nu, 0.0)


def _tail_upper(delta: float, cap: float) -> float:
    tau = -float(ndtri(delta / cap)) if delta < cap else 0.0
    tau = min(max(tau, 0.0), LARGEST)
    return delta * tau + cap * _above(tau)


def _above(nu: float) -> float:
    """Return E(t - nu)_+ = phi(nu) - nu Phi(-nu), rounded up; Decimal operands keep the cancellation harmless."""
    digits = Context(prec=130)
    tail = digits.subtract(Decimal(1), distribution(nu))
    return float_upper(digits.subtract(density(nu), digits.multiply(Decimal(nu), tail)))
