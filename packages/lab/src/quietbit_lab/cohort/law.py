"""The law of one coordinate's code as a table: what a simulation of a whole cohort draws from.

Idea     a simulation protects nobody, so it needs the law and not the bits of the library's
         sampler. P(code <= k) is kept at points of the range where it changes, and is a straight
         line between them: one table serves every mechanism whose codes are drawn coordinate by
         coordinate, on any device.
Symbols  u: a coordinate; x = (u - low) inverse: its place in cells; F_k: P(code <= k).

Error: a cell of width h is off by h^2/8 times the second derivative, which for the laws here is
below 4e-6 with 4,096 cells between the points where the law is 1e-9 from its ends.
tests/lab/cohort/test_law.py measures it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._search import bisect
from quietbit._typing import FloatVector

__all__ = ["CodeLaw", "code_law"]

FINE = 4096  # cells of a table of up to four bits
COARSE = 1024  # cells of a table of more bits
FEW_BITS = 4
CHANGED = 1e-9  # what the law may still move beyond the table
MOST_BITS = 8


@final
@frozen(eq=False)
class CodeLaw:
    """``cumulative``: F_k at the cells' ends, (cells + 1, codes - 1); ``values``: decoded codes."""

    low: float
    inverse: float
    cumulative: NDArray[np.float32]
    values: FloatVector

    @property
    def bits(self) -> int:
        """Bits per code."""
        return int(self.values.size).bit_length() - 1

    def at_clip(self, clip: float, scale: float) -> CodeLaw:
        """Return the law of updates that are clipped to ``clip``, decoded times ``scale``."""
        return CodeLaw(self.low * clip, self.inverse / clip, self.cumulative, self.values * scale)


@lru_cache(maxsize=256)
def code_law(mechanism: Any, share: float = 1.0) -> CodeLaw:
    """Return a mechanism's table; a coordinate has at most ``share`` of the clip."""
    reach = min(share, 1.0)
    law = mechanism.distribution
    first = law(-reach)
    last = law(reach)

    def still(value: float) -> bool:
        """Whether the law moves no more outside of +-value."""
        pairs = ((-value, first), (value, last))
        return all(float(np.abs(law(at) - end).max()) <= CHANGED for at, end in pairs)

    if still(reach * 2.0**-40):
        reach *= 2.0**-40
    else:
        reach *= 1 - bisect(lambda cut: still(reach * (1 - cut)), 0.0, 1.0, halvings=40)
    if first.size <= 1 << FEW_BITS:
        cells = FINE
    else:
        cells = COARSE
    points = np.linspace(-reach, reach, cells + 1)
    table = np.cumsum([law(value) for value in points], axis=1)[:, :-1]
    return CodeLaw(
        -reach, cells / (2 * reach), np.ascontiguousarray(table, dtype=np.float32), mechanism.values
    )
