"""Coordinates of an update in a few public directions, before any mechanism.

Idea     gradients of people who do alike lie near a few directions, and public gradients show
         which. A client sends the k coordinates of its update in them; the mechanism has dimension
         k, and so have its noise and its account. `quietbit.run.parts.subspace` does this in a
         run; nothing below knows that there is a subspace.
Symbols  d numbers are trained; B: k x d, orthonormal rows; c = B u, the coordinates; B^T c, the
         lifted update. v: squared error per number of one release in squared clips; n: releases of
         a round.

The hypothesis: B is fixed before a client's data is looked at, from public data. Nobody
need enforce it for privacy's sake: a release is a mechanism's release of k numbers that it clips
itself, whatever map made them, so a basis that a server chooses badly, or out of malice, costs
accuracy and no epsilon. What the basis itself reveals is of the data that it was made from, which
is why that must be public.
Bytes    k x d floats to every client, once. Then k numbers per round, both ways.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import ArrayLike, NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require

__all__ = ["SizeRow", "Subspace", "best_size", "spectrum"]

FLOAT_BYTES = 4
NEARLY = 1e-5  # how far rows of single precision may be from orthonormal
PIECE = 1 << 14  # numbers per step of the loop, so that they stay in the cache
SMALLEST = 1e-6  # of the largest singular value: directions below are roundings
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def _rows(value: ArrayLike) -> NDArray[np.float32]:
    rows = np.ascontiguousarray(value, dtype=np.float32)
    require(
        rows.ndim == 2 and 0 < rows.shape[0] <= rows.shape[1],
        "directions",
        rows.shape,
        "k rows of d, k <= d",
    )
    require(bool(np.isfinite(rows).all()), "directions", "not finite", "finite numbers")
    product = rows.astype(np.float64) @ rows.T.astype(np.float64)
    off = float(np.abs(product - np.eye(rows.shape[0])).max())
    require(off <= NEARLY, "directions", f"{off:.2g} off", f"orthonormal rows, to {NEARLY:g}")
    rows.setflags(write=False)
    return rows


@final
@frozen(eq=False)
class Subspace:
    """K public directions among d numbers: orthonormal rows in single precision.

    >>> plane = Subspace([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]])
    >>> plane.lift(plane.coordinates([2.0, 3.0, 4.0])).round(6).tolist()
    [2.0, 3.0, 4.0]
    """

    directions: NDArray[np.float32] = field(converter=_rows, repr=False)

    @classmethod
    def of_gradients(cls, gradients: ArrayLike, size: int) -> Subspace:
        """Return the ``size`` leading directions of public gradients (n, d), scaled to length 1.

        Zero rows count for nothing. Fewer independent gradients than ``size`` are refused.
        """
        rows = _public(gradients)
        count = check_int(size, "size", 1, rows.shape[1])
        values, vectors = np.linalg.eigh(rows @ rows.T)
        order = np.argsort(values)[::-1]
        independent = int(
            (values > (SMALLEST**2) * max(float(values.max()), np.finfo(float).tiny)).sum()
        )
        require(
            count <= independent,
            "size",
            count,
            f"at most {independent}, the independent public gradients",
        )
        leading = order[:count]
        spanned = (vectors[:, leading] / np.sqrt(values[leading])).T @ rows
        return cls(_orthonormal(spanned))

    @property
    def size(self) -> int:
        """K, the dimension of the mechanism."""
        return int(self.directions.shape[0])

    @property
    def dimension(self) -> int:
        """D, the number of trained numbers."""
        return int(self.directions.shape[1])

    @property
    def bytes_once(self) -> int:
        """What a client downloads, once."""
        return FLOAT_BYTES * self.size * self.dimension

    @property
    def digest(self) -> str:
        """A name by which both sides can see that they have the same directions."""
        return hashlib.sha256(self.directions.astype("<f4").tobytes()).hexdigest()[:16]

    def coordinates(self, update: ArrayLike) -> FloatVector:
        """Return the coordinates of an update, or of every row of a table; never longer than it."""
        values = np.asarray(update, dtype=np.float64)
        require(
            values.shape[-1:] == (self.dimension,),
            "update",
            values.shape,
            f"of {self.dimension} numbers",
        )
        return np.asarray(values @ self.directions.T.astype(np.float64))

    def lift(self, coordinates: ArrayLike) -> FloatVector:
        """Return the update of d numbers that has these coordinates, inside the subspace.

        Products are added one direction after the other, number by number, so that every machine
        gets the same bits: server and clients that replay rounds end with the same model.
        """
        values = np.asarray(coordinates, dtype=np.float64)
        require(values.shape == (self.size,), "coordinates", values.shape, f"({self.size},)")
        lifted = np.zeros(self.dimension)
        for start in range(0, self.dimension, PIECE):
            part = slice(start, start + PIECE)
            for value, direction in zip(values, self.directions, strict=True):
                lifted[part] += value * direction[part].astype(np.float64)
        return lifted

    def held(self, gradients: ArrayLike) -> float:
        """Return the share of the mean gradient's squared length inside the subspace, 0 to 1.

        Give it public gradients that the directions were not made from: of their own they hold too
        much.
        """
        mean = np.asarray(gradients, dtype=np.float64).mean(axis=0)
        energy = float(mean @ mean)
        inside = self.coordinates(mean)
        if energy == 0:
            return 0.0
        return min(1.0, float(inside @ inside) / energy)


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
            clip (`Expectation.run_noise`). That of k numbers is the root of k / d of it.
        clip: that gradients are clipped to.
        sizes: which to try; those above half of the gradients are left out.

    >>> rng = np.random.default_rng(0)
    >>> rows = 1.0 + 0.1 * rng.normal(size=(40, 500))
    >>> [(row.directions, round(row.error, 2)) for row in spectrum(rows, noise=3.0, clip=20.0)]
    [(1, 0.14), (2, 0.19), (4, 0.27), (8, 0.38), (16, 0.54), (500, 3.0)]
    """
    rows = np.asarray(gradients, dtype=np.float64)
    _public(rows)
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
    rows = np.asarray(gradients, dtype=np.float64)
    require(rows.ndim == 2, "gradients", rows.shape, "a row for each public text or image")
    noise = math.sqrt(rows.shape[1] * error / releases)
    table = spectrum(rows, noise=noise, clip=clip, sizes=sizes)
    return min(table, key=_error).directions


def _error(row: SizeRow) -> float:
    return row.error


def _public(gradients: ArrayLike) -> NDArray[np.float64]:
    """Return public gradients with length 1 each."""
    rows = np.asarray(gradients, dtype=np.float64)
    require(
        rows.ndim == 2 and rows.size > 0,
        "gradients",
        rows.shape,
        "a row for each public text or image",
    )
    require(bool(np.isfinite(rows).all()), "gradients", "not finite", "finite numbers")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    require(bool((lengths > 0).any()), "gradients", "zeros", "not all zero")
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def _orthonormal(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return orthonormal rows of the same span, with signs that no library chooses."""
    columns, triangle = np.linalg.qr(rows.T)
    signs = np.where(np.diag(triangle) < 0, -1.0, 1.0)
    directions = (columns * signs).T
    leading = directions[np.arange(directions.shape[0]), np.abs(directions).argmax(axis=1)]
    return np.asarray(directions * np.where(leading < 0, -1.0, 1.0)[:, None])
