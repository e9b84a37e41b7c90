r"""Accuracy with poisoned clients: seeds of the vector mechanism, floats of PrivUnit and Gaussian noise, one-bit sums.

Idea     softmax regression on MNIST, a client per image, every client once, 60 rounds of 1,000. Of
         every cohort a share is malicious. *flip*: labels become 9 - label. *reverse*: the client
         sends its update turned round and scaled by 100, through the honest mechanism, which clips
         it. *payload*: it writes the payload that moves the mean furthest against the honest mean,
         which it knows (`quietbit.mechanism.accumulate`): the best of 2^30 seeds, the longest float
         vector that a server takes, or bits of its choice.
Law      a cohort's mean is drawn as its exact mean with normal noise of the mechanism's variance;
         codes that saturate are not modelled. One seed chooses the step without attackers, five
         others report.

    QUIETBIT_DATA=data python experiments/poisoned_clients.py --out
    experiments/results/poisoned-clients.json
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from quietbit import Ball, Norm, calibrate
from quietbit_lab.auditor.poison import WORK, poisoned, seed_maximum
from quietbit_lab.task.registry import TaskSpec, build_task

EPSILON, DELTA, ADJACENCY, COHORT, ROUNDS, CLASSES, CLIP = 4.0, 1e-5, "zero-out", 1000, 60, 10, 8.0
CHOOSING, REPORTING = 101, (1, 2, 3, 4, 5)
STEPS = (0.01, 0.02, 0.04, 0.08, 0.16)
SHARES, ATTACKS = (0.01, 0.05), ("flip", "reverse", "payload")


class Lines:
    """Noise of one client along a coordinate, and how far a payload of its choice goes, both in clips."""

    def __init__(self, dimension: int) -> None:
        ball = Ball(Norm.L2, dimension)
        target: dict[str, Any] = {
            "epsilon": EPSILON,
            "delta": DELTA,
            "adjacency": ADJACENCY,
            "releases": 1,
        }
        vector = calibrate("vmvu", ball=ball, **target).mechanism
        gaussian = calibrate("gaussian", ball=ball, **target).mechanism
        sums = calibrate("imvu", ball=ball, honest=COHORT, **target).mechanism
        noise = {
            "vmvu": math.sqrt(vector.error().squared),
            "privunit floats": math.sqrt(vector.error().squared),
            "gaussian": math.sqrt(gaussian.error().squared),
            "one-bit sums": math.sqrt(sums.error().squared),
        }
        # PrivUnit's vectors all have one length, which a server can check: that of the same noise
        # in all coordinates.
        far = {
            "vmvu": poisoned(vector),
            "privunit floats": noise["privunit floats"] * math.sqrt(dimension),
            "gaussian": poisoned(gaussian),
            "one-bit sums": poisoned(sums)
            * math.sqrt(2 / math.pi),  # bits by the signs of a direction: |v|_1 of it
        }
        self.noise, self.far, self.names = noise, far, tuple(noise)
        self.seeds = seed_maximum(WORK)


def run(
    data: Any, lines: Lines, name: str, step: float, seed: int, attack: str, share: float
) -> float:
    """Return the test accuracy in percent after the last round."""
    inputs, labels, test, test_labels = data
    rng = np.random.default_rng(seed)
    weights = np.zeros((CLASSES, inputs.shape[1]))
    speed, bad = np.zeros_like(weights), round(share * COHORT)
    noise = lines.noise[name] * CLIP * math.sqrt(1 / COHORT)
    order = rng.permutation(labels.size)
    for number in range(ROUNDS):
        who = order[number * COHORT : (number + 1) * COHORT]
        x, y = inputs[who], labels[who].copy()
        if attack == "flip":
            y[:bad] = CLASSES - 1 - y[:bad]
        logits = x @ weights.T
        logits -= logits.max(axis=1, keepdims=True)
        slopes = np.exp(logits)
        slopes /= slopes.sum(axis=1, keepdims=True)
        slopes[np.arange(y.size), y] -= 1.0
        lengths = np.linalg.norm(slopes, axis=1) * np.linalg.norm(x, axis=1)
        factors = np.minimum(1.0, CLIP / np.maximum(lengths, 1e-12))
        if attack == "reverse":
            factors[:bad] = -np.minimum(100.0, CLIP / np.maximum(lengths[:bad], 1e-12))
        chosen = attack == "payload" and bad > 0
        honest = slice(bad, None) if chosen else slice(None)
        mean = (slopes[honest] * factors[honest, None]).T @ x[honest] / COHORT
        if chosen:
            mean -= share * lines.far[name] * CLIP * mean / max(float(np.linalg.norm(mean)), 1e-12)
        mean += noise * rng.normal(size=mean.shape)
        speed = 0.5 * speed + mean
        weights -= step * speed
    return 100 * float(((test @ weights.T).argmax(axis=1) == test_labels).mean())


def main() -> None:
    """Run all lines and write the accuracies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    out, began = parser.parse_args().out, time.monotonic()
    found = build_task(TaskSpec("mnist", model="linear")).dataset

    def features(part: Any) -> Any:
        flat = part.inputs.reshape(len(part.labels), -1).astype(np.float32)
        return np.hstack([flat / flat.max(), np.ones((len(flat), 1), dtype=np.float32)])

    data = (
        features(found.train),
        found.train.labels.astype(np.int64),
        features(found.test),
        found.test.labels,
    )
    lines = Lines(CLASSES * data[0].shape[1])
    rows: list[dict[str, Any]] = []
    for name in lines.names:
        scores = {step: run(data, lines, name, step, CHOOSING, "none", 0.0) for step in STEPS}
        step = max(scores, key=lambda one: scores[one])
        for attack, share in (
            ("none", 0.0),
            *((attack, share) for attack in ATTACKS for share in SHARES),
        ):
            reached = [
                round(run(data, lines, name, step, seed, attack, share), 2) for seed in REPORTING
            ]
            row = {
                "mechanism": name,
                "attack": attack,
                "share": share,
                "step": step,
                "accuracy": reached,
            }
            rows.append(row)
            print(
                f"{name:16} {attack:8} {share:5.0%} {np.mean(reached):6.1f} +- {np.std(reached):.1f}",
                flush=True,
            )
    settings = {
        "epsilon": EPSILON,
        "delta": DELTA,
        "adjacency": ADJACENCY,
        "cohort": COHORT,
        "rounds": ROUNDS,
    }
    record = {
        "settings": settings | {"clip": CLIP, "work": WORK},
        "noise": lines.noise,
        "reach": lines.far,
    }
    out.write_text(
        json.dumps(record | {"seconds": round(time.monotonic() - began, 1), "rows": rows}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
