"""``quietbit calibrate``: the least noise within a target, for releases or for masked sums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded
from quietbit.cli.options import check_outputs, chosen, find_design, option, takes, usual
from quietbit.cli.rows import gaussian_row, guarantee_rows, profile_rows
from quietbit.errors import InvalidParameter, check_int, require
from quietbit.target import MOST_CLIENTS

if TYPE_CHECKING:
    from quietbit.mechanism.calibrate import Calibration

__all__ = ["calibrate"]

LABELS = {"noise_multiplier": "noise / clip", "scale_multiplier": "scale / clip"}
# What to do instead of an option that secure aggregation does not have.
REMEDIES = {
    "bits": "a code of a sum has one bit",
    "cohort": "give --clients",
    "samples": "sums protect whole clients",
    "sampling_rate": "the server learns which clients take part",
}
# Options that secure aggregation does not have.
LOCAL_ONLY = "levels beta clamp decoder design samples local_steps local_rate"


@takes(
    option("epsilon", float, "The most epsilon of all releases of one client together.", ...),
    usual("delta", ...),
    usual("adjacency", ...),
    option(
        "mechanism",
        str,
        "imvu, vmvu, gaussian, a mechanism of another package, or auto: the best of all. "
        "Secure aggregation needs none.",
        metavar="NAME",
    ),
    usual("releases", 1),
    option("bits", int, "Bits per code: 1 unless given, and 16 for skellam."),
    option("levels", int, "Levels of the design (imvu, mvu)."),
    usual("norm", "l2"),
    usual("dimension", 1000),
    usual("beta"),
    usual("clamp"),
    option(
        "decoder",
        str,
        "For imvu: unbiased-at-zero (unless given), or alphabet, which the paper uses.",
        metavar="NAME",
    ),
    option("design", str, "Use this design, a file or a name, and calibrate beta (imvu)."),
    option(
        "coordinates",
        int,
        "Send this many rotated coordinates, a power of two; all unless given (vmvu: a few).",
    ),
    usual("samples"),
    option("trust", str, "Trust model: local or secure-aggregation.", "local", "WORD"),
    option("clients", int, "Clients in a sum (secure aggregation): their noise adds up."),
    option(
        "min_honest_clients",
        int,
        "The fewest of them that answer and do not collude with the server; all unless given.",
    ),
    option(
        "sampling_rate",
        float,
        "Probability that one of --samples is in a batch, which its site draws in secret.",
    ),
    option(
        "local_steps",
        int,
        "Private steps on such batches, before a site sends the difference of its model.",
    ),
    option("local_rate", float, "Learning rate of such a step."),
    option("cohort", int, "Clients in a round, for the expected noise; one unless given."),
    option("out", Path, "Save the design or profile in this file (imvu, mvu, vmvu)."),
)
def calibrate(json: JsonOption = False, **given: Any) -> None:
    """Find the most accurate parameters of a mechanism within a privacy target.

    With --trust secure-aggregation the server sees sums only: the target is for the sums, and
    --releases is the number of sums that a client takes part in. With --cohort the answer includes
    the noise to expect in a round. To choose a mechanism, see quietbit compare.

    Example: quietbit calibrate --mechanism imvu --bits 1 --epsilon 3 --delta 1e-5 --releases 50
    --adjacency replace-one

    Example: quietbit calibrate --mechanism vmvu --epsilon 4 --delta 0 --adjacency replace-one
    --dimension 1000000

    Example: quietbit calibrate --mechanism gaussian --samples 5000 --sampling-rate 0.1 --epsilon 3
    --delta 1e-5 --releases 50 --adjacency zero-out

    Example: quietbit calibrate --trust secure-aggregation --clients 1000 --epsilon 1 --delta 1e-5
    --releases 10 --adjacency zero-out --dimension 100000
    """
    target = chosen(given, "epsilon delta adjacency releases coordinates")
    target["ball"] = quietbit.Ball(given["norm"], given["dimension"])
    trust = given["trust"]
    if trust == "local":
        _calibrate(target, given, json)
    elif trust == "secure-aggregation":
        _calibrate_sum(target, given, json)
    else:
        raise InvalidParameter.of("trust", "local or secure-aggregation", trust)


def _calibrate(target: dict[str, Any], given: dict[str, Any], as_json: bool) -> None:
    """Calibrate one client's release, under local trust."""
    from quietbit.mechanism.registry import families, family, family_of
    from quietbit.wire.payload import Header

    for name, value in chosen(given, "clients min_honest_clients").items():
        remedy = "add --trust secure-aggregation, or leave it out"
        require(value is None, name, value, "left out for local trust", remedy)
    if given["sampling_rate"] is not None and given["samples"] is None:
        raise InvalidParameter.of("samples", "given with --sampling-rate")
    mechanism = given["mechanism"]
    out = given["out"]
    ball = target["ball"]
    if mechanism is None:
        raise InvalidParameter.of("mechanism", f"given: one of {', '.join(families())}, or auto")
    has_design = mechanism in families() and family(mechanism).strength == "design_epsilon"
    rule = f"left out for {mechanism}, which has no design to save"
    require(out is None or has_design, "out", str(out), rule)
    target |= chosen(given, f"{LOCAL_ONLY} bits sampling_rate")
    if given["design"] is not None:
        target["design"] = find_design(given["design"])
    check_outputs(out)
    with progress_bar("Calibrating", quiet=as_json):
        calibration = quietbit.calibrate(mechanism, **target)
    calibrated = calibration.mechanism
    cohort = 1 if given["cohort"] is None else given["cohort"]
    expected = quietbit.forecast(calibrated, cohort=cohort, rounds=calibration.releases)
    layout = calibrated.layout
    bits = layout.bits * layout.count
    if layout.bits == 0:
        bits = 8 * layout.size
    per_parameter = bits / ball.dimension
    error = calibration.squared_error
    gain = calibration.error.gain
    reach = "met from below to 1 part in 10,000"
    if calibration.saturated:
        reach = "out of reach: this mechanism cannot be certified to reveal more"
    rows = [Row("mechanism", "mechanism", family_of(calibrated) or mechanism)]
    if calibration.reason:
        rows.append(Row("reason", "why", calibration.reason))
    rows += _setting(calibrated)
    rows += [
        Row("payload_bytes", "bytes of a payload", Header.of(calibrated).size),
        Row("bits_per_parameter", "bits per parameter", per_parameter, rounded(per_parameter, 4)),
        Row("squared_error", "squared error at zero", error, rounded(error)),
        gaussian_row(error, calibration.gaussian_squared_error),
        Row("noise", "noise / clip", expected.noise, rounded(expected.noise, 3)),
        Row("forecast", "what to expect", expected.sentence()),
    ]
    if abs(gain - 1) > 1e-6:
        text = f"{rounded(gain, 4)}: small coordinates decode to this multiple of their value"
        rows.append(Row("gain", "gain", gain, f"{text}; divide the mean, or the step, by it"))
    rows += [
        Row("releases", "releases", calibration.releases),
        Row("saturated", "target", calibration.saturated, f"{given['epsilon']:g}, {reach}"),
    ]
    rows += guarantee_rows(calibration.guarantee)
    designed = calibrated.designed
    if out is not None and designed is not None:
        rows.append(Row("saved", "saved as", str(designed.save(out))))
    title = f"{mechanism} on an {ball.norm.value} ball of dimension {ball.dimension}"
    record(title, rows, as_json)


def _design(design: quietbit.Design) -> list[Row]:
    """Return the rows of a design."""
    spec = design.spec
    facts = {
        "input_levels": spec.input_levels,
        "output_bits": spec.output_bits,
        "epsilon": spec.epsilon,
        "privacy": spec.privacy,
    }
    symbols = f"{spec.input_levels} levels, {spec.output_bits}-bit symbols"
    shown = f"{symbols}, {spec.privacy} epsilon {spec.epsilon:.6g}"
    return [
        Row("design", "design", facts, shown),
        Row("identity", "identity", design.identity()),
    ]


def _setting(mechanism: Any) -> list[Row]:
    """Return the rows of the mechanism's public parameters, without its ball."""
    from quietbit.mechanism.registry import describe

    described = describe(mechanism)
    while "inner" in described:
        described |= described.pop("inner")
    rows = []
    designed = mechanism.designed
    for name, value in described.items():
        if name == "design":
            rows += _design(designed)
        elif name == "profile":
            rows += profile_rows(designed)
        elif name not in ("kind", "ball"):
            rows.append(Row(name, LABELS.get(name, name.replace("_", " ")), value))
    return rows


def _calibrate_sum(target: dict[str, Any], given: dict[str, Any], as_json: bool) -> None:
    """Calibrate masked sums of codes."""
    out = given["out"]
    ball = target["ball"]
    name = given["mechanism"]
    require(name in (None, "imvu"), "mechanism", name, "imvu, or left out, for secure aggregation")
    for name, value in chosen(given, f"{LOCAL_ONLY} bits cohort sampling_rate").items():
        remedy = REMEDIES.get(name, "it is calibrated")
        require(value is None, name, value, "left out for secure aggregation", remedy)
    if given["clients"] is None:
        raise InvalidParameter.of("clients", "given: the number of clients in a sum")
    require(ball.norm is quietbit.Norm.L2, "norm", ball.norm.value, "l2 for secure aggregation")
    check_outputs(out)
    clients = check_int(given["clients"], "clients", 2, MOST_CLIENTS)
    honest = clients
    if given["min_honest_clients"] is not None:
        honest = check_int(given["min_honest_clients"], "min_honest_clients", 2, clients)
    with progress_bar("Calibrating", quiet=as_json):
        calibration = quietbit.calibrate("imvu", **target, honest=honest)
    rows = _sum_rows(calibration, given["epsilon"], clients, honest)
    if out is not None:
        design = calibration.mechanism.designed
        rows.append(Row("saved", "saved as", str(cast(Any, design).save(out))))
    title = f"secure sums of {clients:,} clients, {ball.dimension:,} parameters"
    record(title, rows, as_json)


def _sum_rows(calibration: Calibration, epsilon: float, clients: int, honest: int) -> list[Row]:

    mechanism: Any = calibration.mechanism
    codes: Any = mechanism.core
    guarantee = calibration.guarantee
    kept = codes.ball.dimension
    expected = quietbit.forecast(
        mechanism, cohort=clients, rounds=calibration.releases, trust=guarantee.trust
    )
    limit = 1 / max(codes.beta, 1.0)
    clamped = f"clamped: coordinates beyond {rounded(limit, 3)} are cut to it"
    bits = clients.bit_length()
    error = calibration.error.of_mean(clients)
    rows = _design(codes.design)
    rows += [
        Row("beta", "beta", codes.beta),
        Row("clamp", "inputs", True, clamped),
        Row("clamped_at", "clamped at", limit, f"{rounded(limit, 3)} clips"),
        Row("wire_bits", "bits per parameter", bits, f"{bits}, the modulus of the masks"),
        Row("squared_error", "squared error at zero", error, f"{rounded(error)} of the mean"),
        Row("noise", "noise / clip", expected.noise, rounded(expected.noise, 3)),
        Row("forecast", "what to expect", expected.sentence()),
    ]
    if kept < mechanism.ball.dimension:
        lost = calibration.error.shared
        text = f"{rounded(lost)} of it, from a mean of norm 1 on {kept:,} coordinates of all"
        rows += [
            Row("coordinates", "kept coordinates", kept),
            Row("projection_error", "projection", lost, text),
        ]
    counted = f"{honest:,} that answer and do not collude with the server"
    reach = "met from below"
    if calibration.saturated:
        reach = "out of reach: the largest beta spends less"
    rows += [
        Row("clients", "clients in a sum", clients),
        Row("min_honest_clients", "honest clients", honest, counted),
        Row("releases", "sums per client", calibration.releases),
        Row("saturated", "target", calibration.saturated, f"{epsilon:g}, {reach}"),
    ]
    return rows + guarantee_rows(guarantee, "all sums")
