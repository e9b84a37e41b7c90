"""The server's half: any Flower strategy, fed with the private mean instead of clients' weights.

Idea     the wrapper asks as the inner strategy would, with quietbit's settings beside the model; it
         turns the releases that come back into their plain mean (of a masked sum, under secure
         aggregation), and hands the inner strategy one synthetic reply, *old arrays minus mean*. So
         FedAvg sets the model to it, FedAvgM and FedAdam take its difference as their gradient, and
         none of them sees a client. Everything else is the inner strategy's.

A round without a valid release, or without a sum, is skipped: the model stays, and the inner
strategy is not called. A step that would leave a model that is not finite is not taken either.
Strategies that compare or reweight single clients (medians, Krum, q-FedAvg, trees, other privacy
wrappers) are refused: there is one reply for them to see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import INFO, WARNING, LogRecord, getLogger
from typing import Any, final

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    MetricRecordValues,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedAvgM, Result, Strategy
from flwr.supercore import log

from quietbit.errors import QuietbitError, check_int, require
from quietbit.flower.arriving import ArrivingGrid
from quietbit.flower.transport import GridTransport, address, metrics_of, reply_of
from quietbit.run.layout import NotFinite
from quietbit.run.messages import METRICS
from quietbit.run.part import Asked, Part, Step
from quietbit.run.parts.evaluation import Evaluating
from quietbit.run.parts.subspace import Basis
from quietbit.run.plan import Plan
from quietbit.run.report import Report, RoundReport
from quietbit.run.round import Model, Round
from quietbit.run.server import Run
from quietbit.secagg.identity import Directory
from quietbit.wire.downlink import Diverged, ServerStep

__all__ = ["PrivateStrategy"]

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
NAMELESS = (
    "arrays have numbers for names, and counters among them: if these belong to BatchNorm, its "
    "running variances are learnt with noise on them, and spoil the model. Hand over a state_dict, "
    "by name."
)
NOBODY_ASKED = (
    "quietbit.evaluate sets a part of the budget aside, but the strategy evaluates on no node: "
    "raise fraction_evaluate, or leave quietbit.evaluate out."
)
NO_NUMBERS = (
    "nodes answer evaluations with nothing, unless quietbit.evaluate asks for a private answer: "
    "evaluate on the server (evaluate_fn), and save the messages with fraction_evaluate=0.0."
)
COUNTS = ("asked", "answered", "declined", "failed", "refused")  # of a round, in Flower's result
EPSILON = "quietbit-epsilon"  # what the run has cost the worst client so far, in Flower's result
# What the inner strategy logs, and is not so where every reply is one private mean.
UNTRUE = ("Weighted by", "Received %s results and %s failures")


def _say(level: int, line: str) -> None:
    log(level, "quietbit: %s", line)


@final
class PrivateStrategy(Strategy):
    """``PrivateStrategy(FedAvg(...), context.run_config)``: use it as the strategy it wraps.

    The settings come from the run config (docs/reference/plan.md has the keys). ``directory`` says
    who the members of masked sums are, where the server may lie. ``parts`` are capabilities of your
    own. ``basis`` gives the directions of a subspace, where the plan has one: a `Subspace`, a
    function that makes one, or the path of a file. `report` says what happened.
    """

    def __init__(
        self,
        inner: Strategy,
        run_config: Mapping[str, Any],
        *,
        directory: Directory | None = None,
        parts: Sequence[Part] = (),
        basis: Basis | None = None,
    ) -> None:
        """Read the settings; refuse strategies that need single clients' replies."""
        name = type(inner).__name__
        require(isinstance(inner, Strategy), "inner strategy", name, "a Flower strategy")
        kinds = {kind.__name__ for kind in type(inner).__mro__}
        rule = "one that works on the mean of clients alone"
        require(kinds.isdisjoint(SINGLE), "inner strategy", name, rule)
        self.inner = inner
        self.settings = Plan.from_run_config(run_config)
        self._run = Run(self.settings, 0, _say, tuple(parts), directory=directory, basis=basis)
        self._evaluating = self._run.find(Evaluating)
        self._round: Round | None = None
        self._answers: Round | None = None
        self._planned = 0
        self._arriving: ArrivingGrid | None = None
        self._scores: list[dict[str, float]] = []
        self._warned = False  # that there are no numbers of evaluations
        self._step = _server_step(inner, self.settings)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds as Flower does, unless arrays of the model cannot be learnt."""
        model = self._model(initial_arrays)
        if model.layout.nameless(initial_arrays):
            _say(WARNING, NAMELESS)
        self.settings.mechanism_for(self._run.dimension(model.layout.dimension))
        self._planned = check_int(num_rounds, "num_rounds", 0)
        score = None
        if evaluate_fn is not None:
            score = self._scored(evaluate_fn)
        if self.settings.arrivals is not None:
            grid = self._arriving = ArrivingGrid(grid, self.settings.arrivals)
        options = (num_rounds, timeout, train_config, evaluate_config, score)
        result = super().start(grid, initial_arrays, *options)
        if not result.arrays:  # no round changed it
            result.arrays = initial_arrays
        self._run.finish()
        report = self.report()
        _say(INFO, report.promise())
        unanswered = report.unanswered()
        if unanswered is not None:
            raise QuietbitError(unanswered)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's requests, with quietbit's records beside the model."""
        run = self._run
        run.number = grid.run.run_id
        first = not run.begun
        self._round = run.open(server_round, self._model(arrays))
        if self._arriving is not None:
            self._arriving.begin(server_round, last=server_round == self._planned)
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        if first:
            self._outlook(len(messages), grid)
        if run.crowds.secret:
            self._readdress(messages, grid)
        return self._ask(self._round, messages, arrays, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the inner strategy's step on the private mean; return its metrics and ours."""
        current = self._round
        self._round = None
        if current is None or current.number != server_round:
            raise QuietbitError(
                f"Round {server_round} was not opened by configure_train, or is closed already."
            )
        for reply in replies:
            group = (
                reply.metadata.group_id
            )  # the round of a late reply, as `ArrivingGrid` writes it
            self._run.take(reply_of(reply), int(group) if group.isdecimal() else None)
        arrays = None
        metrics = MetricRecord()
        try:
            step = self._run.step(current)
            if step.arrays is not None:
                arrays, metrics = self._stepped(current, step)
        except (NotFinite, Diverged) as error:  # an update too large for the model's type, or worse
            current.not_taken(error)
        current.skipped = arrays is None
        numbers = self._numbers(self._run.over(current))
        crashed = self._run.all_crashed()
        if crashed is not None:
            raise QuietbitError(crashed)
        if arrays is None:
            arrays = _arrays(current)
        return arrays, MetricRecord({**metrics, **numbers})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's requests, with a private one where the plan evaluates."""
        messages = list(self.inner.configure_evaluate(server_round, arrays, config, grid))
        self._answers = None
        if self._evaluating is None:
            return messages
        if not messages:
            self._warn(NOBODY_ASKED)
            return messages
        self._run.number = grid.run.run_id
        self._answers = self._evaluating.begin(self._run, server_round)
        return self._ask(self._answers, messages, arrays, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the numbers that nodes let out with the inner strategy, and add ours.

        Every node counts as one, whatever weight it sends. Where nodes disagree on which numbers
        they send, the largest group is taken. What a node sends cannot end the run: numbers that
        are none are dropped, and an inner strategy that fails on the rest has no metrics in this
        round.
        """
        weight = getattr(self.inner, "weighted_by_key", "num-examples")
        groups: dict[tuple[str, ...], list[Message]] = {}
        asked = 0
        for message in replies:
            asked += 1
            if self._answers is not None:
                self._answers.take(reply_of(message))
            numbers = metrics_of(message.content) if message.has_content() else {}
            if not set(numbers) <= {weight}:
                record = MetricRecord({**numbers, weight: 1.0})
                message.content = RecordDict({METRICS: record})
                groups.setdefault(tuple(sorted(numbers)), []).append(message)
        estimates = self._estimates()
        if not groups and not estimates and asked:
            self._warn(NO_NUMBERS)
        metrics = self._inner_metrics(server_round, groups)
        return MetricRecord({**metrics, **estimates}) if metrics or estimates else None

    def summary(self) -> None:
        """Log the settings, then the inner strategy's summary."""
        settings = [f"{key}={value}" for key, value in self.settings.to_run_config().items()]
        log(INFO, "\t├──> quietbit: %s", ", ".join(settings))
        with _without_untrue():
            self.inner.summary()

    def report(self) -> Report:
        """Return rounds, nodes, bytes and the guarantee of the worst client so far."""
        return self._run.report(self._scores)

    def _model(self, arrays: ArrayRecord) -> Model:
        """Return the model of a round; refuse one that is not finite."""
        engine = f"{type(self.inner).__name__} is not plain averaging"
        model = Model.of(dict(arrays), self.settings, self._step, engine)
        model.layout.check_finite(arrays)
        return model

    def _ask(
        self, current: Round, messages: list[Message], arrays: ArrayRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a round, with quietbit's records in them."""
        requests = []
        for place, message in enumerate(messages):
            with_model = any(record is arrays for record in message.content.values())
            node = message.metadata.dst_node_id
            requests.append(Asked(node, place=place, carries_model=with_model))
        kind = messages[0].metadata.message_type if messages else MessageType.TRAIN
        requests = self._run.ask(current, requests, GridTransport(grid, kind))
        return address(requests, messages, arrays)

    def _outlook(self, asked: int, grid: Grid) -> None:
        """Say what to expect of a run that asks this many nodes in each round."""
        rounds = self._planned or self.settings.releases or 1
        if self._arriving is not None:
            asked = min(asked, self._arriving.arrivals.enough)
        self._run.outlook(asked=asked, nodes=len(list(grid.get_node_ids())), rounds=rounds)

    def _readdress(self, messages: list[Message], grid: Grid) -> None:
        """Address as many requests as the inner strategy makes to the next nodes of the order."""
        alike = len({id(message.content) for message in messages}) <= 1
        rule = "one that asks all nodes alike, for a secret order"
        require(alike, "inner strategy", type(self.inner).__name__, rule)
        nodes = self._run.crowds.cohort(grid.get_node_ids(), len(messages))
        for message, node in zip(messages, nodes, strict=True):
            message.metadata.dst_node_id = node

    def _stepped(self, current: Round, step: Step) -> tuple[ArrayRecord | None, MetricRecord]:
        """Take the inner strategy's step; refuse a model that is not finite before or after it."""
        moved = {name: Array(np.asarray(value)) for name, value in (step.arrays or {}).items()}
        model = current.model
        if model is None:
            return None, MetricRecord()
        model.layout.check_finite(moved)
        arrays = ArrayRecord({**model.arrays, **moved})
        # Numbers that owners let out say who took part: a secret order keeps them out of results.
        metrics = {} if self._run.crowds.secret else current.metrics()
        with _without_untrue():
            reply = self._synthetic(arrays, metrics)
            aggregated, told = self.inner.aggregate_train(current.number, [reply])
        if step.final:
            return arrays, told or MetricRecord()
        stepped = None if aggregated is None else _as_before(aggregated, model)
        return stepped, told or MetricRecord()

    def _synthetic(self, arrays: ArrayRecord, metrics: dict[str, float]) -> Message:
        """Return one reply that stands for the round; its weight is 1."""
        weight = getattr(self.inner, "weighted_by_key", "num-examples")
        key = getattr(self.inner, "arrayrecord_key", "arrays")
        record = MetricRecord({**metrics, weight: 1.0})
        content = RecordDict({key: arrays, "metrics": record})
        return Message(content, dst_node_id=0, message_type=MessageType.TRAIN)

    def _numbers(self, outcome: RoundReport) -> dict[str, MetricRecordValues]:
        """Return our own metrics of a round, for Flower's result.

        Bytes depend on who took part (the length of a node's id, the metrics that its owner lets
        out), so where the order is secret they are in the server's report alone.
        """
        numbers: dict[str, MetricRecordValues] = {}
        for section in self.settings.sections:
            for name in section.columns:
                numbers[f"quietbit-{name}"] = getattr(outcome, name)
        if not self._run.crowds.secret:
            numbers["quietbit-uplink-bytes"] = outcome.uplink
            numbers["quietbit-downlink-bytes"] = outcome.downlink
        for name in COUNTS:
            numbers[f"quietbit-{name}"] = getattr(outcome, name)
        numbers[EPSILON] = outcome.epsilon_upper
        return numbers

    def _estimates(self) -> dict[str, MetricRecordValues]:
        """Close the evaluation that is open; return its estimates and the cost so far."""
        if self._evaluating is None or self._answers is None:
            return {}
        report = self._evaluating.end(self._run, self._answers, self._answers.number)
        self._answers = None
        metrics: dict[str, MetricRecordValues] = {}
        if report.estimates:
            for suffix, name in (("", "value"), ("-low", "low"), ("-high", "high")):
                values = [getattr(estimate, name) for estimate in report.estimates]
                metrics[f"{report.metric}{suffix}"] = values[0] if len(values) == 1 else values
        metrics[EPSILON] = self._run.epsilon_upper()
        return metrics

    def _inner_metrics(
        self, server_round: int, groups: Mapping[tuple[str, ...], list[Message]]
    ) -> MetricRecord:
        """Return what the inner strategy makes of the largest group of replies."""
        if not groups:
            return MetricRecord()
        largest = max(groups.values(), key=len)
        try:
            with _without_untrue():
                return self.inner.aggregate_evaluate(server_round, largest) or MetricRecord()
        except Exception as error:
            text = "quietbit: round %s: metrics of nodes could not be aggregated"
            log(WARNING, text, server_round, exc_info=error)
            return MetricRecord()

    def _scored(
        self, evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None]
    ) -> Callable[[int, ArrayRecord], MetricRecord | None]:
        """Return the server's own evaluation, whose numbers are noted for the report."""

        def score(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate_fn(number, arrays)
            numbers: dict[str, float] = {"round": number}
            for name, value in (metrics or {}).items():
                if isinstance(value, int | float):
                    numbers[name] = float(value)
            if len(numbers) > 1:
                self._scores.append(numbers)
            return metrics

        return score

    def _warn(self, line: str) -> None:
        """Say once per run why there are no numbers of evaluations."""
        if not self._warned:
            self._warned = True
            _say(WARNING, line)


def _server_step(inner: Strategy, plan: Plan) -> ServerStep | None:
    """Return the inner strategy's step, if nodes are to replay it and it is a plain one."""
    how = type(inner).aggregate_train
    if plan.replay is None:
        return None
    own = plan.replay.step == ServerStep(1.0, 0.0) or how is FedAvg.aggregate_train
    rule = f"left out: {type(inner).__name__} steps by itself"
    require(own, "quietbit.replay.learning-rate", plan.replay.learning_rate, rule)
    if how is FedAvgM.aggregate_train:
        return ServerStep(inner.server_learning_rate, inner.server_momentum)  # type: ignore[attr-defined]
    return plan.replay.step if how is FedAvg.aggregate_train else None


@contextmanager
def _without_untrue() -> Iterator[None]:
    """Leave out of Flower's log what the inner strategy says of weights and of replies."""

    def is_true(record: LogRecord) -> bool:
        return not any(words in str(record.msg) for words in UNTRUE)

    logger = getLogger("flwr")
    logger.addFilter(is_true)
    try:
        yield
    finally:
        logger.removeFilter(is_true)


def _arrays(current: Round) -> ArrayRecord | None:
    return None if current.model is None else ArrayRecord(dict(current.model.arrays))


def _as_before(stepped: ArrayRecord, model: Model) -> ArrayRecord:
    """Return the inner strategy's arrays in the model's types, and the kept ones as they were."""
    rule = "those of the model"
    require(
        set(stepped) == set(model.arrays), "arrays of the inner strategy", sorted(stepped), rule
    )
    learnt = {}
    with np.errstate(over="ignore"):
        for name, _, kind in model.layout.learnt:
            learnt[name] = Array(stepped[name].numpy().astype(kind, copy=False))
    model.layout.check_finite(learnt)
    return ArrayRecord({**model.arrays, **learnt})
