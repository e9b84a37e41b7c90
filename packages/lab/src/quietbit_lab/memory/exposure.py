"""Exposure: how much likelier a model finds a planted secret than other secrets of its kind.

Idea     a canary is a sentence with random words; a model that has learnt it gives it a smaller
         loss than nearly all sentences with other random words. Its rank among N such alternatives
         is turned into bits. Without memory the rank is uniform: exposure exceeds b bits with
         probability 2^-b, and its mean is about 1.44 bits.
Symbols  N alternatives, drawn independently of training; rank = 1 + how many of them have a smaller
         loss; exposure = log2(N + 1) - log2(rank), at most log2(N + 1).
Source   Carlini, Liu, Erlingsson, Kos, Song (USENIX Security 2019), section 4.3.
"""

from __future__ import annotations

from typing import final

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, NDArray
from scipy.stats import kstest

from quietbit.errors import require

__all__ = ["Exposure", "exposures"]


@final
@frozen(eq=False)
class Exposure:
    """The exposure in bits of every canary among ``alternatives`` others."""

    bits: NDArray[np.float64]
    ranks: NDArray[np.int64]
    alternatives: int

    @property
    def most(self) -> float:
        """The largest exposure that this many alternatives can show."""
        return float(np.log2(self.alternatives + 1))

    @property
    def mean(self) -> float:
        """The mean in bits; about 1.44 for a model that remembers nothing."""
        return float(self.bits.mean())

    @property
    def chance(self) -> float:
        """The chance of such ranks if nothing is remembered (one-sided Kolmogorov-Smirnov)."""
        places = (self.ranks - 0.5) / (self.alternatives + 1)
        return float(kstest(places, "uniform", alternative="greater").pvalue)


def exposures(canaries: ArrayLike, alternatives: ArrayLike) -> Exposure:
    """Return the exposures of canaries with these losses, among alternatives with those losses.

    A tie counts as a better rank, so that a model that cannot tell secrets apart is never called
    innocent by it.

    Args:
        canaries: the loss of every planted sentence.
        alternatives: losses of sentences with other secrets, the same for all canaries.

    >>> exposures([0.1, 2.5], [1.0, 2.0, 3.0]).ranks
    array([1, 3])
    """
    planted = np.asarray(canaries, dtype=np.float64).reshape(-1)
    others = np.sort(np.asarray(alternatives, dtype=np.float64).reshape(-1))
    require(planted.size > 0, "canaries", planted.size, "at least one")
    require(others.size > 0, "alternatives", others.size, "at least one")
    broken = int(np.count_nonzero(~np.isfinite(np.concatenate((planted, others)))))
    require(broken == 0, "losses", f"{broken} that are NaN or infinite", "finite numbers")
    ranks = 1 + np.searchsorted(others, planted, side="left")
    bits = np.log2(others.size + 1) - np.log2(ranks)
    return Exposure(bits, ranks.astype(np.int64), int(others.size))
