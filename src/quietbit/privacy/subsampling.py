"""Amplification by subsampling: what is gained when nobody learns which samples are in a batch.

Idea     a secret Poisson batch contains a given sample with probability q: who sees the result
         alone learns less about it. Batches of a fixed size, shuffled epochs and dropped last
         batches are sampled differently, and a mean is divided by the public q n, never by the
         number drawn.
Symbols  q: rate; P, Q: the release with the sample in its batch and without it; delta(a) = H_a(P ||
         Q), a = e^epsilon.
Source   Zhu, Dong, Wang (2022), Theorem 11; Balle, Barthe, Gaboardi (2018), Theorem 2; Mironov,
         Talwar, Zhang (2019), section 3.3: docs/theory/adding-up.md, "Secret batches".
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from quietbit._typing import FloatVector
from quietbit.errors import check_real, require
from quietbit.privacy.conversion import gaussian_log_delta
from quietbit.privacy.cost import Cost
from quietbit.privacy.loss import LossDistribution
from quietbit.privacy.release import Bound, Formula, LossPair, Pair, Renyi
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = ["poisson_cost", "poisson_gaussian"]

NODES = 4000
MOST_MU = 1e3
MOST_TERMS = 1024
REACH = 12.0  # standard deviations; the mass beyond is in the last node's delta
# Relative error of a delta, from `gaussian_log_delta` and a few roundings, and of a moment less 1.
MARGIN = 1e-9


def poisson_cost(near: Cost, far: Cost, rate: float) -> Cost:
    """Return the cost of a release to one sample whose batch was drawn in secret.

    Slack is the same for a mixture: it holds output by output in every batch.

    Args:
        near: the cost between two batches where one sample's contribution is there or zero.
        far: the cost between two batches under the adjacency of the result.
        rate: the probability of a sample to be in the batch, below 1.

    Refused where no line bounds the divergences at all orders, and where the sampler puts mass
    outside the certified law, which mixes over batches otherwise.
    """
    q = check_real(rate, "rate", at_most=1.0)
    require(q < 1, "rate", rate, "below 1", "without sampling the mechanism's own cost applies")
    remedy = "use gaussian, or imvu with two levels, where batches are drawn"
    slope = max(near.slope, far.slope)
    require(slope < math.inf, "slope of the cost", slope, "finite for a secret batch", remedy)
    lost = max(near.lost, far.lost)
    require(lost == 0, "lost mass", lost, "0 for a secret batch", remedy)
    replaced = far.adjacency is Adjacency.REPLACE_ONE
    line = _sensitivity(near.slope, far.slope, replaced)
    pair = _sensitivity(near.pair_slope, far.pair_slope, replaced)
    bounds: list[Bound] = []
    if pair <= MOST_MU:
        bounds.append(LossPair(Formula(poisson_gaussian, pair, q, far.adjacency)))
    bounds.append(Renyi(Formula(_batch_divergence, line, pair, q, replaced)))
    bare = Cost.proved(*bounds)
    return bare.with_slack(max(near.slack, far.slack)).like(far)


def _sensitivity(near: float, far: float, replaced: bool) -> float:
    """Return mu of the Gaussian of the larger slope; replacing moves a batch twice as far."""
    square = 2 * near
    if replaced:
        square = max(square, 2 * far / 4)
    return round_up(math.sqrt(square), 1e-15)


def _batch_divergence(alpha: float, line: float, pair: float, q: float, replaced: bool) -> float:
    """Return D_alpha of a Poisson batch, the larger of both directions.

    ``line`` and ``pair`` are the mu of Gaussians with the release's line of divergences, and of one
    that dominates it.
    """
    if not replaced:
        return _removed(alpha, line, pair, q)
    grown = math.log(q) + alpha * (alpha - 1) * 2 * line**2
    convex = float(np.logaddexp(math.log1p(-q), grown)) + 1e-15 * (1 + abs(grown))
    order = max(alpha, 2.0)  # divergences grow with the order
    away = (order - 0.5) / (order - 1) * _removed(2 * order, line, pair, q)
    through_removal = away + _removed(2 * order - 1, line, pair, q)
    return round_up(min(max(0.0, convex) / (alpha - 1), through_removal), 1e-12)


def _removed(alpha: float, line: float, pair: float, q: float) -> float:
    """Return D_alpha of the release with the sample against that without it, both ways round."""
    moment = max(_forward(alpha, line, q), _backward(alpha, line, q))
    if pair <= MOST_MU:
        moment = min(moment, _forward(alpha, pair, q))
    return round_up(moment / (alpha - 1), 1e-12)


def _backward(alpha: float, mu: float, q: float) -> float:
    """Bound (alpha - 1) D_alpha of the release without the sample against the mixture.

    It is log(1 + c (e^(mu^2) - 1)), for numbers of any size.
    """
    times = alpha - 1
    power = -times * math.log1p(-q)
    if power + mu * mu > 300:
        return (power + mu * mu) * (1 + MARGIN)
    if power > 1e-3:
        c = math.expm1(power) - times * q
    else:
        # Where c would lose its digits: -log(1-q) - q <= q^2 / (2 (1-q)), and e^p - 1 - p <= p^2
        # (1/2 + p).
        c = times * q * q / (2 * (1 - q)) + power * power * (0.5 + power)
    return math.log1p(c * math.expm1(mu * mu)) * (1 + MARGIN)


def _forward(alpha: float, mu: float, q: float) -> float:
    """Bound (alpha - 1) D_alpha of the mixture against the release without the sample.

    Between integer orders it is a chord.
    """
    below = math.floor(alpha)
    at_below = _log_moment(below, mu, q)
    at_above = _log_moment(below + 1, mu, q)
    return (below + 1 - alpha) * at_below + (alpha - below) * at_above


@lru_cache(maxsize=4096)
def _log_moment(order: int, mu: float, q: float) -> float:
    """Return (order - 1) D_order of the mixture, rounded up."""
    if order < 2:
        return 0.0
    # A mixture is no further from either part than these are from each other.
    if order > MOST_TERMS:
        return order * (order - 1) * (mu * mu / 2) * (1 + MARGIN)
    j = np.arange(2, order + 1)
    exponent = j * (j - 1) * (mu * mu / 2)
    choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    with np.errstate(divide="ignore"):  # no divergence at all: its logarithm is -inf
        grown = exponent + np.log(-np.expm1(-exponent))
    terms = choose + (order - j) * math.log1p(-q) + j * math.log(q) + grown
    return float(np.logaddexp(0.0, logsumexp(terms))) * (1 + MARGIN)


@lru_cache(maxsize=64)
def poisson_gaussian(mu: float, q: float, adjacency: Adjacency) -> Pair:
    """Return the losses of a Poisson batch of rate ``q`` in (0, 1), both ways round.

    ``mu``: how far one sample of the batch moves the release, in standard deviations of a
    dominating Gaussian pair.
    """
    if adjacency is Adjacency.ZERO_OUT:
        losses = _losses(mu)
        deltas = _deltas(losses, mu)
        shares = 1 / (q * np.exp(-losses) + (1 - q))  # a' for b = e^loss, at most 1/(1 - q)
        nodes = np.append(np.log(shares), -math.log1p(-q) * (1 + 1e-15))
        backward = _profile(nodes, np.append((1 - shares * (1 - q)) * deltas, 0.0))
        forward = _profile(np.log1p(q * np.expm1(losses)), q * deltas)
        return forward, backward
    losses = _losses(2 * mu)
    losses = losses[losses >= 0]
    orders = 1 + q * np.expm1(losses)
    shares = orders * np.exp(-losses)
    heights = q * ((1 - shares) * _deltas(losses, mu) + shares * _deltas(losses, 2 * mu))
    either = _profile(np.log(orders), heights, symmetric=True)
    return either, either


def _losses(mu: float) -> FloatVector:
    """Return losses of the pair without sampling, dense where its mass is."""
    places = np.linspace(-REACH - mu, REACH + mu, NODES)
    losses = np.unique(np.append(mu * places, 0.0))
    return np.asarray(losses[np.abs(losses) < 690.0])


def _deltas(losses: FloatVector, mu: float) -> FloatVector:
    """Return H_a(N(mu, 1) || N(0, 1)) at a = e^loss.

    Below a = 1 it is H_a(P || Q) = 1 - a + a H_1/a(Q || P).
    """
    deltas = np.exp([gaussian_log_delta(abs(loss), mu) for loss in losses.tolist()])
    return np.where(losses >= 0, deltas, -np.expm1(losses) + np.exp(losses) * deltas)


def _profile(
    nodes: FloatVector, heights: FloatVector, *, symmetric: bool = False
) -> LossDistribution:
    """Connect points of delta, without nodes that rounding brought together."""
    distinct = np.flatnonzero(np.append(np.diff(nodes) > 0, True))
    upper = np.minimum(1.0, heights[distinct] * (1 + MARGIN))
    return LossDistribution.from_profile(nodes[distinct], upper, symmetric=symmetric)
