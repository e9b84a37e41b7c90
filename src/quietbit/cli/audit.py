"""``quietbit audit``: try to catch the shipped sampler revealing more than is claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded, rounded_up
from quietbit.cli.options import (
    AdjacencyOption,
    BetaOption,
    ClampOption,
    DeltaOption,
    DimensionOption,
    NormOption,
    RadiusOption,
    find_design,
)
from quietbit.target import as_adjacency

if TYPE_CHECKING:
    from quietbit.auditor.checks import Finding

__all__ = ["audit"]

VERDICTS = {
    "passed": "consistent with the claim",
    "failed": "THE SAMPLER IS NOT WHAT IS CLAIMED",
    "inconclusive": "nothing found, but these samples cannot measure an epsilon as large as the claim: inconclusive",
}


def audit(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A design file, a name that `quietbit catalogue` lists or, with --epsilon, a mechanism such as vmvu.",
        ),
    ],
    adjacency: AdjacencyOption,
    epsilon: Annotated[float | None, typer.Option(help="Calibrate the mechanism to this, for one release.")] = None,
    norm: NormOption = "l2",
    beta: BetaOption = 1.0,
    clamp: ClampOption = False,
    radius: RadiusOption = 1.0,
    dimension: DimensionOption = 8,
    delta: DeltaOption = 1e-5,
    samples: Annotated[int, typer.Option(help="How often each of the main updates is sent.")] = 4000,
    confidence: Annotated[float, typer.Option(help="That a right sampler passes, between 0.5 and 1.")] = 1 - 1e-6,
    seed: Annotated[int | None, typer.Option(help="Reproducible words instead of the operating system's.")] = None,
    json: JsonOption = False,
) -> None:
    """Send known updates over the real path and hold what comes out against the claim; exit code 1 if it fails.

    Example: quietbit audit vmvu --epsilon 2 --delta 1e-5 --adjacency zero-out --dimension 64

    Example: quietbit audit metric-l1_levels-2_bits-1_eps-3_exact --norm l1 --adjacency replace-one --delta 0
    """
    from quietbit.mechanism.registry import families

    which, ball = as_adjacency(adjacency), quietbit.Ball(norm, radius, dimension)
    if epsilon is not None:
        mechanism = quietbit.calibrate(what, ball=ball, epsilon=epsilon, delta=delta, adjacency=which).mechanism
        title = f"{what} at epsilon {epsilon:g}"
    else:
        if what in families():
            raise quietbit.InvalidParameter.of("epsilon", f"given, to calibrate {what} to")
        found = find_design(what)
        mechanism = quietbit.InterpolatedMVU(found, ball, beta, clamp)
        title = f"I-MVU, design {found.identity()[:12]}"
    rng = quietbit.secure_rng() if seed is None else quietbit.seeded_rng(seed)
    with progress_bar("Sending known updates", quiet=json) as report:
        result = quietbit.audit(
            mechanism, which, rng=rng, delta=delta, samples=samples, confidence=confidence, progress=report
        )
    rows = [
        Row("epsilon_lower", "epsilon found, at least", result.epsilon_lower, rounded(result.epsilon_lower)),
        Row("epsilon_upper", "epsilon claimed, at most", result.epsilon_upper, rounded_up(result.epsilon_upper)),
        Row("detectable", "excess that would be found", _finite(result.detectable), _excess(result.detectable)),
        Row("measurable", "epsilon measurable, at most", result.measurable, rounded(result.measurable)),
        Row("delta", "delta", result.delta),
        Row("adjacency", "adjacency", result.adjacency.value),
        Row("confidence", "confidence", result.confidence),
        Row("samples", "releases drawn per update", result.samples),
        *(Row(one.name, f"check: {one.name}", one.passed, _told(one)) for one in result.findings),
        Row("passed", "nothing found", result.passed, "yes" if result.passed else "NO"),
        Row("verdict", "verdict", result.verdict, VERDICTS[result.verdict]),
    ]
    record(f"Audit of one release: {title}", rows, json)
    if result.verdict == "failed":
        raise typer.Exit(1)


def _told(finding: Finding) -> str:
    return f"{'pass' if finding.passed else 'FAIL'}, {finding.ratio:.2f} of the limit: {finding.detail}"


def _excess(detectable: float) -> str:
    return f"{rounded_up(detectable)} above the claim" if detectable < float("inf") else "none"


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None  # JSON has no infinity
