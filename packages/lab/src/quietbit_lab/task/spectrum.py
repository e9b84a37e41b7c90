"""How many public directions to take: what each number of them holds, and the noise beside it.

Idea     directions of one half of public gradients are held against the mean of the other half,
         both ways; what they miss is missed in every round, and noise grows with their number.
Symbols  as in `quietbit.gradients.subspace`.
Source   docs/how-to/send-fewer-numbers.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np
from attrs import frozen
from numpy.typing import ArrayLike, NDArray

from quietbit.errors import check_int, check_real, require
from quietbit.gradients.subspace import Subspace

__all__ = ["SizeRow", "best_size", "spectrum"]

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@final
@frozen
class SizeRow:
    """What k ``directions`` buy; lengths are in clips.

    ``held`` is the share of the mean gradient's squared length that the directions have, ``missed``
    the length of the rest, and ``noise`` that of k numbers in the mean. All numbers of the model
    miss nothing.
    """

    directions: int
    held: float
    missed: float
    noise: float

    @property
    def error(self) -> float:
        """The expected length of what is wrong with the mean."""
        return math.hypot(self.missed, self.noise)


def spectrum(
    gradients: ArrayLike, *, noise: float, clip: float, sizes: Sequence[int] = SIZES
) -> list[SizeRow]:
    """Return what each number of directions buys, by public gradients; the last row has all d.

    Directions of one half of the gradients are held against the mean of the other half, both ways.

    Args:
        gradients: public ones, a row each, of the model that clients will get.
        noise: length of the noise in the mean of all d numbers over the run, as a multiple of the
            clip (`Forecast.run_noise`). That of k numbers is the root of k / d of it.
        clip: that gradients are clipped to.
        sizes: which to try; those above half of the gradients are left out.

    >>> rng = np.random.default_rng(0)
    >>> rows = 1.0 + 0.1 * rng.normal(size=(40, 500))
    >>> [(row.directions, round(row.error, 2)) for row in spectrum(rows, noise=3.0, clip=20.0)]
    [(1, 0.14), (2, 0.19), (4, 0.27), (8, 0.38), (16, 0.54), (500, 3.0)]
    """
    rows = _finite(gradients)
    radius = check_real(clip, "clip")
    loudness = check_real(noise, "noise", at_least=0.0)
    count = int(rows.shape[0])
    require(count >= 2, "gradients", count, "at least 2 rows")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    clipped = rows * np.minimum(1.0, radius / np.maximum(lengths, np.finfo(float).tiny))
    halves = (clipped[0::2], clipped[1::2])
    dimension = int(rows.shape[1])
    most = min(dimension - 1, *(half.shape[0] for half in halves))
    tried = [size for size in sizes if size <= most]
    means = [half.mean(axis=0) / radius for half in halves]
    energy = float(np.mean([mean @ mean for mean in means]))
    table = []
    for size in tried:
        missed = []
        for public, others, mean in ((*halves, means[1]), (*halves[::-1], means[0])):
            share = Subspace.of_gradients(public, size).held(others)
            missed.append((1 - share) * float(mean @ mean))
        rest = float(np.mean(missed))
        held = 1.0 - rest / energy if energy > 0 else 0.0
        table.append(SizeRow(size, held, math.sqrt(rest), loudness * math.sqrt(size / dimension)))
    return [*table, SizeRow(dimension, 1.0, 0.0, loudness)]


def best_size(
    gradients: ArrayLike,
    *,
    squared_error: float,
    clients: int,
    clip: float,
    sizes: Sequence[int] = SIZES,
) -> int:
    """Return how many directions to take, by public gradients; d where a subspace does not pay.

    It is the row of `spectrum` with the least error.

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
    rows = _finite(gradients)
    noise = math.sqrt(rows.shape[1] * error / releases)
    table = spectrum(rows, noise=noise, clip=clip, sizes=sizes)
    return min(table, key=_error).directions


def _error(row: SizeRow) -> float:
    return row.error


def _finite(gradients: ArrayLike) -> NDArray[np.float64]:
    """Return public gradients, a row each."""
    rows = np.asarray(gradients, dtype=np.float64)
    require(rows.ndim == 2, "gradients", rows.shape, "a row for each public text or image")
    require(bool(np.isfinite(rows).all()), "gradients", "not finite", "finite numbers")
    return rows
