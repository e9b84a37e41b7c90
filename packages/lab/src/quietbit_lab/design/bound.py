"""How good any design of a spec could be: a lower bound on the objective, over every alphabet.

Idea     the bound is weak duality: any multipliers give one if sum_i p_i c_i(a) >= 0 for every
         private column p and every real a, and the violation that remains is subtracted. It does
         not depend on the solver.
Symbols  mu_i, nu_i: multipliers of sums and means; c_i(a) = (a - x_i)^2 / n - mu_i - nu_i a; V(a):
         the least sum_i p_i c_i(a) over private columns with sum 1.
Source   packages/lab/docs/design.md has the argument; the recursion for the worst column is this
         library's.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from quietbit import Design
from quietbit._threads import one_thread
from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.certify import certify
from quietbit.design.closed_form import unbiased_half_width
from quietbit.design.table import DesignSpec
from quietbit_lab.design.interior_point import CentralPath

__all__ = ["gap_to", "lower_bound", "objective_lower_bound"]

CANDIDATES = 16
ROUNDS = 6
GAPS = tuple(10.0**-k for k in range(1, 15))
CELLS = 2000  # intervals on which feasibility is first verified for every real output value
SPLITS = 6  # rounds in which the cells that decide the bound are split further
FINE_LEVELS = 64
TARGETS = (1e-5, 1e-3)  # relative accuracy wanted, up to `FINE_LEVELS` levels and beyond


def lower_bound(design: Design) -> float:
    """Return the least objective that any design of the same spec could have."""
    return objective_lower_bound(design.spec, tuple(design.alphabet.tolist()))


def gap_to(design: Design) -> float:
    """Return the excess of a design's objective over that bound, as a fraction of the bound."""
    least = lower_bound(design)
    if least > 0:
        return certify(design).objective / least - 1
    return math.inf


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
        optimum = path.follow(alphabet, GAPS, target / 10)
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
