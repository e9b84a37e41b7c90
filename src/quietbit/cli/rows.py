"""Rows that several commands print: a guarantee, a profile, and the error of Gaussian noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import quietbit
from quietbit.cli.console import Row, rounded, rounded_up

if TYPE_CHECKING:
    from quietbit.design.profile import Profile

__all__ = ["gaussian_row", "guarantee_rows", "profile_rows"]


LARGEST_EPSILON = 50.0
NO_PRIVACY = "such an epsilon protects nobody: an observer can be nearly certain of the update"


def guarantee_rows(guarantee: quietbit.Guarantee) -> list[Row]:
    """Return the rows of a guarantee: epsilon with delta, adjacency, unit and trust."""
    epsilon = guarantee.epsilon_upper
    rows = [
        Row("epsilon_upper", "epsilon of all releases", epsilon, rounded_up(epsilon, 8)),
        Row("delta", "delta", guarantee.delta),
        Row("adjacency", "adjacency", guarantee.adjacency.value),
        Row("unit", "unit", guarantee.unit.value),
        Row("trust", "trust", guarantee.trust.value),
        Row("guarantee", "guarantee", guarantee.sentence()),
    ]
    if epsilon > LARGEST_EPSILON:
        rows.append(Row("warning", "warning", NO_PRIVACY))
    return rows


def gaussian_row(error: float, gaussian: float) -> Row:
    """Return the row of Gaussian noise's error at the same target, beside ours."""
    shown = "none: it has no pure privacy"
    if gaussian < math.inf:
        ratio = rounded(error / gaussian, 4)
        shown = f"{rounded(gaussian)} for the same target; ours is {ratio} times that"
    return Row("gaussian_squared_error", "Gaussian noise's", gaussian, shown)


def profile_rows(profile: Profile) -> list[Row]:
    """Return the rows of a profile: its size, gain and identity."""
    levels = profile.levels.size
    gain = profile.gain_lower
    facts = {"levels": levels, "gain_lower": gain, "largest": profile.largest}
    shown = f"{levels} levels, gain {rounded(gain)}, {rounded(profile.largest, 4)} tries"
    return [
        Row("profile", "profile", facts, shown),
        Row("identity", "identity", profile.identity()),
    ]
