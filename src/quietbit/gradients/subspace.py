"""Coordinates of an update in a few public directions, before any mechanism.

Idea     gradients of people who do alike lie near a few directions, and public gradients show
         which. A client sends the k coordinates of its update in them; the mechanism has dimension
         k, and so have its noise and its account. `federation.parts.subspace` does this in a
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
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import ArrayLike, NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, require

__all__ = ["Subspace"]

FLOAT_BYTES = 4
NEARLY = 1e-5  # how far rows of single precision may be from orthonormal
PIECE = 1 << 14  # numbers per step of the loop, so that they stay in the cache
SMALLEST = 1e-6  # of the largest singular value: directions below are roundings


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
