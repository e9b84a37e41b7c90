"""Beta-scaling: from an update's coordinate to the interpolated mechanism's input, and how far it can reach.

Idea     x = 1/2 + beta u/(2C). Unclamped (the paper's text) x ranges over [(1-beta)/2, (1+beta)/2]; clamped (the
         published code) x is cut to [0, 1]. Each range has its own constants. The certificate covers the doubles that
         the sampler computes with.
Symbols  C = radius; scale = beta/(2C) as the double that is used; reach >= ||x - 1/2|| for every update.
Source   Guo et al. (ICML 2023), section "Interpolated MVU mechanism", input scaling.

Slack. |u_k| > C/m holds for fewer than m^p coordinates of a vector in the L_p ball, so at most m^p of them
see the whole range's smallest probability and the rest that of the inner range: the slack of a release is
far below d times the worst coordinate's.
"""

from __future__ import annotations

import math
from typing import Any, final

from attrs import field, frozen

from quietbit.design.table import Design
from quietbit.errors import check_real, require
from quietbit.kernel.sampler import SAMPLING_ERROR, Sampler
from quietbit.mechanism.ball import Ball
from quietbit.privacy.cost import sampling_slack_upper
from quietbit.privacy.divergence import smallest_probability_lower
from quietbit.target import Adjacency

__all__ = ["MAX_BETA", "Scaling", "check_beta"]

MAX_BETA = 2.0**16
CUTS = tuple(2**k for k in range(1, 21))
ROUNDING = 2.0**-50  # more than the sampler's range can move when its ends are rounded to doubles


def check_beta(value: Any) -> float:
    """Return a beta from just above 0 to 65,536."""
    return check_real(value, "beta", at_most=MAX_BETA)


def _clamp(value: Any) -> bool:
    require(isinstance(value, bool), "clamp", value, "True or False")
    return bool(value)


@final
@frozen
class Scaling:
    """The map from updates in the ball of ``radius`` to inputs; ``beta`` is from just above 0 to 65,536."""

    radius: float
    beta: float = field(default=1.0, converter=check_beta)
    clamp: bool = field(default=False, converter=_clamp)

    @property
    def scale(self) -> float:
        """The double nearest to beta / (2 C)."""
        return self.beta / (2 * self.radius)

    @property
    def reach(self) -> float:
        """The largest ||x - 1/2|| in the ball's norm, rounded up: about beta / 2."""
        return math.nextafter(self.scale * self.radius, math.inf)

    @property
    def low(self) -> float:
        """The smallest input."""
        return max((1 - self.beta) / 2, 0.0) if self.clamp else (1 - self.beta) / 2

    @property
    def high(self) -> float:
        """The largest input."""
        return min((1 + self.beta) / 2, 1.0) if self.clamp else (1 + self.beta) / 2

    @property
    def certified_range(self) -> tuple[float, float]:
        """[low, high], widened by more than any rounding in the sampler."""
        margin = ROUNDING * (1 + self.beta)
        return self.low - margin, self.high + margin

    def distance(self, adjacency: Adjacency, ball: Ball) -> float:
        """Return the largest distance of two neighbours' inputs, in the ball's norm: twice the reach for replace-one.

        The reach is replaced by the corner of the box that clamping leaves, where that is nearer.
        """
        corner = math.pow(ball.dimension, 1 / ball.norm.order) * (self.certified_range[1] - 0.5)
        return adjacency.radii * min(self.reach, corner * (1 + 1e-15))

    def sampler(self, design: Design) -> Sampler:
        """Return the sampler for the kernels."""
        return Sampler.from_design(design, self.scale, self.low, self.high)

    def slack_upper(self, design: Design, ball: Ball) -> float:
        """Return one release's sampling slack: a bound on the log-ratio of the sampled law to the certified one."""
        low, high = self.certified_range
        worst = smallest_probability_lower(design, low, high)
        size = ball.dimension
        best = sampling_slack_upper(size, worst, SAMPLING_ERROR)
        for cut in CUTS:
            many = cut**ball.norm.order
            if many >= size:
                break
            inner = self.reach / cut + ROUNDING
            least = smallest_probability_lower(design, max(low, 0.5 - inner), min(high, 0.5 + inner))
            few = sampling_slack_upper(many, worst, SAMPLING_ERROR)
            best = min(best, few + sampling_slack_upper(size - many, least, SAMPLING_ERROR))
        return best
