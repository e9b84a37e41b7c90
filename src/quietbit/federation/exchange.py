"""A run on an engine that asks nodes one at a time, and averages what it is handed for each.

Idea     such an engine sees no round: a task goes out to one node, and its result comes back by
         itself. Here the tasks of a round become requests of one `Round`, and each result becomes a
         `Contribution`: the unbiased estimate of its own release, of weight one, and an estimate of
         the metric, where the model is asked about beside the update or by itself. Where nodes take
         the steps of a run themselves (`Model.nodes_step`), the step is taken here, and the engine
         adds zeros.

A node that declines, fails or is refused has no estimate. Its contribution is zero, of weight
2^-100, which is lost in rounding beside any other node's 1: an engine may end a run, or empty its
model, where it is handed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
from attrs import define, evolve, field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import InvalidPayload, QuietbitError, one_line, refuse_payload
from quietbit.federation.collectors import Singles
from quietbit.federation.layout import ModelLayout
from quietbit.federation.messages import ABOUT, UPDATE, Asked, Node, Reply, pieces_of
from quietbit.federation.part import Model
from quietbit.federation.parts.evaluation import Evaluation
from quietbit.federation.record import Outcome
from quietbit.federation.round import Round
from quietbit.federation.server import Run
from quietbit.wire.downlink import Diverged

__all__ = ["NO_WEIGHT", "Contribution", "Exchange", "Exchanges", "Result"]

NO_WEIGHT = 2.0**-100


@final
@frozen(eq=False)
class Result:
    """What came from a node: its size, and what it says to each request, by `UPDATE` and `ABOUT`.

    Nothing is checked yet. A result is ``unprotected`` if it holds what no gate lets out; then no
    release in it is used.
    """

    sender: Node
    size: int
    replies: Mapping[str, Reply]
    unprotected: bool = False


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
class Exchange:
    """What one node was asked in one message, and the rounds that ask, by `UPDATE` and `ABOUT`.

    ``update`` is the request for an update to a model of this ``layout``.
    """

    node: Node
    rounds: dict[str, Round]
    update: Asked | None = None
    layout: ModelLayout | None = None

    @property
    def first(self) -> Round:
        """The round that counts the message."""
        return next(iter(self.rounds.values()))

    @property
    def is_over(self) -> bool:
        """Whether all rounds are over."""
        return all(current.is_over for current in self.rounds.values())


@final
@define(eq=False)
class Exchanges:
    """The requests of a run to single nodes: its open round, and evaluations side by side."""

    run: Run
    _current: Round | None = field(default=None, init=False)
    _is_stepped: bool = field(default=False, init=False)
    _sizes: dict[Any, int] = field(factory=dict, init=False)  # of messages, by what they hold
    # By the round that trains a model, or by its name.
    _evaluations: dict[int | str, Round] = field(factory=dict, init=False)
    _number: int = field(default=0, init=False)  # of the last one: nodes want growing numbers
    _evaluating: Evaluation | None = field(init=False)

    @_evaluating.default
    def _part(self) -> Evaluation | None:
        return self.run.find(Evaluation)

    def ask_update(self, node: Node, number: int, model: Model, *, evaluates: bool) -> Exchange:
        """Ask for an update and, if it ``evaluates`` and that is due, about the round's model."""
        current = self._open(number, model)
        self._check_protected(node)
        (asked,) = current.ask([Asked(node)])
        rounds = {UPDATE: current.of(node)}
        part = self._evaluating
        releases = self.run.plan.releases
        if evaluates and part is not None and part.due(number, releases):
            rounds[ABOUT] = self._answers(number, number)
        return Exchange(node, rounds, asked, model.layout)

    def ask_about(self, node: Node, model: str, *, again: bool) -> Exchange:
        """Ask about a model by its name alone; ``again`` says that it is the same request.

        A node that was asked before is asked about a later state of the model.
        """
        self._check_protected(node)
        current = self._evaluations.get(model)
        if current is not None and current.asked(node) and not again:
            self._end(model)
        return Exchange(node, {ABOUT: self._answers(model)})

    def sent(self, exchange: Exchange, measure: Callable[[], int]) -> None:
        """Note a request as sent; messages that hold the same are measured once per round."""
        asked = exchange.update
        about = exchange.rounds.get(ABOUT)
        if about is not None:
            alone = Asked(exchange.node)
            about.ask([alone])
            if asked is None:
                alone.size = measure()
            about.sent(alone)
        if asked is not None:
            key = (asked.carries_model, *map(id, asked.records.values()))
            if key not in self._sizes:
                self._sizes[key] = measure()
            asked.size = self._sizes[key]
            exchange.rounds[UPDATE].sent(asked)

    def take(self, result: Result, exchange: Exchange | None) -> Contribution:
        """Count a result, and what it may release, asked for or not; take what was asked for.

        ``exchange`` is None where it answers nothing that was asked. The metrics that owners let
        out stand beside valid releases alone.
        """
        self._arrived(result, exchange)
        if exchange is None:
            return Contribution(None)
        update = None if exchange.layout is None else np.zeros(exchange.layout.dimension)
        weight = NO_WEIGHT
        metrics: dict[str, Any] = {}
        for name, current in exchange.rounds.items():
            reply = result.replies[name]
            if result.unprotected or not _takes(current, exchange.node, reply):
                continue
            metrics.update(reply.metrics)
            latest = None
            if isinstance(current.collector, Singles):
                latest = current.collector.latest()
            if name == ABOUT and latest is not None and self._evaluating is not None:
                evaluation = self._evaluating
                metrics[evaluation.asked.metric] = evaluation.metric_of(latest[0])
            elif latest is not None:
                update = current.lift(latest[0])
                weight = latest[1]
            elif not current.scope.section:  # what is asked in place of an update has no weight
                weight = 1.0
        return Contribution(update, weight, metrics)

    def aggregates(self) -> str | None:
        """Note that the engine aggregates the open round: releases that come now are late.

        Returns why the run must end, if it must.
        """
        current = self._current
        if current is None:
            return None
        current.end()
        if current.number in self._evaluations:
            self._evaluations[current.number].end()
        if current.answered or not current.unprotected:
            return None
        self.close()
        return self.run.ends()

    def step(self) -> Mapping[str, Any]:
        """Take the open round's step, once, if nodes take it themselves; return its arrays."""
        current = self._current
        if current is None or self._is_stepped or current.scope.nodes_step is None:
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
            # The engine keeps its requests, and these their rounds, which must keep no models.
            self._current.scope = evolve(self._current.scope, model=None)
            self._current.side = None
        for model in list(self._evaluations):
            self._end(model)
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

    def _answers(self, model: int | str, number: int = 0) -> Round:
        """Return the answers about a model; a new evaluation has at least this number."""
        if model not in self._evaluations:
            self._number = max(number, self._number + 1)
            self._evaluations[model] = self.run.open_answers(self._number)
        return self._evaluations[model]

    def _end(self, model: int | str) -> None:
        """Report an evaluation; what round 3 trains is reported as the model of round 2."""
        answers = self._evaluations.pop(model)
        if isinstance(model, str):
            self.run.close_answers(answers, len(self.run.rounds), model)
        else:
            self.run.close_answers(answers, model - 1)

    def _check_protected(self, node: Node) -> None:
        """Refuse to ask a node that sent an unprotected reply."""
        if self.run.excludes(node):
            raise QuietbitError(
                f"The workflow asks {one_line(node)} again, which sent an unprotected reply: leave "
                "it out."
            )

    def _arrived(self, result: Result, exchange: Exchange | None) -> None:
        """Count a result before it is taken, and what it may release beside what was asked for."""
        sender = result.sender
        asked: Mapping[str, Round] = {}
        if exchange is not None and not (result.unprotected and exchange.is_over):
            asked = exchange.rounds
            exchange.first.uplink += result.size
            if result.unprotected:
                exchange.first.unprotect(sender)
        else:
            self.run.take_beside(Reply(sender, result.size, unprotected=result.unprotected))
            if self._current is not None and not result.unprotected:
                error = InvalidPayload("it answers no task that was sent.")
                self._current.refuse(sender, error)
        for name, reply in result.replies.items():
            release = pieces_of(reply.records)
            if name in asked:
                asked[name].came(sender, release)
            elif name == UPDATE:
                self.run.take_beside(reply)
            elif release and self._evaluating is not None:
                self._evaluating.counts[sender].extra += 1


def _takes(current: Round, node: Node, reply: Reply) -> bool:
    """Return whether a round takes a reply to what a node was asked; it is noted where not."""
    try:
        if reply.node != node:
            refuse_payload("client of the result", str(node), one_line(reply.node))
        return current.take(reply) is Outcome.TAKEN
    except Exception as error:  # whatever a node can make of it: what else it was asked stands
        current.refuse(node, error)
        return False
