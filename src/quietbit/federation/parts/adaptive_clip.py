"""Adaptive clipping: a few clients of a round say whether the clip changed their update.

Idea     a scout sends one randomised bit in place of its update. All rounds have one cost, so the
         budget of updates pays for scouts too: a client's releases may be updates or answers in any
         order, and the answers are as truthful as that budget allows.
Source   Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021); the rule of movement is in
         `quietbit.federation.moving_clip`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast, final

from attrs import evolve, frozen

from quietbit._search import bisect
from quietbit.errors import require
from quietbit.federation.fields import Real, Whole, choice
from quietbit.federation.messages import Node
from quietbit.federation.moving_clip import MovingClip, why_it_stays
from quietbit.federation.part import Aside, Closed, Part, Scope
from quietbit.federation.record import RoundReport
from quietbit.federation.terms import RunForecast, Say, Section, Terms
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.forecast import forecast
from quietbit.mechanism.scouts import Scout, Scouted
from quietbit.node.request import run_name

__all__ = ["AdaptiveClipping", "Scouting", "most_truthful"]

MEDIAN = 0.5
EVERY = 20  # one client of these scouts: 5.3 % more squared error
# 5.2 % of a sum's error: its noise is that of the whole sum, so that a missing client costs twice
EVERY_OF_SUMS = 40
LEAST_TRUTH = 1e-4
MOST_TRUTH = 1 - 1e-9


@final
@frozen
class AdaptiveClipping(Section):
    """``[adaptive-clip]``: one client of ``every`` answers; ``quantile`` of updates fit it."""

    title: ClassVar[str] = "adaptive_clip"
    columns: ClassVar[tuple[str, ...]] = ("clip", "scouted")

    every: int | None = choice(Whole(2))
    quantile: float = choice(Real(), MEDIAN)

    def check(self) -> None:
        """Refuse a share that no clip could leave alone."""
        rule = "above 0 and below 1"
        require(self.quantile < 1, "adaptive_clip.quantile", self.quantile, rule)

    def check_plan(self, plan: Terms) -> None:
        """Refuse a strength by hand: an answer costs what the budget leaves."""
        rule = "left out where the mechanism's strength is given"
        reason = "an answer costs what the budget leaves"
        require(plan.mechanism.calibrated, "adaptive_clip", self.table(), rule, reason)

    def part(self, plan: Terms, say: Say, resource: Any = None) -> Scouting:
        """Return the part that asks scouts."""
        return Scouting(plan, self)

    def forecast(self, run: RunForecast) -> str | None:
        """Return why the clip of a run cannot move; None where it can."""
        releases = run.asked * run.rounds
        scouted = cast(Scouted, run.mechanism)
        reason = why_it_stays(scouted, run.clip, run.noise, releases)
        if reason is None:
            return None
        return f"{reason}. Set quietbit.clip to a number."

    def note(self, entry: RoundReport) -> str:
        """Return the clip of a round, and how many scouts answered about it."""
        if entry.clip is None:
            return ""
        return f"clip {entry.clip:.3g}, {entry.scouted} of {entry.scouts} scouts answered"

    def moving(self, start: float) -> MovingClip:
        """Return the moving clip at the start of a run."""
        return MovingClip.from_start(start, quantile=self.quantile)


def most_truthful(
    mechanism: Mechanism, every: int, within: Callable[[Mechanism], bool]
) -> Scouted | None:
    """Let clients scout, as truthfully as ``within`` allows; return None without room."""

    def scouted(truth: float) -> Scouted:
        return Scouted(mechanism, every, truth)

    def allowed(truth: float) -> bool:
        return within(scouted(truth))

    if not allowed(LEAST_TRUTH):
        return None
    return scouted(bisect(allowed, LEAST_TRUTH, MOST_TRUTH, relative=1e-4))


@final
class Scouting(Part):
    """The server's half: some nodes are asked about the clip, and it follows their answers."""

    section: ClassVar[str] = "adaptive_clip"
    in_columns: ClassVar[bool] = True

    def __init__(self, plan: Terms, scouts: AdaptiveClipping) -> None:
        """Start at the plan's clip."""
        self._plan = plan
        self.moving = scouts.moving(plan.clip)

    def prepare(self, scope: Scope) -> Scope:
        """Return the round at the clip that scouts' answers have led to."""
        return evolve(scope, clip=self.moving.clip)

    def aside(self, scope: Scope, nodes: list[Node]) -> Aside | None:
        """Ask the scouts among the nodes about the clip in place of an update."""
        if scope.section:
            return None
        scouts = frozenset(self._chosen(scope, nodes))
        if not scouts:
            return None
        return Aside(self.section, Scout(cast(Scouted, scope.mechanism)), scouts)

    def _chosen(self, scope: Scope, nodes: list[Node]) -> list[Node]:
        """Return the scouts: by a public draw of every node, which it checks itself."""
        scouts = self._plan.scouts_among(nodes, scope.number)
        if scouts is not None:
            return scouts
        name = run_name(scope.run)
        scouts = []
        for node in nodes:
            if not scope.mechanism.is_turn_of(name, scope.number, scope.name_of(node)):
                scouts.append(node)
        return scouts

    def close(self, closed: Closed) -> Mapping[str, Any]:
        """Move the clip by what the scouts answered; where nobody was asked, it stays."""
        record: dict[str, Any] = {"clip": self.moving.clip}
        if not closed.side_rounds:
            self.moving.stay()
            return record
        (scouts,) = closed.side_rounds
        record["scouts"] = scouts.report.asked
        record["scouted"] = scouts.report.answered
        updates = max(1, closed.report.answered)
        mechanism = closed.scope.mechanism
        noise = forecast(mechanism, cohort=updates, trust=self._plan.trust).noise
        self.moving.move(scouts.answers, noise)
        return record
