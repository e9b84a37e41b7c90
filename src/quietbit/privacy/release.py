"""A release: what it costs, together with the words without which the number means nothing.

Idea     a curve is a bound between two worlds; which two, whose data they differ in and who is looking belong to it.
         So composition refuses a mixture, converts where a theorem allows, and a guarantee takes its words from here.
Symbols  as in `guarantee`: adjacency, unit, trust.
Source   Dwork and Roth (2014), Proposition 2.1: post-processing; Guo et al. (ICML 2023), "Differential Privacy".

What follows from what. The zero vector lies in every ball, so zero-out neighbours are replace-one neighbours: a
replace-one account holds for zero-out (not the other way round, where distances double). What a server publishes, or
the sum that it sees, is computed from the payloads, so a local account holds under secure aggregation and central
trust; what is published is computed from the sum, so an account of the sum holds under central trust. Neither goes
back. Who sees releases without knowing whose they are sees less than the server, so a local account holds under
shuffled trust too; an account under shuffled trust counts on a secret that no other trust speaks of, and holds
nowhere else. A client's account says nothing in general about one of its samples, nor the reverse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from quietbit.errors import check_int, require
from quietbit.privacy.curve import DominatedCurve, LossPair, PrivacyCurve, total
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit

__all__ = ["Release"]

_IMPLIES = {
    Trust.LOCAL: {Trust.LOCAL, Trust.SECURE_AGGREGATION, Trust.CENTRAL, Trust.SHUFFLED},
    Trust.SECURE_AGGREGATION: {Trust.SECURE_AGGREGATION, Trust.CENTRAL},
    Trust.CENTRAL: {Trust.CENTRAL},
    Trust.SHUFFLED: {Trust.SHUFFLED},
}


@final
@dataclass(frozen=True, slots=True)
class Release:
    """A curve with its adjacency, unit and trust; ``samples``: of the client, at the sample level and only there.

    >>> from quietbit.privacy.curve import PureCurve
    >>> once = Release(PureCurve(0.25), Adjacency.REPLACE_ONE, Unit.CLIENT, Trust.LOCAL)
    >>> once.repeat(4).under(adjacency=Adjacency.ZERO_OUT).guarantee(0.0).epsilon_upper
    1.0
    """

    curve: PrivacyCurve
    adjacency: Adjacency
    unit: Unit
    trust: Trust
    samples: int | None = None

    def __post_init__(self) -> None:
        """Refuse words that are not ours, a curve that has words already, and a sample level that nobody worked out."""
        bare = isinstance(self.curve, PrivacyCurve) and not isinstance(self.curve, Release)
        require(bare, "curve", self.curve, "a PrivacyCurve without words of its own")
        require(isinstance(self.adjacency, Adjacency), "adjacency", self.adjacency, "an Adjacency")
        require(isinstance(self.unit, Unit), "unit", self.unit, "a Unit")
        require(isinstance(self.trust, Trust), "trust", self.trust, "a Trust")
        if self.unit is Unit.SAMPLE:
            rule = "the number of the client's samples for unit sample, whose cost is not that of the client's update"
            require(self.samples is not None, "samples", self.samples, rule)
            object.__setattr__(self, "samples", check_int(self.samples, "samples", 1))
        else:
            require(self.samples is None, "samples", self.samples, "left out unless the unit is a sample")

    def rdp(self, alpha: float) -> float:
        """The curve's bound on the Rényi divergence of order ``alpha``."""
        return self.curve.rdp(alpha)

    def pure_epsilon_upper(self) -> float:
        """The curve's bound on the max-divergence."""
        return self.curve.pure_epsilon_upper()

    def losses(self) -> LossPair | None:
        """The curve's privacy losses, where it knows a dominating pair."""
        return self.curve.losses() if isinstance(self.curve, DominatedCurve) else None

    def epsilon_upper(self, delta: float) -> float:
        """The smallest epsilon the curve proves at ``delta``; `guarantee` says it with its words."""
        return self.curve.epsilon_upper(delta)

    def repeat(self, times: int) -> Release:
        """``times`` such releases of the same party; one is this one, with all it knows of itself."""
        if check_int(times, "times", 0) == 1:
            return self
        return replace(self, curve=total([(self.curve, times)]))

    def compose(self, other: PrivacyCurve) -> Release:
        """This release followed by another of the same party; a mixture of words is refused."""
        require(isinstance(other, Release), "other", other, "a Release: a bare curve does not say what it bounds")
        if not isinstance(other, Release):  # for the type checker: `require` has refused it
            raise TypeError
        for name in ("unit", "adjacency", "trust"):
            mine, theirs = getattr(self, name), getattr(other, name)
            rule = f"{mine.value}, as in this release: two kinds of costs do not add up"
            require(theirs is mine, f"{name} of the other release", theirs.value, rule)
        fewest = None if self.samples is None or other.samples is None else min(self.samples, other.samples)
        return replace(self, curve=total([(self.curve, 1), (other.curve, 1)]), samples=fewest)

    def under(self, *, adjacency: Adjacency | None = None, trust: Trust | None = None) -> Release:
        """The same release under another adjacency or trust, where its account holds for those too."""
        near = self.adjacency if adjacency is None else adjacency
        seen = self.trust if trust is None else trust
        require(isinstance(near, Adjacency), "adjacency", near, "an Adjacency")
        require(isinstance(seen, Trust), "trust", seen, "a Trust")
        covered = near is self.adjacency or self.adjacency is Adjacency.REPLACE_ONE
        rule = f"{self.adjacency.value}, the release's: an account for zero-out does not cover replacing an update"
        require(covered, "adjacency", near.value, rule)
        known = " or ".join(sorted(word.value for word in _IMPLIES[self.trust]))
        rule = f"{known} for a release accounted under {self.trust.value} trust"
        require(seen in _IMPLIES[self.trust], "trust", seen.value, rule)
        return replace(self, adjacency=near, trust=seen)

    def guarantee(self, delta: float) -> Guarantee:
        """The smallest epsilon proved at ``delta``, with the release's words."""
        return Guarantee(self.epsilon_upper(delta), delta, self.unit, self.adjacency, self.trust)
