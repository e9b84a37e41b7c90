"""A round that a node asks of itself: a release for a server that knows nothing of quietbit.

Idea     the request is written here as quietbit's server would write it, and goes through the same
         turn, gate and ledger (`federation.client`). Its release is decoded here, too, and takes
         the place of what the app answered: any workflow goes on with arrays of the same names
         and shapes. Decoding is a function of the release, so it costs nothing.
Arrays   those that no client may learn (counters, running statistics, masks) go back as they came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.arrays import check_parameters
from quietbit.errors import InvalidParameter
from quietbit.federation.layout import ModelLayout, NamedArray, named_arrays
from quietbit.federation.messages import RECORD, request_record
from quietbit.federation.part import Arrival
from quietbit.federation.plan import Plan
from quietbit.mechanism.base import Mechanism
from quietbit.node.request import run_name
from quietbit.privacy.guarantee import Guarantee
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink

__all__ = ["DELTA", "EPSILON", "GAUSSIAN", "OwnRound", "own_plan"]

EPSILON = "quietbit.epsilon"  # the metric that says what a run has cost so far
GAUSSIAN = "gaussian"
DELTA = 1e-5


def own_plan(*, mechanism: str, samples: Mapping[str, Any] | None, **choices: Any) -> Plan:
    """Return the plan of a node that asks itself; ``samples`` has the keys of ``[samples]``."""
    table = {"mechanism": mechanism, **choices}
    if samples is not None:
        table["samples"] = samples
    return Plan.read({key: value for key, value in table.items() if value is not None})


@final
@frozen(eq=False)
class OwnRound:
    """Round ``number`` of a node's own releases in a run, of a model with these arrays."""

    plan: Plan
    number: int
    mechanism: Mechanism
    arrays: Mapping[str, NamedArray]

    @classmethod
    def begin(cls, plan: Plan, run: int, number: int, arrays: Mapping[str, NamedArray]) -> OwnRound:
        """Choose the mechanism; refuse a model without anything to learn."""
        # Copies: an app may train in the arrays that came, and what they hold then must not leave.
        came = {name: np.array(array.numpy()) for name, array in arrays.items()}
        arrays = named_arrays(came)
        plan = evolve(plan, local_arrays=", ".join(map(_escaped, _kept(arrays))))
        dimension = ModelLayout.of(arrays, plan.local_arrays).dimension
        mechanism = plan.mechanism_for(dimension).for_round(run_name(run), number)
        return cls(plan, number, mechanism, arrays)

    @property
    def layout(self) -> ModelLayout:
        """The arrays that are learnt, in order."""
        return ModelLayout.of(self.arrays, self.plan.local_arrays)

    @property
    def arrival(self) -> Arrival:
        """The message that quietbit's server would have sent with this model."""
        record = request_record(self.number, self.mechanism, self.plan.clip)
        return Arrival({RECORD: record}, self.arrays)

    def weights(self, release: bytes) -> dict[str, NDArray[Any]]:
        """Return the model that a release stands for: what came, less the decoded difference."""
        weights = self._received()
        return weights | self.layout.stepped(self.arrays, self._decoded(release))

    def differences(self, release: bytes) -> dict[str, NDArray[Any]]:
        """Return *trained minus received* of every array, zero for those that are not learnt."""
        differences = {name: np.zeros_like(array) for name, array in self._received().items()}
        pieces = self.layout.shaped(-self._decoded(release))
        for name, _, kind in self.layout.learnt:
            differences[name] = pieces[name].astype(kind)
        return differences

    def sentence(self, epsilon: float) -> str:
        """Say which release this is, and that all of the run so far have cost ``epsilon``."""
        target = self.plan.target
        found = Guarantee(epsilon, target.delta, target.unit, target.adjacency, target.trust)
        return f"{self.number} of {self.plan.releases} releases. {found.sentence()}"

    def _decoded(self, release: bytes) -> FloatVector:
        payload = bytes(Framed.from_bytes(release).payload)
        estimate: FloatVector = Uplink(self.mechanism, clip=self.plan.clip).receive([payload])
        return estimate

    def _received(self) -> dict[str, NDArray[Any]]:
        return {name: array.numpy() for name, array in self.arrays.items()}


def _kept(arrays: Mapping[str, NamedArray]) -> list[str]:
    """Return the names of the arrays that are not trainable parameters."""
    kept = []
    for name, array in arrays.items():
        try:
            check_parameters([(name, array.dtype)])
        except InvalidParameter:
            kept.append(name)
    return kept


def _escaped(name: str) -> str:
    """Return the pattern that one name alone fits."""
    return re.sub(r"([*?[])", r"[\1]", name)
