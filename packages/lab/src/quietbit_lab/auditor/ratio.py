"""A lower bound on epsilon from releases of two neighbouring updates.

Idea     count an event that tells two neighbours apart, and turn the counts into a statement that
         holds with a stated confidence. A lower bound above the claim proves that sampler and
         account disagree; one below proves nothing. A quarter of the draws choose the event (any
         choice is valid, a good one is sharp), the rest are counted.
Symbols  T = <decoded release, direction>; events {T > t} and {T <= t}, under either update: epsilon
         >= log((P(event) - delta) / P'(event)). Each of the two bounds fails with probability
         ``doubt``.
Source   Clopper and Pearson (1934); for auditing Ding et al. (CCS 2018), Jagielski et al. (NeurIPS
         2020).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from quietbit._search import bisect
from quietbit._typing import FloatVector
from quietbit.federation.intervals import clopper_pearson

__all__ = ["counted", "detectable_lower", "measurable", "ratio_lower"]

CHOOSING = 0.25
THRESHOLDS = 64
POWER = 0.9


def ratio_lower(first: FloatVector, second: FloatVector, delta: float, doubt: float) -> float:
    """Return the lower bound on epsilon from as many values under either update."""
    trials = counted(first.size)
    split = first.size - trials
    both = np.sort(np.concatenate([first[:split], second[:split]]))
    places = np.unique(np.linspace(0, both.size - 1, THRESHOLDS).astype(int))
    events = [
        (t, side, way)
        for t in np.unique(both[places]).tolist()
        for side in (True, False)
        for way in (1, -1)
    ]

    def promise(event: tuple[float, bool, int]) -> float:
        often, seldom = (
            trials / split * count for count in _counts(event, first[:split], second[:split])
        )
        return _log_ratio(often, seldom, trials, delta, doubt)

    return _log_ratio(
        *_counts(max(events, key=promise), first[split:], second[split:]), trials, delta, doubt
    )


def _counts(
    event: tuple[float, bool, int], first: FloatVector, second: FloatVector
) -> tuple[int, int]:
    """Return how often the event happened under the likelier update, and the other."""
    threshold, above, way = event
    often, seldom = (
        int(((values > threshold) == above).sum()) for values in (first, second)[::way]
    )
    return often, seldom


def counted(samples: int) -> int:
    """Return how many of these draws are counted once the event is chosen."""
    return samples - int(CHOOSING * samples)


def measurable(samples: int, delta: float, doubt: float) -> float:
    """Return the largest bound that ``samples`` can give: always under one, never the other."""
    return _log_ratio(counted(samples), 0, counted(samples), delta, doubt)


def detectable_lower(samples: int, claim: float, delta: float, doubt: float) -> float:
    """Return the smallest epsilon that is found above the claim 9 times in 10, or infinity.

    The event is that of randomised response, P = sigmoid(epsilon) and P' = 1 - P, the best for pure
    mechanisms.
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
    if found(high):
        return bisect(found, high, claim, halvings=60)
    return math.inf


def _log_ratio(often: float, seldom: float, trials: float, delta: float, doubt: float) -> float:
    """Return log((P - delta)/P') with P bounded from below and P' from above."""
    likely = clopper_pearson(often, trials, doubt)[0]
    unlikely = clopper_pearson(seldom, trials, doubt)[1]
    if likely > delta:
        return math.log((likely - delta) / unlikely)
    return -math.inf
