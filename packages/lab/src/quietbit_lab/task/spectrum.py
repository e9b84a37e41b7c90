"""How many public directions to take: the number whose miss and noise together are least.

Idea     directions of one half of public gradients are held against the mean of the other half,
         both ways; what they miss is missed in every round, and noise grows with their number.
Symbols  as in `quietbit.gradients.subspace`.
Source   docs/how-to/send-fewer-numbers.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietbit.errors import check_int, check_real, require
from quietbit.gradients.subspace import Subspace

__all__ = ["best_size"]

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def best_size(
    gradients: ArrayLike,
    *,
    squared_error: float,
    clients: int,
    clip: float,
    sizes: Sequence[int] = SIZES,
) -> int:
    """Return how many directions to take, by public gradients; d where a subspace does not pay.

    Args:
        gradients: public ones, a row each, of the model that clients will get.
        squared_error: of a release per number, for clip 1 (`Calibration.squared_error`); nearly the
            same for every k.
        clients: the releases that are averaged: all of a run, since what directions miss they
            miss in every round.
        clip: that gradients are clipped to.
        sizes: which to try; those above half of the gradients are left out.

    >>> rng = np.random.default_rng(0)
    >>> rows = 1.0 + 0.1 * rng.normal(size=(40, 500))
    >>> best_size(rows, squared_error=1.7, clients=100, clip=20.0)
    1
    """
    error = check_real(squared_error, "squared_error", at_least=0.0)
    releases = check_int(clients, "clients", 1)
    radius = check_real(clip, "clip")
    rows = _finite(gradients)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    clipped = rows * np.minimum(1.0, radius / np.maximum(lengths, np.finfo(float).tiny))
    halves = (clipped[0::2], clipped[1::2])
    dimension = int(rows.shape[1])
    most = min(dimension - 1, *(half.shape[0] for half in halves))
    errors = {dimension: math.sqrt(dimension * error / releases)}
    for size in sizes:
        if size <= most:
            noise = math.sqrt(size * error / releases)
            errors[size] = math.hypot(_missed(halves, size, radius), noise)
    return min(errors, key=errors.__getitem__)


def _missed(halves: Sequence[NDArray[np.float64]], size: int, radius: float) -> float:
    """Return the length, in clips, of the part of a mean that directions of the others miss."""
    missed = []
    for public, others in (halves, halves[::-1]):
        mean = others.mean(axis=0) / radius
        missed.append((1 - Subspace.of_gradients(public, size).held(others)) * float(mean @ mean))
    return math.sqrt(float(np.mean(missed)))


def _finite(gradients: ArrayLike) -> NDArray[np.float64]:
    """Return public gradients, a row each."""
    rows = np.asarray(gradients, dtype=np.float64)
    require(rows.ndim == 2, "gradients", rows.shape, "a row for each public text or image")
    require(rows.shape[0] >= 2, "gradients", rows.shape[0], "at least 2 rows")
    require(bool(np.isfinite(rows).all()), "gradients", "not finite", "finite numbers")
    return rows
