"""When a ledger must stop: one cap on everything a node releases, valid whatever the server picks next.

Idea     a server picks its next mechanism after it has seen the last answer, so that the costs of a node's releases are
         themselves random. A sum of Rényi divergences at one order, fixed beforehand, may be held against a cap all
         the same (the Rényi filter). To use several orders, the cap's delta is split over them, also beforehand.
Symbols  alpha: an order of `ORDERS`; z = alpha - 1; S(alpha): sum of the divergences of all releases; w(alpha): the
         share of delta that belongs to the order, all shares together at most 1; c(z, delta): the conversion's term.
Source   Feldman and Zrnic (NeurIPS 2021), Theorem 4.3, for one order; Lécuyer (2021).

Claim. A node that makes a release only if afterwards S(alpha) + c(alpha, w(alpha) delta) <= epsilon for some order of
the list, or the sum of the pure epsilons is at most epsilon, is (epsilon, delta)-private against a server that
chooses mechanisms, moments and runs adaptively.

Proof. Sort the transcripts by the first order that holds at their end (or "pure"). Sums only grow, so a transcript of
class alpha has kept S(alpha) <= B(alpha) = epsilon - c(alpha, w delta) at every prefix: it is equally likely under the
node that stops as soon as S(alpha) would exceed B(alpha), which the filter for one order makes (alpha, B(alpha))-RDP
and hence (epsilon, w(alpha) delta)-private. So P(O and class alpha) <= e^epsilon Q(O and class alpha) + w(alpha) delta;
in the pure class the same holds without a delta, transcript by transcript. Add up over the classes. []

Nearly all of delta (`MAIN`) goes to the one order at which a curve that grows linearly reaches the cap: the split and
the list together cost such curves at most 0.6 % of epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

import numpy as np

from quietbit._typing import FloatVector
from quietbit._validate import finite_real, require, whole_number
from quietbit.privacy.conversion import epsilon_from_rdp, round_up
from quietbit.privacy.curve import PrivacyCurve, PureCurve
from quietbit.privacy.guarantee import Adjacency, Trust, check_delta

__all__ = ["ORDERS", "Cap", "Price", "price_of"]

ORDERS = tuple(1.0 + 2.0 ** (place / 3) for place in range(-12, 37))  # fixed: ledgers keep one sum for each
MAIN = 0.98


@final
@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """What releases cost: a divergence for every order, and the sum of their pure epsilons (which may be infinite)."""

    rdp: FloatVector
    pure: float

    def __post_init__(self) -> None:
        """Refuse another number of orders, and numbers that are no costs (NaN among them)."""
        rdp = np.array(self.rdp, dtype=np.float64)
        require(rdp.shape == (len(ORDERS),), "orders of a price", rdp.shape, f"{len(ORDERS)}")
        require(bool((rdp >= 0).all()), "divergences of a price", "others", "at least 0")
        require(self.pure >= 0, "pure epsilon of a price", self.pure, "at least 0")
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
        rdp, pure = np.zeros(len(ORDERS)), 0.0
        for price, times in parts:
            times = whole_number(times, "times", 0)
            if times:
                rdp = np.nextafter(rdp + np.nextafter(times * price.rdp, math.inf), math.inf)
                pure = round_up(pure + times * price.pure, 4e-16)
        return cls(rdp, pure)

    def at_least(self, epsilon: float) -> Price:
        """This price, or that of an epsilon-private release where that is more, order by order."""
        if epsilon == 0:
            return self
        floor = price_of(PureCurve(epsilon))
        return Price(np.maximum(self.rdp, floor.rdp), max(self.pure, floor.pure))


def price_of(curve: PrivacyCurve) -> Price:
    """The price of one release of this curve."""
    return Price(np.array([curve.rdp(order) for order in ORDERS]), curve.pure_epsilon_upper())


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
    shares: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse numbers that are no cap, and split delta."""
        put = object.__setattr__
        put(self, "epsilon", finite_real(self.epsilon, "epsilon of the cap"))
        put(self, "delta", check_delta(self.delta))
        require(isinstance(self.adjacency, Adjacency), "adjacency of the cap", self.adjacency, "an Adjacency")
        known = self.trust in (Trust.LOCAL, Trust.SECURE_AGGREGATION)
        require(known, "trust of the cap", self.trust, "local or secure aggregation")
        main, rest = _main_order(self.epsilon, self.delta), (1 - MAIN) / len(ORDERS)
        put(self, "shares", tuple(MAIN if place == main else rest for place in range(len(ORDERS))))

    def epsilon_upper(self, spent: Price) -> float:
        """What is proved of these releases at the cap's delta: the smallest over the pure account and all orders."""
        if self.delta == 0:
            return spent.pure
        found = [
            epsilon_from_rdp(lambda _, rho=rho: rho, self.delta * share, [order])  # type: ignore[misc]
            for order, rho, share in zip(ORDERS, spent.rdp.tolist(), self.shares, strict=True)
        ]
        return min(spent.pure, *found)

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
