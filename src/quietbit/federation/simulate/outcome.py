"""The result of a simulation: why it ended, the final model, its cost, its bytes and its scores."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import final

from quietbit.federation.compare import FLOAT_BYTES
from quietbit.federation.costs import ClientCosts
from quietbit.federation.parts.weights import effective, weight_of
from quietbit.federation.record import RoundReport
from quietbit.federation.report import Report
from quietbit.federation.simulate.plan import SimulatedPlan
from quietbit.federation.simulate.problem import Rows, Score, Training
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.forecast import Forecast, forecast
from quietbit.mechanism.registry import identity_of
from quietbit.privacy.guarantee import Guarantee

__all__ = ["DIVERGED", "FINISHED", "INTERRUPTED", "REFUSED", "TARGET", "Point", "Run"]

FINISHED = "finished"
DIVERGED = "diverged"
INTERRUPTED = "interrupted"
TARGET = "target reached"
REFUSED = "refused"


@final
@dataclass(frozen=True, slots=True)
class Point:
    """The run after some rounds; without privacy there is no guarantee."""

    round: int
    score: Score
    guarantee: Guarantee | None
    uplink_bytes: int
    seconds: float


@final
@dataclass(slots=True, eq=False)
class Run:
    """What came of a simulation; ``reason`` is a sentence where it did not end as planned."""

    plan: SimulatedPlan
    training: Training
    mechanism: Mechanism | None
    account: ClientCosts | None
    points: list[Point]
    status: str
    reason: str
    rounds: int
    parameters: Rows
    bytes_per_client: int
    seconds: float
    round_reports: list[RoundReport] = field(default_factory=list)
    # Of a clip that moves: where it began, and after every round.
    clips: list[float] = field(default_factory=list)
    uplink_bytes: int = 0  # sent up by all clients, scouts among them

    @property
    def downlink_bytes(self) -> int:
        """What the server sent down; of a trusted one what is expected, as cohorts are secret."""
        if self.plan.central or not self.round_reports:
            return FLOAT_BYTES * self.parameters.size * self.rounds * self.plan.cohort
        return sum(entry.downlink for entry in self.round_reports)

    @property
    def guarantee(self) -> Guarantee | None:
        """What holds for every client after all rounds; every release counts, scored or not."""
        if self.account is None:
            return None
        return self.account.worst(self.plan.delta)

    @property
    def spread(self) -> str | None:
        """How unequal participation was, in words: releases and epsilon of some clients."""
        if self.account is None:
            return None
        return self.account.spread(self.plan.delta)

    def report(self) -> Report:
        """Return rounds, bytes, scores and the guarantee, as an engine's run reports them.

        It does not list clients: their counts are the account's.
        """
        identity = ""
        dimension = self.parameters.size
        if self.mechanism is not None:
            identity = identity_of(self.mechanism).hex()
            dimension = self.mechanism.ball.dimension
        scores = [{"round": point.round, **asdict(point.score)} for point in self.points]
        return Report(
            settings=self.plan,
            run=0,
            identity=identity,
            dimension=dimension,
            rounds=tuple(self.round_reports),
            nodes=(),
            guarantee=self.guarantee,
            scores=tuple(scores),
            participation=self.spread or "",
        )

    @property
    def expected(self) -> Forecast | None:
        """What was to be expected of the rounds so far; None without noise or rounds."""
        if self.mechanism is None or self.account is None or not self.rounds:
            return None
        plan = self.plan
        sizes = self.account.sizes.tolist()
        cohort = plan.updates
        if plan.weights is not None:
            weights = (weight_of(size, plan.weights.most_examples) for size in sizes)
            cohort = max(1, round(cohort * effective(weights) / len(sizes)))
        return forecast(
            self.mechanism, cohort=cohort, rounds=self.rounds, clients=len(sizes), trust=plan.trust
        )
