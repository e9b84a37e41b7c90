"""Rows of a rotated update: the k of p coordinates that a release covers, and who chooses them.

Idea     rotate the whole update with public signs, y = H D x / sqrt(p), and keep k of its p coordinates: averaged over
         rows, all choices are equally good. Either every release draws its rows, named by a public nonce, or all
         clients of a round keep the same rows, derived from the run and the round number.
Symbols  d = dimension, p = d padded to a power of two, k = `keep`; S: the k rows; C = radius.
Source   docs/theory/vector-mechanism.md, sections "Rows" and "Shared rows".

Account. Rows depend on public values, or on random bits independent of all data, and are public either way. Given the
rows, a release is that of a mechanism on the k-ball, whose cost does not depend on which rows they are: so own and
shared rows cost exactly the same.

Error. With own rows, each client's projection errs by at most |x|^2/k per coordinate, and these errors average out over
clients. With shared rows the error is |mean|^2/k and does not average out. A mean is then k numbers, which are all that
a server has to send: whoever knows the rows can spread them (`unproject`).
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from typing import Any, Self, cast

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import WordBlock
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.ball import Ball, Norm, check_ball, usual_kernel
from quietbit.mechanism.base import Mechanism, Parts, passed_on

__all__ = ["NONCE", "Rowed", "check_keep", "check_rotated", "check_rows", "check_seed", "fewest_kept", "round_number"]

NONCE = 8  # bytes that name rows
COST = 0.01
MOST_ROWS = 2**64 - 1
LARGEST_RADIUS = 2.0**90


class Rowed(Mechanism):
    """A mechanism that keeps k rotated coordinates; ``rows`` is None where every release draws its rows.

    Otherwise ``rows`` identifies the shared rows, as derived by `for_round`, and no nonce is sent.
    """

    __slots__ = ()
    ball: Ball
    rotation_seed: int
    rows: int | None
    domain = passed_on("ball")  # also for a wrapper, whose inner mechanism has a ball of k coordinates

    @property
    @abstractmethod
    def keep(self) -> int:
        """k: the number of coordinates that a client keeps."""

    @property
    def kept(self) -> int:
        """k, or d where that is less."""
        return min(self.keep, self.ball.dimension)

    @property
    def padded(self) -> int:
        """p: the dimension, padded to a power of two by the rotation."""
        return 1 << (self.ball.dimension - 1).bit_length()

    @property
    def shared_rows(self) -> int:
        """The number of rows k where all clients of a round keep the same ones, else 0."""
        return 0 if self.rows is None else self.keep

    def at(self, rows: int) -> Self:
        """Return the same mechanism on the rows with this number."""
        return evolve(self, rows=rows)  # type: ignore[misc]

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the mechanism on the rows of this round, where rows are shared."""
        return self if self.rows is None else self.at(round_number(run, number))

    @property
    def priced_as(self) -> Mechanism:
        """The mechanism that a ledger records: the cost does not depend on which rows are shared."""
        return self if self.rows is None else self.at(0)

    def projection_error(self, length: float) -> float:
        """Return the squared error per coordinate that leaving out rows adds, for an update of this length."""
        return length**2 / self.keep * (1 - self.keep / self.padded)

    @property
    def clip_response(self) -> float:
        """A lower bound on the share of an update that the second clip leaves, averaged over signs and rows.

        |y|^2 has mean |x|^2 and, as coordinates have fourth moments of at most 3 C^4/p^2, a variance of at most
        3 (1 - k/p) C^4/k; |y| (|y| - 1) <= (|y|^2 - 1)/2 + (|y|^2 - 1)^2/8 where |y| > 1, and E X_+ <= sd(X)/2.
        """
        missing = (1 - self.keep / self.padded) / self.keep
        return 1 - math.sqrt(3 * missing) / 4 - 3 * missing / 8

    @property
    def nonce_size(self) -> int:
        """The number of bytes that name the rows in a body: 0 where rows are shared."""
        return NONCE if self.rows is None else 0

    def nonce(self, block: WordBlock | None = None, stream: int = 0) -> bytes:
        """Return the eight bytes that name the rows: the round's, or those a release draws from this stream."""
        if self.rows is not None or block is None:
            return cast(int, self.rows).to_bytes(NONCE, "little")
        return block.uniform64(stream, 0, 1).astype("<u8", copy=False).tobytes()

    def project(self, update: Parts, factor: float, nonce: bytes, kernel: Kernel) -> FloatVector:
        """Return sqrt(p/k) S H D (factor x), before the second clip."""
        padded = self.padded
        kept = kernel.rotated_rows(update, self.rotation_seed, factor, kernel.rows(nonce, self.keep, padded))
        kept *= math.sqrt(padded / self.keep)
        return kept

    def row_places(self) -> NDArray[np.int64]:
        """Return the indices of the shared rows among the p rotated coordinates."""
        if self.rows is None:
            return super().row_places()
        return usual_kernel().rows(self.nonce(), self.keep, self.padded)

    def unproject(self, kept: FloatVector) -> NDArray[Any]:
        """Return the estimate of an update from its values on the shared rows: the transpose of the projection.

        Computed in single precision, in which all kernels agree: server and clients replay rounds with it.
        """
        total = np.zeros(self.padded, dtype=np.float32)
        total[self.row_places()] = np.asarray(kept, dtype=np.float32) * np.float32(math.sqrt(self.padded / self.keep))
        usual_kernel().rotate_back(total, self.rotation_seed)
        return total[: self.ball.dimension]


def round_number(run: bytes, number: int) -> int:
    """Return the number of a round's shared rows: different in every round, the same on every machine."""
    place = check_int(number, "round", 0).to_bytes(8, "little")
    name = b"quietbit/rows/" + len(run).to_bytes(8, "little") + run + place
    return int.from_bytes(hashlib.sha256(name).digest()[:NONCE], "little")


def check_rotated(value: Any) -> Ball:
    """Return an L2 ball that single precision can rotate; in a larger one, a refusal would depend on the update."""
    ball = check_ball(value)
    require(ball.norm is Norm.L2, "norm of the ball", ball.norm.value, "l2 where updates are rotated")
    fine = 1 / LARGEST_RADIUS <= ball.radius <= LARGEST_RADIUS
    require(fine, "radius", ball.radius, "from 2^-90 to 2^90: rotations are in single precision")
    return ball


def check_keep(value: Any, most: int = MOST_ROWS) -> int:
    """Return a number of rows; refuse it unless it is a power of two up to ``most``."""
    keep = check_int(value, "keep", 1, most)
    require(keep & (keep - 1) == 0, "keep", keep, "a power of two, so that every row is kept equally often")
    return keep


def check_seed(value: Any) -> int:
    """Return the seed of a public rotation."""
    return check_int(value, "rotation_seed", 0)


def check_rows(value: Any) -> int | None:
    """Return the number of the shared rows, or None."""
    return None if value is None else check_int(value, "rows", 0, MOST_ROWS)


def fewest_kept(squared_error: float, dimension: int, cost: float = COST) -> int:
    """Return the smallest power of two k whose projection adds at most ``cost`` of ``squared_error`` (C = 1).

    >>> fewest_kept(100.0, 10**6), fewest_kept(1e-9, 100)
    (1, 128)
    """
    padded = padded_size(dimension)
    wanted = 1 / (check_real(cost, "cost") * check_real(squared_error, "squared_error") + 1 / padded)
    return min(1 << max(0, math.ceil(math.log2(wanted) - 1e-12)), padded)
