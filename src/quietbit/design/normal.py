"""The normal distribution to ninety digits, for directed rounding of profiles.

Idea     Phi(x) = 1/2 + phi(x) S(x) with S(x) = x + x^3/3 + x^5/(3 5) + ...: for x >= 0 every term
         is positive, so nothing cancels inside the series and the remainder is a geometric tail.
         Python's decimal arithmetic rounds each operation, and its exponential, correctly; with
         130 digits the error is far below the one stated here.
Symbols  Phi, phi: distribution and density of N(0, 1). ERROR: bound on the absolute error of
         everything returned.
Source   Abramowitz and Stegun (1964), 26.2.11.
"""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from itertools import pairwise

from quietbit.errors import require

__all__ = [
    "ERROR",
    "LARGEST",
    "cell_masses",
    "density",
    "distribution",
    "float_lower",
    "float_upper",
]

ERROR = Decimal("1e-90")
LARGEST = 16.0  # beyond, the tail is below 1e-57, and 130 digits would not suffice
_DIGITS = Context(prec=130)
_HALF = Decimal("0.5")
_ROOT = Decimal(  # of 2 pi, to 140 digits
    "2.5066282746310005024157652848110452530069867406099383166299235763422936"
    "54607841974946595838378057266116009972665203879644866323618126736181"
)


@lru_cache(maxsize=4096)
def density(x: float | Decimal) -> Decimal:
    """Return phi(x) for |x| <= 16, within 1e-90."""
    value = _checked(x)
    exponent = _DIGITS.divide(_DIGITS.multiply(value, value), Decimal(-2))
    return _DIGITS.divide(_DIGITS.exp(exponent), _ROOT)


@lru_cache(maxsize=4096)
def distribution(x: float | Decimal) -> Decimal:
    """Return Phi(x) for |x| <= 16, within 1e-90; Phi(-x) = 1 - Phi(x) holds for the results.

    A term is the one before times x^2/(2n+1), so once that factor is below one half the rest of the
    series is smaller than the term just added: at most some 900 terms, each of relative error
    2e-129, on sums below 1e57 times phi(x).
    """
    value = _checked(x)
    size = value.copy_abs()  # abs() and unary minus would round to Python's default digits
    square = _DIGITS.multiply(size, size)
    term = total = size
    n = 1
    enough = int(2 * square) + 1
    while term > 0 and not (term < Decimal("1e-125") and n > enough):
        n += 2
        term = _DIGITS.divide(_DIGITS.multiply(term, square), Decimal(n))
        total = _DIGITS.add(total, term)
    excess = _DIGITS.multiply(density(value), total)
    if value <= 0:
        excess = excess.copy_negate()
    return _DIGITS.add(_HALF, excess)


def cell_masses(edges: list[float]) -> list[Decimal]:
    """Return the N(0,1) masses of the cells between increasing edges, each within 2e-90.

    >>> [float(mass) for mass in cell_masses([0.0])]
    [0.5, 0.5]
    """
    tails = [Decimal(0), *(distribution(edge) for edge in edges), Decimal(1)]
    return [_DIGITS.subtract(right, left) for left, right in pairwise(tails)]


def float_upper(value: Decimal, error: Decimal = ERROR) -> float:
    """Return the least double that is certainly at least a value known within ``error``."""
    return -float_lower(value.copy_negate(), error)


def float_lower(value: Decimal, error: Decimal = ERROR) -> float:
    """Return the largest double that is certainly at most a value known within ``error``."""
    bound = Context(prec=130, rounding=ROUND_FLOOR).subtract(value, error)
    rounded = float(bound)
    if Decimal(rounded) <= bound:
        return rounded
    return math.nextafter(rounded, -math.inf)


def _checked(x: float | Decimal) -> Decimal:
    require(abs(float(x)) <= LARGEST, "x", x, f"within {LARGEST:g} of zero")
    if isinstance(x, Decimal):
        return x
    return Decimal(float(x))
