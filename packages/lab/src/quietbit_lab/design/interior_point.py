"""The best table for a given alphabet: a structured interior-point method.

Idea     for a fixed alphabet the design problem is a linear program (exact bias) or a small convex
         quadratic one (bias penalty). Its constraints form a chain between neighbouring levels
         (metric privacy) or a hub per symbol (strict privacy), so a Newton step costs O(n). Slacks
         are recomputed from the table at every step: each iterate satisfies the privacy constraints
         strictly, however early one stops.
Symbols  P[i, j] the table; x_i levels; a_j alphabet; r = e^c with c the log-ratio allowed between
         neighbours; mu the barrier weight; y the multipliers of the privacy constraints; nu_i that
         of row i's mean. Chain: r P[i+1,j] - P[i,j] > 0 and r P[i,j] - P[i+1,j] > 0. Hub: l_j <
         P[i,j] < r l_j. Both modes of bias are one system: a . P_i + nu_i n/(2 lambda) = x_i, where
         lambda = inf if exact.
Source   Chaudhuri et al. (2022) for the problem; Wright, "Primal-Dual Interior-Point Methods"
         (1997).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_banded

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.table import DesignSpec

__all__ = ["CentralPath", "Infeasible", "Optimum"]

STEPS = 60  # the most Newton steps of a solve
PATIENCE = 12  # the most steps at the requested weight before imperfect centring is accepted


class Infeasible(ArithmeticError):
    """No table meets the constraints for this alphabet, or the Newton steps broke down."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """A point of the central path at weight ``mu``, for the outer search and the lower bound."""

    table: FloatMatrix
    mean_multipliers: FloatVector  # nu_i, in units of the objective
    sum_multipliers: FloatVector  # the row sums' multipliers
    objective: float
    gap: float  # the duality gap: a bound on the distance from the best objective for this alphabet
    barrier_objective: float  # smooth in the alphabet, with the envelope gradient below
    alphabet_gradient: FloatVector


@final
class _Chain:
    """Neighbouring levels within a factor r: for each symbol, tridiagonal in the level."""

    def __init__(self, levels: int, symbols: int, ratio: float) -> None:
        self.n = levels
        self.b = symbols
        self.r = ratio

    def slacks(self, table: FloatMatrix, hub: FloatVector) -> FloatMatrix:
        return np.stack([self.r * table[1:] - table[:-1], self.r * table[:-1] - table[1:]])

    def transpose(self, y: FloatMatrix) -> tuple[FloatMatrix, FloatVector]:
        out = np.zeros((self.n, self.b))
        out[1:] += self.r * y[0] - y[1]
        out[:-1] += self.r * y[1] - y[0]
        return out, np.empty(0)

    def newton(
        self,
        weight: FloatMatrix,
        rows: FloatMatrix,
        relax: float,
        rhs: FloatMatrix,
        hub_rhs: FloatVector,
    ) -> tuple[FloatMatrix, FloatVector]:
        n = self.n
        b = self.b
        r = self.r
        m = b + 2  # unknowns of one level: its probabilities, then the multipliers of sum and mean
        band = np.zeros((2 * m + 1, n, m))
        diagonal = np.zeros((n, b))
        diagonal[1:] += r * r * weight[0] + weight[1]
        diagonal[:-1] += weight[0] + r * r * weight[1]
        coupling = -r * (weight[0] + weight[1])
        band[m, :, :b] = diagonal
        band[m, :, b + 1] = -relax
        band[0, 1:, :b] = coupling
        band[2 * m, :-1, :b] = coupling
        symbol = np.arange(b)
        for k in range(2):  # row k of ``rows`` is all ones, or the alphabet
            offset = b + k - symbol
            band[m + offset, :, symbol] = rows[k][:, None]
            band[m - offset, :, b + k] = rows[k][:, None]
        flat = band.reshape(2 * m + 1, n * m)
        solution = solve_banded((m, m), flat, rhs.ravel(), check_finite=False)
        return solution.reshape(n, m), np.empty(0)


@final
class _Hub:
    """All levels within a factor r of each other: rows meet only in the column minima l_j."""

    def __init__(self, levels: int, symbols: int, ratio: float) -> None:
        self.n = levels
        self.b = symbols
        self.r = ratio

    def slacks(self, table: FloatMatrix, hub: FloatVector) -> FloatMatrix:
        return np.stack([table - hub, self.r * hub - table])

    def transpose(self, y: FloatMatrix) -> tuple[FloatMatrix, FloatVector]:
        return y[0] - y[1], (self.r * y[1] - y[0]).sum(axis=0)

    def newton(
        self,
        weight: FloatMatrix,
        rows: FloatMatrix,
        relax: float,
        rhs: FloatMatrix,
        hub_rhs: FloatVector,
    ) -> tuple[FloatMatrix, FloatVector]:
        n = self.n
        b = self.b
        r = self.r
        blocks = np.zeros((n, b + 2, b + 2))
        symbol = np.arange(b)
        blocks[:, symbol, symbol] = weight[0] + weight[1]
        for k in range(2):
            blocks[:, :b, b + k] = blocks[:, b + k, :b] = rows[k]
        blocks[:, b + 1, b + 1] = -relax
        coupling = -(weight[0] + r * weight[1])
        border = np.zeros((n, b + 2, b + 1))
        border[:, symbol, symbol] = coupling
        border[:, :, b] = rhs
        inside = np.linalg.solve(blocks, border)  # every row's system, with and without the hub
        schur = np.diag((weight[0] + r * r * weight[1]).sum(axis=0))
        schur -= np.einsum("ij,ijk->jk", coupling, inside[:, :b, :b])
        hub = np.linalg.solve(schur, hub_rhs - (coupling * inside[:, :b, b]).sum(axis=0))
        return inside[:, :, b] - inside[:, :, :b] @ hub, hub


@final
class CentralPath:
    """The central path of one design problem; each solve starts from the table of the last."""

    def __init__(self, spec: DesignSpec, symbols: int | None = None) -> None:
        """Prepare for ``symbols`` outputs, by default those of the spec; a bound needs more."""
        self.n = spec.input_levels
        self.b = spec.outputs if symbols is None else symbols
        self.x = spec.levels
        self.penalty = spec.penalty
        # One part in 10^8 is reserved for the rounding of the stored table.
        ratio = math.exp(spec.log_ratio_step * (1 - 1e-8))
        kind: type[_Chain] | type[_Hub] = _Hub if spec.privacy == "strict" else _Chain
        self.privacy: _Chain | _Hub = kind(self.n, self.b, ratio)
        self.reset()

    def reset(self) -> None:
        """Discard the warm start: return to the uniform table, which meets every epsilon."""
        self.table = np.full((self.n, self.b), 1.0 / self.b)
        middle = self.table.mean(axis=0) * (2 / (1 + self.privacy.r))
        self.hub: FloatVector = middle if isinstance(self.privacy, _Hub) else np.empty(0)
        self.y: NDArray[np.float64] | None = None
        self.nu = np.zeros(self.n)
        self.eta = np.zeros(self.n)

    def follow(
        self, alphabet: FloatVector, gaps: Sequence[float], accuracy: float
    ) -> Optimum | None:
        """Return the point whose duality gap is this share of the objective.

        Where rounding ends the path, it is the point at the last gap that was reached.
        """
        optimum = None
        with contextlib.suppress(Infeasible):
            for gap in gaps:
                optimum = self.solve(alphabet, gap)
                if optimum.gap <= accuracy * optimum.objective:
                    break
        return optimum

    def solve(self, alphabet: FloatVector, gap: float) -> Optimum:
        """Return the point whose duality gap is ``gap``, in units of the alphabet's squared width.

        Raises ``Infeasible`` when the steps stall, for example for an alphabet too narrow to be
        unbiased.
        """
        n = self.n
        b = self.b
        width = float(np.abs(alphabet - 0.5).max())
        t = (alphabet - 0.5) / width  # the problem in units where the alphabet fills [-1, 1]
        x = (self.x - 0.5) / width
        cost = (t[None, :] - x[:, None]) ** 2 / n
        rows = np.stack([np.ones(b), t])
        relax = n / (2 * self.penalty)
        slack = self.privacy.slacks(self.table, self.hub)
        mu = gap / slack.size
        if self.y is None:
            self.y = 1.0 / slack.size / slack
        current = max(float((slack * self.y).mean()), mu)
        at_target = 0
        for _ in range(STEPS):
            y = self.y
            # The condition of the hub is linear, and met when that of the table is.
            g_table, _ = self.privacy.transpose(y)
            priced = cost - self.eta[:, None] - self.nu[:, None] * t
            dual = priced - g_table
            sums = 1.0 - self.table.sum(axis=1)
            means = x - self.table @ t - relax * self.nu
            comp = slack * y
            feasible = max(_largest(sums), _largest(means)) < 1e-11
            stationary = _largest(dual) < 1e-9 * max(1 / n, _largest(self.nu))
            centred = _largest(comp - mu) < 1e-4 * mu
            if feasible and stationary and centred:
                break
            at_target += current <= mu
            if feasible and at_target > PATIENCE and comp.max() < 10 * mu:
                break  # rounding prevents better centring
            # Aim lower when the last point was well centred; never below the requested weight.
            spread = float(comp.min() / comp.mean())
            shrink = 0.15 if spread > 0.05 else 0.6
            current = max(mu, float(comp.mean()) * shrink)
            weight = y / slack
            pull, hub_pull = self.privacy.transpose(current / slack)
            rhs = np.empty((n, b + 2))
            rhs[:, :b] = -priced + pull
            rhs[:, b] = sums
            rhs[:, b + 1] = means
            try:
                step, hub_step = self.privacy.newton(weight, rows, relax, rhs, hub_pull)
            except np.linalg.LinAlgError as error:
                raise Infeasible("the Newton system is singular") from error
            d_table = step[:, :b]
            d_slack = self.privacy.slacks(d_table, hub_step)
            d_y = current / slack - y - weight * d_slack
            primal = _reach(slack, d_slack)
            dual_reach = _reach(y, d_y)
            if not (np.isfinite(primal) and np.isfinite(dual_reach)) or primal < 1e-10:
                raise Infeasible("the Newton steps stalled")
            if relax > 0:  # a penalty couples means and multipliers: both move by the same step
                primal = min(primal, dual_reach)
                dual_reach = primal
            self.table = self.table + primal * d_table
            self.hub = self.hub + primal * hub_step
            self.y = y + dual_reach * d_y
            self.eta = self.eta - dual_reach * step[:, b]
            self.nu = self.nu - dual_reach * step[:, b + 1]
            slack = self.privacy.slacks(self.table, self.hub)
            if not slack.min() > 0:
                raise Infeasible("the table left the privacy constraints")
        else:
            raise Infeasible("the Newton steps did not converge")
        table = self.table.copy()
        nu = self.nu * width
        errors = alphabet[None, :] - self.x[:, None]
        objective = float((table * errors**2).sum() / n)
        if math.isfinite(self.penalty):
            bias = table @ alphabet - self.x
            objective += self.penalty * float(np.mean(bias**2))
        return Optimum(
            table=table,
            mean_multipliers=nu,
            sum_multipliers=self.eta * width**2 - nu / 2,  # the means were taken around 1/2
            objective=objective,
            gap=mu * slack.size * width**2,
            barrier_objective=objective - mu * width**2 * float(np.log(slack).sum()),
            alphabet_gradient=(table * (2 * errors / n - nu[:, None])).sum(axis=0),
        )


def _largest(values: NDArray[np.float64]) -> float:
    return float(np.abs(values).max())


def _reach(value: NDArray[np.float64], step: NDArray[np.float64]) -> float:
    """Return the longest step, at most 1, that takes ``value`` at most 99 % of the way to zero."""
    ratio = float((-step / value).max())
    if ratio > 0:
        return min(1.0, 0.99 / ratio)
    return 1.0
