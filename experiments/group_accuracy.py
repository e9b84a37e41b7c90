r"""What privacy costs small groups: FEMNIST's 62 classes, from the rarest to the most frequent.

Idea     every image is a client that takes part once. A linear model learns 62 classes whose sizes
         differ by a factor of twenty, so the rare ones show what noise does to a small group. Steps
         are chosen on held-out writers by overall accuracy, as somebody who does not look at groups
         would; other seeds report on test writers. Releases are drawn from the mechanisms' laws
         (`quietbit_lab.cohort`), which protect nobody.
Symbols  d = 62 x 785 parameters; rounds of 500; the step falls linearly to a tenth; momentum 0.5.

    PYTHONPATH=src:packages/lab/src python experiments/group_accuracy.py --data data --device cuda
    --out groups.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quietbit import Ball, calibrate
from quietbit_lab.cohort.means import gaussian_mean
from quietbit_lab.cohort.releases import vector_mean
from quietbit_lab.task.images import load_femnist

CLASSES = 62
COHORT = 500
MOMENTUM = 0.5
DELTA = 1e-5
STEPS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
CHOOSING_SEED = 101
REPORTING_SEEDS = (1, 2, 3, 4, 5)
HELD_OUT_SHARE = 0.1  # of the training writers
GROUPS = 5  # of classes, by the number of their training images
Mean = Callable[[Any, Any], Any]


class Images:
    """Training, held-out and test images on a device, split by writer."""

    def __init__(self, folder: Path, device: str, most: int | None) -> None:
        dataset = load_femnist(folder)
        writer = np.asarray(dataset.writers)
        writers = np.unique(writer)
        held = np.random.default_rng(0).choice(
            writers, int(HELD_OUT_SHARE * writers.size), replace=False
        )
        is_held = np.isin(writer, held)
        self.train = self._move(
            dataset.train.inputs[~is_held][:most], dataset.train.labels[~is_held][:most], device
        )
        self.held = self._move(dataset.train.inputs[is_held], dataset.train.labels[is_held], device)
        self.test = self._move(dataset.test.inputs, dataset.test.labels, device)

    @staticmethod
    def _move(images: Any, labels: Any, device: str) -> tuple[Any, Any]:
        pixels = (
            torch.from_numpy(np.ascontiguousarray(images))
            .to(device)
            .reshape(len(images), -1)
            .float()
        )
        unit = pixels / pixels.norm(dim=1, keepdim=True).clamp(min=1.0)
        bias = torch.full((len(images), 1), 0.3, device=device)
        return torch.cat((unit, bias), dim=1), torch.from_numpy(np.asarray(labels)).to(device)


def mean_of(mechanism: str, epsilon: float, dimension: int) -> Mean:
    """Return the function (clipped rows in units of the clip, generator) -> decoded mean."""
    if mechanism == "none":
        return lambda rows, _: rows.mean(dim=0)
    ball = Ball("l2", dimension)
    name = "vmvu" if mechanism == "vmvu" else "gaussian"
    result = calibrate(
        name, ball=ball, epsilon=epsilon, delta=DELTA, releases=1, adjacency="zero-out"
    )
    calibrated: Any = result.mechanism
    if mechanism == "vmvu":
        return lambda rows, generator: vector_mean(rows, calibrated, generator)
    spread = calibrated.noise_multiplier
    if mechanism == "trusted-server":
        spread = spread / COHORT**0.5  # one noise for the whole sum
    return lambda rows, generator: gaussian_mean(rows, spread, generator)


def train(images: Images, mean: Mean, step: float, seed: int) -> Any:
    """Return the weights (classes, pixels + 1) after every client took part once."""
    inputs, labels = images.train
    device = inputs.device
    generator = torch.Generator(device).manual_seed(seed)
    weights = torch.zeros((CLASSES, inputs.shape[1]), device=device)
    speed = torch.zeros_like(weights)
    order = torch.randperm(len(inputs), generator=generator, device=device)
    rounds = len(inputs) // COHORT
    for number in range(rounds):
        chosen = order[number * COHORT : (number + 1) * COHORT]
        errors = torch.softmax(inputs[chosen] @ weights.T, dim=1)
        errors[torch.arange(COHORT, device=device), labels[chosen]] -= 1.0
        rows = (errors[:, :, None] * inputs[chosen][:, None, :]).reshape(COHORT, -1)
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        speed = MOMENTUM * speed + mean(rows, generator).reshape(weights.shape)
        weights = weights - step * (1 - 0.9 * number / rounds) * speed
    return weights


def accuracies(weights: Any, part: tuple[Any, Any]) -> tuple[float, list[float]]:
    """Return the accuracy over all images, and of every class (NaN for a class without images)."""
    inputs, labels = part
    right = ((inputs @ weights.T).argmax(dim=1) == labels).double()
    counts = torch.bincount(labels, minlength=CLASSES).double()
    hits = torch.zeros(CLASSES, dtype=torch.float64, device=right.device).index_add_(
        0, labels, right
    )
    return float(right.mean()), (hits / counts).tolist()


def main() -> None:
    """Choose steps, train, and write accuracies by class."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, help="training images, for a trial")
    parser.add_argument("--lines", nargs="*", default=None, help="such as vmvu:4; all by default")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    images = Images(given.data, given.device, given.most)
    train_counts = torch.bincount(images.train[1], minlength=CLASSES).tolist()
    dimension = CLASSES * images.train[0].shape[1]
    lines = [
        "none:0",
        "vmvu:8",
        "vmvu:4",
        "vmvu:1",
        "trusted-server:1",
        "gaussian:8",
        "gaussian:4",
        "gaussian:1",
    ]
    results = []
    for line in given.lines or lines:
        mechanism, _, epsilon = line.partition(":")
        began = time.monotonic()
        mean = mean_of(mechanism, float(epsilon), dimension)
        scores = {
            step: accuracies(train(images, mean, step, CHOOSING_SEED), images.held)[0]
            for step in STEPS
        }
        step = max(scores, key=lambda candidate: scores[candidate])
        runs = [
            accuracies(train(images, mean, step, seed), images.test) for seed in REPORTING_SEEDS
        ]
        results.append(
            {
                "mechanism": mechanism,
                "epsilon": float(epsilon),
                "step": step,
                "held_out": scores,
                "accuracy": [overall for overall, _ in runs],
                "by_class": [classes for _, classes in runs],
            }
        )
        record = {
            "train_counts": train_counts,
            "seeds": REPORTING_SEEDS,
            "delta": DELTA,
            "lines": results,
        }
        given.out.write_text(json.dumps(record), encoding="utf-8")
        overall = 100 * np.array(results[-1]["accuracy"])
        order = np.argsort(train_counts)
        by_class = 100 * np.array(results[-1]["by_class"])
        groups = [f"{np.nanmean(by_class[:, part]):.1f}" for part in np.array_split(order, GROUPS)]
        seconds = time.monotonic() - began
        print(f"{line}: step {step}, {overall.mean():.1f} +- {overall.std(ddof=1):.1f}", end="; ")
        print(f"rare to frequent {' '.join(groups)} ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
