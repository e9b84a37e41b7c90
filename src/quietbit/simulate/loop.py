"""The round loop: cohorts, private means, server steps, and the ledger of the run.

Idea     a round is six lines: who takes part; does the target allow it; record the releases; take the private
         mean; move with momentum; look. Everything else is in the files it calls.
Symbols  w = parameters; v = momentum: v <- mu v + mean, w <- w - lr v.
Source   Guo et al. (ICML 2023), section "Federated Learning with Differential Privacy"; McMahan et al. (2017).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast, final

import numpy as np

from quietbit._threads import one_thread
from quietbit._validate import QuietbitError
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.base import Mechanism
from quietbit.plan.account import Account
from quietbit.plan.choose import choose_mechanism
from quietbit.plan.participation import participation, releases_per_client
from quietbit.plan.problem import Problem, Rows, Score
from quietbit.plan.settings import Settings
from quietbit.privacy.guarantee import Guarantee, Trust
from quietbit.simulate.central import CentralCollector
from quietbit.simulate.client_rng import secure_client_rng, seeded_client_rng
from quietbit.simulate.cohort import Collector, PlainCollector, PrivateCollector

__all__ = ["Diverged", "Point", "Progress", "Run", "simulate"]

FINISHED, DIVERGED, INTERRUPTED, TARGET, REFUSED = "finished", "diverged", "interrupted", "target reached", "refused"
LARGEST = 1e15  # parameters beyond it have diverged: scores would overflow float32


class Diverged(QuietbitError):
    """A run whose parameters left the range of useful numbers."""


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

    settings: Settings
    mechanism: Mechanism | None
    account: Account | None
    points: list[Point]
    status: str
    reason: str
    rounds: int
    parameters: Rows
    bytes_per_client: int
    seconds: float

    @property
    def guarantee(self) -> Guarantee | None:
        """What holds for every client after all rounds; every release counts, scored or not."""
        return self.account.worst(self.settings.delta) if self.account is not None else None


def simulate(
    problem: Problem,
    settings: Settings,
    *,
    threads: int = 1,
    progress: Progress | None = None,
) -> Run:
    """Train with the settings and return what came of it.

    A run that diverges, meets a gradient that is not finite, is interrupted (Ctrl-C) or reaches its target
    returns too, with its status and every point it has; settings without a meaning are refused.
    """
    schedule = participation(settings.participation, problem.sizes.size, settings.cohort, settings.seed)
    collector, mechanism, account = _collector(problem, settings, threads)
    w = np.array(problem.initial(settings.seed), dtype=np.float32)
    v, sent, began = np.zeros(w.size), 0, time.perf_counter()
    run = Run(settings, mechanism, account, [], FINISHED, "", 0, w, collector.bytes_per_client, 0.0)
    try:
        # One thread per library call: the cohort is what is spread over threads.
        with one_thread():
            for number in range(settings.rounds):
                clients = schedule.cohort(number)
                if account is not None:
                    if _exceeds(account, settings, clients):
                        run.status = TARGET
                        run.reason = f"Round {number + 1} would exceed the target epsilon {settings.target_epsilon:g}."
                        break
                    account.record(clients)
                sent += clients.size * collector.bytes_per_client
                mean = collector.mean(w, clients, number)
                v = settings.momentum * v + mean
                w = (w - settings.lr * v).astype(np.float32)
                _check_finite(w, number)
                run.rounds, run.parameters = number + 1, w
                point = None
                if settings.evaluated(number + 1):
                    point = _point(problem, run, sent, began)
                    run.points.append(point)
                if progress is not None:
                    progress(number + 1, point)
            if run.rounds and (not run.points or run.points[-1].round != run.rounds):
                run.points.append(_point(problem, run, sent, began))
    except KeyboardInterrupt:
        run.status, run.reason = INTERRUPTED, f"Interrupted in round {run.rounds + 1}."
    except Diverged as error:
        run.status, run.reason = DIVERGED, str(error)
    except QuietbitError as error:
        run.status, run.reason = REFUSED, f"Stopped in round {run.rounds + 1}: {error}"
    run.seconds = time.perf_counter() - began
    return run


def _collector(
    problem: Problem, settings: Settings, threads: int
) -> tuple[Collector, Mechanism | None, Account | None]:
    if settings.mechanism == "none":
        return PlainCollector(problem, settings.plan, threads), None, None
    schedule = participation(settings.participation, problem.sizes.size, settings.cohort, settings.seed)
    rounds = settings.rounds if settings.calibrated else 0
    releases = releases_per_client(schedule, rounds)
    mechanism = choose_mechanism(settings, problem.dimension, problem.sizes, releases)
    trust = settings.privacy_trust
    adjacency = settings.privacy_adjacency
    account = Account(mechanism, problem.sizes, settings.privacy_unit, adjacency, trust, settings.honest)
    words = seeded_client_rng(settings.seed) if settings.words == "seeded" else secure_client_rng()
    if trust is Trust.CENTRAL:
        plain = PlainCollector(problem, settings.plan, threads)
        return CentralCollector(plain, cast(Gaussian, mechanism), words), mechanism, account
    masked = settings.cohort if trust is Trust.SECURE_AGGREGATION else None
    return PrivateCollector(problem, settings.plan, mechanism, words, threads, masked), mechanism, account


def _exceeds(account: Account, settings: Settings, clients: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    target = settings.target_epsilon
    return target is not None and account.worst(settings.delta, after=clients).epsilon_upper > target


def _check_finite(w: Rows, number: int) -> None:
    largest = float(np.abs(w).max())
    if not largest < LARGEST:
        raise Diverged(f"The run diverged in round {number + 1}: parameters grew to {largest:g}; lower the step size.")


def _point(problem: Problem, run: Run, sent: int, began: float) -> Point:
    score = problem.evaluate(run.parameters)
    return Point(run.rounds, score, run.guarantee, sent, time.perf_counter() - began)
