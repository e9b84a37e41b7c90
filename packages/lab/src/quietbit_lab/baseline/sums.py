"""What baselines for secure sums share: rotation, integers of bounded length, a modulus.

Idea     an update is rotated, scaled to whole numbers whose length is bounded for certain, given
         whole-number noise and reduced modulo 2^b; sums modulo 2^b are those of the integers as
         long as these stay inside, which a rule for the scale makes all but certain. Wrapping costs
         accuracy, never privacy.
Symbols  n = clients; p = padded dimension; s = `reach`: the clip in units of the
         integers; D1, D2, D8: largest L1, L2 and maximum distance of neighbours' integers; v:
         variance of the noise in the sum.
Source   Kairouz, Liu, Steinke (ICML 2021): rotation and conditional rounding; the library's Skellam
         follows the same road.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar, final

import numpy as np
from attrs import field, frozen
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
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency, Target, Trust, Unit
from quietbit_lab.baseline.base import checked_seed
from quietbit_lab.baseline.codebook import clipped
from quietbit_lab.baseline.skellam import conditional_rounding, length_upper

__all__ = [
    "WRAP",
    "Distances",
    "Grid",
    "NoisySum",
    "SumBaseline",
    "calibrate_sums",
    "finest_reach",
    "sums_epsilon",
]

WRAP = 1e-6  # probability that any coordinate of a sum leaves the modulus
MOST_CLIENTS = 100_000


@final
@frozen
class Distances:
    """How far apart two neighbours' integers can be: L1, L2 and in one coordinate, rounded up."""

    l1: float
    l2: float
    largest: float


@final
@frozen
class Grid:
    """Rotation, scale and rounding of updates in an L2 ball; ``reach``: the clip, in steps."""

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
        if adjacency is Adjacency.ZERO_OUT:
            times = 1
        else:
            times = 2
        l2 = math.sqrt(self.squared_length)
        l1 = min(self.squared_length, math.sqrt(self.size) * l2)
        return Distances(*(round_up(times * distance, 1e-15) for distance in (l1, l2, l2)))

    def integers(
        self, update: Parts, rng: RandomBits, kernel: Kernel
    ) -> tuple[NDArray[np.int64], WordBlock]:
        """Return the rounded vector and its words, whose streams from 1000 on are unused."""
        inside = clipped(self.ball, update, 1.0, rng, kernel)
        rotated = rotate(inside, self.rotation_seed) * self.reach
        block = rng.draw(rotated.size)
        return conditional_rounding(rotated, Norm.L2, self.squared_length, block) // 2, block

    def error(self, variance: float, clients: int) -> float:
        """Return a mean coordinate's squared error: the sum's noise, and 1/6 per rounding."""
        return (variance + clients / 6) * (1 / self.reach / clients) ** 2


@lru_cache(maxsize=1024)
def finest_reach(multiplier: float, clients: int, size: int, bits: int) -> float:
    """Return the largest s C whose noisy sum exceeds 2^bits with probability at most WRAP.

    Rotated coordinates of n clients (all alike at worst), n roundings (Hoeffding), noise with
    sub-Gaussian tails.
    """
    doubt = math.log(6 * size / WRAP)

    def fits(reach: float) -> bool:
        signal = clients * reach * min(1.0, math.sqrt(2 * doubt / size)) + math.sqrt(
            clients * doubt / 2
        )
        return signal + math.sqrt(2 * doubt) * multiplier * reach <= 2.0 ** (bits - 1) - 1

    require(fits(1e-6), "wire_bits", bits, f"enough for sums of {clients} clients", "raise it")
    return bisect(fits, 1e-6, 2.0**bits, halvings=80, by_ratio=True)


def _round_ball(ball: Ball) -> Ball:
    require(isinstance(ball, Ball) and ball.norm is Norm.L2, "ball", ball, "an L2 ball")
    return ball


def _clients(value: int) -> int:
    return check_int(value, "clients", 1, MOST_CLIENTS)


def _wire_bits(value: int) -> int:
    return check_int(value, "wire_bits", 2, 40)


@frozen
class SumBaseline(ABC):
    """A mechanism whose codes are added behind masks over ``clients``, all of them honest."""

    ball: Ball = field(converter=_round_ball)
    clients: int = field(converter=_clients)
    rotation_seed: int = field(default=0, kw_only=True, converter=checked_seed)

    @property
    def code_count(self) -> int:
        """The dimension, padded to a power of two."""
        return padded_size(self.ball.dimension)

    @property
    @abstractmethod
    def squared_error(self) -> float:
        """Expected squared error of a coordinate of the mean whose true value is zero."""

    @abstractmethod
    def encode(self, update: Parts, rng: RandomBits, kernel: Kernel) -> NDArray[np.int64]:
        """Return a client's codes, below 2^wire_bits."""

    @abstractmethod
    def mean_from_sum(self, total: NDArray[np.int64]) -> FloatVector:
        """Return the mean update from the sums of codes, modulo 2^wire_bits or not."""

    @abstractmethod
    def sum_curve(self, adjacency: Adjacency) -> Cost:
        """Return the privacy curve of one sum for one client."""

    def sum_privacy(self, adjacency: Adjacency) -> Cost:
        """Return what one sum costs one client."""
        which = Adjacency(adjacency)
        return self.sum_curve(which).of(which, Unit.CLIENT, Trust.SECURE_AGGREGATION)

    def rotated_back(self, mean: FloatVector) -> FloatVector:
        """Undo rotation and padding."""
        return rotate_back(mean, self.rotation_seed)[: self.ball.dimension]


@frozen
class NoisySum(SumBaseline):
    """Integers with noise of every client's, in sums modulo 2^``wire_bits``."""

    wire_bits: int = field(default=16, kw_only=True, converter=_wire_bits)

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """Rotation, scale and rounding."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """Of the integer noise in the sum."""

    @abstractmethod
    def noise(self, block: WordBlock, size: int) -> NDArray[np.int64]:
        """Return one client's share of the noise; streams of the block from 1000 on are free."""

    @property
    def doubled_middle(self) -> int:
        """Twice the mean of the noise in the sum."""
        return 0

    @property
    def squared_error(self) -> float:
        """Noise and rounding."""
        return self.grid.error(self.variance, self.clients)

    def encode(self, update: Parts, rng: RandomBits, kernel: Kernel) -> NDArray[np.int64]:
        """Return the integers with one client's share of the noise, modulo 2^wire_bits."""
        integers, block = self.grid.integers(update, rng, kernel)
        return np.asarray((integers + self.noise(block, integers.size)) & (2**self.wire_bits - 1))

    def mean_from_sum(self, total: NDArray[np.int64]) -> FloatVector:
        """Return the sums less the noise's mean, centred, scaled and rotated back."""
        half = 1 << (self.wire_bits - 1)
        middle, odd = divmod(self.doubled_middle, 2)
        centred = (np.asarray(total, dtype=np.int64) - middle + half) % (2 * half) - half
        unit = 1 / self.grid.reach / self.clients
        return self.rotated_back((centred.astype(np.float64) - odd / 2) * unit)


M = TypeVar("M", bound=SumBaseline)


def sums_epsilon(mechanism: SumBaseline, target: Target) -> float:
    """Return the epsilon of all sums of a target at its delta."""
    return (mechanism.sum_privacy(target.adjacency) * target.releases).epsilon(target.delta)


def calibrate_sums(
    build: Callable[[float], M], target: Target, name: str, least: float, most: float
) -> M:
    """Return the most accurate mechanism of a loss whose sums meet the target."""

    def account(loss: float) -> float:
        return sums_epsilon(build(loss), target)

    return build(largest_private(account, least, most, target.epsilon, name))
