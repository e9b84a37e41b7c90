"""The certificate of a design: its privacy and error, measured from the stored numbers in rational arithmetic.

Idea     Doubles are rationals, so the ratios, sums and means of a table are computed exactly; only the final logarithm
         is rounded, upwards, with fifty digits to spare. Nothing here depends on a solver.
Symbols  epsilon_upper = max log(P[i,j]/P[i',j]) / d(x_i, x_i'). Between neighbours is enough for the metric kinds,
         because distances add up: k h >= k h and (k h)^2 >= k h^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import final

import numpy as np

from quietbit.design.lower_bound import objective_lower_bound
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design

__all__ = ["Certificate", "certify"]

_DIGITS = Context(prec=50)


@final
@dataclass(frozen=True)
class Certificate:
    """Measured facts about a design; each ``_upper`` is a bound rounded towards privacy.

    ``objective`` is the mean squared error, plus the penalty times the mean squared bias where the spec has one;
    no design for the same spec, with any alphabet, has an objective below ``lower_bound``.
    """

    epsilon_upper: float
    bias_upper: float
    mean_squared_error: float
    objective: float
    spec: DesignSpec = field(repr=False)
    alphabet: tuple[float, ...] = field(repr=False)

    @property
    def lower_bound(self) -> float:
        """The certified lower bound on the objective, computed on first use because it needs a solve."""
        return _lower_bound(self.spec, self.alphabet)

    @property
    def gap(self) -> float:
        """The excess of the objective over the lower bound, as a fraction of the bound."""
        return self.objective / self.lower_bound - 1 if self.lower_bound > 0 else math.inf

    @property
    def meets_spec(self) -> bool:
        """Whether the measured epsilon is the requested one, to a part in a million."""
        return self.epsilon_upper <= self.spec.epsilon * (1 + 1e-6)


_lower_bound = lru_cache(maxsize=256)(objective_lower_bound)


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
    biases, errors = [], []
    for x, row in zip(levels, table, strict=True):
        biases.append(sum(p * a for p, a in zip(row, alphabet, strict=True)) - x)
        errors.append(sum(p * (a - x) ** 2 for p, a in zip(row, alphabet, strict=True)))
    mse = sum(errors) / len(errors)
    objective = mse
    if math.isfinite(spec.penalty):
        objective += Fraction(spec.penalty) * sum(b * b for b in biases) / len(biases)
    return Certificate(
        epsilon_upper=_epsilon_upper(design, table),
        bias_upper=_round_up(max(abs(b) for b in biases)),
        mean_squared_error=float(mse),
        objective=float(objective),
        spec=spec,
        alphabet=tuple(design.alphabet.tolist()),
    )


def _epsilon_upper(design: Design, table: list[list[Fraction]]) -> float:
    """Return the largest log-ratio per unit of distance; rows sum to one, as they are sampled."""
    # Doubles, good to 1e-13 here, only nominate candidates within 1e-11, which are then compared exactly.
    spec, logs = design.spec, np.log(design.probabilities)
    if spec.privacy == "strict":
        span = np.ptp(logs, axis=0)
        columns = [[row[j] for row in table] for j in np.flatnonzero(span >= span.max() - 1e-11)]
        ratio, distance = max(max(column) / min(column) for column in columns), Fraction(1)
    else:
        size = np.abs(np.diff(logs, axis=0))
        steps = [table[i + 1][j] / table[i][j] for i, j in np.argwhere(size >= size.max() - 1e-11)]
        ratio = max(max(step, 1 / step) for step in steps)
        distance = Fraction(1, spec.input_levels - 1) ** (1 if spec.privacy == "metric-l1" else 2)
    quotient = _DIGITS.divide(Decimal(ratio.numerator), Decimal(ratio.denominator))
    return _round_up((Fraction(_DIGITS.ln(quotient)) + Fraction(1, 10**45)) / distance)


def _round_up(value: Fraction) -> float:
    rounded = float(value)
    return rounded if Fraction(rounded) >= value else math.nextafter(rounded, math.inf)
