"""PrivUnit and PrivUnitG: a cap around the update's direction, on the sphere and under a normal law.

Idea     PrivUnit draws a point of the unit sphere whose density has two values, one on the cap around the direction
         and one off it. PrivUnitG does the same with a half-space under N(0, I): that is the vector mechanism with a
         profile of one step, so here it *is* the vector mechanism, with every row kept. In high dimension the two are
         the same.
Symbols  q = `cap`: mass of the cap (PrivUnit's papers have 1 - q, and p = P(cap)); high, low: the two densities,
         high = e^eps low; m = E[t]: mean inner product with the direction. PrivUnitG: step at g = -ndtri(q), m =
         (high - low) phi(g).
Source   Bhowmick, Duchi, Freudiger, Kapoor, Rogers (2018), "Protection against reconstruction"; Asi, Feldman, Talwar
         (ICML 2022), "Optimal algorithms for mean estimation under local differential privacy".

What public implementations get wrong, and is not done here: p is searched on a grid of 0.01 (here the cap is
optimised); a plain normal vector is sent when a rejection sampler runs out of tries, which is not pure privacy at
all (here t is drawn by its inverse distribution function, in one go).
Floats. As for Gaussian noise, PrivUnit's account is that of real numbers; sent as floats, its low digits are not
covered. PrivUnitG goes through the seeds of the vector mechanism, which are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from scipy.special import ndtri

from quietbit.design.profile import Profile
from quietbit.errors import check_real
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.accumulate import of_floats
from quietbit.mechanism.additive import normal_noise
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
from quietbit.mechanism.vector import VectorMVU
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.release import Release
from quietbit_lab.baseline.codebook import check_ball, clipped, direction_of
from quietbit_lab.baseline.sphere import cap_moments, coordinate_variance, moment_slack, quantile
from quietbit_lab.baseline.tilt import cap_levels, tilt_release
from quietbit_lab.baseline.tuned import LEAST_EPSILON, MOST_EPSILON, TunedFamily, limit_gain

__all__ = ["FAMILY", "FAMILY_G", "PrivUnit", "step_profile"]

MOST_ROWS = 65_536
CAP_STREAM = 5


@final
@dataclass(frozen=True, slots=True)
class PrivUnit:
    """PrivUnit on updates in an L2 ball, sent as 32-bit floats; ``cap`` is the mass of the cap, at most one half."""

    ball: Ball
    design_epsilon: float
    cap: float

    def __post_init__(self) -> None:
        """Refuse another norm and numbers out of range."""
        put = object.__setattr__
        put(
            self,
            "design_epsilon",
            check_real(self.design_epsilon, "design_epsilon", at_least=LEAST_EPSILON, at_most=MOST_EPSILON),
        )
        put(self, "cap", check_real(self.cap, "cap", at_least=1e-9, at_most=0.5))
        check_ball(self.ball, Norm.L2, "PrivUnit", 2)

    @property
    def domain(self) -> Ball:
        """Where updates are clipped to."""
        return self.ball

    @property
    def layout(self) -> Layout:
        """One float per coordinate."""
        return Layout.codes(32, self.ball.dimension)

    @property
    def gain(self) -> float:
        """m: the mean inner product of the point sent with the update's direction."""
        return _moments(self.design_epsilon, self.cap, self.ball.dimension)[0]

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """The inner product first, in or off the cap; then a uniform direction across."""
        direction, share = direction_of(self.ball, clipped(self.ball, update, rng, kernel))
        size = direction.size
        block = rng.draw(max(2, size))
        choose, place = ((block.uniform64(CAP_STREAM, 0, 2) >> np.uint64(11)) + 0.5) * 2.0**-53
        chance = self.cap * (1 - share + share * cap_levels(self.cap, self.design_epsilon)[1])
        tail = self.cap * place if choose < chance else self.cap + (1 - self.cap) * place
        along = quantile(float(tail), size)
        across = normal_noise(block, 0, size)
        across -= (across @ direction) * direction
        across *= math.sqrt(max(0.0, 1 - along * along)) / math.sqrt(across @ across)
        point = (along * direction + across) * (self.ball.radius / self.gain)
        out[:] = point.astype("<f4").view(np.uint8)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sums of floats as fixed-point numbers."""
        return of_floats(self.ball.radius / self.gain, self.ball.dimension, max_payloads)

    def privacy(self, adjacency: Adjacency, samples: int | None = None) -> Release:
        """The pair of a density with two levels."""
        refuse_samples(samples, "PrivUnit looks at the direction of the whole update")
        return tilt_release(*cap_levels(self.cap, self.design_epsilon), check_adjacency(adjacency))

    def error(self) -> Error:
        """C^2 / m^2 over all coordinates."""
        return Error(self.variance(0.0))

    def expectation(self, value: float) -> float:
        """The value itself."""
        return check_value(self.ball, value)

    def variance(self, value: float) -> float:
        """Of a coordinate of this value in an update that fills the ball."""
        gain, second = _moments(self.design_epsilon, self.cap, self.ball.dimension)
        number = check_value(self.ball, value)
        return coordinate_variance(self.ball.radius, self.ball.dimension, gain, second, number)

    @property
    def moment_error(self) -> float:
        """Of updates that do not fill the ball."""
        return moment_slack(self.ball.dimension, _moments(self.design_epsilon, self.cap, self.ball.dimension)[1])


@lru_cache(maxsize=4096)
def _moments(epsilon: float, cap: float, dimension: int) -> tuple[float, float]:
    """E[t] and E[t^2] of the point sent, for an update that fills the ball."""
    low, high = cap_levels(cap, epsilon)
    mean, square = cap_moments(cap, dimension)
    return cap * mean * (high - low), high * cap * square + low * (1 / dimension - cap * square)


@lru_cache(maxsize=1024)
def _best_cap(epsilon: float, dimension: int) -> float:
    from scipy.optimize import minimize_scalar  # takes longer to import than all the rest

    found = minimize_scalar(
        lambda log: -_moments(epsilon, math.exp(log), dimension)[0],
        bounds=(math.log(1e-8), math.log(0.5)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return math.exp(float(found.x))


@lru_cache(maxsize=1024)
def _best_step(epsilon: float) -> float:
    from scipy.optimize import minimize_scalar

    bounds = (math.log(1e-8), math.log(0.5))
    found = minimize_scalar(
        lambda log: -limit_gain(math.exp(log), epsilon), bounds=bounds, method="bounded", options={"xatol": 1e-10}
    )
    return math.exp(float(found.x))


def step_profile(epsilon: float, share: float | None = None) -> Profile:
    """PrivUnitG's profile: a step between weights 1 and e^epsilon, by default the one with the largest gain.

    >>> round(step_profile(1.0).gain_lower ** -2, 2)
    6.33
    """
    mass = _best_step(epsilon) if share is None else share
    return Profile.from_weights([-float(ndtri(mass))], [1.0, math.exp(epsilon)])


def _with_step(ball: Ball, loss: float, share: float, choices: Choices) -> VectorMVU:
    return VectorMVU(step_profile(loss, share), ball, min(padded_size(ball.dimension), MOST_ROWS))


def _usual(ball: Ball, loss: float, choices: Choices) -> float:
    check_ball(ball, Norm.L2, "PrivUnit", 2)
    return _best_cap(loss, ball.dimension)


FAMILY = TunedFamily(
    "privunit",
    (PrivUnit,),
    uses=(),
    build=lambda ball, loss, share, choices: PrivUnit(ball, loss, share),
    usual=_usual,
    work="a normal number per coordinate",
)
FAMILY_G = TunedFamily(
    "privunit-g",
    (VectorMVU,),
    uses=(),
    build=_with_step,
    usual=lambda ball, loss, choices: _best_step(loss),
    work="a rotation, then a search among seeds of all coordinates",
)
