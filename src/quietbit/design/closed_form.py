"""Designs with a closed form: two input levels, one unbiased bit, and sums of equal bits.

Idea     with two levels every useful symbol has the extreme ratio e^c, and by Cauchy-Schwarz all
         |z_j| are equal: further symbols repeat the two values. With one bit and no bias, P[i, 2]
         must be linear in x_i, and the mean squared error grows with the half-width z, so the
         smallest feasible one is optimal. Binomial rows of b bits interpolate to binomial laws: a
         code is the number of ones among 2^b - 1 independent bits at every input.
Symbols  t = tanh(c/2), c the log-ratio allowed between the two levels; alphabet 1/2 -+ z; lambda
         the penalty.
         Two levels: J(z) = z^2 + 1/4 - z t + lambda (z t - 1/2)^2, so z = t (1/lambda + 1) / (2
         (1/lambda + t^2)).
         One bit: z = 1/2 + h / (e^c - 1) for metric privacy, 1/2 + 1 / (e^c - 1) = (1/2) coth(c/2)
         for strict privacy.
         Binomial: e = epsilon / (2^b - 1); p = 1/(1 + exp(-e (2x - 1))); z = (1/2) coth(e/2).
Source   docs/theory/secure-aggregation.md, "More bits", for the binomial ones.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.table import Design, DesignSpec, exact_rows
from quietbit.errors import check_int, check_real, require

__all__ = [
    "MOST_BINOMIAL_BITS",
    "binomial_design",
    "binomial_deviation_upper",
    "closed_form",
    "is_evenly_spaced",
    "unbiased_half_width",
]

MOST_BINOMIAL_BITS = 4
EVEN = 1e-9  # of the width of the alphabet
# Tables of formulas are the same on every machine: exponentials of mathematics libraries are not.
_DIGITS = Context(prec=60)


def _exp(x: float) -> float:
    return float(_DIGITS.exp(Decimal(x)))


def _expm1(x: float) -> float:
    return float(_DIGITS.subtract(_DIGITS.exp(Decimal(x)), Decimal(1)))


def _tanh(x: float) -> float:
    square = _DIGITS.exp(_DIGITS.multiply(Decimal(2), Decimal(x)))
    one = Decimal(1)
    return float(_DIGITS.divide(_DIGITS.subtract(square, one), _DIGITS.add(square, one)))


def unbiased_half_width(spec: DesignSpec) -> float:
    """Return the smallest outermost z of an exactly unbiased design, for any number of symbols.

    Rounding every symbol at random to the two outermost ones preserves means and privacy, so more
    than two symbols gain nothing.
    """
    return 0.5 + _excess(spec)


def _excess(spec: DesignSpec) -> float:
    """Return the smallest unbiased z minus 1/2, without cancellation where it is tiny."""
    reach = 1.0 if spec.privacy == "strict" else spec.spacing
    return reach / _expm1(spec.log_ratio_step)


def closed_form(spec: DesignSpec) -> tuple[FloatMatrix, FloatVector] | None:
    """Return the optimal table and alphabet where a formula gives them, else ``None``."""
    if spec.input_levels == 2:
        tanh = _tanh(spec.log_ratio_step / 2)
        share = 1 / spec.penalty  # zero when the bias must be zero
        z = tanh * (share + 1) / (2 * (share + tanh**2))
        return _table(np.array([1.0 / (1.0 + _exp(spec.log_ratio_step))]), z, spec)
    if spec.output_bits == 1 and spec.bias == "exact":
        z = unbiased_half_width(spec)
        below_half = spec.levels[: spec.input_levels // 2]
        return _table((_excess(spec) + below_half) / (2 * z), z, spec)
    return None


def _table(rare: FloatVector, z: float, spec: DesignSpec) -> tuple[FloatMatrix, FloatVector]:
    """Build the table from the P(upper value | level) that are below 1/2.

    They are rounded up to a grid on which every row sums to one.
    """
    half = spec.outputs // 2
    grid = 2.0**-52 * half
    rare = np.ceil(rare / grid) * grid
    middle = [0.5] if spec.input_levels % 2 else []
    upper = np.concatenate([rare, middle, 1.0 - rare[::-1]])
    table = np.repeat(np.stack([upper[::-1], upper], axis=1) / half, half, axis=1)
    top = 0.5 + z
    return table, np.repeat([1.0 - top, top], half)


def binomial_design(output_bits: int, epsilon: float) -> Design:
    """Return the two-level design whose codes are sums of 2^b - 1 equal bits, for 1 to 4 bits.

    ``epsilon`` is the metric epsilon of the design; each of the bits has epsilon / (2^b - 1).

    >>> binomial_design(2, 1.5).alphabet.round(3).tolist()
    [-1.541, -0.18, 1.18, 2.541]
    """
    bits = check_int(output_bits, "output_bits", 1, MOST_BINOMIAL_BITS)
    count = 2**bits - 1
    spec = DesignSpec(2, bits, check_real(epsilon, "epsilon"))
    each = spec.epsilon / count
    table = exact_rows(np.exp(_log_binomial(count, np.array([-each, each]))))
    z = 0.5 / math.tanh(each / 2)
    return Design(spec, table, 0.5 + z * (2 * np.arange(count + 1) / count - 1))


def is_evenly_spaced(design: Design) -> bool:
    """Return whether the alphabet's steps are equal, to a part in 10^9 of its width."""
    steps = np.diff(design.alphabet)
    return bool(np.ptp(steps) <= EVEN * float(np.ptp(design.alphabet)))


def binomial_deviation_upper(design: Design, low: float, high: float) -> float:
    """Bound how far log-probabilities are from the binomial ones, for inputs in [low, high].

    The binomial ones have epsilon / (2^b - 1). Unnormalised, the difference is linear in x, so its
    spread over the symbols is largest at an end; normalising moves a logarithm by no more than that
    spread. The bound is infinite for a design of more than two levels.
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


def _log_binomial(count: int, odds: FloatVector) -> FloatMatrix:
    """Return log C(c, j) + j u - c log(1 + e^u), one row per log-odds u."""
    choose = np.array([math.log(math.comb(count, j)) for j in range(count + 1)])
    u = odds[:, None]
    return np.asarray(choose + np.arange(count + 1) * u - count * np.logaddexp(0.0, u))
