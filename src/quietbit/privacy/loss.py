"""Privacy loss distributions: the exact account of many releases, each with a known worst pair.

Idea     a release whose worst pair of laws (P, Q) is known costs delta(eps) = E_P[(1 - e^(eps -
         L))_+], L = log dP/dQ, and the losses of independent releases add: convolve, at a tilt, so
         that errors count relative to delta. All errors go towards privacy: losses are put on a
         grid by connecting the dots of delta over e^eps, which never lowers delta; masses are upper
         bounds throughout; tails and the rounding of transforms are added.
Symbols  P, Q: a dominating pair, P the law with the party's data, Q the neighbour's; T releases; u
         = 2^-53; theta: tilt; K(theta) = log E_P e^(theta L); c: law of the sum of losses; w:
         weights with delta = sum c w.
Source   Dwork and Rothblum (2016), Sommer, Meiser, Mohammadi (2019): the loss and its convolution;
         Koskela, Jaelkoe, Honkela (2020): Fourier transforms; Doroshenko et al. (2022): connecting
         the dots; Zhu, Dong, Wang (2022), Theorem 10: dominating pairs of adaptive releases
         multiply; Kairouz, Oh, Viswanath (2015): pure privacy. docs/theory/adding-up.md, "Loss
         distributions", proves the errors that are added.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft
from scipy.optimize import brentq
from scipy.special import ndtr

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.target import check_delta

__all__ = ["LossDistribution"]

MOST_POINTS = 2**20
LEAST_POINTS = 2**12
_UNIT = 2.0**-53
_NEGLIGIBLE = 36.0  # tails of e^-36 = 2e-16 of delta are cut, and added
_GAUSSIAN_REACH = 13.0  # standard deviations; beyond lie 6e-39, which count as infinite loss
_LEAST_TILT = 1e-6
_MOST_TILT = 1e9
_SUM_MARGIN = (
    1e-12  # relative error of a sum of up to 2^20 positive numbers and of their exponentials
)


@final
@dataclass(frozen=True, slots=True)
class _Atoms:
    """Finitely many losses with their masses under P, both rounded up; ``infinite``: mass where Q has none."""

    losses: FloatVector = field(repr=False, compare=False)
    masses: FloatVector = field(repr=False, compare=False)
    infinite: float = field(compare=False)
    identity: bytes  # SHA-256 of all of them

    def deltas_upper(self, epsilons: FloatVector) -> FloatVector:
        """Return delta at each epsilon, which may be negative."""
        above = np.maximum(-np.expm1(np.minimum(epsilons[:, None] - self.losses, 0.0)), 0.0)
        return np.asarray((above @ self.masses + self.infinite) * (1 + _SUM_MARGIN))

    def log_moment(self, theta: float) -> tuple[float, float]:
        """Return K and its derivative at ``theta``, for the finite losses."""
        exponents = theta * self.losses
        peak = float(exponents.max(initial=-math.inf))
        if peak == -math.inf:
            return -math.inf, 0.0
        weights = self.masses * np.exp(exponents - peak)
        whole = float(weights.sum())
        return peak + math.log(whole), float(weights @ self.losses) / whole


@final
@dataclass(frozen=True, slots=True)
class LossDistribution:
    """Losses of independent releases in one direction, P against Q; use the constructors below.

    >>> once = LossDistribution.from_atoms([0.75, 0.25], [0.25, 0.75])
    >>> once.epsilon_upper(0.0) >= math.log(3)
    True
    >>> once.repeat(100).epsilon_upper(1e-6) < 100 * once.epsilon_upper(1e-6)
    True
    """

    parts: tuple[tuple[_Atoms, int], ...] = ()
    squared_mu: float = 0.0  # of all Gaussian releases together

    @classmethod
    def from_atoms(cls, upper: ArrayLike, lower: ArrayLike) -> LossDistribution:
        """Build the pair of finite laws with masses P_i <= ``upper`` and Q_i >= ``lower``.

        Masses of P are rounded up where they are not exact, to a sum of at least 1, up to 1e-12;
        those of Q down. Where one of Q is 0 and its P is not, the loss is infinite.
        """
        top = _masses(upper, "upper")
        bottom = _masses(lower, "lower")
        require(
            top.size == bottom.size,
            "lower",
            bottom.size,
            f"as many masses as upper has, {top.size}",
        )
        whole = math.fsum(top)
        require(-1e-12 <= whole - 1 <= 1e-6, "sum of upper", whole, "1, up to rounding")
        missing = 2 * max(
            0.0, 1 - whole
        )  # rounding of the given masses: raise them all, and their losses
        infinite = float(top[bottom == 0].sum()) * (1 + missing)
        keep = (bottom > 0) & (top > 0)
        losses = np.log(top[keep]) - np.log(bottom[keep])
        near = np.abs(losses) < 0.5
        losses[near] = np.log1p((top[keep] - bottom[keep])[near] / bottom[keep][near])
        # log P - log Q errs by a unit or two of either logarithm, log1p by a few units of the loss
        # itself.
        error = (
            8
            * _UNIT
            * np.where(
                near, np.abs(losses), np.abs(np.log(top[keep])) + np.abs(np.log(bottom[keep])) + 1
            )
        )
        error += missing
        return cls(
            ((_atoms(losses + error, top[keep] * (1 + missing), infinite * (1 + 1e-12)), 1),)
        )

    @classmethod
    def from_profile(
        cls, epsilons: ArrayLike, deltas: ArrayLike, *, symmetric: bool = False
    ) -> LossDistribution:
        """Build the pair whose delta over e^epsilon connects certified points; it dominates what they certify.

        The true delta is convex in e^epsilon and below the points, so it is below their lower
        convex hull, joined to delta = 1 at e^epsilon = 0 and constant after the last point.
        ``epsilons`` increase; negative ones are welcome, where P(O) - e^epsilon Q(O) <= delta as
        well. ``symmetric``: the points hold both ways round, and so 1 - e^-eps + e^-eps delta(eps)
        at -eps.
        """
        nodes = np.array(epsilons, dtype=np.float64)
        heights = np.array(deltas, dtype=np.float64)
        require(
            nodes.ndim == 1 and nodes.size >= 1,
            "epsilons",
            nodes.shape,
            "a list of at least one number",
        )
        require(nodes.shape == heights.shape, "deltas", heights.shape, "as many as epsilons")
        rising = bool(np.all(np.abs(nodes) < 700) and np.all(np.diff(nodes) > 0))
        require(rising, "epsilons", epsilons, "increasing, and below 700 in size")
        require(bool(np.all((heights >= 0) & (heights <= 1))), "deltas", deltas, "in [0, 1]")
        if symmetric:
            require(bool(np.all(nodes >= 0)), "epsilons", epsilons, "at least 0 where symmetric")
            mirrored = -np.expm1(-nodes) + np.exp(-nodes) * heights
            positive = nodes > 0
            nodes = np.concatenate([-nodes[positive][::-1], nodes])
            heights = np.concatenate(
                [np.minimum(1, mirrored[positive][::-1] * (1 + 8 * _UNIT)), heights]
            )
        return cls(((_atoms(*_connected(nodes, heights)), 1),))

    @classmethod
    def pure(cls, epsilon: float) -> LossDistribution:
        """Return randomised response, which dominates every epsilon-DP release (Kairouz, Oh, Viswanath 2015)."""
        if epsilon == 0:
            return cls()
        epsilon = check_real(epsilon, "epsilon", at_most=700.0)
        masses = np.array([1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(-epsilon))]) * (
            1 + 8 * _UNIT
        )
        return cls(((_atoms(np.array([-epsilon, epsilon]), masses, 0.0), 1),))

    @classmethod
    def gaussian(cls, mu: float) -> LossDistribution:
        """Return N(mu, 1) against N(0, 1); ``mu`` is the sensitivity in standard deviations."""
        if mu == 0:
            return cls()
        return cls((), math.nextafter(check_real(mu, "mu", at_most=1e6) ** 2, math.inf))

    def repeat(self, times: int) -> LossDistribution:
        """Return the losses of ``times`` independent releases."""
        return _joined([(self, check_int(times, "times", 0))])

    def compose(self, other: LossDistribution) -> LossDistribution:
        """Join these releases and the other's, all fixed in advance or independent of what came before."""
        return _joined([(self, 1), (other, 1)])

    def larger(self, other: LossDistribution) -> LossDistribution:
        """Return a pair that dominates both of these single releases: the larger of their deltas, at all their losses.

        Between losses, where the two may cross, the chord in e^epsilon lies above the larger.
        """
        found = [[atoms for atoms, times in one.parts if times == 1] for one in (self, other)]
        alone = all(len(atoms) == 1 for atoms in found) and not self.squared_mu + other.squared_mu
        require(alone, "losses", "of several releases", "finitely many, of one release each")
        ((one,), (two,)) = found
        if self == other:
            return self
        nodes = np.union1d(one.losses, two.losses)
        deltas = np.maximum(one.deltas_upper(nodes), two.deltas_upper(nodes))
        return LossDistribution.from_profile(nodes, np.minimum(deltas, 1.0))

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
        terms += [
            times * _moment_upper(atoms.losses, atoms.masses, theta) / theta
            for atoms, times in self.parts
        ]
        return max(0.0, math.fsum(terms) + 8 * _UNIT * math.fsum(abs(term) for term in terms))

    def delta_upper(self, epsilon: float) -> float:
        """Return the least delta proved at ``epsilon >= 0``."""
        require(0 <= epsilon < math.inf, "epsilon", epsilon, "a finite number of at least 0")
        lost = self._infinite()
        if epsilon >= self._largest() or lost >= 1:
            return min(1.0, lost)
        theta = _tilt(self, lambda moment, slope, theta: slope - epsilon)
        moment, _ = self.log_moment(theta)
        return min(
            1.0,
            _window(self, theta, min(0.0, moment - theta * epsilon)).delta_upper(epsilon) + lost,
        )

    def epsilon_upper(self, delta: float) -> float:
        """Return the least epsilon proved at ``delta`` in [0, 1); infinite where there is none."""
        delta = check_delta(delta)
        if delta == 0:
            return self.pure_epsilon_upper()
        left = delta - self._infinite()
        if not left > 0:
            return math.inf
        if self._largest() <= 0:
            return 0.0
        goal = math.log(left)
        theta = _tilt(self, lambda moment, slope, theta: theta * slope - moment + goal)
        guess = (self.log_moment(theta)[0] - goal) / theta
        return min(_window(self, theta, goal).epsilon_upper(left, guess), max(0.0, self._largest()))

    def _infinite(self) -> float:
        return math.fsum(times * atoms.infinite for atoms, times in self.parts) * (1 + 4 * _UNIT)

    def _largest(self) -> float:
        if self.squared_mu > 0:
            return math.inf
        terms = [times * float(atoms.losses.max(initial=-math.inf)) for atoms, times in self.parts]
        if terms:
            return math.fsum(terms) + 4 * _UNIT * math.fsum(abs(term) for term in terms)
        return 0.0

    def log_moment(self, theta: float) -> tuple[float, float]:
        """Return K and K' of the sum of finite losses at ``theta``; they guide the search, no bound depends on them."""
        moment = theta * (theta + 1) * self.squared_mu / 2
        slope = (theta + 0.5) * self.squared_mu
        for atoms, times in self.parts:
            own, its_slope = atoms.log_moment(theta)
            moment = moment + times * own
            slope = slope + times * its_slope
        return moment, slope


@final
@dataclass(frozen=True, slots=True)
class _Window:
    """The tilted law of the sum of losses on a window of the grid, with bounds on its error."""

    losses: FloatVector
    law: FloatVector
    scale: FloatVector  # e^(T kappa - theta loss)
    margin: float  # relative error of a sum with these scales
    error: float  # bound on the 2-norm of the error of ``law``
    above: float  # mass of P at losses above the window, and what a grid counts as infinite
    below: float  # mass of P at losses below the window

    def delta_upper(self, epsilon: float) -> float:
        """Return delta at ``epsilon``, without the infinite masses of the parts themselves."""
        start = int(np.searchsorted(self.losses, epsilon, side="right"))
        if start < self.losses.size and self.scale[start] > 1e130:
            return (
                math.inf
            )  # so far below the window's middle that squares of weights would overflow
        weights = self.scale[start:] * -np.expm1(epsilon - self.losses[start:])
        body = float(np.sum(self.law[start:] * weights)) + self.error * math.sqrt(
            float(np.sum(weights * weights))
        )
        return (
            body * (1 + self.margin)
            + self.above
            + (self.below if epsilon < self.losses[0] else 0.0)
        )

    def epsilon_upper(self, delta: float, guess: float) -> float:
        """Return the least epsilon >= 0 found with `delta_upper` at most ``delta``; infinite if there is none."""
        low = 0.0
        high = float(self.losses[-1])

        def excess(epsilon: float) -> float:
            found = self.delta_upper(epsilon) / delta
            return math.log(found) if 0 < found < math.inf else 1e3 if found else -1e3

        if excess(low) <= 0:
            return 0.0
        if high <= 0 or not excess(high) <= 0:
            return math.inf
        if low < guess < high:
            if excess(guess) <= 0:
                low = low
                high = guess
            else:
                low = guess
                high = high
        found = float(brentq(excess, low, high, xtol=1e-13 * high, rtol=1e-13))
        step = 1e-13 * high
        while excess(found) > 0:
            found = min(found + step, high)
            step = 2 * step
        return found


def _masses(values: ArrayLike, name: str) -> FloatVector:
    array = np.array(values, dtype=np.float64)
    require(array.ndim == 1 and array.size >= 1, name, array.shape, "a list of at least one mass")
    require(bool(np.all((array >= 0) & (array <= 1 + 1e-6))), name, values, "masses in [0, 1]")
    return array


def _atoms(losses: FloatVector, masses: FloatVector, infinite: float) -> _Atoms:
    """Return the atoms sorted by loss."""
    losses = losses[masses > 0]
    masses = masses[masses > 0]
    order = np.argsort(losses, kind="stable")
    losses = np.ascontiguousarray(losses[order])
    masses = np.ascontiguousarray(masses[order])
    losses.setflags(write=False)
    masses.setflags(write=False)
    identity = hashlib.sha256(
        losses.tobytes() + masses.tobytes() + np.float64(infinite).tobytes()
    ).digest()
    return _Atoms(losses, masses, infinite, identity)


def _joined(releases: Iterable[tuple[LossDistribution, int]]) -> LossDistribution:
    counts: dict[_Atoms, int] = {}
    squared = 0.0
    for one, times in releases:
        for atoms, count in one.parts:
            if times:
                counts[atoms] = counts.get(atoms, 0) + times * count
        if one.squared_mu > 0 and times:
            if times == 1:
                own = one.squared_mu
            else:
                own = math.nextafter(times * one.squared_mu, math.inf)
            if squared == 0:
                squared = own
            else:
                squared = math.nextafter(squared + own, math.inf)
    return LossDistribution(tuple(counts.items()), squared)


def _connected(nodes: FloatVector, heights: FloatVector) -> tuple[FloatVector, FloatVector, float]:
    """Return losses, masses and infinite mass of the pair whose delta is the lower convex hull of the points.

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
    doubt = 16 * nodes.size * _UNIT
    masses = np.maximum(before - fall, 0.0) * (1 + 2 * doubt + 8 * _UNIT)
    # reached: delta of these masses at every node, from the last one down; beyond: e^node Q(ratio
    # above it).
    reached = float(heights[-1])
    beyond = 0.0
    deficit = 0.0
    for k in range(nodes.size - 2, -1, -1):
        beyond = (beyond + masses[k + 1]) * math.exp(-widths[k])
        reached += math.expm1(widths[k]) * beyond
        deficit = max(deficit, float(heights[k]) - reached * (1 - doubt))
    infinite = float(heights[-1]) + deficit
    infinite += max(0.0, 1 - math.fsum([*masses, infinite]))
    return nodes, masses, infinite * (1 + 8 * _UNIT)


def _hull(nodes: FloatVector, heights: FloatVector) -> list[int]:
    """Return the indices of the lower convex hull over e^node, with the point (0, 1) before and a flat line after."""
    best = np.minimum.accumulate(heights)  # delta does not increase
    chosen: list[int] = []
    for k in range(nodes.size):
        if k and heights[k] > best[k - 1]:
            continue
        while (
            chosen
        ):  # points on or above a chord go; an error only loosens the bound (`_connected`)
            middle = chosen[-1]
            left = float(1 - heights[middle])
            if len(chosen) > 1:
                first = chosen[-2]
                left = float(heights[first] - heights[middle]) / -math.expm1(
                    float(nodes[first] - nodes[middle])
                )
            if left > float(heights[middle] - heights[k]) / math.expm1(
                float(nodes[k] - nodes[middle])
            ):
                break
            chosen.pop()
        chosen.append(k)
    return chosen


def _on_grid(
    losses: FloatVector, masses: FloatVector, step: float
) -> tuple[NDArray[np.int64], FloatVector]:
    """Split each atom between its grid neighbours, by the chord; ``step`` is a power of two, so places are exact."""
    scaled = losses / step
    floor = np.floor(scaled)
    upward = np.expm1(-(scaled - floor) * step) / math.expm1(-step)
    up = np.minimum(1.0, upward * (1 + 8 * _UNIT))
    down = np.where(upward > 0, np.maximum(0.0, 1 - upward) + 8 * _UNIT, 1.0)
    places = floor.astype(np.int64)
    keep = up > 0
    return (
        np.concatenate([places, places[keep] + 1]),
        np.concatenate([masses * down, (masses * up)[keep]]) * (1 + 4 * _UNIT),
    )


def _gaussian_on_grid(
    squared_mu: float, step: float
) -> tuple[NDArray[np.int64], FloatVector, float]:
    """Put the Gaussian's loss, N(mu^2/2, mu^2), on a grid: places, masses, and the mass beyond."""
    mu = math.sqrt(squared_mu)
    mean = squared_mu / 2
    reach = _GAUSSIAN_REACH * mu
    places = np.arange(math.floor((mean - reach) / step), math.ceil((mean + reach) / step) + 1)
    edges = (places * step - mean) / mu
    lower = ndtr(-np.abs(edges))
    # Differences of the smaller tails; the cell around the middle is what the two leave.
    cells = np.where(edges[:-1] >= 0, lower[:-1] - lower[1:], lower[1:] - lower[:-1])
    middle = (edges[:-1] < 0) & (edges[1:] > 0)
    cells[middle] = 1 - lower[:-1][middle] - lower[1:][middle]
    cells = cells + 256 * _UNIT * np.where(middle, 1.0, np.maximum(lower[:-1], lower[1:]))
    turn = -edges[:-1] / mu * step  # x of the page
    share = (
        0.5
        + turn / 12
        + np.where(turn < 0, np.abs(turn) ** 3 / 720, 0.0)
        + step * step / -math.expm1(-step) / 12
    )
    share = np.clip(share + 64 * _UNIT, 0.0, 1.0)
    masses = np.zeros(places.size)
    masses[1:] += cells * share
    masses[:-1] += cells * (1 - share + 4 * _UNIT)
    masses[0] += ndtr(edges[0]) * (1 + 256 * _UNIT)
    return places, masses * (1 + 8 * _UNIT), float(ndtr(-edges[-1])) * (1 + 256 * _UNIT)


def _moment_upper(losses: FloatVector, masses: FloatVector, theta: float) -> float:
    """Return an upper bound on log sum of mass e^(theta loss)."""
    exponents = theta * losses
    peak = float(exponents.max())
    with np.errstate(under="ignore"):
        whole = float(np.sum(masses * np.exp(exponents - peak)))
    largest = float(np.abs(losses).max(initial=0.0))
    error = 8 * _UNIT * (4 + abs(theta) * largest + math.log2(losses.size + 2)) + 256 * _UNIT
    return peak + math.log(whole) + error + 4 * _UNIT * abs(peak)


def _tilt(releases: LossDistribution, rising: Callable[[float, float, float], float]) -> float:
    """Return roughly where ``rising``(K, K', theta) crosses zero; any tilt is valid, this one is sharp."""
    top = math.inf if releases.squared_mu > 0 else 0.0
    log_mass = 0.0
    for atoms, times in releases.parts:
        top += times * float(atoms.losses[-1])
        log_mass += times * math.log(float(atoms.masses[-1]))

    def enough(theta: float) -> bool:
        moment, slope = releases.log_moment(theta)
        # Where the largest loss of all has half of the tilted mass, a larger tilt gains nothing.
        peaked = top < math.inf and theta * top + log_mass - moment >= -math.log(2)
        return peaked or rising(moment, slope, theta) >= 0

    low = high = _LEAST_TILT
    while high < _MOST_TILT and not enough(high):
        low = high
        high = 4 * high
    for _ in range(16 if low < high else 0):
        middle = math.sqrt(low * high)
        if enough(middle):
            low = low
            high = middle
        else:
            low = middle
            high = high
    return high


def _window(releases: LossDistribution, theta: float, goal: float) -> _Window:
    """Convolve at the tilt ``theta`` on a window that leaves out e^-36 of e^``goal``, the delta looked for."""
    number = sum(times for _, times in releases.parts) + (releases.squared_mu > 0)
    phi = _tilt(releases, lambda moment, slope, at: at * slope - moment + goal - _NEGLIGIBLE)
    high = (releases.log_moment(phi)[0] - goal + _NEGLIGIBLE) / phi
    # About e^-36 of the tilted mass lies below the low end; what is left out wraps round and only
    # adds.
    moment, slope = releases.log_moment(theta)
    ahead = releases.log_moment(theta * (1 + 1e-3) + 1e-9)[1]
    variance = max((ahead - slope) / (theta * 1e-3 + 1e-9), 1e-30 + 1e-12 * slope * slope)
    strides = math.sqrt(2 * _NEGLIGIBLE / variance) * 2.0 ** np.arange(-2, 6)
    low = max(
        (moment - releases.log_moment(theta - by)[0] - _NEGLIGIBLE) / by
        for by in map(float, strides)
    )
    if releases.squared_mu == 0:
        high = min(
            high, math.fsum(times * float(atoms.losses[-1]) for atoms, times in releases.parts)
        )
        low = max(low, math.fsum(times * float(atoms.losses[0]) for atoms, times in releases.parts))
    width = max(high - low, 1e-9 * (1 + abs(high)))
    points = 2 ** math.ceil(
        math.log2(min(max(LEAST_POINTS, 13000 * math.sqrt(number)), MOST_POINTS))
    )
    # Putting losses onto the grid spreads each by up to a step: room for their sum at both ends.
    room = 2 + math.ceil(min(number, 4.5 * math.sqrt(number)))
    step = 2.0 ** math.ceil(math.log2(width / (points - 2 * room - 2)))
    first = math.floor(low / step) - room
    losses = (first + np.arange(points)) * step

    grids = [
        (*_on_grid(atoms.losses, atoms.masses, step), times) for atoms, times in releases.parts
    ]
    lost = 0.0
    if releases.squared_mu > 0:
        places, masses, lost = _gaussian_on_grid(releases.squared_mu, step)
        grids.append((places, masses, 1))

    rounding = 10 * math.log2(points) * _UNIT
    spectrum = np.ones(points // 2 + 1, dtype=np.complex128)
    constant = 0.0
    magnitude = 0.0
    growth = 0.0
    error = 0.0
    offset = least = last = 0
    above = -phi * (float(losses[-1]) + step)
    below_tilt = 2 * _NEGLIGIBLE / max(slope - low, step)
    below = below_tilt * float(losses[0])
    for places, masses, times in grids:
        own = np.asarray(places * step, dtype=np.float64)
        kappa = _moment_upper(own, masses, theta)
        with np.errstate(under="ignore"):
            tilted = (
                masses
                * np.exp(theta * own - kappa)
                * (1 + 4 * _UNIT * (8 + abs(kappa) + np.abs(theta * own)))
            )
        start = int(places[0])
        slots = (places - start) % points
        crowd = int(np.bincount(slots).max())
        law = np.bincount(slots, tilted, minlength=points) * (1 + 2 * crowd * _UNIT)
        norm = math.sqrt(float(law @ law)) * (1 + 1e-9)
        size = float(law.sum()) * (1 + 1e-13)
        spectrum *= _power(np.asarray(fft.rfft(law)), times)
        constant += times * kappa
        magnitude += times * abs(kappa)
        offset += times * start
        growth += times * math.log(max(1.0, size + rounding * math.sqrt(points) * norm))
        error += times * rounding * norm
        above += times * _moment_upper(own, masses, phi)
        last += times * int(places.max())
        least += times * int(places.min())
        below += times * _moment_upper(own, masses, -below_tilt)

    found = np.roll(np.asarray(fft.irfft(spectrum, points)), (offset - first) % points)
    norm = math.sqrt(float(found @ found)) * (1 + 1e-9)
    second = 2 * (rounding + 4 * _UNIT * (number + len(grids)))
    error = (math.exp(min(growth, 700.0)) * error * (1 + 1e-6) + second * norm) / max(
        1e-3, 1 - second
    ) + 1e-290
    exponents = constant - theta * losses
    with np.errstate(under="ignore"):
        scale = np.exp(np.minimum(exponents, 690.0))
    margin = _SUM_MARGIN + 16 * _UNIT * (magnitude + theta * float(np.abs(losses[[0, -1]]).max()))
    beyond = (math.exp(min(above + 1e-9, 0.0)) if last >= first + points else 0.0) + lost
    if least < first:
        missing = math.exp(min(below + 1e-9, 0.0)) * (1 + 1e-6)
    else:
        missing = 0.0
    return _Window(losses, np.maximum(found, 0.0), scale, margin, error, beyond, missing)


def _power(values: NDArray[np.complex128], times: int) -> NDArray[np.complex128]:
    """Return ``values`` to an integer power by repeated squaring."""
    result: NDArray[np.complex128] | None = None
    while True:
        if times & 1:
            if result is None:
                result = values.copy()
            else:
                result = result * values
        times >>= 1
        if not times:
            return values if result is None else result
        values = values * values
