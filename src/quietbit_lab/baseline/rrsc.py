"""Random rotating simplex coding (RRSC): one of M corners of a simplex that both ends rotate alike.

Idea     M = 2^b corners of a regular simplex, rotated at random by a public nonce; the k corners nearest to the update
         are e^epsilon times as likely as the others. The corners are as far apart as M points can be, so this is the
         best that b bits and a symmetric rule can do.
Symbols  M corners, k = `closest`, d = dimension; s_1 >= ... >= s_M: the corners' inner products with the update's
         direction, which sum to zero; m: the mean inner product of the corner sent.
Source   Isik, Chen, Ozgur, Weissman, No (NeurIPS 2023), "Exact optimality of communication-privacy-utility tradeoffs in
         distributed mean estimation".

Error, exactly. For w ~ N(0, I_M), s is distributed as R sqrt(M/(M-1)) (w - mean w)/|w - mean w|, R the length of a unit
vector's projection to M - 1 dimensions, independent of the direction; lengths of normal vectors cancel and
E s_(i) = sqrt(M/(M-1)) E w_(i) / E chi_d, and likewise E s_(i)^2 = M/(M-1) (E w_(i)^2 - 1/M)/d. Corners have length
one, so z C/m is unbiased with a squared error of C^2/m^2 - |x|^2.
The rotation must be uniform: normal numbers are orthogonalised, and signs are fixed by the triangular factor. (Uniform
numbers, as one finds them in public code, prefer the diagonals.) Whatever floating point does to the inner products,
k corners are likelier by the same factor, so the account does not depend on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.errors import check_int, check_real
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import (
    Accumulator,
    Body,
    Error,
    Layout,
    Parts,
    check_adjacency,
    check_value,
    refuse_samples,
)
from quietbit.mechanism.family import Choices
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.release import Release
from quietbit_lab.baseline.codebook import (
    candidate,
    check_ball,
    clipped,
    direction_of,
    new_nonce,
    numbered_layout,
    put,
    sum_of_points,
)
from quietbit_lab.baseline.sphere import chi_mean, coordinate_variance, moment_slack, top_normals
from quietbit_lab.baseline.tilt import draw, subset_levels, tilt_release
from quietbit_lab.baseline.tuned import LEAST_EPSILON, MOST_EPSILON, TunedFamily

__all__ = ["FAMILY", "RotatingSimplex", "best_closest"]

MOST_BITS = 12
MOST_WORK = 2**31  # multiplications of a rotation, d M^2: about a second, whoever described the mechanism
DRAW_STREAM = 0


@final
@dataclass(frozen=True, slots=True)
class RotatingSimplex:
    """RRSC on updates in an L2 ball: ``closest`` of 2^``bits`` corners are e^``design_epsilon`` times as likely."""

    ball: Ball
    design_epsilon: float
    bits: int
    closest: int

    def __post_init__(self) -> None:
        """Refuse another norm, more corners than dimensions, and numbers out of range."""
        put_in = object.__setattr__
        put_in(
            self,
            "design_epsilon",
            check_real(self.design_epsilon, "design_epsilon", at_least=LEAST_EPSILON, at_most=MOST_EPSILON),
        )
        put_in(self, "bits", check_int(self.bits, "bits", 1, MOST_BITS))
        put_in(self, "closest", check_int(self.closest, "closest", 1, self.corners - 1))
        check_ball(self.ball, Norm.L2, "RRSC", self.corners, MOST_WORK // self.corners**2)

    @property
    def corners(self) -> int:
        """M."""
        return 1 << self.bits

    @property
    def domain(self) -> Ball:
        """Where updates are clipped to."""
        return self.ball

    @property
    def layout(self) -> Layout:
        """A nonce and the number of a corner."""
        return numbered_layout(self.ball.dimension, self.bits)

    @property
    def gain(self) -> float:
        """m: the mean inner product of the corner sent with the update's direction."""
        return _moments(self.design_epsilon, self.bits, self.closest, self.ball.dimension)[0]

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Rotate the simplex, look for the nearest corners, pick one."""
        direction, share = direction_of(self.ball, clipped(self.ball, update, rng, kernel))
        block = rng.draw(2)
        nonce = new_nonce(block)
        near = direction @ simplex(nonce, self.corners, self.ball.dimension)
        low, high = subset_levels(self.corners, self.closest, self.design_epsilon)
        densities = np.full(self.corners, low)
        densities[np.argpartition(-near, self.closest - 1)[: self.closest]] = high
        put(out, nonce, draw(densities, share, block, DRAW_STREAM))

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sums of corners; every payload has a rotation of its own, which is the server's work."""
        size = self.ball.dimension

        def corner(nonce: bytes, number: int) -> FloatVector:
            return np.asarray(simplex(nonce, self.corners, size)[:, number])

        return sum_of_points(corner, self.bits, 1.0, max_payloads, self.ball, self.gain)

    def privacy(self, adjacency: Adjacency, samples: int | None = None) -> Release:
        """The pair of a density with two levels."""
        refuse_samples(samples, "RRSC looks at the direction of the whole update")
        return tilt_release(*subset_levels(self.corners, self.closest, self.design_epsilon), check_adjacency(adjacency))

    def error(self) -> Error:
        """C^2 / m^2 over all coordinates."""
        return Error(self.variance(0.0))

    def expectation(self, value: float) -> float:
        """The value itself."""
        return check_value(self.ball, value)

    def variance(self, value: float) -> float:
        """Of a coordinate of this value in an update that fills the ball."""
        gain, second = _moments(self.design_epsilon, self.bits, self.closest, self.ball.dimension)
        number = check_value(self.ball, value)
        return coordinate_variance(self.ball.radius, self.ball.dimension, gain, second, number)

    @property
    def moment_error(self) -> float:
        """Of updates that do not fill the ball."""
        second = _moments(self.design_epsilon, self.bits, self.closest, self.ball.dimension)[1]
        return moment_slack(self.ball.dimension, second)


def simplex(nonce: bytes, corners: int, dimension: int) -> FloatMatrix:
    """The corners of a uniformly rotated regular simplex as columns of length one."""
    plain = candidate(nonce, 0, dimension * corners).reshape(dimension, corners)
    frame, triangle = np.linalg.qr(plain)
    frame = frame * np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
    centred = frame - frame.mean(axis=1, keepdims=True)
    return np.asarray(centred * math.sqrt(corners / (corners - 1)))


@lru_cache(maxsize=1024)
def _moments(epsilon: float, bits: int, closest: int, dimension: int) -> tuple[float, float]:
    """E[t] and E[t^2] of the corner sent, for an update that fills the ball."""
    corners = 1 << bits
    low, high = subset_levels(corners, closest, epsilon)
    means, squares = top_normals(corners)
    law = np.full(corners, low / corners)
    law[:closest] = high / corners
    stretch = corners / (corners - 1)
    return math.sqrt(stretch) * float(law @ means) / chi_mean(dimension), stretch * float(
        law @ (squares - 1 / corners)
    ) / dimension


def best_closest(epsilon: float, bits: int) -> int:
    """The k with the largest gain; it does not depend on the dimension.

    >>> best_closest(8.0, 8), best_closest(1.0, 4)
    (1, 6)
    """
    corners = 1 << bits
    counts = np.arange(1, corners)
    means = np.cumsum(top_normals(corners)[0])[:-1]
    factor = math.exp(-epsilon)
    return int(counts[np.argmax(means * (1 - factor) / (counts + (corners - counts) * factor))])


def _bits(ball: Ball, choices: Choices) -> int:
    """One byte, unless bits are chosen: fewer (its authors take one for each nat) are worse and no shorter."""
    check_ball(ball, Norm.L2, "RRSC", 2, MOST_WORK // 4)
    room = min(ball.dimension.bit_length() - 1, ((MOST_WORK // ball.dimension).bit_length() - 1) // 2)
    return choices.bits or min(8, room)


def _build(ball: Ball, loss: float, share: float, choices: Choices) -> RotatingSimplex:
    bits = _bits(ball, choices)
    closest = min(max(round(share * 2**bits), 1), 2**bits - 1)
    return RotatingSimplex(ball, loss, bits, closest)


def _usual(ball: Ball, loss: float, choices: Choices) -> float:
    bits = _bits(ball, choices)
    return float(best_closest(loss, bits) / 2**bits)


FAMILY = TunedFamily(
    "rrsc", (RotatingSimplex,), uses=("bits",), build=_build, usual=_usual, work="a rotated simplex, orthogonalised"
)
