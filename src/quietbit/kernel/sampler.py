"""A sampler: the interpolated mechanism compiled to numbers that every kernel reads.

Idea     inside segment i the log-weight of symbol j is base[i, j] + slope[i, j] (x - 1/2), relative to
         symbol 0; with x = 1/2 + scale * u this is all a device needs. Each number is stored as a double and
         a tail (what the double misses), so that the law does not depend on how steep the design is.
Symbols  B = 2^bits symbols; n = levels; t = x - 1/2; w_j = e^(l_j); F_k = (w_0 + ... + w_k) / (w_0 + ... +
         w_{B-1}); code = number of k in 0 .. B-2 with U >= F_k, U uniform on the multiples of 2^-64 in [0,
         1).
Source   Guo et al. (ICML 2023), section "Interpolated MVU mechanism"; Sklansky (1960) for the order of the
         sums.

Sampling error. The probability p_k of each code differs from the exact law's by less than SAMPLING_ERROR =
2^-48 = 32 u, u = 2^-53. To first order in u (the rest is below 2^-90):

1. Log-weights. The gain, the tables and t are pairs with relative errors below 2^-100, and |base| + |slope
   t| is below 2^36 by the checks here, so log-weights are right to 2^-62; weights cut off at e^-700 change
   nothing visible. Segments are chosen by comparing pairs and log-weights are continuous, so a neighbour
   chosen at a distance of 2^-100 from a level changes them by less than 2^-80.
2. Weights. The remainder of the exponent's reduction carries an error below u/2 and the polynomial one below
   3 u, so each weight's relative error is below 4 u; p_k then moves by at most 8 u p_k (1 - p_k) <= 2 u.
3. Sums. They are made in Sklansky's order, `bits` additions deep, so each is right to bits * u relatively;
   with the same denominator for all, p_k = (S_k - S_{k-1}) / S moves by at most bits * u (F_k + F_{k-1} +
   p_k) = 2 bits u F_k <= 16 u. This order also keeps the rounded F_k non-decreasing.
4. Quotients move p_k by at most u (F_k + F_{k-1}) <= 2 u, and rounding F_k down to a multiple of 2^-64 by
   2^-64.

In all less than 21 u. The comparison U >= F_k itself is exact: both are multiples of 2^-64.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.spec import MAX_BITS, MAX_LEVELS
from quietbit.design.table import Design
from quietbit.errors import check_int, check_real, require

__all__ = ["SAMPLING_ERROR", "Sampler", "level_knots"]

SAMPLING_ERROR = 2.0**-48
DIGITS = 45  # of the decimal logarithms: beyond the 32 that a pair of doubles holds
MAX_SCALE = 2.0**500
MAX_RANGE = 2.0**16
MAX_LOG = 2.0**19


@final
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Sampler:
    """Log-weights of a design as a function of the input; compare samplers by identity.

    An input u means x = 1/2 + scale * u, clamped into [low, high]: x - 1/2 is clamped to ``low - 1/2`` and
    ``high - 1/2``, each rounded to a double. Column 0 of ``base`` and ``slope`` is zero.
    """

    bits: int
    levels: int
    scale: float
    low: float
    high: float
    base: FloatMatrix
    slope: FloatMatrix
    base_tail: FloatMatrix
    slope_tail: FloatMatrix

    def __post_init__(self) -> None:
        """Refuse numbers outside the hypotheses of the sampling error, and freeze the arrays."""

        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("bits", check_int(self.bits, "bits", 1, MAX_BITS))
        put("levels", check_int(self.levels, "levels", 2, MAX_LEVELS))
        put("scale", check_real(self.scale, "scale", at_least=1 / MAX_SCALE, at_most=MAX_SCALE))
        put("low", check_real(self.low, "low", above=-MAX_RANGE, at_most=MAX_RANGE))
        put("high", check_real(self.high, "high", above=-MAX_RANGE, at_most=MAX_RANGE))
        require(self.low <= self.high, "low", self.low, f"at most high = {self.high!r}")
        shape = (self.levels - 1, 2**self.bits)
        for name in ("base", "slope", "base_tail", "slope_tail"):
            table = np.array(getattr(self, name), dtype=np.float64, order="C", copy=True)
            require(table.shape == shape, f"shape of {name}", table.shape, f"{shape}")
            largest = float(np.abs(table).max())
            require(largest <= MAX_LOG, f"largest entry of {name}", largest, f"at most {MAX_LOG:g}")
            require(not np.any(table[:, 0]), f"column 0 of {name}", "something else", "zero")
            table.setflags(write=False)
            put(name, table)

    @classmethod
    def from_design(cls, design: Design, scale: float, low: float, high: float) -> Sampler:
        """Return the interpolated mechanism of a design at x = 1/2 + scale * u, clamped into [low, high]."""
        n, outputs = design.probabilities.shape
        pair: dict[str, Any] = {key: np.zeros((n - 1, outputs)) for key in ("base", "slope", "base_tail", "slope_tail")}
        with decimal.localcontext() as context:
            context.prec = DIGITS
            logs = [[Decimal(value).ln() for value in row] for row in design.probabilities.tolist()]
            relative = [[value - row[0] for value in row] for row in logs]
            for i in range(n - 1):
                middle = (Decimal(n - 1) - 2 * i) / 2  # (1/2 - x_i) / h
                for j in range(1, outputs):
                    theta = relative[i + 1][j] - relative[i][j]
                    _put_pair(pair, "base", i, j, relative[i][j] + middle * theta)
                    _put_pair(pair, "slope", i, j, theta * (n - 1))
        return cls(bits=design.spec.output_bits, levels=n, scale=scale, low=low, high=high, **pair)

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
    with decimal.localcontext() as context:
        context.prec = DIGITS
        exact = [Decimal(i) / (levels - 1) - Decimal("0.5") for i in range(levels)]
        high = [float(value) for value in exact]
        low = [float(value - Decimal(lead)) for value, lead in zip(exact, high, strict=True)]
    return np.array(high), np.array(low)


def _put_pair(pair: dict[str, Any], key: str, i: int, j: int, value: Decimal) -> None:
    lead = float(value)
    pair[key][i, j] = lead
    pair[key + "_tail"][i, j] = float(value - Decimal(lead))
