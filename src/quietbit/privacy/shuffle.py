"""The cost of a release against observers who see all releases but not whose they are.

Idea     n clients release once each, in a uniform order that stays secret. Whatever another client
         holds, with some probability it sends a draw from one fixed law, the blanket, and a
         client's own release hides among those: delta is the positive part of a sum of n
         independent numbers. The server, who knows the order, has the local guarantee; observers of
         the releases without it, or of anything computed from them, have this one.
Symbols  n = crowd; P, P': laws of the client's release and its neighbour's; B: blanket; g = share,
         with R >= g B for the law R of every other client's release; U = dP/dB, V = dP'/dB under B;
         a = e^epsilon, X = U - a V. H_a(order secret) <= E(B_1 X_1 + ... + B_n X_n)_+ / (n g),  B_i
         = 1 with probability g, else 0, independent.
Source   Balle, Bell, Gascón, Nissim (2019): blankets; Feldman, McMillan, Talwar (2021): clones.
         Proofs, with all assumptions: docs/theory/shuffling.md.

Assumptions: each client of the crowd makes at most one release per shuffle; the order is uniform,
and independent of data, of what is released and of who answers; the observers do not learn it;
clients that would tell are not counted; an update depends on no secret of earlier shuffles.
Releases that are private only at delta > 0 are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray
from scipy.special import gammaln

from quietbit._search import bisect
from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.privacy.cost import Cost, Formula, LossPair
from quietbit.privacy.loss import LossDistribution
from quietbit.target import Adjacency

__all__ = ["Blanket", "BlanketPair", "Shuffle", "clones", "shuffled_cost", "through_zero"]

MOST_CROWD = 10**9
_UNIT = 2.0**-53
_REACH = 10.5  # half a window: standard deviations, plus a constant
_MORE = 20
_FINE = 16  # rows per standard deviation
_COARSE = 1e-4  # or rows of this share of C, if more
_STEPS = 4  # ranges of N_3 per standard deviation; where that is large, of all of it but this
_FEW = 32
_SUM_MARGIN = 1e-11  # relative error of sums of positive numbers
_NODES = 160  # at which delta is computed for compositions
_LEAST_DELTA = 1e-20  # smallest delta of these points
_CLOSE = 1e-9  # relative accuracy of the epsilon found
MOST_EPSILON = 30.0  # of one release: beyond, a crowd of 10^9 hides nothing


@final
@dataclass(frozen=True, slots=True)
class Blanket:
    """A lower bound on every other client's law, and two neighbours' densities against it.

    Outcome by outcome ``masses`` are those of the blanket, ``first`` bounds U from above and
    ``second`` V from below. Only the first outcome may have U > V. Where densities hold up to a
    factor e^(+-``slack``), delta is e^slack times that at epsilon - 2 slack; ``error`` bounds the
    error of a sampler's means: delta grows by (2 + a) of it.

    >>> response = Blanket(0.25, (0.5, 0.5, 0.0), (1.6, 0.4, 1.0), (0.4, 1.6, 1.0))
    >>> response.delta_upper(1000, 0.5) < 1e-3 < response.delta_upper(10, 0.5)
    True
    """

    share: float
    masses: tuple[float, float, float]
    first: tuple[float, float, float]
    second: tuple[float, float, float]
    slack: float = 0.0
    error: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "share", self.share, "above 0 and at most 1")
        require(
            len(self.masses) == len(self.first) == len(self.second) == 3,
            "masses",
            self.masses,
            "three numbers",
        )
        whole = math.fsum(self.masses)
        fine = (
            all(mass >= 0 for mass in self.masses)
            and self.masses[0] > 0
            and abs(whole - 1) <= 1e-12
        )
        require(fine, "masses", self.masses, "at least 0, the first positive, and 1 together")
        known = all(0 <= value < math.inf for value in (*self.first, *self.second))
        require(known, "densities", (self.first, self.second), "finite and at least 0")
        later = all(u <= v for u, v in zip(self.first[1:], self.second[1:], strict=True))
        require(
            later, "densities", (self.first, self.second), "U <= V in the second and third outcome"
        )
        require(0 <= self.slack <= 0.01, "slack", self.slack, "at least 0 and at most 0.01")
        require(0 <= self.error < 1, "error", self.error, "at least 0 and below 1")

    def delta_upper(self, crowd: int, epsilon: float) -> float:
        """Return an upper bound on delta at ``epsilon >= 0``, for one release among ``crowd``."""
        crowd = check_int(crowd, "crowd", 1, MOST_CROWD)
        require(0 <= epsilon < math.inf, "epsilon", epsilon, "a finite number of at least 0")
        inner = max(0.0, epsilon - 2 * self.slack)
        short = max(0.0, 2 * self.slack - epsilon)
        growth = math.exp(min(inner, 700.0)) * (1 - 4 * _UNIT)
        lost = self.error * (2 + math.exp(min(epsilon, 700.0)))
        # Below a = 1 the sum grows by at most (1 - a) E V.
        lost += (
            short
            * math.fsum(mass * v for mass, v in zip(self.masses, self.second, strict=True))
            * (1 + 1e-12)
        )
        pairs = zip(self.first, self.second, strict=True)
        up, down, middle = (u - growth * v + 4 * _UNIT * (u + growth * v) for u, v in pairs)
        found = 0.0
        if up > 0:
            table = _table(crowd, self.share, self.masses)
            found = table.excess_upper(up, min(down, 0.0), min(middle, 0.0)) / (crowd * self.share)
        return min(1.0, math.exp(self.slack) * (found + lost) * (1 + 16 * _UNIT))


@final
@dataclass(frozen=True, slots=True)
class BlanketPair:
    """A blanket for the party's data against the neighbour's, and one for the reverse."""

    forward: Blanket
    backward: Blanket

    def delta_upper(self, crowd: int, epsilon: float) -> float:
        """Return the larger delta of the two directions."""
        found = self.forward.delta_upper(crowd, epsilon)
        if self.backward == self.forward:
            return found
        return max(found, self.backward.delta_upper(crowd, epsilon))


def clones(epsilon: float) -> BlanketPair:
    """Return the blanket for releases that are epsilon-private between any two updates, and replace-one neighbours."""
    share = _share(epsilon)
    high = 2 / (1 + math.exp(-epsilon)) * (1 + 4 * _UNIT)
    low = 2 / (1 + math.exp(epsilon)) * (1 - 4 * _UNIT)
    one = Blanket(share, (0.5, 0.5, 0.0), (high, low, 1.0), (low, high, 1.0))
    return BlanketPair(one, one)


def through_zero(epsilon: float, adjacency: Adjacency) -> BlanketPair:
    """Return the blanket for releases that are epsilon-private against the zero update."""
    share = low = _share(epsilon)
    high = math.exp(epsilon) * (1 + 4 * _UNIT)
    rare = 1 / (1 + math.exp(epsilon))
    if adjacency is Adjacency.REPLACE_ONE:
        rare_up = rare * (1 + 4 * _UNIT)
        rare_down = rare * (1 - 4 * _UNIT)
        masses = rare_up, rare_down, 1 - rare_up - rare_down
        one = Blanket(share, masses, (high, low, low), (low, high, low))
        return BlanketPair(one, one)
    rare_up = rare * (1 + 4 * _UNIT)
    often_up = (1 - rare) * (1 + 4 * _UNIT)
    forward = Blanket(share, (rare_up, 1 - rare_up, 0.0), (high, low, 1.0), (1.0, 1.0, 1.0))
    backward = Blanket(share, (often_up, 1 - often_up, 0.0), (1.0, 1.0, 1.0), (low, high, 1.0))
    return BlanketPair(forward, backward)


@final
@frozen
class Shuffle:
    """One release among ``crowd`` in a secret order, of local epsilon ``local``; made by `shuffled_cost`.

    >>> cost = Shuffle(60_000, 2.0, (clones(2.0),)).cost()
    >>> round(cost.epsilon(1e-6), 4), round((cost * 10).epsilon(1e-6), 4)
    (0.0593, 0.2034)
    """

    crowd: int
    local: float
    blankets: tuple[BlanketPair, ...] = field(repr=False)

    def delta_upper(self, epsilon: float) -> float:
        """Return the least delta proved at ``epsilon``, in either direction; 0 from the local epsilon on."""
        if epsilon >= self.local:
            return 0.0
        return min(one.delta_upper(self.crowd, epsilon) for one in self.blankets)

    def cost(self) -> Cost:
        """Return the cost of the release; at delta = 0 a crowd hides nothing, and the local epsilon applies."""
        divergence, losses, alone = (Formula(one, self) for one in (_divergence, _losses, _epsilon))
        return Cost.renyi(divergence, f"one of {self.crowd}", self.local, losses, alone)


def shuffled_cost(
    adjacency: Adjacency,
    crowd: int,
    *,
    replace_one: Cost,
    zero_out: Cost,
    own: BlanketPair | None = None,
) -> Cost:
    """Return the cost of one release among ``crowd`` clients, without those who would tell, in a secret order.

    ``replace_one`` is the cost of the release between any two updates, since the other clients' may
    be any; ``zero_out`` that against the zero update; ``own``: the mechanism's own blankets for
    this adjacency, where it has any. Releases that are private only at delta > 0 are refused.
    """
    require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
    crowd = check_int(crowd, "crowd", 1, MOST_CROWD)
    far = replace_one.pure_epsilon()
    near = min(far, zero_out.pure_epsilon())  # zero is one of the updates
    if not far < math.inf:
        raise InvalidParameter(
            "Only releases that are private at delta = 0 have a bound in a crowd here: what others send hides one of "
            "them if every output of it is likely enough for them too, and (epsilon, delta) does not promise that."
        )
    local = far if adjacency is Adjacency.REPLACE_ONE else near
    if local == 0 or local > MOST_EPSILON:
        return Cost.pure(local)
    if own is not None:
        found = [own]
    else:
        found = []
    found.append(through_zero(near, adjacency))
    if adjacency is Adjacency.REPLACE_ONE:
        found.append(clones(far))
    return Shuffle(crowd, local, tuple(found)).cost()


def _share(epsilon: float) -> float:
    return math.exp(-check_real(epsilon, "epsilon of one release", at_most=MOST_EPSILON)) * (
        1 - 4 * _UNIT
    )


@lru_cache(maxsize=256)
def _epsilon(delta: float, shuffle: Shuffle) -> float:
    """Return the least epsilon at which delta is proved, up to a part in 10^9."""

    def holds(epsilon: float) -> bool:
        return shuffle.delta_upper(epsilon) <= delta

    if holds(0.0):
        return 0.0
    high = low = shuffle.local
    while holds(low):
        high = low
        low = low / 4
    return bisect(holds, high, low, relative=_CLOSE)


@lru_cache(maxsize=64)
def _losses(shuffle: Shuffle) -> LossPair:
    """Return a pair that connects points of the shuffle's delta, where compositions need them, and dominates it."""
    left = 2 * shuffle.delta_upper(math.nextafter(shuffle.local, 0.0))
    last = _epsilon(max(_LEAST_DELTA, left), shuffle)
    nodes = np.unique(np.append(np.linspace(0.0, last, _NODES), shuffle.local))
    one = LossDistribution.from_profile(
        nodes, [shuffle.delta_upper(float(node)) for node in nodes], symmetric=True
    )
    return one, one


def _divergence(alpha: float, shuffle: Shuffle) -> float:
    """Return the pair's Rényi divergence, or the one that the local epsilon implies."""
    return min(Cost.pure(shuffle.local).rdp(alpha), _losses(shuffle)[0].rdp_upper(alpha))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The parts of the sum that do not depend on a (the page's "The sum"): rows of C, E(N_1 - k)_+, ranges of N_3."""

    tops: NDArray[np.int64]  # the largest C of every row
    spans: NDArray[np.int64]  # how far below it the smallest is
    weights: FloatVector  # the probability of every row
    starts: NDArray[np.int64]  # the first k of its table
    beyond: NDArray[np.float64]  # E(N_1 - k)_+ for k = start, start + 1, ...
    tails: FloatVector  # the mass that the table leaves out
    below: float  # E[C; C below all rows]
    above: float  # E[C; C above all rows]
    chance: float  # of the first outcome among the first two
    floors: NDArray[np.int64]  # the smallest N_3 of every range
    shares: FloatVector  # and its probability
    margin: float

    def excess_upper(self, up: float, down: float, middle: float) -> float:
        """Return an upper bound on E(N_1 up + N_2 down + N_3 middle)_+, up > 0 >= down, middle."""
        width = up - down
        mean = self.chance * up + (1 - self.chance) * down
        fall = max(0.0, -mean) * (1 + 1e-12)
        parts = -(self.tops * down)[:, None] - self.floors * middle, (fall * self.spans)[:, None]
        theta = np.maximum((parts[0] - parts[1] - 16 * _UNIT * (parts[0] + parts[1])) / width, 0.0)
        place = theta - self.starts[:, None]
        short = np.maximum(
            -place, 0.0
        )  # below its table E(N_1 - theta)_+ grows by at most 1 for each step
        last = self.beyond.shape[1] - 1
        place = np.clip(place, 0.0, float(last))
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, last)
        part = place - low
        rows = np.arange(self.tops.size)[:, None]
        found = (
            (1 - part) * self.beyond[rows, low]
            + part * self.beyond[rows, high]
            + short
            + self.tails[:, None]
        )
        whole = width * float(np.sum(self.weights * (found @ self.shares)))
        return (whole + up * (self.below + self.above)) * (1 + self.margin)


@lru_cache(maxsize=8)
def _table(crowd: int, share: float, masses: tuple[float, float, float]) -> _Table:
    both = masses[0] + masses[1]
    rate = min(1.0, share * both)
    chance = masses[0] / both
    low, high = _window(crowd, rate)
    spread = math.sqrt(crowd * rate * (1 - rate))
    step = max(1, math.floor(spread / _FINE), math.floor(_COARSE * crowd * rate))
    pmf = _pmf(crowd, rate, np.arange(low, high + 1))
    begins = np.arange(0, pmf.size, step)
    tops = np.minimum(low + begins + step - 1, high)
    spans = tops - (low + begins)
    weights = np.add.reduceat(pmf, begins)
    if low and rate < 1:
        below = low * _chernoff(crowd, rate, low - 1)
    else:
        below = 0.0
    if high < crowd:
        above = crowd * rate * _chernoff(crowd - 1, rate, high)
    else:
        above = 0.0

    ends = [_window(int(top), chance) for top in tops]
    starts = np.array([start for start, _ in ends], dtype=np.int64)
    most = max(end - start for start, end in ends) + 1
    places = starts[:, None] + np.arange(most + 1)  # one more, beyond which nothing is left
    inside = places <= np.minimum(np.array([end for _, end in ends]), tops)[:, None]
    beyond = np.where(inside, _pmf(tops[:, None], chance, np.minimum(places, tops[:, None])), 0.0)
    for _ in range(2):  # P(N_1 >= k), then the sum of those above k: E(N_1 - k)_+
        beyond = np.cumsum(beyond[:, ::-1], axis=1)[:, ::-1]
    beyond = np.concatenate([beyond[:, 1:], np.zeros((tops.size, 1))], axis=1)
    pairs = [(int(top), end) for top, (_, end) in zip(tops, ends, strict=True)]
    tails = np.array(
        [top * chance * _chernoff(top - 1, chance, end) if end < top else 0.0 for top, end in pairs]
    )
    floors, shares = _ranges(crowd - high, min(1.0, share * masses[2] / max(1 - rate, _UNIT)))
    # A log-probability errs by a few units of the largest term, which is that of the crowd's
    # factorial.
    margin = 3 * 64 * _UNIT * (float(gammaln(crowd + 1.0)) + crowd) + _SUM_MARGIN
    return _Table(
        tops, spans, weights, starts, beyond, tails, below, above, chance, floors, shares, margin
    )


def _ranges(number: int, chance: float) -> tuple[NDArray[np.int64], FloatVector]:
    """Return ranges of a binomial number as (smallest, probability); what lies below the window counts as 0."""
    if number < 1 or chance <= 0:
        return np.zeros(1, dtype=np.int64), np.ones(1)
    low, high = _window(number, chance)
    spread = math.sqrt(number * chance * (1 - chance))
    step = max(1, math.floor(spread / _STEPS), math.floor(spread) - _FEW)
    pmf = _pmf(number, chance, np.arange(low, high + 1))
    begins = np.arange(0, pmf.size, step)
    shares = np.add.reduceat(pmf, begins)
    if low and chance < 1:
        outside = _chernoff(number, chance, low - 1)
    else:
        outside = 0.0
    outside += _chernoff(number, chance, high + 1)
    return np.concatenate([[0], low + begins]), np.concatenate([[outside], shares])


def _window(number: int, chance: float) -> tuple[int, int]:
    """Return a window that contains nearly all of a binomial number."""
    mean = number * chance
    reach = _REACH * math.sqrt(mean * (1 - chance)) + _MORE
    return max(0, math.floor(mean - reach)), min(number, math.ceil(mean + reach))


def _pmf(number: NDArray[np.int64] | int, chance: float, counts: NDArray[np.int64]) -> FloatVector:
    """Return binomial probabilities, to the relative error that `_table` adds as its margin."""
    if chance >= 1:
        return np.where(counts == number, 1.0, 0.0)
    trials = np.asarray(number, dtype=np.float64)
    hits = np.asarray(counts, dtype=np.float64)
    choose = gammaln(trials + 1) - gammaln(hits + 1) - gammaln(trials - hits + 1)
    with np.errstate(under="ignore"):
        found: FloatVector = np.exp(
            choose + hits * math.log(chance) + (trials - hits) * math.log1p(-chance)
        )
    return found


def _chernoff(number: int, chance: float, count: int) -> float:
    """Return e^(-n KL(count/n, chance)), rounded up: the tail of a binomial number from ``count`` outwards."""
    if count > number:
        return 0.0
    if number < 1 or chance >= 1:
        return 1.0
    share = count / number
    if share > 0:
        upper = share * math.log(share / chance)
    else:
        upper = 0.0
    if share < 1:
        lower = (1 - share) * (math.log1p(-share) - math.log1p(-chance))
    else:
        lower = 0.0
    return math.exp(min(0.0, -number * (upper + lower) * (1 - 1e-9) + 1e-4))
