"""Modified minimal random coding: PrivUnit by picking one of N public points of the sphere.

Idea     N = 2^b points of the unit sphere come from a public nonce; those in the cap around the
         update are likelier. Plain importance sampling would cost up to twice epsilon, for its
         normaliser depends on how many points fell into the cap. The modification keeps every
         probability between fixed bounds instead.
Symbols  q = `cap`: mass of the cap; high = e^eps/(q e^eps + 1 - q), low = e^-eps high: PrivUnit's
         two densities; c: points in the cap, f = c/N. Fewer than expected (f < q): points in the
         cap keep `high`, others share the rest, (1 - f high)/(1 - f). More: points outside keep
         `low`, those inside share (1 - (1 - f) low)/f.
Source   Shah, Chen, Balle, Kairouz, Theis (AISTATS 2022), "Optimal compression of locally
         differentially private mechanisms", Algorithm 2; Bhowmick et al. (2018) for PrivUnit.

Privacy. N times a probability lies in [low, high] whatever c is (none or all in the cap: all alike,
one), and the mean over the points is one: `tilt`. How exactly inner products are computed does not
matter to that. Error, exactly. c is binomial (N, q); P(cap) = f high or 1 - (1 - f) low; given the
cap, points are uniform in it. So m = E[t | cap] (E P(cap) - q)/(1 - q), and z C/m is unbiased with
a squared error of C^2/m^2 - |x|^2. The cap is the best one for N points, which is not PrivUnit's
where points are few.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray
from scipy.special import gammaln

from quietbit._typing import FloatVector
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.family import Choices
from quietbit_lab.baseline.base import Numbered, checked_cap, checked_loss
from quietbit_lab.baseline.codebook import candidate, check_ball
from quietbit_lab.baseline.sphere import cap_edge, cap_moments
from quietbit_lab.baseline.tilt import cap_levels
from quietbit_lab.baseline.tuned import TunedFamily

__all__ = ["FAMILY", "MinimalRandomCoding", "best_cap", "cap_densities"]

MOST_NORMALS = 2**27  # of all points: about a second, whoever described the mechanism
CAPS = np.exp(np.linspace(math.log(1e-7), math.log(0.5), 400))


@final
@frozen
class MinimalRandomCoding(Numbered):
    """MMRC on updates in an L2 ball: one of 2^``bits`` points, for a cap of mass ``cap``."""

    design_epsilon: float = field(converter=checked_loss)
    cap: float = field(converter=checked_cap)

    def __attrs_post_init__(self) -> None:
        """Refuse another norm."""
        check_ball(self.ball, "MMRC", 2, MOST_NORMALS // self.candidates)

    @property
    def moments(self) -> tuple[float, float]:
        """Of the point sent."""
        return _moments(self.design_epsilon, self.bits, self.cap, self.ball.dimension)

    @property
    def levels(self) -> tuple[float, float]:
        """The two levels, or what so few points reach of them."""
        return _reached(self.cap, self.design_epsilon, self.candidates)

    def densities(self, direction: FloatVector, nonce: bytes) -> FloatVector:
        """Expand all points and see which lie in the cap."""
        edge = cap_edge(self.cap, self.ball.dimension)
        inside = np.array(
            [float(direction @ self.point(nonce, j)) >= edge for j in range(self.candidates)]
        )
        return cap_densities(inside, self.cap, self.design_epsilon)

    def point(self, nonce: bytes, number: int) -> FloatVector:
        """Return a point of the unit sphere."""
        raw = candidate(nonce, number, self.ball.dimension)
        return np.asarray(raw / np.sqrt(raw @ raw))


def cap_densities(inside: NDArray[np.bool_], cap: float, epsilon: float) -> FloatVector:
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
    """Return the least and largest density over all numbers of points in the cap."""
    low, high = cap_levels(cap, epsilon)
    part = np.arange(1, points) / points
    inside = np.where(part <= cap, high, (1 - (1 - part) * low) / part)
    outside = np.where(part <= cap, (1 - part * high) / (1 - part), low)
    return float(outside.min()) * (1 - 1e-14), float(inside.max()) * (1 + 1e-14)


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
    """Return the mass of a cap with the largest gain, of 400 between 1e-7 and one half."""
    gains = [_moments(epsilon, bits, float(cap), dimension)[0] for cap in CAPS]
    return float(CAPS[int(np.argmax(gains))])


def _bits(ball: Ball, choices: Choices) -> int:
    """Return the mechanism with eight bits unless bits are chosen: fewer are worse."""
    check_ball(ball, "MMRC", 2, MOST_NORMALS // 2)
    return choices.bits or min(8, (MOST_NORMALS // ball.dimension).bit_length() - 1)


def _usual(ball: Ball, loss: float, choices: Choices) -> float:
    return best_cap(loss, _bits(ball, choices), ball.dimension)


FAMILY = TunedFamily(
    "mmrc",
    uses=("bits",),
    build=lambda ball, loss, share, choices: MinimalRandomCoding(
        ball, _bits(ball, choices), loss, share
    ),
    usual=_usual,
)
