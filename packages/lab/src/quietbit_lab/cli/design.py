"""``quietbit design``: a table of probabilities, or a profile, with its certificate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded, rounded_up
from quietbit.cli.options import check_outputs, chosen, option, takes, usual
from quietbit.cli.rows import gaussian_row, profile_rows
from quietbit.errors import InvalidParameter, require
from quietbit.target import Target
from quietbit_lab.cli.certify import certificate_rows
from quietbit_lab.cli.options import number_or_word

__all__ = ["design"]

OF_TABLE = "levels bits design_epsilon"
OF_PROFILE = "epsilon delta releases adjacency"


@takes(
    option("levels", int, "Input levels, 2 or more."),
    option("bits", int, "Bits per output symbol, 1 to 8."),
    option("design_epsilon", float, "The design's own epsilon, in the sense of --privacy."),
    option("privacy", str, "What it bounds: metric-l1, metric-l2 or strict.", "metric-l1", "KIND"),
    option("bias", str, "No bias, or a penalty on its square.", "exact", "exact|PENALTY"),
    option("out", Path, "Save the design as JSON."),
    option("plot", Path, "Draw the table, as .png, .svg or .pdf."),
    usual("bound", True),
    option(
        "vector",
        bool,
        "Design the profile of the vector mechanism (vmvu) for a target instead.",
        False,
    ),
    option("epsilon", float, "Target for all releases of one client together (--vector)."),
    option("delta", float, "Delta of that target; may be 0 (--vector)."),
    option(
        "releases", int, "How often the same client sends an update, 1 unless given (--vector)."
    ),
    option(
        "adjacency",
        str,
        "What the neighbouring world is (--vector).",
        metavar="zero-out|replace-one",
    ),
)
def design(json: JsonOption = False, **given: Any) -> None:
    """Solve for the most accurate private table, and certify it; or, with --vector, for a profile.

    A table says with which probability a coordinate becomes which symbol (imvu, mvu). A profile
    says how a whole update tilts normal noise: h(t) is how much likelier noise becomes that lies t
    along the update (vmvu). It is made for a target, all releases included, and one that few
    releases share is far more accurate than Gaussian noise.

    Example: quietbit design --levels 8 --bits 3 --design-epsilon 5 --out table.json --plot
    table.png

    Example: quietbit design --vector --epsilon 8 --delta 1e-5 --releases 3 --adjacency zero-out
    --out profile.json
    """
    vector = given["vector"]
    out = given["out"]
    plot = given["plot"]
    unused = OF_PROFILE
    remedy = "add --vector, or use --design-epsilon for a table"
    if vector:
        unused = f"{OF_TABLE} plot"
        remedy = "--vector makes a profile for a target, set by --epsilon and --delta"
    for name, value in chosen(given, unused).items():
        require(value is None, name, value, "left out", remedy)
    check_outputs(out, figures=(plot,))
    if vector:
        title, result, rows = _profile(given, json)
    else:
        title, result, rows = _table(given, json)
    if out is not None:
        rows.append(Row("saved", "saved as", str(result.save(out))))
    if plot is not None:
        from quietbit_lab.plot.design import plot_design
        from quietbit_lab.plot.figure import save_figure

        rows.append(Row("plot", "drawn as", str(save_figure(plot_design(result), plot))))
    record(title, rows, json)


def _table(given: dict[str, Any], quiet: bool) -> tuple[str, Any, list[Row]]:
    """Return the title, the design and the rows about it."""
    from quietbit_lab.design.search import solve

    privacy = given["privacy"]
    bias = given["bias"]
    parts: list[Any] = [*chosen(given, OF_TABLE).values(), privacy, number_or_word(bias)]
    if None in parts:
        missing = next(name for name, value in chosen(given, OF_TABLE).items() if value is None)
        raise InvalidParameter.of(
            missing,
            "given",
            None,
            "add --levels, --bits and --design-epsilon, or --vector and a target",
        )
    try:
        spec = quietbit.DesignSpec(*parts)
    except InvalidParameter as error:
        raise error.renamed("design_epsilon") if error.name == "epsilon" else error from error
    with progress_bar("Solving", quiet=quiet) as report:
        design = solve(spec, report)
    rows = certificate_rows(design, quietbit.certify(design), bound=given["bound"], quiet=quiet)
    title = f"{spec.input_levels} levels, {spec.output_bits} bits, "
    title += f"{privacy} epsilon {spec.epsilon:g}, bias {bias}"
    return title, design, rows


def _profile(given: dict[str, Any], quiet: bool) -> tuple[str, Any, list[Row]]:
    """Return the same of a profile."""
    from quietbit.mechanism.solve_profile import solve_profile
    from quietbit.privacy.profile import certify_profile
    from quietbit_lab.design.gain import gain_upper

    terms = chosen(given, OF_PROFILE) | {
        "releases": 1 if given["releases"] is None else given["releases"]
    }
    for name, value in terms.items():
        if value is None:
            remedy = "--vector makes a profile for this target"
            raise InvalidParameter.of(name, "given with --vector", remedy=remedy)
    target = Target(**terms)
    which = target.adjacency
    delta = target.delta
    releases = target.releases
    with progress_bar("Solving", quiet=quiet):
        profile = solve_profile(target.epsilon, delta, releases, which)
        certificate = certify_profile(profile, which, releases, delta)
    best = gain_upper(target, profile.largest * (1 + 1e-12))
    gaussian = math.inf
    if delta > 0:
        gaussian = quietbit.calibrate(
            "gaussian", ball=quietbit.Ball("l2", 1), **terms
        ).squared_error
    error = certificate.squared_error_upper
    pure = certificate.pure_epsilon_upper
    rows = [
        Row("epsilon", "epsilon asked for", target.epsilon),
        Row(
            "epsilon_upper",
            "epsilon measured",
            certificate.epsilon_upper,
            rounded_up(certificate.epsilon_upper, 12),
        ),
        Row("delta", "delta", delta),
        Row("releases", "releases", releases),
        Row("adjacency", "adjacency", which.value),
        Row("pure_epsilon_upper", "epsilon at delta 0", pure, rounded_up(pure, 8)),
        Row("squared_error_upper", "squared error, in clips", error, rounded_up(error)),
        gaussian_row(error, gaussian),
        Row("least_squared_error", "no profile beats", best**-2, rounded(best**-2)),
        *profile_rows(profile),
    ]
    if releases == 1:
        words = "1 release"
    else:
        words = f"{releases} releases"
    title = f"profile for epsilon {target.epsilon:g}, delta {delta:g}, {words}, {which.value}"
    return title, profile, rows
