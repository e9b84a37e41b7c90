"""Where a condition stops to hold: one bisection, which always ends on the side that was asked for.

Idea     a bracket has an end where the condition holds and one where it does not; it is halved, and the end where
         it holds is returned. So a search for the most that privacy allows ends on the private side, whatever
         roundings, an uneven condition or too few steps do to it.
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

    Args:
        holds: the condition.
        inside: an end where it holds, above or below the other one.
        outside: an end where it does not.
        relative: stop when the ends are within this share of the larger.
        halvings: stop after this number of steps.
        by_ratio: halve the logarithm, for positive ends that are orders of magnitude apart.

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
