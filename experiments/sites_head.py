r"""A linear head on public features over ten sites whose patients (images) are protected, with batches drawn in secret.

Idea     every site takes 150 private steps in all, each on a tenth of its 5,000 images, and clips
         each gradient. Either every step is sent (`PoissonBatch`), or 30 of them are taken between
         two rounds and the difference of models is sent in a few bits (`LocalSteps`), at the same
         epsilon. Learning rates are chosen on one site, for which the other nine train; then all
         ten train, with other seeds, and the test set is looked at. Noise and rounding are drawn
         from their laws; `--real EPSILON` makes one training with the payloads that the library
         sends.
Symbols  q: sampling rate; m: expected samples of a batch; W (10, 257): weights and biases.

    PYTHONPATH=src python experiments/sites_head.py FOLDER --out experiments/results/sites_head.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from quietbit import Adjacency, Ball, Uplink, calibrate, secure_rng
from quietbit.kernel.select import default_kernel
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.mechanism.rotation import rotation_for

SITES, RATE, ALL_STEPS, CLIP, DELTA, LENGTH = 10, 0.1, 150, 1.0, 1e-5, 6.0
EPSILONS, SEEDS = (1.0, 4.0, 8.0), 5


@frozen
class Line:
    """One way of training: ``steps`` local steps per round, each coordinate sent in ``bits`` bits."""

    label: str
    steps: int
    bits: int
    momentum: float
    rates: tuple[float, ...]

    @property
    def rounds(self) -> int:
        """Rounds of the whole training."""
        return ALL_STEPS // self.steps

    def mechanism(self, inner: Mechanism, expected: int, rate: float = 1.0) -> Mechanism:
        """Return the mechanism of a release."""
        batch = PoissonBatch(inner, expected, RATE)
        return batch if self.steps == 1 else LocalSteps(batch, self.steps, rate, self.bits)


LINES = (
    Line("every step sent, floats", 1, 32, 0.5, (0.5, 1.0, 2.0, 4.0)),
    Line("30 local steps, 4 bits", 30, 4, 0.0, (1.0, 2.0, 4.0, 8.0)),
    Line("30 local steps, 2 bits", 30, 2, 0.0, (1.0, 2.0, 4.0, 8.0)),
    Line("30 local steps, 1 bit", 30, 1, 0.0, (0.5, 1.0, 2.0, 4.0)),
    Line("10 local steps, 4 bits", 10, 4, 0.0, (1.0, 2.0, 4.0, 8.0)),
)


def read(path: Path) -> tuple[Any, Any, Any]:
    """Return features with a one behind them, labels, and the public start."""
    with np.load(path) as kept:
        x = kept["features"].astype(np.float32) * kept["steps"]
        x *= LENGTH / np.linalg.norm(x, axis=1, keepdims=True)
        start = np.concatenate(
            [kept["start"][:2560].reshape(10, 256), kept["start"][2560:, None]], axis=1
        )
        return np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1), kept["labels"], start


def noise(line: Line, epsilon: float, expected: int, dimension: int) -> tuple[Any, float]:
    """Return the Gaussian mechanism that meets epsilon, and what is proved of it."""

    def account(mechanism: Any) -> Any:
        cost = (
            line.mechanism(mechanism, expected).privacy(Adjacency.ZERO_OUT, expected) * line.rounds
        )
        return cost.guarantee(DELTA)

    found = calibrate(
        "gaussian",
        ball=Ball("l2", dimension),
        epsilon=epsilon,
        delta=DELTA,
        adjacency="zero-out",
        releases=line.rounds,
        samples=expected,
        account=account,
    )
    return found.mechanism, found.guarantee.epsilon_upper


def residuals(weights: Any, rows: Any, labels: Any) -> Any:
    """Return softmax minus truth, scaled such that each sample's gradient, its product with the row, is clipped."""
    scores = rows @ weights.T.astype(np.float32)
    off = np.exp(scores - scores.max(axis=1, keepdims=True))
    off /= off.sum(axis=1, keepdims=True)
    off[np.arange(len(rows)), labels] -= 1
    lengths = np.linalg.norm(off, axis=1) * np.linalg.norm(rows, axis=1)
    return off * (CLIP / np.maximum(lengths, CLIP))[:, None]


def rounded(difference: Any, bits: int, rng: np.random.Generator) -> Any:
    """Return a difference as it is decoded, from the law of `LocalSteps`."""
    kernel, rotation, levels = (
        default_kernel(),
        rotation_for(difference.size, exact=True),
        2**bits - 1,
    )
    turned = kernel.rotate([difference.reshape(-1)], rotation.seed, rotation.block, kind=np.float64)
    largest = np.abs(turned).max()
    codes = np.floor((turned / largest + 1) / 2 * levels + rng.random(turned.size))
    values = (2 * codes / levels - 1) * largest
    kernel.rotate_back(values, rotation.seed, rotation.block)
    return values.reshape(difference.shape)


def train(
    line: Line, sites: list[tuple[Any, Any]], start: Any, sigma: float, step: float, seed: int
) -> Any:
    """Return the weights after all rounds."""
    rng, weights, speed = (
        np.random.default_rng(seed),
        start.astype(np.float64),
        np.zeros(start.shape),
    )
    expected = int(len(sites[0][0]) * RATE)
    for _ in range(line.rounds):
        total = np.zeros_like(weights)
        for x, labels in sites:
            own = weights.copy()
            for _ in range(line.steps):
                drawn = np.flatnonzero(rng.random(len(x)) < RATE)
                rows = x[drawn]
                gradient = residuals(own, rows, labels[drawn]).T @ rows / expected
                own -= step * (gradient + rng.normal(size=start.shape) * sigma * CLIP)
            total += weights - own if line.steps == 1 else rounded(weights - own, line.bits, rng)
        speed = line.momentum * speed + total / len(sites)
        weights = weights - speed
    return weights


def train_with_payloads(
    line: Line, sites: list[tuple[Any, Any]], start: Any, inner: Any, step: float
) -> Any:
    """Return the weights, every gradient clipped and every payload made and read by the library."""
    expected = int(len(sites[0][0]) * RATE)
    uplink, weights = Uplink(line.mechanism(inner, expected, step)), start.astype(np.float64)
    for _ in range(line.rounds):
        payloads = []
        for x, labels in sites:
            rng, own = secure_rng(), weights.copy()
            batch = uplink.batch(rng)
            while True:
                drawn = np.flatnonzero(np.random.default_rng().random(len(x)) < RATE)
                rows = x[drawn]
                off = residuals(own, rows, labels[drawn])
                batch.add((off[:, :, None] * rows[:, None, :]).reshape(len(rows), -1))
                change = batch.step()
                if change is None:
                    break
                own -= change.reshape(own.shape)
            payloads.append(uplink.send_batch(batch))
        weights = weights - uplink.receive(payloads).reshape(weights.shape)
    return weights


def score(weights: Any, x: Any, labels: Any) -> float:
    """Return the share of right answers, in per cent."""
    return float(100 * np.mean(np.argmax(x @ weights.T, axis=1) == labels))


def main() -> None:
    """Choose learning rates, train, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--real", type=float, help="one training of the second line at this epsilon, with payloads"
    )
    given = parser.parse_args()
    x, labels, start = read(given.folder / "train.npz")
    test, answers, _ = read(given.folder / "test.npz")
    order = np.random.default_rng(0).permutation(len(x))
    sites = [(x[part], labels[part]) for part in np.array_split(order, SITES)]
    expected = int(len(sites[0][0]) * RATE)
    if given.real is not None:
        inner, proved = noise(LINES[1], given.real, expected, start.size)
        weights = train_with_payloads(LINES[1], sites, start, inner, 4.0)
        print(f"{LINES[1].label}: {score(weights, test, answers):.2f} % at epsilon {proved:.3f}")
        return
    lines = []
    for line in LINES:
        for epsilon in EPSILONS:
            inner, proved = noise(line, epsilon, expected, start.size)
            sigma = inner.noise_multiplier
            tried = {
                step: score(train(line, sites[:-1], start, sigma, step, 100), *sites[-1])
                for step in line.rates
            }
            step = max(tried, key=lambda one: tried[one])
            found = [
                score(train(line, sites, start, sigma, step, seed), test, answers)
                for seed in range(SEEDS)
            ]
            payload = Uplink(line.mechanism(inner, expected, step)).header.size
            entry = {
                "label": line.label,
                "epsilon": epsilon,
                "epsilon_upper": proved,
                "noise_clips": sigma,
                "step": step,
                "held_out": tried,
                "accuracy": found,
                "mean": float(np.mean(found)),
                "deviation": float(np.std(found, ddof=1)),
                "rounds": line.rounds,
                "bytes_up": line.rounds * payload,
                "bytes_down": line.rounds * 4 * start.size,
            }
            lines.append(entry)
            print(entry, flush=True)
    words = {
        "steps": ALL_STEPS,
        "rate": RATE,
        "sites": SITES,
        "delta": DELTA,
        "unit": "sample",
        "adjacency": "zero-out",
    }
    if given.out is not None:
        given.out.write_text(
            json.dumps({**words, "adjacency": "zero-out", "lines": lines}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
