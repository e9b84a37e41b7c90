"""quietbit's metrics in Flower's result, and the scores of the server's own evaluations.

Idea     Flower's result shows the counts, bytes and cost of every round, and the estimates of every
         private evaluation, under names of their own beside the inner strategy's metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from flwr.app import ArrayRecord, MetricRecord, MetricRecordValues

from quietbit.federation.parts.evaluation import EvaluationReport
from quietbit.federation.plan import Plan
from quietbit.federation.record import RoundReport

__all__ = ["EPSILON", "Evaluate", "estimate_metrics", "round_metrics", "with_scores"]

COUNTS = ("asked", "answered", "declined", "failed", "refused")  # of a round
EPSILON = "quietbit-epsilon"  # what the run has cost the worst client so far
Evaluate: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]


def round_metrics(plan: Plan, outcome: RoundReport) -> dict[str, MetricRecordValues]:
    """Return the metrics of a round."""
    numbers: dict[str, MetricRecordValues] = {}
    for section in plan.sections:
        for name in section.columns:
            numbers[f"quietbit-{name}"] = getattr(outcome, name)
    numbers["quietbit-uplink-bytes"] = outcome.uplink
    numbers["quietbit-downlink-bytes"] = outcome.downlink
    for name in COUNTS:
        numbers[f"quietbit-{name}"] = getattr(outcome, name)
    if outcome.epsilon_upper is not None:
        numbers[EPSILON] = outcome.epsilon_upper
    return numbers


def estimate_metrics(
    report: EvaluationReport, epsilon_upper: float | None
) -> dict[str, MetricRecordValues]:
    """Return the estimates of an evaluation with their intervals, and the cost so far."""
    metrics: dict[str, MetricRecordValues] = {}
    if report.estimates:
        for suffix, name in (("", "value"), ("-low", "low"), ("-high", "high")):
            values = [getattr(estimate, name) for estimate in report.estimates]
            metrics[f"{report.metric}{suffix}"] = values[0] if len(values) == 1 else values
    if epsilon_upper is not None:
        metrics[EPSILON] = epsilon_upper
    return metrics


def with_scores(evaluate: Evaluate, scores: list[dict[str, float]]) -> Evaluate:
    """Return the server's own evaluation, whose numbers are added to ``scores``."""

    def score(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        metrics = evaluate(number, arrays)
        numbers: dict[str, float] = {"round": number}
        for name, value in (metrics or {}).items():
            if isinstance(value, int | float):
                numbers[name] = float(value)
        if len(numbers) > 1:
            scores.append(numbers)
        return metrics

    return score
