"""``quietbit calibrate``: the least noise that meets a target, for single releases or for sums behind masks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded
from quietbit.cli.options import check_outputs, chosen, find_design, option, takes, usual
from quietbit.cli.rows import gaussian_row, guarantee_rows, profile_rows
from quietbit.errors import InvalidParameter, require

if TYPE_CHECKING:
    from quietbit.mechanism.central_sum import SumCalibration

__all__ = ["calibrate"]

LABELS = {"noise_multiplier": "noise / radius", "scale_multiplier": "scale / radius"}
REASONS = {
    "cohort": "which counts --clients",
    "samples": "which protects whole clients",
    "sampling_rate": "whose server learns who took part",
}
# What says how noise is made under local trust, and is chosen where sums are seen alone.
OWN = "levels beta clamp decoder design samples local_steps local_rate"


@takes(
    option("epsilon", float, "Target for all releases of one party together.", ...),
    usual("delta", ...),
    usual("adjacency", ...),
    option(
        "mechanism",
        str,
        "One of imvu, vmvu, gaussian, or auto, which takes the best; or another package's; "
        "may be left out for secure aggregation.",
        metavar="NAME",
    ),
    usual("releases", 1),
    option("bits", int, "Bits per code: 1 unless given, 16 for skellam."),
    option("levels", int, "Levels of the design (imvu, mvu)."),
    usual("norm", "l2"),
    usual("radius", 1.0),
    usual("dimension", 1000),
    usual("beta"),
    usual("clamp"),
    option(
        "decoder",
        str,
        "Of imvu: unbiased-at-zero (unless given) or alphabet, the paper's.",
        metavar="NAME",
    ),
    option("design", str, "Keep this design and calibrate beta instead (imvu)."),
    option(
        "keep",
        int,
        "Rotated coordinates that a client keeps, a power of two; all unless given (vmvu: a few).",
    ),
    usual("samples"),
    option("trust", str, "Who may look: local or secure-aggregation.", "local", "WORD"),
    option(
        "clients", int, "Codes in a sum (secure-aggregation): others' bits are part of the noise."
    ),
    option(
        "min_honest_clients",
        int,
        "How many of them at least answer and do not collude with the server (all unless given).",
    ),
    option(
        "sampling_rate",
        float,
        "Chance that one of --samples is in a batch that its site draws in secret.",
    ),
    option(
        "local_steps",
        int,
        "Private steps on such batches before a site sends the difference of models.",
    ),
    option("local_rate", float, "The learning rate of such a step."),
    option("cohort", int, "Clients in a round, to be told what to expect of it; one unless given."),
    option("out", Path, "Save the design or profile found (imvu, mvu, vmvu)."),
)
def calibrate(json: JsonOption = False, **given: Any) -> None:
    """Find the most accurate mechanism of its kind within a privacy target.

    With --trust secure-aggregation the server sees sums of codes alone: their account meets the
    target, and releases are the sums a client takes part in. With --cohort the answer says what to
    expect of a round; quietbit compare shows all mechanisms.

    Example: quietbit calibrate --mechanism imvu --bits 1 --epsilon 3 --delta 1e-5 --releases 50
    --adjacency replace-one

    Example: quietbit calibrate --mechanism vmvu --epsilon 4 --delta 0 --adjacency replace-one
    --dimension 1000000

    Example: quietbit calibrate --mechanism gaussian --samples 5000 --sampling-rate 0.1 --epsilon 3
    --delta 1e-5 --releases 50 --adjacency zero-out

    Example: quietbit calibrate --trust secure-aggregation --clients 1000 --epsilon 1 --delta 1e-5
    --releases 10 --adjacency zero-out --dimension 100000
    """
    target = chosen(given, "epsilon delta adjacency releases keep")
    target["ball"] = quietbit.Ball(given["norm"], given["radius"], given["dimension"])
    ways = {"local": _calibrate, "secure-aggregation": _calibrate_sum}
    require(given["trust"] in ways, "trust", given["trust"], "local or secure-aggregation")
    ways[given["trust"]](target, given, json)


def _calibrate(target: dict[str, Any], given: dict[str, Any], as_json: bool) -> None:
    """Answer for one client's release, under local trust."""
    from quietbit.mechanism.abilities import Designed
    from quietbit.mechanism.registry import families, family, family_of
    from quietbit.wire.payload import Header

    for name, unused in chosen(given, "clients min_honest_clients").items():
        require(
            unused is None,
            name,
            str(unused),
            "left out for local trust (it is for secure-aggregation)",
        )
    if given["sampling_rate"] is not None and given["samples"] is None:
        raise InvalidParameter.of(
            "samples", "given beside the rate at which a site draws them in secret"
        )
    mechanism = given["mechanism"]
    out = given["out"]
    ball = target["ball"]
    if mechanism is None:
        raise InvalidParameter.of("mechanism", f"given: one of {', '.join(families())}, or auto")
    has_design = mechanism in families() and family(mechanism).strength == "design_epsilon"
    require(
        out is None or has_design,
        "out",
        str(out),
        f"left out for {mechanism}, which has no design to save",
    )
    target |= chosen(given, f"{OWN} bits sampling_rate")
    if given["design"] is not None:
        target["design"] = find_design(given["design"])
    check_outputs(out)
    with progress_bar("Calibrating", quiet=as_json):
        found = quietbit.calibrate(mechanism, **target)
    made = found.mechanism
    layout = found.mechanism.layout
    gain = found.error.gain
    if given["cohort"] is None:
        cohort = 1
    else:
        cohort = given["cohort"]
    expected = quietbit.expectation(made, cohort=cohort, rounds=found.releases)
    per_parameter = (
        8 * layout.size if layout.bits == 0 else layout.bits * layout.count
    ) / ball.dimension
    reach = "met from below to 1 part in 10,000"
    if found.saturated:
        reach = "out of reach: this mechanism cannot be certified to reveal more"
    rows = [
        Row("mechanism", "mechanism", family_of(made) or mechanism),
        *([Row("reason", "why", found.reason)] if found.reason else []),
        *_setting(made),
        Row("payload_bytes", "bytes of a payload", Header.of(made).size),
        Row("bits_per_parameter", "bits per parameter", per_parameter, rounded(per_parameter, 4)),
        Row(
            "squared_error",
            "squared error at zero",
            found.squared_error,
            rounded(found.squared_error),
        ),
        gaussian_row(found.squared_error, found.gaussian_squared_error),
        Row("noise", "noise / clip", expected.noise, rounded(expected.noise, 3)),
        Row("expectation", "what to expect", expected.sentence()),
    ]
    if abs(gain - 1) > 1e-6:
        text = f"{rounded(gain, 4)}: small coordinates decode to this times their value; divide by it, or the step"
        rows.append(Row("gain", "gain", gain, text))
    rows += [
        Row("releases", "releases", found.releases),
        Row("saturated", "target", found.saturated, f"{given['epsilon']:g}, {reach}"),
        *guarantee_rows(found.guarantee),
    ]
    designed = Designed.nearest(made)
    if out is not None and designed is not None:
        rows.append(Row("saved", "saved as", str(designed.designed.save(out))))
    title = f"{mechanism} on an {ball.norm.value} ball of radius {ball.radius:g}, dimension {ball.dimension}"
    record(title, rows, as_json)


def _design(design: quietbit.Design, note: str = "") -> list[Row]:
    """Say which design it is, with a ``note`` at its end."""
    spec = design.spec
    facts = {
        name: getattr(spec, name) for name in ("input_levels", "output_bits", "epsilon", "privacy")
    }
    shown = f"{spec.input_levels} levels, {spec.output_bits}-bit symbols, {spec.privacy} epsilon {spec.epsilon:.6g}"
    return [
        Row("design", "design", facts, shown + note),
        Row("identity", "identity", design.identity()),
    ]


def _setting(mechanism: Any) -> list[Row]:
    """Make rows of the mechanism's public numbers beside its ball, the calibrated one among them."""
    from quietbit.mechanism.abilities import Designed
    from quietbit.mechanism.registry import describe

    described = describe(mechanism)
    while "inner" in described:
        described |= described.pop("inner")
    rows = []
    designed: Any = Designed.nearest(mechanism)
    for name, value in described.items():
        if name == "design":
            rows += _design(designed.designed)
        elif name == "profile":
            rows += profile_rows(designed.designed)
        elif name not in ("kind", "ball"):
            rows.append(Row(name, LABELS.get(name, name.replace("_", " ")), value))
    return rows


def _calibrate_sum(target: dict[str, Any], given: dict[str, Any], as_json: bool) -> None:
    """Answer for sums of codes behind masks."""
    from quietbit.mechanism.central_sum import calibrate_sum

    out = given["out"]
    ball = target["ball"]
    name = given["mechanism"]
    require(name in (None, "imvu"), "mechanism", name, "imvu, or left out, for secure aggregation")
    for name, value in chosen(given, f"{OWN} cohort sampling_rate").items():
        reason = REASONS.get(name, "which chooses it")
        require(value is None, name, value, f"left out for secure aggregation, {reason}")
    if given["clients"] is None:
        raise InvalidParameter.of("clients", "given: how many codes a sum is over")
    require(ball.norm is quietbit.Norm.L2, "norm", ball.norm.value, "l2 for secure aggregation")
    check_outputs(out)
    if given["bits"] is None:
        bits = 1
    else:
        bits = given["bits"]
    with progress_bar("Calibrating", quiet=as_json):
        found = calibrate_sum(**target, **chosen(given, "clients min_honest_clients"), bits=bits)
    rows = _sum_rows(found, given["epsilon"])
    if out is not None:
        rows.append(Row("saved", "saved as", str(found.codes.design.save(out))))
    record(
        f"secure sums of {found.clients:,} clients, {ball.dimension:,} parameters", rows, as_json
    )


def _sum_rows(found: SumCalibration, epsilon: float) -> list[Row]:
    codes = found.codes
    guarantee = found.guarantee
    sure = found.min_honest_clients
    spec = codes.design.spec
    kept = codes.ball.dimension
    expected = quietbit.expectation(
        found.mechanism, cohort=found.clients, rounds=found.releases, trust=guarantee.trust
    )
    cut = rounded(found.clamped_at, 3)
    error = found.squared_error
    rows = [
        *_design(
            codes.design,
            "" if spec.output_bits == 1 else f": sums of {spec.outputs - 1} equal bits",
        ),
        Row("beta", "beta", codes.beta),
        Row("clamp", "inputs", True, f"clamped: coordinates beyond {cut} are cut to it"),
        Row(
            "clamped_at",
            "clamped at",
            found.clamped_at,
            f"{rounded(found.clamped_at / codes.ball.radius, 3)} radii",
        ),
        Row(
            "wire_bits",
            "bits per parameter",
            found.wire_bits,
            f"{found.wire_bits}, the modulus of the masks",
        ),
        Row("squared_error", "squared error at zero", error, f"{rounded(error)} of the mean"),
        Row("noise", "noise / clip", expected.noise, rounded(expected.noise, 3)),
        Row("expectation", "what to expect", expected.sentence()),
    ]
    if kept < found.mechanism.ball.dimension:
        lost = found.projection_error
        text = f"{rounded(lost)} of it, from a mean of norm {found.mean_norm:g} on {kept:,} coordinates, shared by all"
        rows += [
            Row("keep", "kept coordinates", kept),
            Row("projection_error", "projection", lost, text),
        ]
    rows += [
        Row("clients", "clients in a sum", found.clients),
        Row(
            "min_honest_clients",
            "counted on",
            sure,
            f"{sure:,} that answer and do not collude with the server",
        ),
        Row("releases", "sums per client", found.releases),
    ]
    reach = (
        "met from below" if not found.saturated else "out of reach: the largest beta spends less"
    )
    rows.append(Row("saturated", "target", found.saturated, f"{epsilon:g}, {reach}"))
    return rows + guarantee_rows(guarantee, "all sums")
