"""``quietbit calibrate``: the least noise within a target, for releases or for masked sums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded
from quietbit.cli.options import check_outputs, find_design, option, takes, usual
from quietbit.cli.rows import gaussian_row, guarantee_rows, profile_rows
from quietbit.errors import InvalidParameter, check_int, require
from quietbit.target import MOST_CLIENTS, Trust

if TYPE_CHECKING:
    from quietbit.mechanism.calibrate import Calibration

__all__ = ["calibrate"]

LABELS = {"noise_multiplier": "noise / clip", "scale_multiplier": "scale / clip"}
SUMMED = "imvu"
# Options that `quietbit.calibrate` does not have by these names.
OF_SUMS = {"clients", "min_honest_clients"}
OF_COMMAND = {"mechanism", "norm", "dimension", "trust", "cohort", "out"} | OF_SUMS
# Options that secure aggregation has, too.
SHARED = {"epsilon", "delta", "adjacency", "releases", "coordinates"} | OF_COMMAND - {"cohort"}


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
    ball = quietbit.Ball(given["norm"], given["dimension"])
    trust = Trust(given["trust"])
    out = given["out"]
    options = {name: value for name, value in given.items() if name not in OF_COMMAND}
    mechanism = given["mechanism"]
    clients = None
    if trust is Trust.SECURE_AGGREGATION:
        mechanism = mechanism or SUMMED
        clients, options["honest"] = _clients(given)
    elif trust is Trust.LOCAL:
        _check_local(given)
    else:
        raise InvalidParameter.of("trust", "local or secure-aggregation", trust)
    if given["design"] is not None:
        options["design"] = find_design(given["design"])
    check_outputs(out)
    with progress_bar("Calibrating", quiet=json):
        calibration = quietbit.calibrate(mechanism, ball=ball, **options)
    rows = _rows(calibration, given, clients)
    if out is not None:
        designed = calibration.mechanism.designed
        rule = f"left out for {mechanism}, which has no design to save"
        if designed is None:
            raise InvalidParameter.of("out", rule, str(out))
        rows.append(Row("saved", "saved as", str(designed.save(out))))
    title = f"{mechanism} on an {ball.norm.value} ball of dimension {ball.dimension}"
    record(title, rows, json)


def _clients(given: dict[str, Any]) -> tuple[int, int]:
    """Return the clients of a sum, and how many of them are honest; refuse other options."""
    for name, value in given.items():
        left_out = name in SHARED or value is None
        require(left_out, name, value, "left out for secure aggregation")
    require(given["norm"] == "l2", "norm", given["norm"], "l2 for secure aggregation")
    if given["clients"] is None:
        raise InvalidParameter.of("clients", "given: the number of clients in a sum")
    clients = check_int(given["clients"], "clients", 2, MOST_CLIENTS)
    if given["min_honest_clients"] is None:
        return clients, clients
    return clients, check_int(given["min_honest_clients"], "min_honest_clients", 2, clients)


def _check_local(given: dict[str, Any]) -> None:
    """Refuse options of sums, and a release without a mechanism."""
    from quietbit.mechanism.registry import families

    for name in sorted(OF_SUMS):
        remedy = "add --trust secure-aggregation, or leave it out"
        require(given[name] is None, name, given[name], "left out for local trust", remedy)
    if given["mechanism"] is None:
        raise InvalidParameter.of("mechanism", f"given: one of {', '.join(families())}, or auto")


def _rows(calibration: Calibration, given: dict[str, Any], clients: int | None) -> list[Row]:
    """Return what the mechanism is, sends and costs, and what to expect of a round."""
    from quietbit.federation.compare import bytes_sent
    from quietbit.mechanism.registry import family_of

    mechanism = calibration.mechanism
    trust = calibration.guarantee.trust
    gaussian = calibration.gaussian_squared_error / (clients or 1)
    cohort = clients or given["cohort"] or 1
    expected = quietbit.forecast(mechanism, cohort=cohort, rounds=calibration.releases, trust=trust)
    layout = mechanism.layout
    width = layout.bits
    error = calibration.squared_error
    if clients is not None:
        width = clients.bit_length()
        error = calibration.error.of_mean(clients)
    bits = width * layout.count or 8 * layout.size
    per_parameter = bits / mechanism.ball.dimension
    rows = [Row("mechanism", "mechanism", family_of(mechanism) or given["mechanism"])]
    if calibration.reason:
        rows.append(Row("reason", "why", calibration.reason))
    rows += _setting(mechanism)
    if clients is not None:
        rows += [
            Row("clients", "clients in a sum", clients),
            Row("min_honest_clients", "honest clients", given["min_honest_clients"] or clients),
            Row("wire_bits", "bits of a code", width, f"{width}, the modulus of the masks"),
        ]
    size = bytes_sent(mechanism, trust, cohort)
    rows += [
        Row("payload_bytes", "bytes of a payload", size),
        Row("bits_per_parameter", "bits per parameter", per_parameter, rounded(per_parameter, 4)),
        Row("squared_error", "squared error at zero", error, rounded(error)),
        gaussian_row(error, gaussian),
        Row("noise", "noise / clip", expected.noise, rounded(expected.noise, 3)),
        Row("forecast", "what to expect", expected.sentence()),
    ]
    gain = calibration.error.gain
    if abs(gain - 1) > 1e-6:
        text = f"{rounded(gain, 4)}: small coordinates decode to this multiple of their value"
        rows.append(Row("gain", "gain", gain, f"{text}; divide the mean, or the step, by it"))
    reach = "met from below to 1 part in 10,000"
    if calibration.saturated:
        reach = "out of reach: this mechanism cannot be certified to reveal more"
    rows += [
        Row("releases", "releases", calibration.releases),
        Row("saturated", "target", calibration.saturated, f"{given['epsilon']:g}, {reach}"),
    ]
    return rows + guarantee_rows(calibration.guarantee)


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
