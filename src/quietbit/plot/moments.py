"""Mean and variance of a design's mechanisms along the unit interval, in the design's own units.

Idea     on the ball [-1/2, 1/2] with beta = 1 an update u is the input x = 1/2 + u and a symbol decodes to
         a - 1/2, so the mechanisms' own closed forms are drawn and nothing is computed a second time.
Symbols  x in [0, 1].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from quietbit._typing import FloatVector
from quietbit.design.table import Design
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.plot.figure import INK, Axes
from quietbit.plot.palette import MECHANISMS

__all__ = ["LOOKS", "Moments", "X", "dithered_moments", "draw_moments", "interpolated_moments"]

UNIT = Ball(Norm.L1, 0.5, 1)
X = np.linspace(0.0, 1.0, 401)
MOST_DOTS = 64
# MVU is a broad line under I-MVU's narrow one, so that both show where they agree.
LOOKS: dict[str, dict[str, Any]] = {
    "laplace": {"color": MECHANISMS["laplace"].light, "linewidth": 1.8, "linestyle": (0, (5, 2)),
                "label": "Laplace noise (32 bits)"},
    "mvu": {"color": MECHANISMS["mvu"].light, "alpha": 0.5, "linewidth": 4.2, "label": "MVU (dithered to levels)"},
    "imvu": {"color": MECHANISMS["imvu"].light, "linewidth": 1.6, "label": "I-MVU (interpolated)"},
    "levels": {"color": INK, "s": 20, "zorder": 4, "linewidths": 0, "label": "the design's levels"},
}  # fmt: skip


class Moments(NamedTuple):
    """Mean and variance of the decoded value at every x."""

    mean: FloatVector
    variance: FloatVector


def interpolated_moments(design: Design, x: FloatVector) -> Moments:
    """Return those of I-MVU: log-probabilities interpolated between the levels."""
    return _moments(InterpolatedMVU(design, UNIT, decoder="alphabet"), x)


def dithered_moments(design: Design, x: FloatVector) -> Moments:
    """Return those of MVU: probabilities interpolated between the levels, which is what dithering does."""
    return _moments(DitheredMVU(design, UNIT), x)


def draw_moments(top: Axes, bottom: Axes, design: Design, *, bias: bool) -> dict[str, Moments]:
    """Draw means, or biases, of MVU and I-MVU into ``top`` and variances into ``bottom``, with dots at the levels."""
    found, levels = {"mvu": dithered_moments(design, X), "imvu": interpolated_moments(design, X)}, design.spec.levels
    for name, moments in found.items():
        top.plot(X, moments.mean - X if bias else moments.mean, **LOOKS[name])
        bottom.plot(X, moments.variance, **LOOKS[name])
    if len(levels) <= MOST_DOTS:
        dots = dithered_moments(design, levels)
        top.scatter(levels, dots.mean - levels if bias else dots.mean, **LOOKS["levels"])
        bottom.scatter(levels, dots.variance, **LOOKS["levels"])
    for axes in (top, bottom):
        axes.set_xlim(-0.02, 1.02)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
    return found


def _moments(mechanism: Mechanism, x: FloatVector) -> Moments:
    updates = np.clip(x - 0.5, -0.5, 0.5).tolist()
    mean = np.array([0.5 + mechanism.expectation(u) for u in updates])
    return Moments(mean, np.array([mechanism.variance(u) for u in updates]))
