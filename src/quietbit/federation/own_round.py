"""A round that a node asks of itself: a release for a server that knows nothing of quietbit.

Idea     the request is written here as quietbit's server would write it, and goes through the same
         turn, gate and ledger (`federation.client`). Its release is decoded here, too, and takes
         the place of what the app answered: any workflow goes on with arrays of the same names
         and shapes. Decoding is a function of the release, so it costs nothing.
Arrays   those that no client may learn (counters, running statistics, masks) go back as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from glob import escape
from typing import Any, final

import numpy as np
from attrs import evolve, frozen

from quietbit.arrays import check_parameters
from quietbit.errors import InvalidParameter
from quietbit.federation.client import OpenRequest, Subject
from quietbit.federation.layout import ModelLayout, NamedArray, named_arrays
from quietbit.federation.messages import RECORD, NodeName, request_record
from quietbit.federation.part import Arrival
from quietbit.federation.plan import Plan
from quietbit.mechanism.base import Mechanism
from quietbit.node.gatekeeper import Gate
from quietbit.node.request import run_name
from quietbit.privacy.guarantee import Guarantee
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink

__all__ = ["DELTA", "EPSILON", "GAUSSIAN", "OwnRound"]

EPSILON = "quietbit.epsilon"  # the metric that says what a run has cost so far
GAUSSIAN = "gaussian"
DELTA = 1e-5


@final
@frozen(eq=False)
class OwnRound:
    """Round ``number`` of a node's own releases in a run, of a model with these arrays."""

    plan: Plan
    number: int
    mechanism: Mechanism
    layout: ModelLayout  # of the arrays that are learnt
    arrays: Mapping[str, NamedArray]
    opened: OpenRequest

    @classmethod
    def begin(
        cls, plan: Plan, gate: Gate, name: NodeName, arrays: Mapping[str, NamedArray]
    ) -> OwnRound:
        """Ask as quietbit's server would with this model; refuse one without anything to learn."""
        # Copies: an app may train in the arrays that came, and what they hold then must not leave.
        came = {key: np.array(array.numpy()) for key, array in arrays.items()}
        arrays = named_arrays(came)
        plan = evolve(plan, local_arrays=", ".join(map(escape, _kept(arrays))))
        layout = ModelLayout.of(arrays, plan.local_arrays)
        number = gate.last_round(name.run) + 1
        mechanism = plan.mechanism_for(layout.dimension).for_round(run_name(name.run), number)
        record = request_record(number, mechanism, plan.clip)
        arrival = Arrival({RECORD: record}, arrays)
        opened = OpenRequest.read(gate, plan, Subject.UPDATE, arrival, name)
        return cls(plan, number, mechanism, layout, arrays, opened)

    def stepped(self, base: Mapping[str, NamedArray], release: bytes) -> dict[str, Any]:
        """Return ``base`` less what a release decodes to; what no client learns stays as it is."""
        payload = bytes(Framed.from_bytes(release).payload)
        step = Uplink(self.mechanism, clip=self.plan.clip).receive([payload])
        arrays = {name: array.numpy() for name, array in base.items()}
        return arrays | self.layout.stepped(base, step)

    def sentence(self, epsilon: float) -> str:
        """Say which release this is, and that all of the run so far have cost ``epsilon``."""
        target = self.plan.target
        found = Guarantee(epsilon, target.delta, target.unit, target.adjacency, target.trust)
        return f"{self.number} of {self.plan.releases} releases. {found.sentence()}"


def _kept(arrays: Mapping[str, NamedArray]) -> list[str]:
    """Return the names of the arrays that are not trainable parameters."""
    kept = []
    for name, array in arrays.items():
        try:
            check_parameters([(name, array.dtype)])
        except InvalidParameter:
            kept.append(name)
    return kept
