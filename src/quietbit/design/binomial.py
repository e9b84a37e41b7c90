"""Evenly spaced designs of b bits: a code is the number of ones among 2^b - 1 equal bits.

Idea     sums of codes determine the mean only if code j stands for a value linear in j. Binomial rows are such a
         design: interpolating their logarithms gives binomial laws again, with log-odds linear in x, so that a code is
         a sum of independent bits at every input. This makes the account of a sum of codes a theorem.
Symbols  c = 2^b - 1; e = epsilon / c, the epsilon of one bit; p = 1/(1 + exp(-e (2x - 1))); P(j|x) = C(c, j) p^j
         (1-p)^(c-j); alphabet 1/2 + z (2j/c - 1) with z = (1/2) coth(e/2), unbiased at both levels.
Source   the closed form of one bit (`closed_form`), c times; docs/theory/secure-aggregation.md, "More bits".
"""

from __future__ import annotations

import math

import numpy as np

from quietbit._typing import FloatMatrix
from quietbit.design.rounding import exact_rows
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design
from quietbit.errors import check_int, check_real, require

__all__ = ["MOST_BINOMIAL_BITS", "binomial_design", "binomial_deviation_upper", "is_evenly_spaced"]

MOST_BINOMIAL_BITS = 4
EVEN = 1e-9  # of the width of the alphabet


def binomial_design(output_bits: int, epsilon: float) -> Design:
    """Return the two-level design whose codes are sums of 2^b - 1 equal bits, for 1 to 4 bits.

    ``epsilon`` is the design's metric epsilon, of the rarest code: each of the bits has epsilon / (2^b - 1).

    >>> binomial_design(2, 1.5).alphabet.round(3).tolist()
    [-1.541, -0.18, 1.18, 2.541]
    """
    bits = check_int(output_bits, "output_bits", 1, MOST_BINOMIAL_BITS)
    count = 2**bits - 1
    spec = DesignSpec(2, bits, check_real(epsilon, "epsilon"))
    each = spec.epsilon / count
    odds = np.array([-each, each])
    table = exact_rows(np.exp(_log_binomial(count, odds)))
    z = 0.5 / math.tanh(each / 2)
    return Design(spec, table, 0.5 + z * (2 * np.arange(count + 1) / count - 1))


def is_evenly_spaced(design: Design) -> bool:
    """Return whether neighbouring values of the alphabet are equally far apart, to a part in 10^9 of its width."""
    steps = np.diff(design.alphabet)
    return bool(np.ptp(steps) <= EVEN * float(np.ptp(design.alphabet)))


def binomial_deviation_upper(design: Design, low: float, high: float) -> float:
    """Bound the distance of the design's log-probabilities from binomial ones for inputs in [low, high].

    The bits' epsilon is the spec's over 2^b - 1. The difference of unnormalised logarithms is linear in x, so its
    spread over the symbols is largest at an end; normalising moves a logarithm by no more than that spread. Infinite
    for a design of more than two levels.
    """
    require(low < high, "input range", (low, high), "increasing")
    if design.spec.input_levels != 2:
        return math.inf
    count = design.spec.outputs - 1
    each = design.spec.epsilon / count
    eta = np.log(design.probabilities)
    x = np.array([[low], [high]])
    line = eta[0] + x * (eta[1] - eta[0])
    spread = np.ptp(line - _log_binomial(count, each * (2 * x[:, 0] - 1)), axis=1)
    rounding = 2.0**-46 * (1 + float(np.abs(eta).max())) * (1 + max(abs(low), abs(high)))
    return float(spread.max()) + rounding


def _log_binomial(count: int, odds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> FloatMatrix:
    """Return log C(c, j) + j u - c log(1 + e^u), one row per log-odds u."""
    choose = np.array([math.log(math.comb(count, j)) for j in range(count + 1)])
    u = odds[:, None]
    return np.asarray(choose + np.arange(count + 1) * u - count * np.logaddexp(0.0, u))
