"""Public randomness and sums: candidates from a nonce, and a server that adds them up.

Idea     a client draws a nonce and sends it with the number of the candidate that it picked;
         whoever has both expands them to the same vector. The server adds whole numbers, so the
         order of payloads does not matter.
Symbols  nonce: 8 public bytes; b: bits of a number; candidate j is expanded from the seed (nonce,
         j).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import refuse_payload, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.normals import unit
from quietbit.kernel.rng import RandomBits, WordBlock, check_rng
from quietbit.mechanism.ball import Ball, Norm, clipped_pieces, usual_kernel
from quietbit.mechanism.base import Accumulator, Body, Parts, Reader

__all__ = [
    "NONCE",
    "Expanded",
    "candidate",
    "check_ball",
    "clipped",
    "direction_of",
    "new_nonce",
    "read",
    "sum_of_points",
]

NONCE = 8
NONCE_STREAM = 7

Decode: TypeAlias = Callable[[bytes, int], tuple[NDArray[np.int64] | slice, FloatVector]]


def check_ball(
    ball: Ball, kind: str, least: int = 1, most: int = 2**24, *, norm: Norm = Norm.L2
) -> None:
    """Refuse what is not a ball of this norm, and dimensions that the mechanism cannot have."""
    require(isinstance(ball, Ball), "ball", type(ball).__name__, "a Ball")
    require(ball.norm is norm, "norm of the ball", ball.norm.value, f"{norm.value} for {kind}")
    require(
        least <= ball.dimension <= most,
        "dimension",
        ball.dimension,
        f"from {least} to {most:,} for {kind}",
    )


def clipped(ball: Ball, update: Parts, clip: float, rng: RandomBits, kernel: Kernel) -> FloatVector:
    """Return the clipped update, in clips; refuse bad input before a word is drawn."""
    check_rng(rng)
    return clipped_pieces(ball, update, clip, kernel)(0, ball.dimension)


def direction_of(inside: FloatVector) -> tuple[FloatVector, float]:
    """Return the direction of a clipped update and its length in clips, at most one."""
    direction, length = unit(inside)
    return direction, min(length, 1.0)


def new_nonce(block: WordBlock) -> bytes:
    """Eight bytes of the release's own words."""
    return block.uniform64(NONCE_STREAM, 0, 1).astype("<u8", copy=False).tobytes()


def candidate(nonce: bytes, number: int, dimension: int) -> FloatVector:
    """Return the standard normals of candidate ``number``."""
    return usual_kernel().normals(nonce + number.to_bytes(8, "little"), dimension)


def read(body: Body) -> tuple[bytes, int]:
    """Nonce and number of a body."""
    raw = body.tobytes()
    return raw[:NONCE], int.from_bytes(raw[NONCE:], "little")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Expanded(Accumulator):
    """Sums of expanded bodies in fixed point; ``finish`` turns their mean into the mean update.

    ``decode`` gives the places and values that a nonce and number stand for, none larger than
    ``reach``.
    """

    decode: Decode
    bits: int
    reach: float
    max_payloads: int
    total: NDArray[np.int64]
    finish: Callable[[FloatVector], FloatVector]

    @property
    def scale(self) -> float:
        """Units to one: as many as 62 bits of a sum have room for."""
        return math.ldexp(1.0, 61 - math.frexp(self.reach)[1] - int(self.max_payloads).bit_length())

    def check(self, body: Body) -> None:
        """Refuse a body of the wrong length, or whose number has more bits than it may."""
        if body.size != NONCE + -(-self.bits // 8):
            refuse_payload("length of the body", f"{NONCE + -(-self.bits // 8)} bytes", body.size)
        number = read(body)[1]
        if number >> self.bits:
            refuse_payload("number of the candidate", f"below 2^{self.bits}", number)

    def add(self, bodies: Sequence[Body]) -> None:
        """Expand, round to the fixed point and add."""
        for body in bodies:
            places, values = self.decode(*read(body))
            self.total[places] += np.rint(values * self.scale).astype(np.int64)

    def reader(self, count: int) -> Reader:
        """Return a reader of the finished mean."""
        mean = self.finish(self.total.astype(np.float64) / (self.scale * count))
        return lambda start, stop: mean[start:stop]


def sum_of_points(
    point: Callable[[bytes, int], FloatVector],
    bits: int,
    reach: float,
    max_payloads: int,
    ball: Ball,
    gain: float,
) -> Expanded:
    """Return an accumulator of vectors with mean ``gain`` along the update, within ``reach``."""
    scale = 1 / gain

    def decode(nonce: bytes, number: int) -> tuple[slice, FloatVector]:
        return slice(None), point(nonce, number)

    total = np.zeros(ball.dimension, dtype=np.int64)
    return Expanded(decode, bits, reach, max_payloads, total, lambda mean: mean * scale)
