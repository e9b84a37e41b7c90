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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import INFO, WARNING, LogRecord, getLogger
from typing import Any, TypeAlias, cast, final

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

from quietbit._typing import FloatVector
from quietbit.errors import QuietbitError, check_int, require
from quietbit.flower.arriving import ArrivingGrid
from quietbit.flower.round import OpenRound, SecureRound, metrics_of
from quietbit.mechanism.abilities import Scouted
from quietbit.mechanism.base import Mechanism
from quietbit.node.request import ALONE
from quietbit.run.layout import ModelLayout, NotFinite
from quietbit.run.messages import (
    ENCLOSED,
    METRICS,
    MODEL,
    RECORD,
    SPEED,
    SUM,
    request_record,
    sum_request,
)
from quietbit.run.part import Part
from quietbit.run.parts.evaluation import Evaluation
from quietbit.run.parts.replay import Leader
from quietbit.run.parts.subspace import Basis
from quietbit.run.plan import Plan
from quietbit.run.report import Report, RoundReport
from quietbit.run.server import Run
from quietbit.secagg.identity import Directory
from quietbit.wire.downlink import Diverged, ServerStep
from quietbit.wire.uplink import pooled

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
    "arrays have numbers for names, and counters among them: if these belong to BatchNorm, its running variances are "
    "learnt with noise on them, and spoil the model. Hand over a state_dict, by name."
)
NOBODY_ASKED = (
    "quietbit.evaluate sets a part of the budget aside, but the strategy evaluates on no node: raise "
    "fraction_evaluate, or leave quietbit.evaluate out."
)
NO_NUMBERS = (
    "nodes answer evaluations with nothing, unless quietbit.evaluate asks for a private answer: evaluate on the server "
    "(evaluate_fn), and save the messages with fraction_evaluate=0.0."
)
COUNTS = ("asked", "answered", "declined", "failed", "refused")  # of a round, in Flower's result
EPSILON = "quietbit-epsilon"  # what the run has cost the worst client so far, in Flower's result
AnyRound: TypeAlias = OpenRound | SecureRound
UNSAID = (
    "Weighted by",
    "Received %s results and %s failures",
)  # what is not so when every reply is one private mean


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
        """Read the settings; refuse what is not a strategy, and those that need single clients' replies."""
        require(
            isinstance(inner, Strategy), "inner strategy", type(inner).__name__, "a Flower strategy"
        )
        kinds = {kind.__name__ for kind in type(inner).__mro__}
        found = sorted(kinds & set(SINGLE))
        require(
            not found,
            "inner strategy",
            type(inner).__name__,
            "one that works on the mean of clients alone",
        )
        self.inner, self.settings = inner, Plan.from_run_config(run_config)
        self._active = self.settings.masks is not None and self.settings.masks.active
        fine = isinstance(directory, Directory) if self._active else directory is None
        rule = "a Directory where quietbit.masks.server is active, and left out elsewhere"
        require(fine, "directory", type(directory).__name__, rule)
        self._directory, self._places = directory, dict[int, int]()
        self._run = Run(self.settings, 0, _say, tuple(parts), basis)
        self._open: AnyRound | None = None
        self._evaluating: AnyRound | None = None
        self._planned = 0
        self._arriving: ArrivingGrid | None = None
        self._late: list[AnyRound] = []  # rounds that releases may still join
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
        """Flower's own, after a look at the model: arrays that cannot be learnt are refused before anybody is asked."""
        layout = ModelLayout.of(initial_arrays, self.settings)
        layout.check_finite(initial_arrays)
        if layout.nameless(initial_arrays):
            self._run.say(WARNING, NAMELESS)
        self.settings.mechanism_for(self._run.dimension(layout.dimension))
        self._planned = check_int(num_rounds, "num_rounds", 0)

        def scored(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            found = evaluate_fn(number, arrays) if evaluate_fn is not None else None
            numbers = {k: float(v) for k, v in (found or {}).items() if isinstance(v, int | float)}
            self._scores += [{"round": number, **numbers}] if numbers else []
            return found

        arrivals = self.settings.arrivals
        if arrivals is not None:
            grid = self._arriving = ArrivingGrid(grid, arrivals.enough, arrivals.staleness)
        result = super().start(
            grid,
            initial_arrays,
            num_rounds,
            timeout,
            train_config,
            evaluate_config,
            scored if evaluate_fn else None,
        )
        if not result.arrays:  # no round changed it
            result.arrays = initial_arrays
        self._close_late(0)
        report = self.report()
        self._run.say(INFO, report.promise())
        if (nobody := report.unanswered()) is not None:
            raise QuietbitError(nobody)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's requests, with quietbit's settings beside the model."""
        layout, run = ModelLayout.of(arrays, self.settings), self._run
        layout.check_finite(arrays)
        first, run.number = not (run.rounds or self._late), grid.run.run_id
        mechanism = run.mechanism(layout.dimension, server_round)
        if self._arriving is not None:
            self._arriving.begin(server_round, last=server_round == self._planned)
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        if run.crowds.secret:
            self._readdress(messages, grid)
        _ask_for(messages, server_round, mechanism)
        run.lead(
            server_round,
            arrays,
            layout,
            self._step,
            f"{type(self.inner).__name__} is not plain averaging",
        )
        if run.leader is not None:
            _shorten(messages, arrays, run.leader)
        _enclose(messages, run)
        if first:
            rounds = self._planned or self.settings.releases or 1
            asked = len(messages)
            if self.settings.arrivals is not None:
                asked = min(asked, self.settings.arrivals.enough)
            run.outlook(asked=asked, nodes=len(list(grid.get_node_ids())), rounds=rounds)
        apart: tuple[list[Message], list[Message]] = [], []
        for message in messages:
            apart[run.scouts(mechanism, server_round, message.metadata.dst_node_id)].append(message)
        self._open = self._round(grid, server_round, arrays, layout, mechanism)
        requests = self._open.ask(apart[0])
        if not apart[1]:
            return requests
        scout = Scouted.of(mechanism).scout()
        scouts = self._open.scouts = run.open(
            OpenRound, server_round, scout, arrays={}, layout=layout
        )
        told = {RECORD: ConfigRecord(request_record(server_round, scouts.mechanism))}
        if self.settings.masks is not None:
            told[SUM] = ConfigRecord(sum_request(ALONE, len(messages), 1))
        contents = {
            id(message.content): RecordDict({**message.content, **told}) for message in apart[1]
        }
        for message in apart[1]:
            message.content = contents[id(message.content)]
        return [*requests, *scouts.ask(apart[1])]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the inner strategy's step on the private mean, and return its metrics with ours beside them."""
        current, self._open = self._open, None
        if current is None or current.number != server_round:
            raise QuietbitError(
                f"Round {server_round} was not opened by configure_train, or is closed already."
            )
        late = {
            str(one.number): one for one in self._late
        }  # by the group of a reply, as the grid writes it
        scouts = cast(OpenRound | None, current.scouts)
        for reply in replies:
            mine = (
                scouts if scouts is not None and scouts.asked(reply.metadata.src_node_id) else None
            )
            (mine or late.get(reply.metadata.group_id, current)).take(reply)
        mean = current.mean() if self._run.leader is None else current.kept()
        if self._late:
            mean = pooled(one.drained() for one in (current, *self._late))
        arrays, metrics = None, MetricRecord()
        try:
            if mean is not None:
                arrays, metrics = self._stepped(current, mean)
        except (
            NotFinite,
            Diverged,
        ) as error:  # an update too large for the model's type, or a strategy that diverged
            current.reasons.append(f"the step was not taken: {error}")
        current.skipped = arrays is None
        numbers = MetricRecord({**metrics, **self._numbers(self._over(current))})
        crashed = self._run.all_crashed()
        if crashed is not None:
            raise QuietbitError(crashed)
        return ArrayRecord(current.arrays) if arrays is None else arrays, numbers

    def _over(self, current: AnyRound) -> RoundReport:
        """Close a round, or leave it open for as many rounds as its releases may be late."""
        arrivals = self.settings.arrivals
        if arrivals is None or not arrivals.staleness:
            outcome = self._run.close(current)
            self._stop_where_all_crash()
            return outcome
        current.drained()
        self._late.append(current)
        self._close_late(arrivals.staleness)
        return self._run.so_far(current)

    def _stop_where_all_crash(self) -> None:
        """End a simulation in which every app crashed in two rounds in a row: it would learn from zeros to its end."""
        last = self._run.rounds[-2:]
        if len(last) == 2 and all(entry.asked and entry.crashed == entry.asked for entry in last):
            raise QuietbitError(
                f"The apps of all {last[-1].asked} simulated nodes crashed in rounds {last[0].round} and "
                f"{last[1].round}: the log has the first traceback."
            )

    def _close_late(self, keep: int) -> None:
        """Close all rounds that releases may still join but the last ``keep``."""
        while len(self._late) > keep:
            self._run.close(self._late.pop(0))

    def _stepped(
        self, current: AnyRound, mean: FloatVector
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """Take the inner strategy's step on the mean; refuse a model that would not be finite, before and after it."""
        layout, leader = current.layout, self._run.leader
        if leader is None:
            stepped = layout.stepped(current.arrays, current.lift(mean))
        else:  # as nodes will take it; the inner strategy is asked for metrics alone
            stepped = leader.advance(mean, current.mechanism, current.number)
        moved = {name: Array(np.asarray(value)) for name, value in stepped.items()}
        layout.check_finite(moved)
        arrays = ArrayRecord({**current.arrays, **moved})
        with _plain_words():
            # Numbers that owners let out say who took part: where that is a secret they are not in
            # the result.
            told = {} if self._run.crowds.secret else current.metrics()
            found, metrics = self.inner.aggregate_train(
                current.number, [self._synthetic(arrays, told)]
            )
        kept = (
            arrays if leader is not None else None if found is None else _as_before(found, current)
        )
        return kept, metrics or MetricRecord()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's requests, with the priced request added where the plan evaluates."""
        messages = list(self.inner.configure_evaluate(server_round, arrays, config, grid))
        asked, self._evaluating = self._run.evaluation, None
        if asked is not None and not messages:
            self._warn(NOBODY_ASKED)
        if asked is None or not messages:
            return messages
        layout = ModelLayout.of(arrays, self.settings)
        self._evaluating = self._round(grid, server_round, arrays, layout, asked.mechanism, asked)
        _ask_for(messages, server_round, asked.mechanism)
        return self._evaluating.ask(messages)

    def _round(
        self,
        grid: Grid,
        number: int,
        arrays: ArrayRecord,
        layout: ModelLayout,
        mechanism: Mechanism,
        asked: Evaluation | None = None,
    ) -> AnyRound:
        """Open a round of updates or, where something is ``asked`` about the model, of answers."""
        plan, self._run.number = self.settings, grid.run.run_id
        common: Any = {"arrays": dict(arrays), "layout": layout, "evaluates": asked is not None}
        if plan.masks is None:
            return self._run.open(OpenRound, number, mechanism, **common)
        common |= {
            "settings": plan,
            "grid": grid,
            "directory": self._directory,
            "places": self._places,
        }
        return self._run.open(SecureRound, number, mechanism, evaluation=asked, **common)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the numbers that nodes let through with the inner strategy; without any there is nothing to do.

        Every node counts as one, whatever weight it sends. Where nodes disagree on which numbers
        they send, the largest group is taken. What a node sends cannot end the run: numbers that
        are none are dropped, and an inner strategy that fails on the rest has no metrics in this
        round.
        """
        weight = getattr(self.inner, "weighted_by_key", "num-examples")
        named, asked, answers = [], 0, self._evaluating
        for reply in replies:
            asked += 1
            if answers is not None:
                answers.take(reply)
            numbers = metrics_of(reply.content) if reply.has_content() else {}
            if set(numbers) <= {weight}:
                continue
            reply.content = RecordDict({METRICS: MetricRecord({**numbers, weight: 1.0})})
            named.append((tuple(sorted(numbers)), reply))
        told = self._evaluated()
        if not named:
            if told:
                return MetricRecord(told)
            if asked:
                self._warn(NO_NUMBERS)
            return None
        usual = Counter(names for names, _ in named).most_common(1)[0][0]
        try:
            with _plain_words():
                theirs = self.inner.aggregate_evaluate(
                    server_round, [one for names, one in named if names == usual]
                )
                return MetricRecord({**(theirs or {}), **told})
        except Exception as error:
            log(
                WARNING,
                "quietbit: round %s: metrics of nodes could not be aggregated",
                server_round,
                exc_info=error,
            )
            return MetricRecord(told) if told else None

    def _warn(self, line: str) -> None:
        """Say once per run why there are no numbers of evaluations."""
        if not self._warned:
            self._warned = True
            self._run.say(WARNING, line)

    def _evaluated(self) -> dict[str, MetricRecordValues]:
        """Close the evaluation that is open, and return its estimates and the cost so far for Flower's result."""
        current = self._evaluating
        if current is None:
            return {}
        self._evaluating = None
        outcome = self._run.evaluated(current, current.number)
        metrics: dict[str, MetricRecordValues] = {}
        if outcome.estimates:
            for end, name in (("", "value"), ("-low", "low"), ("-high", "high")):
                values = [getattr(estimate, name) for estimate in outcome.estimates]
                metrics[f"{outcome.metric}{end}"] = values[0] if len(values) == 1 else values
        metrics[EPSILON] = self._run.epsilon_upper()
        return metrics

    def summary(self) -> None:
        """Log the settings, then the inner strategy's summary."""
        log(
            INFO,
            "\t├──> quietbit: %s",
            ", ".join(f"{k}={v}" for k, v in self.settings.to_run_config().items()),
        )
        with _plain_words():
            self.inner.summary()

    def report(self) -> Report:
        """Return rounds, nodes, bytes and the guarantee of the worst client so far."""
        return self._run.report(self._scores)

    def _readdress(self, messages: list[Message], grid: Grid) -> None:
        """Address the inner strategy's requests, as many as it asks, to the next nodes of the secret order."""
        alike = len({id(message.content) for message in messages}) <= 1
        require(
            alike,
            "inner strategy",
            type(self.inner).__name__,
            "one that asks all nodes alike, for a secret order",
        )
        nodes = self._run.crowds.cohort(grid.get_node_ids(), len(messages))
        for message, node in zip(messages, nodes, strict=True):
            message.metadata.dst_node_id = node

    def _numbers(self, outcome: RoundReport) -> dict[str, MetricRecordValues]:
        """Return our own metrics of a round, for Flower's result.

        Bytes depend on who took part (the length of a node's id, the metrics that its owner lets
        out), so where the order is secret they are in the server's report alone.
        """
        more: dict[str, MetricRecordValues] = {}
        if outcome.clip is not None:
            more = {"quietbit-clip": outcome.clip, "quietbit-scouted": outcome.scouted}
        more |= {} if self._run.leader is None else {"quietbit-resyncs": outcome.resyncs}
        if not self._run.crowds.secret:
            more |= {
                "quietbit-uplink-bytes": outcome.uplink,
                "quietbit-downlink-bytes": outcome.downlink,
            }
        counts = {f"quietbit-{name}": getattr(outcome, name) for name in COUNTS}
        return {**more, **counts, EPSILON: outcome.epsilon_upper}

    def _synthetic(self, arrays: ArrayRecord, metrics: dict[str, float]) -> Message:
        """One reply that stands for the round; its weight is 1."""
        weight = getattr(self.inner, "weighted_by_key", "num-examples")
        key = getattr(self.inner, "arrayrecord_key", "arrays")
        record = MetricRecord({**metrics, weight: 1.0})
        return Message(
            RecordDict({key: arrays, "metrics": record}),
            dst_node_id=0,
            message_type=MessageType.TRAIN,
        )


def _server_step(inner: Strategy, plan: Plan) -> ServerStep | None:
    """Return the step that nodes replay; None if there is none or the strategy does anything else with a mean."""
    how = type(inner).aggregate_train
    if plan.replay is None:
        return None
    own = plan.replay.step == ServerStep(1.0, 0.0) or how is FedAvg.aggregate_train
    rule = f"left out: {type(inner).__name__} steps by itself"
    require(own, "quietbit.replay.learning-rate", plan.replay.learning_rate, rule)
    if how is FedAvgM.aggregate_train:
        return ServerStep(inner.server_learning_rate, inner.server_momentum)  # type: ignore[attr-defined]
    return plan.replay.step if how is FedAvg.aggregate_train else None


def _ask_for(messages: list[Message], server_round: int, mechanism: Mechanism) -> None:
    """Put the request into the contents of messages, which may be shared."""
    request = ConfigRecord(request_record(server_round, mechanism))
    for content in {id(message.content): message.content for message in messages}.values():
        content[RECORD] = request


def _shorten(messages: list[Message], arrays: ArrayRecord, leader: Leader) -> None:
    """Put into every message what its node missed, in the model's place or beside it; equal contents stay shared."""
    made: dict[tuple[int, int], RecordDict] = {}
    for message in messages:
        content = message.content
        if not any(record is arrays for record in content.array_records.values()):
            continue  # another model than the one that is replayed
        missed = leader.missed(message.metadata.dst_node_id)
        key = id(content), -1 if missed is None else len(missed)
        if key not in made:
            rest = {
                name: record
                for name, record in content.items()
                if missed is None or record is not arrays
            }
            made[key] = RecordDict({**rest, MODEL: ConfigRecord(leader.record(missed))})
            if missed is None and leader.speed is not None:
                made[key][SPEED] = ArrayRecord({SPEED: Array(leader.speed)})
        message.content = made[key]


def _enclose(messages: list[Message], run: Run) -> None:
    """Put into every message the arrays that parts send to its node; equal contents stay shared."""
    made: dict[int, RecordDict] = {}
    for message in messages:
        enclosed = run.enclosed(message.metadata.dst_node_id)
        if not enclosed:
            continue
        key = id(message.content)
        if key not in made:
            arrays = {name: Array(np.asarray(value)) for name, value in enclosed.items()}
            made[key] = RecordDict({**message.content, ENCLOSED: ArrayRecord(arrays)})
        message.content = made[key]


def _say(level: int, line: str) -> None:
    log(level, "quietbit: %s", line)


@contextmanager
def _plain_words() -> Iterator[None]:
    """Leave out of Flower's log what the inner strategy says of weights and of replies, and nothing else."""

    def said(record: LogRecord) -> bool:
        return not any(words in str(record.msg) for words in UNSAID)

    logger = getLogger("flwr")
    logger.addFilter(said)
    try:
        yield
    finally:
        logger.removeFilter(said)


def _as_before(found: ArrayRecord, current: AnyRound) -> ArrayRecord:
    """Return the inner strategy's arrays in the types they had, and the kept ones as they were; refuse infinities."""
    kinds = {name: kind for name, _, kind in current.layout.learnt}
    require(
        set(found) == set(current.arrays),
        "arrays of the inner strategy",
        sorted(found),
        "those of the model",
    )
    with np.errstate(over="ignore"):
        stepped = {
            name: Array(found[name].numpy().astype(kind, copy=False))
            for name, kind in kinds.items()
        }
    current.layout.check_finite(stepped)
    return ArrayRecord({**current.arrays, **stepped})
