"""The auditor: an empirical lower bound on epsilon from the sampler that is shipped.

Idea     encode two neighbouring updates many times, count an event that tells them apart, and turn the
         counts into a statement that holds with a stated confidence. A lower bound above the claim proves
         that sampler and account disagree; one below proves nothing, it only fails to object.
Symbols  u, v neighbours; T = <decode(codes), u - v>, increasing in the likelihood ratio for the mechanisms
         here; event {T > t} under u, or {T <= t} under v. epsilon >= log((P(event) - delta) / P'(event)).
Source   Clopper and Pearson (1934); Ding et al. (CCS 2018) and Jagielski et al. (NeurIPS 2020) for
         auditing.

A quarter of the draws choose the event (any choice is valid, a good one is sharp), the rest are counted.
Each of the two bounds of each pair fails with probability (1 - confidence) / (2 pairs), so all hold
together with the confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import betaincinv

from quietbit._typing import FloatVector
from quietbit._validate import finite_real, require, whole_number
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.ball import Ball, usual_kernel
from quietbit.mechanism.base import Mechanism, check_adjacency, check_rng
from quietbit.privacy.guarantee import Adjacency, check_delta

__all__ = ["Audit", "audit", "clopper_pearson"]

Pair = tuple[FloatVector, FloatVector]
CHOOSING = 0.25
THRESHOLDS = 64


@final
@dataclass(frozen=True, slots=True)
class Audit:
    """What was found, beside what is claimed for one release at the same delta and adjacency.

    With probability ``confidence`` over the words drawn, the true epsilon is at least ``epsilon_lower``.
    """

    epsilon_lower: float
    epsilon_upper: float
    delta: float
    adjacency: Adjacency
    confidence: float
    samples: int

    @property
    def passed(self) -> bool:
        """Whether the sampler was not caught revealing more than the claim."""
        return self.epsilon_lower <= self.epsilon_upper


def audit(
    mechanism: Mechanism,
    adjacency: Adjacency,
    *,
    rng: RandomBits,
    delta: float = 1e-5,
    samples: int = 4000,
    confidence: float = 1 - 1e-6,
) -> Audit:
    """Audit one release of a mechanism by encoding ``samples`` times for each update of each pair.

    Pairs: one coordinate at the boundary, and all coordinates equal at the boundary, each against zero or against
    its negative. ``confidence`` is that of the lower bound.
    """
    check_adjacency(adjacency)
    check_rng(rng)
    delta = check_delta(delta)
    count = whole_number(samples, "samples", 100)
    sure = finite_real(confidence, "confidence", at_most=1 - 1e-12)
    require(sure >= 0.5, "confidence", confidence, "at least 0.5")
    claim = mechanism.privacy(adjacency).epsilon_upper(delta)
    pairs = _pairs(mechanism.domain, adjacency)
    doubt = (1 - sure) / (2 * len(pairs))
    found = max(_bound(mechanism, pair, rng, count, delta, doubt) for pair in pairs)
    return Audit(max(found, 0.0), claim, delta, adjacency, sure, count)


def clopper_pearson(hits: float, trials: int, doubt: float) -> tuple[float, float]:
    """(low, high): each one-sided bound on a probability fails with probability at most ``doubt``.

    >>> low, high = clopper_pearson(0, 100, 0.05)
    >>> low, round(high, 4)
    (0.0, 0.0295)
    """
    low = float(betaincinv(hits, trials - hits + 1, doubt)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - doubt)) if hits < trials else 1.0
    return low, high


def _pairs(ball: Ball, adjacency: Adjacency) -> list[Pair]:
    one = np.zeros(ball.dimension)
    one[0] = ball.radius
    updates = [one]
    if ball.dimension > 1:
        every = np.full(ball.dimension, ball.radius / ball.dimension ** (1 / ball.norm.order))
        updates.append(ball.clip(every).astype(np.float64))
    if adjacency is Adjacency.REPLACE_ONE:
        return [(update, -update) for update in updates]
    return [(sign * update, np.zeros(ball.dimension)) for update in updates for sign in (1.0, -1.0)]


def _bound(mechanism: Mechanism, pair: Pair, rng: RandomBits, count: int, delta: float, doubt: float) -> float:
    """The lower bound from one pair of updates."""
    direction = pair[0] - pair[1]
    first, second = (_statistics(mechanism, update, direction, rng, count) for update in pair)
    split = int(CHOOSING * count)
    threshold, upper_side = _choose(first[:split], second[:split], delta, doubt)
    first, second = first[split:], second[split:]
    if upper_side:
        return _log_ratio(int((first > threshold).sum()), int((second > threshold).sum()), first.size, delta, doubt)
    return _log_ratio(int((second <= threshold).sum()), int((first <= threshold).sum()), first.size, delta, doubt)


def _statistics(
    mechanism: Mechanism, update: FloatVector, direction: FloatVector, rng: RandomBits, count: int
) -> FloatVector:
    draws = (_released(mechanism, update, rng) for _ in range(count))
    return np.array([float(np.asarray(draw, dtype=np.float64) @ direction) for draw in draws])


def _choose(first: FloatVector, second: FloatVector, delta: float, doubt: float) -> tuple[float, bool]:
    """The threshold and side that look sharpest on the draws set aside for choosing."""
    both = np.sort(np.concatenate([first, second]))
    places = np.unique(np.linspace(0, both.size - 1, THRESHOLDS).astype(int))
    best = (-math.inf, float(both[0]), True)
    for threshold in np.unique(both[places]).tolist():
        above = (int((first > threshold).sum()), int((second > threshold).sum()))
        below = (int((second <= threshold).sum()), int((first <= threshold).sum()))
        for counts, side in ((above, True), (below, False)):
            best = max(best, (_log_ratio(*counts, first.size, delta, doubt), threshold, side))
    return best[1], best[2]


def _log_ratio(often: int, seldom: int, trials: int, delta: float, doubt: float) -> float:
    """log((P - delta)/P') with P bounded from below and P' from above."""
    likely, unlikely = clopper_pearson(often, trials, doubt)[0], clopper_pearson(seldom, trials, doubt)[1]
    return math.log((likely - delta) / unlikely) if likely > delta else -math.inf


def _released(mechanism: Mechanism, update: FloatVector, rng: RandomBits) -> FloatVector:
    """What a server decodes of one release."""
    body, total = np.zeros(mechanism.layout.size, dtype=np.uint8), mechanism.accumulator(usual_kernel(), 1)
    mechanism.write([update], rng, usual_kernel(), body)
    total.add([body])
    return total.reader(1)(0, mechanism.domain.dimension)
