"""Digits: does a subspace of public gradients help private clients, and do these help public data?

    python experiments/subspace_digits.py --data DIR --out experiments/results/subspace-digits.json

Idea     clients are MNIST's training images but 5,000, one each, once, in 110 rounds of 500; the
         model is linear on pixels, 7,850 numbers. Public are digits of FEMNIST's writers, cut out
         and centred. A line starts from zero or from what public digits taught, and sends all
         numbers, or coordinates in k directions of public gradients at that start. Releases are
         drawn from the law of the vector mechanism. Steps are chosen on the 5,000 images, one seed;
         five seeds are reported on test images, which choose nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quietbit import Ball, calibrate
from quietbit.subspace import Subspace
from quietbit_lab.cohort.releases import vector_mean

CLASSES = 10
HELD_OUT = 5_000
COHORT = 500
ROUNDS = 110
MOMENTUM = 0.5
CLIP = 4.0
DELTA = 1e-5
SEEDS = (1, 2, 3, 4, 5)
MOST_PUBLIC = 12_000
FOR_DIRECTIONS = 2_000
INK = 60
STEPS = (0.02, 0.1, 0.5, 2.0)
BEGAN = time.monotonic()


def idx(path: Path) -> Any:
    """Read an IDX file."""
    with gzip.open(path) as file:
        content = file.read()
    axes = content[3]
    shape = np.frombuffer(content, ">i4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def inputs(images: Any) -> Any:
    """Return pixels of mean zero and length about 9, and a one."""
    pixels = torch.from_numpy(images.reshape(len(images), -1).astype(np.float32)) / 255
    pixels = pixels - pixels.mean(dim=1, keepdim=True)
    pixels = 9 * pixels / pixels.norm(dim=1, keepdim=True).clamp(min=1e-6)
    return torch.cat((pixels, torch.ones(len(images), 1)), dim=1)


def centred(images: Any) -> Any:
    """Return drawings as MNIST was made: cut out, scaled to 20 pixels, their mass in the middle of 28 x 28."""
    result = np.zeros((len(images), 28, 28), dtype=np.uint8)
    for place, image in enumerate(images):
        rows = np.flatnonzero((image > INK).any(axis=1))
        columns = np.flatnonzero((image > INK).any(axis=0))
        if rows.size == 0:
            continue
        part = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        scale = 20 / max(part.shape)
        shape = [max(1, round(scale * side)) for side in part.shape]
        tensor = torch.from_numpy(part.astype(np.float32))[None, None]
        scaled = torch.nn.functional.interpolate(
            tensor, size=shape, mode="bilinear", antialias=True
        )[0, 0].numpy()
        mass = scaled.sum()
        middle = [
            float((scaled.sum(axis=1 - axis) * np.arange(shape[axis])).sum() / mass)
            for axis in (0, 1)
        ]
        top, left = (
            min(max(round(13.5 - at), 0), 28 - side) for at, side in zip(middle, shape, strict=True)
        )
        result[place, top : top + shape[0], left : left + shape[1]] = scaled.clip(0, 255)
    return result


def errors_of(weights: Any, x: Any, labels: Any) -> Any:
    """Return the softmax less the label: a gradient is its outer product with the inputs."""
    found = torch.softmax(x @ weights.T, dim=1)
    found[torch.arange(len(labels)), labels] -= 1
    return found


def clipped(errors: Any, x: Any) -> Any:
    """Return errors whose gradients have length CLIP at most, in clips."""
    lengths = errors.norm(dim=1) * x.norm(dim=1)
    return errors / lengths.clamp(min=CLIP)[:, None]


class Digits:
    """Clients, held-out images, test images and public images."""

    def __init__(self, folder: Path) -> None:
        """Read and prepare everything."""
        images = idx(folder / "mnist" / "train-images-idx3-ubyte.gz")
        labels = torch.from_numpy(
            idx(folder / "mnist" / "train-labels-idx1-ubyte.gz").astype(np.int64)
        )
        x = inputs(images)
        self.x, self.labels = x[:-HELD_OUT], labels[:-HELD_OUT]
        self.held, self.held_labels = x[-HELD_OUT:], labels[-HELD_OUT:]
        self.test = inputs(idx(folder / "mnist" / "t10k-images-idx3-ubyte.gz"))
        self.test_labels = torch.from_numpy(
            idx(folder / "mnist" / "t10k-labels-idx1-ubyte.gz").astype(np.int64)
        )
        with lzma.open(folder / "femnist" / "images.npy.xz") as file:
            public = np.load(file)
        kinds = np.load(folder / "femnist" / "meta.npz")["labels"]
        digits = np.flatnonzero(kinds < CLASSES)
        chosen = np.random.default_rng(0).permutation(digits)[:MOST_PUBLIC]
        self.public = inputs(centred(255 - public[chosen]))
        self.public_labels = torch.from_numpy(kinds[chosen].astype(np.int64))

    def accuracy(self, weights: Any, test: bool) -> float:
        """Return the share of images that are named rightly."""
        x, labels = (self.test, self.test_labels) if test else (self.held, self.held_labels)
        return float(((x @ weights.T).argmax(dim=1) == labels).float().mean())


def public_alone(digits: Digits) -> tuple[Any, float]:
    """Return the model of public images whose length of training is chosen on the held-out images."""
    weights = torch.zeros(CLASSES, digits.x.shape[1])
    best = (weights, digits.accuracy(weights, False))
    generator = torch.Generator().manual_seed(0)
    for number in range(1, 1501):
        here = torch.randint(len(digits.public), (200,), generator=generator)
        x = digits.public[here]
        weights = weights - 0.05 * errors_of(weights, x, digits.public_labels[here]).T @ x / len(
            here
        )
        if number % 50 == 0:
            score = digits.accuracy(weights, False)
            if score > best[1]:
                best = (weights.clone(), score)
    return best


def directions(digits: Digits, start: Any, size: int) -> Any:
    """Return k leading directions of public gradients at a start, (k, 10, 785)."""
    x = digits.public[:FOR_DIRECTIONS]
    errors = errors_of(start, x, digits.public_labels[:FOR_DIRECTIONS])
    rows = (errors[:, :, None] * x[:, None, :]).reshape(len(x), -1).numpy()
    space = Subspace.of_gradients(rows, size)
    return torch.from_numpy(space.directions.copy()).reshape(size, CLASSES, -1)


def train(digits: Digits, start: Any, basis: Any, mechanism: Any, step: float, seed: int) -> Any:
    """Return the weights after all rounds; without a mechanism nothing is private."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(digits.x), generator=generator)
    weights = start.clone()
    speed = torch.zeros_like(weights)
    for number in range(ROUNDS):
        here = order[number * COHORT : (number + 1) * COHORT]
        x = digits.x[here]
        errors = clipped(errors_of(weights, x, digits.labels[here]), x)
        if mechanism is None and basis is None:
            mean = errors.T @ x / len(here)
        else:
            mean = noisy_mean(errors, x, basis, mechanism, generator)
        speed = MOMENTUM * speed + mean
        weights = weights - step * CLIP * (1 - 0.9 * number / ROUNDS) * speed
    return weights


def noisy_mean(errors: Any, x: Any, basis: Any, mechanism: Any, generator: Any) -> Any:
    """Return the decoded mean gradient in clips, (10, 785)."""
    if basis is None:
        rows = (errors[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        return vector_mean(rows, mechanism, generator).reshape(CLASSES, -1)
    scores = (x @ basis.reshape(-1, x.shape[1]).T).reshape(len(x), basis.shape[0], CLASSES)
    rows = torch.einsum("nkc,nc->nk", scores, errors)
    rows = 2 * rows / (2 * rows).norm(dim=1, keepdim=True).clamp(min=1.0)  # half of the clip
    mean = rows.mean(dim=0) if mechanism is None else vector_mean(rows, mechanism, generator)
    return torch.einsum("k,kcf->cf", mean / 2, basis)


def main() -> None:
    """Run every line and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    digits = Digits(given.data)
    taught, score = public_alone(digits)
    zero = torch.zeros_like(taught)
    results: list[dict[str, Any]] = []
    results.append({"line": "public alone", "held": score, "test": [digits.accuracy(taught, True)]})
    say(results[-1])
    for epsilon in (4.0, 1.0, None):
        for size in (64, 0, 256):
            for name, start in (("public", taught), ("zero", zero)):
                dimension = size or taught.numel()
                mechanism: Any = None
                if epsilon is not None:
                    ball = Ball("l2", 1.0, dimension)
                    target = {
                        "epsilon": epsilon,
                        "delta": DELTA,
                        "releases": 1,
                        "adjacency": "zero-out",
                    }
                    mechanism = calibrate("vmvu", ball=ball, **target).mechanism
                basis = directions(digits, start, size) if size else None
                tries = {}
                for step in STEPS:
                    found = train(digits, start, basis, mechanism, step, 100)
                    tries[step] = digits.accuracy(found, False)
                best = max(tries, key=lambda value: tries[value])
                scores = []
                for seed in SEEDS:
                    scores.append(
                        digits.accuracy(train(digits, start, basis, mechanism, best, seed), True)
                    )
                result = {
                    "line": f"{name} start",
                    "epsilon": epsilon,
                    "k": size,
                    "step": best,
                    "tries": tries,
                }
                results.append({**result, "test": scores})
                say(results[-1])
                given.out.write_text(json.dumps(results, indent=1))


def say(result: dict[str, Any]) -> None:
    """Print a result with the elapsed time."""
    mean = 100 * float(np.mean(result["test"]))
    words = {key: value for key, value in result.items() if key != "test"}
    print(f"{time.monotonic() - BEGAN:6.0f} s  {mean:.1f} %  {words}", flush=True)


if __name__ == "__main__":
    main()
