"""Mean and variance of a design's mechanisms along the unit interval, in the design's own units.

Idea     on the ball [-1/2, 1/2] with beta = 1 an update u is the input x = 1/2 + u and a symbol decodes to
         a - 1/2, so the mechanisms' own closed forms are drawn and nothing is computed a second time.
Symbols  x in [0, 1]; epsilon of L1-metric privacy: a Laplace mechanism with it has scale 1/epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from quietbit._typing import FloatVector
from quietbit.design.table import Design
from quietbit.mechanism.additive import Laplace
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.interpolated import InterpolatedMVU

__all__ = ["Moments", "dithered_moments", "interpolated_moments", "laplace_moments"]

UNIT = Ball(Norm.L1, 0.5, 1)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Mean and variance of the decoded value at every x."""

    x: FloatVector
    mean: FloatVector
    variance: FloatVector


def interpolated_moments(design: Design, x: FloatVector) -> Moments:
    """I-MVU: log-probabilities interpolated between the levels."""
    return _moments(InterpolatedMVU(design, UNIT, decoder="alphabet"), x)


def dithered_moments(design: Design, x: FloatVector) -> Moments:
    """MVU: probabilities interpolated between the levels, which is what dithering does."""
    return _moments(DitheredMVU(design, UNIT), x)


def laplace_moments(epsilon: float, x: FloatVector) -> Moments:
    """Laplace noise of scale 1/epsilon: the same L1-metric privacy, in 32 bits."""
    return _moments(Laplace(UNIT, 2 / epsilon), x)


def _moments(mechanism: Mechanism, x: FloatVector) -> Moments:
    updates = np.clip(x - 0.5, -0.5, 0.5).tolist()
    mean = np.array([0.5 + mechanism.expectation(u) for u in updates])
    return Moments(x, mean, np.array([mechanism.variance(u) for u in updates]))
