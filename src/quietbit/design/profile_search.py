"""The search for a profile of large gain.

Idea     without delta, T releases are epsilon-private if and only if one is (epsilon/T)-private, h
         lies between two bounds of fixed ratio, and a step is optimal. With delta, the search is
         over step functions whose logarithms lie on a lattice: so do the losses, and composing T
         releases is one Fourier transform of a few masses. Given the edges, the step s is the
         largest that delta allows; equally spaced edges are found by a simplex search, then all
         edges move by gradient ascent. The result is a proposal: privacy is certified elsewhere,
         from the stored doubles.
Symbols  e = epsilon/T; a(nu) = E(t - nu)_+ = phi(nu) - nu Phi(-nu); E(nu - t)_+ = a(nu) + nu. H:
         cap on h. t_1 < ... < t_{m-1}: edges; s: lattice step; w: masses of cells; U(l) = T times
         the delta that T-1 releases leave when one has lost l: the derivative of delta by the mass
         of P at loss l, that of Q moving along.
Source   packages/lab/docs/profiles.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
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

__all__ = ["Proposal", "mean_above", "propose", "pure_edge"]

# Up to this many lattice points a convolution is computed completely; beyond, within 14 deviations.
COMPLETE = 4096
# A smaller delta is lost in the rounding of the transforms: the proposal is made for this one.
FAINTEST = 1e-12
# While edges move, the norm of this order replaces the larger of the two deltas of zero-out.
SHARPNESS = 4.0
NARROWEST = -14.0  # logarithm of a gap between edges
WIDEST = 3.0
FARTHEST = 9.0
COARSE = 32  # levels of the search; for many releases the lattice is halved afterwards
FINE = 400  # levels of nearly a Gaussian, where design still gains
MOST = 800  # levels of a discretised Gaussian: costs a part in 80,000
SEARCHED = 300  # releases beyond which edges are not moved individually
STRETCHED = 2000  # releases beyond which the Gaussian is used unchanged
WORTHWHILE = 5e-4  # relative gain that outweighs a pure guarantee, or two levels
FINER = 4e-5  # relative gain that justifies halving the lattice once more


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
    each = target.epsilon / target.releases
    pure = pure_edge(each, target.adjacency)
    step = each
    if target.adjacency is Adjacency.ZERO_OUT:
        step = 2.0 * each
    account = _Account(target)
    best = account.at(np.array([pure]), step)
    if target.delta == 0:
        return best  # optimal (packages/lab/docs/profiles.md)
    for candidate in _candidates(account, target.releases, pure):
        least = WORTHWHILE if best.edges.size == 1 else 0.0
        if candidate.gain > best.gain * (1 + least):
            best = candidate
    return best


def _candidates(account: _Account, releases: int, pure: float) -> Iterator[Proposal]:
    """Yield equally spaced edges, then free ones; for many releases a Gaussian."""
    if releases > SEARCHED:
        yield account.fit(_ladder(MOST) * (9.5 / MOST))
    else:
        yield _simplex(account, np.zeros(1), (pure, 0.0))
        proposals = []
        for centre, spread in ((0.3, 6.0), (pure, 1.5)):
            simple = _simplex(account, _ladder(COARSE), (centre, math.log(spread / COARSE)))
            yield simple
            proposal = _ascend(account, simple)
            if releases < 100:
                proposal = _ascend(account, proposal)  # a second start discards a stale curvature
            proposals.append(proposal)
            yield proposal
        if releases < 30:
            return
        best = max(proposals, key=lambda proposal: proposal.gain)
        best = _ascend(account, account.fit(_halved(best.edges)), evaluations=60)
        while releases >= 100 and best.edges.size < FINE / 2:
            finer = account.fit(_halved(best.edges))
            gained = finer.gain / best.gain - 1
            best = finer
            if gained < FINER:
                break
        middle = float(best.edges.mean())
        yield _simplex(account, best.edges - middle, (middle, 0.0), evaluations=30)
    if 100 <= releases <= STRETCHED:
        yield _simplex(account, _ladder(FINE), (0.0, math.log(7 / FINE)), evaluations=60)


def _ladder(levels: int) -> FloatVector:
    """Return the edges between ``levels`` levels, one apart and centred."""
    return np.arange(levels - 1.0) - (levels - 2) / 2


def _halved(edges: FloatVector) -> FloatVector:
    """Return the edges of nearly the same function on a lattice of half the step."""
    # Edge k is where log h, in steps above its least, passes k - 1/2; the new ones are where it
    # passes (k - 1/2)/2.
    passes = np.arange(edges.size) + 0.5
    wanted = (np.arange(2 * edges.size) + 0.5) / 2
    inner: FloatVector = np.interp(wanted, passes, edges)
    inner[0] = edges[0] - 0.25 * (edges[1] - edges[0])
    inner[-1] = edges[-1] + 0.25 * (edges[-1] - edges[-2])
    return inner


def _simplex(
    account: _Account, shape: FloatVector, start: tuple[float, float], evaluations: int = 250
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


def _ascend(account: _Account, start: Proposal, evaluations: int = 160) -> Proposal:
    """Move all edges by gradient ascent on the log of the gain at fixed delta."""
    best = start

    def cost(x: FloatVector) -> tuple[float, FloatVector]:
        nonlocal best
        gaps = np.exp(np.clip(x[1:], NARROWEST, WIDEST))
        edges = x[0] + np.concatenate(([0.0], np.cumsum(gaps)))
        if np.abs(edges).max() > FARTHEST or not np.all(np.diff(edges) > 0):
            return 50.0, np.zeros_like(x)
        proposal, slope = account.ascent(edges)
        if proposal.gain > best.gain:
            best = proposal
        beyond = np.cumsum(slope[::-1])[::-1]  # a wider gap moves every edge after it
        return -math.log(proposal.gain), -np.concatenate((beyond[:1], beyond[1:] * gaps))

    x = np.concatenate((start.edges[:1], np.log(np.diff(start.edges))))
    options = {"maxiter": evaluations, "maxfun": evaluations, "maxcor": 20, "ftol": 1e-11}
    minimize(cost, x, jac=True, method="L-BFGS-B", options=options)
    return account.fit(best.edges)


@dataclass(frozen=True, slots=True)
class _Cells:
    """What depends on the edges alone: masses, levels and lattice places of the cells."""

    edges: FloatVector
    mass: FloatVector
    level: NDArray[np.intp]
    place: NDArray[np.intp]
    density: FloatVector


class _Account:
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
        return self.at(edges, self._step(self._cells(edges), math.inf))

    def at(self, edges: FloatVector, step: float) -> Proposal:
        return Proposal(edges, step, self._gain(self._cells(edges), step))

    def _cells(self, edges: FloatVector) -> _Cells:
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
        return _Cells(edges, mass, level, place, np.exp(-0.5 * edges**2) / math.sqrt(2 * math.pi))

    def _gain(self, cells: _Cells, step: float) -> float:
        height = np.exp(step * np.arange(cells.edges.size + 1.0))
        moment = np.sum(np.diff(height) * cells.density)
        return float(moment / np.sum(cells.mass * height[cells.level]))

    def _step(self, cells: _Cells, sharpness: float) -> float:
        """Solve delta(step) = delta; delta grows with the step, from that of a pure account."""

        def excess(log_step: float) -> float:
            delta = self._delta(cells, math.exp(log_step), sharpness)
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

    def _delta(self, cells: _Cells, step: float, sharpness: float) -> float:
        deltas = []
        for mass, losses, _ in self._losses(cells, step):
            composed, offset = _compose(mass, self.times)
            loss = self.times * losses[0] + step * (np.arange(composed.size) + offset)
            beyond = loss > self.epsilon
            shares = -np.expm1(self.epsilon - loss[beyond])
            deltas.append(max(float(np.sum(composed[beyond] * shares)), 0.0))
        largest = max(deltas)
        if math.isinf(sharpness) or largest <= 0:
            return largest
        powers = sum((delta / largest) ** sharpness for delta in deltas)
        return float(largest * powers ** (1 / sharpness))

    def _losses(self, cells: _Cells, step: float) -> list[tuple[FloatVector, FloatVector, int]]:
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

    def ascent(self, edges: FloatVector) -> tuple[Proposal, FloatVector]:
        """Return the proposal at these edges, and the gradient of log gain at constant delta."""
        cells = self._cells(edges)
        step = self._step(cells, SHARPNESS)
        i = np.arange(edges.size)
        height = np.exp(step * np.arange(edges.size + 1.0))
        total = np.sum(cells.mass * height[cells.level])
        h = height / total
        flow = np.diff(h) * cells.density
        gain = float(np.sum(flow))
        deltas = []
        slopes = []
        for mass, losses, sign in self._losses(cells, step):
            p, q = self._marginals(mass, losses, step)
            delta = float(np.sum(mass * (p - q * np.exp(-losses)))) / self.times
            deltas.append(max(delta, 1e-30))
            if self.mirrored:
                j = np.searchsorted(edges, -edges)  # the level at the mirror image of each edge
                here = i - j
                there = j - i
                o = edges.size
                change = (
                    h[i] * p[here + o]
                    - h[i + 1] * p[here + 1 + o]
                    + h[j] * (p[there + o] - p[there - 1 + o])
                )
                change -= (
                    h[j] * (q[here + o] - q[here + 1 + o])
                    + h[i] * q[there + o]
                    - h[i + 1] * q[there - 1 + o]
                )
                rescale = self.times * deltas[-1]
            elif sign > 0:
                change = h[i] * p[i] - h[i + 1] * p[i + 1] - (q[i] - q[i + 1])
                rescale = float(np.sum(mass * p))
            else:
                p = p[::-1]
                q = q[::-1]
                change = p[i] - p[i + 1] - (h[i] * q[i] - h[i + 1] * q[i + 1])
                rescale = -float(np.sum(cells.mass * h * q))
            slopes.append(cells.density * change + rescale * flow)
        powers = (np.array(deltas) / max(deltas)) ** SHARPNESS
        weights = powers / powers.sum()
        terms = [w / d * s for w, d, s in zip(weights, deltas, slopes, strict=True)]
        log_delta = np.sum(terms, axis=0)
        up = step * (1 + 1e-4)
        down = step * (1 - 1e-4)
        more = max(self._delta(cells, up, SHARPNESS), 1e-30)
        less = max(self._delta(cells, down, SHARPNESS), 1e-30)
        by_step = math.log(more / less)
        gained = math.log(self._gain(cells, up) / self._gain(cells, down))
        slope: FloatVector = flow * (1 - edges / gain) - (gained / max(by_step, 1e-9)) * log_delta
        return Proposal(edges, step, gain), slope

    def _marginals(
        self, mass: FloatVector, losses: FloatVector, step: float
    ) -> tuple[FloatVector, FloatVector]:
        """Return derivatives of delta at each loss: by masses of P, and minus those by Q's."""
        rest, offset = _compose(mass, self.times - 1)
        loss = (self.times - 1) * losses[0] + step * (np.arange(rest.size) + offset)
        # Far down, e^-loss amplifies rounding errors; only the upper end is ever used.
        scaled = rest * np.exp(np.minimum(self.epsilon - loss, 300.0))
        cut = np.searchsorted(loss, self.epsilon - losses, side="right")
        return self.times * _sums_from(rest)[cut], self.times * _sums_from(scaled)[cut]


def _sums_from(values: FloatVector) -> FloatVector:
    """Return for every index the sum of the values from there on, and zero after the last."""
    return np.concatenate((np.cumsum(values[::-1])[::-1], [0.0]))


def _compose(mass: FloatVector, times: int) -> tuple[FloatVector, int]:
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
