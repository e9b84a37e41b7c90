"""An evaluation on an engine: the node's one answer, and what the server reads from all of them.

Idea     an answer is a release like any other: accepted and noted before the app is called, framed for this run, round
         and node, and made whatever the app did (of no cell where it failed). The server counts questions as it counts
         those for updates (`Round`), adds their price to that of the updates, and reports an interval per round.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

from attrs import frozen

from quietbit._typing import FloatVector
from quietbit.engine.report import EvaluationReport, NodeCounts, RoundReport
from quietbit.engine.turn import plan_of
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.mechanism.registry import identity_of
from quietbit.node.answer_time import AnswerTime
from quietbit.node.gatekeeper import Gate, Ticket
from quietbit.node.pricing import ProposedMechanism
from quietbit.node.question import Question
from quietbit.plan.evaluation import Evaluation
from quietbit.plan.plan import Plan
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee

__all__ = ["EvaluationTurn", "Evaluations", "evaluates", "evaluation_of"]

LOGGER = logging.getLogger(__name__)


@final
@frozen(eq=False)
class EvaluationTurn:
    """An accepted evaluation: which numbers the owner lets out besides, when the answer leaves, and its one release."""

    evaluation: Evaluation
    names: tuple[str, ...]
    moment: AnswerTime
    ticket: Ticket

    @classmethod
    def accept(cls, gate: Gate, question: Question, asked: Evaluation) -> EvaluationTurn:
        """Refuse a mechanism that is not the plan's own for evaluations; then accept and note the question."""
        found = ProposedMechanism.read(question.mechanism).mechanism
        same = identity_of(found) == identity_of(asked.mechanism)
        require(same, "mechanism of the evaluation", type(found).__name__, "the one of quietbit.evaluate")
        names, moment = gate.metrics, AnswerTime(gate.answer_seconds)
        return cls(asked, names, moment, gate.accept(question))

    def release(self, read: Callable[[], Any], crashes: list[BaseException]) -> bytes:
        """Return the randomised answer; of no cell where ``read`` raises or what it gets is not the metric.

        Nothing is read where there are ``crashes`` already, to which what it raises is added.
        """
        shares = None
        if crashes:
            return self.ticket.release(None)
        try:
            shares = self.evaluation.shares(read())
        except BaseException as error:  # whatever an app's objects do when they are looked at
            said = self.evaluation.metric
            LOGGER.error("quietbit: the app did not return %s; no cell is released", said, exc_info=error)
            crashes.append(error)
        return self.ticket.release(shares)


def evaluates(config: Mapping[str, Any]) -> bool:
    """Whether a run config asks for private answers to evaluations; one that cannot be read does not."""
    try:
        return plan_of(config).evaluation is not None
    except QuietbitError:
        return False


def evaluation_of(plan: Plan) -> Evaluation:
    """Return what the plan asks about the model, refused where it asks nothing."""
    if plan.evaluation is None:
        raise InvalidParameter("The run must set quietbit.evaluate to have evaluations answered, and does not.")
    return plan.evaluation


@final
class Evaluations:
    """All evaluations of a run: questions by node, and what came of each."""

    def __init__(self, plan: Plan) -> None:
        """Begin with nobody asked."""
        self._plan, self.evaluation = plan, plan.evaluation
        self.reports: list[EvaluationReport] = []
        self.account = NodeCounts(plan.target)  # for its counts alone: what answers cost is added to updates'

    def close(self, found: RoundReport, mean: FloatVector | None, model: str = "") -> EvaluationReport:
        """Count an evaluation that is over: its counts, and the decoded mean of its answers."""
        asked = evaluation_of(self._plan)
        estimates = () if mean is None else asked.estimates(mean, found.answered)
        counts = found.asked, found.answered, found.declined
        outcome = EvaluationReport(found.round, asked.metric, *counts, estimates, model)
        self.reports.append(outcome)
        return outcome

    def answers(self, node: int | str | None = None) -> int:
        """Return the most answers that a node can have given; of the node with the most unless given."""
        counts = self.account.nodes
        some = counts.values() if node is None else [counts[node]] if node in counts else []
        return max((one.releases for one in some), default=0)

    def with_updates(self, account: NodeCounts, cost: Cost, updates: int, answers: int) -> Guarantee:
        """Return the guarantee of a node's updates and answers: those in sums on one account, others added to it."""
        asked = self.evaluation
        if asked is None or not answers:
            return account.guarantee(((cost, updates),))
        found = account.guarantee(((cost, updates), *asked.shared(answers)))
        if not (apart := asked.costs(answers)):
            return found
        return replace(found, epsilon_upper=math.nextafter(found.epsilon_upper + apart, math.inf))
