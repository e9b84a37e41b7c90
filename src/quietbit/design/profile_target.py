"""What a profile is asked for: a budget, the releases that share it, and what the neighbour is.

Symbols  epsilon, delta: of all releases together. releases: how often one client takes part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from quietbit.design.profile import ADJACENCIES
from quietbit.errors import check_int, check_real, require

__all__ = ["ProfileTarget"]

MOST_EPSILON = 60.0  # of one release: a step at e^epsilon then lies ten deviations out, and nothing is left to design


@final
@dataclass(frozen=True, slots=True)
class ProfileTarget:
    """(epsilon, delta) for a number of releases under an adjacency, "replace-one" or "zero-out"."""

    epsilon: float
    delta: float
    releases: int
    adjacency: str

    def __post_init__(self) -> None:
        """Refuse what no profile can be designed for."""
        wrong = isinstance(self.delta, bool | str) or not 0 <= self.delta < 1
        require(not wrong, "delta", self.delta, "at least 0 and below 1")
        object.__setattr__(self, "delta", float(self.delta))
        object.__setattr__(self, "releases", check_int(self.releases, "releases", 1, 10**6))
        most = MOST_EPSILON * self.releases
        object.__setattr__(self, "epsilon", check_real(self.epsilon, "epsilon", at_most=most))
        require(self.adjacency in ADJACENCIES, "adjacency", self.adjacency, " or ".join(ADJACENCIES))
