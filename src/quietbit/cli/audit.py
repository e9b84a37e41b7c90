"""``quietbit audit``: try to catch the shipped sampler revealing more than is claimed."""

from __future__ import annotations

from typing import Annotated

import typer

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded, rounded_up
from quietbit.cli.options import (
    AdjacencyOption,
    BetaOption,
    ClampOption,
    DeltaOption,
    DesignArgument,
    DimensionOption,
    NormOption,
    RadiusOption,
    adjacency_of,
    find_design,
    norm_of,
)

__all__ = ["audit"]


def audit(
    design: DesignArgument,
    adjacency: AdjacencyOption,
    norm: NormOption = "l2",
    beta: BetaOption = 1.0,
    clamp: ClampOption = False,
    radius: RadiusOption = 1.0,
    dimension: DimensionOption = 8,
    delta: DeltaOption = 1e-5,
    samples: Annotated[int, typer.Option(help="Releases drawn for each update of each pair.")] = 4000,
    confidence: Annotated[float, typer.Option(help="Of the lower bound, between 0.5 and 1.")] = 1 - 1e-6,
    seed: Annotated[int | None, typer.Option(help="Reproducible words instead of the operating system's.")] = None,
    json: JsonOption = False,
) -> None:
    """Bound epsilon of one release from below by experiment; exit code 1 if it exceeds the claim.

    Example: quietbit audit metric-l1_levels-2_bits-1_eps-3_exact --norm l1 --adjacency replace-one --delta 0
    """
    found, which = find_design(design), adjacency_of(adjacency)
    mechanism = quietbit.InterpolatedMVU(found, quietbit.Ball(norm_of(norm), radius, dimension), beta, clamp)
    rng = quietbit.secure_rng() if seed is None else quietbit.seeded_rng(seed)
    with progress_bar("Encoding neighbouring updates", quiet=json):
        result = quietbit.audit(mechanism, which, rng=rng, delta=delta, samples=samples, confidence=confidence)
    verdict = "consistent with the claim" if result.passed else "THE SAMPLER REVEALS MORE THAN IS CLAIMED"
    rows = [
        Row("epsilon_lower", "epsilon found, at least", result.epsilon_lower, rounded(result.epsilon_lower)),
        Row("epsilon_upper", "epsilon claimed, at most", result.epsilon_upper, rounded_up(result.epsilon_upper)),
        Row("delta", "delta", result.delta),
        Row("adjacency", "adjacency", result.adjacency.value),
        Row("confidence", "confidence", result.confidence),
        Row("samples", "releases drawn per update", result.samples),
        Row("passed", "verdict", result.passed, verdict),
    ]
    record(f"Audit of I-MVU, one release, design {found.identity()[:12]}", rows, json)
    if not result.passed:
        raise typer.Exit(1)
