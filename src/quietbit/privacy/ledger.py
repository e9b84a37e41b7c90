"""What was released, and what it amounts to.

Idea     a ledger holds releases under one unit, one adjacency and one trust model; it answers with a
         guarantee that carries all three. What composes is the number of releases of the same party.
Source   Guo et al. (ICML 2023), section "Rényi DP and composition"; `filter` for mechanisms chosen as one goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

from quietbit.errors import check_int, require
from quietbit.privacy.cost import Cost
from quietbit.privacy.filter import ORDERS, filter_epsilon_upper
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit

__all__ = ["Ledger"]


@final
@dataclass(frozen=True, slots=True)
class Ledger:
    """An immutable list of releases of one party; recording returns a new ledger.

    >>> release = Cost.pure(0.25).of(Adjacency.REPLACE_ONE, Unit.CLIENT, Trust.LOCAL)
    >>> ledger = Ledger(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL).record(release, times=4)
    >>> ledger.guarantee(0.0).epsilon_upper
    1.0
    """

    unit: Unit
    adjacency: Adjacency
    trust: Trust
    entries: tuple[tuple[Cost, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse words that are not ours."""
        require(isinstance(self.unit, Unit), "unit", self.unit, "a Unit")
        require(isinstance(self.adjacency, Adjacency), "adjacency", self.adjacency, "an Adjacency")
        require(isinstance(self.trust, Trust), "trust", self.trust, "a Trust")

    def record(self, release: Cost, times: int = 1) -> Ledger:
        """A ledger with ``times`` more releases, under the ledger's words.

        A release under other words is converted where its account covers them (`Cost.under`), else refused; so is a
        bare cost, which does not say what it bounds.
        """
        times = check_int(times, "times", 0)
        require(isinstance(release, Cost), "release", release, "a Cost with adjacency, unit and trust")
        release = release.under()  # a bare one is refused
        require(release.unit is self.unit, "unit of the release", release.unit, f"{self.unit.value}, the ledger's")
        return replace(
            self, entries=(*self.entries, (release.under(adjacency=self.adjacency, trust=self.trust), times))
        )

    def join(self, other: Ledger) -> Ledger:
        """Both ledgers' releases; unit, adjacency and trust must agree."""
        for name in ("unit", "adjacency", "trust"):
            mine, theirs = getattr(self, name), getattr(other, name)
            require(mine is theirs, f"{name} of the other ledger", theirs, f"{mine}, this ledger's")
        return replace(self, entries=(*self.entries, *other.entries))

    def total(self) -> Cost:
        """What all releases cost together."""
        return sum((release.bare() * times for release, times in self.entries), Cost())

    def guarantee(self, delta: float, *, adaptive: bool = True, orders: Iterable[float] = ORDERS) -> Guarantee:
        """The smallest epsilon proved at ``delta``, with the ledger's words.

        Args:
            delta: in [0, 1).
            adaptive: mechanisms, or the moment to stop, may have been chosen in the light of earlier releases: the safe
                assumption, and what a node must make that answers whatever servers ask. Say False where the list of
                mechanisms was fixed before the first release, as in a plan; inputs may depend on anything
                in either case. Then every account counts, the exact ones among them.
            orders: of the Rényi accounts under ``adaptive``, fixed before the first release.
        """
        whole = self.total()
        epsilon = filter_epsilon_upper(whole, delta, orders) if adaptive else whole.epsilon(delta)
        return Guarantee(epsilon, delta, self.unit, self.adjacency, self.trust)
