"""What may be lost, of whose data, to whom: a target, and the words without which an epsilon says nothing.

Idea     an epsilon means something beside its delta, whose data it protects (unit), what the
         neighbouring world is (adjacency), who may look (trust), and how many releases share it.
         They travel together, checked once.
Symbols  epsilon, delta: P(O) <= e^epsilon P'(O) + delta for every set of outputs O, both ways
         round.
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
MOST_CLIENTS = 100_000  # of a sum


class Adjacency(CheckedEnum):
    """Which two worlds must look alike.

    ``ZERO_OUT``: one party's update against the zero vector. ``REPLACE_ONE``: one party's update
    against any other in the same ball: twice the distance, four times the Rényi divergence.
    """

    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @property
    def radii(self) -> float:
        """How far apart two neighbours' updates can be, in radii of their ball."""
        return 1.0 if self is Adjacency.ZERO_OUT else 2.0


class Unit(CheckedEnum):
    """Whose data is protected: all of a client's, or a single sample of it."""

    CLIENT = "client"
    SAMPLE = "sample"


class Trust(CheckedEnum):
    """Who may see what without the guarantee being void."""

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
    return math.inf if value == math.inf else check_real(value, "epsilon")


def check_releases(value: int) -> int:
    """Return ``value`` as an int from 1 on; anything else is refused."""
    return check_int(value, "releases", 1, MAX_RELEASES)


@final
@frozen
class Target:
    """What all ``releases`` of one party together may cost; an infinite ``epsilon`` sets no limit, and asks how much.

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
        """Return what `calibrate`, `calibrate_sum` and `compare` take as keywords: all but unit and trust."""
        return {name: getattr(self, name) for name in ("epsilon", "delta", "adjacency", "releases")}

    def without(self, aside: float) -> Target:
        """Return what is left where releases of ``aside`` pure epsilon in all are accounted by themselves.

        What meets the target that is left, and they, meet this one together:
        docs/theory/filters.md, "Setting aside".
        """
        if not aside:
            return self
        left = math.nextafter(self.epsilon - aside, -math.inf)
        require(
            left > 0,
            "epsilon",
            self.epsilon,
            f"above {aside!r}, which is set aside for evaluations",
        )
        return evolve(self, epsilon=left, delta=self.delta * math.exp(-aside) * (1 - 4e-16))

    def limited(self) -> Target:
        """Return this target; one without a limit is refused, where something must meet it."""
        check_real(self.epsilon, "epsilon")
        return self
