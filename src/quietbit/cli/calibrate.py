"""``quietbit calibrate``: the least noise that meets a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import quietbit
from quietbit._validate import require
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded
from quietbit.cli.files import check_outputs
from quietbit.cli.options import (
    AdjacencyOption,
    BetaOption,
    ClampOption,
    DeltaOption,
    DimensionOption,
    NormOption,
    RadiusOption,
    ReleasesOption,
    TrustOption,
    UnitOption,
    adjacency_of,
    find_design,
    norm_of,
    refuse_delta_zero,
    trust_of,
    unit_of,
)

if TYPE_CHECKING:
    from quietbit import Design, Mechanism

__all__ = ["calibrate"]


def calibrate(
    epsilon: Annotated[float, typer.Option(help="Target for all releases of one party together.")],
    delta: DeltaOption,
    adjacency: AdjacencyOption,
    mechanism: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="One of imvu, mvu, gaussian, laplace, sign, skellam; may be left out for secure aggregation.",
        ),
    ] = None,
    releases: ReleasesOption = 1,
    bits: Annotated[int | None, typer.Option(help="Bits per code: 1 unless said, 16 for skellam.")] = None,
    levels: Annotated[int | None, typer.Option(help="Levels of the design (imvu, mvu).")] = None,
    norm: NormOption = "l2",
    radius: RadiusOption = 1.0,
    dimension: DimensionOption = 1000,
    beta: BetaOption = 1.0,
    clamp: ClampOption = False,
    decoder: Annotated[str, typer.Option(metavar="NAME", help="Of imvu: alphabet or unbiased-at-zero.")] = "alphabet",
    design: Annotated[str | None, typer.Option(help="Keep this design and calibrate beta instead (imvu).")] = None,
    unit: UnitOption = "client",
    trust: TrustOption = "local",
    clients: Annotated[
        int | None, typer.Option(help="Codes in a sum (secure-aggregation): others' bits are part of the noise.")
    ] = None,
    honest: Annotated[
        int | None,
        typer.Option(help="How many of them at least answer and do not collude with the server (all unless said)."),
    ] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Chance that a client is in a cohort; needs --secret-cohort.")
    ] = None,
    secret_cohort: Annotated[
        bool, typer.Option("--secret-cohort", help="Nobody, the server included, learns who took part.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw error and bits over the number of clients (secure-aggregation).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Save the design found, as JSON (imvu, mvu).")] = None,
    json: JsonOption = False,
) -> None:
    """Find the most accurate mechanism of its kind within a privacy target.

    With --trust secure-aggregation the server sees sums of codes alone: their account meets the target,
    releases are the sums a client takes part in, and the answer is compared with the alternatives.

    Example: quietbit calibrate --mechanism imvu --bits 1 --epsilon 3 --delta 1e-5 --releases 50
    --adjacency replace-one

    Example: quietbit calibrate --trust secure-aggregation --clients 1000 --epsilon 1 --delta 1e-5 --releases 10
    --adjacency zero-out --dimension 100000 --plot sums.png
    """
    if trust_of(trust) is quietbit.Trust.SECURE_AGGREGATION:
        from quietbit.cli.calibrate_sum import calibrate_secure_sum

        unused = {"levels": levels, "beta": beta, "clamp": clamp, "design": design, "decoder": decoder}
        calibrate_secure_sum(
            ball=quietbit.Ball(norm_of(norm), radius, dimension),
            mechanism=mechanism,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency_of(adjacency),
            unit=unit_of(unit),
            releases=releases,
            bits=bits,
            clients=clients,
            honest=honest,
            sampling_rate=sampling_rate,
            secret_cohort=secret_cohort,
            unused=unused,
            plot=plot,
            out=out,
            as_json=json,
        )
        return
    _refuse_sums(trust, clients=clients, honest=honest, plot=plot)
    if sampling_rate is not None or secret_cohort:
        raise quietbit.InvalidParameter(
            "Subsampling amplifies nothing where the server sees who sent what: leave --sampling-rate and "
            "--secret-cohort out, or say --trust secure-aggregation if only sums are seen and nobody learns the cohort."
        )
    if mechanism is None:
        raise quietbit.InvalidParameter("mechanism must be given: one of imvu, mvu, gaussian, laplace, sign, skellam.")
    kept = out is None or mechanism in ("imvu", "mvu")
    require(kept, "out", str(out), f"left out for {mechanism}, which has no design to save")
    ball = quietbit.Ball(norm_of(norm), radius, dimension)
    refuse_delta_zero(delta, ball.norm)
    check_outputs(out)
    with progress_bar("Calibrating", quiet=json):
        found = quietbit.calibrate(
            cast(Any, mechanism),
            ball=ball,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency_of(adjacency),
            releases=releases,
            bits=bits,
            levels=levels,
            beta=beta,
            clamp=clamp,
            decoder=cast(Any, decoder),
            design=find_design(design) if design is not None else None,
            unit=unit_of(unit),
            trust=trust_of(trust),
        )
    chosen, guarantee = found.mechanism, found.guarantee
    per_parameter = chosen.bits * chosen.code_count / dimension
    ratio = found.squared_error / found.gaussian_squared_error
    rows = [
        Row("mechanism", "mechanism", mechanism),
        *_setting(chosen),
        Row("bits_per_parameter", "bits per parameter", per_parameter, rounded(per_parameter, 4)),
        Row("squared_error", "squared error at zero", found.squared_error, rounded(found.squared_error)),
        Row(
            "gaussian_squared_error",
            "Gaussian noise's",
            found.gaussian_squared_error,
            f"{rounded(found.gaussian_squared_error)} for the same target; ours is {rounded(ratio, 4)} times that",
        ),
        Row("releases", "releases", found.releases),
        Row("epsilon_upper", "epsilon of all releases", guarantee.epsilon_upper),
        Row(
            "saturated",
            "target",
            found.saturated,
            f"{epsilon:g}, out of reach: this mechanism cannot be certified to reveal more"
            if found.saturated
            else f"{epsilon:g}, met from below to 1 part in 10,000",
        ),
        Row("delta", "delta", guarantee.delta),
        Row("adjacency", "adjacency", guarantee.adjacency.value),
        Row("unit", "unit", guarantee.unit.value),
        Row("trust", "trust", guarantee.trust.value),
        Row("guarantee", "guarantee", guarantee.sentence()),
    ]
    table = _design(chosen)
    if out is not None and table is not None:
        rows.append(Row("saved", "saved as", str(table.save(out))))
    record(f"{mechanism} on an {norm} ball of radius {radius:g}, dimension {dimension}", rows, json)


def _refuse_sums(trust: str, **given: Any) -> None:
    for name, value in given.items():
        require(value is None, name, str(value), f"left out for {trust} trust (it is for secure-aggregation)")


def _design(mechanism: Mechanism) -> Design | None:
    return mechanism.design if isinstance(mechanism, quietbit.InterpolatedMVU | quietbit.DitheredMVU) else None


def _setting(mechanism: Mechanism) -> list[Row]:
    """The number that was calibrated, and what it belongs to."""
    if isinstance(mechanism, quietbit.Sign):
        return _setting(mechanism.inner)
    if isinstance(mechanism, quietbit.Laplace):
        return [Row("scale_multiplier", "scale / radius", mechanism.scale_multiplier)]
    if isinstance(mechanism, quietbit.Gaussian | quietbit.Skellam):
        return [Row("noise_multiplier", "noise / radius", mechanism.noise_multiplier)]
    table = _design(mechanism)
    if table is None:
        return []
    spec = table.spec
    shown = (
        f"{spec.input_levels} levels, {spec.output_bits}-bit symbols, {spec.privacy} epsilon {rounded(spec.epsilon)}"
    )
    rows = [
        Row(
            "design",
            "design",
            {
                "input_levels": spec.input_levels,
                "output_bits": spec.output_bits,
                "epsilon": spec.epsilon,
                "privacy": spec.privacy,
            },
            shown,
        ),
        Row("identity", "identity", table.identity()),
    ]
    if isinstance(mechanism, quietbit.InterpolatedMVU):
        rows.append(Row("beta", "beta", mechanism.beta))
    return rows
