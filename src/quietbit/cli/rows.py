"""Rows that several commands print: what is promised, and what a profile or a certified design is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import quietbit
from quietbit.cli.console import Row, progress_bar, rounded, rounded_up

if TYPE_CHECKING:
    from quietbit.design.certify import Certificate
    from quietbit.design.profile import Profile

__all__ = ["certificate_rows", "gaussian_row", "guarantee_rows", "profile_rows"]


def guarantee_rows(guarantee: quietbit.Guarantee, what: str = "all releases") -> list[Row]:
    """Make the rows of an epsilon with all the words that it needs."""
    epsilon = guarantee.epsilon_upper
    return [
        Row("epsilon_upper", f"epsilon of {what}", epsilon, rounded_up(epsilon, 8)),
        Row("delta", "delta", guarantee.delta),
        *(Row(key, key, getattr(guarantee, key).value) for key in ("adjacency", "unit", "trust")),
        Row("guarantee", "guarantee", guarantee.sentence()),
    ]


def gaussian_row(error: float, gaussian: float) -> Row:
    """Say what Gaussian noise has at the same target, and how we compare."""
    shown = "none: it has no pure privacy"
    if gaussian < math.inf:
        shown = f"{rounded(gaussian)} for the same target; ours is {rounded(error / gaussian, 4)} times that"
    return Row("gaussian_squared_error", "Gaussian noise's", gaussian, shown)


def profile_rows(profile: Profile) -> list[Row]:
    """Say which profile it is."""
    facts = {"levels": profile.levels.size, "gain_lower": profile.gain_lower, "largest": profile.largest}
    shown = f"{profile.levels.size} levels, gain {rounded(profile.gain_lower)}, {rounded(profile.largest, 4)} tries"
    return [Row("profile", "profile", facts, shown), Row("identity", "identity", profile.identity())]


def certificate_rows(found: quietbit.Design, certificate: Certificate, *, bound: bool, quiet: bool) -> list[Row]:
    """Say what a certificate says; with ``bound`` also how good any design could be, which takes a while."""
    rows = [
        Row("epsilon", "epsilon asked for", found.spec.epsilon),
        Row("epsilon_upper", "epsilon measured", certificate.epsilon_upper, rounded_up(certificate.epsilon_upper, 12)),
        Row("meets_spec", "meets its spec", certificate.meets_spec, "yes" if certificate.meets_spec else "NO"),
        Row("bias_upper", "largest bias", certificate.bias_upper, rounded_up(certificate.bias_upper, 3)),
        Row("mean_squared_error", "mean squared error", certificate.mean_squared_error),
        Row("objective", "objective", certificate.objective),
    ]
    if bound:
        with progress_bar("Bounding every possible alphabet from below", quiet=quiet):
            lowest = certificate.lower_bound
        rows += [
            Row("lower_bound", "no alphabet beats", lowest, rounded(lowest, 8)),
            Row("gap", "gap to that bound", certificate.gap, f"{100 * certificate.gap:.3g} %"),
        ]
    values = found.alphabet.tolist()
    shown = ", ".join(rounded(value, 5) for value in values[:16]) + (", ..." if len(values) > 16 else "")
    return [*rows, Row("identity", "identity", found.identity()), Row("alphabet", "alphabet", values, shown)]
