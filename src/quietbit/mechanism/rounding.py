"""Round to integers at random, so that the mean is the value.

Idea     each value goes down or up by a 53-bit uniform number, which is exact for a vector that is
         moved up by at most `ROUNDING_SHIFT` of a step.
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
    """Round each value down or up at random, so that the mean is the value; reads stream 0 of the words."""
    floor = np.floor(values)
    return np.asarray(
        floor.astype(np.int64) + (uniform_doubles(block, 0, values.size) < values - floor)
    )


def uniform_doubles(block: WordBlock, stream: int, count: int) -> FloatVector:
    """Return uniform multiples of 2^-53 in [0, 1)."""
    return np.asarray((block.uniform64(stream, 0, count) >> np.uint64(11)) * 2.0**-53)
