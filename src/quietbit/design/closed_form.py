"""Designs that need no search: two input levels, and one bit without bias.

Idea     With two levels every useful symbol has the extreme ratio e^c, and by Cauchy-Schwarz all |z_j| are equal: the
         optimum has two distinct values, whatever the number of symbols; further symbols repeat them.
         With one bit and no bias, P[i, 2] must be linear in x_i, so only the half-width z is free, and the mean squared
         error grows with z: the smallest feasible z is optimal.
Symbols  t = tanh(c/2), c the log-ratio allowed between the two levels; alphabet 1/2 -+ z; lambda the penalty.
         Two levels: J(z) = z^2 + 1/4 - z t + lambda (z t - 1/2)^2, so z = t (1/lambda + 1) / (2 (1/lambda + t^2)).
         One bit:    z = 1/2 + h / (e^c - 1) for metric privacy, 1/2 + 1 / (e^c - 1) = (1/2) coth(c/2) for strict.
"""

from __future__ import annotations

import math

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.spec import DesignSpec

__all__ = ["closed_form", "unbiased_half_width"]


def unbiased_half_width(spec: DesignSpec) -> float:
    """Return the smallest outermost z for which an exactly unbiased design exists, for any number of symbols.

    Rounding every symbol at random to the two outermost ones keeps the means and the privacy, so no alphabet of that
    width can do what two symbols cannot.
    """
    return 0.5 + _excess(spec)


def _excess(spec: DesignSpec) -> float:
    """Return the smallest unbiased z minus 1/2, computed directly so that nothing cancels where it is tiny."""
    reach = 1.0 if spec.privacy == "strict" else spec.spacing
    return reach / math.expm1(spec.log_ratio_step)


def closed_form(spec: DesignSpec) -> tuple[FloatMatrix, FloatVector] | None:
    """Return the optimal table and alphabet where a formula gives them, else ``None``."""
    if spec.input_levels == 2:
        tanh = math.tanh(spec.log_ratio_step / 2)
        share = 1 / spec.penalty  # zero when the bias must be zero
        z = tanh * (share + 1) / (2 * (share + tanh**2))
        return _table(np.array([1.0 / (1.0 + math.exp(spec.log_ratio_step))]), z, spec)
    if spec.output_bits == 1 and spec.bias == "exact":
        z = unbiased_half_width(spec)
        return _table((_excess(spec) + spec.levels[: spec.input_levels // 2]) / (2 * z), z, spec)
    return None


def _table(rare: FloatVector, z: float, spec: DesignSpec) -> tuple[FloatMatrix, FloatVector]:
    """Build the table from P(upper value | level) at the levels below 1/2, spread evenly over repeated symbols.

    Rounded up, so that no stored ratio exceeds the one asked for, to a grid on which a row sums to one.
    """
    half = spec.outputs // 2
    grid = 2.0**-52 * half
    rare = np.ceil(rare / grid) * grid
    middle = [0.5] if spec.input_levels % 2 else []
    upper = np.concatenate([rare, middle, 1.0 - rare[::-1]])
    table = np.repeat(np.stack([upper[::-1], upper], axis=1) / half, half, axis=1)
    top = 0.5 + z
    return table, np.repeat([1.0 - top, top], half)
