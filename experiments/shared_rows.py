r"""Accuracy when all clients of a round keep the same rows, so that the model need not be sent back.

Idea     the vector mechanism with rows of its own for every client, and with rows of the round, at
         the same steps, clips and budgets: those that `few_releases.py` (MNIST) and
         `pretrained_head.py` (CIFAR-10's head) chose for rows of one's own. And, for ten epochs of
         MNIST, one-bit I-MVU rotated and not, against Gaussian noise, all at one epsilon by their
         exact accounts. Releases are drawn from the mechanisms' laws.

    PYTHONPATH=src:experiments:extra QUIETBIT_DATA=data python experiments/shared_rows.py \
        --features data/cifar10-features --device cuda --out experiments/results/shared-rows.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from few_releases import CHOOSING, DELTA, REPORTING, Linear, train

from quietbit import Ball, calibrate
from quietbit_lab.cohort.means import unit_mean
from quietbit_lab.cohort.releases import vector_mean
from quietbit_lab.task.registry import TaskSpec, build_task

MNIST = {
    1.0: (0.064, 8.0),
    4.0: (0.25, 8.0),
    8.0: (0.25, 8.0),
}  # step and clip, chosen for rows of one's own
HEAD = {
    1.0: (0.16, 2.0, 8.0),
    4.0: (0.32, 2.0, 2.0),
    8.0: (0.64, 2.0, 2.0),
}  # and the length of the public start
TEN_EPOCHS, TEN_STEPS, TEN_CLIP, TEN_SEEDS = 8.08, (0.005, 0.007, 0.01, 0.014), 8.0, range(1, 21)
BEGAN = time.monotonic()


class Head(Linear):
    """A softmax head on public features, from a public start."""

    def __init__(self, folder: Path, device: str, start: float) -> None:
        parts = []
        for name in ("train", "test"):
            with np.load(folder / f"{name}.npz") as kept:
                x = torch.tensor(kept["features"] * kept["steps"], device=device)
                labels = torch.tensor(kept["labels"].astype(np.int64), device=device)
                if name == "train":
                    public = torch.tensor(kept["start"], device=device)  # weights, then biases
            x *= 6.0 / x.norm(dim=1, keepdim=True)
            parts.append(
                (torch.cat((x, torch.ones((x.shape[0], 1), device=device)), dim=1), labels)
            )
        (self.inputs, self.labels), (self.test, self.test_labels) = parts
        self.device, self.classes, self.width = device, 10, self.inputs.shape[1]
        self.dimension, self.lengths = self.classes * self.width, self.inputs.norm(dim=1)
        rows = torch.cat((public[:-10].reshape(10, -1), public[-10:, None]), dim=1)
        self.start = rows * (start / rows.norm())


def compared(
    model: Any, task: str, setting: tuple[float, ...], epsilon: float, cohort: int, keeps: Any
) -> list[Any]:
    """Rows of one's own and shared rows at one setting."""
    found, step, clip = [], setting[0], setting[1]
    for rows in ("own", "shared"):
        for keep in keeps:
            ball = Ball("l2", model.dimension)
            target = {"epsilon": epsilon, "delta": DELTA, "adjacency": "zero-out", "releases": 1}
            mechanism: Any = calibrate(
                "vmvu", ball=ball, rows=rows, coordinates=keep, **target
            ).mechanism  # type: ignore[arg-type]
            got = [
                train(
                    model,
                    lambda x, g, m=mechanism: vector_mean(x, m, g),
                    step,
                    clip,
                    1,
                    cohort,
                    seed,
                )
                for seed in REPORTING
            ]
            line = {
                "task": task,
                "mechanism": "vmvu",
                "rows": rows,
                "keep": mechanism.keep,
                "epsilon": epsilon,
            }
            found.append(line | {"step": step, "clip": clip, "accuracies": got})
            say(found[-1])
    return found


def ten_epochs(model: Linear) -> list[Any]:
    """I-MVU rotated and not, SignSGD and Gaussian noise at one epsilon.

    One seed chooses the step, twenty report.
    """
    ball, found = Ball("l2", model.dimension), []
    target = {"epsilon": TEN_EPOCHS, "delta": DELTA, "adjacency": "zero-out", "releases": 10}
    lines = {
        "gaussian": {},
        "imvu, rotated": {},
        "imvu, not rotated": {"rotate": False},
        "sign": {},
    }
    for name, more in lines.items():
        mechanism = calibrate(name.partition(",")[0], ball=ball, **target, **more).mechanism  # type: ignore[arg-type]

        def mean(x: Any, g: Any, mechanism: Any = mechanism) -> Any:
            return unit_mean(x, mechanism, g)

        tried = {
            step: np.mean(
                [train(model, mean, step, TEN_CLIP, 10, 600, seed) for seed in CHOOSING[:1]]
            )
            for step in TEN_STEPS
        }
        step = max(tried, key=lambda one: tried[one])
        got = [train(model, mean, step, TEN_CLIP, 10, 600, seed) for seed in TEN_SEEDS]
        line = {
            "task": "mnist, ten epochs",
            "mechanism": name,
            "epsilon": TEN_EPOCHS,
            "step": step,
            "clip": TEN_CLIP,
        }
        found.append(
            line
            | {
                "accuracies": got,
                "chosen_on": {str(key): float(value) for key, value in tried.items()},
            }
        )
        say(found[-1])
    return found


def main() -> None:
    """Run all three comparisons; the file is written after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    done: list[Any] = []
    for epsilon, setting in HEAD.items():
        model = Head(given.features, given.device, setting[2])
        done += compared(model, "cifar10 head", setting, epsilon, 500, (None, 1024))
        given.out.write_text(json.dumps(done, indent=1))
    mnist = Linear(build_task(TaskSpec("mnist"), seed=0, device=given.device), given.device)
    say({"task": "mnist", "mechanism": f"{mnist.dimension} parameters", "accuracies": [0.0]})
    for epsilon, setting in MNIST.items():
        done += compared(mnist, "mnist", setting, epsilon, 600, (None, 4096))
        given.out.write_text(json.dumps(done, indent=1))
    done += ten_epochs(mnist)
    given.out.write_text(json.dumps(done, indent=1))


def say(line: dict[str, Any]) -> None:
    """Print a line with the time."""
    got = 100 * np.array(line["accuracies"])
    what = " ".join(
        str(line[key])
        for key in ("task", "mechanism", "epsilon", "rows", "keep", "step")
        if key in line
    )
    print(
        f"{time.monotonic() - BEGAN:7.1f} s  {what}: {got.mean():.1f} +- {got.std():.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
