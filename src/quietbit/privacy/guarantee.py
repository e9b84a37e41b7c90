"""The meaning of an epsilon: a guarantee with its unit, adjacency and trust.

Idea     a guarantee is (epsilon, delta) together with whose data it protects (unit), which two data
         sets are neighbours (adjacency) and who may observe (trust); none of the three has a
         default. A run may have two: the server sees who sent what, while an observer of the models
         alone does not know whose release was whose. Neither replaces the other, and where there is
         no second one the first holds for everybody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import final

from quietbit.errors import require
from quietbit.target import Adjacency, Trust, Unit, check_delta

__all__ = ["Guarantee", "check_terms", "rounded_up", "shown_epsilon"]

_NEIGHBOUR = {
    Adjacency.ZERO_OUT: "the neighbour's {what} is the zero vector",
    Adjacency.REPLACE_ONE: "the neighbour's {what} is any other in the same ball",
}
_WHAT = {Unit.CLIENT: "update", Unit.SAMPLE: "contribution"}
_TRUST = {
    Trust.LOCAL: "local trust: the server sees every payload",
    Trust.CENTRAL: "central trust: the server is trusted and what it publishes is covered",
    Trust.SECURE_AGGREGATION: (
        "secure-aggregation trust: the server sees only the sum of the payloads, "
        "and no input depends on bits drawn before"
    ),
    Trust.SHUFFLED: (
        "shuffled trust: the observer sees what came of the releases "
        "and not which client made which"
    ),
}


def check_terms(adjacency: Adjacency, unit: Unit, trust: Trust) -> None:
    """Refuse terms that are not members of their enums, such as bare strings."""
    require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
    require(isinstance(unit, Unit), "unit", unit, "a Unit")
    require(isinstance(trust, Trust), "trust", trust, "a Trust")


@final
@dataclass(frozen=True, slots=True)
class Guarantee:
    """(epsilon_upper, delta) with unit, adjacency and trust.

    >>> print(Guarantee(3.6151, 1e-5, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL).sentence())
    epsilon <= 3.616 at delta = 1e-05 for one client (zero-out adjacency: the neighbour's update \
is the zero vector), local trust: the server sees every payload.
    """

    epsilon_upper: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    trust: Trust

    def __post_init__(self) -> None:
        epsilon = self.epsilon_upper
        require(epsilon >= 0, "epsilon_upper", epsilon, "a number of at least 0")
        check_delta(self.delta)
        check_terms(self.adjacency, self.unit, self.trust)

    def sentence(self) -> str:
        """Return the guarantee in plain English.

        Epsilon is rounded up to four digits, delta to six.
        """
        epsilon = shown_epsilon(self.epsilon_upper)
        if not math.isfinite(self.epsilon_upper):
            epsilon += " (no guarantee)"
        delta = float(rounded_up(self.delta, 6))
        neighbour = _NEIGHBOUR[self.adjacency].format(what=_WHAT[self.unit])
        return (
            f"epsilon <= {epsilon} at delta = {delta:g} for one {self.unit.value} "
            f"({self.adjacency.value} adjacency: {neighbour}), {_TRUST[self.trust]}."
        )


def rounded_up(value: float, digits: int) -> Decimal:
    """Return ``value`` as a decimal of ``digits`` digits, rounded up, so it never reads as less."""
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))


def shown_epsilon(epsilon_upper: float) -> str:
    """Return an upper bound on epsilon as people read it: four digits, rounded up.

    >>> shown_epsilon(8.00001), shown_epsilon(8.0), shown_epsilon(float("inf"))
    ('8.001', '8', 'infinity')
    """
    if not math.isfinite(epsilon_upper):
        return "infinity"
    rounded = rounded_up(epsilon_upper, 4)
    if rounded > Decimal("1e-4") or not rounded:
        return f"{rounded.normalize():f}"
    return f"{rounded:e}"
