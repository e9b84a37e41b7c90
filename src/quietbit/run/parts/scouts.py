"""Scouts: a few clients of every round say whether the clip left their update unchanged, and the clip follows.

Idea     a scout sends one randomised bit in place of its update. All rounds have one price, so the
         budget of updates pays for scouts too: a client's releases may be updates or answers in any
         order, and the answers are as truthful as that budget allows.
Source   Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021); the rule of movement is in
         `quietbit.plan.clip`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, final

from attrs import frozen

from quietbit._search import bisect
from quietbit.errors import require
from quietbit.mechanism.abilities import ClipMoves, is_turn_of
from quietbit.mechanism.adaptive_clip import AdaptiveClip
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.expectation import expectation
from quietbit.plan.clip import MovingClip
from quietbit.run.part import Part
from quietbit.run.section import Real, Section, Whole, choice

if TYPE_CHECKING:
    from quietbit.run.plan import Plan
    from quietbit.run.server import Round

__all__ = ["Scouting", "Scouts", "most_truthful"]

MEDIAN = 0.5
EVERY = 20  # one client of these scouts: 5.3 % more squared error
EVERY_OF_SUMS = (
    40  # 5.2 % of a sum's, whose noise is that of the whole sum, so that a client less costs twice
)
LEAST_TRUTH = 1e-4
MOST_TRUTH = 1 - 1e-9


@final
@frozen
class Scouts(Section):
    """``[scouts]``: one client of ``every`` answers for the clip, which is to leave ``quantile`` of updates as is."""

    title: ClassVar[str] = "scouts"

    every: int | None = choice(Whole(2))
    quantile: float = choice(Real(), MEDIAN)

    def check(self) -> None:
        """Refuse a share that no clip could leave alone."""
        require(
            self.quantile < 1, "scouts.quantile", self.quantile, "between 0 and 1, both excluded"
        )

    def moving(self, start: float) -> MovingClip:
        """Return the moving clip at the start of a run."""
        return MovingClip.from_start(start, quantile=self.quantile)


def most_truthful(
    mechanism: Mechanism, clip: float, every: int, within: Callable[[Mechanism], bool]
) -> AdaptiveClip | None:
    """Make the clip of a mechanism move, by scouts as truthful as ``within`` allows; return None without room."""

    def moving(truth: float) -> AdaptiveClip:
        return AdaptiveClip(mechanism, clip, every, truth)

    def allowed(truth: float) -> bool:
        return within(moving(truth))

    if not allowed(LEAST_TRUTH):
        return None
    return moving(bisect(allowed, LEAST_TRUTH, MOST_TRUTH, relative=1e-4))


@final
class Scouting(Part):
    """The server's half: every round has the clip that scouts of earlier rounds led to."""

    section: ClassVar[str] = "scouts"

    def __init__(self, plan: Plan, scouts: Scouts) -> None:
        """Start at the plan's clip."""
        self._trust = plan.trust
        self.moving = scouts.moving(plan.clip)

    def prepare(self, mechanism: Mechanism, number: int) -> Mechanism:
        """Return the mechanism at the clip of the round."""
        return ClipMoves.of(mechanism).at_clip(self.moving.clip)

    def scouts(self, mechanism: Mechanism, run: bytes, number: int, node: int) -> bool:
        """Return whether a node, by its number in frames, scouts in this round of this mechanism."""
        return not is_turn_of(mechanism, run, number, node)

    def close(self, round: Any) -> Mapping[str, Any]:
        """Move the clip by what the scouts answered; where nobody was asked, it stays."""
        record = {"clip": self.moving.clip}
        scouts: Round | None = round.scouts
        if scouts is None:
            return record
        if not scouts.report().asked:
            self.moving.stay()
            return record
        updates = max(1, round.report().answered)
        noise = expectation(round.mechanism, cohort=updates, trust=self._trust).noise
        self.moving.move(scouts.answers(), noise)
        return record
