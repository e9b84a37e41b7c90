"""Sums of privacy losses: convolved on a grid at a tilt, with every error added.

Idea     losses are put on a grid by connecting the dots of delta over e^eps, which never lowers
         delta, and convolved by Fourier transforms. The laws are tilted first, so that errors count
         relative to delta; tails and the rounding of transforms are added.
Symbols  T releases; theta: tilt of the convolution; phi: tilt that bounds the mass above the
         window; K(theta) = log E_P e^(theta L); kappa: K of one part on the grid; c: tilted law of
         the sum; w: weights with delta = sum c w.
Source   Koskela, Jaelkoe, Honkela (2020): Fourier transforms; Doroshenko et al. (2022): connecting
         the dots. docs/theory/adding-up.md, "Loss distributions", proves the errors that are added.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.optimize import brentq
from scipy.special import ndtr

from quietbit._search import bisect
from quietbit._typing import FloatVector
from quietbit.privacy.rounding import UNIT

__all__ = ["Atoms", "Losses", "TiltedLaw", "convolved", "moment_upper", "tilt_at", "tilt_for"]

MOST_POINTS = 2**20
LEAST_POINTS = 2**12
_NEGLIGIBLE = 36.0  # tails of e^-36 = 2e-16 of delta are cut, and added
_GAUSSIAN_REACH = 13.0  # standard deviations; beyond lie 6e-39, which count as infinite loss
_LEAST_TILT = 1e-6
_MOST_TILT = 1e9
# Relative error of a sum of up to 2^20 positive numbers and of their exponentials.
_SUM_MARGIN = 1e-12
_Places: TypeAlias = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Atoms:
    """Finitely many losses with their masses under P, both rounded up, sorted by loss.

    ``infinite`` is the mass where Q has none; ``identity`` is the SHA-256 of all of them.
    """

    losses: FloatVector = field(repr=False, compare=False)
    masses: FloatVector = field(repr=False, compare=False)
    infinite: float = field(compare=False)
    identity: bytes

    @classmethod
    def of(cls, losses: FloatVector, masses: FloatVector, infinite: float) -> Atoms:
        """Sort the atoms of positive mass."""
        losses = losses[masses > 0]
        masses = masses[masses > 0]
        order = np.argsort(losses, kind="stable")
        losses = np.ascontiguousarray(losses[order])
        masses = np.ascontiguousarray(masses[order])
        losses.setflags(write=False)
        masses.setflags(write=False)
        numbers = losses.tobytes() + masses.tobytes() + np.float64(infinite).tobytes()
        return cls(losses, masses, infinite, hashlib.sha256(numbers).digest())

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
        total = float(weights.sum())
        return peak + math.log(total), float(weights @ self.losses) / total


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of independent releases in one direction, P against Q.

    ``parts`` counts releases with finitely many losses; ``squared_mu`` is that of all Gaussian
    releases together.
    """

    parts: tuple[tuple[Atoms, int], ...] = ()
    squared_mu: float = 0.0

    def log_moment(self, theta: float) -> tuple[float, float]:
        """Return K and K' of the sum of finite losses; no bound depends on their rounding."""
        moment = theta * (theta + 1) * self.squared_mu / 2
        slope = (theta + 0.5) * self.squared_mu
        for atoms, times in self.parts:
            part_moment, part_slope = atoms.log_moment(theta)
            moment += times * part_moment
            slope += times * part_slope
        return moment, slope


@final
@dataclass(frozen=True, slots=True)
class TiltedLaw:
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
            return math.inf  # so far below the window's middle that squares of weights overflow
        weights = self.scale[start:] * -np.expm1(epsilon - self.losses[start:])
        body = float(np.sum(self.law[start:] * weights))
        body += self.error * math.sqrt(float(np.sum(weights * weights)))
        outside = self.below if epsilon < self.losses[0] else 0.0
        return body * (1 + self.margin) + self.above + outside

    def epsilon_upper(self, delta: float, guess: float) -> float:
        """Return the least epsilon >= 0 found at which ``delta`` is proved; infinite if none is."""
        low = 0.0
        high = float(self.losses[-1])

        def excess(epsilon: float) -> float:
            """Return log(delta found / delta), cut to +-1000."""
            ratio = self.delta_upper(epsilon) / delta
            if ratio == 0:
                return -1e3
            return math.log(ratio) if 0 < ratio < math.inf else 1e3

        if excess(low) <= 0:
            return 0.0
        if high <= 0 or not excess(high) <= 0:
            return math.inf
        if low < guess < high:
            if excess(guess) <= 0:
                high = guess
            else:
                low = guess
        epsilon = float(brentq(excess, low, high, xtol=1e-13 * high, rtol=1e-13))
        step = 1e-13 * high
        while excess(epsilon) > 0:
            epsilon = min(epsilon + step, high)
            step = 2 * step
        return epsilon


def moment_upper(losses: FloatVector, masses: FloatVector, theta: float) -> float:
    """Return an upper bound on log sum of mass e^(theta loss)."""
    exponents = theta * losses
    peak = float(exponents.max())
    with np.errstate(under="ignore"):
        total = float(np.sum(masses * np.exp(exponents - peak)))
    largest = float(np.abs(losses).max(initial=0.0))
    units = 4 + abs(theta) * largest + math.log2(losses.size + 2)
    error = 8 * UNIT * units + 256 * UNIT
    return peak + math.log(total) + error + 4 * UNIT * abs(peak)


def tilt_at(releases: Losses, epsilon: float) -> float:
    """Return the tilt that moves the mean of the losses to about ``epsilon``."""

    def rising(_theta: float, _moment: float, slope: float) -> float:
        return slope - epsilon

    return _tilt(releases, rising)


def tilt_for(releases: Losses, log_delta: float) -> float:
    """Return the tilt at which Chernoff's bound is about e^``log_delta``."""

    def rising(theta: float, moment: float, slope: float) -> float:
        return theta * slope - moment + log_delta

    return _tilt(releases, rising)


def _tilt(releases: Losses, rising: Callable[[float, float, float], float]) -> float:
    """Return about where ``rising``(theta, K, K') crosses zero; any tilt is a valid one."""
    top = math.inf if releases.squared_mu > 0 else 0.0
    log_mass = 0.0
    for atoms, times in releases.parts:
        top += times * float(atoms.losses[-1])
        log_mass += times * math.log(float(atoms.masses[-1]))

    def enough(theta: float) -> bool:
        moment, slope = releases.log_moment(theta)
        # Where the largest loss of all has half of the tilted mass, a larger tilt gains nothing.
        peaked = top < math.inf and theta * top + log_mass - moment >= -math.log(2)
        return peaked or rising(theta, moment, slope) >= 0

    low = high = _LEAST_TILT
    while high < _MOST_TILT and not enough(high):
        low = high
        high = 4 * high
    return bisect(enough, high, low, halvings=16, by_ratio=True)


class _Part(NamedTuple):
    """Losses of one kind of release at places of the grid; ``times``: how often it is made."""

    places: _Places
    losses: FloatVector
    masses: FloatVector
    times: int

    @classmethod
    def of(cls, places: _Places, masses: FloatVector, times: int, step: float) -> _Part:
        """Return the part with its losses, exact multiples of ``step``."""
        return cls(places, np.asarray(places * step, dtype=np.float64), masses, times)


def _gridded(releases: Losses, step: float) -> tuple[list[_Part], float]:
    """Return all kinds of releases on the grid, and the mass beyond it."""
    parts = []
    for atoms, times in releases.parts:
        places, masses = _on_grid(atoms.losses, atoms.masses, step)
        parts.append(_Part.of(places, masses, times, step))
    beyond = 0.0
    if releases.squared_mu > 0:
        places, masses, beyond = _gaussian_on_grid(releases.squared_mu, step)
        parts.append(_Part.of(places, masses, 1, step))
    return parts, beyond


def _on_grid(losses: FloatVector, masses: FloatVector, step: float) -> tuple[_Places, FloatVector]:
    """Split each atom between its grid neighbours, by the chord.

    ``step`` is a power of two, so places are exact.
    """
    scaled = losses / step
    floor = np.floor(scaled)
    upward = np.expm1(-(scaled - floor) * step) / math.expm1(-step)
    up = np.minimum(1.0, upward * (1 + 8 * UNIT))
    down = np.where(upward > 0, np.maximum(0.0, 1 - upward) + 8 * UNIT, 1.0)
    places = floor.astype(np.int64)
    moved = up > 0
    split = np.append(masses * down, (masses * up)[moved])
    return np.append(places, places[moved] + 1), split * (1 + 4 * UNIT)


def _gaussian_on_grid(squared_mu: float, step: float) -> tuple[_Places, FloatVector, float]:
    """Put the Gaussian's loss, N(mu^2/2, mu^2), on a grid: places, masses, and the mass beyond."""
    mu = math.sqrt(squared_mu)
    mean = squared_mu / 2
    reach = _GAUSSIAN_REACH * mu
    first = math.floor((mean - reach) / step)
    places = np.arange(first, math.ceil((mean + reach) / step) + 1)
    edges = (places * step - mean) / mu
    left = edges[:-1]
    tails = ndtr(-np.abs(edges))
    left_tails = tails[:-1]
    right_tails = tails[1:]
    # Differences of the smaller tails; the cell around the middle is what the two leave.
    cells = np.where(left >= 0, left_tails - right_tails, right_tails - left_tails)
    middle = (left < 0) & (edges[1:] > 0)
    cells[middle] = 1 - left_tails[middle] - right_tails[middle]
    cells = cells + 256 * UNIT * np.where(middle, 1.0, np.maximum(left_tails, right_tails))
    turn = -left / mu * step  # x of the page
    cubic = np.where(turn < 0, np.abs(turn) ** 3 / 720, 0.0)
    share = 0.5 + turn / 12 + cubic + step * step / -math.expm1(-step) / 12
    share = np.clip(share + 64 * UNIT, 0.0, 1.0)
    masses = np.zeros(places.size)
    masses[1:] += cells * share
    masses[:-1] += cells * (1 - share + 4 * UNIT)
    masses[0] += ndtr(edges[0]) * (1 + 256 * UNIT)
    beyond = float(ndtr(-edges[-1])) * (1 + 256 * UNIT)
    return places, masses * (1 + 8 * UNIT), beyond


def _range(releases: Losses, theta: float, goal: float, phi: float) -> tuple[float, float]:
    """Return losses outside which about e^-36 of the tilted mass lies, or of e^``goal``.

    What is left out below wraps round and only adds.
    """
    high = (releases.log_moment(phi)[0] - goal + _NEGLIGIBLE) / phi
    moment, slope = releases.log_moment(theta)
    ahead = releases.log_moment(theta * (1 + 1e-3) + 1e-9)[1]
    variance = max((ahead - slope) / (theta * 1e-3 + 1e-9), 1e-30 + 1e-12 * slope * slope)
    strides = math.sqrt(2 * _NEGLIGIBLE / variance) * 2.0 ** np.arange(-2, 6)
    low = -math.inf
    for stride in strides.tolist():
        chernoff = (moment - releases.log_moment(theta - stride)[0] - _NEGLIGIBLE) / stride
        low = max(low, chernoff)
    if releases.squared_mu == 0:
        largest = math.fsum(times * float(atoms.losses[-1]) for atoms, times in releases.parts)
        smallest = math.fsum(times * float(atoms.losses[0]) for atoms, times in releases.parts)
        high = min(high, largest)
        low = max(low, smallest)
    return low, high


def convolved(releases: Losses, theta: float, goal: float) -> TiltedLaw:
    """Return the law of the sum of losses at the tilt ``theta``.

    Args:
        releases: independent releases with known losses.
        theta: the tilt; any is valid, and `tilt_at` and `tilt_for` find sharp ones.
        goal: log of the delta that is looked for; the window leaves out e^-36 of it.
    """
    number = sum(times for _, times in releases.parts) + (releases.squared_mu > 0)
    phi = tilt_for(releases, goal - _NEGLIGIBLE)
    low, high = _range(releases, theta, goal, phi)
    width = max(high - low, 1e-9 * (1 + abs(high)))
    enough = min(max(LEAST_POINTS, 13000 * math.sqrt(number)), MOST_POINTS)
    points = 2 ** math.ceil(math.log2(enough))
    # Putting losses onto the grid spreads each by up to a step: room for their sum at both ends.
    room = 2 + math.ceil(min(number, 4.5 * math.sqrt(number)))
    step = 2.0 ** math.ceil(math.log2(width / (points - 2 * room - 2)))
    first = math.floor(low / step) - room
    losses = (first + np.arange(points)) * step

    parts, above = _gridded(releases, step)
    product = _Product(points, theta)
    for part in parts:
        product.multiply(part)
    law, error = product.law(first, number + len(parts))
    with np.errstate(under="ignore"):
        scale = np.exp(np.minimum(product.constant - theta * losses, 690.0))
    farthest = float(np.abs(losses[[0, -1]]).max())
    margin = _SUM_MARGIN + 16 * UNIT * (product.magnitude + theta * farthest)
    if product.last >= first + points:
        above = _tail_upper(parts, phi, float(losses[-1]) + step) + above
    below = 0.0
    if product.least < first:
        slope = releases.log_moment(theta)[1]
        tilt = 2 * _NEGLIGIBLE / max(slope - low, step)
        below = _tail_upper(parts, -tilt, float(losses[0])) * (1 + 1e-6)
    return TiltedLaw(losses, law, scale, margin, error, above, below)


def _tail_upper(parts: list[_Part], tilt: float, edge: float) -> float:
    """Bound the mass of P beyond ``edge`` by Chernoff; below it where the tilt is negative."""
    exponent = -tilt * edge
    for part in parts:
        exponent += part.times * moment_upper(part.losses, part.masses, tilt)
    return math.exp(min(exponent + 1e-9, 0.0))


@final
class _Product:
    """The product of the tilted laws' transforms, and what the error of its inverse depends on."""

    def __init__(self, points: int, theta: float) -> None:
        self._points = points
        self._theta = theta
        self._rounding = 10 * math.log2(points) * UNIT
        self._spectrum = np.ones(points // 2 + 1, dtype=np.complex128)
        self._growth = 0.0  # log of the product of the laws' sums
        self._error = 0.0
        self._offset = 0  # the place of the first slot
        self.constant = 0.0  # the sum of all kappa
        self.magnitude = 0.0  # and of their sizes
        self.least = 0  # the first and the last place of the sum
        self.last = 0

    def multiply(self, part: _Part) -> None:
        """Multiply by the transform of all releases of one kind."""
        places = part.places
        times = part.times
        kappa = moment_upper(part.losses, part.masses, self._theta)
        law = self._tilted(part, kappa)
        norm = _norm_upper(law)
        size = float(law.sum()) * (1 + 1e-13)
        self._spectrum *= _power(np.asarray(fft.rfft(law)), times)
        largest = size + self._rounding * math.sqrt(self._points) * norm
        self._growth += times * math.log(max(1.0, largest))
        self._error += times * self._rounding * norm
        self._offset += times * int(places[0])
        self.constant += times * kappa
        self.magnitude += times * abs(kappa)
        self.least += times * int(places.min())
        self.last += times * int(places.max())

    def _tilted(self, part: _Part, kappa: float) -> FloatVector:
        """Return the tilted law of one release on a circle of points, rounded up."""
        exponents = self._theta * part.losses
        with np.errstate(under="ignore"):
            tilted = part.masses * np.exp(exponents - kappa)
        tilted = tilted * (1 + 4 * UNIT * (8 + abs(kappa) + np.abs(exponents)))
        slots = (part.places - int(part.places[0])) % self._points
        law = np.bincount(slots, tilted, minlength=self._points)
        most = int(np.bincount(slots).max())
        return np.asarray(law * (1 + 2 * most * UNIT))

    def law(self, first: int, factors: int) -> tuple[FloatVector, float]:
        """Return the law from the place ``first`` on, and a bound on the 2-norm of its error."""
        circle = np.asarray(fft.irfft(self._spectrum, self._points))
        law = np.roll(circle, (self._offset - first) % self._points)
        relative = 2 * (self._rounding + 4 * UNIT * factors)
        error = math.exp(min(self._growth, 700.0)) * self._error * (1 + 1e-6)
        error += relative * _norm_upper(law)
        return np.maximum(law, 0.0), error / max(1e-3, 1 - relative) + 1e-290


def _norm_upper(law: FloatVector) -> float:
    return math.sqrt(float(law @ law)) * (1 + 1e-9)


def _power(values: NDArray[np.complex128], times: int) -> NDArray[np.complex128]:
    """Return ``values`` to an integer power by repeated squaring."""
    result: NDArray[np.complex128] | None = None
    while times > 1:
        if times & 1:
            result = values if result is None else result * values
        values = values * values
        times >>= 1
    return values if result is None else result * values
