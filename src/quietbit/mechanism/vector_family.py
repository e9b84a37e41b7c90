"""The family of the vector mechanism: its calibration to a target, and how many rows it keeps.

Idea     one release is pure at a given epsilon, or a profile is designed for all releases of a
         target. The mechanism's account adds what sampling costs, so calibration aims a little
         below the target until the account fits.
Source   docs/theory/vector-mechanism.md; `solve_profile.py` for the profiles.
"""

from __future__ import annotations

import math
from typing import cast, final

from attrs import frozen

from quietbit.design.profile import Profile
from quietbit.errors import InvalidParameter, check_real, require
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.ball import Ball, Norm, check_norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.family import FEWER, SHARED, Choices, EpsilonOf, Family
from quietbit.mechanism.rotation import fewest_kept
from quietbit.mechanism.solve_profile import solve_profile
from quietbit.mechanism.vector import MOST_KEPT, VectorMVU
from quietbit.target import Adjacency, Target

__all__ = ["FAMILY", "fewest_coordinates"]

LEAST_KEPT = 1024
LEAST_EPSILON = 1e-4  # below, rounded accounts depend more on delta than on the profile
# Of one release: a little less than where a search takes MOST_TRIES seeds.
MOST_EPSILON_EACH = {Adjacency.ZERO_OUT: 11.0, Adjacency.REPLACE_ONE: 14.0}
AIMS = 8  # profiles that calibration tries


def fewest_coordinates(squared_error: float, dimension: int) -> int:
    """Return `fewest_kept`, but at least 1,024 if there are as many, for the second clip.

    >>> fewest_coordinates(6.33, 10**6), fewest_coordinates(0.075, 10**6)
    (1024, 2048)
    >>> fewest_coordinates(0.133, 100)
    128
    """
    count = max(fewest_kept(squared_error, dimension), LEAST_KEPT)
    return min(count, padded_size(dimension), MOST_KEPT)


@final
@frozen
class _Family(Family):
    """The vector mechanism: its profile is designed for target, releases and adjacency."""

    name: str = "vmvu"
    uses: tuple[str, ...] = ("coordinates", "rows")
    strength: str = "design_epsilon"

    def given(self, ball: Ball, strength: float, choices: Choices) -> VectorMVU:
        """Return the mechanism whose one release is pure at this epsilon, replace-one."""
        epsilon = check_real(strength, "design_epsilon")
        profile = solve_profile(epsilon, 0.0, 1, Adjacency.REPLACE_ONE)
        return _with_rows(profile, ball, choices)

    def calibrated(
        self, ball: Ball, choices: Choices, target: Target, account: EpsilonOf
    ) -> Mechanism:
        """Design a profile for the target, or for the most that a search can reach."""
        check_norm(ball, Norm.L2, "for the vector mechanism")
        epsilon = target.epsilon
        require(
            epsilon >= LEAST_EPSILON, "epsilon", epsilon, f"at least {LEAST_EPSILON:g} for vmvu"
        )
        farthest = MOST_EPSILON_EACH[target.adjacency] * target.releases
        aim = min(epsilon, farthest)
        slope = 1.0
        last_aim = math.nan
        last_reached = math.nan
        for number in range(AIMS):
            profile = solve_profile(aim, target.delta, target.releases, target.adjacency)
            mechanism = _with_rows(profile, ball, choices)
            reached = account(mechanism)
            if reached <= epsilon:
                return mechanism
            excess = 1e-6 * epsilon
            if math.isfinite(reached):
                excess = reached - epsilon
            if last_aim > aim and last_reached > reached:
                slope = min(max((last_reached - reached) / (last_aim - aim), 0.25), 1.0)
            last_aim = aim
            last_reached = reached
            aim -= excess / slope + epsilon * 1e-9 * 4**number  # a growing margin ends the search
            if not aim > 0:
                break
        if math.isinf(reached):
            rule = "large enough for vmvu to have a finite epsilon"
            raise InvalidParameter.of("delta", rule, target.delta, "use a larger delta")
        rule = f"at least {reached:.4g}, the least that vmvu reaches here"
        raise InvalidParameter.of("epsilon", rule, epsilon, FEWER)


def _with_rows(profile: Profile, ball: Ball, choices: Choices) -> VectorMVU:
    """Return the mechanism of a profile that keeps the chosen rows."""
    keep = choices.coordinates
    if keep is None or keep == "auto":
        keep = fewest_coordinates(1 / profile.gain_lower**2, ball.dimension)
    rows = 0 if choices.rows == SHARED else None
    return VectorMVU(profile, ball, cast(int, keep), rows=rows)


FAMILY = _Family()
