"""The reference of a run: one round after the other, in one process, from top to bottom.

Idea     a round is: who takes part; does the budget allow it; record the releases; ask; take the
         private mean; step; look. `simulate` writes these out. The capabilities of a plan are the
         parts of `quietbit.run.parts`, with the hooks that an engine's rounds give them.
Symbols  w = parameters; v = momentum: v <- mu v + mean, w <- w - lr v.
Source   Guo et al. (ICML 2023), section "Federated Learning with Differential Privacy"; McMahan et
         al. (2017).

Why this is not a `quietbit.run.server.Run`: that carries a message per node, whose account is
adaptive because nodes do not trust the server, and reads a frame per reply. A simulation computes
the updates of many clients in one call, knows beforehand who takes part how often, accounts for
that plan (`ClientCosts`), and has runs without releases: no privacy, or a trusted server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import TypeAlias

import numpy as np

from quietbit._threads import one_thread
from quietbit.errors import QuietbitError, require
from quietbit.local.collect import make_collector
from quietbit.local.outcome import (
    DIVERGED,
    FINISHED,
    INTERRUPTED,
    REFUSED,
    TARGET,
    Point,
    Run,
)
from quietbit.local.problem import PartsProblem, Problem, Rows, Training
from quietbit.local.round import Clients, open_round
from quietbit.mechanism.base import Mechanism
from quietbit.run.costs import ClientCosts
from quietbit.run.layout import named_arrays
from quietbit.run.part import Part
from quietbit.run.participation import releases_per_client
from quietbit.run.parts.scouts import Scouting
from quietbit.run.parts.subspace import Basis
from quietbit.run.plan import Plan
from quietbit.run.round import Model
from quietbit.target import Unit
from quietbit.wire.downlink import Diverged, ServerStep

__all__ = [
    "DIVERGED",
    "FINISHED",
    "INTERRUPTED",
    "LARGEST",
    "TARGET",
    "Point",
    "Progress",
    "Run",
    "simulate",
]

LARGEST = 1e15  # parameters beyond it have diverged: scores would overflow float32
WEIGHTS = "weights"  # the name of the model's one array

Progress: TypeAlias = Callable[[int, "Point | None"], None]


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
    all_parts = (*_section_parts(plan, basis), *parts)
    if plan.unit is Unit.CLIENT and (parts or plan.subspace is not None):
        problem = PartsProblem(problem, all_parts)
    mechanism = _mechanism(problem, plan, training)
    account = None
    if mechanism is not None:
        account = plan.account(mechanism, problem.sizes)
    collector = make_collector(problem, training.local(plan), plan, mechanism, threads)
    step = None
    if plan.replay is not None:
        step = ServerStep(training.lr, training.momentum)
    w = np.array(problem.initial(plan.seed), dtype=np.float32)
    v = np.zeros(w.size)
    release_bytes = collector.bytes_per_client
    run = Run(plan, training, mechanism, account, [], FINISHED, "", 0, w, release_bytes, 0.0)
    for part in all_parts:
        if isinstance(part, Scouting):
            run.clips = part.moving.history
    began = time.perf_counter()
    try:
        # One thread per library call: the cohort is what is spread over threads.
        with one_thread():
            for number in range(1, training.rounds + 1):
                # Who takes part.
                clients = schedule.cohort(number - 1)

                if account is not None:
                    # Does the budget allow it?
                    charged = schedule.charged(number - 1)
                    if _exceeds_budget(plan, account, charged):
                        run.status = TARGET
                        run.reason = (
                            f"Round {number} would exceed the budget epsilon {plan.epsilon:g}."
                        )
                        break
                    # Record the releases before any is made.
                    account.record(charged)
                run.uplink_bytes += collector.round_bytes

                # Ask: parts prepare the mechanism and complete the requests.
                model = Model.of(named_arrays({WEIGHTS: w}), plan, step)
                current = open_round(
                    number,
                    clients,
                    mechanism,
                    parts=all_parts,
                    model=model,
                    release_bytes=release_bytes,
                    unit=run.clips[-1] if run.clips else 1.0,
                )
                current.ask()
                collector.collect(current, w)
                current.take()

                # Step: as clients will replay it, or with momentum on the mean.
                replayed = current.advance()
                if replayed is not None and replayed.arrays is not None:
                    w = np.array(replayed.arrays[WEIGHTS])
                    run.replayed_bytes = (run.replayed_bytes or 0) + current.model_bytes
                else:
                    mean = current.lift(current.mean()) / current.unit
                    v = training.momentum * v + mean
                    w = (w - training.lr * v).astype(np.float32)
                run.enclosed_bytes += current.enclosed_bytes
                run.records.append(current.close())
                _check_diverged(w, number)
                run.rounds = number
                run.parameters = w

                # Look.
                point = None
                if training.evaluated(number):
                    point = _point(problem, run, began)
                    run.points.append(point)
                if progress is not None:
                    progress(number, point)
            if run.rounds and (not run.points or run.points[-1].round != run.rounds):
                run.points.append(_point(problem, run, began))
    except KeyboardInterrupt:
        run.status = INTERRUPTED
        run.reason = f"Interrupted in round {run.rounds + 1}."
    except Diverged as error:
        run.status = DIVERGED
        run.reason = str(error)
    except QuietbitError as error:
        run.status = REFUSED
        run.reason = f"Stopped in round {run.rounds + 1}: {error}"
    run.seconds = time.perf_counter() - began
    return run


def _section_parts(plan: Plan, basis: Basis | None) -> list[Part]:
    """Return the parts of a plan's sections; masks are left out, because they cancel exactly."""
    fits = basis is None or plan.subspace is not None
    require(fits, "basis", type(basis).__name__, "left out without a subspace in the plan")
    parts = []
    for section in plan.sections:
        if section is not plan.masks:
            resource = basis if section is plan.subspace else None
            part = section.part(plan, getLogger("quietbit").log, resource)
            if part is not None:
                parts.append(part)
    return parts


def _mechanism(problem: Problem, plan: Plan, training: Training) -> Mechanism | None:
    """Return the mechanism of a run; None without privacy.

    It is calibrated to the plan's own number of releases, or else to what the schedule asks of
    every client.
    """
    if not plan.private:
        return None
    releases = None
    if plan.mechanism.calibrated and plan.releases is None:
        releases = releases_per_client(plan.schedule(problem.sizes.size), training.rounds)
    return plan.mechanism_for(problem.dimension, problem.sizes, releases)


def _exceeds_budget(plan: Plan, account: ClientCosts, charged: Clients) -> bool:
    """Return whether one more release of each of these clients would cost more than planned."""
    if plan.epsilon is None:
        return False
    return account.worst(plan.delta, after=charged).epsilon_upper > plan.epsilon


def _check_diverged(w: Rows, number: int) -> None:
    """Raise where parameters have become too large, or not a number."""
    largest = float(np.abs(w).max())
    if not largest < LARGEST:
        raise Diverged(
            f"The run diverged in round {number}: parameters grew to {largest:g}; "
            "lower the step size."
        )


def _point(problem: Problem, run: Run, began: float) -> Point:
    """Score the model of a run."""
    score = problem.evaluate(run.parameters)
    return Point(run.rounds, score, run.guarantee, run.uplink_bytes, time.perf_counter() - began)
