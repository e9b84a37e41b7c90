"""The demo's training: the embedded digits under three trust models, with three guarantees.

Idea     where the server sees sums alone, 1,437 clients with one image each are enough: one bit per
         parameter trains nearly as well as noise that a trusted server adds. Where it sees every
         update, it takes many more, so there 10,000 simulated clients hold one of the 1,437 images
         each, drawn at random, take part once, and send 80 bytes. A run without noise shows what
         the task allows.
Choice   rounds, momentum and steps were compared on 360 images split off the training images (four
         to six splits); the test images had no part in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from quietbit.cli.console import Report
    from quietbit.federation.simulate.problem import Problem
    from quietbit_lab.experiment.grid import Job
    from quietbit_lab.experiment.sweep import MakeProblem

__all__ = [
    "CLIENTS",
    "DELTA",
    "LINES",
    "SEEDS",
    "TARGET",
    "Line",
    "curves",
    "headline",
    "train_all",
]

EPSILONS = (1.0, 2.0, 4.0)
DELTA = 1e-5
SEEDS = 3
TARGET = EPSILONS[-1]  # the guarantee of the closing table
CLIENTS = 1437
MANY = 10_000
CLIP = 1.0
EVERY = 2
PUBLIC = "none"


class Line(NamedTuple):
    """A line of the demo: a mechanism under a trust model, and how it is trained.

    ``seeds`` of None are `SEEDS`.
    """

    label: str
    mechanism: str
    trust: str
    epochs: int
    per_epoch: int
    step: float
    momentum: float
    clients: int = CLIENTS
    seeds: int | None = None

    @property
    def cohort(self) -> int:
        """Clients of a round; each takes part once per epoch."""
        return self.clients // self.per_epoch


LINES = (
    Line("Vector, 10,000 clients", "vmvu", "local", 1, 16, 2.5, 0.5, MANY, 1),
    Line("Secure sums, 1,437 clients", "imvu", "secure-aggregation", 3, 4, 1.6, 0.8),
    Line("Trusted server, 1,437 clients", "gaussian", "central", 3, 4, 1.6, 0.8),
    Line("No privacy, 1,437 clients", PUBLIC, "local", 8, 4, 2.0, 0.8),
)


def train_all(report: Report) -> list[dict[str, Any]]:
    """Train every mechanism at every epsilon with every seed; return them as a sweep's results."""
    from quietbit.errors import QuietbitError
    from quietbit.federation.simulate.loop import FINISHED
    from quietbit_lab.experiment.sweep import run_job

    jobs = _jobs(secrets.randbits(32))
    results = []
    last = ""
    clients = {line.label: line.clients for line in LINES}
    for place, job in enumerate(jobs):
        target = job.setting.plan.epsilon
        if target is not None:
            words = f"epsilon {target:g}"
        else:
            words = "for comparison"
        report(place / len(jobs), f"{place + 1} of {len(jobs)}: {job.label}, {words}{last}")
        results.append(
            run_job(job, _problem(clients[job.label]), fresh=clients[job.label] != CLIENTS)
        )
        record = results[-1]["record"]
        if record["status"] != FINISHED:
            raise QuietbitError(record["reason"])
        last = f" (the last: {100 * record['points'][-1]['accuracy']:.0f} % right)"
    return results


def _problem(clients: int) -> MakeProblem:
    """Return the function that makes the task: one image per client, drawn again if too few."""
    import numpy as np

    from quietbit_lab.task.dataset import Dataset, Examples, Partition
    from quietbit_lab.task.linear import LinearSoftmax
    from quietbit_lab.task.registry import TaskSpec, build_task

    def make(task: Mapping[str, Any], seed: int) -> Problem:
        problem = build_task(TaskSpec.from_json(dict(task)))
        if clients == CLIENTS:
            return problem
        dataset = cast(LinearSoftmax, problem).dataset
        drawn = np.random.default_rng(seed).integers(0, dataset.train.count, clients)
        held = Examples(dataset.train.inputs[drawn], dataset.train.labels[drawn])
        return LinearSoftmax(
            Dataset(dataset.name, dataset.classes, held, dataset.test), Partition.one_each(clients)
        )

    return make


def _jobs(first: int) -> list[Job]:
    from quietbit.federation.simulate.problem import Training
    from quietbit.target import Adjacency, Trust
    from quietbit_lab.experiment.grid import Job
    from quietbit_lab.experiment.record import Setting
    from quietbit_lab.schedule import ScheduledPlan
    from quietbit_lab.task.registry import TaskSpec

    jobs = []
    task = TaskSpec("digits").to_json()
    for line in LINES:
        for target in EPSILONS if line.mechanism != PUBLIC else (None,):
            for seed in range(line.seeds or SEEDS):
                plan = ScheduledPlan(
                    line.mechanism,
                    clip=CLIP,
                    adjacency=Adjacency.ZERO_OUT,
                    epsilon=target,
                    delta=DELTA,
                    cohort=line.cohort,
                    trust=Trust(line.trust),
                    seed=first + seed,
                )
                rounds = line.epochs * line.per_epoch
                training = Training(line.step, rounds, momentum=line.momentum, evaluate_every=EVERY)
                jobs.append(Job(Setting(plan, training), task, line.label))
    return jobs


def _records(trained: list[dict[str, Any]], line: Line) -> list[dict[str, Any]]:
    """Return the runs of a line at the last epsilon, or without privacy."""
    records = [result["record"] for result in trained if result["label"] == line.label]
    return [record for record in records if record["settings"]["epsilon"] in (TARGET, None)]


def headline(trained: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the closing table shows: every mechanism at the last epsilon, over its seeds."""
    from quietbit_lab.experiment.frontier import deviation

    facts = []
    for line in LINES:
        runs = _records(trained, line)
        accuracies = [record["points"][-1]["accuracy"] for record in runs]
        worst = max(
            (r["guarantee"] for r in runs if r["guarantee"]),
            key=lambda g: g["epsilon_upper"],
            default=None,
        )
        facts.append(
            {
                "label": line.label,
                "clients": line.clients,
                "accuracy": fmean(accuracies),
                "deviation": deviation(accuracies),
                "seeds": len(runs),
                "epsilon_upper": worst["epsilon_upper"] if worst else None,
                "guarantee": worst["sentence"] if worst else None,
                "bytes_per_client_and_round": runs[0]["bytes_per_client"],
                "releases": line.epochs,
                "bytes_per_client": line.epochs * runs[0]["bytes_per_client"],
            }
        )
    return facts


def curves(trained: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return rounds and mean accuracies at the last epsilon, for the plot."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for line in LINES:
        if line.mechanism != PUBLIC:
            runs = [record["points"] for record in _records(trained, line)]
            lines[line.label] = [
                (points[0]["round"], fmean(point["accuracy"] for point in points))
                for points in zip(*runs, strict=True)
            ]
    return lines
