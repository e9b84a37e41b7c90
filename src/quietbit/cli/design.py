"""``quietbit design``: from a few numbers to a table of probabilities, or a profile, with its certificate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded, rounded_up
from quietbit.cli.files import check_outputs
from quietbit.cli.options import BoundOption, bias_of
from quietbit.cli.rows import certificate_rows, gaussian_row, profile_rows
from quietbit.errors import InvalidParameter, require
from quietbit.target import Adjacency, Target

__all__ = ["design"]


def design(
    levels: Annotated[int | None, typer.Option(help="Input levels, 2 or more.")] = None,
    bits: Annotated[int | None, typer.Option(help="Bits per output symbol, 1 to 8.")] = None,
    design_epsilon: Annotated[
        float | None, typer.Option(help="The design's own epsilon, in the sense of --privacy.")
    ] = None,
    privacy: Annotated[
        str, typer.Option(metavar="KIND", help="What it bounds: metric-l1, metric-l2 or strict.")
    ] = "metric-l1",
    bias: Annotated[str, typer.Option(metavar="exact|PENALTY", help="No bias, or a penalty on its square.")] = "exact",
    out: Annotated[Path | None, typer.Option(help="Save the design as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it, as .png, .svg or .pdf.")] = None,
    bound: BoundOption = True,
    vector: Annotated[
        bool, typer.Option("--vector", help="Design the profile of the vector mechanism (vmvu) for a target instead.")
    ] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="Target for all releases of one party together (--vector).")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of that target; may be 0 (--vector).")] = None,
    releases: Annotated[
        int | None, typer.Option(help="How often the same party sends an update, 1 unless given (--vector).")
    ] = None,
    adjacency: Annotated[
        str | None, typer.Option(metavar="zero-out|replace-one", help="What the neighbouring world is (--vector).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Solve for the most accurate private table, and certify it; or, with --vector, for a profile.

    A table says with which probability a coordinate becomes which symbol (imvu, mvu). A profile says how a whole update
    tilts normal noise: h(t) is how much likelier noise becomes that lies t along the update (vmvu). It is made for a
    target, all releases included, and one that few releases share is far more accurate than Gaussian noise.

    Example: quietbit design --levels 8 --bits 3 --design-epsilon 5 --out table.json --plot table.png

    Example: quietbit design --vector --epsilon 8 --delta 1e-5 --releases 3 --adjacency zero-out --plot profile.png
    """
    numbers: dict[str, Any] = {"levels": levels, "bits": bits, "design_epsilon": design_epsilon}
    target: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "releases": releases, "adjacency": adjacency}
    unused, rule = target, "left out without --vector: a table has a --design-epsilon alone"
    if vector:
        unused, rule = numbers, "left out for --vector, which has none"
    for name, value in unused.items():
        require(value is None, name, value, rule)
    if vector:
        target["releases"] = 1 if releases is None else releases
        _design_profile(target, out, plot, json)
    elif None in numbers.values():
        raise InvalidParameter("levels, bits and design-epsilon must be given, or --vector and a target.")
    else:
        _design(list(numbers.values()), privacy, bias, out, plot, bound, json)


def _design(
    numbers: list[Any], privacy: str, bias: str, out: Path | None, plot: Path | None, bound: bool, as_json: bool
) -> None:
    from quietbit.plot.design import plot_design
    from quietbit.plot.figure import save_figure

    words: list[Any] = [privacy, bias_of(bias)]
    spec = quietbit.DesignSpec(*numbers, *words)
    check_outputs(out, figures=(plot,))
    with progress_bar("Solving", quiet=as_json) as report:
        found = quietbit.solve(spec, report)
    picture = plot_design(found) if plot is not None else None
    rows = certificate_rows(found, quietbit.certify(found), bound=bound, quiet=as_json)
    if out is not None:
        rows.append(Row("saved", "saved as", str(found.save(out))))
    if plot is not None:
        rows.append(Row("plot", "drawn as", str(save_figure(picture, plot))))
    title = f"{spec.input_levels} levels, {spec.output_bits} bits, {privacy} epsilon {spec.epsilon:g}, bias {bias}"
    record(title, rows, as_json)


def _design_profile(given: dict[str, Any], out: Path | None, plot: Path | None, as_json: bool) -> None:
    """Solve for a target of epsilon, delta, releases and adjacency; certify, save, draw and print."""
    from quietbit.design.profile_search import gain_upper
    from quietbit.mechanism.vector import solve_profile
    from quietbit.plot.figure import save_figure
    from quietbit.plot.profile import plot_profile
    from quietbit.privacy.profile import certify_profile

    for name, value in given.items():
        if value is None:
            raise InvalidParameter.of(name, "given for --vector: a profile is made for a target")
    which = Adjacency(given["adjacency"])
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
