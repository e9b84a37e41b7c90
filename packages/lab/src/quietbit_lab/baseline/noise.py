"""Laplace noise, 32 bits per coordinate, and SignSGD, the sign of a noisy update.

Idea     Laplace noise is sampled as the Gaussian's is (`quietbit.mechanism.additive`). A sign costs
         what the noisy value under it costs, and what its sampler can be off; coordinates are cut
         first.
Symbols  S = 1 for zero-out and 2 for replace-one, in clips; scale: of the noise; R: where `Sign`
         cuts. e = S / scale is the epsilon of a Laplace release.
Source   Guo et al. (ICML 2023), section "Experiments"; Mironov (2017), Proposition 6; Jin et al.
         (2020), "Stochastic-sign SGD"; docs/theory/rounded-noise.md;
         packages/lab/docs/baselines.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import numpy as np
from attrs import field, frozen
from scipy.special import log_ndtr, ndtri

from quietbit._typing import FloatVector
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.kernel.rounded import NoiseLaw
from quietbit.mechanism.accumulate import DOUBT, ROUNDING, code_accumulator
from quietbit.mechanism.additive import Gaussian, Noise, noise_family
from quietbit.mechanism.ball import Ball, Norm, clipped_pieces
from quietbit.mechanism.base import (
    Accumulator,
    Body,
    Error,
    Layout,
    Mechanism,
    Parts,
    only,
    passed_on,
)
from quietbit.mechanism.family import check_multiplier
from quietbit.mechanism.rotation import response_lower
from quietbit.privacy.cost import Cost
from quietbit.privacy.release import Formula
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = [
    "LAPLACE_FAMILY",
    "SIGN_FAMILY",
    "Laplace",
    "Sign",
    "exponential_length_upper",
    "laplace_noise",
    "normal_noise",
]

TOP = np.uint64(1 << 63)
CHUNK = 1 << 18  # a multiple of eight, so that chunks of signs begin at whole bytes
GRID = 2.0**-63  # how far the tail's grid can move a sign's probability,
ROUNDINGS = 2.0**-40  # and how far the arithmetic
SIGNS = np.array([-1.0, 1.0])
SIGNS.setflags(write=False)


def _scale(value: float) -> float:
    return check_multiplier(value, "scale_multiplier")


def exponential_length_upper(dimension: int, scale: float, doubt: float = DOUBT) -> float:
    """Return an L1 length that an update plus Laplace noise exceeds with probability e^-doubt."""
    return (1 + scale * (dimension + math.sqrt(2 * dimension * doubt) + doubt)) * ROUNDING


@final
@frozen
class Laplace(Noise):
    """Laplace noise on an L1 ball, of scale ``scale_multiplier`` clips (1e-6 to 1e7)."""

    ball: Ball
    scale_multiplier: float = field(converter=_scale)
    NORM = Norm.L1
    LAW = NoiseLaw.LAPLACE
    REACH = 45.0
    VARIANCE = 2.0

    unit = passed_on("scale_multiplier")

    def cost_apart(self, distance: float) -> Cost:
        """Return a pure account, with Laplace's own divergences at finite orders."""
        epsilon = round_up(distance / self.scale_multiplier, 1e-14)
        return Cost.renyi(Formula(_laplace_divergence, epsilon), epsilon)

    @property
    def honest_length(self) -> float:
        """A bound from the gamma law of the noise's L1 length."""
        return exponential_length_upper(self.ball.dimension, self.scale_multiplier)


def laplace_noise(block: WordBlock, start: int, count: int) -> FloatVector:
    """Return Laplace noise of scale 1 from coordinate ``start`` on, at most 44.4 in magnitude."""
    tail, sign = _tail_and_sign(block, start, count)
    return np.asarray(np.log(tail) * sign)


def normal_noise(block: WordBlock, start: int, count: int) -> FloatVector:
    """Return standard normal noise for coordinates from ``start`` on, at most 9.2 in magnitude."""
    tail, sign = _tail_and_sign(block, start, count)
    return np.asarray(ndtri(tail / 2) * sign)


def _tail_and_sign(block: WordBlock, start: int, count: int) -> tuple[FloatVector, FloatVector]:
    """Return a uniform tail probability in (0, 1] and a sign for each coordinate."""
    words = block.uniform64(0, start, count)
    tail = ((words & ~TOP).astype(np.float64) + 0.5) * 2.0**-63
    sign = np.where(words & TOP, 1.0, -1.0)
    return np.minimum(tail, 1.0), sign


@final
@frozen
class SignLaw:
    """The law of a sign's noise of unit scale.

    ``cut``: where coordinates are cut; ``density``: at 0; ``tail``: P(noise > value); ``draw``:
    noise for ``count`` coordinates from ``start`` on.
    """

    cut: float
    density: float
    tail: Callable[[float], float]
    draw: Callable[[WordBlock, int, int], FloatVector]


def _normal_tail(value: float) -> float:
    return math.exp(float(log_ndtr(-value)))


def _laplace_tail(value: float) -> float:
    return math.exp(-value) / 2


LAWS = {
    NoiseLaw.NORMAL: SignLaw(5.0, 1 / math.sqrt(2 * math.pi), _normal_tail, normal_noise),
    NoiseLaw.LAPLACE: SignLaw(15.0, 0.5, _laplace_tail, laplace_noise),
}


@final
@frozen
class Sign(Mechanism):
    """The sign of a Gaussian's or a Laplace's noisy update: code 1 if not negative, else 0.

    Codes decode to +1 and -1, which have no unit; dividing by ``slope_at_zero`` leads to clips.
    """

    inner: Noise = field(validator=only(Noise, "a Gaussian or a Laplace"))

    ball = passed_on("inner.ball")
    unitless = True
    values = SIGNS  # the values of codes 0 and 1

    @property
    def layout(self) -> Layout:
        """One bit per coordinate."""
        return Layout.codes(1, self.ball.dimension)

    @property
    def _law(self) -> SignLaw:
        return LAWS[self.inner.LAW]

    def tail(self, value: float) -> float:
        """Return P(noise > value) for a value of at least 0."""
        return self._law.tail(value / self.inner.unit)

    @property
    def cut(self) -> float:
        """The magnitude at which coordinates are clamped: there a sign is all but certain."""
        return self._law.cut * self.inner.unit

    @property
    def slope_at_zero(self) -> float:
        """The derivative of the expectation at 0: sqrt(2/pi)/sigma, or 1/scale for Laplace."""
        return 2 * self._law.density / self.inner.unit

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write one bit per coordinate."""
        size = self.ball.dimension
        piece = clipped_pieces(self.ball, update, clip, kernel)
        block = rng.draw(size)
        for start in range(0, size, CHUNK):
            stop = min(size, start + CHUNK)
            values = np.clip(piece(start, stop), -self.cut, self.cut)
            noisy = values + self.inner.unit * self._law.draw(block, start, values.size)
            out[start // 8 : (stop + 7) // 8] = np.packbits(noisy >= 0, bitorder="little")

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that counts ones."""
        return code_accumulator(SIGNS, 1, self.ball.dimension, kernel, max_payloads)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the inner mechanism's cost (a sign is post-processing), plus sampling slack."""
        return self.inner.cost(adjacency).with_slack(self._slack)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the inner mechanism's cost per sample plus the same slack."""
        return self.inner.sample_cost(adjacency, samples).with_slack(self._slack)

    @property
    def _slack(self) -> float:
        missed = ROUNDINGS + GRID / self.tail(min(1.0, self.cut))
        return round_up(-self.ball.dimension * math.log1p(-missed), 1e-14)

    def error(self) -> Error:
        """Return the error after dividing by the slope at 0; large coordinates keep their sign."""
        slope = self.slope_at_zero
        response = self.response(None)
        missed = (1 - response) / self.ball.dimension
        return Error(1 / slope**2 + missed, gain=slope, response=response)

    def response(self, block: int | None) -> float:
        """Return a lower bound on the share of an update that is decoded, by its slope."""
        slope = self.slope_at_zero

        def missing(values: FloatVector) -> FloatVector:
            return np.array(
                [1 - self.decoded(value)[0] / (slope * value) for value in values.tolist()]
            )

        return response_lower(missing, block)

    def decoded(self, value: float) -> tuple[float, float]:
        """Return P(+1) - P(-1) and the variance, 1 minus its square."""
        mean = 0.0
        if value:
            mean = math.copysign(1 - 2 * self.tail(min(abs(value), self.cut)), value)
        return mean, 1 - mean**2

    def distribution(self, value: float) -> FloatVector:
        """Return the probabilities of -1 and +1 for a coordinate of this value."""
        plus = (1 + self.expectation(value)) / 2
        return np.array([1 - plus, plus])


def _laplace_divergence(alpha: float, eps: float) -> float:
    """Return D_alpha of two Laplace laws with centres ``eps`` scales apart, rounded up."""
    # e^((alpha-1) eps) (1 - r (1 - e^(-(2 alpha - 1) eps))), r = (alpha-1)/(2 alpha-1) at most 1/2.
    share = (alpha - 1) / (2 * alpha - 1)
    moment = (alpha - 1) * eps + math.log1p(share * math.expm1(-(2 * alpha - 1) * eps))
    exact = (moment + 1e-15 * (1 + abs(moment))) / (alpha - 1)
    return min(Cost.pure(eps).rdp(alpha), round_up(exact))


def _sign(ball: Ball, multiplier: float) -> Sign:
    if ball.norm is Norm.L2:
        return Sign(Gaussian(ball, multiplier))
    return Sign(Laplace(ball, multiplier))


LAPLACE_FAMILY = noise_family("laplace", Laplace, baseline=True)
SIGN_FAMILY = noise_family("sign", _sign, baseline=True)
