"""Amplification by secret Poisson batches: a site draws each sample independently with probability q.

Idea     a sample that is probably not in the batch is hidden by that. For Poisson sampling the hockey-stick divergence
         of the release is known exactly from that of the release without sampling, in either direction; as dominating
         pairs they compose over all steps.
Symbols  q: sampling rate; P, Q: the release with the sample in its batch and without it, dominated by N(mu, 1) against
         N(0, 1); delta(a) = H_a(P || Q), a = e^epsilon; P': the same with another sample in its place.
Source   Zhu, Dong, Wang (2022), Theorem 11; Balle, Barthe, Gaboardi (2018), Theorem 2, for replace-one; Mironov,
         Talwar, Zhang (2019), section 3.3 and Theorem 5, for Rényi divergences; Mironov (2017), Proposition 11.

With the sample against without. The mixture is M = (1-q) Q + q P. For a' = 1 + q (a - 1), a >= 0,
    M - a' Q = q (P - a Q), so H_a'(M || Q) = q H_a(P || Q); below a' = 1 - q it is 1 - a'.
The other way round, for a' < 1/(1-q),
    Q - a' M = (1 - a' (1-q)) (Q - b P), b = a' q / (1 - a' (1-q)), so H_a'(Q || M) = (1 - a' (1-q)) H_b(Q || P),
and it is 0 beyond. The rest of the batch is the same in both worlds; joint convexity covers its randomness. So is the
divisor of the mean: the public q n, never the number drawn.

One sample replaced by another, for a' = 1 + q (a - 1) >= 1 and s = a'/a:
    (1-q) Q + q P - a' ((1-q) Q + q P') = q (P - a ((1-s) Q + s P')),
by joint convexity at most q ((1-s) H_a(P || Q) + s H_a(P || P')), where P and P' are twice as far apart. Below 1 by
H_a(M || M') = 1 - a + a H_1/a(M' || M); the bound is the same both ways round.

Rényi divergences, for accounts that add them up, where D_alpha(P || Q) and D_alpha(Q || P) are at most s alpha. With
integer k, E_Q (M/Q)^k - 1 = sum over j >= 2 of C(k, j) (1-q)^(k-j) q^j (E_Q (P/Q)^j - 1), every term at most that of a
Gaussian pair with mu^2 = 2 s; the logarithm of a moment is convex in the order, so a chord bounds it in between. The
other way round, with r = P/Q, E_Q r = 1 and f(r) = (1 + q (r-1))^(1-alpha): E_M (Q/M)^alpha = E_Q f(r), and
(f(r) - 1 + (alpha-1) q (r-1)) / (r-1)^2 falls in r >= 0, for f'' does; so it is at most its value c at r = 0,
c = (1-q)^(1-alpha) - 1 - (alpha-1) q, and E_Q f <= 1 + c (e^(2 s) - 1). Where a Gaussian pair dominates, the second way
round is never the larger one. For replace-one: the smaller of joint convexity, 1 - q + q e^(alpha (alpha-1) s'), s' of
P and P', and the way M, Q, M' by the weak triangle inequality with p = 2.

Batches of a fixed size, shuffled epochs and dropped last batches are sampled differently: none of this applies to them.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from quietbit._typing import FloatVector
from quietbit.errors import check_real, require
from quietbit.privacy.conversion import round_up
from quietbit.privacy.cost import Cost, Formula, LossPair
from quietbit.privacy.gaussian import gaussian_log_delta
from quietbit.privacy.loss import LossDistribution
from quietbit.target import Adjacency

__all__ = ["poisson_cost", "poisson_gaussian"]

NODES = 4000
MOST_MU, MOST_TERMS = 1e3, 1024
REACH = 12.0  # standard deviations; the mass beyond is in the last node's delta
MARGIN = 1e-9  # relative error of a delta, from `gaussian_log_delta` and a few roundings; of a moment less one


def poisson_cost(near: Cost, far: Cost, rate: float) -> Cost:
    """Return the cost of a release to one sample of the site, where its batch was drawn in secret with ``rate`` < 1.

    Args:
        near: cost between two batches that differ by one sample's contribution being there or zero.
        far: cost between two that differ by one sample's contribution being replaced; the adjacency of the result.
        rate: q.

    Refused where no line bounds the divergences at all orders, and where the sampler puts mass outside the certified
    law, which mixes over batches otherwise. Slack is the same for a mixture: it holds output by output in every batch.
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
    losses = Formula(poisson_gaussian, pair, q, far.adjacency) if pair <= MOST_MU else None
    bare = Cost.renyi(Formula(_divergence, line, pair, q, replaced), f"Poisson batch of rate {q:g}", losses=losses)
    return bare.with_slack(max(near.slack, far.slack)).like(far)


def _divergence(alpha: float, line: float, pair: float, q: float, replaced: bool) -> float:
    """Return D_alpha of a Poisson batch, the larger of both directions; ``line`` is the root of 2 s."""
    if not replaced:
        return _removed(alpha, line, pair, q)
    grown = math.log(q) + alpha * (alpha - 1) * 2 * line**2
    convex = float(np.logaddexp(math.log1p(-q), grown)) + 1e-15 * (1 + abs(grown))
    order = max(alpha, 2.0)  # divergences grow with the order
    way = (order - 0.5) / (order - 1) * _removed(2 * order, line, pair, q) + _removed(2 * order - 1, line, pair, q)
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
    # Where c would lose its digits: -log(1-q) - q <= q^2 / (2 (1-q)), and e^p - 1 - p <= p^2 (1/2 + p).
    small = times * q * q / (2 * (1 - q)) + power * power * (0.5 + power)
    c = math.expm1(power) - times * q if power > 1e-3 else small
    return math.log1p(c * math.expm1(mu * mu)) * (1 + MARGIN)


def _there(alpha: float, mu: float, q: float) -> float:
    """Return (alpha - 1) D_alpha of the mixture against the release without the sample, by a chord between integers."""
    below = math.floor(alpha)
    return (below + 1 - alpha) * _log_moment(below, mu, q) + (alpha - below) * _log_moment(below + 1, mu, q)


@lru_cache(maxsize=4096)
def _log_moment(order: int, mu: float, q: float) -> float:
    if order < 2:
        return 0.0
    if order > MOST_TERMS:  # a mixture is no further from either part than these are from each other
        return order * (order - 1) * (mu * mu / 2) * (1 + MARGIN)
    j = np.arange(2, order + 1)
    exponent = j * (j - 1) * (mu * mu / 2)
    choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    with np.errstate(divide="ignore"):  # no divergence at all: its logarithm is -inf
        grown = exponent + np.log(-np.expm1(-exponent))
    terms = choose + (order - j) * math.log1p(-q) + j * math.log(q) + grown
    return float(np.logaddexp(0.0, logsumexp(terms))) * (1 + MARGIN)


@lru_cache(maxsize=64)
def poisson_gaussian(mu: float, rate: float, adjacency: Adjacency) -> LossPair:
    """Return the losses of one release of a Poisson batch, both ways round.

    Args:
        mu: how far one sample of the batch moves the release, in standard deviations of a dominating Gaussian pair.
        rate: q, the probability with which each sample is drawn, above 0 and below 1.
        adjacency: zero-out removes the sample; replace-one puts another in its place.
    """
    if adjacency is Adjacency.ZERO_OUT:
        return _with(mu, rate), _without(mu, rate)
    both = _replaced(mu, rate)
    return both, both


def _with(mu: float, q: float) -> LossDistribution:
    """Return the losses of the mixture against the release without the sample."""
    losses = _losses(mu)
    return _profile(np.log1p(q * np.expm1(losses)), q * _deltas(losses, mu))


def _without(mu: float, q: float) -> LossDistribution:
    """Return the losses of the release without the sample against the mixture, none above -log(1 - q)."""
    losses = _losses(mu)
    shares = 1 / (q * np.exp(-losses) + (1 - q))  # a' for b = e^loss
    highest = -math.log1p(-q) * (1 + 1e-15)
    heights = (1 - shares * (1 - q)) * _deltas(losses, mu)
    return _profile(np.append(np.log(shares), highest), np.append(heights, 0.0))


def _replaced(mu: float, q: float) -> LossDistribution:
    """Return the losses of one mixture against another, in either direction."""
    losses = _losses(2 * mu)
    losses = losses[losses >= 0]
    orders = 1 + q * np.expm1(losses)
    shares = orders * np.exp(-losses)
    heights = q * ((1 - shares) * _deltas(losses, mu) + shares * _deltas(losses, 2 * mu))
    return _profile(np.log(orders), heights, symmetric=True)


def _losses(mu: float) -> FloatVector:
    """Return losses of the pair without sampling, dense where its mass is."""
    places = np.linspace(-REACH - mu, REACH + mu, NODES)
    found = np.unique(np.append(mu * places, 0.0))
    return np.asarray(found[np.abs(found) < 690.0])


def _deltas(losses: FloatVector, mu: float) -> FloatVector:
    """Return H_a(N(mu, 1) || N(0, 1)) at a = e^loss; below 1 by H_a(P || Q) = 1 - a + a H_1/a(Q || P)."""
    found = np.exp([gaussian_log_delta(abs(loss), mu) for loss in losses.tolist()])
    return np.where(losses >= 0, found, -np.expm1(losses) + np.exp(losses) * found)


def _profile(nodes: FloatVector, heights: FloatVector, *, symmetric: bool = False) -> LossDistribution:
    kept = np.flatnonzero(np.append(np.diff(nodes) > 0, True))  # rounding may bring the last nodes together
    upper = np.minimum(1.0, heights[kept] * (1 + MARGIN))
    return LossDistribution.from_profile(nodes[kept], upper, symmetric=symmetric)
