"""A lower bound on epsilon from releases of two neighbouring updates.

Idea     count an event that tells two neighbours apart, and turn the counts into a statement that holds with a
         stated confidence. A lower bound above the claim proves that sampler and account disagree; one below
         proves nothing, it only fails to object.
Symbols  T = <decoded release, direction>; events {T > t} and {T <= t}, under either update:
         epsilon >= log((P(event) - delta) / P'(event)).
Source   Clopper and Pearson (1934); Ding et al. (CCS 2018) and Jagielski et al. (NeurIPS 2020) for
         auditing.

A quarter of the draws choose the event (any choice is valid, a good one is sharp), the rest are counted. Each of the
two bounds fails with probability ``doubt``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

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
    """The lower bound on epsilon from the statistic's values under either update, as many of each."""
    split = first.size - counted(first.size)
    event = _choose(first[:split], second[:split], first.size - split, delta, doubt)
    often, seldom = event.counts(first[split:], second[split:])
    return _log_ratio(often, seldom, first.size - split, delta, doubt)


def counted(samples: int) -> int:
    """How many of these draws are counted once the event is chosen."""
    return samples - int(CHOOSING * samples)


def measurable(samples: int, delta: float, doubt: float) -> float:
    """The largest lower bound that ``samples`` can give: an event always seen under one, never under the other."""
    return _log_ratio(counted(samples), 0, counted(samples), delta, doubt)


def detectable_lower(samples: int, claim: float, delta: float, doubt: float) -> float:
    """The smallest epsilon that is found above the claim with probability 0.9, for the best of events.

    The event is that of randomised response, P = sigmoid(epsilon) and P' = 1 - P, which no pure mechanism betters;
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

    low, high = claim, 2 * claim + 50.0
    if not found(high):
        return math.inf
    return bisect(found, high, low, halvings=60)


@final
@dataclass(frozen=True, slots=True)
class _Event:
    """T above the threshold, or at most it; expected of the first update, or of the second."""

    threshold: float
    above: bool
    of_first: bool

    def counts(self, first: FloatVector, second: FloatVector) -> tuple[int, int]:
        """How often it happened where it is expected, and where it is not."""
        hits = [int((values > self.threshold).sum()) for values in (first, second)]
        if not self.above:
            hits = [first.size - hits[0], second.size - hits[1]]
        return (hits[0], hits[1]) if self.of_first else (hits[1], hits[0])


def _choose(first: FloatVector, second: FloatVector, trials: int, delta: float, doubt: float) -> _Event:
    """The event that promises most for ``trials`` further draws, judged by those set aside."""
    both = np.sort(np.concatenate([first, second]))
    places = np.unique(np.linspace(0, both.size - 1, THRESHOLDS).astype(int))
    more = trials / first.size
    best, most = _Event(float(both[0]), True, True), -math.inf
    for threshold in np.unique(both[places]).tolist():
        for above, of_first in SIDES:
            event = _Event(threshold, above, of_first)
            often, seldom = event.counts(first, second)
            promise = _log_ratio(more * often, more * seldom, trials, delta, doubt)
            if promise > most:
                best, most = event, promise
    return best


def _log_ratio(often: float, seldom: float, trials: float, delta: float, doubt: float) -> float:
    """log((P - delta)/P') with P bounded from below and P' from above."""
    likely, unlikely = clopper_pearson(often, trials, doubt)[0], clopper_pearson(seldom, trials, doubt)[1]
    return math.log((likely - delta) / unlikely) if likely > delta else -math.inf
