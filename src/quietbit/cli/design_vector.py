"""``quietbit design --vector``: from a privacy target to a profile of the vector mechanism, with its certificate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import quietbit
from quietbit.cli.console import Row, progress_bar, record, rounded, rounded_up
from quietbit.cli.files import check_outputs
from quietbit.cli.rows import gaussian_row, profile_rows
from quietbit.errors import InvalidParameter
from quietbit.target import Target, as_adjacency

__all__ = ["design_profile"]


def design_profile(given: dict[str, Any], out: Path | None, plot: Path | None, as_json: bool) -> None:
    """Solve for a target of epsilon, delta, releases and adjacency; certify, save, draw and print."""
    from quietbit.design.profile_bound import gain_upper
    from quietbit.mechanism.solve_profile import solve_profile
    from quietbit.plot.figure import save_figure
    from quietbit.plot.profile import plot_profile
    from quietbit.privacy.profile import certify_profile

    for name, value in given.items():
        if value is None:
            raise InvalidParameter.of(name, "given for --vector: a profile is made for a target")
    which = as_adjacency(given["adjacency"])
    target = Target(given["epsilon"], given["delta"], which, releases=given["releases"])
    check_outputs(out, figures=(plot,))
    with progress_bar("Solving", quiet=as_json):
        found = solve_profile(target.epsilon, target.delta, target.releases, which)
        certificate = certify_profile(found, which, target.releases, target.delta)
    best = gain_upper(target, found.largest * (1 + 1e-12))
    gaussian = math.inf
    if target.delta > 0:
        gaussian = quietbit.calibrate("gaussian", ball=quietbit.Ball("l2", 1.0, 1), **given).squared_error
    error, pure = certificate.squared_error_upper, certificate.pure_epsilon_upper
    rows = [
        Row("epsilon", "epsilon asked for", target.epsilon),
        Row("epsilon_upper", "epsilon measured", certificate.epsilon_upper, rounded_up(certificate.epsilon_upper, 12)),
        Row("delta", "delta", target.delta),
        Row("releases", "releases", target.releases),
        Row("adjacency", "adjacency", which.value),
        Row("pure_epsilon_upper", "epsilon at delta 0", pure, rounded_up(pure, 8)),
        Row("squared_error_upper", "squared error, radius 1", error, rounded_up(error)),
        gaussian_row(error, gaussian),
        Row("least_squared_error", "no profile beats", best**-2, rounded(best**-2)),
        *profile_rows(found),
    ]
    if out is not None:
        rows.append(Row("saved", "saved as", str(found.save(out))))
    if plot is not None:
        picture = plot_profile(found, which, target.releases, target.delta)
        rows.append(Row("plot", "drawn as", str(save_figure(picture, plot))))
    many = "1 release" if target.releases == 1 else f"{target.releases} releases"
    record(f"profile for epsilon {target.epsilon:g}, delta {target.delta:g}, {many}, {which.value}", rows, as_json)
