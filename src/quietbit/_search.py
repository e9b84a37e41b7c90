"""Where a condition stops to hold: one bisection, which always ends on the side that was asked for.

Idea     the end of the bracket where the condition holds is returned, so that a search for the most
         that privacy allows ends on the private side, whatever roundings, an uneven condition or
         too few steps do to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["HALVINGS", "bisect"]

HALVINGS = 200  # more than the doubles between any two ends need


def bisect(
    holds: Callable[[float], bool],
    inside: float,
    outside: float,
    *,
    relative: float = 0.0,
    halvings: int = HALVINGS,
    by_ratio: bool = False,
) -> float:
    """Return a point where the condition holds, as near to ``outside`` as was found; it is taken to hold at ``inside``.

    Stop when the ends, in either order, are within the share ``relative`` of the larger, or after
    ``halvings`` steps. ``by_ratio`` halves the logarithm, for positive ends that are orders of
    magnitude apart.

    >>> bisect(lambda x: x * x <= 2, 0.0, 2.0) ** 2 <= 2
    True
    >>> bisect(lambda x: x * x >= 2, 2.0, 0.0) ** 2 >= 2
    True
    """
    for _ in range(halvings):
        if abs(outside - inside) <= relative * max(abs(inside), abs(outside)):
            break
        middle = math.sqrt(inside * outside) if by_ratio else (inside + outside) / 2
        if not min(inside, outside) < middle < max(inside, outside):
            break
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside
