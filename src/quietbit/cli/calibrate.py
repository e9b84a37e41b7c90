"""``quietbit calibrate``: the least noise that meets a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded
from quietbit.cli.files import check_outputs
from quietbit.cli.options import ADJACENCY, NORM, SAMPLES, TRUST, chosen, find_design, option, refuse_delta_zero, takes
from quietbit.cli.rows import design_rows, expectation_rows, gaussian_row, guarantee_rows, profile_rows
from quietbit.errors import InvalidParameter, require

__all__ = ["calibrate"]

LABELS = {"noise_multiplier": "noise / radius", "scale_multiplier": "scale / radius"}
# What has no place in a question about sums.
REASONS = {
    "cohort": "left out for secure aggregation, where it is --clients",
    "samples": "left out for secure aggregation: sums protect whole clients",
}


OPTIONS = (
    option("epsilon", float, "Target for all releases of one party together.", ...),
    option("delta", float, "Delta of the guarantee.", ...),
    option("adjacency", str, ADJACENCY, ..., "WORD"),
    option("mechanism", str, "One of imvu, vmvu, mvu, gaussian, laplace, sign, skellam, or auto, which takes the best; "
           "may be left out for secure aggregation.", metavar="NAME"),
    option("releases", int, "How often the same party sends an update.", 1),
    option("bits", int, "Bits per code: 1 unless given, 16 for skellam."),
    option("levels", int, "Levels of the design (imvu, mvu)."),
    option("norm", str, NORM, "l2", "l1|l2"),
    option("radius", float, "Radius of that ball.", 1.0),
    option("dimension", int, "Parameters in an update.", 1000),
    option("beta", float, "Stretches small coordinates over the design's range (imvu)."),
    option("clamp", bool, "Cut inputs to [0, 1], as the published code does (imvu).", flag="--clamp"),
    option("decoder", str, "Of imvu: unbiased-at-zero (unless given) or alphabet, the paper's.", metavar="NAME"),
    option("design", str, "Keep this design and calibrate beta instead (imvu)."),
    option("keep", int, "Rotated coordinates that a client keeps, a power of two; all unless given (vmvu: a few)."),
    option("samples", int, SAMPLES),
    option("trust", str, TRUST, "local", "WORD"),
    option("clients", int, "Codes in a sum (secure-aggregation): others' bits are part of the noise."),
    option("min_honest_clients", int,
           "How many of them at least answer and do not collude with the server (all unless given)."),
    option("sampling_rate", float, "Chance that one of --samples is in a batch that its site draws in secret; for "
           "secure aggregation that a client is in a cohort (--secret-cohort)."),
    option("local_steps", int, "Private steps on such batches before a site sends the difference of models."),
    option("local_rate", float, "The learning rate of such a step."),
    option("secret_cohort", bool, "Nobody, the server included, learns who took part.", False, flag="--secret-cohort"),
    option("cohort", int, "Clients in a round, to be told what to expect of it; one unless given."),
    option("plot", Path, "Draw error and bits over the number of clients (secure-aggregation)."),
    option("out", Path, "Save the design or profile found (imvu, mvu, vmvu)."),
)  # fmt: skip
# What says how noise is made under local trust, and is chosen where sums are seen alone.
OWN = "levels beta clamp decoder design samples local_steps local_rate"


@takes(OPTIONS)
def calibrate(json: JsonOption = False, **given: Any) -> None:
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
    norm, trust, clients = given["norm"], given["trust"], given["clients"]
    target = chosen(given, "epsilon delta adjacency releases keep")
    target["ball"] = quietbit.Ball(norm, given["radius"], given["dimension"])
    out, plot, rate = given["out"], given["plot"], given["sampling_rate"]
    if trust == quietbit.Trust.SECURE_AGGREGATION.value:
        from quietbit.cli.calibrate_sum import calibrate_secure_sum

        mechanism = given["mechanism"]
        require(mechanism in (None, "imvu"), "mechanism", mechanism, "imvu, or left out, for secure aggregation")
        for name, value in chosen(given, f"{OWN} cohort").items():
            require(value is None, name, value, REASONS.get(name, "left out: secure aggregation chooses it"))
        if clients is None:
            raise InvalidParameter.of("clients", "given: how many codes a sum is over")
        target |= {**chosen(given, "clients min_honest_clients"), "bits": 1 if given["bits"] is None else given["bits"]}
        calibrate_secure_sum(target, rate, given["secret_cohort"], plot, out, json)
        return
    require(trust == quietbit.Trust.LOCAL.value, "trust", trust, "local or secure-aggregation")
    for name, unused in chosen(given, "clients min_honest_clients plot").items():
        require(unused is None, name, str(unused), "left out for local trust (it is for secure-aggregation)")
    if given["secret_cohort"] or (rate is not None and given["samples"] is None):
        raise InvalidParameter(
            "Subsampling amplifies nothing where the server sees who sent what: leave --sampling-rate and "
            "--secret-cohort out, say --trust secure-aggregation if only sums are seen and nobody learns the cohort, "
            "or give --samples beside the rate at which a site draws them in secret."
        )
    target |= chosen(given, f"{OWN} bits sampling_rate")
    _calibrate(given["mechanism"], target, 1 if given["cohort"] is None else given["cohort"], out, json)


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
        refuse_delta_zero(given["delta"], ball.norm)
    if given["design"] is not None:
        given["design"] = find_design(given["design"])
    check_outputs(out)
    with progress_bar("Calibrating", quiet=as_json):
        found = quietbit.calibrate(mechanism, **given)
    made, layout, gain = found.mechanism, found.mechanism.layout, found.error.gain
    per_parameter = (8 * layout.size if layout.bits == 0 else layout.bits * layout.count) / ball.dimension
    reach = "met from below to 1 part in 10,000"
    if found.saturated:
        reach = "out of reach: this mechanism cannot be certified to reveal more"
    rows = [
        Row("mechanism", "mechanism", family_of(made) or mechanism),
        *([Row("reason", "why", found.reason)] if found.reason else []),
        *_setting(made),
        Row("payload_bytes", "bytes of a payload", Header.of(made).size),
        Row("bits_per_parameter", "bits per parameter", per_parameter, rounded(per_parameter, 4)),
        Row("squared_error", "squared error at zero", found.squared_error, rounded(found.squared_error)),
        gaussian_row(found.squared_error, found.gaussian_squared_error),
        *expectation_rows(quietbit.expectation(made, cohort=cohort, rounds=found.releases)),
    ]
    if abs(gain - 1) > 1e-6:
        text = f"{rounded(gain, 4)}: small coordinates decode to this times their value; divide by it, or the step"
        rows.append(Row("gain", "gain", gain, text))
    rows += [
        Row("releases", "releases", found.releases),
        Row("saturated", "target", found.saturated, f"{given['epsilon']:g}, {reach}"),
        *guarantee_rows(found.guarantee),
    ]
    if out is not None and made.designed is not None:
        rows.append(Row("saved", "saved as", str(made.designed.save(out))))
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
