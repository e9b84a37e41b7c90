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
from quietbit.privacy.cost import Cost, Formula, LossPair
from quietbit.privacy.loss import LossDistribution
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = ["poisson_cost", "poisson_gaussian"]

NODES = 4000
MOST_MU = 1e3
MOST_TERMS = 1024
REACH = 12.0  # standard deviations; the mass beyond is in the last node's delta
# relative error of a delta, from `gaussian_log_delta` and a few roundings; of a moment less one
MARGIN = 1e-9


def poisson_cost(near: Cost, far: Cost, rate: float) -> Cost:
    """Return the cost of a release to one sample of the site, where its batch was drawn in secret with ``rate`` < 1.

    ``near`` and ``far`` are the costs between two batches that differ by one sample's contribution
    being there or zero, and under the adjacency of the result. Refused where no line bounds the
    divergences at all orders, and where the sampler puts mass outside the certified law, which
    mixes over batches otherwise. Slack is the same for a mixture: it holds output by output in
    every batch.
    """
    q = check_real(rate, "rate", at_most=1.0)
    require(q < 1, "rate", rate, "below 1; all samples are priced without sampling")
    lined = max(near.slope, far.slope) < math.inf and near.lost == far.lost == 0
    rule = "gaussian, or imvu with two levels, where batches are drawn: others have no price that sampling lowers"
    require(lined, "mechanism", "another", rule)
    replaced = far.adjacency is Adjacency.REPLACE_ONE
    line, pair = (
        round_up(math.sqrt(max(2 * one, 2 * two / 4 if replaced else 0.0)), 1e-15)
        for one, two in ((near.slope, far.slope), (near.pair_slope, far.pair_slope))
    )
    if pair <= MOST_MU:
        losses = Formula(poisson_gaussian, pair, q, far.adjacency)
    else:
        losses = None
    bare = Cost.renyi(
        Formula(_batch_divergence, line, pair, q, replaced),
        f"Poisson batch of rate {q:g}",
        losses=losses,
    )
    return bare.with_slack(max(near.slack, far.slack)).like(far)


def _batch_divergence(alpha: float, line: float, pair: float, q: float, replaced: bool) -> float:
    """Return D_alpha of a Poisson batch, the larger of both directions; ``line`` is the root of 2 s."""
    if not replaced:
        return _removed(alpha, line, pair, q)
    grown = math.log(q) + alpha * (alpha - 1) * 2 * line**2
    convex = float(np.logaddexp(math.log1p(-q), grown)) + 1e-15 * (1 + abs(grown))
    order = max(alpha, 2.0)  # divergences grow with the order
    way = (order - 0.5) / (order - 1) * _removed(2 * order, line, pair, q) + _removed(
        2 * order - 1, line, pair, q
    )
    return round_up(min(max(0.0, convex) / (alpha - 1), way), 1e-12)


def _removed(alpha: float, line: float, pair: float, q: float) -> float:
    """Return that of the release with the sample against that without it, both ways round."""
    found = max(_there(alpha, line, q), _back(alpha, line, q))
    if pair <= MOST_MU:
        found = min(found, _there(alpha, pair, q))
    return round_up(found / (alpha - 1), 1e-12)


def _back(alpha: float, mu: float, q: float) -> float:
    """Return log(1 + c (e^(mu^2) - 1)), for numbers of any size."""
    times = alpha - 1
    power = -times * math.log1p(-q)
    if power + mu * mu > 300:
        return (power + mu * mu) * (1 + MARGIN)
    # Where c would lose its digits: -log(1-q) - q <= q^2 / (2 (1-q)), and e^p - 1 - p <= p^2 (1/2 +
    # p).
    small = times * q * q / (2 * (1 - q)) + power * power * (0.5 + power)
    if power > 1e-3:
        c = math.expm1(power) - times * q
    else:
        c = small
    return math.log1p(c * math.expm1(mu * mu)) * (1 + MARGIN)


def _there(alpha: float, mu: float, q: float) -> float:
    """Return (alpha - 1) D_alpha of the mixture against the release without the sample, by a chord between integers."""
    below = math.floor(alpha)
    return (below + 1 - alpha) * _log_moment(below, mu, q) + (alpha - below) * _log_moment(
        below + 1, mu, q
    )


@lru_cache(maxsize=4096)
def _log_moment(order: int, mu: float, q: float) -> float:
    if order < 2:
        return 0.0
    if (
        order > MOST_TERMS
    ):  # a mixture is no further from either part than these are from each other
        return order * (order - 1) * (mu * mu / 2) * (1 + MARGIN)
    j = np.arange(2, order + 1)
    exponent = j * (j - 1) * (mu * mu / 2)
    choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    with np.errstate(divide="ignore"):  # no divergence at all: its logarithm is -inf
        grown = exponent + np.log(-np.expm1(-exponent))
    terms = choose + (order - j) * math.log1p(-q) + j * math.log(q) + grown
    return float(np.logaddexp(0.0, logsumexp(terms))) * (1 + MARGIN)


@lru_cache(maxsize=64)
def poisson_gaussian(mu: float, q: float, adjacency: Adjacency) -> LossPair:
    """Return the losses of one release of a Poisson batch of rate ``q`` in (0, 1), both ways round.

    ``mu``: how far one sample of the batch moves the release, in standard deviations of a
    dominating Gaussian pair.
    """
    if adjacency is Adjacency.ZERO_OUT:
        losses = _losses(mu)
        deltas = _deltas(losses, mu)
        shares = 1 / (q * np.exp(-losses) + (1 - q))  # a' for b = e^loss, at most 1/(1 - q)
        nodes = np.append(np.log(shares), -math.log1p(-q) * (1 + 1e-15))
        back = _profile(nodes, np.append((1 - shares * (1 - q)) * deltas, 0.0))
        return _profile(np.log1p(q * np.expm1(losses)), q * deltas), back
    losses = _losses(2 * mu)
    losses = losses[losses >= 0]
    orders = 1 + q * np.expm1(losses)
    shares = orders * np.exp(-losses)
    heights = q * ((1 - shares) * _deltas(losses, mu) + shares * _deltas(losses, 2 * mu))
    return (_profile(np.log(orders), heights, symmetric=True),) * 2


def _losses(mu: float) -> FloatVector:
    """Return losses of the pair without sampling, dense where its mass is."""
    places = np.linspace(-REACH - mu, REACH + mu, NODES)
    found = np.unique(np.append(mu * places, 0.0))
    return np.asarray(found[np.abs(found) < 690.0])


def _deltas(losses: FloatVector, mu: float) -> FloatVector:
    """Return H_a(N(mu, 1) || N(0, 1)) at a = e^loss; below 1 by H_a(P || Q) = 1 - a + a H_1/a(Q || P)."""
    found = np.exp([gaussian_log_delta(abs(loss), mu) for loss in losses.tolist()])
    return np.where(losses >= 0, found, -np.expm1(losses) + np.exp(losses) * found)


def _profile(
    nodes: FloatVector, heights: FloatVector, *, symmetric: bool = False
) -> LossDistribution:
    kept = np.flatnonzero(
        np.append(np.diff(nodes) > 0, True)
    )  # rounding may bring the last nodes together
    upper = np.minimum(1.0, heights[kept] * (1 + MARGIN))
    return LossDistribution.from_profile(nodes[kept], upper, symmetric=symmetric)
