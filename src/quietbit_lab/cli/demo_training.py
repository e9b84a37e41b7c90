"""The demo's training: the embedded digits under three trust models, three guarantees, three seeds each.

Idea     1,437 clients with one image each are few, and the demo shows what that means. Where the server sees sums
         alone, one bit per parameter trains nearly as well as noise that a trusted server adds. Where it sees every
         update, every client takes part once, and the vector mechanism gets the most out of it. A run without noise
         shows what the task allows.
Choice   rounds, momentum and steps were compared on 360 images split off the training images (four to six splits);
         the test images had no part in it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from quietbit.cli.console import Report
    from quietbit_lab.experiment.record import Setting

__all__ = [
    "CLIENTS", "DELTA", "LINES", "SEEDS", "TARGET", "Line", "Trained", "curves", "headline", "sweep_lines", "train_all",
]  # fmt: skip

EPSILONS, DELTA, SEEDS = (1.0, 2.0, 4.0), 1e-5, 3
TARGET = EPSILONS[-1]  # the guarantee of the closing table
CLIENTS, CLIP, EVERY = 1437, 1.0, 2
PUBLIC = "none"


class Line(NamedTuple):
    """What is trained: a mechanism under a trust, for ``epochs`` of ``per_epoch`` rounds, with a step and momentum."""

    label: str
    mechanism: str
    trust: str
    epochs: int
    per_epoch: int
    step: float
    momentum: float

    @property
    def cohort(self) -> int:
        """Clients of a round; each takes part once per epoch."""
        return CLIENTS // self.per_epoch


LINES = (
    Line("Secure sums, 1 bit", "imvu", "secure-aggregation", 3, 4, 1.6, 0.8),
    Line("Trusted server, 32 bits", "gaussian", "central", 3, 4, 1.6, 0.8),
    Line("Vector, 80 bytes", "vmvu", "local", 1, 8, 1.6, 0.5),
    Line("without noise", PUBLIC, "local", 8, 4, 2.0, 0.8),
)


class Trained(NamedTuple):
    """A finished run, as its record, with its name and the epsilon it was calibrated to."""

    label: str
    target: float | None
    record: dict[str, Any]


def train_all(report: Report) -> list[Trained]:
    """Train every mechanism at every epsilon with every seed; an interrupt ends all of it."""
    from quietbit.errors import QuietbitError
    from quietbit.simulate.loop import FINISHED, INTERRUPTED, simulate
    from quietbit_lab.experiment.record import run_record
    from quietbit_lab.task.registry import TaskSpec, build_task

    spec = TaskSpec("digits")
    problem, first = build_task(spec), secrets.randbits(32)
    jobs = _jobs(first)
    found: list[Trained] = []
    for place, (label, target, setting) in enumerate(jobs):
        words = f"epsilon {target:g}" if target is not None else "for comparison"
        report(place / len(jobs), f"{place + 1} of {len(jobs)}: {label}, {words}{_last(found)}")
        run = simulate(problem, setting.plan, setting.training)
        if run.status == INTERRUPTED:
            raise KeyboardInterrupt
        if run.status != FINISHED:
            raise QuietbitError(run.reason)
        found.append(Trained(label, target, run_record(run, spec.to_json())))
    return found


def _jobs(first: int) -> list[tuple[str, float | None, Setting]]:
    from quietbit.plan.plan import Plan
    from quietbit.privacy.guarantee import Adjacency, Trust
    from quietbit.simulate.training import Training
    from quietbit_lab.experiment.record import Setting

    jobs: list[tuple[str, float | None, Setting]] = []
    for line in LINES:
        # A secret order of clients gives releases to the server a second guarantee; a sum shows no order at all.
        order = "secret-order" if line.trust == "local" and line.mechanism != PUBLIC else "each-once"
        for target in EPSILONS if line.mechanism != PUBLIC else (None,):
            for seed in range(SEEDS):
                plan = Plan(
                    line.mechanism,
                    clip=CLIP,
                    adjacency=Adjacency.ZERO_OUT,
                    epsilon=target,
                    delta=DELTA,
                    cohort=line.cohort,
                    participation=order,
                    trust=Trust(line.trust),
                    seed=first + seed,
                )
                rounds = line.epochs * line.per_epoch
                training = Training(line.step, rounds, momentum=line.momentum, evaluate_every=EVERY)
                jobs.append((line.label, target, Setting(plan, training)))
    return jobs


def _last(found: list[Trained]) -> str:
    """Return what the run before reached, to look at while the next one works."""
    return f" (the last: {100 * found[-1].record['points'][-1]['accuracy']:.0f} % right)" if found else ""


def sweep_lines(trained: list[Trained]) -> bytes:
    """Return the runs in the form of a sweep's results, which ``quietbit report`` and ``quietbit figure`` read."""
    lines = []
    for one in trained:
        text = json.dumps([one.label, one.record["settings"]], sort_keys=True)
        job = hashlib.sha256(text.encode()).hexdigest()[:24]
        line = {"sweep": "demo", "job": job, "label": one.label, "record": one.record}
        lines.append(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
    return "".join(lines).encode()


def _second(runs: list[dict[str, Any]]) -> str | None:
    """Return what holds against those who see the models alone, where that is more than against the server."""
    found = [pair for record in runs if (pair := record.get("observers") or {}).get("result")]
    worst = max(found, key=lambda pair: pair["result"]["epsilon_upper"], default=None)
    if worst is None or worst["result"]["epsilon_upper"] > 0.99 * TARGET:
        return None
    return str(worst["sentence"])


def headline(trained: list[Trained]) -> list[dict[str, Any]]:
    """Return what the closing table shows: every mechanism at the last epsilon, over its seeds."""
    from quietbit_lab.experiment.frontier import deviation

    facts = []
    for line in LINES:
        runs = [one.record for one in trained if one.label == line.label and one.target in (TARGET, None)]
        accuracies = [record["points"][-1]["accuracy"] for record in runs]
        worst = max((r["guarantee"] for r in runs if r["guarantee"]), key=lambda g: g["epsilon_upper"], default=None)
        facts.append(
            {
                "label": line.label,
                "accuracy": fmean(accuracies),
                "deviation": deviation(accuracies),
                "seeds": len(runs),
                "epsilon_upper": worst["epsilon_upper"] if worst else None,
                "guarantee": worst["sentence"] if worst else None,
                "second": _second(runs),
                "bytes_per_client_and_round": runs[0]["bytes_per_client"],
                "releases": line.epochs,
                "bytes_per_client": line.epochs * runs[0]["bytes_per_client"],
            }
        )
    return facts


def curves(trained: list[Trained]) -> dict[str, list[tuple[int, float]]]:
    """Return rounds and mean accuracies at the last epsilon, for the plot."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in LINES:
        runs = [one.record["points"] for one in trained if one.label == line.label and one.target == TARGET]
        if line.mechanism != PUBLIC and runs:
            found[line.label] = [
                (points[0]["round"], fmean(point["accuracy"] for point in points)) for points in zip(*runs, strict=True)
            ]
    return found
