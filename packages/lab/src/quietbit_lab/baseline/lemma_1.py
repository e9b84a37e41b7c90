"""The paper's constant of Lemma 1, for comparison: the library's accounts use sharper ones.

Symbols  eps + eps': the steepest log-probability before normalisation, and the drift of its mean.
Source   Guo et al. (ICML 2023), Lemma 1.
"""

from __future__ import annotations

import numpy as np

from quietbit.design.table import Design
from quietbit.privacy.divergence import Segments, mean_and_law

__all__ = ["paper_constant_upper"]


def paper_constant_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return eps + eps' of Lemma 1, measured on the stored table over [low, high], rounded up."""
    segments = Segments.over(design, low, high, merge=False)
    slope = segments.slope
    steepest = float(np.abs(slope).max())
    means = [mean_and_law(eta, slope)[0] for eta in (segments.start, segments.end)]
    drift = float(np.abs(means).max())
    return (steepest + drift) * (1 + 8 * segments.noise) + 2 * segments.slope_error
