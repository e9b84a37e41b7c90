"""Scouts: a few clients of every round say whether the clip left their update unchanged, and the clip follows.

Idea     a scout sends one randomised bit in place of its update. All rounds have one price, so the budget of updates
         pays for scouts too: a client's releases may be updates or answers in any order, and the answers are as
         truthful as that budget allows.
Source   Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021); the rule of movement is in `quietbit.plan.clip`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, final

from attrs import frozen

from quietbit._search import bisect
from quietbit.errors import require
from quietbit.mechanism.adaptive_clip import AdaptiveClip
from quietbit.mechanism.base import Mechanism
from quietbit.plan.clip import MovingClip
from quietbit.run.section import Real, Section, Whole, choice

__all__ = ["Scouts", "most_truthful"]

MEDIAN = 0.5
EVERY = 20  # one client of these scouts: 5.3 % more squared error
EVERY_OF_SUMS = 40  # 5.2 % of a sum's, whose noise is that of the whole sum, so that a client less costs twice
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
        require(self.quantile < 1, "scouts.quantile", self.quantile, "between 0 and 1, both excluded")

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
