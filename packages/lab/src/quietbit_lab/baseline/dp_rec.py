"""DP-REC: Gaussian noise by relative entropy coding, one of N public candidates.

Idea     N = 2^b normal vectors come from a public nonce; a client picks one with probability
         proportional to the ratio of the Gaussian mechanism's density to the public one, exp(mu t)
         in t = <u, z>, and sends its number.
Symbols  mu = `slope`; a = `limit`: exponents are cut to +-a; w_j = exp(clamp(mu t_j, -a, a)); h_j =
         N w_j / sum w; m = E[t] of the candidate sent.
Source   Triastcyn, Reisser, Louizos (2021), "DP-REC: private and communication-efficient federated
         learning".

Where the account holds. Importance sampling from N candidates is not the Gaussian mechanism: its
normaliser is a sum of N weights that depend on the update, and unbounded ones at that, so the
Gaussian's own account is not a bound for any finite N. With exponents cut to +-a it is one for
certain: h lies between N/(1 + (N-1) e^2a) and N/(1 + (N-1) e^-2a), and `tilt` does the rest. Up to
twice the epsilon of the weights themselves goes to the normaliser; MMRC is the repair. Error,
exactly. E[w_1 f(t_1)/sum w] = integral over s > 0 of E[w f e^(-s w)] (E e^(-s w))^(N-1), for f = t
and t^2; across the update candidates are standard normal whatever was picked.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import ClassVar, final

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import check_real
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.family import Choices
from quietbit_lab.baseline.base import MOST_EPSILON, Numbered
from quietbit_lab.baseline.codebook import candidate, check_ball
from quietbit_lab.baseline.tuned import searched_family

__all__ = ["FAMILY", "RelativeEntropyCoding", "best_slope", "weight_limit"]

MOST_NORMALS = 2**27  # of all candidates: about a second, whoever described the mechanism
LEAST_EPSILON = 1e-3
LARGEST_NORMAL = 10.0
SLOPES = np.geomspace(0.25, 16.0, 25)  # in units of the limit
_T = np.linspace(-9.0, 9.0, 721)
_PHI = np.exp(-0.5 * _T**2) / np.exp(-0.5 * _T**2).sum()
_S = np.linspace(-30.0, 12.0, 421)  # logarithms of s


def _slope(value: float) -> float:
    return check_real(value, "slope", at_most=1e4)


def _limit(value: float) -> float:
    return check_real(value, "limit", at_least=1e-6, at_most=MOST_EPSILON)


@final
@frozen
class RelativeEntropyCoding(Numbered):
    """Importance sampling of a Gaussian with bounded weights, one of 2^``bits`` candidates."""

    slope: float = field(converter=_slope)
    limit: float = field(converter=_limit)
    reach: ClassVar[float] = LARGEST_NORMAL

    def __attrs_post_init__(self) -> None:
        """Refuse another norm."""
        check_ball(self.ball, "DP-REC", 1, MOST_NORMALS // self.candidates)

    @property
    def moments(self) -> tuple[float, float]:
        """Of the candidate sent."""
        return _moments(self.slope, self.limit, self.bits)

    @property
    def moment_error(self) -> float:
        """None: across the update candidates are standard normal, however long it is."""
        return 0.0

    @property
    def levels(self) -> tuple[float, float]:
        """The bounds at the head of this file, a little widened for rounding."""
        return weight_levels(self.limit * (1 + 1e-14) + 1e-14, self.bits)

    def across(self, second: float) -> float:
        """Return the variance of a standard normal."""
        return 1.0

    def densities(self, direction: FloatVector, nonce: bytes) -> FloatVector:
        """Expand all candidates and weigh them."""
        along = np.array([float(direction @ self.point(nonce, j)) for j in range(self.candidates)])
        weights = np.exp(np.clip(self.slope * along, -self.limit, self.limit))
        return np.asarray(weights / weights.mean())

    def point(self, nonce: bytes, number: int) -> FloatVector:
        """Return a standard normal vector."""
        return candidate(nonce, number, self.ball.dimension)


def weight_levels(limit: float, bits: int) -> tuple[float, float]:
    """Return the bounds on h for exponents within ``limit``."""
    candidates = 1 << bits
    ratio = math.exp(-2 * limit)
    return candidates * ratio / (ratio + candidates - 1), candidates / (
        1 + (candidates - 1) * ratio
    )


def weight_limit(epsilon: float, bits: int) -> float:
    """Return the exponent at which neighbours' probabilities differ by e^epsilon.

    With x = e^-2a, high / low = (x + N - 1) / (x (1 + (N-1) x)) is e^epsilon where
    e^epsilon (N-1) x^2 + (e^epsilon - 1) x = N - 1.
    """
    others = (1 << bits) - 1
    more = math.expm1(epsilon)
    root = math.hypot(more, 2 * math.exp(epsilon / 2) * others)
    return -math.log((root - more) / (2 * math.exp(epsilon) * others)) / 2


@lru_cache(maxsize=1024)
def _moments(slope: float, limit: float, bits: int) -> tuple[float, float]:
    """E[t] and E[t^2] of the candidate sent, for an update that fills the ball."""
    weights = np.exp(np.clip(slope * _T, -limit, limit))
    scale = np.exp(_S)
    kernel = np.exp(-scale[:, None] * weights)
    rest = (kernel @ _PHI) ** ((1 << bits) - 1)
    measure = rest * scale * (_S[1] - _S[0]) * (1 << bits)
    return float(measure @ (kernel @ (_PHI * weights * _T))), float(
        measure @ (kernel @ (_PHI * weights * _T**2))
    )


@lru_cache(maxsize=256)
def best_slope(limit: float, bits: int) -> float:
    """Return the slope with the largest gain, of 25 around the limit."""
    return float(max(SLOPES * limit, key=lambda slope: _moments(float(slope), limit, bits)[0]))


def _build(ball: Ball, loss: float, choices: Choices) -> RelativeEntropyCoding:
    """Return the best of up to eight bits, unless bits are chosen."""
    check_ball(ball, "DP-REC", 1, MOST_NORMALS // 2)
    room = min(8, (MOST_NORMALS // ball.dimension).bit_length() - 1)
    mechanisms = []
    for bits in (choices.bits,) if choices.bits else range(1, room + 1):
        limit = weight_limit(loss, bits)
        mechanisms.append(RelativeEntropyCoding(ball, bits, best_slope(limit, bits), limit))
    return max(mechanisms, key=lambda one: one.gain)


FAMILY = searched_family("dp-rec", _build, least=LEAST_EPSILON)
