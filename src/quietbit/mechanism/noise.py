"""Continuous noise from random words, by inverse distribution functions.

Idea     one 64-bit word makes one draw: its top bit is the sign and the other 63 the tail probability p =
         (k + 1/2) 2^-63, so that the far tails keep their relative accuracy. Nothing else is consulted.
Source   Mironov (CCS 2012) shows that the low digits of floating-point noise can betray the input; this
         noise has that defect too, and only the mechanisms that send floats use it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from quietbit._typing import FloatVector
from quietbit.kernel.rng import WordBlock

__all__ = ["CHUNK", "Noise", "laplace", "normal"]

CHUNK = 1 << 20
SIGN = np.uint64(1 << 63)
Noise = Callable[[WordBlock, int, int], FloatVector]


def normal(block: WordBlock, start: int, count: int) -> FloatVector:
    """Standard normal noise of coordinates ``start .. start + count - 1``: at most 9.2 in magnitude."""
    tail, sign = _tail_and_sign(block, start, count)
    return np.asarray(ndtri(tail / 2) * sign)


def laplace(block: WordBlock, start: int, count: int) -> FloatVector:
    """Laplace noise of scale 1: at most 44.4 in magnitude."""
    tail, sign = _tail_and_sign(block, start, count)
    return np.asarray(np.log(tail) * sign)


def _tail_and_sign(block: WordBlock, start: int, count: int) -> tuple[FloatVector, FloatVector]:
    words = block.uniform64(0, start, count)
    tail = ((words & ~SIGN).astype(np.float64) + 0.5) * 2.0**-63
    sign = np.where(words & SIGN, 1.0, -1.0)
    return np.minimum(tail, 1.0), sign
