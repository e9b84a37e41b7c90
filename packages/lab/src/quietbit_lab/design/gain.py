"""How large the gain of a profile can be.

Symbols  a(nu) = E(t - nu)_+ = phi(nu) - nu Phi(-nu); E(nu - t)_+ = a(nu) + nu; H: cap on h.
Source   packages/lab/docs/profiles.md.
"""

from __future__ import annotations

import math

from scipy.special import ndtri

from quietbit.design.normal import LARGEST
from quietbit.design.profile_search import mean_above, pure_edge
from quietbit.errors import require
from quietbit.target import Adjacency, Target

__all__ = ["gain_upper"]

SLACK = 1e-12  # relative, for a dozen operations in doubles


def gain_upper(target: Target, largest: float = math.inf) -> float:
    """Bound the gain of every profile that meets the target with h at most ``largest``.

    The bound is proved for delta = 0 with any number of releases and any h, and for one release
    with delta > 0 and a finite cap; without a cap it is infinite, because a mass delta may lie
    arbitrarily far out. For several releases with delta, the bound of one release holds, since one
    reveals no more than all; it is loose.
    """
    require(largest > 1, "largest", largest, "above 1")
    if target.delta == 0:
        return _pure_gain_upper(target.epsilon / target.releases, target.adjacency) * (1 + SLACK)
    if math.isinf(largest):
        return math.inf
    nu = pure_edge(target.epsilon, target.adjacency)
    pure = _pure_gain_upper(target.epsilon, target.adjacency)
    # g in [0, H] with E g <= delta: E[(t - nu) g] <= E[t g] <= H phi(tau) where Phi(-tau) = delta /
    # H; by duality H phi(tau) <= delta tau' + H a(tau') for every tau', so the rounding of tau does
    # not matter.
    extra = _tail_upper(target.delta, largest)
    if target.adjacency is Adjacency.ZERO_OUT:
        below = _tail_upper(target.delta, 1.0) + max(nu, 0.0) * target.delta
        extra += math.exp(-target.epsilon) * below
    return (pure + extra) * (1 + SLACK)


def _pure_gain_upper(epsilon: float, adjacency: Adjacency) -> float:
    """Return nu + sup E[(t - nu) h] for a nu near the best one: an upper bound whatever nu is."""
    nu = pure_edge(epsilon, adjacency)
    a = mean_above(nu)
    if adjacency is Adjacency.ZERO_OUT:
        return nu + math.exp(epsilon) * a - math.exp(-epsilon) * (a + nu)
    # By rounding, (e^epsilon - 1) a(nu) - nu may be above zero; it multiplies a value of h left of
    # zero, at most two.
    return nu + 2 * max(math.expm1(epsilon) * a - nu, 0.0)


def _tail_upper(delta: float, cap: float) -> float:
    tau = 0.0
    if delta < cap:
        tau = -float(ndtri(delta / cap))
    tau = min(max(tau, 0.0), LARGEST)
    return delta * tau + cap * mean_above(tau)
