"""A design: the probability table and the output alphabet that clients sample with.

Symbols  P[i, j] = probability of symbol j at level x_i; a_j the value it decodes to.
Source   Guo et al. (ICML 2023), section "MVU mechanism".
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.spec import DesignSpec
from quietbit.errors import require

__all__ = ["Design"]

FORMAT = "quietbit-design"
VERSION = 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """A finite table of probabilities and output values; compare two by ``identity()``.

    ``probabilities`` has a row per input level and a column per symbol; every row sums to exactly one in
    rational arithmetic, no probability is zero, and the alphabet does not decrease: anything else is refused, for
    samplers normalise what accounts would take as it stands. Arrays are read-only copies.
    """

    spec: DesignSpec
    probabilities: FloatMatrix
    alphabet: FloatVector
    _identity: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        """Check shapes and finiteness, then freeze the arrays."""
        shape = (self.spec.input_levels, self.spec.outputs)
        table = _frozen(self.probabilities)
        alphabet = _frozen(self.alphabet)
        require(table.shape == shape, "shape of the probabilities", table.shape, f"{shape}")
        require(alphabet.shape == shape[1:], "shape of the alphabet", alphabet.shape, f"{shape[1:]}")
        require(bool(np.all(np.isfinite(alphabet))), "alphabet", alphabet.tolist(), "finite")
        low, high = float(table.min()), float(table.max())
        inside = bool(np.all((table > 0) & (table < 1)))
        require(inside, "probabilities", (low, high), "strictly between 0 and 1")
        rising = bool(np.all(np.diff(alphabet) >= 0))
        require(rising, "alphabet", alphabet.tolist(), "non-decreasing")
        for level, row in enumerate(table.tolist()):
            # Rounded once, so it is zero only where the rational sum is.
            excess = math.fsum([*row, -1.0])
            rule = "1 exactly, as rational numbers (`quietbit.design.rounding.exact_row` makes it so)"
            require(excess == 0, f"sum of the probabilities of level {level}", 1 + excess, rule)
        object.__setattr__(self, "probabilities", table)
        object.__setattr__(self, "alphabet", alphabet)
        object.__setattr__(self, "_identity", hashlib.sha256(self.canonical().encode()).hexdigest())

    def identity(self) -> str:
        """SHA-256 of the canonical text, in hexadecimal."""
        return self._identity

    def canonical(self) -> str:
        """Return the one text that stands for this design: sorted keys, shortest exact decimals, no spaces."""
        return _canonical(
            {
                "alphabet": self.alphabet.tolist(),
                "format": FORMAT,
                "probabilities": self.probabilities.tolist(),
                "spec": {
                    "bias": self.spec.bias,
                    "epsilon": self.spec.epsilon,
                    "input_levels": self.spec.input_levels,
                    "output_bits": self.spec.output_bits,
                    "privacy": self.spec.privacy,
                },
                "version": VERSION,
            }
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the design as canonical JSON with its identity; the file appears whole or not at all."""
        from quietbit.design.store import write_design

        return write_design(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Design:
        """Read a design file; one that was changed, cut short or is something else is refused."""
        from quietbit.design.store import read_design

        return read_design(Path(path))


def _canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _frozen(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = np.array(values, dtype=np.float64, order="C", copy=True)
    array.setflags(write=False)
    return array
