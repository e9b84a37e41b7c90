"""Limits on the chance deviation of a sum, for every check of the auditor.

Idea     limits come from theorems for finitely many draws, not from the normal limit, so that a stated false-alarm rate
         holds. What they need of a law, its variance and the reach of its values, comes from the claim and from the
         largest value seen; the latter is widened, since a larger one may exist.
Symbols  v = variance of a sum; b = reach: no term is larger in magnitude; L = log(1/doubt).
Source   Bernstein (1924), and Freedman (1975) for martingales: P(S >= t) <= exp(-t^2/(2 (v + b t/3)));
         Clopper and Pearson (1934); for sums of non-negative terms Maurer (2003): P(S <= E S - t) <=
         exp(-t^2/(2 sum E X^2)).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import betaincinv

__all__ = ["REACH_MARGIN", "bernstein_limit", "bernstein_tail", "clopper_pearson", "lower_limit"]

REACH_MARGIN = 1.25


def bernstein_limit(variance: Any, reach: Any, doubt: float) -> Any:
    """Return a limit that a sum of mean zero exceeds with probability at most ``doubt``, elementwise for arrays.

    >>> round(bernstein_limit(100.0, 0.0, 1e-9), 1), round(bernstein_limit(100.0, 1.0, 1e-9), 1)
    (64.4, 71.7)
    """
    level = -math.log(doubt)
    linear = np.asarray(reach, dtype=np.float64) * (level / 3)
    limit = linear + np.sqrt(np.square(linear) + 2 * level * np.asarray(variance, dtype=np.float64))
    return float(limit) if np.ndim(limit) == 0 else limit


def bernstein_tail(excess: float, variance: float, reach: float) -> float:
    """Return the logarithm of the probability bound for a sum of mean zero to reach ``excess``."""
    return -(excess**2) / (2 * (variance + reach * excess / 3)) if excess > 0 else 0.0


def lower_limit(second_moment: Any, doubt: float) -> Any:
    """Return how far a sum of non-negative terms falls below its mean with probability at most ``doubt``."""
    return np.sqrt(-2 * math.log(doubt) * np.asarray(second_moment, dtype=np.float64))


def clopper_pearson(hits: float, trials: float, doubt: float) -> tuple[float, float]:
    """Return (low, high): each one-sided bound on a probability fails with probability at most ``doubt``.

    >>> low, high = clopper_pearson(0, 100, 0.05)
    >>> low, round(high, 4)
    (0.0, 0.0295)
    """
    low = float(betaincinv(hits, trials - hits + 1, doubt)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - doubt)) if hits < trials else 1.0
    return low, high
