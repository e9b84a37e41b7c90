"""The cost of a release against observers who see all releases but not whose they are.

Idea     n clients release once each, in a uniform order that stays secret. The server, who knows the order, has the
         local guarantee; observers of the releases without it (or of anything computed from them) have this one. It is
         computed numerically for releases that are purely private, and several shuffles of one client compose.
Symbols  n = crowd; p = e^epsilon of one release: between any two updates (replace-one), or of one against zero
         (zero-out).
Source   Feldman, McMillan, Talwar (2021): clones; Balle, Bell, Gascón, Nissim (2019): blankets; Zhu, Dong,
         Wang (2022), Theorem 10: composition. docs/theory/shuffling.md has the proofs for all that is used here.

Assumptions: every client of the crowd makes at most one release per shuffle; the order is uniform over the crowd and
independent of data, of what is released and of who answers; the observers do not learn it; clients that tell them what
they sent, or when, are not counted. An update is a function of the client's data and of what is public by then, not of
what the client keeps from earlier shuffles: when it was asked, or what it sent.

Three blankets, the best of which is used at every epsilon:
    clones        B = (P + P')/2, share 1/p: U, V = 2 p/(p+1), 2/(p+1) or the reverse, with equal mass. Replace-one.
    through zero  B = law of the zero update, share 1/z, z = e^epsilon for zero-out: U and V in [1/z, z] with mean 1.
    its own       the mechanism's: `quietbit.mechanism.vector` has one.
A release that is private only at delta > 0 is refused: R >= g B does not follow from that, and no blanket of such a
mechanism is derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen

from quietbit._search import bisect
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.privacy.blanket import MOST_CROWD, Blanket
from quietbit.privacy.cost import Cost, Formula, LossPair
from quietbit.privacy.loss import LossDistribution
from quietbit.target import Adjacency

__all__ = ["BlanketPair", "Shuffle", "clones", "shuffled_cost", "through_zero"]

_UNIT = 2.0**-53
_NODES = 160  # at which delta is computed for compositions
_LEAST_DELTA = 1e-20  # smallest delta of these points
_CLOSE = 1e-9  # relative accuracy of the epsilon found
MOST_EPSILON = 30.0  # of one release: beyond, a crowd of 10^9 hides nothing


@final
@dataclass(frozen=True, slots=True)
class BlanketPair:
    """A blanket for the party's data against the neighbour's, and one for the reverse."""

    forward: Blanket
    backward: Blanket

    def delta_upper(self, crowd: int, epsilon: float) -> float:
        """Return the larger delta of the two directions."""
        found = self.forward.delta_upper(crowd, epsilon)
        return found if self.backward == self.forward else max(found, self.backward.delta_upper(crowd, epsilon))


def clones(epsilon: float) -> BlanketPair:
    """Return the blanket for releases that are epsilon-private between any two updates, and replace-one neighbours."""
    epsilon = _pure(epsilon)
    high, low = 2 / (1 + math.exp(-epsilon)) * (1 + 4 * _UNIT), 2 / (1 + math.exp(epsilon)) * (1 - 4 * _UNIT)
    one = Blanket(_share(epsilon), (0.5, 0.5, 0.0), (high, low, 1.0), (low, high, 1.0))
    return BlanketPair(one, one)


def through_zero(epsilon: float, adjacency: Adjacency) -> BlanketPair:
    """Return the blanket for releases that are epsilon-private against the zero update."""
    epsilon = _pure(epsilon)
    high, low = math.exp(epsilon) * (1 + 4 * _UNIT), math.exp(-epsilon) * (1 - 4 * _UNIT)
    share, rare = _share(epsilon), 1 / (1 + math.exp(epsilon))
    if adjacency is Adjacency.REPLACE_ONE:
        rare_up, rare_down = rare * (1 + 4 * _UNIT), rare * (1 - 4 * _UNIT)
        masses = rare_up, rare_down, 1 - rare_up - rare_down
        one = Blanket(share, masses, (high, low, low), (low, high, low))
        return BlanketPair(one, one)
    rare_up, often_up = rare * (1 + 4 * _UNIT), (1 - rare) * (1 + 4 * _UNIT)
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
    """Return the cost of one release among ``crowd`` whose order stays secret.

    Args:
        adjacency: which two data sets are neighbours.
        crowd: how many clients release in the shuffle, this one included, without those who would tell.
        replace_one: the cost of the release between any two updates: the other clients' may be any.
        zero_out: its cost against the zero update.
        own: the mechanism's own blankets for this adjacency, where it has any.

    Releases that are private only at delta > 0 are refused.
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
    found = [own] if own is not None else []
    found.append(through_zero(near, adjacency))
    if adjacency is Adjacency.REPLACE_ONE:
        found.append(clones(far))
    return Shuffle(crowd, local, tuple(found)).cost()


def _pure(epsilon: float) -> float:
    return check_real(epsilon, "epsilon of one release", at_most=MOST_EPSILON)


def _share(epsilon: float) -> float:
    return math.exp(-epsilon) * (1 - 4 * _UNIT)


@lru_cache(maxsize=256)
def _epsilon(delta: float, shuffle: Shuffle) -> float:
    """Return the least epsilon at which delta is proved, up to a part in 10^9."""

    def holds(epsilon: float) -> bool:
        return shuffle.delta_upper(epsilon) <= delta

    if holds(0.0):
        return 0.0
    high = low = shuffle.local
    while holds(low):
        high, low = low, low / 4
    return bisect(holds, high, low, relative=_CLOSE)


@lru_cache(maxsize=64)
def _losses(shuffle: Shuffle) -> LossPair:
    """Return a pair whose delta connects points of the shuffle's; it dominates a whole shuffle, both ways round.

    Points lie where compositions need them: up to where delta vanishes, or reaches a sampler's error.
    """
    left = 2 * shuffle.delta_upper(math.nextafter(shuffle.local, 0.0))
    last = _epsilon(max(_LEAST_DELTA, left), shuffle)
    nodes = np.unique(np.append(np.linspace(0.0, last, _NODES), shuffle.local))
    one = LossDistribution.from_profile(nodes, [shuffle.delta_upper(float(node)) for node in nodes], symmetric=True)
    return one, one


def _divergence(alpha: float, shuffle: Shuffle) -> float:
    """Return the pair's Rényi divergence, or the one that the local epsilon implies."""
    return min(Cost.pure(shuffle.local).rdp(alpha), _losses(shuffle)[0].rdp_upper(alpha))
