"""Alphabet values as whole numbers, so that sums over payloads are exact and need no order.

Idea     a server adds ``table[code]`` to one integer per coordinate. With b = 1 the table (0, 1) counts ones
         and nothing is lost. With more bits the values are unevenly spaced; each is rounded once, to a
         multiple of 2^-shift fine enough that the rounding is far below anything visible, and from there on
         every sum is exact: one int64 per coordinate whatever the number of symbols and of payloads, where
         counting each symbol apart would take 2^b - 1 of them.
Symbols  a_j the alphabet; A = max |a_j|; K the most payloads that will be added.

The shift is the largest with K A 2^shift surely at most 2^62 (and at most 52), so a decoded mean is off by
at most 2^-(shift + 1): 1e-12 max(A, 1) at worst for a million payloads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, require

__all__ = ["FixedPoint"]

MAX_SHIFT = 52


@final
@dataclass(frozen=True, slots=True, eq=False)
class FixedPoint:
    """``table[j] = round(2^shift a_j)``, for sums of at most ``most`` payloads."""

    table: NDArray[np.int64]
    shift: int
    most: int

    @classmethod
    def of(cls, alphabet: FloatVector, most: int) -> FixedPoint:
        """Return the finest fixed point whose sums of ``most`` values fit 63 bits.

        >>> FixedPoint.of(np.array([-0.5, 0.25]), 2**20).shift
        41
        """
        values = np.asarray(alphabet, dtype=np.float64)
        count = check_int(most, "most payloads", 1, 2**40)
        largest = float(np.abs(values).max(initial=0.0))
        require(0 < largest < 2.0**10, "largest alphabet value", largest, "above 0 and below 1024")
        shift = min(MAX_SHIFT, 61 - math.frexp(largest)[1] - (count - 1).bit_length())
        table = np.rint(values * 2.0**shift).astype(np.int64)
        table.setflags(write=False)
        return cls(table, shift, count)

    def mean(self, total: NDArray[Any], payloads: int) -> FloatVector:
        """Totals over ``payloads`` payloads as the mean alphabet value per coordinate."""
        count = check_int(payloads, "payloads", 1, self.most)
        result: FloatVector = total.astype(np.float64) / (float(count) * 2.0**self.shift)
        return result
