"""Stochastic rounding to a grid: with a bound on the norm, or every coordinate independently.

Idea     rounding a coordinate up or down at random keeps its mean but lengthens the vector; drawing again until the
         length is acceptable makes the bound certain instead of probable. Privacy rests on that bound alone, which is
         checked in integers, and not on how exact the probabilities are. Independent rounding has no such bound, and
         there they matter: what is rounded is exactly a vector moved up by at most ROUNDING_SHIFT per coordinate.
Source   Kairouz, Liu, Steinke (ICML 2021), conditional rounding; docs/theory/samplers.md proves the bounds.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.kernel.rng import WordBlock
from quietbit.mechanism.ball import Norm

__all__ = ["ROUNDING_SHIFT", "TRIES", "conditional_rounding", "independent_rounding", "length_upper"]

TRIES = 200  # each fails with probability at most e^(-1/2): all of them with less than 1e-43
ROUNDING_SHIFT = 2.0**-53  # of a step of the grid


def length_upper(norm: Norm, reach: float, dimension: int, *, offset: bool = False) -> float:
    """Return a bound that a rounded vector of length at most ``reach`` meets with probability at least 1 - e^(-1/2).

    It bounds the sum of squares (L2) or of magnitudes (L1), in grid spacings from the centre. ``offset``: the centre
    lies midway between grid points.
    """
    root, reach = math.sqrt(dimension), reach * (1 + 1e-9)  # inputs are scaled in doubles
    if norm is Norm.L2:
        return min((reach + root) ** 2, reach**2 + dimension / 4 + reach + root / 2)
    return reach + min(float(dimension), dimension / 2 * offset + root / 2)


def conditional_rounding(
    values: FloatVector, norm: Norm, bound: float, block: WordBlock, *, offset: bool = False
) -> NDArray[np.int64]:
    """Return twice the grid points chosen beside ``values``, whose length is within the bound.

    Grid points are integers, or with ``offset`` halves of odd integers. Try k reads stream k of the words.
    """
    shift = 0.5 if offset else 0.0
    floor = np.floor(values - shift)
    part = values - shift - floor
    low = 2 * floor.astype(np.int64) + int(offset)
    limit = math.floor(bound * 2**norm.order)
    for attempt in range(TRIES):
        uniform = _uniform(block, attempt, values.size)
        points = low + 2 * (uniform < part)
        length = points @ points if norm is Norm.L2 else np.abs(points).sum()
        if int(length) <= limit:
            return np.asarray(points)
    inward = 2 * np.floor(np.abs(values) - shift).astype(np.int64) + int(offset)
    return np.asarray(np.where(values < 0, -1, 1) * np.maximum(inward, int(offset)))


def independent_rounding(values: FloatVector, block: WordBlock) -> NDArray[np.int64]:
    """Round each value down or up at random, so that the mean is the value; reads stream 0 of the words."""
    floor = np.floor(values)
    return np.asarray(floor.astype(np.int64) + (_uniform(block, 0, values.size) < values - floor))


def _uniform(block: WordBlock, stream: int, count: int) -> FloatVector:
    """Return uniform multiples of 2^-53 in [0, 1)."""
    return np.asarray((block.uniform64(stream, 0, count) >> np.uint64(11)) * 2.0**-53)
