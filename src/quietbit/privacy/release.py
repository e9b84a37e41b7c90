"""A release with the words that give its price a meaning: adjacency, unit, trust.

Idea     curves are numbers; a release carries the words beside them, so that a ledger can refuse what must not be
         added, and a guarantee takes its words from nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from quietbit._validate import InvalidParameter, require
from quietbit.privacy.curve import PrivacyCurve
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit

__all__ = ["Release"]


@final
@dataclass(frozen=True, slots=True)
class Release:
    """What a release costs, and in which sense."""

    curve: PrivacyCurve
    adjacency: Adjacency
    unit: Unit
    trust: Trust

    def rdp(self, alpha: float) -> float:
        """The curve's."""
        return self.curve.rdp(alpha)

    def pure_epsilon_upper(self) -> float:
        """The curve's."""
        return self.curve.pure_epsilon_upper()

    def repeat(self, times: int) -> Release:
        """So many such releases."""
        return Release(self.curve.repeat(times), self.adjacency, self.unit, self.trust)

    def compose(self, other: PrivacyCurve) -> Release:
        """This release and another with the same words."""
        if not isinstance(other, Release):
            raise InvalidParameter(f"other must be a Release, got a {type(other).__name__}.")
        words = (self.adjacency, self.unit, self.trust)
        rule = f"one under {self.adjacency}, {self.unit}, {self.trust}"
        require((other.adjacency, other.unit, other.trust) == words, "other release", other, rule)
        return Release(self.curve.compose(other.curve), *words)

    def epsilon_upper(self, delta: float) -> float:
        """The curve's."""
        return self.curve.epsilon_upper(delta)

    def guarantee(self, delta: float) -> Guarantee:
        """The smallest epsilon proved at ``delta``, with the words of the release."""
        return Guarantee(self.epsilon_upper(delta), delta, self.unit, self.adjacency, self.trust)
