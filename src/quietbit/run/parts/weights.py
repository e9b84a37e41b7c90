"""Weights: a client with ten times the examples counts ten times, by a number that its owner makes public.

Idea     the payload does not say so: the number is named by the owner's policy, and the server
         multiplies what it decodes, which costs no more privacy (`quietbit.wire.uplink`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from attrs import frozen

from quietbit.node.refusal import NotAllowed
from quietbit.run.part import Arrival, Part
from quietbit.run.section import Section, Whole, needed
from quietbit.wire.uplink import EXAMPLES

if TYPE_CHECKING:
    from quietbit.node.gatekeeper import Gate
    from quietbit.node.request import Request
    from quietbit.run.plan import Plan

__all__ = ["Weighting", "Weights"]


@final
@frozen
class Weights(Section):
    """``[weights]``: releases are weighted by public numbers of examples, up to ``most_examples``."""

    title: ClassVar[str] = "weights"

    most_examples: int = needed(Whole(1))


@final
class Weighting(Part):
    """The client's half: a node whose owner keeps the number of examples secret does not take part."""

    section: ClassVar[str] = "weights"

    def __init__(self, plan: Plan) -> None:
        """Need nothing of the plan: that it weights is enough."""

    def accept(self, request: Request, arrival: Arrival, gate: Gate) -> None:
        """Refuse a run that weights by examples, unless the policy lets their number out."""
        if EXAMPLES not in gate.metrics:
            raise NotAllowed(
                "The run weights by examples, which the policy's metrics do not name.",
                rule="metrics",
            )
