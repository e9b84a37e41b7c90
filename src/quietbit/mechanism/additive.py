"""Mechanisms that add noise: the Gaussian, 32 bits per coordinate, and what it shares with other laws of noise.

Idea     a release is the multiple of a grid, some 2^-16 of the noise's size, that is nearest to the
         clipped update plus a real normal number, decided with as many random bits as it takes
         (`kernel/rounded.py`): rounding is post-processing, so the account is that of real-valued
         noise.
Symbols  C = radius; S = C for zero-out and 2C for replace-one; sigma: of the noise; rdp(alpha) =
         alpha S^2/(2 sigma^2).
Source   Balle and Wang (2018); docs/theory/rounded-noise.md and docs/theory/samplers.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, final

import numpy as np
from attrs import field, frozen
from scipy.special import ndtri

from quietbit._typing import FloatVector
from quietbit.errors import require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.kernel.rounded import NoiseLaw
from quietbit.mechanism.abilities import LengthBounded, SamplePriced
from quietbit.mechanism.accumulate import of_floats
from quietbit.mechanism.ball import Ball, Norm, check_ball, clipped_pieces
from quietbit.mechanism.base import Accumulator, Body, Error, Layout, Mechanism, Parts, passed_on
from quietbit.mechanism.family import (
    MAX_MULTIPLIER,
    MIN_MULTIPLIER,
    SearchedFamily,
    check_multiplier,
)
from quietbit.mechanism.poison import normal_length_upper
from quietbit.privacy.cost import Cost, sample_share
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = ["FAMILIES", "Gaussian", "Noise", "noise_family", "normal_noise", "tail_and_sign"]

CHUNK = 1 << 18
TOP = np.uint64(1 << 63)


class Noise(Mechanism, SamplePriced, LengthBounded):
    """An update plus noise of one law, sent as 32-bit floats; subclasses differ in the law alone."""

    __slots__ = ()
    ball: Ball
    unit: float  # the scale of the noise, in which its law is written
    NORM: ClassVar[Norm]
    LAW: ClassVar[NoiseLaw]
    VARIANCE: ClassVar[float]  # of the noise of unit scale
    REACH: ClassVar[
        float
    ]  # how far payloads may exceed the radius, in units of the noise; what lies beyond is cut off

    def __attrs_post_init__(self) -> None:
        """Refuse any other norm."""
        rule = f"{self.NORM.value} for {type(self).__name__} noise"
        require(
            check_ball(self.ball).norm is self.NORM, "norm of the ball", self.ball.norm.value, rule
        )

    @property
    def layout(self) -> Layout:
        """One float per coordinate."""
        return Layout.codes(32, self.ball.dimension)

    @abstractmethod
    def noisy(self, values: FloatVector, block: WordBlock, start: int) -> FloatVector:
        """Return the values of coordinates ``start ..`` plus their noise, in double precision."""

    @abstractmethod
    def cost_apart(self, distance: float) -> Cost:
        """Return the cost between two updates ``distance`` radii apart."""

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost between two clients' updates."""
        return self.cost_apart(adjacency.radii)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the cost between two updates that differ in one sample."""
        return self.cost_apart(sample_share(adjacency, samples))

    def error(self) -> Error:
        """Return the variance of the noise; decoding is unbiased but for rounding to 32 bits."""
        return Error(self.VARIANCE * self.unit**2)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write the noisy update, rounded to the public grid and then to 32-bit floats."""
        piece = clipped_pieces(self.ball, update, kernel)
        size = self.ball.dimension
        block = rng.draw(size)
        most = self.ball.radius + (self.REACH - 0.25) * self.unit
        for start in range(0, size, CHUNK):
            stop = min(size, start + CHUNK)
            noisy = kernel.rounded_noise(piece(start, stop), self.unit, self.LAW, block, start)
            noisy = np.clip(noisy, -most, most).astype("<f4")
            out[4 * start : 4 * stop] = noisy.view(np.uint8)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sum floats as fixed-point numbers."""
        reach = self.ball.radius + self.REACH * self.unit
        ball = self.ball
        return of_floats(reach, ball.dimension, max_payloads, self.honest_length, ball.norm.order)


@final
@frozen
class Gaussian(Noise):
    """Normal noise on an update in an L2 ball, ``noise_multiplier`` radii (1e-6 to 1e7) in standard deviation."""

    ball: Ball
    noise_multiplier: float = field(converter=check_multiplier)
    NORM = Norm.L2
    LAW = NoiseLaw.NORMAL
    REACH = 9.5
    VARIANCE = 1.0

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise."""
        return self.noise_multiplier * self.ball.radius

    unit = passed_on("sigma")

    def cost_apart(self, distance: float) -> Cost:
        """Return the curve alpha S^2 / (2 sigma^2), with the exact account of a Gaussian."""
        return Cost.gaussian(round_up((distance / self.noise_multiplier) ** 2 / 2, 1e-14))

    @property
    def honest_length(self) -> float:
        """A bound from the chi-square law of the noise's squared length."""
        return normal_length_upper(self.ball.dimension, self.ball.radius, self.sigma)

    def noisy(self, values: FloatVector, block: WordBlock, start: int) -> FloatVector:
        """Return the values of coordinates ``start ..`` plus normal noise, in double precision."""
        return values + self.sigma * normal_noise(block, start, values.size)


def normal_noise(block: WordBlock, start: int, count: int) -> FloatVector:
    """Return standard normal noise for coordinates ``start .. start + count - 1``, at most 9.2 in magnitude."""
    tail, sign = tail_and_sign(block, start, count)
    return np.asarray(ndtri(tail / 2) * sign)


def tail_and_sign(block: WordBlock, start: int, count: int) -> tuple[FloatVector, FloatVector]:
    """Return a uniform tail probability in (0, 1] and a sign for each coordinate."""
    words = block.uniform64(0, start, count)
    tail = ((words & ~TOP).astype(np.float64) + 0.5) * 2.0**-63
    sign = np.where(words & TOP, 1.0, -1.0)
    return np.minimum(tail, 1.0), sign


def noise_family(
    name: str, build: Callable[[Ball, float], Mechanism], work: str, *, baseline: bool = False
) -> SearchedFamily:
    """Return a family of noise mechanisms; its multiplier is one over the loss that is searched for."""
    limits = (1 / MAX_MULTIPLIER, 1 / MIN_MULTIPLIER)
    return SearchedFamily(
        name,
        (),
        "noise_multiplier",
        build=lambda ball, loss, choices: build(ball, 1 / loss),
        limits=lambda ball, choices: limits,
        inverse=True,
        work=work,
        baseline=baseline,
    )


FAMILIES = (noise_family("gaussian", Gaussian, "a normal draw per coordinate"),)
