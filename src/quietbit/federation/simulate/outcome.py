"""The result of a simulation: why it ended, the final model, its cost, its bytes and its scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from quietbit.federation.compare import FLOAT_BYTES
from quietbit.federation.costs import ClientCosts
from quietbit.federation.parts.weights import effective, weight_of
from quietbit.federation.simulate.plan import SimulatedPlan
from quietbit.federation.simulate.problem import Rows, Score, Training
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.forecast import Forecast, forecast
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
    records: list[dict[str, Any]] = field(default_factory=list)  # of parts, per round
    # Of a clip that moves: where it began, and after every round.
    clips: list[float] = field(default_factory=list)
    uplink_bytes: int = 0  # sent up by all clients, scouts among them
    replayed_bytes: int | None = None  # sent down to clients that replay rounds
    enclosed_bytes: int = 0  # sent down beside requests, by parts: the directions of a subspace

    @property
    def downlink_bytes(self) -> int:
        """What the server sent down: rounds to replay, or the model to every client."""
        models = self.replayed_bytes
        if models is None:
            models = FLOAT_BYTES * self.parameters.size * self.rounds * self.plan.cohort
        return models + self.enclosed_bytes

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
