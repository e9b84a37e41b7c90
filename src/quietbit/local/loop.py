"""The round loop: cohorts, private means, server steps, and the ledger of the run.

Idea     a round is six lines: who takes part; does the budget allow it; record the releases; take
         the private mean; move with momentum; look. Everything else is in the files it calls.
Symbols  w = parameters; v = momentum: v <- mu v + mean, w <- w - lr v.
Source   Guo et al. (ICML 2023), section "Federated Learning with Differential Privacy"; McMahan et
         al. (2017).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, cast, final

import numpy as np
from numpy.typing import NDArray

from quietbit._threads import one_thread
from quietbit._typing import FloatVector
from quietbit.errors import QuietbitError, require
from quietbit.local.collect import Collector, UplinkCollector, make_collector, round_bytes
from quietbit.local.problem import PartsProblem, Problem, Rows, Score, Training
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.expectation import Expectation, expectation
from quietbit.plan.compare import FLOAT_BYTES
from quietbit.privacy.guarantee import Guarantee, GuaranteePair
from quietbit.run.costs import ClientCosts, observers
from quietbit.run.messages import ENCLOSED
from quietbit.run.part import Asked, Part, Reply
from quietbit.run.participation import releases_per_client
from quietbit.run.parts.subspace import Basis, ServerCoordinates
from quietbit.run.plan import Plan
from quietbit.target import Unit
from quietbit.wire.downlink import Diverged, Downlink, Lift, ServerStep
from quietbit.wire.uplink import effective, weight_of

__all__ = ["Point", "Progress", "Run", "simulate"]

FINISHED, DIVERGED, INTERRUPTED, TARGET, REFUSED = (
    "finished",
    "diverged",
    "interrupted",
    "target reached",
    "refused",
)
LARGEST = 1e15  # parameters beyond it have diverged: scores would overflow float32


@final
@dataclass(frozen=True, slots=True)
class Point:
    """The run after some rounds; without privacy there is no guarantee."""

    round: int
    score: Score
    guarantee: Guarantee | None
    uplink_bytes: int
    seconds: float


Progress: TypeAlias = Callable[[int, "Point | None"], None]


@final
@dataclass(slots=True, eq=False)
class Run:
    """What came of it: points so far, why it ended (one sentence where not as planned), the final model."""

    plan: Plan
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
    records: list[dict[str, Any]] = field(default_factory=list)  # of parts of your own, per round
    clips: list[float] = field(
        default_factory=list
    )  # of a clip that moves: where it began, and after every round
    uplink_bytes: int = 0  # sent up by all clients, scouts among them
    replayed_bytes: int | None = None  # sent down to clients that replay rounds
    enclosed_bytes: int = 0  # sent down beside requests, by parts: the directions of a subspace

    @property
    def downlink_bytes(self) -> int:
        """What the server sent down to all clients that took part: rounds that they replay, or the model every time."""
        full = FLOAT_BYTES * self.parameters.size * self.rounds * self.plan.cohort
        models = full if self.replayed_bytes is None else self.replayed_bytes
        return models + self.enclosed_bytes

    @property
    def guarantee(self) -> Guarantee | None:
        """What holds for every client after all rounds; every release counts, scored or not."""
        return self.account.worst(self.plan.delta) if self.account is not None else None

    @property
    def spread(self) -> str | None:
        """How unequal participation was, in words: releases and epsilon of some clients."""
        return self.account.spread(self.plan.delta) if self.account is not None else None

    @property
    def expected(self) -> Expectation | None:
        """What was to be expected of the rounds so far; nothing where there was no noise, or no round."""
        if self.mechanism is None or self.account is None or not self.rounds:
            return None
        plan, sizes, clients = self.plan, self.account.sizes, int(self.account.sizes.size)
        cohort = plan.updates
        if plan.weights is not None:
            weights = (weight_of(size, plan.weights.most_examples) for size in sizes.tolist())
            cohort = max(1, round(cohort * effective(weights) / clients))
        return expectation(
            self.mechanism, cohort=cohort, rounds=self.rounds, clients=clients, trust=plan.trust
        )

    @property
    def observers(self) -> GuaranteePair | None:
        """The guarantee against the server, and the one against those who see the models alone."""
        if self.account is None or self.mechanism is None:
            return None
        return observers(self.plan, self.mechanism, self.account)


def simulate(
    problem: Problem,
    plan: Plan,
    training: Training,
    *,
    threads: int = 1,
    progress: Progress | None = None,
    parts: Sequence[Part] = (),
    basis: Basis | None = None,
) -> Run:
    """Train as planned and return what came of it; ``parts`` are capabilities of your own.

    ``basis`` gives the directions of a subspace, where the plan has one.

    Every update goes through `Uplink.send`, which clips it or refuses it. A run that diverges,
    meets an update that is not finite, is interrupted (Ctrl-C) or reaches its budget returns too,
    with its status and every point it has; plans without a meaning are refused.
    """
    schedule = plan.schedule(problem.sizes.size)
    require(basis is None or plan.subspace is not None, "basis", type(basis).__name__, "left out")
    if plan.subspace is not None:
        parts = (ServerCoordinates(plan, plan.subspace, basis), *parts)
    if parts and plan.unit is Unit.CLIENT:
        problem = PartsProblem(problem, parts)
    mechanism, account = _priced(problem, plan, training)
    collects = make_collector(problem, training.local(plan), plan, mechanism, threads)
    w = np.array(problem.initial(plan.seed), dtype=np.float32)
    v, began = np.zeros(w.size), time.perf_counter()
    run = Run(
        plan, training, mechanism, account, [], FINISHED, "", 0, w, collects.bytes_per_client, 0.0
    )
    if isinstance(collects, UplinkCollector) and collects.moving is not None:
        run.clips = collects.moving.history
    a_round = round_bytes(plan, mechanism, collects.bytes_per_client)
    replay = (
        _Replay(w, plan, training, collects, problem.sizes.size, partial(_lifted, parts))
        if plan.replay is not None
        else None
    )
    try:
        # One thread per library call: the cohort is what is spread over threads.
        with one_thread():
            for number in range(training.rounds):
                clients = schedule.cohort(number)
                if account is not None:
                    charged, limit = schedule.charged(number), plan.epsilon
                    if (
                        limit is not None
                        and account.worst(plan.delta, after=charged).epsilon_upper > limit
                    ):
                        run.status = TARGET
                        run.reason = (
                            f"Round {number + 1} would exceed the budget epsilon {plan.epsilon:g}."
                        )
                        break
                    account.record(charged)
                for part in parts:
                    part.follow(number + 1, partial(np.array, w, dtype=np.float64))
                run.uplink_bytes += a_round
                if replay is not None:
                    w = replay.step(clients, number, run.clips[number] if run.clips else 1.0)
                    run.replayed_bytes = replay.sent
                else:
                    mean = _lifted(parts, collects.mean(w, clients, number))
                    if run.clips:
                        mean = mean / run.clips[number]
                    v = training.momentum * v + mean
                    w = (w - training.lr * v).astype(np.float32)
                if parts:
                    run.records.append(_records(parts, number + 1, clients, run))
                largest = float(np.abs(w).max())
                if not largest < LARGEST:
                    raise Diverged(
                        f"The run diverged in round {number + 1}: parameters grew to {largest:g}; lower the step size."
                    )
                run.rounds, run.parameters = number + 1, w
                point = None
                if training.evaluated(number + 1):
                    point = _point(problem, run, began)
                    run.points.append(point)
                if progress is not None:
                    progress(number + 1, point)
            if run.rounds and (not run.points or run.points[-1].round != run.rounds):
                run.points.append(_point(problem, run, began))
    except KeyboardInterrupt:
        run.status, run.reason = INTERRUPTED, f"Interrupted in round {run.rounds + 1}."
    except Diverged as error:
        run.status, run.reason = DIVERGED, str(error)
    except QuietbitError as error:
        run.status, run.reason = REFUSED, f"Stopped in round {run.rounds + 1}: {error}"
    run.seconds = time.perf_counter() - began
    return run


@final
class _Replay:
    """Rounds that clients replay: the step is the one that they will take, and the bytes are those that each missed."""

    def __init__(
        self,
        w: Rows,
        plan: Plan,
        training: Training,
        collects: Collector,
        clients: int,
        lift: Lift,
    ) -> None:
        require(
            isinstance(collects, UplinkCollector), "replay", True, "left out with another collector"
        )
        self._collects = cast(UplinkCollector, collects)
        self._downlink = Downlink(w, ServerStep(training.lr, training.momentum), lift=lift)
        self._has = np.full(clients, -1)  # the round whose model a client has
        self.sent = 0

    def step(self, clients: NDArray[np.int64], number: int, unit: float) -> Rows:
        """Send the clients what they missed, and take the step of their mean in units of ``unit``."""
        state = self._downlink.replica
        for known, many in zip(*np.unique(self._has[clients], return_counts=True), strict=True):
            missed = self._downlink.since(int(known)) if known >= 0 else None
            self.sent += int(many) * (state.nbytes if missed is None else sum(map(len, missed)))
        self._has[clients] = state.round
        kept, mechanism = self._collects.kept(state.weights, clients, number)
        self._downlink.advance(kept / unit, mechanism, number + 1)
        return self._downlink.replica.weights.copy()


def _lifted(parts: Sequence[Part], mean: FloatVector) -> FloatVector:
    """Return the mean of the model's numbers, as the parts make it of a mean of releases."""
    for part in reversed(parts):
        mean = part.lift(mean)
    return mean


@final
@dataclass(frozen=True, slots=True)
class LocalRound:
    """What parts know of a round in one process."""

    number: int
    section: str = ""  # every client is asked for an update


def _records(
    parts: Sequence[Part], number: int, clients: NDArray[np.int64], run: Run
) -> dict[str, Any]:
    """Show a round to parts, the messages of its clients out and in, and return their records."""
    current = LocalRound(number)
    model = FLOAT_BYTES * run.parameters.size
    requests = [Asked(client, current) for client in clients.tolist()]
    for part in parts:
        part.ask(current, requests, None)
    for asked in requests:
        enclosed = sum(array.nbytes for array in asked.records.get(ENCLOSED, {}).values())
        run.enclosed_bytes += enclosed
        asked.size = model + enclosed
        for part in parts:
            part.sent(current, asked)
    for client in clients.tolist():
        for part in reversed(parts):
            part.take(current, Reply(client, run.bytes_per_client))
    records = {}
    for part in reversed(parts):
        record = part.close(current)
        if record:
            records[part.section] = dict(record)
    return records


def _priced(
    problem: Problem, plan: Plan, training: Training
) -> tuple[Mechanism | None, ClientCosts | None]:
    """Return the mechanism of a run and the account that it will keep.

    It is calibrated to the plan's own number of releases, or else to what the schedule asks of
    every client.
    """
    if not plan.private:
        return None, None
    releases = None
    if plan.mechanism.calibrated and plan.releases is None:
        releases = releases_per_client(plan.schedule(problem.sizes.size), training.rounds)
    mechanism = plan.mechanism_for(problem.dimension, problem.sizes, releases)
    return mechanism, plan.account(mechanism, problem.sizes)


def _point(problem: Problem, run: Run, began: float) -> Point:
    score = problem.evaluate(run.parameters)
    return Point(run.rounds, score, run.guarantee, run.uplink_bytes, time.perf_counter() - began)
