"""``quietbit design``: from a few numbers to a table of probabilities, or a profile, with its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded, rounded_up
from quietbit.cli.files import check_outputs
from quietbit.cli.options import bias_of
from quietbit.errors import require

if TYPE_CHECKING:
    from quietbit.design.certify import Certificate
    from quietbit.design.table import Design

__all__ = ["certificate_rows", "design"]


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
    bound: Annotated[
        bool, typer.Option("--bound/--no-bound", help="Compute how good any design could be (slow for many levels).")
    ] = True,
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
    if vector:
        from quietbit.cli.design_vector import design_profile

        for name, value in (("levels", levels), ("bits", bits), ("design_epsilon", design_epsilon)):
            require(value is None, name, value, "left out for --vector, which has none")
        design_profile(
            epsilon=epsilon,
            delta=delta,
            releases=1 if releases is None else releases,
            adjacency=adjacency,
            out=out,
            plot=plot,
            as_json=json,
        )
        return
    target = {"epsilon": epsilon, "delta": delta, "releases": releases, "adjacency": adjacency}
    for name, given in target.items():
        require(given is None, name, given, "left out without --vector: a table has a --design-epsilon alone")
    if levels is None or bits is None or design_epsilon is None:
        raise quietbit.InvalidParameter("levels, bits and design-epsilon must be given, or --vector and a target.")
    from quietbit.plot.design import plot_design
    from quietbit.plot.figure import save_figure

    spec = quietbit.DesignSpec(levels, bits, design_epsilon, cast(Any, privacy), cast(Any, bias_of(bias)))
    check_outputs(out, figures=(plot,))
    with progress_bar("Solving", quiet=json) as report:
        found = quietbit.solve(spec, report)
    picture = plot_design(found) if plot is not None else None
    rows = certificate_rows(found, quietbit.certify(found), bound=bound, quiet=json)
    if out is not None:
        rows.append(Row("saved", "saved as", str(found.save(out))))
    if plot is not None:
        rows.append(Row("plot", "drawn as", str(save_figure(picture, plot))))
    record(f"{levels} levels, {bits} bits, {privacy} epsilon {design_epsilon:g}, bias {bias}", rows, json)


def certificate_rows(found: Design, certificate: Certificate, *, bound: bool, quiet: bool) -> list[Row]:
    """What a certificate says, in rows."""
    asked = found.spec.epsilon
    rows = [
        Row("epsilon", "epsilon asked for", asked),
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
