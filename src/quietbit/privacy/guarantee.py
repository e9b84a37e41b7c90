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

from quietbit.errors import check_int, require
from quietbit.target import Adjacency, Trust, Unit, check_delta

__all__ = ["Guarantee", "GuaranteePair", "rounded_up", "shown_epsilon"]


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
    """(epsilon_upper, delta) with unit, adjacency and trust.

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
        require(
            self.epsilon_upper >= 0, "epsilon_upper", self.epsilon_upper, "a number of at least 0"
        )
        check_delta(self.delta)
        require(isinstance(self.unit, Unit), "unit", self.unit, "a Unit")
        require(isinstance(self.adjacency, Adjacency), "adjacency", self.adjacency, "an Adjacency")
        require(isinstance(self.trust, Trust), "trust", self.trust, "a Trust")

    def sentence(self) -> str:
        """Return the guarantee in plain English; epsilon and delta are rounded up, to four and six digits."""
        epsilon = shown_epsilon(self.epsilon_upper)
        if not math.isfinite(self.epsilon_upper):
            epsilon += " (no guarantee)"
        neighbour = _NEIGHBOUR[self.adjacency].format(what=_WHAT[self.unit])
        return (
            f"epsilon <= {epsilon} at delta = {float(rounded_up(self.delta, 6)):g} for one {self.unit.value} "
            f"({self.adjacency.value} adjacency: {neighbour}), {_TRUST[self.trust]}."
        )


def rounded_up(value: float, digits: int) -> Decimal:
    """Return the shortest decimal of ``value`` rounded up to ``digits`` digits, so that it never reads as less."""
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


@final
@dataclass(frozen=True, slots=True)
class GuaranteePair:
    """``server``: the guarantee against the server; ``result``: against observers of the result alone, or None.

    ``crowd``: the fewest clients among whom a release is hidden, all of an epoch if there is a
    ``secret_order``, else those of its own round, of which only the sum is seen; ``shuffles``: how
    many releases of the worst client count. ``reason`` says why there is no second guarantee.
    ``leavers`` were away for a part of an epoch: ``crowd`` is that of the rounds in which the worst
    of them was present.
    """

    server: Guarantee
    result: Guarantee | None
    crowd: int = 0
    shuffles: int = 0
    secret_order: bool = False
    reason: str = ""
    leavers: int = 0

    def __post_init__(self) -> None:
        require(isinstance(self.server, Guarantee), "server", self.server, "a Guarantee")
        shuffled = self.server.trust is Trust.SHUFFLED
        require(
            not shuffled,
            "trust of the server's guarantee",
            self.server.trust.value,
            "one that holds against it",
        )
        for name in ("crowd", "shuffles", "leavers"):
            object.__setattr__(self, name, check_int(getattr(self, name), name, 0))
        if self.result is None:
            require(
                bool(self.reason), "reason", self.reason, "given where there is no second guarantee"
            )
            return
        require(isinstance(self.result, Guarantee), "result", self.result, "a Guarantee or None")
        require(
            self.server.trust is Trust.LOCAL,
            "trust of the server's guarantee",
            self.server.trust.value,
            "local",
        )
        seen = self.result.trust
        require(seen is Trust.SHUFFLED, "trust of the second guarantee", seen.value, "shuffled")
        same = (self.result.unit, self.result.adjacency) == (
            self.server.unit,
            self.server.adjacency,
        )
        require(same, "second guarantee", self.result, "of the unit and adjacency of the first")
        require(self.crowd > 0, "crowd", self.crowd, "positive beside a second guarantee")
        require(not self.reason, "reason", self.reason, "left out beside a second guarantee")

    def sentence(self) -> str:
        """Return both guarantees in plain English."""
        return f"Against the server: {self.server.sentence()} {self.second()}"

    def second(self) -> str:
        """Return the guarantee against observers of the result alone in plain English."""
        if self.result is None:
            return f"Against those who see the result alone: no less is promised, because {self.reason}."
        among = "in a secret order" if self.secret_order else "in the same round"
        if self.shuffles == 1:
            times = "once"
        else:
            times = f"{self.shuffles:,} times"
        crowd = f"It counts on {self.crowd:,} clients that release {among}, {times}."
        if self.leavers:
            crowd += f" {self.leavers:,} that were away for a part of an epoch are hidden among no more than that."
        return f"Against those who see the result alone: {self.result.sentence()} {crowd}"
