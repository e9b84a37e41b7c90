"""Weights: a client with ten times the examples counts ten times, by a public number.

Idea     the payload does not say so: the number is named by the owner's policy, and the server
         multiplies what it decodes, which costs no more privacy (`quietbit.wire.uplink`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

from attrs import frozen

from quietbit.federation.fields import Whole, needed
from quietbit.federation.messages import Reply
from quietbit.federation.part import Arrival, Closed, Part, Scope
from quietbit.federation.record import RoundReport
from quietbit.federation.terms import Say, Section, Terms
from quietbit.node.refusal import NotAllowed
from quietbit.node.request import Request
from quietbit.wire.uplink import EXAMPLES, effective, weight_of

__all__ = ["WeightedMean", "Weighting", "Weights"]


@final
@frozen
class Weights(Section):
    """``[weights]``: releases are weighted by public numbers of examples, up to a most."""

    title: ClassVar[str] = "weights"

    most_examples: int = needed(Whole(1))

    def client(self, terms: Terms, asked: str) -> Weighting | None:
        """Return the client's half, of a turn that makes an update."""
        return None if asked else Weighting(terms)

    def part(self, plan: Terms, say: Say, resource: Any = None) -> WeightedMean:
        """Return the part that weights releases."""
        return WeightedMean(self.most_examples)

    def note(self, entry: RoundReport) -> str:
        """Return the effective number of releases."""
        if entry.effective is None:
            return ""
        return f"{entry.effective:.4g} of equal weight"


@final
class WeightedMean(Part):
    """The server's half: an update counts by the examples of its client."""

    section: ClassVar[str] = "weights"
    in_columns: ClassVar[bool] = True

    def __init__(self, most_examples: int) -> None:
        """Weight up to ``most_examples``."""
        self._most_examples = most_examples

    def weight(self, scope: Scope, reply: Reply) -> float:
        """Return the weight of an update; anything else that a node is asked for counts as one."""
        if scope.section:
            return 1.0
        return weight_of(reply.metrics.get(EXAMPLES), self._most_examples)

    def close(self, closed: Closed) -> Mapping[str, Any]:
        """Report how many releases of equal weight are as noisy."""
        return {"effective": effective(closed.weights)}


@final
class Weighting(Part):
    """The client's half: a node whose number of examples is secret does not take part."""

    section: ClassVar[str] = "weights"

    def __init__(self, plan: Terms) -> None:
        """Need nothing of the plan: that it weights is enough."""

    def accept(self, request: Request, arrival: Arrival) -> None:
        """Refuse a run that weights by examples, unless the policy lets their number out."""
        if EXAMPLES not in arrival.metrics:
            raise NotAllowed(
                "The run weights by examples, which the policy's metrics do not name.",
                rule="metrics",
            )
