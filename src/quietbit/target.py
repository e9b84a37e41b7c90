"""A privacy target: epsilon and delta with the adjacency, unit, trust and releases they refer to.

Idea     an epsilon alone states nothing. It needs a delta, whose data it protects (unit), which
         data sets are neighbours (adjacency), who may look (trust), and how many releases share it.
         They travel together and are checked once.
Symbols  epsilon, delta: P(O) <= e^epsilon P'(O) + delta for every set of outputs O, and the same
         with P and P' swapped.
Source   Guo et al. (ICML 2023), section "Differential Privacy"; their "leave-one-out" is zero-out
         here.
"""

from __future__ import annotations

import math
from typing import Any, final

from attrs import evolve, field, frozen

from quietbit.errors import CheckedEnum, check_int, check_real, require

__all__ = [
    "MAX_RELEASES",
    "MOST_CLIENTS",
    "Adjacency",
    "Target",
    "Trust",
    "Unit",
    "check_delta",
    "check_releases",
]

MAX_RELEASES = 10**9
MOST_CLIENTS = 100_000  # in one sum


class Adjacency(CheckedEnum):
    """Which two updates of one client must be hard to tell apart.

    ``ZERO_OUT``: the client's update and the zero vector. ``REPLACE_ONE``: any two updates in the
    same ball, which is twice the distance and four times the Rényi divergence.
    """

    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @property
    def radii(self) -> float:
        """The largest distance of two neighbouring updates, in radii of their ball."""
        return 1.0 if self is Adjacency.ZERO_OUT else 2.0


class Unit(CheckedEnum):
    """Whose data is protected: all of a client's, or a single sample of it."""

    CLIENT = "client"
    SAMPLE = "sample"


class Trust(CheckedEnum):
    """Whom the guarantee trusts: nobody but the device, the server, masked sums, or a shuffler."""

    LOCAL = "local"
    CENTRAL = "central"
    SECURE_AGGREGATION = "secure-aggregation"
    SHUFFLED = "shuffled"


def check_delta(delta: float) -> float:
    """Return ``delta`` as a float in [0, 1); anything else is refused."""
    number = check_real(delta, "delta", at_least=0.0)
    require(number < 1, "delta", delta, "at least 0 and below 1")
    return number


def _epsilon(value: float) -> float:
    if value == math.inf:
        return math.inf
    return check_real(value, "epsilon")


def check_releases(value: int) -> int:
    """Return ``value`` as an int of at least 1; anything else is refused."""
    return check_int(value, "releases", 1, MAX_RELEASES)


@final
@frozen
class Target:
    """What all ``releases`` of one client together may cost; an infinite ``epsilon`` is no limit.

    >>> Target(8.0, 1e-5, "zero-out", releases=10).adjacency
    <Adjacency.ZERO_OUT: 'zero-out'>
    """

    epsilon: float = field(converter=_epsilon)
    delta: float = field(converter=check_delta)
    adjacency: Adjacency = field(converter=Adjacency)
    unit: Unit = field(default=Unit.CLIENT, converter=Unit, kw_only=True)
    trust: Trust = field(default=Trust.LOCAL, converter=Trust, kw_only=True)
    releases: int = field(default=1, converter=check_releases, kw_only=True)

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of `calibrate` and `compare`."""
        return {name: getattr(self, name) for name in ("epsilon", "delta", "adjacency", "releases")}

    def without(self, aside: float) -> Target:
        """Return the target that remains when ``aside`` pure epsilon is reserved for others.

        Releases that meet the remaining target, together with the others, meet this one
        (docs/theory/filters.md, "Setting aside").
        """
        if not aside:
            return self
        remaining = math.nextafter(self.epsilon - aside, -math.inf)
        rule = f"above {aside!r}, which is set aside for evaluations"
        require(remaining > 0, "epsilon", self.epsilon, rule)
        rounding = 1 - 4e-16
        delta = self.delta * math.exp(-aside) * rounding
        return evolve(self, epsilon=remaining, delta=delta)

    def limited(self) -> Target:
        """Return this target; refuse it where its epsilon is infinite."""
        check_real(self.epsilon, "epsilon")
        return self
