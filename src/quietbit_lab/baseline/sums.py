"""What baselines for secure sums share: public rotation, integers within a certain length, a modulus.

Idea     an update is rotated, scaled to whole numbers whose length is bounded for certain, given whole-number noise
         and reduced modulo 2^b; sums modulo 2^b are those of the integers as long as these stay inside, which a rule
         for the scale makes all but certain. Wrapping costs accuracy, never privacy.
Symbols  C = radius; n = clients; p = padded dimension; s C = `reach`: the radius in units of the integers; D1, D2,
         D8: largest L1, L2 and maximum distance of neighbours' integers; v: variance of the noise in the sum.
Source   Kairouz, Liu, Steinke (ICML 2021): rotation and conditional rounding; the library's Skellam follows the same
         road.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from quietbit._search import bisect
from quietbit._typing import FloatVector
from quietbit.errors import check_int, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.kernel.transform import padded_size, rotate, rotate_back
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Parts
from quietbit.mechanism.family import largest_private
from quietbit.mechanism.rounding import conditional_rounding, length_upper
from quietbit.privacy.conversion import round_up
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.release import Release
from quietbit_lab.baseline.codebook import clipped

__all__ = ["WRAP", "Distances", "Grid", "SumMechanism", "calibrate_sums", "check_sum", "finest_reach"]

WRAP = 1e-6  # probability that any coordinate of a sum leaves the modulus
MOST_CLIENTS = 100_000


class SumMechanism(Protocol):
    """What a comparison needs of a mechanism whose codes are added behind masks."""

    @property
    def wire_bits(self) -> int:
        """Bits per code on the wire, the modulus of the masks."""
        ...

    @property
    def code_count(self) -> int:
        """Codes of one update."""
        ...

    @property
    def squared_error(self) -> float:
        """Expected squared error of a coordinate of the mean whose true value is zero."""
        ...

    def encode(self, update: Parts, rng: RandomBits, kernel: Kernel) -> NDArray[np.int64]:
        """A client's codes, below 2^wire_bits."""
        ...

    def mean_from_sum(self, total: NDArray[np.int64]) -> FloatVector:
        """The mean update from the sums of codes, modulo 2^wire_bits or not."""
        ...

    def sum_privacy(self, adjacency: Adjacency) -> Release:
        """What one sum costs one client, if all ``clients`` are honest."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Distances:
    """How far apart two neighbours' integers can be: L1, L2 and in one coordinate, rounded up."""

    l1: float
    l2: float
    largest: float


@final
@dataclass(frozen=True, slots=True)
class Grid:
    """Rotation, scale and rounding of updates in an L2 ball; ``reach`` is the radius in whole numbers."""

    ball: Ball
    reach: float
    rotation_seed: int = 0

    @property
    def size(self) -> int:
        """P."""
        return padded_size(self.ball.dimension)

    @property
    def squared_length(self) -> float:
        """What the sum of squares of a rounded vector never exceeds."""
        return max(1.0, length_upper(Norm.L2, self.reach, self.size))

    def distances(self, adjacency: Adjacency) -> Distances:
        """Whole numbers have |z| <= z^2, so D1 <= min(D2^2, sqrt(p) D2); replacing doubles all."""
        times, l2 = (1 if adjacency is Adjacency.ZERO_OUT else 2), math.sqrt(self.squared_length)
        l1 = min(self.squared_length, math.sqrt(self.size) * l2)
        return Distances(*(round_up(times * one, 1e-15) for one in (l1, l2, l2)))

    def integers(self, update: Parts, rng: RandomBits, kernel: Kernel) -> tuple[NDArray[np.int64], WordBlock]:
        """The rounded vector, and the words it was rounded with, streams from 1000 on unused."""
        inside = clipped(self.ball, update, rng, kernel)
        rotated = rotate(inside, self.rotation_seed) * (self.reach / self.ball.radius)
        block = rng.draw(rotated.size)
        return conditional_rounding(rotated, Norm.L2, self.squared_length, block) // 2, block

    def mean(self, centred: FloatVector, clients: int) -> FloatVector:
        """The mean update from sums of integers with their noise."""
        return rotate_back(centred * (self.ball.radius / self.reach / clients), self.rotation_seed)[
            : self.ball.dimension
        ]

    def error(self, variance: float, clients: int) -> float:
        """Of a coordinate of the mean: noise of this variance in the sum, and n roundings of 1/6 each on average."""
        return (variance + clients / 6) * (self.ball.radius / self.reach / clients) ** 2


@lru_cache(maxsize=1024)
def finest_reach(multiplier: float, clients: int, size: int, bits: int) -> float:
    """The largest s C at which a sum with noise of ``multiplier`` radii stays within 2^bits but for WRAP.

    Rotated coordinates of n clients (all alike at worst), n roundings (Hoeffding), noise with sub-Gaussian tails.
    """
    doubt = math.log(6 * size / WRAP)

    def fits(reach: float) -> bool:
        signal = clients * reach * min(1.0, math.sqrt(2 * doubt / size)) + math.sqrt(clients * doubt / 2)
        return signal + math.sqrt(2 * doubt) * multiplier * reach <= 2.0 ** (bits - 1) - 1

    require(fits(1e-6), "wire_bits", bits, f"enough for sums of {clients} clients")
    return bisect(fits, 1e-6, 2.0**bits, halvings=80, by_ratio=True)


M = TypeVar("M", bound=SumMechanism)


def check_sum(ball: Ball, clients: int, wire_bits: int) -> tuple[int, int]:
    """Refuse what is no L2 ball, too few or many clients, and more bits than sums of int64 have room for."""
    require(isinstance(ball, Ball) and ball.norm is Norm.L2, "ball", ball, "an L2 ball")
    return check_int(clients, "clients", 1, MOST_CLIENTS), check_int(wire_bits, "wire_bits", 2, 40)


def calibrate_sums(
    build: Callable[[float], M],
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    releases: int,
    name: str,
    least: float,
    most: float,
) -> M:
    """The most accurate mechanism of a loss (one over its noise, say) whose releases stay within (epsilon, delta)."""

    def account(loss: float) -> float:
        return build(loss).sum_privacy(adjacency).repeat(releases).epsilon_upper(delta)

    return build(largest_private(account, least, most, epsilon, name))
