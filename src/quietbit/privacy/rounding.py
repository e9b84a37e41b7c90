"""Directed rounding: sums and products of doubles that end on the private side.

Idea     a bound that was computed in floating point is enlarged by more than its rounding error.
Symbols  UNIT: relative error of one correctly rounded operation on doubles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

__all__ = ["FEW_OPERATIONS", "ROUNDING_MARGIN", "UNIT", "next_up", "round_up", "sum_upper"]

UNIT = 2.0**-53
ROUNDING_MARGIN = 1e-12
FEW_OPERATIONS = 1e-14  # relative error of a handful of operations on positive doubles


def round_up(value: float, margin: float = ROUNDING_MARGIN) -> float:
    """Return ``value`` enlarged by a relative ``margin``; zero stays zero."""
    return value + abs(value) * margin


def next_up(value: float) -> float:
    """Return the smallest double above ``value``."""
    return math.nextafter(value, math.inf)


def sum_upper(terms: Iterable[tuple[float, int]]) -> float:
    """Return the sum of number times count, rounded up once; infinite where a term is.

    >>> sum_upper([(0.1, 3)]) > 0.1 + 0.1
    True
    """
    exact = Fraction(0)
    for number, times in terms:
        if times and not number < math.inf:
            return math.inf
        exact += Fraction(number) * times
    rounded = float(exact)
    if Fraction(rounded) < exact:
        return next_up(rounded)
    return rounded
