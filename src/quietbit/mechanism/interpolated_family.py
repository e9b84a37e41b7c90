"""The family of the interpolated mechanism: designs, inputs and rotations for a target.

Idea     what is searched is the design's epsilon, or beta where a design is given. Updates in an L2
         ball are rotated, and inputs of one bit are clamped where that makes the account sharp.
         Behind secure aggregation the target is met by the account of the sum over n clients, in
         which the other clients' bits are the noise. A small epsilon e per bit keeps probabilities
         near 1/2, at the cost of a factor cosh(e/2)^2 in variance; beta, which scales small
         coordinates up and clamps large ones, is searched from the private side. e starts at 1/2
         and grows while the clamp would be within four deviations of a rotated coordinate.
Symbols  n: honest clients in a sum, those that answer and do not collude with the server.
Source   Guo et al. (ICML 2023) for the mechanism; docs/theory/rotation.md for the rotation;
         docs/theory/secure-aggregation.md for sums.
"""

from __future__ import annotations

import math
from typing import cast

from attrs import evolve

from quietbit.design.solve import closed_design, design_limits, solve
from quietbit.design.table import Design, DesignSpec
from quietbit.errors import require
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.family import Choices, EpsilonOf, SearchedFamily, largest_private
from quietbit.mechanism.interpolated import MAX_BETA, UNBIASED, Decoder, InterpolatedMVU
from quietbit.mechanism.rotation import Rotation, rotation_for, wants_rotation
from quietbit.privacy.cost import Cost
from quietbit.target import Target

__all__ = ["FAMILY", "calibrated_codes"]

MIN_BETA = 1e-6
LEAST_SHARE = 0.1  # of the clip, at which a coordinate is clamped
MOST_SHARE = 0.3
DESIGN_EPSILON = 0.5
MOST_DESIGN_EPSILON = 3.0
GROWTH = 1.5
DEVIATIONS = 4.0  # of a rotated coordinate; nothing is clamped within them
REMEDY = "take more clients in a sum or fewer releases"


def _build(ball: Ball, loss: float, choices: Choices) -> InterpolatedMVU:
    """Return the mechanism of a loss: the beta of a given design, else a design's epsilon."""
    if choices.design is not None:
        return _mechanism(choices.design, ball, loss, choices)
    design = closed_design(_spec(loss, choices))
    return _mechanism(design, ball, choices.beta, choices)


def _spec(epsilon: float, choices: Choices) -> DesignSpec:
    return DesignSpec(choices.levels or 2, choices.bits or 1, epsilon)


def _mechanism(design: Design, ball: Ball, beta: float | None, choices: Choices) -> InterpolatedMVU:
    decoder = cast(Decoder, choices.decoder or UNBIASED)
    rotation = _rotation(ball, choices)
    if beta is None:
        beta = 1.0
    return InterpolatedMVU(design, ball, beta, bool(choices.clamp), decoder, rotation)


def _rotation(ball: Ball, choices: Choices) -> Rotation | None:
    """Return the rotation of updates; None if it is switched off or updates arrive rotated."""
    if wants_rotation(ball, choices.rotate) and not choices.rotated:
        return rotation_for(ball.dimension, exact=choices.by_sample)
    return None


def _limits(ball: Ball, choices: Choices) -> tuple[float, float]:
    if choices.design is not None:
        return MIN_BETA, MAX_BETA
    return design_limits(choices.levels or 2, choices.bits or 1)


def _given(ball: Ball, strength: float, choices: Choices) -> InterpolatedMVU:
    """Return the mechanism of a design epsilon, with the chosen design or the best known one."""
    design = choices.design
    if design is None:
        design = solve(_spec(strength, choices))
    epsilon = design.spec.epsilon
    require(epsilon == strength, "design_epsilon", strength, f"{epsilon!r}, the design's")
    return _mechanism(design, ball, choices.beta, choices)


def _sharpened(ball: Ball, choices: Choices) -> Choices:
    """Clamp inputs of one bit on an L2 ball where that makes the account sharp.

    At a tenth of the clip a dominating pair has 1.9 % more variance than Gaussian noise. A clamp
    at three deviations of a rotated coordinate takes 0.6 % of an update at most; without a rotation
    the coordinates of an evenly spread update are eight times below the clamp.
    """
    free = choices.beta is None and choices.clamp is None and choices.design is None
    one_bit = choices.bits in (None, 1) and choices.levels in (None, 2)
    rotation = _rotation(ball, choices)
    if choices.rotated:
        share = 3 / math.sqrt(ball.dimension)
    elif rotation is not None:
        share = 3 / math.sqrt(rotation.block)
    else:
        share = 8 / math.sqrt(ball.dimension)
    share = max(LEAST_SHARE, share)
    if free and one_bit and ball.norm is Norm.L2 and share <= MOST_SHARE:
        return evolve(choices, beta=1 / share, clamp=True)
    return choices


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

        return largest_private(roughly, MIN_BETA, MAX_BETA, target.epsilon, "a sum", REMEDY)

    bit_epsilon = DESIGN_EPSILON
    while bit_epsilon < MOST_DESIGN_EPSILON and guess(bit_epsilon) > max(1.0, farthest):
        bit_epsilon *= GROWTH
    design = closed_design(DesignSpec(2, 1, bit_epsilon))
    decoder = cast(Decoder, choices.decoder or UNBIASED)

    def build(beta: float) -> InterpolatedMVU:
        return InterpolatedMVU(design, ball, beta, True, decoder, rotation)

    beta = largest_private(
        lambda beta: account(build(beta)),
        MIN_BETA,
        MAX_BETA,
        target.epsilon,
        "a sum",
        REMEDY,
        start=guess(bit_epsilon),
    )
    return build(beta)


FAMILY = SearchedFamily(
    "imvu",
    ("bits", "levels", "beta", "clamp", "decoder", "design", "rotate"),
    "design_epsilon",
    _build,
    _limits,
    direct=_given,
    prepare=_sharpened,
    summable=True,
)
