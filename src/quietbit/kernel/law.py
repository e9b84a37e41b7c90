"""The law of a code in double precision: a fixed sequence of + - * / that every kernel runs to the last bit.

Idea     log-weights are evaluated as unevaluated sums of two doubles, so that neither steep designs nor
         large log-ratios cost accuracy; only the exponential, the sums and the quotient round to one double.
         The functions below are written once with operators alone: numpy arrays, torch tensors and compiled
         scalars go through the same roundings. No library exponential and no fused multiply-add is involved.
Symbols  v the input, t = x - 1/2 = factor * scale * v; l_j = base_j + slope_j t the log-weight of symbol j;
         u = 2^-53. A pair (high, low) stands for the real number high + low.
Source   Dekker (1971) and Knuth (TAOCP 2, 4.2.2) for exact sums and products; Cody and Waite (1980) for the
         reduction by log 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial
from typing import Any, final

import numpy as np

from quietbit._typing import FloatVector

__all__ = [
    "CEILING", "FLOOR", "POWERS", "POWER_OFFSET", "Gain", "exponential", "log_weight", "reduce_exponent", "shift",
    "two_product", "two_sum",
]  # fmt: skip

SPLITTER = 134217729.0  # 2^27 + 1
ROUNDER = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to the nearest integer
INVERSE_LOG2 = 1.4426950408889634
LOG2_HIGH = 0.6931471803691238  # 33 bits of log 2: multiples up to 2^20 are exact
LOG2_LOW = 1.9082149292705877e-10  # the rest
FLOOR = -700.0  # log-weights below the largest by more than this count as e^-700
CEILING = 2.0**100  # scaled inputs beyond this are far outside any clamp
POWER_OFFSET = 1074
POWERS: FloatVector = np.ldexp(1.0, np.arange(-POWER_OFFSET, 1024)).astype(np.float64)
POWERS.setflags(write=False)

C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13 = (1.0 / factorial(k) for k in range(2, 14))


def two_sum(a: Any, b: Any) -> Any:
    """Return the rounded sum and what rounding lost; their sum is a + b exactly."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def two_product(a: Any, b: Any) -> Any:
    """Return the rounded product and what rounding lost, exact while nothing over- or underflows."""
    product = a * b
    scaled_a = SPLITTER * a
    scaled_b = SPLITTER * b
    a_high = scaled_a - (scaled_a - a)
    b_high = scaled_b - (scaled_b - b)
    a_low = a - a_high
    b_low = b - b_high
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def shift(scaled: Any, high: Any, low: Any) -> Any:
    """Return the pair t, from the input already multiplied by the gain's power of two."""
    product, lost = two_product(scaled, high)
    lost = lost + scaled * low
    total = product + lost
    return total, lost - (total - product)


def log_weight(base: Any, base_tail: Any, slope: Any, slope_tail: Any, t: Any, t_low: Any) -> Any:
    """Return the pair l = base + slope t; its relative error is below 2^-98 of |base| + |slope t|."""
    product, lost = two_product(slope, t)
    total, lost_too = two_sum(base, product)
    tail = (lost + (slope * t_low + slope_tail * t)) + base_tail
    return total, tail + lost_too


def reduce_exponent(difference: Any, low: Any) -> Any:
    """Return integer k and remainder r with e^(difference + low) = 2^k e^r, |r| < 0.35; FLOOR <= difference."""
    k = (difference * INVERSE_LOG2 + ROUNDER) - ROUNDER
    return k, (difference - k * LOG2_HIGH) - (k * LOG2_LOW - low)


def exponential(r: Any) -> Any:
    """Return e^r for |r| < 0.35 within 3 u: the Taylor polynomial of degree 13 (it stops 2^-57 short)."""
    q = C13 * r + C12
    q = q * r + C11
    q = q * r + C10
    q = q * r + C9
    q = q * r + C8
    q = q * r + C7
    q = q * r + C6
    q = q * r + C5
    q = q * r + C4
    q = q * r + C3
    q = q * r + C2
    return 1.0 + (r + (r * r) * q)


@final
@dataclass(frozen=True, slots=True)
class Gain:
    """The real number factor * scale as 2^e (high + low) with high in [1, 2], for exact scaling of inputs.

    ``first * second`` is 2^e, in two factors because the exponent may lie outside a double's range.
    """

    first: float
    second: float
    high: float
    low: float

    @classmethod
    def of(cls, factor: float, scale: float) -> Gain:
        """Return the gain of a clip factor from 0 to 1 and a positive scale."""
        (a, b), (c, d) = float(factor).as_integer_ratio(), float(scale).as_integer_ratio()
        if a == 0:
            return cls(0.0, 0.0, 1.0, 0.0)
        # Whole numbers and powers of two: quotients of Python's integers round correctly.
        whole, one = a * c, 1 << ((a * c).bit_length() - 1)
        high = whole / one
        top, bottom = high.as_integer_ratio()
        low = (whole * bottom - top * one) / (one * bottom)
        exponent = one.bit_length() - (b * d).bit_length()
        first = max(-1000, min(1000, exponent))
        return cls(2.0**first, 2.0 ** (exponent - first), high, low)

    def approximate(self) -> float:
        """Return the gain as one double, zero or infinite where it leaves the range."""
        return self.high * self.first * self.second
