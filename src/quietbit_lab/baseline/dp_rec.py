"""DP-REC: Gaussian noise by relative entropy coding, one of N public candidates, where its account holds.

Idea     N = 2^b normal vectors come from a public nonce; a client picks one with probability proportional to the
         ratio of the Gaussian mechanism's density to the public one, exp(mu t) in t = <u, z>, and sends its number.
Symbols  mu = `slope`; a = `limit`: exponents are cut to +-a; w_j = exp(clamp(mu t_j, -a, a)); h_j = N w_j / sum w; m
         = E[t] of the candidate sent.
Source   Triastcyn, Reisser, Louizos (2021), "DP-REC: private and communication-efficient federated learning".

Where the account holds. Importance sampling from N candidates is not the Gaussian mechanism: its normaliser is a sum
of N weights that depend on the update, and unbounded ones at that, so the Gaussian's own account is not a bound for
any finite N. With exponents cut to +-a it is one for certain: h lies between N/(1 + (N-1) e^2a) and N/(1 + (N-1)
e^-2a), and `tilt` does the rest. Up to twice the epsilon of the weights themselves goes to the normaliser; MMRC is
the repair.
Error, exactly. E[w_1 f(t_1)/sum w] = integral over s > 0 of E[w f e^(-s w)] (E e^(-s w))^(N-1), for f = t and t^2;
across the update candidates are standard normal whatever was picked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from quietbit._search import bisect
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
from quietbit.mechanism.family import Choices, SearchedFamily
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
from quietbit_lab.baseline.tilt import draw, tilt_release

__all__ = ["FAMILY", "RelativeEntropyCoding", "best_slope", "weight_limit"]

MOST_BITS = 12
MOST_NORMALS = 2**27  # of all candidates: about a second, whoever described the mechanism
LEAST_EPSILON, MOST_EPSILON = 1e-3, 16.0
LARGEST_NORMAL = 10.0
DRAW_STREAM = 0
SLOPES = np.geomspace(0.25, 16.0, 25)  # in units of the limit
_T = np.linspace(-9.0, 9.0, 721)
_PHI = np.exp(-0.5 * _T**2) / np.exp(-0.5 * _T**2).sum()
_S = np.linspace(-30.0, 12.0, 421)  # logarithms of s


@final
@dataclass(frozen=True, slots=True)
class RelativeEntropyCoding:
    """Importance sampling of a Gaussian mechanism with bounded weights, one of 2^``bits`` candidates."""

    ball: Ball
    slope: float
    limit: float
    bits: int

    def __post_init__(self) -> None:
        """Refuse another norm and numbers out of range."""
        put_in = object.__setattr__
        put_in(self, "slope", check_real(self.slope, "slope", at_most=1e4))
        put_in(self, "limit", check_real(self.limit, "limit", at_least=1e-6, at_most=MOST_EPSILON))
        put_in(self, "bits", check_int(self.bits, "bits", 1, MOST_BITS))
        check_ball(self.ball, Norm.L2, "DP-REC", 1, MOST_NORMALS // self.candidates)

    @property
    def candidates(self) -> int:
        """N."""
        return 1 << self.bits

    @property
    def domain(self) -> Ball:
        """Where updates are clipped to."""
        return self.ball

    @property
    def layout(self) -> Layout:
        """A nonce and the number of a candidate."""
        return numbered_layout(self.ball.dimension, self.bits)

    @property
    def gain(self) -> float:
        """m: the mean inner product of the candidate sent with the update's direction."""
        return _moments(self.slope, self.limit, self.bits)[0]

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Expand all candidates, weigh them, pick one."""
        direction, share = direction_of(self.ball, clipped(self.ball, update, rng, kernel))
        block = rng.draw(2)
        nonce, size = new_nonce(block), self.ball.dimension
        along = np.array([float(direction @ candidate(nonce, j, size)) for j in range(self.candidates)])
        weights = np.exp(np.clip(self.slope * along, -self.limit, self.limit))
        put(out, nonce, draw(weights / weights.mean(), share, block, DRAW_STREAM))

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sums of candidates; a server expands the one that was picked."""
        size = self.ball.dimension

        def point(nonce: bytes, number: int) -> FloatVector:
            return candidate(nonce, number, size)

        return sum_of_points(point, self.bits, LARGEST_NORMAL, max_payloads, self.ball, self.gain)

    def privacy(self, adjacency: Adjacency, samples: int | None = None) -> Release:
        """The pair of a density between the bounds at the head of this file, a little widened for rounding."""
        refuse_samples(samples, "DP-REC looks at the direction of the whole update")
        low, high = weight_levels(self.limit * (1 + 1e-14) + 1e-14, self.bits)
        return tilt_release(low, high, check_adjacency(adjacency))

    def error(self) -> Error:
        """C^2 / m^2."""
        return Error(self.variance(0.0))

    def expectation(self, value: float) -> float:
        """The value itself."""
        return check_value(self.ball, value)

    def variance(self, value: float) -> float:
        """Of a coordinate of this value in an update that fills the ball."""
        number = check_value(self.ball, value)
        gain, second = _moments(self.slope, self.limit, self.bits)
        along = (number / self.ball.radius) ** 2
        return (self.ball.radius / gain) ** 2 * (1 + along * (second - 1)) - number**2


def weight_levels(limit: float, bits: int) -> tuple[float, float]:
    """The bounds on h for exponents within ``limit``."""
    many, ratio = 1 << bits, math.exp(-2 * limit)
    return many * ratio / (ratio + many - 1), many / (1 + (many - 1) * ratio)


def weight_limit(epsilon: float, bits: int) -> float:
    """The largest exponent at which two neighbours' probabilities differ by e^epsilon at most."""

    def private(limit: float) -> bool:
        low, high = weight_levels(limit, bits)
        return math.log(high / low) <= epsilon

    return bisect(private, 0.0, epsilon, relative=1e-12)


@lru_cache(maxsize=1024)
def _moments(slope: float, limit: float, bits: int) -> tuple[float, float]:
    """E[t] and E[t^2] of the candidate sent, for an update that fills the ball."""
    weights = np.exp(np.clip(slope * _T, -limit, limit))
    scale = np.exp(_S)
    kernel = np.exp(-scale[:, None] * weights)
    rest = (kernel @ _PHI) ** ((1 << bits) - 1)
    measure = rest * scale * (_S[1] - _S[0]) * (1 << bits)
    return float(measure @ (kernel @ (_PHI * weights * _T))), float(measure @ (kernel @ (_PHI * weights * _T**2)))


@lru_cache(maxsize=256)
def best_slope(limit: float, bits: int) -> float:
    """The slope with the largest gain, of 25 between a quarter and sixteen times the limit."""
    return float(max(SLOPES * limit, key=lambda slope: _moments(float(slope), limit, bits)[0]))


def _build(ball: Ball, loss: float, choices: Choices) -> RelativeEntropyCoding:
    """With up to a byte, unless bits are chosen, the best: more candidates leave less epsilon for the weights."""
    check_ball(ball, Norm.L2, "DP-REC", 1, MOST_NORMALS // 2)
    room = min(8, (MOST_NORMALS // ball.dimension).bit_length() - 1)
    found = []
    for bits in (choices.bits,) if choices.bits else range(1, room + 1):
        limit = weight_limit(loss, bits)
        found.append(RelativeEntropyCoding(ball, best_slope(limit, bits), limit, bits))
    return max(found, key=lambda one: one.gain)


FAMILY = SearchedFamily(
    "dp-rec",
    (RelativeEntropyCoding,),
    uses=("bits",),
    strength="design_epsilon",
    build=_build,
    limits=lambda ball, choices: (LEAST_EPSILON, MOST_EPSILON),
    work="normal vectors, and inner products with them",
    baseline=True,
)
