"""The plainest task there is: every client has a vector, and what is learnt is their mean.

Idea     no model and no data stand between the noise and what it does: after T rounds of step 1/T the parameters are
         the mean of the private means, and their distance from the true one is the noise of the run. What a comparison
         predicts is held against it.
Symbols  clients' vectors all have length ``length``: ``agreement`` of it in one common direction, and the rest, which
         is their own, at right angles to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real
from quietbit.simulate.problem import LocalPlan, Rows, Score, clip_rows

__all__ = ["VectorMean"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class VectorMean:
    """A `Problem`: ``clients`` vectors of ``dimension`` entries, of which ``agreement`` of the length is common."""

    dimension: int
    clients: int
    length: float = 1.0
    agreement: float = 0.6
    seed: int = 0
    common: Rows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse numbers that are none; draw the common direction."""
        check_int(self.dimension, "dimension", 2)
        check_int(self.clients, "clients", 1)
        check_real(self.length, "length")
        check_real(self.agreement, "agreement", at_most=1.0)
        direction = np.random.default_rng([self.seed, 0]).standard_normal(self.dimension)
        common = direction * (self.agreement * self.length / np.linalg.norm(direction))
        object.__setattr__(self, "common", common.astype(np.float32))

    @property
    def name(self) -> str:
        """What it is called in records."""
        return f"the mean of {self.clients:,} vectors"

    @property
    def sizes(self) -> NDArray[np.int64]:
        """One sample each."""
        return np.ones(self.clients, dtype=np.int64)

    def initial(self, seed: int) -> Rows:
        """Zero."""
        return np.zeros(self.dimension, dtype=np.float32)

    def updates(self, parameters: Rows, clients: NDArray[np.int64], plan: LocalPlan, out: Rows) -> None:
        """Minus each client's vector, clipped; it does not depend on the parameters."""
        for row, client in zip(out, clients.tolist(), strict=True):
            row[:] = -self.vector(client)
        clip_rows(out, plan.norm, plan.clip)

    def vector(self, client: int) -> Rows:
        """Return what a client has."""
        own = np.random.default_rng([self.seed, 1, client]).standard_normal(self.dimension)
        own -= self.common * (float(own @ self.common) / float(self.common @ self.common))
        rest = self.length * math.sqrt(1 - self.agreement**2)
        return np.asarray(self.common + own * (rest / np.linalg.norm(own)), dtype=np.float32)

    def mean(self) -> FloatVector:
        """Return the mean of all vectors."""
        total = np.zeros(self.dimension)
        for client in range(self.clients):
            total += self.vector(client)
        return total / self.clients

    def evaluate(self, parameters: Rows) -> Score:
        """Return the squared distance from the mean as the loss; there is nothing to get right."""
        off = float(np.sum((parameters.astype(np.float64) - self.mean()) ** 2))
        return Score(accuracy=math.exp(-off), loss=off)
