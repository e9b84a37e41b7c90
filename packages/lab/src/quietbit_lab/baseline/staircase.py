"""The staircase mechanism: the best additive noise for pure privacy, on L1 balls.

Idea     Laplace noise falls as fast everywhere as privacy allows; it is enough to fall by
         e^-epsilon once per unit of sensitivity. The density is constant on rings of the L1 norm:
         high on the first part of each unit, lower by e^-epsilon on the rest. In one dimension no
         additive noise has a smaller variance.
Symbols  D = `width` clips: the sensitivity that one step covers; b = e^-epsilon; gamma: share of a
         unit on the higher part; density b^k on [k D, (k + gamma) D), b^(k+1) on [(k + gamma) D,
         (k+1) D) of the L1 norm.
Source   Geng and Viswanath (2014), "The optimal mechanism in differential privacy"; Geng, Kairouz,
         Oh, Viswanath (2015) for several dimensions.

A trap: independent staircases per coordinate are not an L1 mechanism. A coordinate that moves by
any small amount may cost a whole epsilon, and so does the next. The rings are of the whole vector's
norm, so neighbours within j D cost j epsilon. Floats. As for Laplace noise, the account is that of
real numbers; floats have low digits that it does not cover.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen
from scipy.special import logsumexp

from quietbit._typing import FloatVector
from quietbit.errors import check_real, require
from quietbit.kernel.rng import WordBlock
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.family import Choices, EpsilonOf, Family, largest_private
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency, Target
from quietbit_lab.baseline.base import Floats, least
from quietbit_lab.baseline.codebook import check_ball
from quietbit_lab.baseline.noise import laplace_noise

__all__ = ["FAMILY", "Staircase", "best_gamma"]

LEAST_EPSILON = 1e-3
MOST_EPSILON = 30.0
MOST_RINGS = 2**22
MOST_DIMENSION = 2**20
# rings whose mass is below e^-45 of the largest are left out, as doubles leave out larger noise
TAIL = 45.0
RING_STREAM = 3


def _design_epsilon(value: float) -> float:
    return check_real(value, "design_epsilon", at_least=LEAST_EPSILON, at_most=MOST_EPSILON)


def _width(value: float) -> float:
    return check_real(value, "width", at_most=2.0)


def _gamma(value: float) -> float:
    return check_real(value, "gamma", at_most=1.0)


@final
@frozen
class Staircase(Floats):
    """Staircase noise on updates in an L1 ball, sent as 32-bit floats.

    ``design_epsilon`` is the cost of moving by ``width`` clips: 2 for replace-one neighbours, 1 for
    zero-out ones.
    """

    design_epsilon: float = field(converter=_design_epsilon)
    width: float = field(default=2.0, converter=_width)
    gamma: float = field(default=0.5, converter=_gamma)

    def __attrs_post_init__(self) -> None:
        """Refuse another norm, and more rings than a table has room for."""
        check_ball(self.ball, "the staircase", 1, MOST_DIMENSION, norm=Norm.L1)
        rings = ring_count(self.design_epsilon, self.ball.dimension)
        require(
            rings <= MOST_RINGS,
            "number of rings",
            rings,
            f"at most {MOST_RINGS:,}",
            "raise epsilon, which needs fewer",
        )

    @property
    def reach(self) -> float:
        """The clip and the outermost ring."""
        edges = _cumulated(self.design_epsilon, self.gamma, self.ball.dimension)[1]
        return 1 + float(edges[-1]) * self.width

    def vector(self, inside: FloatVector, block: WordBlock) -> FloatVector:
        """Draw a ring, a radius inside it, and a direction that is uniform on the L1 sphere."""
        size = inside.size
        choose, place = ((block.uniform64(RING_STREAM, 0, 2) >> np.uint64(11)) + 0.5) * 2.0**-53
        ends, edges = _cumulated(self.design_epsilon, self.gamma, size)
        ring = min(int(np.searchsorted(ends, choose * ends[-1], side="right")), ends.size - 1)
        low = float(edges[ring])
        high = float(edges[ring + 1])
        share = (low / high) ** size
        radius = high * float(share + (1 - share) * place) ** (1 / size)
        noise = laplace_noise(block, 0, size)
        noise *= radius * self.width / np.abs(noise).sum()
        return np.asarray(inside + noise)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return as many epsilons as there are steps between neighbours."""
        steps = math.ceil(adjacency.radii / self.width * (1 - 1e-12))
        return Cost.pure(round_up(steps * self.design_epsilon, 1e-14))

    def noise_at(self, value: float) -> float:
        """E r^2 times 2/(d (d+1)), a coordinate's mean square on the L1 sphere."""
        size = self.ball.dimension
        return (
            self.width**2
            * mean_square(self.design_epsilon, self.gamma, size)
            * 2
            / (size * (size + 1))
        )


def ring_count(epsilon: float, dimension: int) -> int:
    """Return how many units hold all but e^-45 of the mass of e^(-eps k) k^d."""
    shape = dimension + TAIL + math.sqrt(2 * TAIL * dimension)
    return math.ceil(shape / epsilon) + 2


@lru_cache(maxsize=32)
def _log_rings(epsilon: float, gamma: float, dimension: int) -> tuple[FloatVector, FloatVector]:
    """Logarithms of the parts' masses, unnormalised, and their edges: two parts to a unit."""
    units = np.arange(ring_count(epsilon, dimension), dtype=np.float64)
    edges = np.append(np.stack([units, units + gamma], axis=1).reshape(-1), units[-1] + 1)
    heights = -epsilon * np.stack([units, units + 1], axis=1).reshape(-1)
    with np.errstate(divide="ignore"):  # a part of no width has no mass
        volumes = dimension * np.log(edges[1:]) + np.log(
            -np.expm1(dimension * np.log(edges[:-1] / edges[1:]))
        )
    return heights + volumes, edges


@lru_cache(maxsize=32)
def _cumulated(epsilon: float, gamma: float, dimension: int) -> tuple[FloatVector, FloatVector]:
    logs, edges = _log_rings(epsilon, gamma, dimension)
    return np.cumsum(np.exp(logs - logs.max())), edges


def mean_square(epsilon: float, gamma: float, dimension: int) -> float:
    """E of the squared L1 norm of the noise, in units."""
    logs, edges = _log_rings(epsilon, gamma, dimension)
    with np.errstate(divide="ignore"):
        ratios = np.log(edges[:-1] / edges[1:])
        more = np.log(-np.expm1((dimension + 2) * ratios)) - np.log(-np.expm1(dimension * ratios))
    squares = 2 * np.log(edges[1:]) + more + math.log(dimension / (dimension + 2))
    finite = np.isfinite(logs)
    return math.exp(float(logsumexp((logs + squares)[finite]) - logsumexp(logs[finite])))


@lru_cache(maxsize=256)
def best_gamma(epsilon: float, dimension: int) -> float:
    """Return the share with the least variance.

    >>> round(best_gamma(1.0, 1), 4)
    0.4167
    """
    return least(lambda gamma: mean_square(epsilon, gamma, dimension), 1e-6, 1 - 1e-6, 1e-9)


@final
@frozen
class _Family(Family):
    """Staircases whose unit is the distance of the neighbours that are meant."""

    name: str = "staircase"
    uses: tuple[str, ...] = ()
    strength: str = "design_epsilon"
    work: str = "an exponential number per coordinate"
    baseline: bool = True

    def given(self, ball: Ball, strength: float, choices: Choices) -> Staircase:
        """Return the staircase of this epsilon for replace-one neighbours."""
        return _build(ball, check_real(strength, "design_epsilon"), 2.0)

    def calibrated(
        self, ball: Ball, choices: Choices, target: Target, account: EpsilonOf
    ) -> Mechanism:
        """Return the staircase with the largest epsilon per step that meets the target."""
        width = target.adjacency.radii
        check_ball(ball, "the staircase", 1, MOST_DIMENSION, norm=Norm.L1)
        smallest = max(LEAST_EPSILON, (ball.dimension + 200) * 3 / MOST_RINGS)

        def measured(loss: float) -> float:
            return account(Staircase(ball, loss, width))

        return _build(
            ball,
            largest_private(measured, smallest, MOST_EPSILON, target.epsilon, self.name),
            width,
        )


def _build(ball: Ball, epsilon: float, width: float) -> Staircase:
    check_ball(ball, "the staircase", 1, MOST_DIMENSION, norm=Norm.L1)
    return Staircase(ball, epsilon, width, best_gamma(epsilon, ball.dimension))


FAMILY = _Family()
