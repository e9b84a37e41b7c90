"""One client turn: a question accepted and noted, then exactly one release of what the app made of the model.

Idea     between a server's message and the answer both engines do the same. The model that came is read and compared
         with the question, the question is accepted (`quietbit.node.release`), the moment of the answer is fixed
         before the app begins (`quietbit.node.answer_time`), and whatever the app answers becomes one release: of
         the zero update where no update can be read from it. An adapter only says how its engine carries arrays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, final

import numpy as np
from attrs import frozen

from quietbit._typing import FloatVector
from quietbit.engine.layout import ModelLayout
from quietbit.errors import InvalidParameter, require
from quietbit.node.answer_time import AnswerTime
from quietbit.node.gatekeeper import Gate, Ticket
from quietbit.node.ledger import AnsweredBefore
from quietbit.node.policy import ANSWERING, NotAllowed
from quietbit.node.pricing import ProposedMechanism
from quietbit.node.question import Question
from quietbit.node.release import Noted, Unusable, public
from quietbit.plan.plan import Plan
from quietbit.target import Unit
from quietbit.wire.weighted import EXAMPLES

__all__ = ["Turn", "lost", "plan_of", "refusal"]

LOGGER = logging.getLogger(__name__)
OURS = "quietbit"


@final
@frozen(eq=False)
class Turn:
    """An accepted question: the model as it came, which numbers the owner lets out, and when the answer leaves."""

    layout: ModelLayout
    received: list[FloatVector]
    names: tuple[str, ...]
    moment: AnswerTime
    ticket: Ticket
    of_samples: bool = False

    @classmethod
    def accept(cls, gate: Gate, question: Question, arrays: Mapping[str, Any], plan: Plan) -> Turn:
        """Refuse a model that does not fit the question, before anything is noted; then accept and note it."""
        layout = ModelLayout.of(arrays, plan)
        if layout.dimension != question.dimension:
            rule = f"{question.dimension}, the server's mechanism's"
            raise InvalidParameter.of("number of learnt parameters", rule, layout.dimension)
        received = [np.array(part) for part in layout.values(arrays)]  # an app may train in the arrays that came
        offer = ProposedMechanism.read(question.mechanism)
        require(offer.family not in ANSWERING, "mechanism of an update", offer.family, "another: answers have a cap")
        left_out = (offer.mechanism.steps - 1) * question.dimension
        names, moment = gate.metrics, AnswerTime(gate.answer_seconds, left_out)
        if plan.most_examples is not None and EXAMPLES not in names:
            raise NotAllowed("This node's policy does not let its number of examples out, by which the run weights.")
        return cls(layout, received, names, moment, gate.accept(question), plan.unit is Unit.SAMPLE)

    def difference(self, trained: Mapping[str, Any]) -> list[FloatVector]:
        """Return *received minus trained* of every learnt array."""
        return self.layout.difference(self.received, trained)

    def release(
        self, read: Callable[[], list[FloatVector] | None], crashes: list[BaseException] | None = None
    ) -> bytes:
        """Return the release of the update that ``read`` gets from the answer; of zero where it raises or has none.

        Nothing is read where there are ``crashes`` already, to which what it raises is added. Where samples are
        protected the answer plays no part: the gradients were handed over (`engine.batch`).
        """
        update: list[FloatVector] | None = None
        if not self.of_samples and not crashes:
            try:
                update = read()
            except BaseException as error:  # whatever an app's objects do when they are looked at
                LOGGER.error("quietbit: the app's answer is not an update; zero is released", exc_info=error)
                if crashes is not None:
                    crashes.append(error)
        return self.ticket.release(update)


def plan_of(config: Mapping[str, Any]) -> Plan:
    """Return the plan that a run config or a job's settings hold; the same ones are read once."""
    ours = tuple((key, value) for key, value in config.items() if key.lower().startswith(OURS))
    try:
        return _plan(ours, tuple(type(value) for _, value in ours))
    except TypeError:  # values that cannot be remembered, and that no plan has
        return Plan.from_run_config(dict(ours))


@lru_cache(maxsize=32)
def _plan(items: tuple[tuple[str, Any], ...], kinds: tuple[type, ...]) -> Plan:
    return Plan.from_run_config(dict(items))


def lost(error: Exception) -> Noted:
    """Return the failure of a release that was accepted: it is in the ledger, whatever failed."""
    if isinstance(error, Noted):
        return error
    LOGGER.error("quietbit: a release that was noted cannot be made", exc_info=error)
    return Noted("no release was made.")


def refusal(error: Exception) -> tuple[str, bool]:
    """Return why there is no release, in words that tell nothing of the data, and whether one was noted."""
    said = public(error)
    if isinstance(said, Unusable):
        LOGGER.error("quietbit: nothing is answered, and the server is not told why", exc_info=error)
    return str(said), isinstance(said, AnsweredBefore | Noted)
