"""Codes behind secure aggregation: the mechanism whose sums meet a target.

Idea     the target is met by the account of the sum over n clients, in which the other clients'
         bits are the noise. A small epsilon e per bit keeps probabilities near 1/2, at the cost of
         a factor cosh(e/2)^2 in variance; beta, which scales small coordinates up and clamps large
         ones, is searched from the private side. e starts at 1/2 and grows while the clamp would be
         within four deviations of a rotated coordinate.
Symbols  n: honest clients in a sum, those that answer and do not collude with the server.
Source   docs/theory/secure-aggregation.md.
"""

from __future__ import annotations

import math
from typing import cast

from quietbit.design.solve import closed_design
from quietbit.design.table import DesignSpec
from quietbit.errors import require
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.family import Choices, EpsilonOf, largest_private
from quietbit.mechanism.interpolated import MAX_BETA, UNBIASED, Decoder, InterpolatedMVU
from quietbit.mechanism.rotation import Rotation, rotation_for, wants_rotation
from quietbit.privacy.cost import Cost
from quietbit.target import Target

__all__ = ["calibrated_codes"]

LEAST_BETA = 1e-6
DESIGN_EPSILON = 0.5
MOST_DESIGN_EPSILON = 3.0
GROWTH = 1.5
DEVIATIONS = 4.0  # of a rotated coordinate; nothing is clamped within them
REMEDY = "take more clients in a sum or fewer releases"


def calibrated_codes(
    ball: Ball, choices: Choices, target: Target, honest: int, account: EpsilonOf
) -> InterpolatedMVU:
    """Return the most accurate codes of one bit whose sums over ``honest`` clients meet a target.

    Inputs are clamped. ``account`` returns the epsilon of a mechanism's sums.
    """
    require(target.delta > 0, "delta", target.delta, "above 0 for a sum")
    rotation: Rotation | None = None
    if choices.rotated:
        farthest = math.sqrt(ball.dimension) / DEVIATIONS
    elif wants_rotation(ball, choices.rotate):
        rotation = rotation_for(ball.dimension, whole=True)
        farthest = math.sqrt(rotation.block) / DEVIATIONS
    else:
        farthest = math.sqrt(ball.dimension) / 2

    def guess(bit_epsilon: float) -> float:
        """Return beta from a linear curve, as a start for the search."""

        def roughly(beta: float) -> float:
            variance = math.cosh(bit_epsilon * min(beta, 1.0) / 2) ** 2
            distance = bit_epsilon * beta / 2 * target.adjacency.radii
            slope = distance**2 / 2 * min(1.0, variance / honest)
            return Cost.linear(slope * target.releases).epsilon(target.delta)

        return largest_private(roughly, LEAST_BETA, MAX_BETA, target.epsilon, "a sum", REMEDY)

    bit_epsilon = DESIGN_EPSILON
    while bit_epsilon < MOST_DESIGN_EPSILON and guess(bit_epsilon) > max(1.0, farthest):
        bit_epsilon *= GROWTH
    design = closed_design(DesignSpec(2, 1, bit_epsilon))
    decoder = cast(Decoder, choices.decoder or UNBIASED)

    def build(beta: float) -> InterpolatedMVU:
        return InterpolatedMVU(design, ball, beta, True, decoder, rotation)

    beta = largest_private(
        lambda beta: account(build(beta)),
        LEAST_BETA,
        MAX_BETA,
        target.epsilon,
        "a sum",
        REMEDY,
        start=guess(bit_epsilon),
    )
    return build(beta)
