"""``quietbit calibrate --trust secure-aggregation``: codes whose sums meet a target, beside the alternatives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import quietbit
from quietbit.cli.console import Report, Row, column_table, progress_bar, record, rounded, rounded_up
from quietbit.cli.files import check_outputs
from quietbit.cli.rows import design_rows, expectation_rows, guarantee_rows
from quietbit.errors import InvalidParameter, check_real, require
from quietbit.target import Target

if TYPE_CHECKING:
    from quietbit.mechanism.central_sum import SumCalibration

__all__ = ["calibrate_secure_sum"]

SEEN = {"secure-aggregation": "sums", "local": "each payload"}


def calibrate_secure_sum(
    given: dict[str, Any], rate: float | None, secret: bool, plot: Path | None, out: Path | None, as_json: bool
) -> None:
    """Calibrate, compare, and draw where asked."""
    from quietbit.mechanism.central_sum import calibrate_sum, compare_calibration

    ball, epsilon = given["ball"], given["epsilon"]
    require(ball.norm is quietbit.Norm.L2, "norm", ball.norm.value, "l2 for secure aggregation")
    population = _population(given["clients"], rate, secret)
    check_outputs(out, figures=(plot,))
    with progress_bar("Calibrating", quiet=as_json):
        found = calibrate_sum(**given, population=population)
        lines = compare_calibration(found, epsilon)
    rows = _rows(found, epsilon)
    if out is not None:
        rows.append(Row("saved", "saved as", str(found.codes.design.save(out))))
    if plot is not None:
        with progress_bar("Drawing", quiet=as_json) as report:
            rows.append(Row("plot", "drawn as", str(_draw(found, epsilon, plot, report))))
    names = ("name", "bits", "epsilon_upper", "squared_error")
    facts = [{**{name: getattr(line, name) for name in names}, "trust": line.trust.value} for line in lines]
    if as_json:
        rows.append(Row("comparison", "comparison", facts))
    record(f"secure sums of {found.clients:,} clients, {ball.dimension:,} parameters", rows, as_json)
    if not as_json:
        heads = ("", "bits per parameter", "epsilon", "squared error", "/ ideal", "the server sees")
        ideal = lines[1].squared_error
        column_table("The same target by other means", heads, [_line(one, ideal) for one in facts])


def _line(facts: dict[str, Any], ideal: float) -> tuple[str, ...]:
    error = facts["squared_error"]
    ratio = f"{error / ideal:.3g}" if math.isfinite(error) else "out of reach"
    epsilon = rounded_up(facts["epsilon_upper"], 4)
    return facts["name"], str(facts["bits"]), epsilon, f"{error:.3g}", ratio, SEEN[facts["trust"]]


def _population(clients: int, rate: float | None, secret: bool) -> int | None:
    """Return the number of clients that a cohort is drawn from, rounded towards privacy."""
    if rate is None:
        if secret:
            raise InvalidParameter.of("sampling_rate", "given with --secret-cohort: how likely a client takes part")
        return None
    if not secret:
        raise InvalidParameter(
            "Subsampling amplifies nothing when the server learns who took part, as it does with pairwise masks: say "
            "--secret-cohort only if nobody learns it."
        )
    return max(clients, math.floor(clients / check_real(rate, "sampling_rate", at_most=1.0) * (1 + 1e-12)))


def _rows(found: SumCalibration, epsilon: float) -> list[Row]:
    codes, guarantee, sure = found.codes, found.guarantee, found.min_honest_clients
    spec, kept = codes.design.spec, codes.ball.dimension
    expected = quietbit.expectation(found.mechanism, cohort=found.clients, rounds=found.releases, trust=guarantee.trust)
    cut, error = rounded(found.clamped_at, 3), found.squared_error
    rows = [
        *design_rows(codes.design, "" if spec.output_bits == 1 else f": sums of {spec.outputs - 1} equal bits"),
        Row("beta", "beta", codes.beta),
        Row("clamp", "inputs", True, f"clamped: coordinates beyond {cut} are cut to it"),
        Row("clamped_at", "clamped at", found.clamped_at, f"{rounded(found.clamped_at / codes.ball.radius, 3)} radii"),
        Row("wire_bits", "bits per parameter", found.wire_bits, f"{found.wire_bits}, the modulus of the masks"),
        Row("squared_error", "squared error at zero", error, f"{rounded(error)} of the mean"),
        *expectation_rows(expected),
    ]
    if kept < found.mechanism.domain.dimension:
        lost = found.projection_error
        text = f"{rounded(lost)} of it, from a mean of norm {found.mean_norm:g} on {kept:,} coordinates, shared by all"
        rows += [Row("keep", "kept coordinates", kept), Row("projection_error", "projection", lost, text)]
    rows += [
        Row("clients", "clients in a sum", found.clients),
        Row("min_honest_clients", "counted on", sure, f"{sure:,} that answer and do not collude with the server"),
        Row("releases", "sums per client", found.releases),
    ]
    if found.population is not None:
        text = f"drawn from {found.population:,}, secret: the guarantee is void if anybody learns it"
        rows.append(Row("population", "cohort", found.population, text))
    reach = "met from below" if not found.saturated else "out of reach: the largest beta spends less"
    rows.append(Row("saturated", "target", found.saturated, f"{epsilon:g}, {reach}"))
    return rows + guarantee_rows(guarantee, "all sums")


def _draw(found: SumCalibration, epsilon: float, path: Path, report: Report) -> Path:
    from quietbit.plot.figure import save_figure
    from quietbit.plot.secure_sums import compare_cohorts, plot_secure_aggregation

    promised = found.guarantee
    given: dict[str, Any] = {
        "ball": found.mechanism.domain, "bits": found.codes.bits, "share": found.min_honest_clients / found.clients,
        "target": Target(epsilon, promised.delta, promised.adjacency, releases=found.releases),
    }  # fmt: skip
    return save_figure(plot_secure_aggregation(compare_cohorts(**given, report=report), **given), path)
