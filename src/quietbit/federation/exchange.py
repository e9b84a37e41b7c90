"""A run on an engine that asks nodes one at a time, and averages what it is handed for each.

Idea     such an engine sees no round: a task goes out to one node, and its result comes back by
         itself. Here the tasks of a round become requests of one `Round`, and each result becomes a
         `Contribution`: the unbiased estimate of its own release, of weight one, and an estimate of
         the metric, where the model is asked about beside the update or by itself. Where nodes take
         the steps of a run themselves (`Part.takes_step`), the step is taken here, and the engine
         adds zeros.

A node that declines, fails or is refused has no estimate. Its contribution is zero, of weight
2^-100, which is lost in rounding beside any other node's 1: an engine may end a run, or empty its
model, where it is handed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast, final

import numpy as np
from attrs import define, evolve, field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import InvalidPayload, QuietbitError, one_line, refuse_payload
from quietbit.federation.collectors import Singles
from quietbit.federation.messages import FIELD, RECORD, Asked, Node, Reply
from quietbit.federation.part import Model
from quietbit.federation.parts.evaluation import Evaluating, Evaluation
from quietbit.federation.record import Outcome
from quietbit.federation.round import Round
from quietbit.federation.server import Run
from quietbit.wire.downlink import Diverged

__all__ = ["NO_WEIGHT", "Answer", "Contribution", "Exchange", "Exchanges", "Message"]

NO_WEIGHT = 2.0**-100
Answer: TypeAlias = Reply | Exception  # what a node answered, or why it cannot be read


@final
@frozen(eq=False)
class Contribution:
    """What an engine averages for one node: *received minus trained*, a weight, and metrics.

    ``update`` is None where none was asked for.
    """

    update: FloatVector | None
    weight: float = NO_WEIGHT
    metrics: Mapping[str, Any] = field(factory=dict)


@final
@frozen(eq=False)
class Message:
    """What came from a node, before it is known whether it answers what the node was asked.

    ``update`` and ``about`` are what may be a release, valid or not: of an update, and about the
    model. A message is ``unprotected`` if it holds what no gate lets out.
    """

    sender: Node
    size: int
    update: bytes = b""
    about: bytes = b""
    unprotected: bool = False


@final
@define(eq=False)
class Exchange:
    """What one node was asked in one message: for an update, about the model, or both."""

    node: Node
    update: Asked | None = None
    round: Round | None = None  # that asks for the update, or for something else in its place
    about: Round | None = None  # the answers about the model
    model: Model | None = None
    is_open: bool = True

    def rounds(self) -> list[Round]:
        """Return the rounds that count the node."""
        return [current for current in (self.round, self.about) if current is not None]

    def came(self, message: Message) -> Message:
        """Count a message before it is read; return what of it was not asked for."""
        sender = message.sender
        first = self.rounds()[0]
        first.arrived(Reply(sender, message.size))
        rest = evolve(message, size=0)
        if message.unprotected:
            first.unprotect(sender)
        elif self.round is not None:
            self.round.came(sender, message.update)
            rest = evolve(rest, update=b"")
        if self.about is not None:
            self.about.came(sender, message.about)
            rest = evolve(rest, about=b"")
        return evolve(rest, unprotected=False)

    def expect(self, sender: str) -> None:
        """Refuse a second answer, and one of another node."""
        if not self.is_open:
            raise InvalidPayload("it has answered this task already.")
        if sender != self.node:
            refuse_payload("client of the result", str(self.node), one_line(sender))

    def refuse(self, error: Exception) -> None:
        """Note an answer of which nothing can be read."""
        for current in self.rounds():
            current.refuse(self.node, error)

    def nothing(self, metrics: Mapping[str, Any] | None = None) -> Contribution:
        """Return the contribution of a node without an update, which may have metrics."""
        return Contribution(self._zeros(), metrics=metrics or {})

    def take_update(self, answer: Answer) -> tuple[FloatVector, float] | None:
        """Take a release; return its estimate, zero where the engine must not add it, and weight.

        None without a valid release.
        """
        current = cast(Round, self.round)
        if not self._takes(current, answer):
            return None
        if isinstance(current.collector, Singles):
            latest = current.collector.latest()
            if latest is not None:
                return current.lift(latest[0]), latest[1]
        # What is asked in place of an update has no part in the step.
        weight = NO_WEIGHT if current.scope.section else 1.0
        return cast(FloatVector, self._zeros()), weight

    def take_about(self, answer: Answer) -> FloatVector | None:
        """Take an answer about the model; return the shares it estimates, None without one."""
        current = cast(Round, self.about)
        if not self._takes(current, answer):
            return None
        latest = cast(Singles, current.collector).latest()
        return None if latest is None else latest[0]

    def _takes(self, current: Round, answer: Answer) -> bool:
        """Return whether one part of an answer is taken in; it is noted where it is not."""
        if isinstance(answer, Exception):
            current.refuse(self.node, answer)
            return False
        try:
            outcome = current.take(answer)
        except Exception as error:  # whatever a node can make of it: the other part stands
            current.refuse(self.node, error)
            return False
        if outcome in (Outcome.TAKEN, Outcome.DECLINED, Outcome.SILENT):
            self.is_open = False
        return outcome is Outcome.TAKEN

    def _zeros(self) -> FloatVector | None:
        return None if self.model is None else np.zeros(self.model.layout.dimension)


@final
@define(eq=False)
class OpenEvaluations:
    """Evaluations that are open side by side, by the round that trains a model, or by its name."""

    run: Run
    evaluating: Evaluating
    _open: dict[int | str, Round] = field(factory=dict, init=False)
    _number: int = field(default=0, init=False)  # of the last one: nodes want growing numbers

    @property
    def evaluation(self) -> Evaluation:
        """What is asked about every model."""
        return self.evaluating.evaluation

    def is_due(self, number: int) -> bool:
        """Return whether a round asks about the model that it trains."""
        return self.evaluation.due(number, self.run.plan.releases)

    def answers(self, model: int | str, number: int = 0) -> Round:
        """Return the answers about a model; a new evaluation has at least this number."""
        if model not in self._open:
            self._number = max(number, self._number + 1)
            self._open[model] = self.run.open_answers(self._number)
        return self._open[model]

    def has_asked(self, model: int | str, node: Node) -> bool:
        """Return whether a node was asked about a model in an evaluation that is open."""
        return model in self._open and self._open[model].asked(node)

    def stop(self, model: int | str) -> None:
        """Take no more answers about a model."""
        if model in self._open:
            self._open[model].end()

    def end(self, model: int | str) -> None:
        """Report an evaluation; what round 3 trains is reported as the model of round 2."""
        answers = self._open.pop(model)
        if isinstance(model, str):
            self.run.close_answers(answers, len(self.run.rounds), model)
        else:
            self.run.close_answers(answers, model - 1)

    def end_all(self) -> None:
        """Report all evaluations that are open."""
        for model in list(self._open):
            self.end(model)


@final
@define(eq=False)
class Exchanges:
    """The requests of a run to single nodes: its open round and its open evaluations."""

    run: Run
    _current: Round | None = field(default=None, init=False)
    _is_stepped: bool = field(default=False, init=False)
    _sizes: dict[Any, int] = field(factory=dict, init=False)  # of messages, by what they hold
    _about: OpenEvaluations | None = field(init=False)

    @_about.default
    def _of_run(self) -> OpenEvaluations | None:
        evaluating = self.run.find(Evaluating)
        if evaluating is None:
            return None
        return OpenEvaluations(self.run, evaluating)

    def ask_update(self, node: Node, number: int, model: Model, *, evaluates: bool) -> Exchange:
        """Ask for an update and, if it ``evaluates`` and that is due, about the round's model."""
        current = self._open(number, model)
        self._check_protected(node)
        (asked,) = current.ask([Asked(node)])
        exchange = Exchange(node, asked, current.of(node), model=model)
        if evaluates and self._about is not None and self._about.is_due(number):
            exchange.about = self._about.answers(number, number)
        return exchange

    def ask_about(self, node: Node, model: str, *, again: bool) -> Exchange:
        """Ask about a model by its name alone; ``again`` says that it is the same request.

        A node that was asked before is asked about a later state of the model.
        """
        self._check_protected(node)
        evaluations = self._evaluations()
        if not again and evaluations.has_asked(model, node):
            evaluations.end(model)
        return Exchange(node, about=evaluations.answers(model))

    def sent(self, exchange: Exchange, measure: Callable[[], int]) -> None:
        """Note a request as sent; messages that hold the same are measured once per round."""
        if exchange.about is not None:
            alone = Asked(exchange.node)
            exchange.about.ask([alone])
            if exchange.update is None:
                alone.size = measure()
            exchange.about.sent(alone)
        asked = exchange.update
        if asked is not None:
            key = (asked.carries_model, *map(id, asked.records.values()))
            if key not in self._sizes:
                self._sizes[key] = measure()
            asked.size = self._sizes[key]
            if exchange.round is not None:
                exchange.round.sent(asked)

    def arrived(self, message: Message, exchange: Exchange | None = None) -> None:
        """Count a message before it is read, and what it may release, asked for or not."""
        rest = message
        if exchange is not None and not (message.unprotected and self._is_late(exchange)):
            rest = exchange.came(message)
        elif self._current is not None and not message.unprotected:
            error = InvalidPayload("it answers no task that was sent.")
            self._current.refuse(message.sender, error)
        records = {RECORD: {FIELD: rest.update}} if rest.update else {}
        self.run.take_beside(Reply(rest.sender, rest.size, records, unprotected=rest.unprotected))
        if rest.about and self._about is not None:
            self._about.evaluating.counts[rest.sender].extra += 1

    def take(
        self, exchange: Exchange, update: Answer | None = None, about: Answer | None = None
    ) -> Contribution:
        """Take what a node answered to each request that it was asked; return what it contributes.

        The metrics that owners let out stand beside valid releases alone.
        """
        shares = None
        if about is not None:
            shares = exchange.take_about(about)
        estimate = None
        if update is not None:
            estimate = exchange.take_update(update)
        metrics: dict[str, Any] = {}
        if estimate is not None:
            metrics.update(cast(Reply, update).metrics)
        if shares is not None:
            evaluation = self._evaluations().evaluation
            metrics.update(cast(Reply, about).metrics)
            metrics[evaluation.metric] = evaluation.metric_of(shares)
        if estimate is None:
            return exchange.nothing(metrics)
        return Contribution(*estimate, metrics)

    def aggregates(self) -> str | None:
        """Note that the engine aggregates the open round: releases that come now are late.

        Returns why the run must end, if it must.
        """
        current = self._current
        if current is not None:
            current.end()
            if self._about is not None:
                self._about.stop(current.number)
        if current is None or current.answered or not current.unprotected:
            return None
        self.close()
        return self.run.ends()

    def step(self) -> Mapping[str, Any]:
        """Take the open round's step, once, if nodes take it themselves; return its arrays."""
        current = self._current
        if current is None or self._is_stepped or not self.run.nodes_step:
            return {}
        self._is_stepped = True
        try:
            return self.run.step(current).arrays or {}
        except Diverged as error:
            current.not_taken(error)
            return {}

    def close(self) -> None:
        """Count the round that is open, if one is, and its evaluations."""
        if self._current is not None:
            self.run.over(self._current)
        if self._about is not None:
            self._about.end_all()
        self._current = None
        self._is_stepped = False
        self._sizes.clear()

    def _open(self, number: int, model: Model) -> Round:
        """Return the round of this number; a new one closes the one before."""
        if self._current is None or self._current.number != number:
            self.close()
            reason = self.run.ends()
            if reason is not None:
                raise QuietbitError(reason)
            self._current = self.run.open(number, model, singly=True)
        return self._current

    def _check_protected(self, node: Node) -> None:
        """Refuse to ask a node that sent an unprotected reply."""
        if self.run.excludes(node):
            raise QuietbitError(
                f"The workflow asks {one_line(node)} again, which sent an unprotected reply: leave "
                "it out."
            )

    def _is_late(self, exchange: Exchange) -> bool:
        """Return whether what a node was asked about is over."""
        return all(current.is_over for current in exchange.rounds())

    def _evaluations(self) -> OpenEvaluations:
        if self._about is None:
            raise QuietbitError("Set quietbit.evaluate to have evaluations answered.")
        return self._about
