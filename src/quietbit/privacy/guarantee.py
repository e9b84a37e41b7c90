"""What an epsilon means: the words without which the number says nothing.

Idea     a guarantee is (epsilon, delta) together with whose data it protects (unit), what the neighbouring
         world is (adjacency) and who may look (trust); none of the three has a default.
Symbols  epsilon_upper, delta: as in `quietbit.target`, which has the words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import final

from quietbit.errors import check_real, require
from quietbit.target import Adjacency, Trust, Unit, check_delta

__all__ = ["Adjacency", "Guarantee", "Trust", "Unit", "check_delta", "sensitivity"]


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
    Trust.SHUFFLED: "shuffled trust: the observer sees what came of the releases and not which client made which",
}


@final
@dataclass(frozen=True, slots=True)
class Guarantee:
    """(epsilon_upper, delta) with all the words that give it a meaning.

    >>> print(Guarantee(3.6151, 1e-5, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL).sentence())
    epsilon <= 3.616 at delta = 1e-05 for one client (zero-out adjacency: the neighbour's update is the \
zero vector), local trust: the server sees every payload.
    """

    epsilon_upper: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    trust: Trust

    def __post_init__(self) -> None:
        """Refuse numbers that are not a guarantee and words that are not ours."""
        require(self.epsilon_upper >= 0, "epsilon_upper", self.epsilon_upper, "a number of at least 0")
        check_delta(self.delta)
        require(isinstance(self.unit, Unit), "unit", self.unit, "a Unit")
        require(isinstance(self.adjacency, Adjacency), "adjacency", self.adjacency, "an Adjacency")
        require(isinstance(self.trust, Trust), "trust", self.trust, "a Trust")

    def sentence(self) -> str:
        """The guarantee in plain English; epsilon and delta are shown rounded up, to four and six digits."""
        epsilon = "infinity (no guarantee)"
        if math.isfinite(self.epsilon_upper):
            shown = _rounded_up(self.epsilon_upper, 4)
            epsilon = f"{shown.normalize():f}" if shown > Decimal("1e-4") or not shown else f"{shown:e}"
        neighbour = _NEIGHBOUR[self.adjacency].format(what=_WHAT[self.unit])
        return (
            f"epsilon <= {epsilon} at delta = {float(_rounded_up(self.delta, 6)):g} for one {self.unit.value} "
            f"({self.adjacency.value} adjacency: {neighbour}), {_TRUST[self.trust]}."
        )


def _rounded_up(value: float, digits: int) -> Decimal:
    """``digits`` digits of the shortest number that reads as ``value``, rounded up: it never reads as a smaller one."""
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))


def sensitivity(adjacency: Adjacency, beta: float) -> float:
    """How far apart two neighbours' inputs can be, in x-space, in the norm of the ball.

    An update ``u`` of norm at most C becomes ``x = 1/2 + beta u/(2C)``, so ``x`` is within ``beta/2`` of
    the centre: zero-out neighbours are ``beta/2`` apart, replace-one neighbours ``beta``. Clamping ``x`` to
    [0, 1] is a contraction that fixes the centre, so both hold for the clamped variant too.
    """
    require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")
    beta = check_real(beta, "beta")
    return beta / 2 if adjacency is Adjacency.ZERO_OUT else beta
