"""Noise added to an update, 32 bits per coordinate: the Gaussian, and the base of other laws.

Idea     a release is the multiple of a grid, some 2^-16 of the noise's size, that is nearest to the
         clipped update plus a real normal number, decided with as many random bits as it takes
         (`kernel/rounded.py`). Rounding is post-processing, so the account is that of real noise.
Symbols  S = 1 for zero-out and 2 for replace-one; sigma = `noise_multiplier`: of the noise;
         rdp(alpha) = alpha S^2/(2 sigma^2). All lengths are in clips, and so are the floats sent.
Source   Balle and Wang (2018); docs/theory/rounded-noise.md and docs/theory/numerics.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, final

import numpy as np
from attrs import field, frozen

from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.rounded import NoiseLaw
from quietbit.mechanism.accumulate import normal_length_upper, of_floats
from quietbit.mechanism.ball import Ball, Norm, check_ball, check_norm, clipped_pieces
from quietbit.mechanism.base import Accumulator, Body, Error, Layout, Mechanism, Parts, passed_on
from quietbit.mechanism.family import (
    MAX_MULTIPLIER,
    MIN_MULTIPLIER,
    SearchedFamily,
    check_multiplier,
)
from quietbit.privacy.cost import Cost, sample_share
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = ["FAMILY", "Gaussian", "Noise", "noise_family"]

CHUNK = 1 << 18  # coordinates per pass


class Noise(Mechanism):
    """An update plus noise of one law, sent as 32-bit floats; subclasses differ in the law alone.

    Class attributes: ``NORM`` of the ball, ``LAW`` of the noise, ``VARIANCE`` of the noise of unit
    scale, and ``REACH``, how far payloads may exceed the clip, in scales of the noise; values
    beyond are cut off.
    """

    __slots__ = ()
    ball: Ball
    unit: float  # the scale of the noise
    NORM: ClassVar[Norm]
    LAW: ClassVar[NoiseLaw]
    VARIANCE: ClassVar[float]
    REACH: ClassVar[float]

    def __attrs_post_init__(self) -> None:
        """Refuse a ball of the wrong norm."""
        check_norm(check_ball(self.ball), self.NORM, f"for {type(self).__name__} noise")

    @property
    def layout(self) -> Layout:
        """One float per coordinate."""
        return Layout.codes(32, self.ball.dimension)

    @abstractmethod
    def cost_apart(self, distance: float) -> Cost:
        """Return the cost between two updates ``distance`` clips apart."""

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost between two clients' updates."""
        return self.cost_apart(adjacency.radii)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the cost between two updates that differ in one sample."""
        return self.cost_apart(sample_share(adjacency, samples))

    def error(self) -> Error:
        """Return the variance of the noise; decoding is unbiased but for rounding to 32 bits."""
        return Error(self.VARIANCE * self.unit**2)

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write the noisy update, rounded to the public grid and then to 32-bit floats."""
        clipped = clipped_pieces(self.ball, update, clip, kernel)
        size = self.ball.dimension
        block = rng.draw(size)
        largest = 1.0 + (self.REACH - 0.25) * self.unit
        for start in range(0, size, CHUNK):
            stop = min(size, start + CHUNK)
            noisy = kernel.rounded_noise(clipped(start, stop), self.unit, self.LAW, block, start)
            floats = np.clip(noisy, -largest, largest).astype("<f4")
            out[4 * start : 4 * stop] = floats.view(np.uint8)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator of floats as fixed-point numbers."""
        ball = self.ball
        reach = 1.0 + self.REACH * self.unit
        return of_floats(reach, ball.dimension, max_payloads, self.honest_length, ball.norm.order)


@final
@frozen
class Gaussian(Noise):
    """Normal noise on an update in an L2 ball; its deviation is ``noise_multiplier`` clips."""

    ball: Ball
    noise_multiplier: float = field(converter=check_multiplier)
    NORM = Norm.L2
    LAW = NoiseLaw.NORMAL
    REACH = 9.5
    VARIANCE = 1.0

    unit = passed_on("noise_multiplier")

    def cost_apart(self, distance: float) -> Cost:
        """Return the exact account of a Gaussian, whose curve is alpha S^2 / (2 sigma^2)."""
        return Cost.gaussian(round_up((distance / self.noise_multiplier) ** 2 / 2, 1e-14))

    @property
    def honest_length(self) -> float:
        """A bound from the chi-square law of the noise's squared length."""
        return normal_length_upper(self.ball.dimension, self.noise_multiplier)


def noise_family(
    name: str, build: Callable[[Ball, float], Mechanism], *, baseline: bool = False
) -> SearchedFamily:
    """Return a family of noise mechanisms; the search is over one divided by the multiplier."""
    limits = (1 / MAX_MULTIPLIER, 1 / MIN_MULTIPLIER)
    return SearchedFamily(
        name,
        (),
        "noise_multiplier",
        build=lambda ball, loss, choices: build(ball, 1 / loss),
        limits=lambda ball, choices: limits,
        direct=lambda ball, multiplier, choices: build(ball, multiplier),
        baseline=baseline,
    )


FAMILY = noise_family("gaussian", Gaussian)
