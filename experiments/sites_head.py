r"""A linear head on public features over ten sites whose patients (images) are protected, with batches drawn in secret.

Idea     every site draws a tenth of its 5,000 images in each of 150 rounds, clips each gradient, and releases the sum
         over the public 500 (`PoissonBatch`). The step is chosen on one site, for which the other nine train; then all
         ten train, with other seeds, and the test set is looked at. Gaussian noise is drawn from its law.
Symbols  q: sampling rate; m: expected samples of a batch; W (10, 257): weights and biases.

    PYTHONPATH=src python experiments/sites_head.py FOLDER --out experiments/results/sites_head.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from quietbit import Adjacency, Ball, calibrate
from quietbit.mechanism.batch import PoissonBatch

SITES, RATE, ROUNDS, CLIP, MOMENTUM, DELTA, LENGTH = 10, 0.1, 150, 1.0, 0.5, 1e-5, 6.0
EPSILONS, STEPS, SEEDS = (1.0, 4.0, 8.0), (0.5, 1.0, 2.0, 4.0), 5


def read(path: Path) -> tuple[Any, Any, Any]:
    """Return features with a one behind them, labels, and the public start."""
    with np.load(path) as kept:
        x = kept["features"].astype(np.float32) * kept["steps"]
        x *= LENGTH / np.linalg.norm(x, axis=1, keepdims=True)
        start = np.concatenate([kept["start"][:2560].reshape(10, 256), kept["start"][2560:, None]], axis=1)
        return np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1), kept["labels"], start


def noise(epsilon: float, expected: int, dimension: int) -> tuple[float, float]:
    """Return the noise in units of the clip that meets epsilon, and what is proved of it."""

    def account(mechanism: Any) -> Any:
        return (PoissonBatch(mechanism, expected, RATE).privacy(Adjacency.ZERO_OUT, expected) * ROUNDS).guarantee(DELTA)

    found = calibrate(
        "gaussian", ball=Ball("l2", CLIP, dimension), epsilon=epsilon, delta=DELTA, adjacency="zero-out",
        releases=ROUNDS, samples=expected, account=account,
    )  # fmt: skip
    return found.mechanism.noise_multiplier, found.guarantee.epsilon_upper


def train(sites: list[tuple[Any, Any]], start: Any, expected: int, sigma: float, step: float, seed: int) -> Any:
    """Return the weights after all rounds."""
    rng, weights, speed = np.random.default_rng(seed), start.copy(), np.zeros_like(start)
    for _ in range(ROUNDS):
        total = np.zeros_like(start)
        for x, labels in sites:
            drawn = np.flatnonzero(rng.random(len(x)) < RATE)
            rows, scores = x[drawn], x[drawn] @ weights.T
            off = np.exp(scores - scores.max(axis=1, keepdims=True))
            off /= off.sum(axis=1, keepdims=True)
            off[np.arange(len(drawn)), labels[drawn]] -= 1
            lengths = np.linalg.norm(off, axis=1) * np.linalg.norm(rows, axis=1)
            off *= (CLIP / np.maximum(lengths, CLIP))[:, None]
            total += off.T @ rows / expected + rng.normal(size=start.shape).astype(np.float32) * sigma * CLIP
        speed = MOMENTUM * speed + total / len(sites)
        weights = weights - step * speed
    return weights


def score(weights: Any, x: Any, labels: Any) -> float:
    """Return the share of right answers, in per cent."""
    return float(100 * np.mean(np.argmax(x @ weights.T, axis=1) == labels))


def main() -> None:
    """Choose a step, train, and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    x, labels, start = read(given.folder / "train.npz")
    test, answers, _ = read(given.folder / "test.npz")
    order = np.random.default_rng(0).permutation(len(x))
    sites = [(x[part], labels[part]) for part in np.array_split(order, SITES)]
    expected = int(len(sites[0][0]) * RATE)
    lines = []
    for epsilon in EPSILONS:
        sigma, proved = noise(epsilon, expected, start.size)
        tried = {step: score(train(sites[:-1], start, expected, sigma, step, 100), *sites[-1]) for step in STEPS}
        step = max(tried, key=lambda one: tried[one])
        found = [score(train(sites, start, expected, sigma, step, seed), test, answers) for seed in range(SEEDS)]
        entry = {
            "mechanism": "gaussian", "epsilon": epsilon, "epsilon_upper": proved, "noise_clips": sigma, "step": step,
            "held_out": tried, "accuracy": found, "mean": float(np.mean(found)),
            "deviation": float(np.std(found, ddof=1)), "bytes_per_release": 4 * start.size,
        }  # fmt: skip
        lines.append(entry)
        print(entry, flush=True)
    words = {"rounds": ROUNDS, "rate": RATE, "sites": SITES, "delta": DELTA, "unit": "sample", "adjacency": "zero-out"}
    given.out.write_text(json.dumps({**words, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
