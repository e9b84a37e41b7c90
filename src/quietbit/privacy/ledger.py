"""What was released, and what it amounts to.

Idea     a ledger holds releases under one unit, one adjacency and one trust model; it answers with a
         guarantee that carries all three. What composes is the number of releases of the same party.
Source   Guo et al. (ICML 2023), section "Rényi DP and composition".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from quietbit._validate import require, whole_number
from quietbit.privacy.curve import PrivacyCurve, total
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit

__all__ = ["Ledger"]


@final
@dataclass(frozen=True, slots=True)
class Ledger:
    """An immutable list of releases of one party; recording returns a new ledger.

    >>> from quietbit.privacy.curve import PureCurve
    >>> ledger = Ledger(Unit.CLIENT, Adjacency.REPLACE_ONE, Trust.LOCAL).record(PureCurve(0.25), times=4)
    >>> ledger.guarantee(0.0).epsilon_upper
    1.0
    """

    unit: Unit
    adjacency: Adjacency
    trust: Trust
    entries: tuple[tuple[PrivacyCurve, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse words that are not ours."""
        require(isinstance(self.unit, Unit), "unit", self.unit, "a Unit")
        require(isinstance(self.adjacency, Adjacency), "adjacency", self.adjacency, "an Adjacency")
        require(isinstance(self.trust, Trust), "trust", self.trust, "a Trust")

    def record(self, curve: PrivacyCurve, times: int = 1, adjacency: Adjacency | None = None) -> Ledger:
        """A ledger with ``times`` more releases; an ``adjacency``, where given, must be the ledger's own."""
        times = whole_number(times, "times", 0)
        require(isinstance(curve, PrivacyCurve), "curve", curve, "a PrivacyCurve")
        rule = f"{self.adjacency}, the ledger's: costs of two adjacencies do not add up"
        require(adjacency is None or adjacency is self.adjacency, "adjacency", adjacency, rule)
        return replace(self, entries=(*self.entries, (curve, times)))

    def join(self, other: Ledger) -> Ledger:
        """Both ledgers' releases; unit, adjacency and trust must agree."""
        for name in ("unit", "adjacency", "trust"):
            mine, theirs = getattr(self, name), getattr(other, name)
            require(mine is theirs, f"{name} of the other ledger", theirs, f"{mine}, this ledger's")
        return replace(self, entries=(*self.entries, *other.entries))

    def total(self) -> PrivacyCurve:
        """The curve of all releases together."""
        return total(self.entries)

    def guarantee(self, delta: float) -> Guarantee:
        """The smallest epsilon proved at ``delta``, with the ledger's words."""
        return Guarantee(self.total().epsilon_upper(delta), delta, self.unit, self.adjacency, self.trust)
