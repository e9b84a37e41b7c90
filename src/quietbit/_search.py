"""Bisection that always returns the end where the condition holds.

Idea     a search for the most that privacy allows must end on the private side, whatever rounding,
         a condition that is not monotone, or too few steps do to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["HALVINGS", "bisect"]

HALVINGS = 200  # more than any two doubles need


def bisect(
    holds: Callable[[float], bool],
    inside: float,
    outside: float,
    *,
    relative: float = 0.0,
    halvings: int = HALVINGS,
    by_ratio: bool = False,
) -> float:
    """Bisect; return the end where the condition holds, which it is assumed to do at ``inside``.

    Args:
        holds: the condition.
        inside: where it holds.
        outside: where it does not; either end may be the larger.
        relative: stop when the ends are within this share of the larger.
        halvings: stop after this many steps.
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
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside
