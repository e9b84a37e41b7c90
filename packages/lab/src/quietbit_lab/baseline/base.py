"""What local baselines share: a ball, one account of the update, an unbiased decoder.

Idea     `Baseline` clips, draws words and leaves it to `release` to make a body of both. `Floats`
         send a vector as it is; `Coded` ones a public nonce and a number of b bits. `Directional`
         ones release a random vector whose mean lies along the update, so two moments say all
         about their error; `Numbered` ones send the number of one of 2^b public candidates, and
         differ in the candidates and in how much likelier some of them are.
Symbols  u: the update's direction; z: the vector released; t = <z, u>; m = E[t]: `gain`. z/m is
         unbiased, in clips, with a squared error of E[|z|^2]/m^2 - |x|^2 over all
         coordinates.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.mechanism.accumulate import of_floats
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Accumulator, Body, Error, Layout, Mechanism, Parts
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency
from quietbit_lab.baseline.codebook import (
    NONCE,
    clipped,
    direction_of,
    new_nonce,
    sum_of_points,
)
from quietbit_lab.baseline.tilt import draw, tilt_cost

__all__ = [
    "LEAST_EPSILON",
    "MOST_BITS",
    "MOST_EPSILON",
    "Baseline",
    "Coded",
    "Directional",
    "Floats",
    "Numbered",
    "checked_bits",
    "checked_cap",
    "checked_loss",
    "checked_seed",
    "least",
    "likeliest",
]

LEAST_EPSILON = 1e-4
MOST_EPSILON = 16.0
MOST_BITS = 12
DRAW_STREAM = 0


def checked_loss(value: float) -> float:
    """Return a design epsilon within the range of the accounts."""
    return check_real(value, "design_epsilon", at_least=LEAST_EPSILON, at_most=MOST_EPSILON)


def checked_bits(value: int) -> int:
    """Return a number of bits whose 2^bits candidates can be enumerated."""
    return check_int(value, "bits", 1, MOST_BITS)


def checked_cap(value: float) -> float:
    """Return the mass of a cap, at most one half."""
    return check_real(value, "cap", at_least=1e-9, at_most=0.5)


def checked_seed(value: int) -> int:
    """Return the seed of a public rotation."""
    return check_int(value, "rotation_seed", 0)


@frozen
class Baseline(Mechanism):
    """A mechanism of the field on updates in a ball, decoded without bias, with one account."""

    ball: Ball

    @property
    @abstractmethod
    def words(self) -> int:
        """How many words a release draws."""

    @abstractmethod
    def release(self, inside: FloatVector, block: WordBlock) -> bytes:
        """Return the body of a clipped update's release; ``block`` is all that it may draw."""

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Clip, draw the words and make the body."""
        inside = clipped(self.ball, update, clip, rng, kernel)
        body = self.release(inside, rng.draw(self.words))
        out[:] = np.frombuffer(body, dtype=np.uint8)

    @abstractmethod
    def noise_at(self, value: float) -> float:
        """Return the variance of a decoded coordinate of this value."""

    def decoded(self, value: float) -> tuple[float, float]:
        """Return the value itself, and its variance: decoding has no bias."""
        return value, self.noise_at(value)

    def error(self) -> Error:
        """Return the variance at zero."""
        return Error(self.noise_at(0.0))


@frozen
class Floats(Baseline):
    """A mechanism that sends a vector of 32-bit floats, none larger than ``reach``."""

    @property
    @abstractmethod
    def reach(self) -> float:
        """The largest coordinate that is added up, in clips."""

    @abstractmethod
    def vector(self, inside: FloatVector, block: WordBlock) -> FloatVector:
        """Return what is sent of a clipped update."""

    @property
    def words(self) -> int:
        """One per coordinate, and at least two."""
        return max(2, self.ball.dimension)

    @property
    def layout(self) -> Layout:
        """One float per coordinate."""
        return Layout.codes(32, self.ball.dimension)

    def release(self, inside: FloatVector, block: WordBlock) -> bytes:
        """Return the vector's floats."""
        return self.vector(inside, block).astype("<f4").tobytes()

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that sums floats as fixed-point numbers."""
        return of_floats(self.reach, self.ball.dimension, max_payloads)


@frozen
class Tilted(Baseline):
    """A mechanism whose output has a density between two ``levels`` against a public law."""

    @property
    @abstractmethod
    def levels(self) -> tuple[float, float]:
        """The least and the largest density that any update can lead to."""

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the curve of a density between two levels."""
        return tilt_cost(*self.levels, adjacency)


@frozen
class Coded(Tilted):
    """A mechanism that sends a public nonce and a number of ``bits`` bits."""

    bits: int = field(converter=checked_bits)

    @abstractmethod
    def number(self, inside: FloatVector, nonce: bytes, block: WordBlock) -> int:
        """Return the number that is sent of a clipped update."""

    @property
    def layout(self) -> Layout:
        """A nonce and a number."""
        return Layout.opaque(self.ball.dimension, NONCE + -(-self.bits // 8))

    def release(self, inside: FloatVector, block: WordBlock) -> bytes:
        """Return nonce and number."""
        nonce = new_nonce(block)
        number = self.number(inside, nonce, block)
        return nonce + number.to_bytes(-(-self.bits // 8), "little")


@frozen
class Directional(Tilted):
    """A mechanism that releases a random vector along the update; ``moments``: E[t], E[t^2]."""

    @property
    @abstractmethod
    def moments(self) -> tuple[float, float]:
        """E[t] and E[t^2] of the vector released for an update that fills the ball."""

    @property
    def gain(self) -> float:
        """m: the mean inner product of what is released with the update's direction."""
        return self.moments[0]

    def across(self, second: float) -> float:
        """Return the mean square of a coordinate across the update, evenly spread."""
        return (1 - second) / (self.ball.dimension - 1)

    def noise_at(self, value: float) -> float:
        """Return the variance of a coordinate of this value in an update that fills the ball."""
        gain, second = self.moments
        along = value**2
        energy = along * second + (1 - along) * self.across(second)
        return energy / gain**2 - value**2

    @property
    def moment_error(self) -> float:
        """How far variances of shorter updates may be off, relatively.

        A zero vector has energy 1/d everywhere, one that fills the ball (1 - second)/(d - 1)
        across.
        """
        dimension = self.ball.dimension
        return min(0.5, abs(dimension * self.moments[1] - 1) / (dimension - 1) + 1e-6)


@frozen
class Numbered(Coded, Directional):
    """A mechanism that sends a nonce and the number of one of its 2^``bits`` candidates."""

    reach: ClassVar[float] = 1.0  # the largest coordinate of a candidate
    words: ClassVar[int] = 2

    @property
    def candidates(self) -> int:
        """How many there are."""
        return 1 << self.bits

    @abstractmethod
    def densities(self, direction: FloatVector, nonce: bytes) -> FloatVector:
        """Return every candidate's probability times their number, at the ball's surface."""

    @abstractmethod
    def point(self, nonce: bytes, number: int) -> FloatVector:
        """Return the candidate of this number."""

    def number(self, inside: FloatVector, nonce: bytes, block: WordBlock) -> int:
        """Weigh the candidates that the nonce expands to, and pick one."""
        direction, share = direction_of(inside)
        return draw(self.densities(direction, nonce), share, block, DRAW_STREAM)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sum candidates; the server expands the one that was picked."""
        return sum_of_points(self.point, self.bits, self.reach, max_payloads, self.ball, self.gain)


def least(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Return where a function of one number is least, between two bounds."""
    from scipy.optimize import minimize_scalar  # takes longer to import than all the rest

    return float(
        minimize_scalar(
            function, bounds=(low, high), method="bounded", options={"xatol": tolerance}
        ).x
    )


def likeliest(gain: Callable[[float], float], smallest: float, tolerance: float = 1e-10) -> float:
    """Return the share between ``smallest`` and one half with the largest gain."""
    return math.exp(
        least(lambda log: -gain(math.exp(log)), math.log(smallest), math.log(0.5), tolerance)
    )
