"""Round to integers at random, so that the mean is the value.

Idea     a 53-bit uniform number decides whether a value goes down or up. The law is exact for a
         value that is larger by at most `ROUNDING_SHIFT` of a step.
Source   Alistarh et al. (2017), "QSGD".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.kernel.rng import WordBlock

__all__ = ["ROUNDING_SHIFT", "independent_rounding", "uniform_doubles"]

ROUNDING_SHIFT = 2.0**-53  # of a step of the grid


def independent_rounding(values: FloatVector, block: WordBlock) -> NDArray[np.int64]:
    """Round each value down or up at random, so that the mean is the value; reads stream 0."""
    floor = np.floor(values)
    rounded_up = uniform_doubles(block, 0, values.size) < values - floor
    return np.asarray(floor.astype(np.int64) + rounded_up)


def uniform_doubles(block: WordBlock, stream: int, count: int) -> FloatVector:
    """Return uniform multiples of 2^-53 in [0, 1)."""
    return np.asarray((block.uniform64(stream, 0, count) >> np.uint64(11)) * 2.0**-53)
