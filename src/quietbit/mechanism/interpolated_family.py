"""The family of the interpolated mechanism: designs, inputs and rotations for a target.

Idea     what is searched is the design's epsilon, or beta where a design is given. Updates in an L2
         ball are rotated, and inputs of one bit are clamped where that makes the account sharp.
Source   Guo et al. (ICML 2023) for the mechanism; docs/theory/rotation.md for the rotation.
"""

from __future__ import annotations

import math
from typing import cast

from attrs import evolve

from quietbit.design.solve import closed_design, design_limits, solve
from quietbit.design.table import Design, DesignSpec
from quietbit.errors import require
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.family import Choices, SearchedFamily
from quietbit.mechanism.interpolated import MAX_BETA, UNBIASED, Decoder, InterpolatedMVU
from quietbit.mechanism.rotation import Rotation, rotation_for, wants_rotation

__all__ = ["FAMILY"]

MIN_BETA = 1e-6
LEAST_SHARE = 0.1  # of the clip, at which a coordinate is clamped
MOST_SHARE = 0.3


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
