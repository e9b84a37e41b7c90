"""The largest epsilon that the outputs of a law refute, for two neighbouring updates.

Idea     where P(E) > e^epsilon P'(E) + delta for one event E, no proof of epsilon can exist. Where
         the law is known, both probabilities are computed; else the event is chosen on some samples
         and counted on others, with exact binomial limits.
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

__all__ = ["refuted_by_samples", "refuted_by_signs"]

CONFIDENCE = 0.999  # of both limits together
TRIALS = 4000
SEED = 51
# Draws values of a statistic: large ones with the update, small ones with its neighbour.
Statistic: TypeAlias = Callable[[np.random.Generator, int, bool], FloatVector]


def refuted_by_samples(statistic: Statistic, delta: float) -> float:
    """Return what exceeding all of the neighbour's values refutes, counted on other samples."""
    rng = np.random.default_rng(SEED)
    threshold = statistic(rng, TRIALS, False).max()
    near = statistic(rng, TRIALS, True)
    far = statistic(rng, TRIALS, False)
    side = (1 - CONFIDENCE) / 2
    more = int((near >= threshold).sum())
    less = int((far >= threshold).sum())
    if more == 0 or less == TRIALS:
        return 0.0
    least = float(betaincinv(more, TRIALS - more + 1, side))
    most = float(betaincinv(less + 1, TRIALS - less, 1 - side))
    return _log_ratio(least, math.log(most), delta)


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
