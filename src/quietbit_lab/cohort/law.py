"""One bit of noise's sign: the exact law in double precision, the same to the last bit on every device.

Idea     code 1 has probability 1 - F, with F = P(noise < -t) for noise that is symmetric about 0. With a = |t| and
         q(a) = P(noise > a), F is q(a) for t >= 0 and 1 - q(a) for t < 0. q is a Taylor polynomial on each of 192
         cells of width 1/4, evaluated by a fixed sequence of + - * in double precision, nothing fused; its
         coefficients are made from 60-digit decimals.
Symbols  t the log-odds (logistic) or the update over the scale of the noise; a = |t|; c the middle of a's cell, h =
         a - c; F is used as a whole number of 2^-64: code = 1 where the 64-bit word (16 primary bits, then 48 tie
         bits) reaches it.
Source   Guo et al. (ICML 2023): the one-bit mechanism is the sign of the update plus logistic noise, SignSGD that of
         Gaussian or Laplace noise. One-bit MVU, dithered, is that of uniform noise.

Error, u = 2^-53. The polynomial stops at degree 15. Logistic: q is analytic within pi of the real line, where |q| < 1
within 3, so the rest is below (h/3)^16 / (1 - h/3) < 2^-72 with h <= 1/8. Normal: the n-th coefficient is
He_{n-1}(c) phi(c) / n!, below sqrt((n-1)!) / n! in size (Cramer's bound), so the rest is below 2^-64. Laplace: below
2^-92. Uniform: 0, each cell lies on one side of 1. Coefficients and the steps of Horner's rule round to u relatively: the first coefficient and the last addition by
u/2 each of q <= 1/2, everything else by less than u of h times the slope, at most u/16 a step. Turning q into 1 - q
costs u/2, rounding down to a multiple of 2^-64 less than 2^-64, cutting a off at 48 less than 2^-69. In all the law is
right to less than 2 u = 2^-52, well inside SAMPLING_ERROR.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatMatrix

__all__ = ["CELLS", "DEGREE", "PER_UNIT", "BitLaw", "exact_bits", "tail_table", "thresholds"]

PER_UNIT = 4  # cells per unit of a
CELLS = 192
END = CELLS / PER_UNIT
DEGREE = 15
DIGITS = 60


class BitLaw(Enum):
    """The noise whose sign, after the update is added, is the bit: which function of t P(code 1) is."""

    LOGISTIC = "logistic"  # 1 / (1 + e^-t): one-bit I-MVU with two levels
    NORMAL = "normal"  # Phi(t): SignSGD on Gaussian noise of standard deviation 1
    LAPLACE = "laplace"  # SignSGD on Laplace noise of scale 1
    UNIFORM = "uniform"  # (1 + t) / 2 within [-1, 1]: one-bit MVU


@lru_cache(maxsize=4)
def tail_table(law: BitLaw) -> FloatMatrix:
    """Coefficients of q around the middle of each cell: row = cell, column = power of h."""
    with decimal.localcontext() as context:
        context.prec = DIGITS
        middles = [(Decimal(cell) + Decimal("0.5")) / PER_UNIT for cell in range(CELLS)]
        rows = [_SERIES[law](middle) for middle in middles]
        table = np.array([[float(value) for value in row] for row in rows])
    table.setflags(write=False)
    return table


def _logistic(c: Decimal) -> list[Decimal]:
    """1 / (1 + e^a): the reciprocal of a power series."""
    below = [c.exp() / factorial(n) for n in range(DEGREE + 1)]
    below[0] += 1
    series = [1 / below[0]]
    for n in range(1, DEGREE + 1):
        known = sum((below[k] * series[n - k] for k in range(1, n + 1)), Decimal(0))
        series.append(-known / below[0])
    return series


def _laplace(c: Decimal) -> list[Decimal]:
    return [(-c).exp() / 2 * (-1) ** n / factorial(n) for n in range(DEGREE + 1)]


def _uniform(c: Decimal) -> list[Decimal]:
    straight = [(1 - c) / 2, Decimal("-0.5")] if c < 1 else [Decimal(0), Decimal(0)]
    return [*straight, *[Decimal(0)] * (DEGREE - 1)]


def _normal(c: Decimal) -> list[Decimal]:
    """Q(c), then -phi(c) times Hermite's polynomials; 0 where Q is below 10^-32."""
    if c > 12:
        return [Decimal(0)] * (DEGREE + 1)
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    density = (-c * c / 2).exp() / (2 * pi).sqrt()
    term = inside = c
    n = 1
    while term > Decimal(10) ** -DIGITS * inside:
        n += 2
        term = term * c * c / n
        inside += term
    hermite = [Decimal(1), c]
    for n in range(1, DEGREE):
        hermite.append(c * hermite[n] - n * hermite[n - 1])
    rest = [-density * (-1) ** (n - 1) * hermite[n - 1] / factorial(n) for n in range(1, DEGREE + 1)]
    return [Decimal("0.5") - density * inside, *rest]


_SERIES = {
    BitLaw.LOGISTIC: _logistic,
    BitLaw.NORMAL: _normal,
    BitLaw.LAPLACE: _laplace,
    BitLaw.UNIFORM: _uniform,
}


def thresholds(law: BitLaw, t: NDArray[np.float64], reach: float) -> tuple[Any, Any]:
    """floor(2^64 F) of each t, split into the upper 16 bits (0 .. 65536) and the lower 48; NaN counts as -reach."""
    t = np.where(t > -reach, t, -reach)
    t = np.where(t < reach, t, reach)
    a = np.minimum(np.abs(t), END)
    cell = np.minimum((a * PER_UNIT).astype(np.int64), CELLS - 1)
    h = a - (cell * (1.0 / PER_UNIT) + 0.5 / PER_UNIT)
    rows = tail_table(law)[cell]
    q = rows[..., DEGREE]
    with np.errstate(under="ignore"):
        for power in range(DEGREE - 1, -1, -1):
            q = q * h + rows[..., power]
    q = np.where(q > 0.0, q, 0.0)
    scaled = np.where(t < 0.0, 1.0 - q, q) * 65536.0
    upper = np.floor(scaled)
    return upper.astype(np.int64), np.floor((scaled - upper) * 2.0**48).astype(np.int64)


def exact_bits(law: BitLaw, t: NDArray[np.float64], reach: float, primary: Any, ties: Any) -> NDArray[np.bool_]:
    """The bit of each t from its primary (16) and tie (48) bits, whole numbers."""
    upper, lower = thresholds(law, t, reach)
    bits: NDArray[np.bool_] = (primary > upper) | ((primary == upper) & (ties >= lower))
    return bits
