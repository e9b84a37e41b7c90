"""From settings to the mechanism of a run: built as told, or calibrated to the target.

Idea     the releases of the most frequent client are known beforehand, because participation is; calibration
         meets the target for that client. Under sample-level privacy a given noise is in units of the largest
         sensitivity, clip / (samples of the smallest client), and a target is met on the run's own account. Under
         secure aggregation the target is met by the account of the sum; under central trust the mechanism's
         noise is that of the whole sum.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import InvalidParameter, require
from quietbit.design.binomial import binomial_design
from quietbit.design.solve import solve
from quietbit.design.spec import DesignSpec
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.calibrate import MechanismName, calibrate
from quietbit.mechanism.central_sum import calibrate_sum
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.gaussian import Gaussian
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.laplace import Laplace
from quietbit.mechanism.sign import Sign
from quietbit.mechanism.skellam import Skellam
from quietbit.plan.account import Account
from quietbit.plan.settings import Settings
from quietbit.privacy.guarantee import Trust, Unit

__all__ = ["choose_mechanism"]

MVU_LEVELS = 65  # odd, so that zero is a level, and enough for dithering to cost little


def choose_mechanism(
    settings: Settings, dimension: int, sizes: NDArray[np.int64], releases: int | NDArray[np.int64]
) -> Mechanism:
    """The mechanism for updates of this dimension, when a client makes ``releases`` releases (all alike, or each)."""
    ball = Ball(settings.plan.norm, settings.plan.clip, dimension)
    sample = settings.privacy_unit is Unit.SAMPLE
    if not settings.calibrated:
        return _given(settings, ball, int(sizes.min()) if sample else 1)
    counts = np.broadcast_to(np.asarray(releases, dtype=np.int64), sizes.shape)
    busiest = max(1, int(counts.max()))
    if settings.privacy_trust is Trust.SECURE_AGGREGATION:
        return calibrate_sum(
            ball=ball,
            epsilon=cast(float, settings.target_epsilon),
            delta=settings.delta,
            adjacency=settings.privacy_adjacency,
            clients=settings.cohort,
            honest=settings.honest,
            releases=busiest,
            bits=settings.bits or 1,
            decoder=cast(Any, settings.decoder),
        ).mechanism
    found = calibrate(
        cast(MechanismName, settings.mechanism),
        ball=ball,
        epsilon=cast(float, settings.target_epsilon),
        delta=settings.delta,
        adjacency=settings.privacy_adjacency,
        releases=busiest,
        bits=settings.bits,
        levels=settings.levels,
        beta=settings.beta,
        clamp=settings.clamp,
        decoder=cast(Any, settings.decoder),
        unit=settings.privacy_unit,
        account=(lambda mechanism: _worst(settings, mechanism, sizes, counts)) if sample else None,
    )
    if sample and found.saturated:
        raise InvalidParameter(
            f"beta must be above {settings.beta:g} to make use of target_epsilon {settings.target_epsilon:g}: one of "
            f"{int(sizes.min())} samples moves an input by little, and {settings.mechanism} can reveal no more of it."
        )
    return found.mechanism


def _worst(settings: Settings, mechanism: Mechanism, sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """What a sample of the most exposed client will have spent: the account that the run will keep."""
    account = Account(mechanism, sizes, settings.privacy_unit, settings.privacy_adjacency)
    account.counts = counts
    return account.worst(settings.delta).epsilon_upper


def _given(settings: Settings, ball: Ball, samples: int) -> Mechanism:
    name = settings.mechanism
    if name in ("imvu", "mvu"):
        levels = settings.levels or (2 if name == "imvu" else MVU_LEVELS)
        bits, epsilon = settings.bits or 1, cast(float, settings.epsilon)
        # Sums of codes of several bits need evenly spaced values, which a solved design does not have.
        summed = settings.privacy_trust is Trust.SECURE_AGGREGATION and bits > 1
        design = binomial_design(bits, epsilon) if summed else solve(DesignSpec(levels, bits, epsilon))
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
