"""A few signs of a vector's coefficients by one randomised response, as in SQKR and CLDP.

Idea     k of N coefficients, one from each of k strata, are picked by a public nonce; each is
         rounded at random to +A or -A, and the k signs are one of M = 2^k symbols, which is sent as
         it is or replaced by any other.
Symbols  a_j in [-A, A]: coefficients; g = (high - low)/M = (e^eps - 1)/(e^eps + M - 1): what is
         left of a sign on average; w_j: rows in stratum j, about N/k.

A symbol is e^eps times as likely as any other, and zero coefficients give the uniform law: `tilt`
has the account. A sign decodes to w_j A/g at its row and zero elsewhere, which is unbiased for the
coefficients.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import require
from quietbit.kernel.base import Kernel
from quietbit.kernel.expand import strata
from quietbit.kernel.rng import WordBlock
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.base import Accumulator
from quietbit_lab.baseline.base import Coded, checked_loss, checked_seed
from quietbit_lab.baseline.codebook import Expanded
from quietbit_lab.baseline.tilt import draw, subset_levels

__all__ = ["SampledSigns", "sign_gain"]

ROUNDING_STREAM = 0
DRAW_STREAM = 1


def sign_gain(bits: int, epsilon: float) -> float:
    """Return g: the mean of a decoded sign over that of the sign itself."""
    low, high = subset_levels(1 << bits, 1, epsilon)
    return (high - low) / (1 << bits)


@frozen
class SampledSigns(Coded):
    """``bits`` signs of coefficients by one randomised response of ``design_epsilon``."""

    design_epsilon: float = field(converter=checked_loss)
    rotation_seed: int = field(default=0, converter=checked_seed)

    @property
    @abstractmethod
    def length(self) -> int:
        """N: coefficients of an update."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """The largest coefficient, in units of an evenly spread update's."""

    @abstractmethod
    def forth(self, inside: FloatVector) -> FloatVector:
        """Return the coefficients of a clipped update."""

    @abstractmethod
    def back(self, coefficients: FloatVector) -> FloatVector:
        """Return the vector that has these coefficients, padding included."""

    def __attrs_post_init__(self) -> None:
        """Refuse more signs than coefficients."""
        require(
            self.bits <= self.length, "bits", self.bits, f"at most the {self.length} coefficients"
        )

    @property
    def reach(self) -> float:
        """A: the largest coefficient."""
        return self.spread / math.sqrt(self.length)

    @property
    def levels(self) -> tuple[float, float]:
        """Of the other symbols, and of the true one."""
        return subset_levels(1 << self.bits, 1, self.design_epsilon)

    @property
    def words(self) -> int:
        """One per sign, and at least two."""
        return max(2, self.bits)

    def number(self, inside: FloatVector, nonce: bytes, block: WordBlock) -> int:
        """Round a few of the coefficients to signs, and answer by randomised response."""
        rows = usual_kernel().rows(nonce, self.bits, self.length)
        kept = np.clip(self.forth(inside)[rows] / self.reach, -1.0, 1.0)
        uniform = (block.uniform64(ROUNDING_STREAM, 0, self.bits) >> np.uint64(11)) * 2.0**-53
        signs = np.packbits(uniform < (1 + kept) / 2, bitorder="little")
        low, high = self.levels
        densities = np.full(1 << self.bits, low)
        densities[int.from_bytes(signs.tobytes(), "little")] = high
        return draw(densities, 1.0, block, DRAW_STREAM)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sum signs at their rows, each times its stratum's width; transform back once per mean."""
        bits = self.bits
        size = self.length
        scale = self.reach / sign_gain(bits, self.design_epsilon)
        widths = np.diff(strata(bits, size)).astype(np.float64)

        def decode(nonce: bytes, number: int) -> tuple[NDArray[np.int64], FloatVector]:
            signs = np.array([1.0 if number >> place & 1 else -1.0 for place in range(bits)])
            return usual_kernel().rows(nonce, bits, size), np.asarray(signs * widths)

        def finish(mean: FloatVector) -> FloatVector:
            return self.back(mean * scale)[: self.ball.dimension]

        return Expanded(
            decode, bits, float(widths.max()), max_payloads, np.zeros(size, dtype=np.int64), finish
        )

    def noise_at(self, value: float) -> float:
        """Return the second moment less the squared value; other rows add as much on average."""
        gain = sign_gain(self.bits, self.design_epsilon)
        return ((self.spread / gain) ** 2 - value**2) / self.bits
