r"""A linear model over FEMNIST's writers, whose single images are protected, with local steps and without.

Idea     every writer is a site: an epsilon is about one of its images. 100 writers of at least 100
         images take part in a round, and each takes 50 private steps in all, on a fifth of its
         images. Either every step is sent, in 200 rounds, or ten of them are taken between two
         rounds and the difference is sent in four bits per parameter. Learning rates are chosen on
         a tenth of the training writers, held out; five other seeds train on all of them and are
         scored on the test writers. Noise and rounding are drawn from their laws (`sites_head.py`
         shows that payloads give the same). Images are averaged over squares of 2 x 2 pixels.

    PYTHONPATH=src QUIETBIT_DATA=data python experiments/writers_local.py --out
    experiments/results/writers-local.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from sites_head import residuals, rounded, score

from quietbit import Uplink, calibrate
from quietbit.mechanism.ball import Ball
from quietbit_lab.task.images import load_femnist

LEAST, COHORT, STEPS, RATE, CLIP, DELTA, BITS = 100, 100, 50, 0.2, 1.0, 1e-5, 4
EPSILONS, SEEDS, CHOOSING, HELD_OUT = (1.0, 4.0, 8.0, None), (1, 2, 3, 4, 5), 101, 10
LINES = {"every step sent, floats": 1, "10 local steps, 4 bits": 10}
STEP_SIZES = (2.0, 4.0, 8.0, 16.0)

Site = tuple[Any, Any]


def read(folder: Path) -> tuple[list[Site], Site]:
    """Return the training writers, each with rows of unit length and a one behind them, and the test images."""
    found = load_femnist(folder, LEAST)

    def rows(images: Any) -> Any:
        small = (
            images.reshape(-1, 14, 2, 14, 2)
            .mean(axis=(2, 4), dtype=np.float32)
            .reshape(len(images), -1)
        )
        small /= np.maximum(np.linalg.norm(small, axis=1, keepdims=True), 1e-6)
        return np.concatenate([small, np.full((len(small), 1), 0.1, np.float32)], axis=1)

    train, writers = rows(found.train.inputs), np.asarray(found.writers)
    sites = [
        (train[writers == one], found.train.labels[writers == one]) for one in np.unique(writers)
    ]
    return sites, (rows(found.test.inputs), found.test.labels)


def calibrated(epsilon: float, size: int, local: int, dimension: int, releases: int) -> Any:
    """Return the release of the smallest writer that meets epsilon."""
    more = {} if local == 1 else {"local_steps": local, "local_rate": 1.0, "local_bits": BITS}
    return calibrate(
        "gaussian",
        ball=Ball("l2", dimension),
        epsilon=epsilon,
        delta=DELTA,
        adjacency="zero-out",
        releases=releases,
        samples=size,
        sampling_rate=RATE,
        **more,
    )


def train(
    sites: list[Site], local: int, sigma: float, expected: int, step: float, seed: int, classes: int
) -> Any:
    """Return the weights after every writer's turns.

    ``sigma`` is the noise of a batch's mean, in clips.
    """
    rng = np.random.default_rng(seed)
    weights = np.zeros((classes, sites[0][0].shape[1]))
    turns = [
        order
        for _ in range(STEPS // local)
        for order in np.array_split(rng.permutation(len(sites)), 4)
    ]
    for order in turns:
        total = np.zeros_like(weights)
        for x, labels in (sites[place] for place in order):
            own = weights.copy()
            for _ in range(local):
                drawn = np.flatnonzero(rng.random(len(x)) < RATE)
                rows = x[drawn]
                own -= step * (residuals(own, rows, labels[drawn]).T @ rows / expected)
                if sigma:
                    own -= step * sigma * rng.standard_normal(weights.shape, dtype=np.float32)
            total += weights - own if local == 1 else rounded(weights - own, BITS, rng)
        weights = weights - total / len(order)
    return weights


def main() -> None:
    """Choose step sizes, train, and write after every line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    sites, test = read(Path(os.environ["QUIETBIT_DATA"]))
    classes = 1 + max(int(labels.max()) for _, labels in sites)
    held = sites[::HELD_OUT]
    rest = [site for place, site in enumerate(sites) if place % HELD_OUT]
    judge = np.concatenate([x for x, _ in held]), np.concatenate([labels for _, labels in held])
    dimension, smallest = classes * sites[0][0].shape[1], min(len(x) for x, _ in sites)
    expected = int(smallest * RATE)
    record: dict[str, Any] = {
        "writers": len(sites),
        "smallest": smallest,
        "parameters": dimension,
        "rate": RATE,
        "steps": STEPS,
        "per_round": len(sites) // 4,
        "delta": DELTA,
        "unit": "sample",
        "adjacency": "zero-out",
        "lines": [],
    }
    print(record, flush=True)
    for epsilon in EPSILONS:
        for label, local in LINES.items():
            found = (
                None
                if epsilon is None
                else calibrated(epsilon, smallest, local, dimension, STEPS // local)
            )
            sigma = 0.0 if found is None else np.sqrt(found.error.squared)
            tried = {
                s: score(train(rest, local, sigma, expected, s, CHOOSING, classes), *judge)
                for s in STEP_SIZES
            }
            step = max(tried, key=lambda one: tried[one])
            right = [
                score(train(sites, local, sigma, expected, step, seed, classes), *test)
                for seed in SEEDS
            ]
            payload = 4 * dimension if found is None else Uplink(found.mechanism).header.size
            entry = {
                "label": label,
                "epsilon": epsilon,
                "sigma": float(sigma),
                "step": step,
                "held_out": tried,
                "epsilon_upper": None if found is None else found.guarantee.epsilon_upper,
                "accuracy": right,
                "mean": float(np.mean(right)),
                "deviation": float(np.std(right, ddof=1)),
                "rounds": 4 * STEPS // local,
                "releases": STEPS // local,
                "bytes_up": STEPS // local * payload,
                "bytes_down": STEPS // local * 4 * dimension,
            }
            record["lines"].append(entry)
            print(entry, flush=True)
            given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
