"""The update itself: what a client has learnt, as one vector of the mechanism's dimension.

Idea     the difference between the model that came and the one that the app trained, over the
         arrays that are learnt (`federation.layout`). It has no section: every run has updates.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, require
from quietbit.federation.layout import ModelLayout
from quietbit.federation.part import AppAnswer, Arrival, Part, released_dimension
from quietbit.federation.terms import Terms
from quietbit.node.ledger import RESPONSE
from quietbit.node.request import Request

__all__ = ["Updating"]


@final
class Updating(Part):
    """The client's half: the model as it came, and the difference to the one that was trained."""

    def __init__(self, plan: Terms) -> None:
        """Start without a model."""
        self._plan = plan
        self._layout = ModelLayout((), ())
        self._received: list[FloatVector] = []

    def accept(self, request: Request, arrival: Arrival) -> None:
        """Keep the model; refuse one that does not fit the mechanism, and one for answers."""
        layout = ModelLayout.of(arrival.arrays, self._plan.local_arrays)
        dimension = released_dimension(arrival.parts, layout.dimension)
        if dimension != request.dimension:
            rule = f"{request.dimension}, the dimension of the server's mechanism"
            remedy = "use the same model and quietbit.local-arrays on server and nodes"
            raise InvalidParameter.of("number of trainable parameters", rule, dimension, remedy)
        family = arrival.proposed.family
        require(
            family != RESPONSE,
            "mechanism of an update",
            family,
            "one that randomises updates",
            "this one answers evaluations, which quietbit.evaluate asks for",
        )
        self._layout = layout
        # Copies: an app may train in the arrays that came.
        self._received = [np.array(part) for part in layout.values(arrival.arrays)]

    def answer(self, app: AppAnswer, update: Any) -> list[FloatVector]:
        """Return the difference that the app's answer holds."""
        return app.update(self._layout, self._received)
