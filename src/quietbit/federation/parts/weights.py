"""Weights: a client with ten times the examples counts ten times, by a public number.

Idea     the payload does not say so: the number is named by the owner's policy, and the server
         multiplies what it decodes, which costs no more privacy. Payloads of equal weight share a
         sum of whole numbers (`quietbit.wire.uplink`), so weights are rounded to a few values.
Symbols  n_c: examples of a client; N: ``most``, beyond which weights do not grow, so that no claim
         moves a mean without bound; w_c = min(n_c, N) / N, rounded to quarters of a power of two,
         from 2^-10 to 1. (sum w)^2 / sum w^2: the effective cohort, whose plain mean is as noisy
         (Kish 1965).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, final

import numpy as np
from attrs import frozen

from quietbit.errors import refuse_payload
from quietbit.federation.fields import Whole, needed
from quietbit.federation.messages import Reply
from quietbit.federation.part import Arrival, Closed, Part, Scope
from quietbit.federation.record import RoundReport
from quietbit.federation.terms import Say, Section, Terms
from quietbit.node.refusal import NotAllowed
from quietbit.node.request import Request

__all__ = ["EXAMPLES", "Weighting", "Weights", "effective", "weight_of"]

EXAMPLES = "num-examples"  # the name that Flower's apps and the owner's policy use for the number
STEPS = 4  # weights per power of two
SMALLEST = -10  # the least weight is 2^-10


def weight_of(examples: Any, most: int | None) -> float:
    """Return the weight of the release of a client with ``examples`` examples, at most ``most``.

    Without ``most`` all weigh 1. A missing number of examples, or one below 1, is refused.

    >>> [round(weight_of(n, 1000), 3) for n in (1, 250, 900, 1000, 10**9)], weight_of(None, None)
    ([0.001, 0.25, 0.841, 1.0, 1.0], 1.0)
    """
    if most is None:
        return 1.0
    if not isinstance(examples, int | float) or not 1 <= examples < math.inf:
        refuse_payload("number of examples", "at least 1 where releases are weighted", examples)
    exponent = round(STEPS * math.log2(min(examples, most) / most))
    return float(2.0 ** (max(STEPS * SMALLEST, exponent) / STEPS))


def effective(weights: Iterable[float]) -> float:
    """Return the effective cohort: the number of equal weights whose mean is as noisy."""
    values = np.fromiter(weights, dtype=np.float64)
    if values.size == 0:
        return 0.0
    return float(values.sum() ** 2 / np.square(values).sum())


@final
@frozen
class Weights(Section):
    """``[weights]``: releases are weighted by public numbers of examples, up to a most."""

    title: ClassVar[str] = "weights"

    most_examples: int = needed(Whole(1))

    def client(self, terms: Terms, asked: str) -> Weighting | None:
        """Return the part of a turn that makes an update."""
        return None if asked else Weighting(self.most_examples)

    def part(self, plan: Terms, say: Say, resource: Any = None) -> Weighting:
        """Return the part that weights releases."""
        return Weighting(self.most_examples)

    def note(self, entry: RoundReport) -> str:
        """Return the effective number of releases."""
        if entry.effective is None:
            return ""
        return f"{entry.effective:.4g} of equal weight"


@final
class Weighting(Part):
    """Both halves: an update counts by the examples of its client.

    A node whose number of examples is secret does not take part.
    """

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

    def accept(self, request: Request, arrival: Arrival) -> None:
        """Refuse a run that weights by examples, unless the policy lets their number out."""
        if EXAMPLES not in arrival.metrics:
            raise NotAllowed(
                "The run weights by examples, which the policy's metrics do not name.",
                rule="metrics",
            )
