"""Privacy loss distributions: the exact account of many releases, each with a known worst pair.

Idea     a release whose worst pair of laws (P, Q) is known costs delta(eps) = E_P[(1 - e^(eps -
         L))_+], L = log dP/dQ, and the losses of independent releases add: `convolution` adds them.
         All errors go towards privacy: losses and masses are upper bounds throughout.
Symbols  P, Q: a dominating pair, P the law with the party's data, Q the neighbour's; theta: tilt;
         K(theta) = log E_P e^(theta L).
Source   Dwork and Rothblum (2016), Sommer, Meiser, Mohammadi (2019): the loss and its convolution;
         Zhu, Dong, Wang (2022), Theorem 10: dominating pairs of adaptive releases multiply;
         Kairouz, Oh, Viswanath (2015): pure privacy; Doroshenko et al. (2022): connecting the dots.
         docs/theory/adding-up.md, "Loss distributions", proves the errors that are added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.privacy.convolution import (
    Atoms,
    Losses,
    convolved,
    moment_upper,
    tilt_at,
    tilt_for,
)
from quietbit.privacy.rounding import UNIT, next_up
from quietbit.target import check_delta

__all__ = ["LossDistribution"]


@final
@dataclass(frozen=True, slots=True)
class LossDistribution(Losses):
    """Losses of independent releases in one direction; use the constructors below.

    >>> once = LossDistribution.from_atoms([0.75, 0.25], [0.25, 0.75])
    >>> once.epsilon_upper(0.0) >= math.log(3)
    True
    >>> once.repeat(100).epsilon_upper(1e-6) < 100 * once.epsilon_upper(1e-6)
    True
    """

    @classmethod
    def from_atoms(cls, upper: ArrayLike, lower: ArrayLike) -> LossDistribution:
        """Build the pair of finite laws with masses P_i <= ``upper`` and Q_i >= ``lower``.

        Where a mass of Q is 0 and its mass of P is not, the loss is infinite.

        Args:
            upper: masses of P, rounded up where they are not exact, with a sum of 1 or slightly
                more; 1e-12 less is forgiven.
            lower: masses of Q, rounded down.
        """
        top = _check_masses(upper, "upper")
        bottom = _check_masses(lower, "lower")
        rule = f"{top.size} masses, as many as in upper"
        require(top.size == bottom.size, "lower", bottom.size, rule)
        total = math.fsum(top)
        require(-1e-12 <= total - 1 <= 1e-6, "sum of upper", total, "1, up to rounding")
        # Masses that were rounded below a sum of 1 are raised, and so are their losses.
        missing = 2 * max(0.0, 1 - total)
        infinite = float(top[bottom == 0].sum()) * (1 + missing)
        finite = (bottom > 0) & (top > 0)
        losses, errors = _log_ratios(top[finite], bottom[finite])
        masses = top[finite] * (1 + missing)
        return cls._single(losses + (errors + missing), masses, infinite * (1 + 1e-12))

    @classmethod
    def from_profile(
        cls, epsilons: ArrayLike, deltas: ArrayLike, *, symmetric: bool = False
    ) -> LossDistribution:
        """Build a pair that dominates what the certified points (epsilon, delta) cover.

        The true delta is convex in e^epsilon and below the points, so it is below their lower
        convex hull, joined to delta = 1 at e^epsilon = 0 and constant after the last point.

        Args:
            epsilons: increasing; negative ones are welcome, where P(O) - e^epsilon Q(O) <= delta as
                well.
            deltas: one for each.
            symmetric: the points hold both ways round, so 1 - e^-eps + e^-eps delta(eps) at -eps.
        """
        nodes = np.array(epsilons, dtype=np.float64)
        heights = np.array(deltas, dtype=np.float64)
        listed = nodes.ndim == 1 and nodes.size >= 1
        require(listed, "epsilons", nodes.shape, "a list of at least one number")
        require(nodes.shape == heights.shape, "deltas", heights.shape, "as many as epsilons")
        ends = (float(nodes[0]), float(nodes[-1]))
        rising = bool(np.all(np.abs(nodes) < 700) and np.all(np.diff(nodes) > 0))
        require(rising, "epsilons", ends, "increasing from above -700 to below 700")
        extremes = (float(heights.min()), float(heights.max()))
        require(bool(np.all((heights >= 0) & (heights <= 1))), "deltas", extremes, "in [0, 1]")
        if symmetric:
            require(nodes[0] >= 0, "epsilons", ends, "at least 0 where the points are symmetric")
            nodes, heights = _both_ways(nodes, heights)
        return cls._single(*_connected(nodes, heights))

    @classmethod
    def pure(cls, epsilon: float) -> LossDistribution:
        """Return randomised response, which dominates every epsilon-DP release."""
        if epsilon == 0:
            return cls()
        epsilon = check_real(epsilon, "epsilon", at_most=700.0)
        masses = np.array([1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(-epsilon))])
        return cls._single(np.array([-epsilon, epsilon]), masses * (1 + 8 * UNIT), 0.0)

    @classmethod
    def gaussian(cls, mu: float) -> LossDistribution:
        """Return N(mu, 1) against N(0, 1); ``mu`` is the sensitivity in standard deviations."""
        if mu == 0:
            return cls()
        return cls((), next_up(check_real(mu, "mu", at_most=1e6) ** 2))

    @classmethod
    def _single(cls, losses: FloatVector, masses: FloatVector, infinite: float) -> LossDistribution:
        return cls(((Atoms.of(losses, masses, infinite), 1),))

    def repeat(self, times: int) -> LossDistribution:
        """Return the losses of ``times`` independent releases."""
        return _joined([(self, check_int(times, "times", 0))])

    def compose(self, other: LossDistribution) -> LossDistribution:
        """Join these releases and the other's, fixed in advance or independent of earlier ones."""
        return _joined([(self, 1), (other, 1)])

    def larger(self, other: LossDistribution) -> LossDistribution:
        """Return a pair that dominates both of these single releases.

        Its delta is the larger of theirs at all their losses. Between losses, where the two may
        cross, the chord in e^epsilon lies above the larger.
        """
        first = self._atoms()
        second = other._atoms()
        if first == second:
            return self
        nodes = np.union1d(first.losses, second.losses)
        deltas = np.maximum(first.deltas_upper(nodes), second.deltas_upper(nodes))
        return LossDistribution.from_profile(nodes, np.minimum(deltas, 1.0))

    def _atoms(self) -> Atoms:
        """Return the losses of a single release; refuse several, and Gaussian ones."""
        require(self.squared_mu == 0, "squared_mu", self.squared_mu, "0 for a list of losses")
        releases = sum(times for _, times in self.parts)
        require(releases == 1, "releases", releases, "1 for a list of losses")
        return self.parts[0][0]

    def pure_epsilon_upper(self) -> float:
        """Return the largest loss; infinite where a mass has no counterpart."""
        if self._infinite() > 0:
            return math.inf
        return max(0.0, self._largest())

    def rdp_upper(self, alpha: float) -> float:
        """Return an upper bound on the Rényi divergence of order ``alpha`` of P from Q."""
        require(alpha > 1, "alpha", alpha, "a number above 1")
        if self._infinite() > 0:
            return math.inf
        theta = alpha - 1
        terms = [alpha * self.squared_mu / 2]
        for atoms, times in self.parts:
            terms.append(times * moment_upper(atoms.losses, atoms.masses, theta) / theta)
        return max(0.0, _sum_up(terms, 8 * UNIT))

    def delta_upper(self, epsilon: float) -> float:
        """Return the least delta proved at ``epsilon >= 0``."""
        require(0 <= epsilon < math.inf, "epsilon", epsilon, "a finite number of at least 0")
        infinite = self._infinite()
        if epsilon >= self._largest() or infinite >= 1:
            return min(1.0, infinite)
        theta = tilt_at(self, epsilon)
        moment, _ = self.log_moment(theta)
        law = convolved(self, theta, min(0.0, moment - theta * epsilon))
        return min(1.0, law.delta_upper(epsilon) + infinite)

    def epsilon_upper(self, delta: float) -> float:
        """Return the least epsilon proved at ``delta`` in [0, 1); infinite where there is none."""
        delta = check_delta(delta)
        if delta == 0:
            return self.pure_epsilon_upper()
        left = delta - self._infinite()
        if not left > 0:
            return math.inf
        largest = self._largest()
        if largest <= 0:
            return 0.0
        goal = math.log(left)
        theta = tilt_for(self, goal)
        guess = (self.log_moment(theta)[0] - goal) / theta
        return min(convolved(self, theta, goal).epsilon_upper(left, guess), largest)

    def _infinite(self) -> float:
        """Return the mass of infinite losses, rounded up."""
        return math.fsum(times * atoms.infinite for atoms, times in self.parts) * (1 + 4 * UNIT)

    def _largest(self) -> float:
        """Return the largest finite loss, rounded up."""
        if self.squared_mu > 0:
            return math.inf
        terms = [times * float(atoms.losses.max(initial=-math.inf)) for atoms, times in self.parts]
        return _sum_up(terms, 4 * UNIT)


def _sum_up(terms: list[float], margin: float) -> float:
    return math.fsum(terms) + margin * math.fsum(map(abs, terms))


def _check_masses(values: ArrayLike, name: str) -> FloatVector:
    array = np.array(values, dtype=np.float64)
    require(array.ndim == 1 and array.size >= 1, name, array.shape, "a list of at least one mass")
    extremes = (float(array.min()), float(array.max()))
    inside = bool(np.all((array >= 0) & (array <= 1 + 1e-6)))
    require(inside, name, extremes, "masses in [0, 1]")
    return array


def _log_ratios(top: FloatVector, bottom: FloatVector) -> tuple[FloatVector, FloatVector]:
    """Return log(top / bottom), and bounds on its rounding errors.

    log P - log Q errs by a unit or two of either logarithm, log1p by a few units of the loss
    itself.
    """
    log_top = np.log(top)
    log_bottom = np.log(bottom)
    losses = log_top - log_bottom
    near = np.abs(losses) < 0.5
    losses[near] = np.log1p((top - bottom)[near] / bottom[near])
    size = np.where(near, np.abs(losses), np.abs(log_top) + np.abs(log_bottom) + 1)
    return losses, 8 * UNIT * size


def _joined(releases: Iterable[tuple[LossDistribution, int]]) -> LossDistribution:
    """Return the losses of several copies of every distribution; squares are rounded up."""
    counts: dict[Atoms, int] = {}
    squared_mu = 0.0
    for distribution, times in releases:
        if times == 0:
            continue
        for atoms, count in distribution.parts:
            counts[atoms] = counts.get(atoms, 0) + times * count
        square = distribution.squared_mu
        if square > 0 and times > 1:
            square = next_up(times * square)
        if square > 0 and squared_mu > 0:
            squared_mu = next_up(squared_mu + square)
        else:
            squared_mu = max(squared_mu, square)
    return LossDistribution(tuple(counts.items()), squared_mu)


def _both_ways(nodes: FloatVector, heights: FloatVector) -> tuple[FloatVector, FloatVector]:
    """Add the points at negative epsilons that symmetric ones imply."""
    positive = nodes > 0
    mirrored = -np.expm1(-nodes) + np.exp(-nodes) * heights
    below = np.minimum(1, mirrored[positive][::-1] * (1 + 8 * UNIT))
    return np.append(-nodes[positive][::-1], nodes), np.append(below, heights)


def _connected(nodes: FloatVector, heights: FloatVector) -> tuple[FloatVector, FloatVector, float]:
    """Return losses, masses and infinite mass of the pair whose delta is the points' lower hull.

    Slopes lose digits, so the delta of the masses found is summed up without cancellation, to 16 u
    per node; the masses are raised by twice that, and the largest deficit left at a node becomes
    infinite mass, which only raises delta.
    """
    hull = _hull(nodes, heights)
    nodes = nodes[hull]
    heights = heights[hull]
    widths = np.diff(nodes)
    # fall[k]: minus the slope after node k times e^node; before the first node the line comes from
    # (0, 1).
    fall = np.append(np.maximum(-np.diff(heights), 0) / np.expm1(widths), 0.0)
    before = np.append(1 - heights[0], fall[:-1] * np.exp(widths))
    doubt = 16 * nodes.size * UNIT
    masses = np.maximum(before - fall, 0.0) * (1 + 2 * doubt + 8 * UNIT)
    last = float(heights[-1])
    reached = last  # delta of these masses at every node, from the last one down
    beyond = 0.0  # e^node Q(ratio above it)
    deficit = 0.0
    for k in range(nodes.size - 2, -1, -1):
        beyond = (beyond + masses[k + 1]) * math.exp(-widths[k])
        reached += math.expm1(widths[k]) * beyond
        deficit = max(deficit, float(heights[k]) - reached * (1 - doubt))
    infinite = last + deficit
    infinite += max(0.0, 1 - math.fsum([*masses, infinite]))
    return nodes, masses, infinite * (1 + 8 * UNIT)


def _hull(nodes: FloatVector, heights: FloatVector) -> list[int]:
    """Return the indices of the lower convex hull over e^node.

    The point (0, 1) lies before the first node, a flat line after the last.
    """
    lowest = np.minimum.accumulate(heights)  # delta does not increase
    chosen: list[int] = []
    for k in range(nodes.size):
        if k and heights[k] > lowest[k - 1]:
            continue
        # Points on or above a chord go; an error only loosens the bound (`_connected`).
        while chosen:
            middle = chosen[-1]
            left = float(1 - heights[middle])
            if len(chosen) > 1:
                first = chosen[-2]
                width = float(nodes[first] - nodes[middle])
                left = float(heights[first] - heights[middle]) / -math.expm1(width)
            width = float(nodes[k] - nodes[middle])
            if left > float(heights[middle] - heights[k]) / math.expm1(width):
                break
            chosen.pop()
        chosen.append(k)
    return chosen
