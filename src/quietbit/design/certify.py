"""The exact certificate of a design.

Idea     doubles are rationals, so the ratios, sums and means of a stored table are computed
         exactly; only the final logarithm is rounded, upwards, from fifty digits. It
         does not depend on how the design was found.
Symbols  epsilon_upper = max log(P[i,j]/P[i',j]) / d(x_i, x_i'): between neighbours is enough for
         the metric kinds.
Source   docs/theory/numerics.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Context, Decimal
from fractions import Fraction
from typing import final

import numpy as np

from quietbit.design.table import Design, DesignSpec

__all__ = ["Certificate", "certify"]

_DIGITS = Context(prec=50)


@final
@dataclass(frozen=True)
class Certificate:
    """Measured facts about a design; each ``_upper`` is a bound rounded towards privacy.

    ``objective``: the mean squared error, plus the penalty on the mean squared bias.
    """

    epsilon_upper: float
    bias_upper: float
    mean_squared_error: float
    objective: float
    spec: DesignSpec = field(repr=False)

    @property
    def meets_spec(self) -> bool:
        """Whether the measured epsilon is the requested one, to a part in a million."""
        return self.epsilon_upper <= self.spec.epsilon * (1 + 1e-6)


def certify(design: Design) -> Certificate:
    """Measure privacy, bias and error of a design from its table and alphabet alone.

    >>> from quietbit.design.solve import solve
    >>> bool(certify(solve(DesignSpec(2, 1, 1.0))).epsilon_upper <= 1 + 1e-6)
    True
    """
    spec = design.spec
    table = [[Fraction(p) for p in row] for row in design.probabilities.tolist()]
    alphabet = [Fraction(a) for a in design.alphabet.tolist()]
    levels = [Fraction(i, spec.input_levels - 1) for i in range(spec.input_levels)]
    biases = []
    squared_errors = Fraction(0)
    for x, row in zip(levels, table, strict=True):
        outcomes = list(zip(row, alphabet, strict=True))
        biases.append(sum(p * a for p, a in outcomes) - x)
        squared_errors += sum(p * (a - x) ** 2 for p, a in outcomes)
    mse = squared_errors / len(levels)
    objective = mse
    if math.isfinite(spec.penalty):
        objective += Fraction(spec.penalty) * sum(b * b for b in biases) / len(biases)
    return Certificate(
        epsilon_upper=_epsilon_upper(design, table),
        bias_upper=_round_up(max(abs(b) for b in biases)),
        mean_squared_error=float(mse),
        objective=float(objective),
        spec=spec,
    )


def _epsilon_upper(design: Design, table: list[list[Fraction]]) -> float:
    """Return the largest log-ratio per unit of distance; rows sum to one, as they are sampled."""
    # Doubles, good to 1e-13 here, only select candidates within 1e-11, which are then compared
    # exactly.
    spec = design.spec
    logs = np.log(design.probabilities)
    if spec.privacy == "strict":
        span = np.ptp(logs, axis=0)
        columns = [[row[j] for row in table] for j in np.flatnonzero(span >= span.max() - 1e-11)]
        ratio = max(max(column) / min(column) for column in columns)
        distance = Fraction(1)
    else:
        size = np.abs(np.diff(logs, axis=0))
        steps = [table[i + 1][j] / table[i][j] for i, j in np.argwhere(size >= size.max() - 1e-11)]
        ratio = max(max(step, 1 / step) for step in steps)
        power = 1 if spec.privacy == "metric-l1" else 2
        distance = Fraction(1, spec.input_levels - 1) ** power
    quotient = _DIGITS.divide(Decimal(ratio.numerator), Decimal(ratio.denominator))
    return _round_up((Fraction(_DIGITS.ln(quotient)) + Fraction(1, 10**45)) / distance)


def _round_up(value: Fraction) -> float:
    rounded = float(value)
    if Fraction(rounded) >= value:
        return rounded
    return math.nextafter(rounded, math.inf)
