"""``quietbit calibrate --trust secure-aggregation``: codes whose sums meet a target, beside the alternatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import quietbit
from quietbit.cli.console import Row, column_table, guarantee_rows, progress_bar, record, rounded, rounded_up
from quietbit.cli.files import check_outputs
from quietbit.errors import InvalidParameter, check_real, require
from quietbit.target import Target

if TYPE_CHECKING:
    from quietbit.mechanism.central_sum import SumCalibration
    from quietbit.mechanism.sum_comparison import SumRow

__all__ = ["calibrate_secure_sum"]

SEEN = {"secure-aggregation": "sums", "local": "each payload"}


def calibrate_secure_sum(
    given: dict[str, Any], rate: float | None, secret: bool, plot: Path | None, out: Path | None, as_json: bool
) -> None:
    """Calibrate, compare, and draw where asked."""
    from quietbit.mechanism.central_sum import calibrate_sum
    from quietbit.mechanism.sum_comparison import compare_calibration

    ball, epsilon = given["ball"], given["epsilon"]
    require(ball.norm is quietbit.Norm.L2, "norm", ball.norm.value, "l2 for secure aggregation")
    population = _population(given["clients"], rate, secret)
    check_outputs(out, figures=() if plot is None else (plot,))
    with progress_bar("Calibrating", quiet=as_json):
        found = calibrate_sum(**given, population=population)
        lines = compare_calibration(found, epsilon)
    rows = _rows(found, epsilon)
    if out is not None:
        rows.append(Row("saved", "saved as", str(found.codes.design.save(out))))
    if plot is not None:
        rows.append(Row("plot", "drawn as", str(_draw(found, epsilon, plot, as_json))))
    if as_json:
        rows.append(Row("comparison", "comparison", [_plain(line) for line in lines]))
    record(f"secure sums of {found.clients:,} clients, {ball.dimension:,} parameters", rows, as_json)
    if not as_json:
        _compare(lines)


def _population(clients: int, rate: float | None, secret: bool) -> int | None:
    """The number of clients that a cohort is drawn from, rounded towards privacy."""
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


def _kept(found: SumCalibration) -> list[Row]:
    """What is lost by keeping some of the coordinates, where not all are."""
    kept = found.codes.ball.dimension
    if kept == found.mechanism.domain.dimension:
        return []
    lost = found.projection_error
    text = f"{rounded(lost)} of it, from a mean of norm {found.mean_norm:g} on {kept:,} coordinates, the same for all"
    return [Row("keep", "kept coordinates", kept), Row("projection_error", "projection", lost, text)]


def _rows(found: SumCalibration, epsilon: float) -> list[Row]:
    mechanism, guarantee = found.codes, found.guarantee
    spec, radius = mechanism.design.spec, mechanism.ball.radius
    sure = found.min_honest_clients
    expected = quietbit.expectation(found.mechanism, cohort=found.clients, rounds=found.releases, trust=guarantee.trust)
    rows = [
        Row(
            "design",
            "design",
            {"input_levels": spec.input_levels, "output_bits": spec.output_bits, "epsilon": spec.epsilon},
            f"2 levels, {spec.output_bits}-bit symbols, epsilon {rounded(spec.epsilon)}"
            + ("" if spec.output_bits == 1 else f": sums of {spec.outputs - 1} equal bits"),
        ),
        Row("identity", "identity", mechanism.design.identity()),
        Row("beta", "beta", mechanism.beta),
        Row("clamp", "inputs", True, f"clamped: coordinates beyond {rounded(found.clamped_at, 3)} are cut to it"),
        Row("clamped_at", "clamped at", found.clamped_at, f"{rounded(found.clamped_at / radius, 3)} of the radius"),
        Row("wire_bits", "bits per parameter", found.wire_bits, f"{found.wire_bits}, the modulus of the masks"),
        Row(
            "squared_error", "squared error at zero", found.squared_error, f"{rounded(found.squared_error)} of the mean"
        ),
        Row("noise", "noise / clip", expected.noise, rounded(expected.noise, 3)),
        Row("expectation", "what to expect", expected.sentence()),
        *_kept(found),
        Row("clients", "clients in a sum", found.clients),
        Row("min_honest_clients", "counted on", sure, f"{sure:,} that answer and do not collude with the server"),
        Row("releases", "sums per client", found.releases),
    ]
    if found.population is not None:
        text = f"drawn from {found.population:,}, secret: the guarantee is void if anybody learns it"
        rows.append(Row("population", "cohort", found.population, text))
    reach = "met from below" if not found.saturated else "out of reach: the largest beta spends less"
    return [
        *rows,
        Row("saturated", "target", found.saturated, f"{epsilon:g}, {reach}"),
        *guarantee_rows(guarantee, "all sums"),
    ]


def _compare(lines: Sequence[SumRow]) -> None:
    ideal = lines[1].squared_error
    column_table(
        "The same target by other means",
        ("", "bits per parameter", "epsilon", "squared error", "/ ideal", "the server sees"),
        [
            (
                line.name,
                str(line.bits),
                rounded_up(line.epsilon_upper, 4),
                f"{line.squared_error:.3g}",
                f"{line.squared_error / ideal:.3g}" if math.isfinite(line.squared_error) else "out of reach",
                SEEN[line.trust.value],
            )
            for line in lines
        ],
    )


def _plain(line: SumRow) -> dict[str, Any]:
    names = ("name", "bits", "epsilon_upper", "squared_error")
    return {**{name: getattr(line, name) for name in names}, "trust": line.trust.value}


def _draw(found: SumCalibration, epsilon: float, path: Path, quiet: bool) -> Path:
    from quietbit.plot.figure import save_figure
    from quietbit.plot.secure_sums import compare_cohorts, plot_secure_aggregation

    promised = found.guarantee
    given: dict[str, Any] = {
        "ball": found.mechanism.domain, "bits": found.codes.bits, "share": found.min_honest_clients / found.clients,
        "target": Target(epsilon, promised.delta, promised.adjacency, releases=found.releases),
    }  # fmt: skip
    with progress_bar("Drawing", quiet=quiet) as report:
        rows = compare_cohorts(**given, report=report)
    return save_figure(plot_secure_aggregation(rows, **given), path)
