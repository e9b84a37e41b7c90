"""Exact bounds on a probability from counts.

Source   Clopper and Pearson (1934).
"""

from __future__ import annotations

from scipy.special import betaincinv

__all__ = ["clopper_pearson"]


def clopper_pearson(hits: float, trials: float, doubt: float) -> tuple[float, float]:
    """Return bounds (low, high) on a probability, each wrong with probability at most ``doubt``.

    >>> low, high = clopper_pearson(0, 100, 0.05)
    >>> low, round(high, 4)
    (0.0, 0.0295)
    """
    low = 0.0
    if hits > 0:
        low = float(betaincinv(hits, trials - hits + 1, doubt))
    high = 1.0
    if hits < trials:
        high = float(betaincinv(hits + 1, trials - hits, 1 - doubt))
    return low, high
