"""Designs with a closed form: two input levels, or one unbiased bit.

Idea     with two levels every useful symbol has the extreme ratio e^c, and by Cauchy-Schwarz all
         |z_j| are equal: further symbols repeat the two values. With one bit and no bias, P[i, 2]
         must be linear in x_i, and the mean squared error grows with the half-width z, so the
         smallest feasible one is optimal.
Symbols  t = tanh(c/2), c the log-ratio allowed between the two levels; alphabet 1/2 -+ z; lambda
         the penalty.
         Two levels: J(z) = z^2 + 1/4 - z t + lambda (z t - 1/2)^2, so z = t (1/lambda + 1) / (2
         (1/lambda + t^2)).
         One bit: z = 1/2 + h / (e^c - 1) for metric privacy, 1/2 + 1 / (e^c - 1) = (1/2) coth(c/2)
         for strict privacy.
"""

from __future__ import annotations

from decimal import Context, Decimal

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.table import DesignSpec

__all__ = [
    "closed_form",
    "unbiased_half_width",
]

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
