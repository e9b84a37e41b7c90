"""Rows of a rotated update: which k of p coordinates a release tells about, and who chooses them.

Idea     rotate the whole update with public signs, y = H D x / sqrt(p), and keep k of its p coordinates: on average
         over rows they are as good as any others. Every release may draw rows of its own, from a public nonce; or all
         clients of a round keep the same ones, which follow from the run and the number of the round.
Symbols  d = dimension, p = d padded to a power of two, k = `keep`; S: the k rows; C = radius.
Source   docs/theory/vector-mechanism.md, sections "Rows" and "Shared rows".

Account. Rows are a function of public values, or of random bits that no data has touched, and are public either way.
Given them, a release is that of a mechanism on the k-ball, whose price does not depend on which rows they are: so
the price of a release with rows of its own is that of one with shared rows, to the last digit.

Error. With rows of its own, each client's projection errs by at most |x|^2/k per coordinate, and these errors average
out over clients. With shared rows the error is |mean|^2/k, and does not. A mean is then k numbers: whoever knows
the rows can spread them (`unproject`), so that they are all a server has to send on.
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
    """A mechanism that keeps k rotated coordinates: ``rows`` is None where every release draws rows of its own.

    Otherwise ``rows`` is their number, which `for_round` derives, and no nonce is sent.
    """

    __slots__ = ()
    ball: Ball
    rotation_seed: int
    rows: int | None
    domain = passed_on("ball")  # of a wrapper too, whose inner mechanism has a ball of k coordinates

    @property
    @abstractmethod
    def keep(self) -> int:
        """k: coordinates that a client keeps."""

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
        """K where all clients of a round keep the same rows, else 0."""
        return 0 if self.rows is None else self.keep

    def at(self, rows: int) -> Self:
        """Return the same mechanism on the rows of this number."""
        return evolve(self, rows=rows)  # type: ignore[misc]

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the mechanism on the rows of this round, where all clients keep the same."""
        return self if self.rows is None else self.at(round_number(run, number))

    @property
    def priced_as(self) -> Mechanism:
        """What stands for it in a ledger: its account does not depend on which rows all clients keep."""
        return self if self.rows is None else self.at(0)

    @property
    def shared_error(self) -> float:
        """The projection's error where all clients of a round make the same one."""
        return self.projection_error(self.ball.radius) if self.shared_rows else 0.0

    def projection_error(self, length: float) -> float:
        """Return the squared error of a coordinate that leaving rows out costs an update of this length."""
        return length**2 / self.keep * (1 - self.keep / self.padded)

    @property
    def clip_response(self) -> float:
        """The share of an update that the second clip leaves at least, on average over signs and rows.

        |y|^2 has mean |x|^2 and, as coordinates have fourth moments of at most 3 C^4/p^2, a variance of at most
        3 (1 - k/p) C^4/k; |y| (|y| - 1) <= (|y|^2 - 1)/2 + (|y|^2 - 1)^2/8 where |y| > 1, and E X_+ <= sd(X)/2.
        """
        missing = (1 - self.keep / self.padded) / self.keep
        return 1 - math.sqrt(3 * missing) / 4 - 3 * missing / 8

    @property
    def nonce_size(self) -> int:
        """Bytes of a body that name its rows: none where they are known."""
        return NONCE if self.rows is None else 0

    def nonce(self, block: WordBlock | None = None, stream: int = 0) -> bytes:
        """Return the eight bytes that name the rows: the round's, or a release's own, drawn from this stream."""
        if self.rows is not None or block is None:
            return cast(int, self.rows).to_bytes(NONCE, "little")
        return block.uniform64(stream, 0, 1).astype("<u8", copy=False).tobytes()

    def project(self, update: Parts, factor: float, nonce: bytes, kernel: Kernel) -> FloatVector:
        """Return sqrt(p/k) S H D (factor x), before it is clipped again."""
        padded = self.padded
        kept = kernel.rotated_rows(update, self.rotation_seed, factor, kernel.rows(nonce, self.keep, padded))
        kept *= math.sqrt(padded / self.keep)
        return kept

    def row_places(self) -> NDArray[np.int64]:
        """Return the places of the shared rows among the p rotated coordinates."""
        if self.rows is None:
            return super().row_places()
        return usual_kernel().rows(self.nonce(), self.keep, self.padded)

    def unproject(self, kept: FloatVector) -> NDArray[Any]:
        """Return the estimate of an update from numbers of the shared rows: the transpose of the projection.

        In single precision, where every kernel takes the same steps: server and clients replay rounds with it.
        """
        total = np.zeros(self.padded, dtype=np.float32)
        total[self.row_places()] = np.asarray(kept, dtype=np.float32) * np.float32(math.sqrt(self.padded / self.keep))
        usual_kernel().rotate_back(total, self.rotation_seed)
        return total[: self.ball.dimension]


def round_number(run: bytes, number: int) -> int:
    """Return the number of the rows that all clients of a round keep: others in every round, the same everywhere."""
    place = check_int(number, "round", 0).to_bytes(8, "little")
    name = b"quietbit/rows/" + len(run).to_bytes(8, "little") + run + place
    return int.from_bytes(hashlib.sha256(name).digest()[:NONCE], "little")


def check_rotated(value: Any) -> Ball:
    """Return an L2 ball that single precision can rotate; in another, a refusal would tell about the update."""
    ball = check_ball(value)
    require(ball.norm is Norm.L2, "norm of the ball", ball.norm.value, "l2 where updates are rotated")
    fine = 1 / LARGEST_RADIUS <= ball.radius <= LARGEST_RADIUS
    require(fine, "radius", ball.radius, "from 2^-90 to 2^90: rotations are in single precision")
    return ball


def check_keep(value: Any, most: int = MOST_ROWS) -> int:
    """Return a number of rows: a power of two up to ``most``."""
    keep = check_int(value, "keep", 1, most)
    require(keep & (keep - 1) == 0, "keep", keep, "a power of two, so that every row is kept equally often")
    return keep


def check_seed(value: Any) -> int:
    """Return the seed of a public rotation."""
    return check_int(value, "rotation_seed", 0)


def check_rows(value: Any) -> int | None:
    """Return the number of rows that all keep, or None."""
    return None if value is None else check_int(value, "rows", 0, MOST_ROWS)


def fewest_kept(squared_error: float, dimension: int, cost: float = COST) -> int:
    """Return the least power of two k whose projection adds at most ``cost`` of a noise of ``squared_error`` (C = 1).

    >>> fewest_kept(100.0, 10**6), fewest_kept(1e-9, 100)
    (1, 128)
    """
    padded = padded_size(dimension)
    wanted = 1 / (check_real(cost, "cost") * check_real(squared_error, "squared_error") + 1 / padded)
    return min(1 << max(0, math.ceil(math.log2(wanted) - 1e-12)), padded)
