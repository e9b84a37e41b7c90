"""The plainest task there is: every client has a vector, and what is learnt is their mean.

Idea     no model and no data stand between the noise and what it does: after T rounds of step 1/T
         the parameters are the mean of the private means, and their distance from the true one is
         the noise of the run. What a comparison predicts is held against it.
Symbols  clients' vectors all have length ``length``: ``AGREEMENT`` of it in one common direction,
         and the rest, which is their own, at right angles to it.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.federation.simulate.problem import LocalPlan, Rows, Score, clip_rows

__all__ = ["VectorMean"]

AGREEMENT = 0.6


@final
class VectorMean:
    """A `Problem`: ``clients`` vectors of ``dimension`` entries."""

    def __init__(self, dimension: int, clients: int, length: float = 1.0) -> None:
        self.dimension = dimension
        self.name = f"the mean of {clients:,} vectors"
        self.sizes = np.ones(clients, dtype=np.int64)
        rng = np.random.default_rng(0)
        common = rng.standard_normal(dimension)
        noise = rng.standard_normal((clients, dimension), dtype=np.float32)
        common /= np.linalg.norm(common)
        noise -= np.outer(noise @ common, common).astype(np.float32)
        noise *= math.sqrt(1 - AGREEMENT**2) * length / np.linalg.norm(noise, axis=1, keepdims=True)
        self.vectors: Rows = noise + (AGREEMENT * length * common).astype(np.float32)

    def initial(self, seed: int) -> Rows:
        """Zero."""
        return np.zeros(self.dimension, dtype=np.float32)

    def updates(
        self, parameters: Rows, clients: NDArray[np.int64], plan: LocalPlan, out: Rows
    ) -> None:
        """Minus each client's vector, clipped; it does not depend on the parameters."""
        out[:] = -self.vectors[clients]
        clip_rows(out, plan.norm, plan.clip)

    def mean(self) -> FloatVector:
        """Return the mean of all vectors."""
        return np.asarray(self.vectors.mean(axis=0, dtype=np.float64))

    def evaluate(self, parameters: Rows) -> Score:
        """Return the squared distance from the mean as the loss; there is nothing to get right."""
        off = float(np.sum((parameters.astype(np.float64) - self.mean()) ** 2))
        return Score(accuracy=math.exp(-off), loss=off)
