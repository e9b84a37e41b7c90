"""What is gained when a site draws every batch in secret: each sample with probability q, by itself.

Idea     a sample that is probably not in the batch is hidden by that. For Poisson sampling the hockey-stick divergence
         of the release is known exactly from that of the release without sampling, one way round and the other; as
         dominating pairs they compose over all steps.
Symbols  q: sampling rate; P, Q: the release with the sample in its batch and without it, dominated by N(mu, 1) against
         N(0, 1); delta(a) = H_a(P || Q), a = e^epsilon; P': the same with another sample in its place.
Source   Zhu, Dong, Wang (2022), Theorem 11; Balle, Barthe, Gaboardi (2018), Theorem 2, for replace-one.

With the sample against without. The mixture is M = (1-q) Q + q P. For a' = 1 + q (a - 1), a >= 0,
    M - a' Q = q (P - a Q), so H_a'(M || Q) = q H_a(P || Q); below a' = 1 - q it is 1 - a'.
The other way round, for a' < 1/(1-q),
    Q - a' M = (1 - a' (1-q)) (Q - b P), b = a' q / (1 - a' (1-q)), so H_a'(Q || M) = (1 - a' (1-q)) H_b(Q || P),
and it is 0 beyond. What the batch holds besides is the same in both worlds; joint convexity covers its randomness. So
is the divisor of the mean: the public q n, never the number drawn.

One sample replaced by another, for a' = 1 + q (a - 1) >= 1 and s = a'/a:
    (1-q) Q + q P - a' ((1-q) Q + q P') = q (P - a ((1-s) Q + s P')),
by joint convexity at most q ((1-s) H_a(P || Q) + s H_a(P || P')), where P and P' are twice as far apart. Below 1 by
H_a(M || M') = 1 - a + a H_1/a(M' || M); the bound is the same both ways round.

Batches of a fixed size, shuffled epochs and dropped last batches are sampled otherwise: none of this holds for them.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from quietbit._typing import FloatVector
from quietbit.errors import check_real
from quietbit.privacy.cost import LossPair
from quietbit.privacy.gaussian import gaussian_log_delta
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.loss import LossDistribution

__all__ = ["poisson_gaussian"]

NODES = 4000
REACH = 12.0  # standard deviations; what lies beyond is in the last node's delta
MARGIN = 1e-9  # relative error of a delta, from `gaussian_log_delta` and a few roundings


@lru_cache(maxsize=64)
def poisson_gaussian(mu: float, rate: float, adjacency: Adjacency) -> LossPair:
    """Return the losses of one release of a Poisson batch, both ways round.

    Args:
        mu: how far one sample of the batch moves the release, in standard deviations of a dominating Gaussian pair.
        rate: q, the probability with which each sample is drawn, from 0 (excluded) to 1.
        adjacency: zero-out removes the sample; replace-one puts another in its place.
    """
    distance, q = check_real(mu, "mu", at_most=1e3), check_real(rate, "rate", at_most=1.0)
    if q == 1.0:
        moved = distance if adjacency is Adjacency.ZERO_OUT else 2 * distance
        one = LossDistribution.gaussian(moved)
        return one, one
    if adjacency is Adjacency.ZERO_OUT:
        return _with(distance, q), _without(distance, q)
    both = _replaced(distance, q)
    return both, both


def _with(mu: float, q: float) -> LossDistribution:
    """Of the mixture against its release without the sample."""
    losses = _losses(mu)
    return _profile(np.log1p(q * np.expm1(losses)), [q * _delta(one, mu) for one in losses])


def _without(mu: float, q: float) -> LossDistribution:
    """Of the release without the sample against the mixture: no loss exceeds -log(1 - q)."""
    losses = _losses(mu)
    shares = 1 / (q * np.exp(-losses) + (1 - q))  # a' for b = e^loss
    heights = [(1 - share * (1 - q)) * _delta(one, mu) for one, share in zip(losses, shares, strict=True)]
    highest = -math.log1p(-q) * (1 + 1e-15)
    return _profile(np.append(np.log(shares), highest), [*heights, 0.0])


def _replaced(mu: float, q: float) -> LossDistribution:
    """Of one mixture against another, either way round."""
    losses = _losses(2 * mu)
    losses = losses[losses >= 0]
    orders = 1 + q * np.expm1(losses)
    shares = orders * np.exp(-losses)
    heights = [
        q * ((1 - share) * _delta(one, mu) + share * _delta(one, 2 * mu))
        for one, share in zip(losses, shares, strict=True)
    ]
    return LossDistribution.from_profile(np.log(orders), _upper(heights), symmetric=True)


def _losses(mu: float) -> FloatVector:
    """Losses of the pair without sampling, dense where its mass is."""
    places = np.linspace(-REACH - mu, REACH + mu, NODES)
    found = np.unique(np.append(mu * places, 0.0))
    return np.asarray(found[np.abs(found) < 690.0])


def _delta(loss: float, mu: float) -> float:
    """H_a(N(mu, 1) || N(0, 1)) at a = e^loss; below 1 by H_a(P || Q) = 1 - a + a H_1/a(Q || P)."""
    found = math.exp(gaussian_log_delta(abs(loss), mu))
    return found if loss >= 0 else -math.expm1(loss) + math.exp(loss) * found


def _profile(nodes: FloatVector, heights: list[float]) -> LossDistribution:
    kept = np.flatnonzero(np.append(np.diff(nodes) > 0, True))  # rounding may bring the last nodes together
    return LossDistribution.from_profile(nodes[kept], _upper(np.asarray(heights)[kept]))


def _upper(heights: object) -> FloatVector:
    return np.minimum(1.0, np.asarray(heights, dtype=np.float64) * (1 + MARGIN))
