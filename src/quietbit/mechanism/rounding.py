"""Stochastic rounding to a grid: with a bound on the norm, or every coordinate independently.

Idea     rounding a coordinate up or down at random keeps its mean but lengthens the vector; drawing again until the
         length is acceptable makes the bound certain instead of probable. Privacy rests on that bound alone, which is
         checked in integers, and not on how exact the probabilities of the rounding are.
Symbols  y: the vector in units of the grid's spacing, ||y|| <= R; d its dimension; e = the distance of the
         centre from the nearest grid point (0 or 1/2). Tries succeed with probability at least 1 - beta.
Source   Kairouz, Liu, Steinke (ICML 2021), conditional rounding; reproved here for any offset.

L2. A rounded coordinate's square takes two values l^2, u^2 with u = l + 1 around y, so its mean exceeds y^2
by (y - l)(u - y) <= 1/4, and its range is |u + l| <= 2|y| + 1. By Hoeffding, with probability 1 - beta the
sum exceeds its mean by at most sqrt(log(1/beta)/2) times the root of the summed squared ranges, which is at
most 2R + sqrt(d). With beta = e^(-1/2): R^2 + d/4 + (R + sqrt(d)/2). Always: (R + sqrt(d))^2.
L1. A magnitude's mean is |y|, or 1/2 inside the cell around the centre when e = 1/2; its range is at most
1, so R + d e + sqrt(d)/2 does; always: R + d.
Last resort. Rounding every coordinate towards the centre gives magnitudes of at most max(|y|, e), which meets both
bounds: it is used after 200 failed tries, which have probability 1e-43. So no update ever fails, and the bound always
holds.

Independent. Drawing again ties coordinates together; `independent_rounding` does not, and there the probabilities do
matter: y is rounded up with probability y - floor(y), rounded up to a multiple of 2^-53. So what is rounded is
exactly a vector whose coordinates are y's moved up by at most ROUNDING_SHIFT.
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

    For the L2 norm it bounds the sum of squares, for the L1 norm the sum of magnitudes; both in grid
    spacings, measured from the centre. ``offset`` says that the centre lies midway between grid points.
    """
    root, reach = math.sqrt(dimension), reach * (1 + 1e-9)  # inputs are scaled in doubles
    if norm is Norm.L2:
        return min((reach + root) ** 2, reach**2 + dimension / 4 + reach + root / 2)
    return reach + min(float(dimension), dimension / 2 * offset + root / 2)


def conditional_rounding(
    values: FloatVector, norm: Norm, bound: float, block: WordBlock, *, offset: bool = False
) -> NDArray[np.int64]:
    """Return twice the grid points chosen beside ``values``, whose length is within the bound.

    Grid points are integers, or with ``offset`` halves of odd integers; doubled, both are integers. Try k
    reads stream k of the words.
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
