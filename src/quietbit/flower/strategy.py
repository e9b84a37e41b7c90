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

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, cast, final

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    MetricRecordValues,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from quietbit.errors import QuietbitError, check_int, require
from quietbit.federation.layout import NotFinite
from quietbit.federation.messages import Asked
from quietbit.federation.part import Model, Part, Step
from quietbit.federation.parts.evaluation import Evaluation
from quietbit.federation.parts.subspace import Basis
from quietbit.federation.plan import Plan
from quietbit.federation.report import Report
from quietbit.federation.round import Round
from quietbit.federation.server import Run
from quietbit.flower.inner import (
    EPSILON,
    Evaluate,
    aggregate_mean,
    aggregate_numbers,
    as_before,
    check_inner,
    estimate_metrics,
    group_by_names,
    round_metrics,
    server_step,
    with_scores,
    without_untrue,
)
from quietbit.flower.transport import GridTransport, HurriedGrid, address, reply_of, wire_sizes
from quietbit.secagg.identity import MemberList
from quietbit.wire.downlink import Diverged

__all__ = ["PrivateStrategy"]

NAMELESS = (
    "arrays have numbers for names, and counters among them: if these belong to BatchNorm, its "
    "running variances are learnt with noise on them, and spoil the model. Hand over a state_dict, "
    "by name."
)
PROTECT = (
    "Make the client app a PrivateClientApp: `from quietbit.flower import PrivateClientApp`, then "
    "`app = PrivateClientApp()` in place of ClientApp()."
)
NOBODY_ASKED = (
    "quietbit.evaluate sets a part of the budget aside, but the strategy evaluates on no node: "
    "raise fraction_evaluate, or leave quietbit.evaluate out."
)
NO_NUMBERS = (
    "nodes answer evaluations with nothing, unless quietbit.evaluate asks for a private answer: "
    "evaluate on the server (evaluate_fn), and save the messages with fraction_evaluate=0.0."
)


def _say(level: int, line: str) -> None:
    log(level, "quietbit: %s", line)


@final
class PrivateStrategy(Strategy):
    """``PrivateStrategy(FedAvg(...), context.run_config)``: use it as the strategy it wraps.

    The settings come from the run config (docs/reference/plan.md has the keys). ``members`` says
    who the members of masked sums are, where the server may lie. ``parts`` are capabilities of your
    own. ``basis`` gives the directions of a subspace, where the plan has one: a `Subspace`, or
    the path of an .npy file. `report` says what happened.
    """

    def __init__(
        self,
        inner: Strategy,
        run_config: Mapping[str, Any],
        *,
        members: MemberList | None = None,
        parts: Sequence[Part] = (),
        basis: Basis | None = None,
    ) -> None:
        """Read the settings; refuse strategies that need single clients' replies."""
        check_inner(inner)
        self.inner = inner
        self.settings = Plan.from_run_config(run_config)
        self._run = Run(
            self.settings,
            0,
            _say,
            tuple(parts),
            protect=PROTECT,
            members=members,
            basis=basis,
        )
        self._evaluating = self._run.find(Evaluation)
        self._round: Round | None = None
        self._answers: Round | None = None
        self._transport: GridTransport | None = None
        self._planned = 0
        self._scores: list[dict[str, float]] = []
        self._history: list[MetricRecord] = []  # of rounds and evaluations, as Flower keeps them
        self._warned = False  # that there are no numbers of evaluations
        self._step = server_step(inner, self.settings)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the rounds as Flower does, unless arrays of the model cannot be learnt."""
        model = self._model(initial_arrays)
        if model.layout.nameless(initial_arrays):
            _say(WARNING, NAMELESS)
        self.settings.mechanism_for(self._run.dimension(model.layout.dimension))
        self._planned = check_int(num_rounds, "num_rounds", 0)
        if evaluate_fn is not None:
            evaluate_fn = with_scores(evaluate_fn, self._scores)
        if self.settings.stragglers is not None:
            grid = cast(Grid, HurriedGrid(grid, self.settings.stragglers))
        options = (num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
        result = super().start(grid, initial_arrays, *options)
        if not result.arrays:  # no round changed it
            result.arrays = initial_arrays
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
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        if first:
            self._forecast(len(messages), grid)
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
            current.take(reply_of(reply))
        self._finish(current)
        arrays = None
        metrics = MetricRecord()
        try:
            step = self._run.step(current)
            if step.arrays is not None:
                arrays, metrics = self._stepped(current, step)
        except (NotFinite, Diverged) as error:  # an update too large for the model's type, or worse
            current.not_taken(error)
        current.skipped = arrays is None
        outcome = self._run.over(current)
        reason = self._run.ends()
        if reason is not None:
            raise QuietbitError(reason)
        if arrays is None:
            arrays = _arrays(current)
        numbers = round_metrics(self.settings, outcome)
        return arrays, self._kept(MetricRecord({**metrics, **numbers}))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's requests, with a private one where the plan evaluates."""
        messages = list(self.inner.configure_evaluate(server_round, arrays, config, grid))
        self._answers = None
        if self._evaluating is None:
            messages = [one for one in messages if not self._run.excludes(_receiver(one))]
            self._run.count_bytes(downlink=sum(wire_sizes(messages)))
            return messages
        if not messages:
            self._warn(NOBODY_ASKED)
            return messages
        self._run.number = grid.run.run_id
        self._answers = self._run.open_answers(server_round)
        return self._ask(self._answers, messages, arrays, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the numbers that owners let out with the inner strategy, and add ours.

        Every node counts as one, whatever weight it sends. Where nodes disagree on which numbers
        they send, the largest group is taken. What a node sends cannot end the run: numbers that
        are none are dropped, and an inner strategy that fails on the rest has no metrics in this
        round.
        """
        messages = list(replies)
        numbers = []
        for message in messages:
            reply = reply_of(message)
            if self._answers is not None:
                self._answers.take(reply)
            else:
                self._run.take_beside(reply)
            numbers.append((message, reply.metrics))
        groups = group_by_names(self.inner, numbers)
        estimates = self._estimates()
        if messages and not groups and not estimates:
            self._warn(NO_NUMBERS)
        metrics = aggregate_numbers(self.inner, server_round, groups)
        if not metrics and not estimates:
            return None
        return self._kept(MetricRecord({**metrics, **estimates}))

    def summary(self) -> None:
        """Log the settings, then the inner strategy's summary."""
        settings = [f"{key}={value}" for key, value in self.settings.to_run_config().items()]
        log(INFO, "\t├──> quietbit: %s", ", ".join(settings))
        with without_untrue():
            self.inner.summary()

    def report(self) -> Report:
        """Return rounds, nodes, bytes and the guarantee of the worst client so far."""
        return self._run.report(self._scores)

    def _model(self, arrays: ArrayRecord) -> Model:
        """Return the model of a round; refuse one that is not finite."""
        engine = f"{type(self.inner).__name__} is not plain averaging"
        model = Model.of(dict(arrays), self.settings.local_arrays, self._step, engine)
        model.layout.check_finite(arrays)
        return model

    def _ask(
        self, current: Round, messages: list[Message], arrays: ArrayRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a round, with quietbit's records in them."""
        requests = []
        receivers = Counter(map(_receiver, messages))
        most = max(receivers.values(), default=1)
        require(most == 1, "requests to one node in a round of the inner strategy", most, "1")
        for place, message in enumerate(messages):
            with_model = any(record is arrays for record in message.content.values())
            requests.append(Asked(_receiver(message), place=place, carries_model=with_model))
        kind = messages[0].metadata.message_type if messages else MessageType.TRAIN
        if requests and all(self._run.excludes(node) for node in grid.get_node_ids()):
            raise QuietbitError(f"{self.report().promise()} No other node is left. {PROTECT}")
        current.start(self._run.allowed(requests))
        self._transport = GridTransport(grid, kind)
        ask = self._transport.drive(current)
        if ask is None:
            return []
        placed = [messages[asked.place] for asked in ask.requests]
        return address(ask, current, placed, arrays)

    def _finish(self, current: Round) -> None:
        """Ask what a round asks once its releases are here: what unmasks a sum."""
        if self._transport is not None:
            self._transport.drive(current)

    def _forecast(self, asked: int, grid: Grid) -> None:
        """Say what to expect of a run that asks this many nodes in each round."""
        rounds = self._planned or self.settings.releases or 1
        if self.settings.stragglers is not None:
            asked = min(asked, self.settings.stragglers.enough)
        self._run.forecast(asked=asked, nodes=len(list(grid.get_node_ids())), rounds=rounds)

    def _stepped(self, current: Round, step: Step) -> tuple[ArrayRecord | None, MetricRecord]:
        """Take the inner strategy's step; refuse a model that is not finite before or after it."""
        moved = {name: Array(np.asarray(value)) for name, value in (step.arrays or {}).items()}
        model = current.model
        if model is None:
            return None, MetricRecord()
        model.layout.check_finite(moved)
        arrays = ArrayRecord({**model.arrays, **moved})
        metrics = current.metrics()
        aggregated, numbers = aggregate_mean(self.inner, current.number, arrays, metrics)
        if step.final:
            return arrays, numbers
        if aggregated is None:
            return None, numbers
        return as_before(aggregated, model), numbers

    def _estimates(self) -> dict[str, MetricRecordValues]:
        """Close the evaluation that is open; return its estimates and the cost so far."""
        if self._evaluating is None or self._answers is None:
            return {}
        self._finish(self._answers)
        report = self._run.close_answers(self._answers, self._answers.number)
        self._answers = None
        return estimate_metrics(report, self._run.epsilon_upper())

    def _kept(self, metrics: MetricRecord) -> MetricRecord:
        """Return metrics that Flower keeps; a run without a guarantee has no epsilon in any."""
        self._history.append(metrics)
        if self._run.unprotected:
            for record in self._history:
                record.pop(EPSILON, None)
        return metrics

    def _warn(self, line: str) -> None:
        """Say once per run why there are no numbers of evaluations."""
        if not self._warned:
            self._warned = True
            _say(WARNING, line)


def _receiver(message: Message) -> int:
    return message.metadata.dst_node_id


def _arrays(current: Round) -> ArrayRecord | None:
    return None if current.model is None else ArrayRecord(dict(current.model.arrays))
