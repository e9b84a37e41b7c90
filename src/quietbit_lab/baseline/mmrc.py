"""Modified minimal random coding (MMRC): PrivUnit simulated by picking one of N public points of the sphere.

Idea     N = 2^b points of the unit sphere come from a public nonce; those in the cap around the update are likelier.
         Plain importance sampling would cost up to twice epsilon, for its normaliser depends on how many points fell
         into the cap. The modification keeps every probability between fixed bounds instead.
Symbols  q = `cap`: mass of the cap; high = e^eps/(q e^eps + 1 - q), low = e^-eps high: PrivUnit's two densities;
         c: points in the cap, f = c/N. Fewer than expected (f < q): points in the cap keep `high`, others share
         the rest, (1 - f high)/(1 - f). More: points outside keep `low`, those inside share (1 - (1 - f) low)/f.
Source   Shah, Chen, Balle, Kairouz, Theis (AISTATS 2022), "Optimal compression of locally differentially private
         mechanisms", Algorithm 2; Bhowmick et al. (2018) for PrivUnit.

Privacy. N times a probability lies in [low, high] whatever c is (none or all in the cap: all alike, one), and the
mean over the points is one: `tilt`. How exactly inner products are computed does not matter to that.
Error, exactly. c is binomial (N, q); P(cap) = f high or 1 - (1 - f) low; given the cap, points are uniform in it. So
m = E[t | cap] (E P(cap) - q)/(1 - q), and z C/m is unbiased with a squared error of C^2/m^2 - |x|^2. The cap is the
best one for N points, which is not PrivUnit's where points are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from scipy.special import gammaln

from quietbit._typing import FloatVector
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
from quietbit_lab.baseline.sphere import cap_edge, cap_moments, coordinate_variance, moment_slack
from quietbit_lab.baseline.tilt import cap_levels, draw, tilt_release
from quietbit_lab.baseline.tuned import LEAST_EPSILON, MOST_EPSILON, TunedFamily

__all__ = ["FAMILY", "MinimalRandomCoding", "best_cap", "cap_densities"]

MOST_BITS = 12
MOST_NORMALS = 2**27  # of all points: about a second, whoever described the mechanism
CAPS = np.exp(np.linspace(math.log(1e-7), math.log(0.5), 400))
DRAW_STREAM = 0


@final
@dataclass(frozen=True, slots=True)
class MinimalRandomCoding:
    """MMRC on updates in an L2 ball: one of 2^``bits`` points, for a cap of mass ``cap``."""

    ball: Ball
    design_epsilon: float
    bits: int
    cap: float

    def __post_init__(self) -> None:
        """Refuse another norm and numbers out of range."""
        put_in = object.__setattr__
        put_in(
            self,
            "design_epsilon",
            check_real(self.design_epsilon, "design_epsilon", at_least=LEAST_EPSILON, at_most=MOST_EPSILON),
        )
        put_in(self, "bits", check_int(self.bits, "bits", 1, MOST_BITS))
        put_in(self, "cap", check_real(self.cap, "cap", at_least=1e-9, at_most=0.5))
        check_ball(self.ball, Norm.L2, "MMRC", 2, MOST_NORMALS // self.points)

    @property
    def points(self) -> int:
        """N."""
        return 1 << self.bits

    @property
    def domain(self) -> Ball:
        """Where updates are clipped to."""
        return self.ball

    @property
    def layout(self) -> Layout:
        """A nonce and the number of a point."""
        return numbered_layout(self.ball.dimension, self.bits)

    @property
    def gain(self) -> float:
        """m: the mean inner product of the point sent with the update's direction."""
        return _moments(self.design_epsilon, self.bits, self.cap, self.ball.dimension)[0]

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Expand all points, see which lie in the cap, pick one."""
        direction, share = direction_of(self.ball, clipped(self.ball, update, rng, kernel))
        block = rng.draw(2)
        nonce, edge, size = new_nonce(block), cap_edge(self.cap, self.ball.dimension), self.ball.dimension
        inside = np.array([float(direction @ _point(nonce, j, size)) >= edge for j in range(self.points)])
        put(out, nonce, draw(cap_densities(inside, self.cap, self.design_epsilon), share, block, DRAW_STREAM))

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sums of points; a server expands the one that was picked."""
        size = self.ball.dimension

        def point(nonce: bytes, number: int) -> FloatVector:
            return _point(nonce, number, size)

        return sum_of_points(point, self.bits, 1.0, max_payloads, self.ball, self.gain)

    def privacy(self, adjacency: Adjacency, samples: int | None = None) -> Release:
        """The pair of a density between the two levels, or what so few points reach of them."""
        refuse_samples(samples, "MMRC looks at the direction of the whole update")
        return tilt_release(*_reached(self.cap, self.design_epsilon, self.points), check_adjacency(adjacency))

    def error(self) -> Error:
        """C^2 / m^2 over all coordinates."""
        return Error(self.variance(0.0))

    def expectation(self, value: float) -> float:
        """The value itself."""
        return check_value(self.ball, value)

    def variance(self, value: float) -> float:
        """Of a coordinate of this value in an update that fills the ball."""
        gain, second = _moments(self.design_epsilon, self.bits, self.cap, self.ball.dimension)
        number = check_value(self.ball, value)
        return coordinate_variance(self.ball.radius, self.ball.dimension, gain, second, number)

    @property
    def moment_error(self) -> float:
        """Of updates that do not fill the ball."""
        second = _moments(self.design_epsilon, self.bits, self.cap, self.ball.dimension)[1]
        return moment_slack(self.ball.dimension, second)


def cap_densities(inside: np.ndarray[tuple[int], np.dtype[np.bool_]], cap: float, epsilon: float) -> FloatVector:
    """N times the probability of every point: between `cap_levels`, and one on average."""
    low, high = cap_levels(cap, epsilon)
    part = float(inside.mean())
    if part in (0.0, 1.0):
        return np.ones(inside.size)
    if part <= cap:
        return np.where(inside, high, (1 - part * high) / (1 - part))
    return np.where(inside, (1 - (1 - part) * low) / part, low)


@lru_cache(maxsize=1024)
def _reached(cap: float, epsilon: float, points: int) -> tuple[float, float]:
    """The least and the largest density that some number of points in the cap leads to: all of them are looked at."""
    low, high = cap_levels(cap, epsilon)
    part = np.arange(1, points) / points
    inside = np.where(part <= cap, high, (1 - (1 - part) * low) / part)
    outside = np.where(part <= cap, (1 - part * high) / (1 - part), low)
    return float(outside.min()) * (1 - 1e-14), float(inside.max()) * (1 + 1e-14)


def _point(nonce: bytes, number: int, dimension: int) -> FloatVector:
    raw = candidate(nonce, number, dimension)
    return np.asarray(raw / np.sqrt(raw @ raw))


@lru_cache(maxsize=4096)
def _moments(epsilon: float, bits: int, cap: float, dimension: int) -> tuple[float, float]:
    """E[t] and E[t^2] of the point sent, for an update that fills the ball."""
    points = 1 << bits
    low, high = cap_levels(cap, epsilon)
    count = np.arange(points + 1)
    log_law = gammaln(points + 1) - gammaln(count + 1) - gammaln(points - count + 1)
    law = np.exp(log_law + count * math.log(cap) + (points - count) * math.log1p(-cap))
    part = count / points
    inside = float(law @ np.where(part <= cap, part * high, 1 - (1 - part) * low))
    mean, square = cap_moments(cap, dimension)
    outside = (1 / dimension - cap * square) / (1 - cap)
    return mean * (inside - cap) / (1 - cap), inside * square + (1 - inside) * outside


def best_cap(epsilon: float, bits: int, dimension: int) -> float:
    """The mass of a cap with the largest gain, of 400 between 1e-7 and one half."""
    gains = [_moments(epsilon, bits, float(cap), dimension)[0] for cap in CAPS]
    return float(CAPS[int(np.argmax(gains))])


def _bits(ball: Ball, choices: Choices) -> int:
    """One byte, unless bits are chosen: fewer (the published comparison has one for each nat) are worse."""
    check_ball(ball, Norm.L2, "MMRC", 2, MOST_NORMALS // 2)
    return choices.bits or min(8, (MOST_NORMALS // ball.dimension).bit_length() - 1)


def _usual(ball: Ball, loss: float, choices: Choices) -> float:
    return best_cap(loss, _bits(ball, choices), ball.dimension)


FAMILY = TunedFamily(
    "mmrc",
    (MinimalRandomCoding,),
    uses=("bits",),
    build=lambda ball, loss, share, choices: MinimalRandomCoding(ball, loss, _bits(ball, choices), share),
    usual=_usual,
    work="256 normal vectors, and inner products with them",
)
