"""When a ledger must stop: one cap on everything a node releases, valid whatever the server picks next.

Idea     a server picks its next mechanism after it has seen the last answer, so that the costs of a node's releases are
         themselves random. Sums of Rényi divergences at orders that were fixed beforehand may be held against a cap
         all the same, if the cap's delta was split over the orders beforehand, too. The ledger keeps one sum for
         each order. Nearly all of delta (`MAIN`) goes to the one order at which a curve that grows linearly reaches
         the cap, so that such curves pay less than 1 % of epsilon for the freedom to choose.
Symbols  alpha: an order of `ORDERS`; S(alpha): sum of the divergences of all releases; w(alpha): the share of delta
         that belongs to the order; LOST: the share that is set aside for outputs of lost mass
         (`Cost.with_lost`). All shares together are at most 1.
Source   docs/theory/filters.md, Theorem (the best of several accounts), with shares that a cap (epsilon, delta) fixes;
         Feldman and Zrnic (2021), Theorem 4.3, for one order.

Claim. A node that makes a release only if afterwards the lost mass is at most LOST delta, and S(alpha) converted at
w(alpha) delta is at most epsilon for some order of the list (or the sum of the pure epsilons is), is
(epsilon, delta)-private against a server that chooses mechanisms, moments and runs adaptively.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

import numpy as np

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.privacy.conversion import ROUNDING_MARGIN, round_up
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Adjacency, Trust, check_delta

__all__ = ["ORDERS", "Cap", "Price", "price_of"]

ORDERS = tuple(1.0 + 2.0 ** (place / 3) for place in range(-12, 37))  # fixed: ledgers keep one sum for each
MAIN, LOST = 0.97, 0.01
_ORDERS = np.array(ORDERS)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """What releases cost: a divergence for every order, pure epsilons (both may be infinite), and lost mass."""

    rdp: FloatVector
    pure: float
    lost: float = 0.0

    def __post_init__(self) -> None:
        """Refuse another number of orders, and numbers that are no costs (NaN among them)."""
        rdp = np.array(self.rdp, dtype=np.float64)
        require(rdp.shape == (len(ORDERS),), "orders of a price", rdp.shape, f"{len(ORDERS)}")
        require(bool((rdp >= 0).all()), "divergences of a price", "others", "at least 0")
        require(self.pure >= 0, "pure epsilon of a price", self.pure, "at least 0")
        require(self.lost >= 0, "lost mass of a price", self.lost, "at least 0")
        rdp.setflags(write=False)
        object.__setattr__(self, "rdp", rdp)
        object.__setattr__(self, "pure", float(self.pure))

    @classmethod
    def nothing(cls) -> Price:
        """What no release costs."""
        return cls(np.zeros(len(ORDERS)), 0.0)

    @classmethod
    def total(cls, parts: Iterable[tuple[Price, int]]) -> Price:
        """All releases together, rounded up."""
        rdp, pure, lost = np.zeros(len(ORDERS)), 0.0, 0.0
        for price, times in parts:
            times = check_int(times, "times", 0)
            if times:
                rdp = np.nextafter(rdp + np.nextafter(times * price.rdp, math.inf), math.inf)
                pure = round_up(pure + times * price.pure, 4e-16)
                lost = round_up(lost + times * price.lost, 4e-16)
        return cls(rdp, pure, lost)

    def at_least(self, epsilon: float) -> Price:
        """This price, or that of an epsilon-private release where that is more, order by order."""
        if epsilon == 0:
            return self
        floor = price_of(Cost.pure(epsilon))
        return Price(np.maximum(self.rdp, floor.rdp), max(self.pure, floor.pure), self.lost)


def price_of(cost: Cost) -> Price:
    """The price of releases of this cost."""
    return Price(np.array([cost.certified_rdp(order) for order in ORDERS]), cost.pure_epsilon(), cost.lost)


@final
@dataclass(frozen=True, slots=True)
class Cap:
    """At most ``epsilon`` at ``delta`` under ``adjacency`` for everything; ``owner`` names who says so.

    Under local ``trust`` every release counts as if the server saw it; under secure aggregation those that went into
    sums count as parts of sums.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    trust: Trust
    owner: str = "this node"
    shares: FloatVector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse numbers that are no cap, and split delta."""
        put = object.__setattr__
        put(self, "epsilon", check_real(self.epsilon, "epsilon of the cap"))
        put(self, "delta", check_delta(self.delta))
        require(isinstance(self.adjacency, Adjacency), "adjacency of the cap", self.adjacency, "an Adjacency")
        known = self.trust in (Trust.LOCAL, Trust.SECURE_AGGREGATION)
        require(known, "trust of the cap", self.trust, "local or secure aggregation")
        shares = np.full(len(ORDERS), (1 - MAIN - LOST) / len(ORDERS) * (1 - 1e-12))
        shares[_main_order(self.epsilon, self.delta)] = MAIN
        shares.setflags(write=False)
        put(self, "shares", shares)

    def epsilon_upper(self, spent: Price) -> float:
        """What is proved of these releases at the cap's delta: the smallest over the pure account and all orders.

        (1 - e^-x)_+ <= e^((alpha-1) x) (1 - 1/alpha)^(alpha-1) / alpha at every x: so converted, an account holds
        outcome by outcome, also for what is left of a law when outcomes of lost mass are taken away.
        """
        if self.delta == 0 or spent.lost > self.delta * LOST:
            return spent.pure  # which covers outputs of lost mass
        last = -(np.log(self.delta * self.shares) + np.log(_ORDERS)) / (_ORDERS - 1)
        terms = (spent.rdp, np.log1p(-1 / _ORDERS), last)
        bounds = sum(terms) + ROUNDING_MARGIN * sum(np.abs(term) for term in terms)
        return max(0.0, min(spent.pure, float(np.min(bounds))))

    def holds(self, spent: Price) -> bool:
        """Whether the releases are within the cap; a NaN is not."""
        return self.epsilon_upper(spent) <= self.epsilon


def _main_order(epsilon: float, delta: float) -> int:
    """The place of the order at which the line slope * alpha, steep enough to reach epsilon, is converted best.

    At the best order a z^2 + log(1 + z) = ell (`privacy.conversion`), and there the bound is
    a (1 + z) + log(z / (1 + z)) + (ell - log(1 + z)) / z: for every z of the list, take the a of the first and keep
    the z whose bound comes closest to epsilon.
    """
    ell = -math.log(delta * MAIN) if delta > 0 else math.inf
    best, place = math.inf, 0
    for number, order in enumerate(ORDERS):
        z = order - 1
        slope = (ell - math.log1p(z)) / (z * z)
        if not 0 < slope < math.inf:
            continue
        bound = slope * (1 + z) - math.log1p(1 / z) + (ell - math.log1p(z)) / z
        gap = abs(math.log(bound / epsilon)) if bound > 0 else math.inf
        if gap < best:
            best, place = gap, number
    return place
