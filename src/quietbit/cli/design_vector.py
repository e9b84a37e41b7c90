"""``quietbit design --vector``: from a privacy target to a profile of the vector mechanism, with its certificate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import quietbit
from quietbit.cli.console import Row, progress_bar, record, rounded, rounded_up
from quietbit.cli.files import check_outputs
from quietbit.cli.options import adjacency_of

if TYPE_CHECKING:
    from quietbit.design.profile import Profile

__all__ = ["design_profile", "profile_rows"]

Given = TypeVar("Given")


def design_profile(
    *,
    epsilon: float | None,
    delta: float | None,
    releases: int,
    adjacency: str | None,
    out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Solve, certify, save, draw and print."""
    from quietbit.design.profile_bound import gain_upper
    from quietbit.design.profile_store import write_profile
    from quietbit.design.profile_target import ProfileTarget
    from quietbit.mechanism.solve_profile import solve_profile
    from quietbit.privacy.profile import certify_profile

    asked, allowed, word = _given(epsilon, "epsilon"), _given(delta, "delta"), _given(adjacency, "adjacency")
    which = adjacency_of(word)
    target = ProfileTarget(asked, allowed, releases, which.value)
    check_outputs(out, figures=(plot,))
    with progress_bar("Solving", quiet=as_json):
        found = solve_profile(target.epsilon, target.delta, target.releases, which)
        certificate = certify_profile(found, which, target.releases, target.delta)
    best = gain_upper(target, found.largest * (1 + 1e-12))
    gaussian = (
        quietbit.calibrate(
            "gaussian",
            ball=quietbit.Ball(quietbit.Norm.L2, 1.0, 1),
            epsilon=target.epsilon,
            delta=target.delta,
            releases=target.releases,
            adjacency=which,
        ).squared_error
        if target.delta > 0
        else math.inf
    )
    error = certificate.squared_error_upper
    rows = [
        Row("epsilon", "epsilon asked for", target.epsilon),
        Row("epsilon_upper", "epsilon measured", certificate.epsilon_upper, rounded_up(certificate.epsilon_upper, 12)),
        Row("delta", "delta", target.delta),
        Row("releases", "releases", target.releases),
        Row("adjacency", "adjacency", which.value),
        Row(
            "pure_epsilon_upper",
            "epsilon at delta 0",
            certificate.pure_epsilon_upper,
            rounded_up(certificate.pure_epsilon_upper, 8),
        ),
        Row("squared_error_upper", "squared error, radius 1", error, rounded_up(error)),
        Row(
            "gaussian_squared_error",
            "Gaussian noise's",
            gaussian,
            f"{rounded(gaussian)} with its exact account; ours is {rounded(error / gaussian, 4)} times that"
            if gaussian < math.inf
            else "none: it has no pure privacy",
        ),
        Row("least_squared_error", "no profile beats", best**-2, rounded(best**-2)),
        *profile_rows(found),
    ]
    if out is not None:
        rows.append(Row("saved", "saved as", str(write_profile(found, out))))
    if plot is not None:
        from quietbit.plot.figure import save_figure
        from quietbit.plot.profile import plot_profile

        picture = plot_profile(found, which, target.releases, target.delta)
        rows.append(Row("plot", "drawn as", str(save_figure(picture, plot))))
    many = "1 release" if target.releases == 1 else f"{target.releases} releases"
    record(f"profile for epsilon {target.epsilon:g}, delta {target.delta:g}, {many}, {which.value}", rows, as_json)


def _given(value: Given | None, name: str) -> Given:
    if value is None:
        raise quietbit.InvalidParameter(f"{name} must be given for --vector: a profile is made for a target.")
    return value


def profile_rows(profile: Profile) -> list[Row]:
    """What a profile is, in rows."""
    facts = {"levels": profile.levels.size, "gain_lower": profile.gain_lower, "largest": profile.largest}
    shown = f"{profile.levels.size} levels, gain {rounded(profile.gain_lower)}, {rounded(profile.largest, 4)} tries"
    return [Row("profile", "profile", facts, shown), Row("identity", "identity", profile.identity())]
