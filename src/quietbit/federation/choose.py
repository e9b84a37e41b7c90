"""From settings to the mechanism of a run: built as told, or calibrated to the target.

Idea     the releases of the most frequent client are known beforehand, because participation is; calibration
         meets the target for that client. Under sample-level privacy the noise is given in units of the
         largest sensitivity, clip / (samples of the smallest client).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import InvalidParameter, require
from quietbit.design.solve import solve
from quietbit.design.spec import DesignSpec
from quietbit.federation.settings import Settings
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.calibrate import MechanismName, calibrate
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.gaussian import Gaussian
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.laplace import Laplace
from quietbit.mechanism.sign import Sign
from quietbit.mechanism.skellam import Skellam
from quietbit.privacy.guarantee import Unit

__all__ = ["choose_mechanism"]

MVU_LEVELS = 65  # odd, so that zero is a level, and enough for dithering to cost little


def choose_mechanism(settings: Settings, dimension: int, sizes: NDArray[np.int64], releases: int) -> Mechanism:
    """The mechanism for updates of this dimension, when the busiest client makes ``releases`` releases."""
    ball = Ball(settings.plan.norm, settings.plan.clip, dimension)
    sample = settings.privacy_unit is Unit.SAMPLE
    if not settings.calibrated:
        return _given(settings, ball, int(sizes.min()) if sample else 1)
    if sample:
        raise InvalidParameter(
            "target_epsilon must come with an epsilon or a noise for sample-level privacy: nothing is calibrated there."
        )
    found = calibrate(
        cast(MechanismName, settings.mechanism),
        ball=ball,
        epsilon=cast(float, settings.target_epsilon),
        delta=settings.delta,
        adjacency=settings.privacy_adjacency,
        releases=max(1, releases),
        bits=settings.bits,
        levels=settings.levels,
        beta=settings.beta,
        clamp=settings.clamp,
        decoder=cast(Any, settings.decoder),
    )
    return found.mechanism


def _given(settings: Settings, ball: Ball, samples: int) -> Mechanism:
    name = settings.mechanism
    if name in ("imvu", "mvu"):
        levels = settings.levels or (2 if name == "imvu" else MVU_LEVELS)
        design = solve(DesignSpec(levels, settings.bits or 1, cast(float, settings.epsilon)))
        if name == "mvu":
            return DitheredMVU(design, ball)
        return InterpolatedMVU(design, ball, settings.beta, settings.clamp, cast(Any, settings.decoder))
    noise = cast(float, settings.noise) / samples
    if name == "skellam":
        return Skellam(ball, noise, settings.bits or 16)
    fits = {"gaussian": Norm.L2, "laplace": Norm.L1}.get(name, ball.norm)
    require(ball.norm is fits, "norm", ball.norm.value, f"{fits.value} for {name}")
    inner = Gaussian(ball, noise) if ball.norm is Norm.L2 else Laplace(ball, noise)
    return Sign(inner) if name == "sign" else inner
