"""Random rotating simplex coding (RRSC): one of M corners of a simplex that both ends rotate alike.

Idea     M = 2^b corners of a regular simplex, rotated at random by a public nonce; the k corners
         nearest to the update are e^epsilon times as likely as the others. The corners are as far
         apart as M points can be, so this is the best that b bits and a symmetric rule can do.
Symbols  M corners, k = `closest`, d = dimension; s_1 >= ... >= s_M: the corners' inner products
         with the update's direction, which sum to zero; m: the mean inner product of the corner
         sent.
Source   Isik, Chen, Ozgur, Weissman, No (NeurIPS 2023), "Exact optimality of
         communication-privacy-utility tradeoffs in distributed mean estimation".

Error, exactly. For w ~ N(0, I_M), s is distributed as R sqrt(M/(M-1)) (w - mean w)/|w - mean w|, R
the length of a unit vector's projection to M - 1 dimensions, independent of the direction; lengths
of normal vectors cancel and E s_(i) = sqrt(M/(M-1)) E w_(i) / E chi_d, and likewise E s_(i)^2 =
M/(M-1) (E w_(i)^2 - 1/M)/d. Corners have length one, so z C/m is unbiased with a squared error of
C^2/m^2 - |x|^2. The rotation must be uniform: normal numbers are orthogonalised, and signs are
fixed by the triangular factor. (Uniform numbers, as one finds them in public code, prefer the
diagonals.) Whatever floating point does to the inner products, k corners are likelier by the same
factor, so the account does not depend on it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.errors import check_int, require
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.family import Choices
from quietbit_lab.baseline.base import MOST_BITS, Numbered, checked_loss
from quietbit_lab.baseline.codebook import candidate, check_ball
from quietbit_lab.baseline.sphere import chi_mean, top_normals
from quietbit_lab.baseline.tilt import subset_levels
from quietbit_lab.baseline.tuned import TunedFamily

__all__ = ["FAMILY", "RotatingSimplex", "best_closest"]

MOST_WORK = (
    2**31
)  # multiplications of a rotation, d M^2: about a second, whoever described the mechanism


def _closest(value: int) -> int:
    return check_int(value, "closest", 1, 2**MOST_BITS)


@final
@frozen
class RotatingSimplex(Numbered):
    """RRSC on an L2 ball: ``closest`` of 2^``bits`` corners are e^``design_epsilon`` likelier."""

    design_epsilon: float = field(converter=checked_loss)
    closest: int = field(converter=_closest)

    def __attrs_post_init__(self) -> None:
        """Refuse another norm and more corners than dimensions."""
        require(
            self.closest < self.candidates,
            "closest",
            self.closest,
            f"below the {self.candidates} corners",
        )
        check_ball(self.ball, "RRSC", self.candidates, MOST_WORK // self.candidates**2)

    @property
    def moments(self) -> tuple[float, float]:
        """Of the corner sent."""
        return _moments(self.design_epsilon, self.bits, self.closest, self.ball.dimension)

    @property
    def levels(self) -> tuple[float, float]:
        """Of a corner that is far, and one that is near."""
        return subset_levels(self.candidates, self.closest, self.design_epsilon)

    def densities(self, direction: FloatVector, nonce: bytes) -> FloatVector:
        """Return the two levels, the higher one for the nearest corners."""
        products = direction @ simplex(nonce, self.candidates, self.ball.dimension)
        low, high = self.levels
        densities = np.full(self.candidates, low)
        densities[np.argpartition(-products, self.closest - 1)[: self.closest]] = high
        return densities

    def point(self, nonce: bytes, number: int) -> FloatVector:
        """Return a corner; every payload has a rotation of its own, which is the server's work."""
        return np.asarray(simplex(nonce, self.candidates, self.ball.dimension)[:, number])


def simplex(nonce: bytes, corners: int, dimension: int) -> FloatMatrix:
    """Return the corners of a uniformly rotated regular simplex as columns of length one."""
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
    """Return the k with the largest gain; it does not depend on the dimension.

    >>> best_closest(8.0, 8), best_closest(1.0, 4)
    (1, 6)
    """
    corners = 1 << bits
    counts = np.arange(1, corners)
    means = np.cumsum(top_normals(corners)[0])[:-1]
    factor = math.exp(-epsilon)
    return int(counts[np.argmax(means * (1 - factor) / (counts + (corners - counts) * factor))])


def _bits(ball: Ball, choices: Choices) -> int:
    """Return the mechanism with eight bits unless bits are chosen: fewer are no shorter."""
    check_ball(ball, "RRSC", 2, MOST_WORK // 4)
    room = min(
        ball.dimension.bit_length() - 1, ((MOST_WORK // ball.dimension).bit_length() - 1) // 2
    )
    return choices.bits or min(8, room)


def _build(ball: Ball, loss: float, share: float, choices: Choices) -> RotatingSimplex:
    bits = _bits(ball, choices)
    closest = min(max(round(share * 2**bits), 1), 2**bits - 1)
    return RotatingSimplex(ball, bits, loss, closest)


def _usual(ball: Ball, loss: float, choices: Choices) -> float:
    bits = _bits(ball, choices)
    return float(best_closest(loss, bits) / 2**bits)


FAMILY = TunedFamily("rrsc", uses=("bits",), build=_build, usual=_usual)
