"""Mechanisms that add noise: Gaussian and Laplace, 32 bits per coordinate, and SignSGD, the sign of either.

Idea     Gaussian and Laplace release the multiple of a grid, some 2^-16 of the noise's size, that is nearest to the
         clipped update plus a real normal or Laplace number, decided with as many random bits as it takes
         (`kernel/rounded.py`): rounding is post-processing, so the accounts are those of real-valued noise. A sign
         costs what the noisy value under it costs, and what its sampler can be off; coordinates are cut first.
Symbols  C = radius; S = C for zero-out and 2C for replace-one; sigma, scale: of the noise; R: where `Sign` cuts.
         Gaussian: rdp(alpha) = alpha S^2 / (2 sigma^2). Laplace: e = S / scale is the epsilon of the release.
Source   Guo et al. (ICML 2023), section "Experiments"; Balle and Wang (2018); Mironov (2017), Proposition 6; Jin et al.
         (2020), "Stochastic-sign SGD"; docs/theory/rounded-noise.md and docs/theory/samplers.md.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, final

import numpy as np
from attrs import field, frozen
from scipy.special import log_ndtr, ndtri

from quietbit._typing import FloatVector
from quietbit.errors import require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.kernel.rounded import NoiseLaw
from quietbit.mechanism.accumulate import code_accumulator, of_floats
from quietbit.mechanism.ball import Ball, Norm, check_ball, clipped_pieces
from quietbit.mechanism.base import Accumulator, Body, Error, Layout, Mechanism, Parts, only, passed_on
from quietbit.mechanism.family import MAX_MULTIPLIER, MIN_MULTIPLIER, SearchedFamily, check_multiplier
from quietbit.mechanism.poison import exponential_length_upper, normal_length_upper
from quietbit.mechanism.rotation import response_lower
from quietbit.privacy.conversion import round_up
from quietbit.privacy.cost import Cost, Formula, sample_share
from quietbit.target import Adjacency

__all__ = ["FAMILIES", "Gaussian", "Laplace", "Sign", "laplace_noise", "normal_noise"]

CHUNK = 1 << 18  # a multiple of eight, so that chunks of signs begin at whole bytes
TOP = np.uint64(1 << 63)
GRID, ROUNDINGS = 2.0**-63, 2.0**-40  # how far the tail's grid and the arithmetic can move a sign's probability
SIGNS = np.array([-1.0, 1.0])
SIGNS.setflags(write=False)


def _scale(value: float) -> float:
    return check_multiplier(value, "scale_multiplier")


class Noise(Mechanism):
    """An update plus noise of one law, sent as 32-bit floats; subclasses differ in the law alone."""

    __slots__ = ()
    ball: Ball
    unit: float  # the scale of the noise, in which its law is written
    NORM: ClassVar[Norm]
    LAW: ClassVar[NoiseLaw]
    VARIANCE: ClassVar[float]  # of the noise of unit scale, and its density at 0
    DENSITY: ClassVar[float]
    CUT: ClassVar[float]  # R: where `Sign` cuts coordinates, in units of the noise
    REACH: ClassVar[float]  # how far payloads may exceed the radius, in units of the noise; what lies beyond is cut off

    def __attrs_post_init__(self) -> None:
        """Refuse any other norm."""
        rule = f"{self.NORM.value} for {type(self).__name__} noise"
        require(check_ball(self.ball).norm is self.NORM, "norm of the ball", self.ball.norm.value, rule)

    @property
    def layout(self) -> Layout:
        """One float per coordinate."""
        return Layout.codes(32, self.ball.dimension)

    def noisy(self, values: FloatVector, block: WordBlock, start: int) -> FloatVector:
        """Return the values of coordinates ``start ..`` plus their noise, in double precision."""
        return values + self.unit * DRAW[self.LAW](block, start, values.size)

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

    @abstractmethod
    def tail(self, value: float) -> float:
        """Return P(noise > value) for a value of at least 0."""

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write the noisy update, rounded to the public grid and then to 32-bit floats."""
        piece, size = clipped_pieces(self.ball, update, kernel), self.ball.dimension
        block, most = rng.draw(size), self.ball.radius + (self.REACH - 0.25) * self.unit
        for start in range(0, size, CHUNK):
            stop = min(size, start + CHUNK)
            noisy = kernel.rounded_noise(piece(start, stop), self.unit, self.LAW, block, start)
            noisy = np.clip(noisy, -most, most).astype("<f4")
            out[4 * start : 4 * stop] = noisy.view(np.uint8)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sum floats as fixed-point numbers."""
        reach, ball = self.ball.radius + self.REACH * self.unit, self.ball
        return of_floats(reach, ball.dimension, max_payloads, self.honest_length, ball.norm.order)


@final
@frozen
class Gaussian(Noise):
    """Normal noise on an update in an L2 ball, ``noise_multiplier`` radii (1e-6 to 1e7) in standard deviation."""

    ball: Ball
    noise_multiplier: float = field(converter=check_multiplier)
    NORM, LAW, CUT, REACH = Norm.L2, NoiseLaw.NORMAL, 5.0, 9.5
    VARIANCE, DENSITY = 1.0, 1 / math.sqrt(2 * math.pi)

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

    def tail(self, value: float) -> float:
        """Return P(noise > value)."""
        return math.exp(float(log_ndtr(-value / self.sigma)))


@final
@frozen
class Laplace(Noise):
    """Laplace noise on an update in an L1 ball, ``scale_multiplier`` radii (1e-6 to 1e7) in scale."""

    ball: Ball
    scale_multiplier: float = field(converter=_scale)
    NORM, LAW, CUT, REACH = Norm.L1, NoiseLaw.LAPLACE, 15.0, 45.0
    VARIANCE, DENSITY = 2.0, 0.5

    @property
    def scale(self) -> float:
        """The scale of the noise: its mean magnitude."""
        return self.scale_multiplier * self.ball.radius

    unit = passed_on("scale")

    def cost_apart(self, distance: float) -> Cost:
        """Return a pure account, with Laplace's own divergences at finite orders."""
        epsilon = round_up(distance / self.scale_multiplier, 1e-14)
        return Cost.renyi(Formula(_laplace_divergence, epsilon), f"Laplace, epsilon {epsilon:g}", epsilon)

    @property
    def honest_length(self) -> float:
        """A bound from the gamma law of the noise's L1 length."""
        return exponential_length_upper(self.ball.dimension, self.ball.radius, self.scale)

    def tail(self, value: float) -> float:
        """Return P(noise > value)."""
        return math.exp(-value / self.scale) / 2


@final
@frozen
class Sign(Mechanism):
    """The sign of a Gaussian's or a Laplace's noisy update: code 1 where it is not negative, else 0.

    Codes decode to +1 and -1, which have no unit; dividing by ``slope_at_zero`` restores the units of the update.
    """

    inner: Noise = field(validator=only(Noise, "a Gaussian or a Laplace"))

    domain = passed_on("inner.ball")
    values = SIGNS  # the values of codes 0 and 1

    @property
    def layout(self) -> Layout:
        """One bit per coordinate."""
        return Layout.codes(1, self.domain.dimension)

    @property
    def cut(self) -> float:
        """The magnitude at which coordinates are clamped: there a sign is all but certain."""
        return self.inner.CUT * self.inner.unit

    @property
    def slope_at_zero(self) -> float:
        """The derivative of the expectation at 0: sqrt(2/pi)/sigma, or 1/scale for Laplace noise."""
        return 2 * self.inner.DENSITY / self.inner.unit

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write one bit per coordinate."""
        piece, size = clipped_pieces(self.domain, update, kernel), self.domain.dimension
        block = rng.draw(size)
        for start in range(0, size, CHUNK):
            stop = min(size, start + CHUNK)
            noisy = self.inner.noisy(np.clip(piece(start, stop), -self.cut, self.cut), block, start)
            out[start // 8 : (stop + 7) // 8] = np.packbits(noisy >= 0, bitorder="little")

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that counts ones."""
        return code_accumulator(SIGNS, 1, self.domain.dimension, kernel, max_payloads)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the inner mechanism's cost, since taking a sign is post-processing, plus the bit's sampling slack."""
        return self.inner.cost(adjacency).with_slack(self._slack)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the inner mechanism's cost per sample plus the same slack."""
        return self.inner.sample_cost(adjacency, samples).with_slack(self._slack)

    @property
    def _slack(self) -> float:
        missed = ROUNDINGS + GRID / self.inner.tail(min(self.domain.radius, self.cut))
        return round_up(-self.domain.dimension * math.log1p(-missed), 1e-14)

    def error(self) -> Error:
        """Return the error after dividing by the slope at zero; a large coordinate keeps only its sign."""
        slope, response, ball = self.slope_at_zero, self.response(None), self.domain
        missed = (1 - response) * ball.radius**2 / ball.dimension
        return Error(1 / slope**2 + missed, gain=slope, unitless=True, response=response)

    def response(self, block: int | None) -> float:
        """Return a lower bound on the share of an update that is decoded, after dividing by the slope."""
        slope = self.slope_at_zero

        def missing(values: FloatVector) -> FloatVector:
            return np.array([1 - self.decoded(value)[0] / (slope * value) for value in values.tolist()])

        return response_lower(missing, self.domain.radius, block)

    def decoded(self, value: float) -> tuple[float, float]:
        """Return P(+1) - P(-1) and the variance, 1 minus its square."""
        mean = math.copysign(1 - 2 * self.inner.tail(min(abs(value), self.cut)), value) if value else 0.0
        return mean, 1 - mean**2

    def distribution(self, value: float) -> FloatVector:
        """Return the probabilities of -1 and +1 for a coordinate of this value."""
        plus = (1 + self.expectation(value)) / 2
        return np.array([1 - plus, plus])


def normal_noise(block: WordBlock, start: int, count: int) -> FloatVector:
    """Return standard normal noise for coordinates ``start .. start + count - 1``, at most 9.2 in magnitude."""
    tail, sign = _tail_and_sign(block, start, count)
    return np.asarray(ndtri(tail / 2) * sign)


def laplace_noise(block: WordBlock, start: int, count: int) -> FloatVector:
    """Return Laplace noise of scale 1, at most 44.4 in magnitude."""
    tail, sign = _tail_and_sign(block, start, count)
    return np.asarray(np.log(tail) * sign)


def _tail_and_sign(block: WordBlock, start: int, count: int) -> tuple[FloatVector, FloatVector]:
    words = block.uniform64(0, start, count)
    tail = ((words & ~TOP).astype(np.float64) + 0.5) * 2.0**-63
    sign = np.where(words & TOP, 1.0, -1.0)
    return np.minimum(tail, 1.0), sign


def _laplace_divergence(alpha: float, eps: float) -> float:
    """Return D_alpha of two Laplace distributions whose centres are ``eps`` scales apart, rounded up."""
    # e^((alpha-1) eps) (1 - r (1 - e^(-(2 alpha - 1) eps))), r = (alpha-1)/(2 alpha-1) at most 1/2.
    share = (alpha - 1) / (2 * alpha - 1)
    moment = (alpha - 1) * eps + math.log1p(share * math.expm1(-(2 * alpha - 1) * eps))
    exact = (moment + 1e-15 * (1 + abs(moment))) / (alpha - 1)
    return min(Cost.pure(eps).rdp(alpha), round_up(exact))


DRAW = {NoiseLaw.NORMAL: normal_noise, NoiseLaw.LAPLACE: laplace_noise}  # of unit size


def _family(word: str, build: Callable[[Ball, float], Mechanism], work: str) -> SearchedFamily:
    """Build a family of noise mechanisms; its multiplier is one over the loss that is searched for."""
    limits = 1 / MAX_MULTIPLIER, 1 / MIN_MULTIPLIER
    return SearchedFamily(
        word, (), "noise_multiplier", lambda ball, loss, _: build(ball, 1 / loss), lambda _, __: limits,
        inverse=True, work=work,
    )  # fmt: skip


def _sign(ball: Ball, multiplier: float) -> Sign:
    return Sign(Gaussian(ball, multiplier) if ball.norm is Norm.L2 else Laplace(ball, multiplier))


FAMILIES = (
    _family("gaussian", Gaussian, "a normal draw per coordinate"),
    _family("laplace", Laplace, "a Laplace draw per coordinate"),
    _family("sign", _sign, "a noisy sign per coordinate"),
)
