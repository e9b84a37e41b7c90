"""A lower bound on epsilon from releases of two neighbouring updates.

Idea     count an event that tells two neighbours apart, and turn the counts into a statement that holds with a stated
         confidence. A lower bound above the claim proves that sampler and account disagree; one below proves nothing.
Symbols  T = <decoded release, direction>; events {T > t} and {T <= t}, under either update:
         epsilon >= log((P(event) - delta) / P'(event)).
Source   Clopper and Pearson (1934); Ding et al. (CCS 2018) and Jagielski et al. (NeurIPS 2020) for
         auditing.

A quarter of the draws choose the event (any choice is valid, a good one is sharp), the rest are counted. Each of the
two bounds fails with probability ``doubt``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from quietbit._search import bisect
from quietbit._typing import FloatVector
from quietbit.auditor.tails import clopper_pearson

__all__ = ["counted", "detectable_lower", "measurable", "ratio_lower"]

CHOOSING = 0.25
THRESHOLDS = 64
POWER = 0.9
SIDES = ((True, True), (False, False), (True, False), (False, True))


def ratio_lower(first: FloatVector, second: FloatVector, delta: float, doubt: float) -> float:
    """Return the lower bound on epsilon from equally many values of the statistic under either update."""
    trials = counted(first.size)
    split = first.size - trials
    event = _choose(first[:split], second[:split], trials, delta, doubt)
    return _log_ratio(*event.counts(first[split:], second[split:]), trials, delta, doubt)


def counted(samples: int) -> int:
    """Return how many of these draws are counted once the event is chosen."""
    return samples - int(CHOOSING * samples)


def measurable(samples: int, delta: float, doubt: float) -> float:
    """Return the largest bound that ``samples`` can give: an event always seen under one, never under the other."""
    return _log_ratio(counted(samples), 0, counted(samples), delta, doubt)


def detectable_lower(samples: int, claim: float, delta: float, doubt: float) -> float:
    """Return the smallest epsilon that is found above the claim with probability 0.9, for the best event.

    The event is that of randomised response, P = sigmoid(epsilon) and P' = 1 - P, which is best for pure mechanisms;
    infinite where no epsilon is found.
    """
    trials = counted(samples)

    def found(epsilon: float) -> bool:
        likely = 1 / (1 + math.exp(-epsilon))
        # Both counts are unlucky at once with probability (1 - POWER).
        unlucky = ndtri(1 - (1 - POWER) / 2) * math.sqrt(trials * likely * (1 - likely))
        often = max(trials * likely - unlucky, 0.0)
        seldom = min(trials * (1 - likely) + unlucky, float(trials))
        return _log_ratio(often, seldom, trials, delta, doubt) > claim

    high = 2 * claim + 50.0
    return bisect(found, high, claim, halvings=60) if found(high) else math.inf


class _Event(NamedTuple):
    """T above the threshold, or at most it; more likely under the first update, or under the second."""

    threshold: float
    above: bool
    of_first: bool

    def counts(self, first: FloatVector, second: FloatVector) -> tuple[int, int]:
        """Return how often it happened where it is likely, and where it is not."""
        expected, other = (first, second) if self.of_first else (second, first)
        often, seldom = int((expected > self.threshold).sum()), int((other > self.threshold).sum())
        return (often, seldom) if self.above else (expected.size - often, other.size - seldom)


def _choose(first: FloatVector, second: FloatVector, trials: int, delta: float, doubt: float) -> _Event:
    """Return the most promising event for ``trials`` further draws, judged by those set aside."""
    both = np.sort(np.concatenate([first, second]))
    places = np.unique(np.linspace(0, both.size - 1, THRESHOLDS).astype(int))
    events = [_Event(threshold, *side) for threshold in np.unique(both[places]).tolist() for side in SIDES]

    def promise(event: _Event) -> float:
        often, seldom = (trials / first.size * count for count in event.counts(first, second))
        return _log_ratio(often, seldom, trials, delta, doubt)

    return max(events, key=promise)


def _log_ratio(often: float, seldom: float, trials: float, delta: float, doubt: float) -> float:
    """Return log((P - delta)/P') with P bounded from below and P' from above."""
    likely, unlikely = clopper_pearson(often, trials, doubt)[0], clopper_pearson(seldom, trials, doubt)[1]
    return math.log((likely - delta) / unlikely) if likely > delta else -math.inf
