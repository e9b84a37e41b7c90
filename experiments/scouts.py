r"""A clip that is wrong by up to ten times: fixed, and following scouts.

Idea     softmax regression on fixed features, a client per example, every client as often as
         `--epochs` says. Means are drawn from their law: Gaussian noise exactly, and for `vmvu` a
         normal of its squared error (worst update of the ball) in place of the sum of a thousand
         decoded payloads. Answers are drawn from theirs. Two seeds choose clip and step of the
         fixed clip, and step and share of the moving one from the same start; five others report
         both, begun at 0.1, 0.3, 1, 3 and 10 times that clip. Steps are in units of the clip, for
         all.

    PYTHONPATH=src QUIETBIT_DATA=data python experiments/scouts.py --task mnist \
        --out experiments/results/scouts-mnist.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from quietbit import MovingClip
from quietbit.federation.simulate import SimulatedPlan
from quietbit.mechanism.base import Answers
from quietbit.mechanism.scouts import scout_rank

CHOOSING, REPORTING = (101, 102), (1, 2, 3, 4, 5)
STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)
SHARES = (0.3, 0.5)
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
EVERY, MOMENTUM, DELTA = 20, 0.5, 1e-5
WAYS = ("fixed", "scouts")


class Data:
    """Features with a one behind them, and labels."""

    def __init__(self, task: str, folder: Path) -> None:
        if task == "mnist":
            from quietbit_lab.task.registry import TaskSpec, build_task

            found = build_task(TaskSpec("mnist", "linear"), data=folder, seed=0).dataset
            parts = [
                (one.inputs.reshape(one.inputs.shape[0], -1), one.labels)
                for one in (found.train, found.test)
            ]
            self.clips: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
        else:
            files = [
                np.load(folder / "cifar10-features" / f"{name}.npz") for name in ("train", "test")
            ]
            parts = [(one["features"] * files[0]["steps"], one["labels"]) for one in files]
            self.clips = (0.3, 1.0, 3.0, 10.0)
        (self.train, self.labels), (self.test, self.test_labels) = (
            (
                np.hstack([x.astype(np.float32), np.ones((len(x), 1), np.float32)]),
                y.astype(np.int64),
            )
            for x, y in parts
        )
        self.lengths = np.linalg.norm(self.train, axis=1)
        self.classes = int(self.labels.max()) + 1
        self.dimension = self.classes * self.train.shape[1]


class Setting:
    """A task, a budget, and one mechanism for each way."""

    def __init__(self, data: Data, given: argparse.Namespace) -> None:
        self.data, self.epochs, self.cohort = data, given.epochs, given.cohort
        usual: Any = {
            "mechanism": given.mechanism,
            "clip": 1.0,
            "adjacency": "zero-out",
            "epsilon": given.epsilon,
            "delta": DELTA,
            "releases": given.epochs,
            "cohort": given.cohort,
        }
        plans = {
            "fixed": SimulatedPlan(**usual),
            "scouts": SimulatedPlan(**usual, adaptive_clip={"every": EVERY}),
        }
        made: dict[str, Any] = {
            way: plan.mechanism_for(data.dimension) for way, plan in plans.items()
        }
        self.asked: Any = made["scouts"].answer
        self.squared = {way: one.error().squared for way, one in made.items()}

    def train(
        self, way: str, clip: float, step: float, seed: int, share: float = 0.5
    ) -> tuple[float, list[float]]:
        """Accuracy in the end, and the clips; the step falls linearly to a tenth."""
        data, draw = self.data, np.random.default_rng(seed)
        moving = MovingClip.from_start(clip, quantile=share)
        weights = np.zeros((data.classes, data.train.shape[1]), np.float32)
        speed = np.zeros_like(weights)
        a_round = len(data.train) // self.cohort
        rounds = self.epochs * a_round
        for number in range(rounds):
            if number % a_round == 0:
                order = draw.permutation(len(data.train))
            place = number % a_round * self.cohort
            clients = order[place : place + self.cohort]
            features = data.train[clients]
            scores = features @ weights.T
            errors = np.exp(scores - scores.max(axis=1, keepdims=True))
            errors /= errors.sum(axis=1, keepdims=True)
            errors[np.arange(self.cohort), data.labels[clients]] -= 1
            norms = np.linalg.norm(errors, axis=1) * data.lengths[clients]
            sends = np.ones(self.cohort, dtype=bool)
            if way == "scouts":
                ranks = [
                    scout_rank(str(seed).encode(), number, client) for client in clients.tolist()
                ]
                sends[sorted(range(len(ranks)), key=ranks.__getitem__)[: self.cohort // EVERY]] = (
                    False
                )
            count = int(sends.sum())
            errors /= np.maximum(norms, moving.clip)[:, None]
            noise = draw.standard_normal(weights.shape, dtype=np.float32) * math.sqrt(
                self.squared[way] / count
            )
            speed = MOMENTUM * speed + errors[sends].T @ features[sends] / count + noise
            if way != "fixed":
                loudness = math.sqrt(data.dimension * self.squared[way] / count)
                moving.move(self._said(norms[~sends], moving.clip, draw), loudness)
            weights = weights - np.float32(step * (1 - 0.9 * number / rounds)) * speed.astype(
                np.float32
            )
        right = (data.test @ weights.T).argmax(axis=1) == data.test_labels
        return 100 * float(right.mean()), moving.history[:: max(1, rounds // 12)]

    def _said(self, norms: Any, clip: float, draw: Any) -> Answers:
        """Draw what the scouts of a round say from their law."""
        short, count = norms <= clip, len(norms)
        said = np.where(draw.random(count) < self.asked.truth, short, draw.random(count) < 0.5)
        return Answers(
            self.asked.share(float(said.mean())), 0.5 / (self.asked.truth * math.sqrt(count))
        )

    def tried(
        self, way: str, clip: float, step: float, seeds: tuple[int, ...], share: float = 0.5
    ) -> dict[str, Any]:
        """Run one setting on some seeds."""
        runs = [self.train(way, clip, step, seed, share) for seed in seeds]
        found = np.array([accuracy for accuracy, _ in runs])
        return {
            "way": way,
            "clip": clip,
            "step": step,
            "share": share,
            "seeds": seeds,
            "accuracies": found.tolist(),
            "mean": float(found.mean()),
            "deviation": float(found.std(ddof=1)),
            "clips": runs[0][1],
        }


def main() -> None:
    """Choose, report, and write after every line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=("mnist", "cifar10-head"), default="mnist")
    parser.add_argument("--mechanism", choices=("gaussian", "vmvu"), default="vmvu")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    began = time.monotonic()
    data = Data(given.task, Path(os.environ["QUIETBIT_DATA"]))
    setting = Setting(data, given)
    record: dict[str, Any] = {
        "task": given.task,
        "mechanism": given.mechanism,
        "epsilon": given.epsilon,
        "epochs": given.epochs,
        "cohort": given.cohort,
        "parameters": data.dimension,
        "every": EVERY,
        "truth": setting.asked.truth,
        "squared_error_over_fixed": {
            "scouts": setting.squared["scouts"]
            / setting.squared["fixed"]
            * given.cohort
            / (given.cohort - given.cohort // EVERY),
        },
        "lines": [],
    }
    print(json.dumps(record), flush=True)

    def best(way: str, clips: tuple[float, ...], shares: tuple[float, ...]) -> dict[str, Any]:
        tried = [
            setting.tried(way, c, step, CHOOSING, q)
            for c in clips
            for q in shares
            for step in STEPS
        ]
        return max(tried, key=lambda one: float(one["mean"]))

    fixed = best("fixed", data.clips, (0.5,))
    for way in WAYS:
        chosen = fixed if way == "fixed" else best(way, (fixed["clip"],), SHARES)
        for factor in FACTORS:
            found = setting.tried(
                way, factor * fixed["clip"], chosen["step"], REPORTING, chosen["share"]
            )
            record["lines"].append({"factor": factor, **found})
            print(
                f"{way:7s} {factor:5g} x {fixed['clip']:g}: {found['mean']:.2f} +- {found['deviation']:.2f}",
                flush=True,
            )
            record["seconds"] = time.monotonic() - began
            given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
