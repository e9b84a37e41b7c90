"""A design: the probability table and the output alphabet that clients sample with.

Symbols  P[i, j] = probability of symbol j at level x_i; a_j the value it decodes to.
Source   Guo et al. (ICML 2023), section "MVU mechanism".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, final

import numpy as np
from attrs import asdict, field, frozen

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.spec import DesignSpec
from quietbit.design.store import Stored, frozen_array
from quietbit.errors import require

__all__ = ["Design"]


@final
@frozen(eq=False)
class Design(Stored):
    """A finite table of probabilities and output values; designs with equal ``identity()`` are equal.

    ``probabilities`` has a row per input level and a column per symbol. Every row sums to exactly one in rational
    arithmetic, no probability is zero, and the alphabet does not decrease; anything else is refused, because samplers
    normalise rows while accounts take them as stored. Arrays are read-only copies.
    """

    WORD: ClassVar[str] = "design"
    SUFFIX: ClassVar[str] = "json"
    MOST_BYTES: ClassVar[int] = 64 * 2**20
    spec: DesignSpec
    probabilities: FloatMatrix = field(converter=frozen_array)
    alphabet: FloatVector = field(converter=frozen_array)
    _identity: str = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Check shapes, signs and sums."""
        shape = (self.spec.input_levels, self.spec.outputs)
        table, alphabet = self.probabilities, self.alphabet
        require(table.shape == shape, "shape of the probabilities", table.shape, f"{shape}")
        require(alphabet.shape == shape[1:], "shape of the alphabet", alphabet.shape, f"{shape[1:]}")
        require(bool(np.all(np.isfinite(alphabet))), "alphabet", alphabet.tolist(), "finite")
        inside = bool(np.all((table > 0) & (table < 1)))
        require(inside, "probabilities", (float(table.min()), float(table.max())), "strictly between 0 and 1")
        require(bool(np.all(np.diff(alphabet) >= 0)), "alphabet", alphabet.tolist(), "non-decreasing")
        for level, row in enumerate(table.tolist()):
            # Rounded once, so it is zero only where the rational sum is.
            excess = math.fsum([*row, -1.0])
            rule = "1 exactly, as rational numbers (`quietbit.design.rounding.exact_row` makes it so)"
            require(excess == 0, f"sum of the probabilities of level {level}", 1 + excess, rule)
        object.__setattr__(self, "_identity", self._sealed())

    def _values(self) -> dict[str, Any]:
        arrays = {"alphabet": self.alphabet.tolist(), "probabilities": self.probabilities.tolist()}
        return {**arrays, "spec": asdict(self.spec)}

    @classmethod
    def _of_values(cls, values: Mapping[str, Any]) -> Design:
        return cls(DesignSpec(**values["spec"]), values["probabilities"], values["alphabet"])
