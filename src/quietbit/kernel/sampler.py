"""The law of a code: log-weights of the interpolated mechanism, and its exact arithmetic.

Idea     inside segment i the log-weight of symbol j is base[i, j] + slope[i, j] (x - 1/2), relative
         to symbol 0. Tables and log-weights are pairs of doubles, so that neither steep designs nor
         large log-ratios cost accuracy; only the exponential, the sums and the quotient round to
         one double. The functions below are written once, with + - * / alone: numpy arrays and
         compiled GPU code take the same roundings, without a library's exponential and without
         fused multiply-adds.
Symbols  v the input, t = x - 1/2 = factor * scale * v; B = 2^bits symbols; n = levels; w_j =
         e^(l_j), l_j = base_j + slope_j t; F_k = (w_0 + ... + w_k) / (w_0 + ... + w_{B-1}), summed
         in Sklansky's order; code = number of k in 0 .. B-2 with U >= F_k, U uniform on the
         multiples of 2^-64 in [0, 1). A pair (high, low) is high + low.
Error    the probability of each code is within SAMPLING_ERROR of the exact law's
         (docs/theory/numerics.md), given the bounds that `Sampler` checks.
Source   Guo et al. (ICML 2023), section "Interpolated MVU mechanism"; Sklansky (1960); Dekker
         (1971) and Knuth (TAOCP 2, 4.2.2) for exact sums and products; Cody and Waite (1980) for
         the reduction by log 2.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from functools import lru_cache
from math import factorial
from typing import Any, NamedTuple, final

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.store import frozen_array
from quietbit.design.table import MAX_BITS, MAX_LEVELS, Design
from quietbit.errors import check_int, check_real, require

__all__ = ["LAW", "SAMPLING_ERROR", "Gain", "Sampler", "level_knots", "two_product"]

SAMPLING_ERROR = 2.0**-48
DIGITS = 45  # of the decimal logarithms: beyond the 32 that a pair of doubles holds
MAX_SCALE = 2.0**500
MAX_RANGE = 2.0**16
MAX_LOG = 2.0**19

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
    """Return the rounded product and what rounding lost, exactly unless it over- or underflows."""
    product = a * b
    scaled_a = SPLITTER * a
    scaled_b = SPLITTER * b
    a_high = scaled_a - (scaled_a - a)
    b_high = scaled_b - (scaled_b - b)
    a_low = a - a_high
    b_low = b - b_high
    rest = ((product - a_high * b_high) - a_low * b_high) - a_high * b_low
    return product, a_low * b_low - rest


def shift(scaled: Any, high: Any, low: Any) -> Any:
    """Return the pair t, from the input already multiplied by the gain's power of two."""
    product, lost = two_product(scaled, high)
    lost = lost + scaled * low
    total = product + lost
    return total, lost - (total - product)


def log_weight(base: Any, base_tail: Any, slope: Any, slope_tail: Any, t: Any, t_low: Any) -> Any:
    """Return the pair l = base + slope t, within 2^-98 of |base| + |slope t|."""
    product, lost = two_product(slope, t)
    total, lost_too = two_sum(base, product)
    tail = (lost + (slope * t_low + slope_tail * t)) + base_tail
    return total, tail + lost_too


def reduce_exponent(difference: Any, low: Any) -> Any:
    """Return integer k and r with e^(difference + low) = 2^k e^r, |r| < 0.35.

    The difference must be at least FLOOR.
    """
    k = (difference * INVERSE_LOG2 + ROUNDER) - ROUNDER
    return k, (difference - k * LOG2_HIGH) - (k * LOG2_LOW - low)


def exponential(r: Any) -> Any:
    """Return e^r for |r| < 0.35 within 3 u, by the Taylor polynomial of degree 13.

    What the polynomial leaves out is below 2^-57.
    """
    q = ((((C13 * r + C12) * r + C11) * r + C10) * r + C9) * r + C8
    q = (((((q * r + C7) * r + C6) * r + C5) * r + C4) * r + C3) * r + C2
    return 1.0 + (r + (r * r) * q)


# In the order in which they can be compiled: callees first.
LAW: tuple[Any, ...] = (two_sum, two_product, shift, log_weight, reduce_exponent, exponential)


@final
class Gain(NamedTuple):
    """The real number factor * scale as 2^e (high + low), high in [1, 2], for exact scaling.

    ``first * second`` is 2^e, in two factors because 2^e may lie outside a double's range.
    """

    first: float
    second: float
    high: float
    low: float

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, factor: float, scale: float) -> Gain:
        """Return the gain of a clip factor from 0 to 1 and a positive scale."""
        a, b = float(factor).as_integer_ratio()
        c, d = float(scale).as_integer_ratio()
        if a == 0:
            return cls(0.0, 0.0, 1.0, 0.0)
        # Whole numbers and powers of two: quotients of Python's integers round correctly.
        product = a * c
        power = 1 << (product.bit_length() - 1)
        high = product / power
        top, bottom = high.as_integer_ratio()
        low = (product * bottom - top * power) / (power * bottom)
        exponent = power.bit_length() - (b * d).bit_length()
        first = max(-1000, min(1000, exponent))
        return cls(2.0**first, 2.0 ** (exponent - first), high, low)

    def approximate(self) -> float:
        """Return the gain as one double, zero or infinite where it leaves the range."""
        return self.high * self.first * self.second


@final
@frozen(eq=False)
class Sampler:
    """Log-weights of a design as a function of the input; compare samplers by identity.

    An input v means x = 1/2 + scale * v, clamped into [low, high]: x - 1/2 is clamped to ``low -
    1/2`` and ``high - 1/2``, each rounded to a double. Column 0 of ``base`` and ``slope`` is zero.
    """

    bits: int
    levels: int
    scale: float
    low: float
    high: float
    base: FloatMatrix = field(converter=frozen_array)
    slope: FloatMatrix = field(converter=frozen_array)
    base_tail: FloatMatrix = field(converter=frozen_array)
    slope_tail: FloatMatrix = field(converter=frozen_array)

    def __attrs_post_init__(self) -> None:
        """Refuse numbers outside the hypotheses of the sampling error."""
        check_int(self.bits, "bits", 1, MAX_BITS)
        check_int(self.levels, "levels", 2, MAX_LEVELS)
        check_real(self.scale, "scale", at_least=1 / MAX_SCALE, at_most=MAX_SCALE)
        check_real(self.low, "low", above=-MAX_RANGE, at_most=MAX_RANGE)
        check_real(self.high, "high", above=-MAX_RANGE, at_most=MAX_RANGE)
        require(self.low <= self.high, "low", self.low, f"at most high = {self.high!r}")
        shape = (self.levels - 1, 2**self.bits)
        for name in ("base", "slope", "base_tail", "slope_tail"):
            table = getattr(self, name)
            require(table.shape == shape, f"shape of {name}", table.shape, f"{shape}")
            largest = float(np.abs(table).max())
            require(largest <= MAX_LOG, f"largest entry of {name}", largest, f"at most {MAX_LOG:g}")
            size = float(np.abs(table[:, 0]).max())
            require(size == 0, f"column 0 of {name}", size, "zero")

    @classmethod
    def from_design(cls, design: Design, scale: float, low: float, high: float) -> Sampler:
        """Return the interpolated mechanism of a design at x = 1/2 + scale * v, clamped."""
        probabilities = design.probabilities.tolist()
        n = len(probabilities)
        with decimal.localcontext(prec=DIGITS):
            logs: Any = np.array([[Decimal(value).ln() for value in row] for row in probabilities])
            relative = logs - logs[:, :1]
            theta = relative[1:] - relative[:-1]
            # (1/2 - x_i) / h of each segment
            middle: Any = np.array([(Decimal(n - 1) - 2 * i) / 2 for i in range(n - 1)])
            base, base_tail = _pair(relative[:-1] + middle[:, None] * theta)
            slope, slope_tail = _pair(theta * (n - 1))
        return cls(design.spec.output_bits, n, scale, low, high, base, slope, base_tail, slope_tail)

    @property
    def symbols(self) -> int:
        """B, the number of codes."""
        return int(2**self.bits)

    @property
    def t_range(self) -> tuple[float, float]:
        """The clamp of t = x - 1/2."""
        return self.low - 0.5, self.high - 0.5


@lru_cache(maxsize=64)
def level_knots(levels: int) -> tuple[FloatVector, FloatVector]:
    """Return the input levels as values of t = x - 1/2, in pairs."""
    half = Decimal("0.5")
    with decimal.localcontext(prec=DIGITS):
        knots = [Decimal(i) / (levels - 1) - half for i in range(levels)]
        return _pair(np.array(knots))


def _pair(exact: Any) -> tuple[Any, Any]:
    """Return an array of decimals as doubles, and the difference, also as doubles."""
    high = exact.astype(np.float64)
    rest = exact - np.vectorize(Decimal, otypes=[object])(high)
    return high, rest.astype(np.float64)
