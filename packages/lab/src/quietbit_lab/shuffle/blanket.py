"""A release that hides among draws from a blanket: delta as the positive part of a sum.

Idea     every client's law contains a share g of one fixed law, the blanket. A neighbour's release
         is hidden among the draws from it: delta is at most E(B_1 X_1 + ... + B_n X_n)_+ / (n g),
         with B_i = 1 with probability g, else 0, independent. X has three values here, so the sum
         is that of three counts.
Symbols  n = crowd; P, P': laws of the client's release and its neighbour's; B: blanket; g = share,
         with R >= g B for the law R of every other client's release; U = dP/dB, V = dP'/dB under B;
         a = e^epsilon, X = U - a V. N_1, N_2, N_3: draws of each outcome; C = N_1 + N_2.
Source   Balle, Bell, Gascón, Nissim (2019); docs/theory/shuffling.md, "The sum".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.errors import check_int, require
from quietbit.privacy.rounding import UNIT

__all__ = ["MOST_CROWD", "Blanket", "BlanketPair"]

MOST_CROWD = 10**9
_REACH = 10.5  # half a window: standard deviations, plus a constant
_MORE = 20
_FINE = 16  # rows per standard deviation
_COARSE = 1e-4  # or rows of this share of C, if more
_STEPS = 4  # ranges of N_3 per standard deviation; where that is large, of all of it but `_FEW`
_FEW = 32
_SUM_MARGIN = 1e-11  # relative error of sums of positive numbers
_Counts: TypeAlias = NDArray[np.int64]
_Triple: TypeAlias = tuple[float, float, float]


@final
@dataclass(frozen=True, slots=True)
class Blanket:
    """A lower bound on every other client's law, and two neighbours' densities against it.

    There are three outcomes, and only the first may have U > V.

    Args:
        share: g, the share of the blanket in every other client's law.
        masses: of the outcomes under the blanket.
        first: bounds on U from above.
        second: bounds on V from below.
        slack: densities hold up to a factor e^(+-slack): delta is e^slack times that at epsilon - 2
            slack.
        error: of a sampler's means: delta grows by (2 + a) of it.

    >>> response = Blanket(0.25, (0.5, 0.5, 0.0), (1.6, 0.4, 1.0), (0.4, 1.6, 1.0))
    >>> response.delta_upper(1000, 0.5) < 1e-3 < response.delta_upper(10, 0.5)
    True
    """

    share: float
    masses: _Triple
    first: _Triple
    second: _Triple
    slack: float = 0.0
    error: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "share", self.share, "above 0 and at most 1")
        for name in ("masses", "first", "second"):
            values = getattr(self, name)
            listed = len(values) == 3 and all(0 <= value < math.inf for value in values)
            require(listed, name, values, "three finite numbers of at least 0")
        law = self.masses[0] > 0 and abs(math.fsum(self.masses) - 1) <= 1e-12
        require(law, "masses", self.masses, "three that sum to 1, the first positive")
        later = self.first[1] <= self.second[1] and self.first[2] <= self.second[2]
        rule = f"at most {self.second} in the second and third outcome"
        require(later, "first", self.first, rule)
        require(0 <= self.slack <= 0.01, "slack", self.slack, "at least 0 and at most 0.01")
        require(0 <= self.error < 1, "error", self.error, "at least 0 and below 1")

    def delta_upper(self, crowd: int, epsilon: float) -> float:
        """Return an upper bound on delta at ``epsilon >= 0``, for one release among ``crowd``."""
        crowd = check_int(crowd, "crowd", 1, MOST_CROWD)
        require(0 <= epsilon < math.inf, "epsilon", epsilon, "a finite number of at least 0")
        inner = max(0.0, epsilon - 2 * self.slack)
        short = max(0.0, 2 * self.slack - epsilon)
        growth = math.exp(min(inner, 700.0)) * (1 - 4 * UNIT)
        lost = self.error * (2 + math.exp(min(epsilon, 700.0)))
        # Below a = 1 the sum grows by at most (1 - a) E V.
        mean = math.fsum(mass * v for mass, v in zip(self.masses, self.second, strict=True))
        lost += short * mean * (1 + 1e-12)
        pairs = zip(self.first, self.second, strict=True)
        up, down, middle = (u - growth * v + 4 * UNIT * (u + growth * v) for u, v in pairs)
        excess = 0.0
        if up > 0:
            table = _table(crowd, self.share, self.masses)
            total = table.excess_upper(up, min(down, 0.0), min(middle, 0.0))
            excess = total / (crowd * self.share)
        return min(1.0, math.exp(self.slack) * (excess + lost) * (1 + 16 * UNIT))


@final
@dataclass(frozen=True, slots=True)
class BlanketPair:
    """A blanket for the client's data against the neighbour's, and one for the reverse."""

    forward: Blanket
    backward: Blanket

    def delta_upper(self, crowd: int, epsilon: float) -> float:
        """Return the larger delta of the two directions."""
        delta = self.forward.delta_upper(crowd, epsilon)
        if self.backward == self.forward:
            return delta
        return max(delta, self.backward.delta_upper(crowd, epsilon))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The parts of the sum that do not depend on a: rows of C, E(N_1 - k)_+, ranges of N_3."""

    tops: _Counts  # the largest C of every row
    spans: _Counts  # how far below it the smallest is
    weights: FloatVector  # the probability of every row
    starts: _Counts  # the first k of its table
    beyond: FloatMatrix  # E(N_1 - k)_+ for k = start, start + 1, ...
    tails: FloatVector  # the mass that the table leaves out
    outside: float  # E[C; C outside all rows]
    chance: float  # of the first outcome among the first two
    floors: _Counts  # the smallest N_3 of every range
    shares: FloatVector  # and its probability
    margin: float

    def excess_upper(self, up: float, down: float, middle: float) -> float:
        """Return an upper bound on E(N_1 up + N_2 down + N_3 middle)_+, up > 0 >= down, middle."""
        width = up - down
        mean = self.chance * up + (1 - self.chance) * down
        fall = max(0.0, -mean) * (1 + 1e-12)
        needed = -(self.tops * down)[:, None] - self.floors * middle
        given = (fall * self.spans)[:, None]
        theta = np.maximum((needed - given - 16 * UNIT * (needed + given)) / width, 0.0)
        place = theta - self.starts[:, None]
        # Below its table E(N_1 - theta)_+ grows by at most 1 for each step.
        short = np.maximum(-place, 0.0)
        last = self.beyond.shape[1] - 1
        place = np.clip(place, 0.0, float(last))
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, last)
        part = place - low
        rows = np.arange(self.tops.size)[:, None]
        chord = (1 - part) * self.beyond[rows, low] + part * self.beyond[rows, high]
        excess = chord + short + self.tails[:, None]
        total = width * float(np.sum(self.weights * (excess @ self.shares)))
        return (total + up * self.outside) * (1 + self.margin)


@lru_cache(maxsize=8)
def _table(crowd: int, share: float, masses: _Triple) -> _Table:
    """Tabulate the three counts of draws among ``crowd``."""
    both = masses[0] + masses[1]
    rate = min(1.0, share * both)
    chance = masses[0] / both
    low, high = _window(crowd, rate)
    spread = math.sqrt(crowd * rate * (1 - rate))
    step = max(1, math.floor(spread / _FINE), math.floor(_COARSE * crowd * rate))
    pmf = _pmf(crowd, rate, np.arange(low, high + 1))
    begins = np.arange(0, pmf.size, step)
    tops = np.minimum(low + begins + step - 1, high)
    below = 0.0
    if low and rate < 1:
        below = low * _chernoff(crowd, rate, low - 1)
    above = 0.0
    if high < crowd:
        above = crowd * rate * _chernoff(crowd - 1, rate, high)
    starts, beyond, tails = _first_counts(tops, chance)
    third = min(1.0, share * masses[2] / max(1 - rate, UNIT))
    floors, shares = _ranges(crowd - high, third)
    # A log-probability errs by a few units of the largest term, which is that of the crowd's
    # factorial.
    margin = 3 * 64 * UNIT * (float(gammaln(crowd + 1.0)) + crowd) + _SUM_MARGIN
    return _Table(
        tops,
        spans=tops - (low + begins),
        weights=np.add.reduceat(pmf, begins),
        starts=starts,
        beyond=beyond,
        tails=tails,
        outside=below + above,
        chance=chance,
        floors=floors,
        shares=shares,
        margin=margin,
    )


def _first_counts(tops: _Counts, chance: float) -> tuple[_Counts, FloatMatrix, FloatVector]:
    """Return, for every C, the first k, E(N_1 - k)_+ from there on, and what the table lacks."""
    windows = np.array([_window(top, chance) for top in tops.tolist()], dtype=np.int64)
    starts = windows[:, 0]
    ends = windows[:, 1]
    most = int(np.max(ends - starts)) + 1
    places = starts[:, None] + np.arange(most + 1)  # one more, beyond which nothing is left
    inside = places <= np.minimum(ends, tops)[:, None]
    pmf = _pmf(tops[:, None], chance, np.minimum(places, tops[:, None]))
    beyond = np.where(inside, pmf, 0.0)
    for _ in range(2):  # P(N_1 >= k), then the sum of those above k: E(N_1 - k)_+
        beyond = np.cumsum(beyond[:, ::-1], axis=1)[:, ::-1]
    beyond = np.concatenate([beyond[:, 1:], np.zeros((tops.size, 1))], axis=1)
    tails = np.zeros(tops.size)
    for row, (top, end) in enumerate(zip(tops.tolist(), ends.tolist(), strict=True)):
        if end < top:
            tails[row] = top * chance * _chernoff(top - 1, chance, end)
    return starts, beyond, tails


def _ranges(number: int, chance: float) -> tuple[_Counts, FloatVector]:
    """Return ranges of a binomial number as (smallest, probability), from 0 on."""
    if number < 1 or chance <= 0:
        return np.zeros(1, dtype=np.int64), np.ones(1)
    low, high = _window(number, chance)
    spread = math.sqrt(number * chance * (1 - chance))
    step = max(1, math.floor(spread / _STEPS), math.floor(spread) - _FEW)
    pmf = _pmf(number, chance, np.arange(low, high + 1))
    begins = np.arange(0, pmf.size, step)
    shares = np.add.reduceat(pmf, begins)
    outside = 0.0  # what lies outside the window counts as 0
    if low and chance < 1:
        outside = _chernoff(number, chance, low - 1)
    outside += _chernoff(number, chance, high + 1)
    return np.append(0, low + begins), np.append(outside, shares)


def _window(number: int, chance: float) -> tuple[int, int]:
    """Return a window that contains nearly all of a binomial number."""
    mean = number * chance
    reach = _REACH * math.sqrt(mean * (1 - chance)) + _MORE
    return max(0, math.floor(mean - reach)), min(number, math.ceil(mean + reach))


def _pmf(number: _Counts | int, chance: float, counts: _Counts) -> FloatMatrix:
    """Return binomial probabilities, to the relative error that `_table` adds as its margin."""
    if chance >= 1:
        return np.where(counts == number, 1.0, 0.0)
    trials = np.asarray(number, dtype=np.float64)
    hits = np.asarray(counts, dtype=np.float64)
    choose = gammaln(trials + 1) - gammaln(hits + 1) - gammaln(trials - hits + 1)
    logarithm = choose + hits * math.log(chance) + (trials - hits) * math.log1p(-chance)
    with np.errstate(under="ignore"):
        return np.asarray(np.exp(logarithm))


def _chernoff(number: int, chance: float, count: int) -> float:
    """Bound the tail of a binomial number from ``count`` outwards: e^(-n KL), rounded up."""
    if count > number:
        return 0.0
    if number < 1 or chance >= 1:
        return 1.0
    share = count / number
    upper = 0.0
    if share > 0:
        upper = share * math.log(share / chance)
    lower = 0.0
    if share < 1:
        lower = (1 - share) * (math.log1p(-share) - math.log1p(-chance))
    return math.exp(min(0.0, -number * (upper + lower) * (1 - 1e-9) + 1e-4))
