"""``quietbit audit``: try to catch the shipped sampler revealing more than is claimed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import quietbit
from quietbit.cli.console import JsonOption, Row, progress_bar, record, rounded_up
from quietbit.cli.options import chosen, option, takes, usual
from quietbit_lab.cli.options import OF_IMVU, find_imvu

__all__ = ["audit"]

VERDICTS = {
    "passed": "consistent with the claim",
    "failed": "THE SAMPLER IS NOT WHAT IS CLAIMED",
    "inconclusive": (
        "nothing found, but these samples are too few to measure an epsilon as large as the claim: "
        "inconclusive"
    ),
}


@takes(
    *OF_IMVU,
    usual("dimension", 8),
    option("epsilon", float, "Calibrate the mechanism to this, for one release."),
    option("samples", int, "How often each of the main updates is sent.", 4000),
    option("confidence", float, "That a right sampler passes, between 0.5 and 1.", 1 - 1e-6),
    option("seed", int, "Reproducible words instead of the operating system's."),
)
def audit(
    what: Annotated[
        str,
        typer.Argument(help="A design's file or name; with --epsilon a mechanism, such as vmvu."),
    ],
    json: JsonOption = False,
    **given: Any,
) -> int:
    """Send known updates over the real path and test what comes out against the claim.

    The exit code is 1 if the claim fails.

    Example: quietbit audit vmvu --epsilon 2 --delta 1e-5 --adjacency zero-out --dimension 64

    Example: quietbit audit metric-l1_levels-2_bits-1_eps-3_exact --norm l1 --adjacency replace-one
    --delta 0
    """
    from quietbit.mechanism.registry import families
    from quietbit_lab.auditor.audit import audit as audit_releases

    epsilon = given["epsilon"]
    seed = given["seed"]
    mechanism: quietbit.Mechanism
    if epsilon is not None:
        ball = quietbit.Ball(given["norm"], given["dimension"])
        mechanism = quietbit.calibrate(
            what, ball=ball, **chosen(given, "epsilon delta adjacency")
        ).mechanism
        title = f"{what} at epsilon {epsilon:g}"
    elif what in families():
        raise quietbit.InvalidParameter.of("epsilon", f"given, to calibrate {what} to")
    else:
        mechanism = imvu = find_imvu(what, given)
        title = f"I-MVU, design {imvu.design.identity()[:12]}"
    if seed is None:
        rng = quietbit.secure_rng()
    else:
        rng = quietbit.seeded_rng(seed)
    with progress_bar("Sending known updates", quiet=json) as report:
        terms = chosen(given, "adjacency delta samples confidence")
        result = audit_releases(mechanism, **terms, rng=rng, progress=report)
    if result.detectable < float("inf"):
        excess = f"{rounded_up(result.detectable)} above the claim"
    else:
        excess = "none"
    rows = [
        Row("epsilon_lower", "epsilon found, at least", result.epsilon_lower),
        Row("epsilon_upper", "epsilon claimed, at most", result.epsilon_upper),
        Row("detectable", "excess that would be found", result.detectable, excess),
        Row("measurable", "epsilon measurable, at most", result.measurable),
        Row("delta", "delta", result.delta),
        Row("adjacency", "adjacency", result.adjacency.value),
        Row("confidence", "confidence", result.confidence, str(result.confidence)),
        Row("samples", "releases drawn per update", result.samples),
    ]
    for finding in result.findings:
        word = "pass" if finding.passed else "FAIL"
        verdict = f"{word}, {finding.ratio:.2f} of the limit: {finding.detail}"
        rows.append(Row(finding.name, f"check: {finding.name}", finding.passed, verdict))
    rows += [
        Row("passed", "nothing found", result.passed, "yes" if result.passed else "NO"),
        Row("verdict", "verdict", result.verdict, VERDICTS[result.verdict]),
    ]
    record(f"Audit of one release: {title}", rows, json)
    return 1 if result.verdict == "failed" else 0
