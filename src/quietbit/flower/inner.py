"""The inner strategy: which ones are refused, the one reply that they see, and what they log.

Idea     an inner strategy sees one reply per round, which stands for the private mean, of weight 1.
         Strategies that compare or reweight single clients have nothing to compare, and are
         refused. What a strategy logs of weights and of the number of replies is then not so, and
         is left out of the log. Flower's result shows the counts, bytes and cost of every round,
         and the estimates of every private evaluation, under names of their own beside the inner
         strategy's metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import WARNING, LogRecord, getLogger
from typing import TypeAlias

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Message,
    MessageType,
    MetricRecord,
    MetricRecordValues,
    RecordDict,
)
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy
from flwr.supercore import log

from quietbit.errors import require
from quietbit.federation.part import Model
from quietbit.federation.parts.evaluation import EvaluationReport
from quietbit.federation.plan import Plan
from quietbit.federation.record import RoundReport
from quietbit.wire.downlink import ServerStep

__all__ = [
    "EPSILON",
    "SINGLE",
    "Evaluate",
    "aggregate_mean",
    "aggregate_numbers",
    "as_before",
    "check_inner",
    "estimate_metrics",
    "group_by_names",
    "round_metrics",
    "server_step",
    "with_scores",
    "without_untrue",
]

NUMBERS = "metrics"  # where inner strategies find numbers
SINGLE = (
    "Bulyan",
    "DifferentialPrivacyClientSideAdaptiveClipping",
    "DifferentialPrivacyClientSideFixedClipping",
    "DifferentialPrivacyServerSideAdaptiveClipping",
    "DifferentialPrivacyServerSideFixedClipping",
    "FedMedian",
    "FedTrimmedAvg",
    "FedXgbBagging",
    "FedXgbCyclic",
    "Krum",
    "MultiKrum",
    "QFedAvg",
)
# What the inner strategy logs, and is not so where every reply is one private mean.
UNTRUE = ("Weighted by", "Received %s results and %s failures")


def check_inner(inner: Strategy) -> None:
    """Refuse what is not a strategy, and strategies that need single clients' replies."""
    name = type(inner).__name__
    require(isinstance(inner, Strategy), "inner strategy", name, "a Flower strategy")
    kinds = {kind.__name__ for kind in type(inner).__mro__}
    rule = "one that works on the mean of clients alone"
    require(kinds.isdisjoint(SINGLE), "inner strategy", name, rule)


def server_step(inner: Strategy, plan: Plan) -> ServerStep | None:
    """Return the inner strategy's step, if nodes are to replay it and it is a plain one."""
    if plan.replay is None:
        return None
    how = type(inner).aggregate_train
    is_plain = how is FedAvg.aggregate_train
    rule = f"left out: {type(inner).__name__} steps by itself"
    require(
        is_plain or plan.replay.step == ServerStep(1.0, 0.0),
        "quietbit.replay.learning-rate",
        plan.replay.learning_rate,
        rule,
    )
    if how is FedAvgM.aggregate_train:
        return ServerStep(inner.server_learning_rate, inner.server_momentum)  # type: ignore[attr-defined]
    return plan.replay.step if is_plain else None


def aggregate_mean(
    inner: Strategy, number: int, arrays: ArrayRecord, metrics: Mapping[str, float]
) -> tuple[ArrayRecord | None, MetricRecord]:
    """Return what the inner strategy makes of one reply that stands for round ``number``."""
    key = getattr(inner, "arrayrecord_key", "arrays")
    record = MetricRecord({**metrics, _weight_key(inner): 1.0})
    content = RecordDict({key: arrays, NUMBERS: record})
    reply = Message(content, dst_node_id=0, message_type=MessageType.TRAIN)
    with without_untrue():
        aggregated, numbers = inner.aggregate_train(number, [reply])
    return aggregated, numbers or MetricRecord()


def as_before(stepped: ArrayRecord, model: Model) -> ArrayRecord:
    """Return the inner strategy's arrays in the model's types, and the kept ones as they were."""
    is_model = set(stepped) == set(model.arrays)
    require(is_model, "arrays of the inner strategy", sorted(stepped), "those of the model")
    learnt = {}
    with np.errstate(over="ignore"):
        for name, _, kind in model.layout.learnt:
            learnt[name] = Array(stepped[name].numpy().astype(kind, copy=False))
    model.layout.check_finite(learnt)
    return ArrayRecord({**model.arrays, **learnt})


def group_by_names(
    inner: Strategy, numbers: Iterable[tuple[Message, Mapping[str, float]]]
) -> list[list[Message]]:
    """Return the replies that have numbers, with these alone, grouped by the numbers' names.

    Each has the weight 1.
    """
    weight = _weight_key(inner)
    groups: dict[tuple[str, ...], list[Message]] = {}
    for message, own in numbers:
        if not set(own) <= {weight}:
            message.content = RecordDict({NUMBERS: MetricRecord({**own, weight: 1.0})})
            groups.setdefault(tuple(sorted(own)), []).append(message)
    return list(groups.values())


def aggregate_numbers(inner: Strategy, number: int, groups: list[list[Message]]) -> MetricRecord:
    """Return what the inner strategy makes of the largest group; nothing where it fails."""
    if not groups:
        return MetricRecord()
    largest = max(groups, key=len)
    try:
        with without_untrue():
            return inner.aggregate_evaluate(number, largest) or MetricRecord()
    except Exception as error:
        text = "quietbit: round %s: metrics of nodes could not be aggregated"
        log(WARNING, text, number, exc_info=error)
        return MetricRecord()


@contextmanager
def without_untrue() -> Iterator[None]:
    """Leave out of Flower's log what the inner strategy says of weights and of replies."""

    def is_true(record: LogRecord) -> bool:
        return not any(words in str(record.msg) for words in UNTRUE)

    logger = getLogger("flwr")
    logger.addFilter(is_true)
    try:
        yield
    finally:
        logger.removeFilter(is_true)


def _weight_key(inner: Strategy) -> str:
    return str(getattr(inner, "weighted_by_key", "num-examples"))


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
