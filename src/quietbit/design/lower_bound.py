"""A certified lower bound on the objective of any design, over every alphabet of every size.

Idea     Weak duality. Let nu_i and mu_i be any multipliers of the means and sums, and for an output value a let
         c_i(a) = (a - x_i)^2 / n - mu_i - nu_i a. If every private column p satisfies sum_i p_i c_i(a) >= 0 for every
         real a, then no design costs less than sum_i (mu_i + nu_i x_i), less n/(4 lambda) sum_i nu_i^2 under a
         penalty. The worst column for one a needs no linear program: a backward recursion along the chain (or a sum,
         under strict privacy) gives it in O(n). Multipliers come from the interior-point method on a grid of candidate
         values, to which the worst offenders are added; lowering all mu_i by the remaining violation makes them
         feasible.
Symbols  V(a) = min of sum_i p_i c_i(a) over private columns with sum_i p_i = 1. V(a) - a^2/n is concave (a minimum
         of linear functions), so on a cell of width w it is at least the smaller end value, less w^2/(4n).
Source   mathematics of linear-programming duality; the recursion is this library's own.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quietbit._threads import one_thread
from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.closed_form import unbiased_half_width
from quietbit.design.interior_point import CentralPath, Infeasible
from quietbit.design.spec import DesignSpec

__all__ = ["objective_lower_bound"]

CANDIDATES = 16
ROUNDS = 6
GAPS = tuple(10.0**-k for k in range(1, 15))
CELLS = 2000  # intervals on which feasibility is first verified for every real output value
SPLITS = 6  # rounds in which the cells that decide the bound are split further
FINE_LEVELS = 64
TARGETS = (1e-5, 1e-3)  # relative accuracy wanted, up to `FINE_LEVELS` levels and beyond


@one_thread()
def objective_lower_bound(spec: DesignSpec, hint: tuple[float, ...] = ()) -> float:
    """Return a number no design for this spec can beat, whatever its alphabet; 0 where nothing better is certified.

    ``hint`` is an alphabet known to be good; it joins the candidates, and can only sharpen the bound.
    """
    # Values beyond 1.3 units are never worth their squared error; around the levels the grid is finer.
    outermost = 1.3 * unbiased_half_width(spec)
    z = np.concatenate([np.linspace(0.0, 0.5, CANDIDATES), np.linspace(0.5, outermost, CANDIDATES // 2)])
    z = np.unique(np.round(np.concatenate([z, np.abs(np.asarray(hint) - 0.5)]), 13))
    target = TARGETS[spec.input_levels > FINE_LEVELS]
    best = 0.0
    for _ in range(ROUNDS):
        multipliers = _multipliers(spec, 0.5 + np.concatenate([-z[z > 0][::-1], z]), target / 10)
        if multipliers is None:
            break
        sums, means = multipliers
        dual = float(sums.sum() + means @ spec.levels)
        if math.isfinite(spec.penalty):
            dual -= spec.input_levels / (4 * spec.penalty) * float(means @ means)
        tolerance = target * abs(dual) / spec.input_levels
        violation, offenders = _violation(spec, sums, means, tolerance)
        previous, best = best, max(best, dual - spec.input_levels * violation)
        if violation <= 2 * tolerance or 0 < best < previous * (1 + 10 * target):
            break
        # The exchange step for semi-infinite programs: add the worst offenders to the candidates.
        z = np.unique(np.concatenate([z, np.abs(offenders - 0.5)]))
    return best


def _multipliers(spec: DesignSpec, alphabet: FloatVector, accuracy: float) -> tuple[FloatVector, FloatVector] | None:
    """Return near-optimal multipliers for the problem restricted to these output values."""
    path = CentralPath(spec, len(alphabet))
    best: tuple[FloatVector, FloatVector] | None = None
    for gap in GAPS:
        try:
            found = path.solve(alphabet, gap)
        except Infeasible:
            break
        best = found.sum_multipliers, found.mean_multipliers
        if found.gap <= accuracy * found.objective:
            break
    return best


def _violation(spec: DesignSpec, sums: FloatVector, means: FloatVector, tolerance: float) -> tuple[float, FloatVector]:
    """Return how far the multipliers are from feasible over every real output value, and the worst such values.

    The first number is an upper bound on -min V; the values are the local minima of V below zero.
    """
    n, x = spec.input_levels, spec.levels
    # Outside the outermost roots of the n parabolas c_i every c_i is positive, so every V is too.
    centre, constant = x + n * means / 2, x**2 - n * sums
    roots = np.sqrt(np.maximum(centre**2 - constant, 0.0))
    edges = np.linspace((centre - roots).min() - 1e-9, (centre + roots).max() + 1e-9, CELLS + 1)
    values = _worst_columns(spec, sums, means, edges)
    lowest = np.flatnonzero((values[1:-1] <= values[:-2]) & (values[1:-1] < values[2:]) & (values[1:-1] < 0)) + 1
    offenders = _refined_minima(spec, sums, means, edges, lowest)
    ends, heights = np.stack([edges[:-1], edges[1:]]), np.stack([values[:-1], values[1:]])
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
    return settled, offenders


def _refined_minima(
    spec: DesignSpec, sums: FloatVector, means: FloatVector, edges: FloatVector, lowest: NDArray[np.intp]
) -> FloatVector:
    """Return local minima of V, each narrowed to its own cell by repeated subdivision."""
    left, right = edges[lowest - 1], edges[lowest + 1]
    for _ in range(5):
        inside = np.linspace(left, right, 17)
        values = _worst_columns(spec, sums, means, inside.ravel()).reshape(inside.shape)
        k = np.clip(values.argmin(axis=0), 1, 15)
        columns = np.arange(len(lowest))
        left, right = inside[k - 1, columns], inside[k + 1, columns]
    middle: FloatVector = (left + right) / 2
    return middle


def _worst_columns(spec: DesignSpec, sums: FloatVector, means: FloatVector, outputs: FloatVector) -> FloatVector:
    """Bound V at each output value from below, by Dinkelbach's iteration on the ratio sum p c / sum p."""
    n, ratio = spec.input_levels, math.exp(spec.log_ratio_step * (1 + 1e-12))
    cost = (outputs[None, :] - spec.levels[:, None]) ** 2 / n - sums[:, None] - means[:, None] * outputs
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


def _chain_column(cost: FloatMatrix, value: FloatVector, ratio: float) -> tuple[FloatVector, FloatVector]:
    """Return sum p c and sum p for the column minimising sum p (c - value) along a chain with p_1 = 1."""
    weighted, total = cost[-1].copy(), np.ones_like(value)
    for row in cost[-2::-1]:
        factor = np.where(weighted > value * total, 1 / ratio, ratio)
        weighted = row + factor * weighted
        total = 1 + factor * total
    return weighted, total


def _hub_column(cost: FloatMatrix, value: FloatVector, ratio: float) -> tuple[FloatVector, FloatVector]:
    """Return the same sums as `_chain_column` under strict privacy: every entry is 1 or the ratio."""
    column = np.where(cost < value, ratio, 1.0)
    return (column * cost).sum(axis=0), column.sum(axis=0)
