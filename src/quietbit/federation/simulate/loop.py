"""The reference of a run: one round after the other, in one process, from top to bottom.

Idea     a round is: who takes part; does the budget allow it; record the releases; ask; take the
         private mean; step; look. `simulate` writes these out. The capabilities of a plan are the
         parts of `quietbit.federation.parts`, with the hooks that an engine's rounds give them.
Symbols  w = parameters; v = momentum: v <- mu v + mean, w <- w - lr v.
Source   Guo et al. (ICML 2023), section "Federated Learning with Differential Privacy"; McMahan et
         al. (2017).

A round is a `federation.round.Round`, as it is of any engine; what is asked is answered by the
clients of one process (`clients.py`). The account is not that of an engine's run, which is
adaptive because nodes do not trust the server: a simulation knows beforehand who takes part how
often, accounts for that plan (`ClientCosts`), and has runs without releases: no privacy, or a
trusted server.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from logging import getLogger
from typing import Any, TypeAlias

import numpy as np

from quietbit._threads import one_thread
from quietbit._typing import FloatVector
from quietbit.errors import QuietbitError, require
from quietbit.federation.layout import named_arrays
from quietbit.federation.messages import ENCLOSED, MODEL, SPEED, Asked, Node
from quietbit.federation.part import Model, Part, Scope, begun, lifted
from quietbit.federation.parts.adaptive_clip import Scouting
from quietbit.federation.parts.subspace import Basis
from quietbit.federation.record import Counts
from quietbit.federation.round import Round, side_scope
from quietbit.federation.simulate.clients import Clients, ClientSide
from quietbit.federation.simulate.outcome import (
    DIVERGED,
    FINISHED,
    INTERRUPTED,
    REFUSED,
    TARGET,
    Point,
    Run,
)
from quietbit.federation.simulate.participation import releases_per_client
from quietbit.federation.simulate.plan import SimulatedPlan
from quietbit.federation.simulate.problem import PartsProblem, Problem, Rows, Training
from quietbit.mechanism.base import Mechanism
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
    "play_round",
    "simulate",
]

LARGEST = 1e15  # parameters beyond it have diverged: scores would overflow float32
RUN = b"simulation"  # the name of all runs, from which the rows of a round follow
WEIGHTS = "weights"  # the name of the model's one array

Progress: TypeAlias = Callable[[int, "Point | None"], None]


def simulate(
    problem: Problem,
    plan: SimulatedPlan,
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
    side = ClientSide(problem, training.local(plan), plan, mechanism, threads)
    step = None
    if plan.replay is not None:
        step = ServerStep(training.lr, training.momentum)
    w = np.array(problem.initial(plan.seed), dtype=np.float32)
    v = np.zeros(w.size)
    size = side.bytes_per_client
    run = Run(plan, training, mechanism, account, [], FINISHED, "", 0, w, size, 0.0)
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

                epsilon = None
                if account is not None:
                    # Does the budget allow it?
                    charged = schedule.charged(number - 1)
                    if plan.epsilon is not None:
                        epsilon = account.worst(plan.delta, after=charged).epsilon_upper
                    if epsilon is not None and epsilon > plan.target.epsilon:
                        run.status = TARGET
                        run.reason = (
                            f"Round {number} would exceed the budget epsilon {plan.epsilon:g}."
                        )
                        break
                    # Record the releases before any is made.
                    account.record(charged)
                run.uplink_bytes += side.round_bytes

                # Ask: parts complete the requests.
                model = Model.of(named_arrays({WEIGHTS: w}), plan.local_arrays, step)
                unit = run.clips[-1] if run.clips else 1.0
                current = _open_round(number, clients, mechanism, side, all_parts, model)
                current.skipped = True
                try:
                    _answer(current, side, w)

                    # Step: as clients will replay it, or with momentum on the mean.
                    step_of_nodes = current.advance(unit)
                    if step_of_nodes is not None and step_of_nodes.arrays is not None:
                        w = np.array(step_of_nodes.arrays[WEIGHTS])
                    else:
                        v = training.momentum * v + _mean(current) / unit
                        w = (w - training.lr * v).astype(np.float32)
                    _check_diverged(w, number)
                    current.skipped = False
                except QuietbitError as error:
                    current.not_taken(error)
                    raise
                finally:
                    run.round_reports.append(replace(current.close(), epsilon_upper=epsilon))
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


def play_round(
    number: int,
    clients: Clients,
    mechanism: Mechanism | None,
    side: ClientSide,
    parameters: Rows,
    parts: tuple[Part, ...] = (),
) -> Round:
    """Ask clients in a round without a model, and let them answer."""
    current = _open_round(number, clients, mechanism, side, parts)
    _answer(current, side, parameters)
    return current


def _open_round(
    number: int,
    clients: Clients,
    mechanism: Mechanism | None,
    side: ClientSide,
    parts: tuple[Part, ...],
    model: Model | None = None,
) -> Round:
    """Return a round that is about to ask these clients."""
    if mechanism is not None:
        mechanism = mechanism.for_round(RUN, number - 1)
    lift = partial(lifted, parts)
    scope = begun(parts, Scope(0, number, mechanism, model, side.clip, lift=lift))
    counts = defaultdict[Node, Counts](Counts)

    def make(scope: Scope) -> Round:
        return Round(
            scope=scope,
            collector=side.collector(scope),
            request={},
            counts=counts,
            parts=parts,
            side=lambda aside: make(side_scope(scope, aside)),
        )

    current = make(scope)
    current.start([Asked(client) for client in clients.tolist()])
    return current


def _answer(current: Round, side: ClientSide, parameters: Rows) -> None:
    """Let clients answer whatever a round asks, until it is over."""
    while (ask := current.next()) is not None:
        for asked in ask.requests:
            enclosed_bytes = _size(asked.records.get(ENCLOSED, {}).values())
            asked.size = _model_bytes(asked, current.model) + enclosed_bytes
            current.sent(asked)
        nodes = [asked.node for asked in ask.requests]
        for member in (*current.side_rounds, current):
            own = [node for node in nodes if current.of(node) is member]
            for reply in side.replies(member.scope, own, parameters):
                current.take(reply)


def _model_bytes(asked: Asked, model: Model | None) -> int:
    """Return the bytes of a request's model, or of the rounds that lead to it."""
    if not asked.carries_model:
        return sum(map(len, asked.records[MODEL]["broadcasts"]))
    arrays = []
    if model is not None:
        arrays = [array.value for array in model.arrays.values()]
    if SPEED in asked.records:
        arrays.append(asked.records[SPEED])
    return _size(arrays)


def _size(arrays: Any) -> int:
    return sum(int(array.nbytes) for array in arrays)


def _section_parts(plan: SimulatedPlan, basis: Basis | None) -> list[Part]:
    """Return the parts of a plan's sections; masks are left out, because they cancel exactly."""
    fits = basis is None or plan.subspace is not None
    require(fits, "basis", type(basis).__name__, "left out without a subspace in the plan")
    parts = []
    for section in plan.sections:
        if section is not plan.secure_aggregation:
            resource = basis if section is plan.subspace else None
            part = section.part(plan, getLogger("quietbit").log, resource)
            if part is not None:
                parts.append(part)
    return parts


def _mechanism(problem: Problem, plan: SimulatedPlan, training: Training) -> Mechanism | None:
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


def _mean(current: Round) -> FloatVector:
    """Return the mean of a round, of the model's numbers; a round without one raises."""
    mean = current.mean()
    if mean is None:
        raise QuietbitError(str(current.notes[0]) if current.notes else "no mean.")
    return current.lift(mean)


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
