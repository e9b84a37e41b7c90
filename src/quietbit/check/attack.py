"""The largest epsilon that the outputs of a law refute, for two neighbouring updates.

Idea     where P(E) > e^epsilon P'(E) + delta for one event E, no proof of epsilon can exist. Where
         the law is known, both probabilities are computed; else the event is chosen on one half of
         the samples and counted on the other, with exact binomial limits.
Symbols  p, p': probabilities of the event with the update and with its neighbour.
Source   Clopper and Pearson (1934); Ding et al. (CCS 2018) for choosing the event beforehand;
         Hoeffding (1963), Theorem 1, for P(Bin(n, q) >= a n) <= exp(-n KL(a, q)).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.special import bdtrc, betaincinv, rel_entr

from quietbit._typing import FloatVector

__all__ = ["CONFIDENCE", "refuted_by_counts", "refuted_by_samples", "refuted_by_signs"]

CONFIDENCE = 0.999  # of both limits together
TRIALS = 4000
SEED = 51
# Draws values of a statistic: large ones with the update, small ones with its neighbour.
Statistic: TypeAlias = Callable[[np.random.Generator, int, bool], FloatVector]


def refuted_by_counts(near: int, far: int, trials: int, delta: float) -> float:
    """Return log((p - delta) / p') for the least p and the most p' that the counts allow."""
    side = (1 - CONFIDENCE) / 2
    least = float(betaincinv(near, trials - near + 1, side)) if near else 0.0
    most = float(betaincinv(far + 1, trials - far, 1 - side)) if far < trials else 1.0
    return _log_ratio(least, math.log(most), delta)


def refuted_by_samples(statistic: Statistic, delta: float, trials: int = TRIALS) -> float:
    """Return what a threshold refutes, found on other samples than it is counted on."""
    rng = np.random.default_rng(SEED)
    near = statistic(rng, 2 * trials, True)
    far = statistic(rng, 2 * trials, False)

    def refuted(threshold: float, half: slice) -> float:
        hits = [int((values[half] >= threshold).sum()) for values in (near, far)]
        return refuted_by_counts(hits[0], hits[1], trials, delta)

    thresholds = np.quantile(near[:trials], np.linspace(0.02, 0.98, 49)).tolist()
    chosen = max(thresholds, key=lambda threshold: refuted(threshold, slice(trials)))
    return refuted(chosen, slice(trials, None))


def refuted_by_signs(number: int, near: float, far: float, delta: float) -> float:
    """Return what the number of positive outputs refutes, of which each is with these chances."""
    threshold = math.floor(number * near)
    share = threshold / number
    exponent = number * float(rel_entr(share, far) + rel_entr(1 - share, 1 - far))
    return _log_ratio(float(bdtrc(threshold - 1, number, near)), -exponent, delta)


def _log_ratio(near: float, log_far: float, delta: float) -> float:
    if near <= delta:
        return 0.0
    return max(0.0, math.log(near - delta) - log_far)
