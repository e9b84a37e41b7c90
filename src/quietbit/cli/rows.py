"""Rows that several commands print: a guarantee in words, a profile, and the error of Gaussian noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import quietbit
from quietbit.cli.console import Row, rounded, rounded_up

if TYPE_CHECKING:
    from quietbit.design.profile import Profile

__all__ = ["gaussian_row", "guarantee_rows", "profile_rows"]


LARGEST_EPSILON = 50.0
NO_PRIVACY = (
    "such an epsilon protects nobody: an observer may be all but certain of what a client sent"
)


def guarantee_rows(guarantee: quietbit.Guarantee, what: str = "all releases") -> list[Row]:
    """Make the rows of an epsilon with all the words that it needs."""
    epsilon = guarantee.epsilon_upper
    return [
        Row("epsilon_upper", f"epsilon of {what}", epsilon, rounded_up(epsilon, 8)),
        Row("delta", "delta", guarantee.delta),
        *(Row(key, key, getattr(guarantee, key).value) for key in ("adjacency", "unit", "trust")),
        Row("guarantee", "guarantee", guarantee.sentence()),
        *([Row("warning", "warning", NO_PRIVACY)] if epsilon > LARGEST_EPSILON else []),
    ]


def gaussian_row(error: float, gaussian: float) -> Row:
    """Say what Gaussian noise has at the same target, and how we compare."""
    shown = "none: it has no pure privacy"
    if gaussian < math.inf:
        shown = f"{rounded(gaussian)} for the same target; ours is {rounded(error / gaussian, 4)} times that"
    return Row("gaussian_squared_error", "Gaussian noise's", gaussian, shown)


def profile_rows(profile: Profile) -> list[Row]:
    """Say which profile it is."""
    facts = {
        "levels": profile.levels.size,
        "gain_lower": profile.gain_lower,
        "largest": profile.largest,
    }
    shown = f"{profile.levels.size} levels, gain {rounded(profile.gain_lower)}, {rounded(profile.largest, 4)} tries"
    return [
        Row("profile", "profile", facts, shown),
        Row("identity", "identity", profile.identity()),
    ]
