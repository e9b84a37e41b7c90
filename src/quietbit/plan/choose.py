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

from quietbit._validate import InvalidParameter
from quietbit.design.binomial import binomial_design
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.calibrate import calibrate
from quietbit.mechanism.central_sum import calibrate_sum
from quietbit.mechanism.family import Choices
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.registry import family
from quietbit.plan.account import Account
from quietbit.plan.settings import Settings
from quietbit.privacy.guarantee import Guarantee, Trust, Unit

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
        settings.mechanism,
        ball=ball,
        epsilon=cast(float, settings.target_epsilon),
        delta=settings.delta,
        adjacency=settings.privacy_adjacency,
        releases=busiest,
        **_choices(settings),
        account=(lambda mechanism: _worst(settings, mechanism, sizes, counts)) if sample else None,
    )
    if sample and found.saturated:
        raise InvalidParameter(
            f"beta must be above {settings.beta:g} to make use of target_epsilon {settings.target_epsilon:g}: one of "
            f"{int(sizes.min())} samples moves an input by little, and {settings.mechanism} can reveal no more of it."
        )
    return found.mechanism


def _worst(settings: Settings, mechanism: Mechanism, sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> Guarantee:
    """What a sample of the most exposed client will have spent: the account that the run will keep."""
    account = Account(mechanism, sizes, settings.privacy_unit, settings.privacy_adjacency)
    account.counts = counts
    return account.worst(settings.delta)


def _choices(settings: Settings) -> dict[str, Any]:
    """What the family of the mechanism makes use of; the rest of the settings' defaults is nobody's choice."""
    return {name: getattr(settings, name) for name in family(settings.mechanism).uses if name != "design"}


def _given(settings: Settings, ball: Ball, samples: int) -> Mechanism:
    chosen = family(settings.mechanism)
    choices = Choices(**_choices(settings))
    if chosen.strength == "noise_multiplier":
        return chosen.given(ball, cast(float, settings.noise) / samples, choices)
    epsilon = cast(float, settings.epsilon)
    if settings.privacy_trust is Trust.SECURE_AGGREGATION and (settings.bits or 1) > 1:
        # Sums of codes of several bits need evenly spaced values, which a solved design does not have.
        design = binomial_design(cast(int, settings.bits), epsilon)
        return InterpolatedMVU(design, ball, settings.beta, settings.clamp, cast(Any, settings.decoder))
    return chosen.given(ball, epsilon, choices)
