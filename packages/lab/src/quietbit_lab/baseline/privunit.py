"""PrivUnit and PrivUnitG: a cap around the update's direction, on sphere or normal law.

Idea     PrivUnit draws a point of the unit sphere whose density has two values, one on the cap
         around the direction and one off it. PrivUnitG does the same with a half-space under N(0,
         I): that is the vector mechanism with a profile of one step, so here it *is* the vector
         mechanism, with every row kept. In high dimension the two are the same.
Symbols  q = `cap`: mass of the cap (PrivUnit's papers have 1 - q, and p = P(cap)); high, low: the
         two densities, high = e^eps low; m = E[t]: mean inner product with the direction.
         PrivUnitG: step at g = -ndtri(q), m = (high - low) phi(g).
Source   Bhowmick, Duchi, Freudiger, Kapoor, Rogers (2018), "Protection against reconstruction";
         Asi, Feldman, Talwar (ICML 2022), "Optimal algorithms for mean estimation under local
         differential privacy".

What public implementations get wrong, and is not done here: p is searched on a grid of 0.01 (here
the cap is optimised); a plain normal vector is sent when a rejection sampler runs out of tries,
which is not pure privacy at all (here t is drawn by its inverse distribution function, in one go).
Floats. As for Gaussian noise, PrivUnit's account is that of real numbers; sent as floats, its low
digits are not covered. PrivUnitG goes through the seeds of the vector mechanism, which are.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen
from scipy.special import ndtri

from quietbit._typing import FloatVector
from quietbit.design.profile import Profile
from quietbit.kernel.rng import WordBlock
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.family import Choices
from quietbit.mechanism.vector import VectorMVU
from quietbit_lab.baseline.base import Directional, Floats, checked_cap, checked_loss, likeliest
from quietbit_lab.baseline.codebook import check_ball, direction_of
from quietbit_lab.baseline.noise import normal_noise
from quietbit_lab.baseline.sphere import cap_moments, quantile
from quietbit_lab.baseline.tilt import cap_levels
from quietbit_lab.baseline.tuned import TunedFamily, limit_gain

__all__ = ["FAMILY", "FAMILY_G", "PrivUnit", "step_profile"]

MOST_ROWS = 65_536
CAP_STREAM = 5
LEAST_CAP = 1e-8


@final
@frozen
class PrivUnit(Directional, Floats):
    """PrivUnit on an L2 ball, sent as 32-bit floats; ``cap`` is the cap's mass, up to 1/2."""

    design_epsilon: float = field(converter=checked_loss)
    cap: float = field(converter=checked_cap)

    def __attrs_post_init__(self) -> None:
        """Refuse another norm."""
        check_ball(self.ball, "PrivUnit", 2)

    @property
    def moments(self) -> tuple[float, float]:
        """Of the point sent."""
        return _moments(self.design_epsilon, self.cap, self.ball.dimension)

    @property
    def levels(self) -> tuple[float, float]:
        """Off the cap, and on it."""
        return cap_levels(self.cap, self.design_epsilon)

    @property
    def reach(self) -> float:
        """Of a point of the sphere, decoded."""
        return 1 / self.gain

    def vector(self, inside: FloatVector, block: WordBlock) -> FloatVector:
        """Draw the inner product, inside or outside the cap, then an orthogonal direction."""
        direction, share = direction_of(inside)
        size = direction.size
        choose, place = ((block.uniform64(CAP_STREAM, 0, 2) >> np.uint64(11)) + 0.5) * 2.0**-53
        if choose < self.cap * (1 - share + share * self.levels[1]):
            tail = self.cap * place
        else:
            tail = self.cap + (1 - self.cap) * place
        along = quantile(float(tail), size)
        across = normal_noise(block, 0, size)
        across -= (across @ direction) * direction
        across *= math.sqrt(max(0.0, 1 - along * along)) / math.sqrt(across @ across)
        return np.asarray((along * direction + across) / self.gain)


@lru_cache(maxsize=4096)
def _moments(epsilon: float, cap: float, dimension: int) -> tuple[float, float]:
    """E[t] and E[t^2] of the point sent, for an update that fills the ball."""
    low, high = cap_levels(cap, epsilon)
    mean, square = cap_moments(cap, dimension)
    return cap * mean * (high - low), high * cap * square + low * (1 / dimension - cap * square)


@lru_cache(maxsize=1024)
def _best_cap(epsilon: float, dimension: int) -> float:
    return likeliest(lambda cap: _moments(epsilon, cap, dimension)[0], LEAST_CAP)


@lru_cache(maxsize=1024)
def _best_step(epsilon: float) -> float:
    return likeliest(lambda share: limit_gain(share, epsilon), LEAST_CAP)


def step_profile(epsilon: float, share: float | None = None) -> Profile:
    """Return PrivUnitG's profile: a step between weights 1 and e^epsilon, of largest gain.

    >>> round(step_profile(1.0).gain_lower ** -2, 2)
    6.33
    """
    if share is None:
        mass = _best_step(epsilon)
    else:
        mass = share
    return Profile.from_weights([-float(ndtri(mass))], [1.0, math.exp(epsilon)])


def _with_step(ball: Ball, loss: float, share: float, choices: Choices) -> VectorMVU:
    return VectorMVU(step_profile(loss, share), ball, min(padded_size(ball.dimension), MOST_ROWS))


def _usual(ball: Ball, loss: float, choices: Choices) -> float:
    check_ball(ball, "PrivUnit", 2)
    return _best_cap(loss, ball.dimension)


FAMILY = TunedFamily(
    "privunit",
    uses=(),
    build=lambda ball, loss, share, choices: PrivUnit(ball, loss, share),
    usual=_usual,
)
FAMILY_G = TunedFamily(
    "privunit-g",
    uses=(),
    build=_with_step,
    usual=lambda ball, loss, choices: _best_step(loss),
)
