"""The certificate of a design, and how good any design could be.

Idea     doubles are rationals, so the ratios, sums and means of a stored table are computed
         exactly; only the final logarithm is rounded, upwards, from fifty digits. The
         lower bound on the objective, over every alphabet of every size, is weak duality: any
         multipliers give one if sum_i p_i c_i(a) >= 0 for every private column p and every real a,
         and the violation that remains is subtracted. Neither depends on the solver.
Symbols  epsilon_upper = max log(P[i,j]/P[i',j]) / d(x_i, x_i'): between neighbours is enough for
         the metric kinds. mu_i, nu_i: multipliers of sums and means; c_i(a) = (a - x_i)^2 / n -
         mu_i - nu_i a; V(a): the least sum_i p_i c_i(a) over private columns with sum 1.
Source   packages/lab/docs/design.md has the argument; the recursion for the worst column
         is this library's.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import final

import numpy as np

from quietbit._threads import one_thread
from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.closed_form import unbiased_half_width
from quietbit.design.interior_point import CentralPath, Infeasible, Optimum
from quietbit.design.table import Design, DesignSpec

__all__ = ["Certificate", "certify", "objective_lower_bound"]

_DIGITS = Context(prec=50)


@final
@dataclass(frozen=True)
class Certificate:
    """Measured facts about a design; each ``_upper`` is a bound rounded towards privacy.

    ``objective``: the mean squared error, plus the penalty on the mean squared bias; `lower_bound`:
    no design has less.
    """

    epsilon_upper: float
    bias_upper: float
    mean_squared_error: float
    objective: float
    spec: DesignSpec = field(repr=False)
    alphabet: tuple[float, ...] = field(repr=False)

    @property
    def lower_bound(self) -> float:
        """The certified lower bound on the objective; its first use solves a program."""
        return objective_lower_bound(self.spec, self.alphabet)

    @property
    def gap(self) -> float:
        """The excess of the objective over the lower bound, as a fraction of the bound."""
        if self.lower_bound > 0:
            return self.objective / self.lower_bound - 1
        return math.inf

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
        alphabet=tuple(design.alphabet.tolist()),
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


CANDIDATES = 16
ROUNDS = 6
GAPS = tuple(10.0**-k for k in range(1, 15))
CELLS = 2000  # intervals on which feasibility is first verified for every real output value
SPLITS = 6  # rounds in which the cells that decide the bound are split further
FINE_LEVELS = 64
TARGETS = (1e-5, 1e-3)  # relative accuracy wanted, up to `FINE_LEVELS` levels and beyond


@lru_cache(maxsize=256)
@one_thread()
def objective_lower_bound(spec: DesignSpec, hint: tuple[float, ...] = ()) -> float:
    """Return a lower bound on the objective of every design for this spec.

    ``hint``, an alphabet known to be good, can only raise it.
    """
    # Values beyond 1.3 units are never worth their squared error; around the levels the grid is
    # finer.
    outermost = 1.3 * unbiased_half_width(spec)
    inner = np.linspace(0.0, 0.5, CANDIDATES)
    outer = np.linspace(0.5, outermost, CANDIDATES // 2)
    hinted = np.abs(np.asarray(hint) - 0.5)
    z = np.unique(np.round(np.concatenate([inner, outer, hinted]), 13))
    target = TARGETS[spec.input_levels > FINE_LEVELS]
    best = 0.0
    for _ in range(ROUNDS):
        alphabet = 0.5 + np.concatenate([-z[z > 0][::-1], z])
        path = CentralPath(spec, len(alphabet))
        optimum: Optimum | None = None
        # Where rounding ends the path, the multipliers of the last gap are used.
        with contextlib.suppress(Infeasible):
            for gap in GAPS:
                optimum = path.solve(alphabet, gap)
                if optimum.gap <= target / 10 * optimum.objective:
                    break
        if optimum is None:
            break
        sums = optimum.sum_multipliers
        means = optimum.mean_multipliers
        dual = float(sums.sum() + means @ spec.levels)
        if math.isfinite(spec.penalty):
            dual -= spec.input_levels / (4 * spec.penalty) * float(means @ means)
        tolerance = target * abs(dual) / spec.input_levels
        violation, offenders = _violation(spec, sums, means, tolerance)
        previous = best
        best = max(best, dual - spec.input_levels * violation)
        if violation <= 2 * tolerance or 0 < best < previous * (1 + 10 * target):
            break
        # The exchange step of semi-infinite programs: add the worst offenders to the candidates.
        z = np.unique(np.concatenate([z, np.abs(offenders - 0.5)]))
    return best


def _violation(
    spec: DesignSpec, sums: FloatVector, means: FloatVector, tolerance: float
) -> tuple[float, FloatVector]:
    """Return an upper bound of -min V over all real outputs, and V's local minima below zero."""
    n = spec.input_levels
    x = spec.levels
    # Outside the outermost roots of the n parabolas c_i every c_i is positive, so every V is too.
    centre = x + n * means / 2
    constant = x**2 - n * sums
    roots = np.sqrt(np.maximum(centre**2 - constant, 0.0))
    edges = np.linspace((centre - roots).min() - 1e-9, (centre + roots).max() + 1e-9, CELLS + 1)
    values = _worst_columns(spec, sums, means, edges)
    middle = values[1:-1]
    is_lowest = (middle <= values[:-2]) & (middle < values[2:]) & (middle < 0)
    lowest = np.flatnonzero(is_lowest) + 1
    left = edges[lowest - 1]
    right = edges[lowest + 1]
    for _ in range(5):  # every local minimum is narrowed to its own cell
        inside = np.linspace(left, right, 17)
        heights = _worst_columns(spec, sums, means, inside.ravel()).reshape(inside.shape)
        k = np.clip(heights.argmin(axis=0), 1, 15)
        columns = np.arange(len(lowest))
        left = inside[k - 1, columns]
        right = inside[k + 1, columns]
    ends = np.stack([edges[:-1], edges[1:]])
    heights = np.stack([values[:-1], values[1:]])
    settled = 0.0
    for split in range(SPLITS + 1):
        width = ends[1] - ends[0]
        error = width**2 / (4 * n)
        floor = heights.min(axis=0) - error
        loose = (floor < 0) & (error > tolerance)
        if split == SPLITS or loose.sum() > CELLS:
            loose[:] = False
        settled = max(settled, float(-floor[~loose].min(initial=0.0)))
        if not loose.any():
            break
        finer = np.linspace(ends[0][loose], ends[1][loose], 9)  # every loose cell becomes eight
        height = _worst_columns(spec, sums, means, finer.ravel()).reshape(finer.shape)
        ends = np.stack([finer[:-1].ravel(), finer[1:].ravel()])
        heights = np.stack([height[:-1].ravel(), height[1:].ravel()])
    return settled, (left + right) / 2


def _worst_columns(
    spec: DesignSpec, sums: FloatVector, means: FloatVector, outputs: FloatVector
) -> FloatVector:
    """Bound V at each output value from below, by Dinkelbach's iteration on sum p c / sum p."""
    n = spec.input_levels
    ratio = math.exp(spec.log_ratio_step * (1 + 1e-12))
    squared_error = (outputs[None, :] - spec.levels[:, None]) ** 2
    cost = squared_error / n - sums[:, None] - means[:, None] * outputs
    value = cost.mean(axis=0)  # the constant column
    worst = _hub_column if spec.privacy == "strict" else _chain_column
    for _ in range(60):
        weighted, total = worst(cost, value, ratio)
        improved = np.minimum(value, weighted / total)
        done = bool(np.all(improved >= value - 1e-14 * np.abs(cost).max(axis=0)))
        value = improved
        if done:
            break
    lower: FloatVector = value - 1e-12 * np.abs(cost).max(axis=0)
    return lower


def _chain_column(
    cost: FloatMatrix, value: FloatVector, ratio: float
) -> tuple[FloatVector, FloatVector]:
    """Return sum p c and sum p of the chain with p_1 = 1 that minimises sum p (c - value)."""
    weighted = cost[-1].copy()
    total = np.ones_like(value)
    for row in cost[-2::-1]:
        factor = np.where(weighted > value * total, 1 / ratio, ratio)
        weighted = row + factor * weighted
        total = 1 + factor * total
    return weighted, total


def _hub_column(
    cost: FloatMatrix, value: FloatVector, ratio: float
) -> tuple[FloatVector, FloatVector]:
    """Return the sums of `_chain_column` under strict privacy: every entry is 1 or the ratio."""
    column = np.where(cost < value, ratio, 1.0)
    return (column * cost).sum(axis=0), column.sum(axis=0)
