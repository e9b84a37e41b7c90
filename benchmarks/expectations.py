"""What the verdicts of `quietbit compare` are worth.

Accuracy over noise, and errors that were promised and found.

    python benchmarks/expectations.py                # thresholds on digits, and the situations: a
    few minutes python benchmarks/expectations.py --mnist DATA   # thresholds on MNIST too: a linear
    model on pixels

Thresholds. A linear model is trained with Gaussian noise added to the mean of each round, so loud
that the noise over the run (`Forecast.run_noise`, rho) is the one wanted; the accuracy is that
of the best step size.

Situations. `compare` is asked, and its answer held against the mean of vectors that a simulation
finds, every update sent and received: the noise over the run, and what codes that saturate take off
the mean (`Forecast.response`). Promised and found errors must agree within a factor 1.5, or the
script says NO and exits with 1.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from quietbit import Trust, compare
from quietbit.federation.simulate import Problem, Training, simulate
from quietbit_lab.schedule import ScheduledPlan
from quietbit_lab.task.registry import TaskSpec, build_task
from quietbit_lab.task.vectors import VectorMean

NOISES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
STEPS = (0.02, 0.06, 0.2, 0.6, 2.0)
SEEDS = (1, 2, 3)
FACTOR = 1.5
# parameters, clients, cohort, rounds, epsilon, adjacency, trust, mechanism
SITUATIONS: tuple[tuple[int, int, int, int, float, str, str, str], ...] = (
    (200, 8000, 4000, 4, 8.0, "zero-out", "local", "vmvu"),
    (650, 1437, 359, 32, 8.0, "zero-out", "local", "vmvu"),
    (650, 1437, 359, 32, 8.0, "zero-out", "local", "imvu"),
    (650, 1437, 359, 32, 8.0, "zero-out", "secure-aggregation", "imvu"),
    (7850, 3000, 600, 20, 4.0, "replace-one", "local", "imvu"),
    (7850, 3000, 600, 20, 4.0, "replace-one", "secure-aggregation", "imvu"),
    (7850, 3000, 600, 20, 4.0, "replace-one", "central", "gaussian"),
    (100_000, 200, 100, 4, 1.0, "replace-one", "local", "imvu"),
    (100_000, 200, 100, 4, 1.0, "replace-one", "local", "vmvu"),
)


def accuracy(problem: Problem, cohort: int, rounds: int, noise: float) -> tuple[float, float]:
    """The best over step sizes of the mean over seeds, at this noise over the run; and the step."""
    best = (0.0, 0.0)
    for step in STEPS:
        scores = []
        for seed in SEEDS:
            common: dict[str, Any] = {
                "clip": 1.0,
                "adjacency": "zero-out",
                "cohort": cohort,
                "rng": "seeded",
                "seed": seed,
                "participation": "sampled",
            }
            plan = ScheduledPlan("none", **common)
            if noise > 0:
                multiplier = noise * math.sqrt(rounds) * cohort / math.sqrt(problem.dimension)
                chosen = {"name": "gaussian", "noise_multiplier": multiplier}
                plan = ScheduledPlan(chosen, trust=Trust.CENTRAL, **common)
            run = simulate(problem, plan, Training(lr=step, rounds=rounds))
            scores.append(run.points[-1].score.accuracy if run.points else 0.0)
        best = max(best, (float(np.mean(scores)), step))
    return best


def thresholds(mnist: Path | None) -> None:
    """A table: accuracy over the noise of the run, for tasks, rounds, and samples of a client."""
    tasks: list[tuple[str, Problem, int, int]] = []
    digits = build_task(TaskSpec("digits"))
    tasks += [
        ("digits, 1 sample, 30 rounds", digits, 143, 30),
        ("digits, 1 sample, 120 rounds", digits, 143, 120),
    ]
    if mnist is not None:
        for samples, cohort in ((1, 600), (10, 200)):
            problem = build_task(TaskSpec("mnist", "linear", samples=samples), data=mnist)
            tasks.append(
                (
                    f"MNIST, {samples} sample{'s' if samples > 1 else ''}, 100 rounds",
                    problem,
                    cohort,
                    100,
                )
            )
    print("| noise over the run / clip | " + " | ".join(f"{noise:g}" for noise in NOISES) + " |")
    print("|---" * (len(NOISES) + 1) + "|")
    for name, problem, cohort, rounds in tasks:
        found = [accuracy(problem, cohort, rounds, noise)[0] for noise in NOISES]
        print(
            f"| {name} | " + " | ".join(f"{100 * score:.0f}" for score in found) + " |", flush=True
        )


def situations() -> bool:
    """A table of errors promised and found; whether all agree."""
    print(
        "\n| parameters | clients, cohort, rounds | epsilon | trust | mechanism | verdict | promised | found | agree |"
    )
    print("|---:|---|---:|---|---|---|---:|---:|---|")
    agree = True
    for dimension, clients, cohort, rounds, epsilon, adjacency, trust, mechanism in SITUATIONS:
        answer = compare(
            dimension,
            epsilon=epsilon,
            delta=1e-5,
            adjacency=adjacency,
            clients=clients,
            cohort=cohort,
            rounds=rounds,
            trust=trust,
        )
        row = next(row for row in answer.rows if row.name == mechanism)
        expected = row.expected
        if expected is None:
            raise SystemExit(f"{mechanism} does not reach the target: {row.refusal}")
        plan = ScheduledPlan(
            mechanism,
            clip=1.0,
            adjacency=answer.target.adjacency,
            epsilon=epsilon,
            trust=row.trust,
            cohort=cohort,
            rng="seeded",
        )
        problem = VectorMean(dimension, clients, length=0.9)
        run = simulate(
            problem, plan, Training(lr=1 / rounds, rounds=rounds, momentum=0.0), threads=2
        )
        exact = np.zeros(dimension)
        for number in range(rounds):  # those who took part: an epoch may leave a few out
            exact += problem.vectors[plan.schedule(clients).cohort(number)].mean(axis=0) / rounds
        found = float(np.linalg.norm(run.parameters - exact))
        promised = math.hypot(
            expected.run_noise, (1 - expected.response) * float(np.linalg.norm(exact))
        )
        close = promised / FACTOR <= found <= promised * FACTOR
        agree = agree and close
        print(
            f"| {dimension:,} | {clients:,}, {cohort:,}, {rounds} | {epsilon:g}, {adjacency} | {trust} | {mechanism} | "
            f"{expected.verdict.value} | {promised:.3g} | {found:.3g} | {'yes' if close else 'NO'} |",
            flush=True,
        )
    return agree


def main() -> int:
    """Both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mnist", type=Path, metavar="DATA", help="the folder of data sets: train on MNIST too"
    )
    given = parser.parse_args()
    thresholds(given.mnist)
    return 0 if situations() else 1


if __name__ == "__main__":
    raise SystemExit(main())
