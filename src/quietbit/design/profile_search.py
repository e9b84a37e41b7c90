"""The search for a profile of large gain.

Idea     without delta, T releases are epsilon-private if and only if one is (epsilon/T)-private, h
         lies between two bounds of fixed ratio, and a step is optimal. With delta, the search is
         over step functions whose logarithms lie on a lattice: so do the losses, and composing T
         releases is one Fourier transform of a few masses. Given the edges, the step s is the
         largest that delta allows; evenly spaced edges are moved, stretched and bent by a simplex
         search. The result is a proposal: privacy is certified elsewhere, from the stored doubles,
         and a profile travels with its numbers. The laboratory moves all edges by gradient ascent,
         which made the shipped profiles; here that gains 0.1 % in squared error, 1.4 % at most.
Symbols  e = epsilon/T; a(nu) = E(t - nu)_+ = phi(nu) - nu Phi(-nu); E(nu - t)_+ = a(nu) + nu. H:
         cap on h. t_1 < ... < t_{m-1}: edges; s: lattice step; w: masses of cells.
Source   packages/lab/docs/profiles.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq, minimize
from scipy.special import ndtr, ndtri

from quietbit._threads import one_thread
from quietbit._typing import FloatVector
from quietbit.design.normal import LARGEST, density, distribution, float_upper
from quietbit.errors import check_real
from quietbit.target import Adjacency, Target

__all__ = [
    "Cells",
    "LatticeAccount",
    "Proposal",
    "best_of",
    "compose",
    "ladder",
    "mean_above",
    "propose",
    "pure_edge",
    "simplex",
]

# Up to this many lattice points a convolution is computed completely; beyond, within 14 deviations.
COMPLETE = 4096
# A smaller delta is lost in the rounding of the transforms: the proposal is made for this one.
FAINTEST = 1e-12
NARROWEST = -14.0  # logarithm of a gap between edges
WIDEST = 3.0
FARTHEST = 9.0
LEVELS = 32  # of the search: few, because a profile travels with every request
FINE = 400  # levels of nearly a Gaussian, where design still gains
MOST = 800  # levels of a discretised Gaussian: costs a part in 80,000
SEARCHED = 300  # releases beyond which few levels gain nothing
STRETCHED = 2000  # releases beyond which the Gaussian is used unchanged
WORTHWHILE = 5e-4  # relative gain that outweighs a pure guarantee, or two levels


def pure_edge(epsilon: float, adjacency: Adjacency | str) -> float:
    """Return the edge of the optimal two-level profile of one epsilon-private release.

    Replace-one: the root of (e^epsilon - 1) a(nu) = nu, which is also the largest gain. Zero-out:
    Phi(-nu) = (1 - e^-epsilon)/(e^epsilon - e^-epsilon), so that levels e^-epsilon and e^epsilon
    have mean one.

    >>> round(pure_edge(1.0, "replace-one") ** -2, 3)
    6.33
    """
    epsilon = check_real(epsilon, "epsilon")
    if Adjacency(adjacency) is Adjacency.ZERO_OUT:
        # (1 - e^-x)/(e^x - e^-x) = 1/(1 + e^x)
        return -float(ndtri(1 / (1 + math.exp(epsilon))))

    def excess(nu: float) -> float:
        return math.log(math.expm1(epsilon) * mean_above(nu) / nu)

    return float(brentq(excess, 1e-18, LARGEST - 1e-6, xtol=1e-17, rtol=1e-14))


def mean_above(nu: float) -> float:
    """Return E(t - nu)_+ = phi(nu) - nu Phi(-nu), rounded up, from 130 digits."""
    digits = Context(prec=130)
    tail = digits.subtract(Decimal(1), distribution(nu))
    return float_upper(digits.subtract(density(nu), digits.multiply(Decimal(nu), tail)))


@final
@dataclass(frozen=True, slots=True)
class Proposal:
    """Edges and the lattice step of log h, with their gain before certification."""

    edges: FloatVector
    step: float
    gain: float

    def weights(self) -> FloatVector:
        """Return the values of h up to a factor; the largest is 1."""
        return np.asarray(np.exp(self.step * (np.arange(self.edges.size + 1.0) - self.edges.size)))


@one_thread()
def propose(target: Target) -> Proposal:
    """Find a profile whose composed account meets the target in doubles; the caller certifies it.

    The result is deterministic.
    """
    account = LatticeAccount(target)
    return best_of(account, target, partial(_candidates, account, target.releases))


def best_of(
    account: LatticeAccount, target: Target, candidates: Callable[[float], Iterable[Proposal]]
) -> Proposal:
    """Return the best proposal: the pure one, or a candidate that gains enough.

    ``candidates`` takes the edge of the pure one.
    """
    each = target.epsilon / target.releases
    pure = pure_edge(each, target.adjacency)
    step = each
    if target.adjacency is Adjacency.ZERO_OUT:
        step = 2.0 * each
    best = account.at(np.array([pure]), step)
    if target.delta == 0:
        return best  # optimal (packages/lab/docs/profiles.md)
    for candidate in candidates(pure):
        least = WORTHWHILE if best.edges.size == 1 else 0.0
        if candidate.gain > best.gain * (1 + least):
            best = candidate
    return best


def _candidates(account: LatticeAccount, releases: int, pure: float) -> Iterator[Proposal]:
    """Yield two levels, then evenly spaced edges, bent; for many releases a Gaussian."""
    if releases > SEARCHED:
        yield account.fit(ladder(MOST) * (9.5 / MOST))
    else:
        yield simplex(account, np.zeros(1), (pure, 0.0))
        for centre, spread in ((0.3, 6.0), (pure, 1.5)):
            yield simplex(account, ladder(LEVELS), (centre, math.log(spread / LEVELS)))
    if 100 <= releases <= STRETCHED:
        yield simplex(account, ladder(FINE), (0.0, math.log(7 / FINE)), evaluations=60)


def ladder(levels: int) -> FloatVector:
    """Return the edges between ``levels`` levels, one apart and centred."""
    return np.arange(levels - 1.0) - (levels - 2) / 2


def simplex(
    account: LatticeAccount, shape: FloatVector, start: tuple[float, float], evaluations: int = 250
) -> Proposal:
    """Return the best edges of a shape that is moved, stretched and bent.

    The search starts from a centre and the logarithm of a stretch.
    """
    half = max(float(np.abs(shape).max()), 1.0)
    x = shape / half

    def edges(y: FloatVector) -> FloatVector:
        centre = min(max(y[0], -4.0), 8.0)
        stretch = half * math.exp(min(max(y[1], NARROWEST), WIDEST))
        return np.asarray(centre + stretch * (x + y[2] * x**2 + y[3] * x**3))

    def cost(y: FloatVector) -> float:
        proposed = edges(y)
        rising = bool(np.all(np.diff(proposed) > 0))
        if rising and np.abs(proposed).max() < FARTHEST:
            return -account.fit(proposed).gain
        return 0.0

    size = 0.2 if evaluations > 100 else 0.02
    first = np.array([start[0], start[1], 0.0, 0.0])
    corners = np.vstack((first, first + size * np.eye(4)))
    options = {"maxfev": evaluations, "xatol": 1e-3, "fatol": 1e-9, "initial_simplex": corners}
    result = minimize(cost, first, method="Nelder-Mead", options=options)
    return account.fit(edges(result.x))


@dataclass(frozen=True, slots=True)
class Cells:
    """What depends on the edges alone: masses, levels and lattice places of the cells."""

    edges: FloatVector
    mass: FloatVector
    level: NDArray[np.intp]
    place: NDArray[np.intp]
    density: FloatVector


class LatticeAccount:
    """Exact composed deltas of lattice profiles for one target, in doubles."""

    def __init__(self, target: Target) -> None:
        self.epsilon = target.epsilon
        self.delta = max(target.delta, FAINTEST)
        self.times = target.releases
        self.mirrored = target.adjacency is Adjacency.REPLACE_ONE
        # By number of edges, the logarithm of the last step: where to search first.
        self.guess: dict[int, float] = {}

    def fit(self, edges: FloatVector) -> Proposal:
        """Return the largest step that delta allows, and the gain there."""
        return self.at(edges, self.step(self.cells(edges)))

    def at(self, edges: FloatVector, step: float) -> Proposal:
        """Return the proposal of these edges and this step."""
        return Proposal(edges, step, self.gain(self.cells(edges), step))

    def cells(self, edges: FloatVector) -> Cells:
        """Return what depends on the edges alone."""
        cuts = edges
        if self.mirrored:
            cuts = np.sort(np.concatenate((edges, -edges)))
        left = np.concatenate(([-np.inf], cuts))
        right = np.concatenate((cuts, [np.inf]))
        # On the right half use a difference of small tails, not of numbers near one.
        mass = np.where(left + right < 0, ndtr(right) - ndtr(left), ndtr(-left) - ndtr(-right))
        level = np.arange(edges.size + 1)
        place = level
        if self.mirrored:
            middle = np.clip(left, -40, None) / 2 + np.clip(right, None, 40) / 2
            level = np.searchsorted(edges, middle)
            place = level - level[::-1] + edges.size
        return Cells(edges, mass, level, place, np.exp(-0.5 * edges**2) / math.sqrt(2 * math.pi))

    def gain(self, cells: Cells, step: float) -> float:
        """Return E[t h(t)] for the step."""
        height = np.exp(step * np.arange(cells.edges.size + 1.0))
        moment = np.sum(np.diff(height) * cells.density)
        return float(moment / np.sum(cells.mass * height[cells.level]))

    def step(self, cells: Cells, of_both: Callable[[list[float]], float] = max) -> float:
        """Solve delta(step) = delta; delta grows with the step, from that of a pure account.

        ``of_both`` makes one number of the deltas of both directions.
        """

        def excess(log_step: float) -> float:
            delta = of_both(self.deltas(cells, math.exp(log_step)))
            return math.log(max(delta, 1e-4 * self.delta) / self.delta)

        least = math.log(self.epsilon / self.times / cells.edges.size)
        guess = self.guess.get(cells.edges.size)
        if guess is None:
            low = least
            stride = 0.4
        else:
            low = max(guess - 0.01, least)
            stride = 0.02
        while low > least and excess(low) > 0:
            low = max(low - stride, least)
            stride = 2 * stride
        high = low + stride
        while excess(high) <= 0:
            low = high
            high = high + stride
            stride = 1.5 * stride
            if high > 60:
                return math.exp(low)
        root = float(brentq(excess, low, high, xtol=1e-9))
        self.guess[cells.edges.size] = root
        return math.exp(root - 1e-8)

    def deltas(self, cells: Cells, step: float) -> list[float]:
        """Return the composed delta of each direction."""
        deltas = []
        for mass, losses, _ in self.losses(cells, step):
            composed, offset = compose(mass, self.times)
            loss = self.times * losses[0] + step * (np.arange(composed.size) + offset)
            beyond = loss > self.epsilon
            shares = -np.expm1(self.epsilon - loss[beyond])
            deltas.append(max(float(np.sum(composed[beyond] * shares)), 0.0))
        return deltas

    def losses(self, cells: Cells, step: float) -> list[tuple[FloatVector, FloatVector, int]]:
        """Return for each direction the masses of P by ascending loss, the losses, and a sign.

        The sign is -1 where losses ascend as levels descend.
        """
        height = np.exp(step * np.arange(cells.edges.size + 1.0))
        total = float(np.sum(cells.mass * height[cells.level]))
        if self.mirrored:
            p = np.zeros(2 * cells.edges.size + 1)
            np.add.at(p, cells.place, cells.mass * height[cells.level] / total)
            return [(p, step * (np.arange(float(p.size)) - cells.edges.size), 1)]
        losses: FloatVector = step * np.arange(float(height.size)) - math.log(total)
        return [(cells.mass * height / total, losses, 1), (cells.mass[::-1], -losses[::-1], -1)]


def compose(mass: FloatVector, times: int) -> tuple[FloatVector, int]:
    """Return the law of a sum of independent lattice variables, and its first index."""
    if times == 0:
        return np.ones(1), 0
    full = times * (mass.size - 1) + 1
    if full <= COMPLETE:
        size = next_fast_len(full, real=True)
        return irfft(rfft(mass, size) ** times, size)[:full], 0
    index = np.arange(mass.size)
    mean = float(np.sum(mass * index))
    deviation = math.sqrt(times * float(np.sum(mass * (index - mean) ** 2)))
    size = next_fast_len(int(28 * deviation) + 4 * mass.size, real=True)
    wrapped = irfft(rfft(mass, size) ** times, size)
    first = round(times * mean) - size // 2
    return np.roll(wrapped, -(first % size)), first
