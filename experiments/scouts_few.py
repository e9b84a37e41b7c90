r"""A clip that follows scouts among twenty clients, whose updates grow with the noise.

Idea     20 clients with 70 digits each, 40 rounds of FedAvg, everybody in every round: the mean is
         added as it is, as Flower does it. Clients undo the noise of the last round, so their
         updates are as long as the noise, and a clip that follows lengths alone follows itself.
         Five seeds, a fixed clip of 1 beside one that begins there, and for few and for many local
         steps. Every payload and every answer is a real one.

    python experiments/scouts_few.py --out experiments/results/scouts-few.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from quietbit import Uplink
from quietbit.federation.simulate.plan import SimulatedPlan
from quietbit.federation.simulate.problem import LocalPlan
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.forecast import forecast
from quietbit.mechanism.scouts import Scout
from quietbit_lab.task.registry import TaskSpec, build_task

CLIENTS, ROUNDS, SEEDS = 20, 40, (1, 2, 3, 4, 5)
SETTINGS = ((60.0, 5, 0.5), (60.0, 40, 1.0), (60.0, 100, 2.0), (200.0, 5, 0.5), (200.0, 40, 1.0))
FAR = 1e6  # clients do not clip: the mechanism does


def train(
    problem: Any, plan: SimulatedPlan, seed: int, steps: int, rate: float
) -> tuple[float, list[float]]:
    """Return the accuracy in the end, and the clips."""
    mechanism, moving = (
        plan.mechanism_for(problem.dimension),
        plan.adaptive_clip.moving(plan.clip) if plan.adaptive_clip else None,
    )
    local = LocalPlan(Norm.L2, FAR, steps=steps, rate=rate)
    weights = np.array(problem.initial(seed), dtype=np.float32)
    run = f"run {seed}".encode()
    for number in range(ROUNDS):
        updates = np.zeros((CLIENTS, problem.dimension), np.float32)
        problem.updates(weights, np.arange(CLIENTS), local, updates)
        updates *= rate  # from the mean gradient to the way that a client went
        here: Any = mechanism
        clip = plan.clip if moving is None else moving.clip
        uplink = Uplink(here, clip=clip)
        mean = uplink.aggregator()
        scouts = (
            []
            if moving is None
            else [c for c in range(CLIENTS) if not here.is_turn_of(run, number, c)]
        )
        for client in range(CLIENTS):
            if client not in scouts:
                mean.add(uplink.send(updates[client]))
        if moving is not None and scouts:
            asks = Uplink(Scout(here), clip=clip)
            said = asks.aggregator()
            said.add_all(asks.send(updates[client]) for client in scouts)
            moving.move(said.answers(), forecast(here, cohort=CLIENTS - len(scouts)).noise)
        elif moving is not None:
            moving.stay()
        weights = (weights - mean.mean()).astype(np.float32)
    return 100 * float(problem.evaluate(weights).accuracy), [] if moving is None else list(
        moving.history
    )


def main() -> None:
    """Train every setting both ways, and write after every line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    problem = build_task(TaskSpec("digits", samples=70))
    lines: list[dict[str, Any]] = []
    for epsilon, steps, rate in SETTINGS:
        for clip in (1.0, "auto"):
            plan = SimulatedPlan(
                "gaussian",
                clip=clip,
                adjacency="zero-out",
                epsilon=epsilon,
                releases=ROUNDS,
                cohort=CLIENTS,
            )
            runs = [train(problem, plan, seed, steps, rate) for seed in SEEDS]
            found = np.array([accuracy for accuracy, _ in runs])
            lines.append(
                {
                    "epsilon": epsilon,
                    "local_steps": steps,
                    "local_rate": rate,
                    "clip": clip,
                    "seeds": SEEDS,
                    "accuracies": found.tolist(),
                    "mean": float(found.mean()),
                    "deviation": float(found.std(ddof=1)),
                    "last_clips": [clips[-1] for _, clips in runs if clips],
                    "largest_clips": [max(clips) for _, clips in runs if clips],
                }
            )
            print(json.dumps(lines[-1]), flush=True)
            given.out.write_text(
                json.dumps({"clients": CLIENTS, "rounds": ROUNDS, "lines": lines}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
