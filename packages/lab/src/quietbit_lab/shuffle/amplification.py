"""The cost of a release against observers who see all releases but not whose they are.

Idea     n clients release once each, in a uniform order that stays secret. Whatever another client
         holds, with some probability it sends a draw from one fixed law, the blanket, and a
         client's own release hides among those (`blanket`). The server, who knows the order, has
         the local guarantee; observers of the releases without it, or of anything computed from
         them, have this one.
Symbols  n = crowd; local: epsilon of one release against an observer who knows whose it is.
Source   Balle, Bell, Gascón, Nissim (2019): blankets; Feldman, McMillan, Talwar (2021): clones.
         Proofs, with all assumptions: docs/theory/shuffling.md.

Assumptions: each client of the crowd makes at most one release per shuffle; the order is uniform,
and independent of data, of what is released and of who answers; the observers do not learn it;
clients that would tell are not counted; an update depends on no secret of earlier shuffles.
Releases that are private only at delta > 0 are refused.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen

from quietbit._search import bisect
from quietbit.errors import check_int, check_real, require
from quietbit.privacy.cost import Cost
from quietbit.privacy.loss import LossDistribution
from quietbit.privacy.release import Formula, LossPair, Pair, Pure, Single
from quietbit.privacy.rounding import UNIT
from quietbit.target import Adjacency
from quietbit_lab.shuffle.blanket import MOST_CROWD, Blanket, BlanketPair

__all__ = ["Shuffle", "clones", "shuffled_cost", "through_zero"]

MOST_EPSILON = 30.0  # of one release: beyond, a crowd of 10^9 hides nothing
_NODES = 160  # at which delta is computed for compositions
_LEAST_DELTA = 1e-20  # smallest delta of these points
_CLOSE = 1e-9  # relative accuracy of the epsilon found
_LARGER = 1 + 4 * UNIT
_SMALLER = 1 - 4 * UNIT


def clones(epsilon: float) -> BlanketPair:
    """Return the blanket of releases that are epsilon-private between any two updates.

    Neighbours are those of replace-one adjacency.
    """
    share = _share(epsilon)
    high = 2 / (1 + math.exp(-epsilon)) * _LARGER
    low = 2 / (1 + math.exp(epsilon)) * _SMALLER
    blanket = Blanket(share, (0.5, 0.5, 0.0), (high, low, 1.0), (low, high, 1.0))
    return BlanketPair(blanket, blanket)


def through_zero(epsilon: float, adjacency: Adjacency) -> BlanketPair:
    """Return the blanket for releases that are epsilon-private against the zero update."""
    low = _share(epsilon)
    high = math.exp(epsilon) * _LARGER
    rare = 1 / (1 + math.exp(epsilon))
    rare_up = rare * _LARGER
    if adjacency is Adjacency.REPLACE_ONE:
        rare_down = rare * _SMALLER
        masses = (rare_up, rare_down, 1 - rare_up - rare_down)
        blanket = Blanket(low, masses, (high, low, low), (low, high, low))
        return BlanketPair(blanket, blanket)
    often_up = (1 - rare) * _LARGER
    ones = (1.0, 1.0, 1.0)
    forward = Blanket(low, (rare_up, 1 - rare_up, 0.0), (high, low, 1.0), ones)
    backward = Blanket(low, (often_up, 1 - often_up, 0.0), ones, (low, high, 1.0))
    return BlanketPair(forward, backward)


def _share(epsilon: float) -> float:
    """Return e^-epsilon, rounded down: the share of a blanket in every client's law."""
    epsilon = check_real(epsilon, "epsilon of one release", at_most=MOST_EPSILON)
    return math.exp(-epsilon) * _SMALLER


@final
@frozen
class Shuffle:
    """One release among ``crowd`` in a secret order; made by `shuffled_cost`.

    >>> cost = Shuffle(60_000, 2.0, (clones(2.0),)).cost()
    >>> round(cost.epsilon(1e-6), 4), round((cost * 10).epsilon(1e-6), 4)
    (0.0593, 0.2034)
    """

    crowd: int
    local: float
    blankets: tuple[BlanketPair, ...] = field(repr=False)

    def delta_upper(self, epsilon: float) -> float:
        """Return the least delta proved at ``epsilon``; 0 from the local epsilon on."""
        if epsilon >= self.local:
            return 0.0
        return min(blanket.delta_upper(self.crowd, epsilon) for blanket in self.blankets)

    def cost(self) -> Cost:
        """Return the cost of the release; at delta = 0 the local epsilon applies."""
        pair = LossPair(Formula(_losses, self), self.local)
        return Cost.proved(Pure(self.local), pair, Single(Formula(_epsilon, self)))


def shuffled_cost(
    adjacency: Adjacency,
    crowd: int,
    *,
    replace_one: Cost,
    zero_out: Cost,
    own: BlanketPair | None = None,
) -> Cost:
    """Return the cost of one release among ``crowd`` clients in a secret order.

    Args:
        adjacency: which two updates are neighbours.
        crowd: clients that release, without those who would tell which release is theirs.
        replace_one: the cost of the release between any two updates, since the other clients' may
            be any. Releases that are private only at delta > 0 are refused.
        zero_out: its cost against the zero update.
        own: the mechanism's blankets for this adjacency, where it has any.
    """
    adjacency = Adjacency(adjacency)
    crowd = check_int(crowd, "crowd", 1, MOST_CROWD)
    between_any = replace_one.pure_epsilon()
    rule = "finite for a secret order to hide a client"
    remedy = "use a mechanism that is private at delta = 0"
    require(between_any < math.inf, "epsilon at delta = 0", between_any, rule, remedy)
    against_zero = min(between_any, zero_out.pure_epsilon())  # zero is one of the updates
    local = against_zero if adjacency is Adjacency.ZERO_OUT else between_any
    if local == 0 or local > MOST_EPSILON:
        return Cost.pure(local)
    blankets = [through_zero(against_zero, adjacency)]
    if own is not None:
        blankets.insert(0, own)
    if adjacency is Adjacency.REPLACE_ONE:
        blankets.append(clones(between_any))
    return Shuffle(crowd, local, tuple(blankets)).cost()


@lru_cache(maxsize=256)
def _epsilon(delta: float, shuffle: Shuffle) -> float:
    """Return the least epsilon at which delta is proved, up to a part in 10^9."""

    def proved(epsilon: float) -> bool:
        return shuffle.delta_upper(epsilon) <= delta

    if proved(0.0):
        return 0.0
    high = shuffle.local
    low = shuffle.local
    while proved(low):
        high = low
        low = low / 4
    return bisect(proved, high, low, relative=_CLOSE)


@lru_cache(maxsize=64)
def _losses(shuffle: Shuffle) -> Pair:
    """Return a pair that dominates the shuffle: it connects points of its delta."""
    least = 2 * shuffle.delta_upper(math.nextafter(shuffle.local, 0.0))
    last = _epsilon(max(_LEAST_DELTA, least), shuffle)
    nodes = np.unique(np.append(np.linspace(0.0, last, _NODES), shuffle.local))
    deltas = [shuffle.delta_upper(node) for node in nodes.tolist()]
    losses = LossDistribution.from_profile(nodes, deltas, symmetric=True)
    return losses, losses
