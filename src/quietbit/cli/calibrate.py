"""``quietbit calibrate``: the least noise that meets a target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import quietbit
from quietbit.cli import options
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded
from quietbit.cli.files import check_outputs
from quietbit.cli.rows import design_rows, expectation_rows, gaussian_row, guarantee_rows, profile_rows
from quietbit.errors import InvalidParameter, require

__all__ = ["calibrate"]

LABELS = {"noise_multiplier": "noise / radius", "scale_multiplier": "scale / radius"}
# What has no place in a question about sums.
REASONS = {
    "cohort": "left out for secure aggregation, where it is --clients",
    "samples": "left out for secure aggregation: sums protect whole clients",
}


def calibrate(
    epsilon: Annotated[float, typer.Option(help="Target for all releases of one party together.")],
    delta: options.DeltaOption,
    adjacency: options.AdjacencyOption,
    mechanism: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="One of imvu, vmvu, mvu, gaussian, laplace, sign, skellam, or auto, which takes the best; may be left "
            "out for secure aggregation.",
        ),
    ] = None,
    releases: options.ReleasesOption = 1,
    bits: Annotated[int | None, typer.Option(help="Bits per code: 1 unless given, 16 for skellam.")] = None,
    levels: Annotated[int | None, typer.Option(help="Levels of the design (imvu, mvu).")] = None,
    norm: options.NormOption = "l2",
    radius: options.RadiusOption = 1.0,
    dimension: options.DimensionOption = 1000,
    beta: Annotated[
        float | None, typer.Option(help="Stretches small coordinates over the design's range (imvu).")
    ] = None,
    clamp: Annotated[
        bool | None, typer.Option("--clamp", help="Cut inputs to [0, 1], as the published code does (imvu).")
    ] = None,
    decoder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of imvu: unbiased-at-zero (unless given) or alphabet, the paper's."),
    ] = None,
    design: Annotated[str | None, typer.Option(help="Keep this design and calibrate beta instead (imvu).")] = None,
    keep: Annotated[
        int | None,
        typer.Option(help="Rotated coordinates that a client keeps, a power of two; all unless given (vmvu: a few)."),
    ] = None,
    samples: options.SamplesOption = None,
    trust: options.TrustOption = "local",
    clients: Annotated[
        int | None, typer.Option(help="Codes in a sum (secure-aggregation): others' bits are part of the noise.")
    ] = None,
    min_honest_clients: Annotated[
        int | None,
        typer.Option(help="How many of them at least answer and do not collude with the server (all unless given)."),
    ] = None,
    sampling_rate: Annotated[
        float | None,
        typer.Option(
            help="Chance that one of --samples is in a batch that its site draws in secret; for secure aggregation "
            "that a client is in a cohort (--secret-cohort)."
        ),
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option(help="Private steps on such batches before a site sends the difference of models.")
    ] = None,
    local_rate: Annotated[float | None, typer.Option(help="The learning rate of such a step.")] = None,
    secret_cohort: Annotated[
        bool, typer.Option("--secret-cohort", help="Nobody, the server included, learns who took part.")
    ] = False,
    cohort: Annotated[
        int | None, typer.Option(help="Clients in a round, to be told what to expect of it; one unless given.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw error and bits over the number of clients (secure-aggregation).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Save the design or profile found (imvu, mvu, vmvu).")] = None,
    json: JsonOption = False,
) -> None:
    """Find the most accurate mechanism of its kind within a privacy target.

    With --trust secure-aggregation the server sees sums of codes alone: their account meets the target,
    releases are the sums a client takes part in, and the answer is compared with the alternatives. With --cohort
    the answer says what to expect of a round; quietbit compare shows all mechanisms.

    Example: quietbit calibrate --mechanism imvu --bits 1 --epsilon 3 --delta 1e-5 --releases 50
    --adjacency replace-one

    Example: quietbit calibrate --mechanism vmvu --epsilon 4 --delta 0 --adjacency replace-one --dimension 1000000

    Example: quietbit calibrate --mechanism gaussian --samples 5000 --sampling-rate 0.1 --epsilon 3 --delta 1e-5
    --releases 50 --adjacency zero-out

    Example: quietbit calibrate --trust secure-aggregation --clients 1000 --epsilon 1 --delta 1e-5 --releases 10
    --adjacency zero-out --dimension 100000 --plot sums.png
    """
    target: dict[str, Any] = {
        "ball": quietbit.Ball(norm, radius, dimension), "epsilon": epsilon, "delta": delta, "adjacency": adjacency,
        "releases": releases, "keep": keep,
    }  # fmt: skip
    own = {
        "levels": levels, "beta": beta, "clamp": clamp, "decoder": decoder, "design": design, "samples": samples,
        "local_steps": local_steps, "local_rate": local_rate,
    }  # fmt: skip
    if trust == quietbit.Trust.SECURE_AGGREGATION.value:
        from quietbit.cli.calibrate_sum import calibrate_secure_sum

        require(mechanism in (None, "imvu"), "mechanism", mechanism, "imvu, or left out, for secure aggregation")
        for name, value in {**own, "cohort": cohort}.items():
            require(value is None, name, value, REASONS.get(name, "left out: secure aggregation chooses it"))
        if clients is None:
            raise InvalidParameter.of("clients", "given: how many codes a sum is over")
        target |= {"clients": clients, "min_honest_clients": min_honest_clients, "bits": 1 if bits is None else bits}
        calibrate_secure_sum(target, sampling_rate, secret_cohort, plot, out, json)
        return
    require(trust == quietbit.Trust.LOCAL.value, "trust", trust, "local or secure-aggregation")
    for name, unused in (("clients", clients), ("min_honest_clients", min_honest_clients), ("plot", plot)):
        require(unused is None, name, str(unused), "left out for local trust (it is for secure-aggregation)")
    if secret_cohort or (sampling_rate is not None and samples is None):
        raise InvalidParameter(
            "Subsampling amplifies nothing where the server sees who sent what: leave --sampling-rate and "
            "--secret-cohort out, say --trust secure-aggregation if only sums are seen and nobody learns the cohort, "
            "or give --samples beside the rate at which a site draws them in secret."
        )
    _calibrate(
        mechanism,
        {**target, **own, "bits": bits, "sampling_rate": sampling_rate},
        1 if cohort is None else cohort,
        out,
        json,
    )


def _calibrate(mechanism: str | None, given: dict[str, Any], cohort: int, out: Path | None, as_json: bool) -> None:
    """Answer for one client's release, under local trust."""
    from quietbit.mechanism.registry import families, family, family_of
    from quietbit.wire.payload import Header

    if mechanism is None:
        raise InvalidParameter.of("mechanism", f"given: one of {', '.join(families())}, or auto")
    designed = mechanism in families() and family(mechanism).strength == "design_epsilon"
    require(out is None or designed, "out", str(out), f"left out for {mechanism}, which has no design to save")
    ball = given["ball"]
    if mechanism not in ("vmvu", "auto"):  # purely private on an L2 ball
        options.refuse_delta_zero(given["delta"], ball.norm)
    if given["design"] is not None:
        given["design"] = options.find_design(given["design"])
    check_outputs(out)
    with progress_bar("Calibrating", quiet=as_json):
        found = quietbit.calibrate(mechanism, **given)
    chosen, layout, gain = found.mechanism, found.mechanism.layout, found.error.gain
    per_parameter = (8 * layout.size if layout.bits == 0 else layout.bits * layout.count) / ball.dimension
    reach = "met from below to 1 part in 10,000"
    if found.saturated:
        reach = "out of reach: this mechanism cannot be certified to reveal more"
    rows = [
        Row("mechanism", "mechanism", family_of(chosen) or mechanism),
        *([Row("reason", "why", found.reason)] if found.reason else []),
        *_setting(chosen),
        Row("payload_bytes", "bytes of a payload", Header.of(chosen).size),
        Row("bits_per_parameter", "bits per parameter", per_parameter, rounded(per_parameter, 4)),
        Row("squared_error", "squared error at zero", found.squared_error, rounded(found.squared_error)),
        gaussian_row(found.squared_error, found.gaussian_squared_error),
        *expectation_rows(quietbit.expectation(chosen, cohort=cohort, rounds=found.releases)),
    ]
    if abs(gain - 1) > 1e-6:
        text = f"{rounded(gain, 4)}: small coordinates decode to this times their value; divide by it, or the step"
        rows.append(Row("gain", "gain", gain, text))
    rows += [
        Row("releases", "releases", found.releases),
        Row("saturated", "target", found.saturated, f"{given['epsilon']:g}, {reach}"),
        *guarantee_rows(found.guarantee),
    ]
    if out is not None and chosen.designed is not None:
        rows.append(Row("saved", "saved as", str(chosen.designed.save(out))))
    title = f"{mechanism} on an {ball.norm.value} ball of radius {ball.radius:g}, dimension {ball.dimension}"
    record(title, rows, as_json)


def _setting(mechanism: Any) -> list[Row]:
    """Make rows of the mechanism's public numbers beside its ball, the calibrated one among them."""
    from quietbit.mechanism.registry import describe

    described = describe(mechanism)
    while "inner" in described:
        described |= described.pop("inner")
    rows = []
    for name, value in described.items():
        if name == "design":
            rows += design_rows(mechanism.designed)
        elif name == "profile":
            rows += profile_rows(mechanism.designed)
        elif name not in ("kind", "ball"):
            rows.append(Row(name, LABELS.get(name, name.replace("_", " ")), value))
    return rows
