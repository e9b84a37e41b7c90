r"""Heads learnt in a subspace of public gradients, beside what public data alone gives.

Idea     a linear head on fixed features, one client per image, each once, in rounds of 500. Public
         images of another source give the start of the head, or only the k leading directions of
         their gradients there. A client sends its gradient's k coordinates, which the vector
         mechanism clips; releases are drawn from its law (`quietbit_lab.cohort`). Clip and step are
         chosen on 5,000 held-out images with one seed; five other seeds are reported on the test
         images, which choose nothing. Public data alone is tuned on the same held-out images.
Tasks    digits: MNIST, `--features` random ones of its pixels or the pixels themselves; public:
         digits of FEMNIST's writers. objects: CIFAR-10's features (`cifar10-features`); public:
         Tiny-ImageNet's (`tiny_features.py`), of which a zero-shot classifier names those that
         have no name of CIFAR-10's.
Symbols  G trainings at a time; K classes; F features and a one; d = K (F + 1); k directions.

    python experiments/subspace_heads.py objects --data DIR --public tiny.npz --out heads.json
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import lzma
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen

from quietbit import Ball, calibrate
from quietbit.gradients.subspace import Subspace
from quietbit_lab.cohort.releases import vector_mean

CLASSES = 10
HELD_OUT = 5_000
COHORT = 500
MOMENTUM = 0.5
DELTA = 1e-5
LENGTH = 6.0
INK = 60  # of a drawing's paper
SEEDS = 5
CHOOSING = 100
MOST_PUBLIC = 12_000
MOST_WIDER = 5
FOR_DIRECTIONS = 3_000
PER_ROUND = 600  # public gradients of a round, where directions are renewed
STEPS = (0.04, 0.08, 0.16, 0.32, 0.64)
CLIPS = (1.0,)
BEGAN = time.monotonic()


@frozen(eq=False)
class Task:
    """Inputs and labels of clients (the last are held out), of test and of public images."""

    x: Any
    labels: Any
    test: Any
    test_labels: Any
    public: Any
    public_labels: Any
    start: Any

    @property
    def clients(self) -> int:
        """How many of the images train; the rest is held out."""
        return len(self.x) - HELD_OUT

    def accuracies(self, weights: Any, test: bool) -> list[float]:
        """Return the share of images that each head names rightly."""
        x = self.test if test else self.x[self.clients :]
        labels = self.test_labels if test else self.labels[self.clients :]
        scores = torch.einsum("nf,gcf->gnc", x, weights)
        return [float(value) for value in (scores.argmax(dim=2) == labels).float().mean(dim=1)]


def idx(path: Path) -> Any:
    """Read an IDX file."""
    with gzip.open(path) as file:
        content = file.read()
    axes = content[3]
    shape = np.frombuffer(content, ">i4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def centred(images: Any) -> Any:
    """Return drawings as MNIST was made: scaled to 20 pixels, their mass in the middle."""
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


def with_one(x: Any) -> Any:
    """Return inputs of one length, and a one."""
    x = x * (LENGTH / x.norm(dim=1, keepdim=True).clamp(min=1e-9))
    return torch.cat((x, torch.ones(len(x), 1)), dim=1)


def digits(folder: Path, features: int) -> Task:
    """Return MNIST, with public digits of FEMNIST's writers."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    images, labels, test, test_labels = (
        idx(folder / "mnist" / f"{name}-ubyte.gz") for name in names
    )
    with lzma.open(folder / "femnist" / "images.npy.xz") as file:
        drawings = np.load(file)
    kinds = np.load(folder / "femnist" / "meta.npz")["labels"]
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(kinds < CLASSES))[:MOST_PUBLIC]
    public = centred(255 - drawings[chosen])
    generator = torch.Generator().manual_seed(0)
    turn = torch.randn((784, features), generator=generator) if features else None
    shift = torch.rand(features, generator=generator)

    def inputs(images: Any) -> Any:
        pixels = torch.from_numpy(images.reshape(len(images), -1).astype(np.float32)) / 255
        pixels = pixels - pixels.mean(dim=1, keepdim=True)
        pixels = pixels / pixels.norm(dim=1, keepdim=True).clamp(min=1e-6)
        if turn is None:
            return with_one(pixels)
        waves = torch.cos(1.2 * pixels @ turn + 2 * torch.pi * shift)
        return with_one(waves)

    x = inputs(images)
    start = torch.zeros(CLASSES, x.shape[1])
    all_labels = (torch.from_numpy(part.astype(np.int64)) for part in (labels, test_labels))
    known, of_test = all_labels
    named = torch.from_numpy(kinds[chosen].astype(np.int64))
    return Task(x, known, inputs(test), of_test, inputs(public), named, start)


def objects(folder: Path, path: Path) -> Task:
    """Return CIFAR-10's features, with Tiny-ImageNet's as public ones."""
    parts = []
    for name in ("train", "test"):
        with np.load(folder / "cifar10-features" / f"{name}.npz") as kept:
            rows = torch.from_numpy(kept["features"].astype(np.float32) * kept["steps"])
            parts += [with_one(rows), torch.from_numpy(kept["labels"].astype(np.int64))]
            flat = torch.from_numpy(kept["start"])
    start = torch.cat((flat[:-CLASSES].reshape(CLASSES, -1), flat[-CLASSES:, None]), dim=1)
    with np.load(path) as kept:
        public = with_one(torch.from_numpy(kept["features"]))
        labels = torch.from_numpy(kept["labels"].astype(np.int64))
    named = torch.where(labels < 0, (public @ start.T).argmax(dim=1), labels)
    return Task(*parts, public, named, start)


def errors_of(weights: Any, x: Any, labels: Any) -> Any:
    """Return softmax less label, (G, n, K): a gradient is its outer product with the inputs."""
    found = torch.softmax(x @ weights.transpose(1, 2), dim=2)
    found.scatter_add_(2, labels[:, :, None], torch.full_like(found[:, :, :1], -1.0))
    return found


def public_alone(task: Task) -> tuple[Any, float]:
    """Return the head of public images alone; held-out images choose step and length."""
    steps = torch.tensor([0.003, 0.01, 0.03, 0.1])
    weights = task.start.repeat(len(steps), 1, 1)
    best = (weights[0], task.accuracies(weights[:1], False)[0])
    generator = torch.Generator().manual_seed(0)
    for number in range(1, 1501):
        here = torch.randint(len(task.public), (len(steps), 200), generator=generator)
        x = task.public[here]
        errors = errors_of(weights, x, task.public_labels[here])
        weights = weights - steps[:, None, None] * errors.transpose(1, 2) @ x / here.shape[1]
        if number % 25 == 0:
            scores = task.accuracies(weights, False)
            place = int(np.argmax(scores))
            if scores[place] > best[1]:
                best = (weights[place].clone(), scores[place])
    return best


def public_gradients(task: Task, start: Any) -> Any:
    """Return gradients of public images at a start, a row each."""
    chosen = torch.randperm(len(task.public), generator=torch.Generator().manual_seed(1))
    chosen = chosen[:FOR_DIRECTIONS]
    x = task.public[chosen]
    errors = errors_of(start[None], x[None], task.public_labels[chosen][None])[0]
    return (errors[:, :, None] * x[:, None, :]).reshape(len(x), -1).numpy()


def train(
    task: Task, start: Any, basis: Any, mean_of: Any, settings: list[tuple[float, float]], seed: int
) -> Any:
    """Return the heads (G, K, F + 1) that these clips and steps lead to."""
    generator = torch.Generator().manual_seed(seed)
    count = len(settings)
    clips, steps = (torch.tensor(part) for part in zip(*settings, strict=True))
    weights = start.repeat(count, 1, 1)
    speed = torch.zeros_like(weights)
    rounds = task.clients // COHORT
    order = torch.rand((count, task.clients), generator=generator).argsort(dim=1)
    for number in range(rounds):
        here = order[:, number * COHORT : (number + 1) * COHORT]
        x = task.x[here]
        errors = errors_of(weights, x, task.labels[here])
        if basis is None:
            norms = (errors.norm(dim=2) * x.norm(dim=2)).clamp(min=1e-12)
            errors = errors / torch.maximum(norms, clips[:, None])[:, :, None]
            mean = (errors.transpose(1, 2) @ x / COHORT).reshape(count, -1)
            mean = mean_of(mean, generator)
        else:
            size = basis.shape[0]
            scores = (x @ basis.reshape(size * CLASSES, -1).T).reshape(count, COHORT, size, CLASSES)
            rows = (scores * errors[:, :, None, :]).sum(dim=3)
            rows = rows / torch.maximum(rows.norm(dim=2), clips[:, None])[:, :, None]
            mean = mean_of(rows, generator) @ basis.reshape(size, -1)
        speed = MOMENTUM * speed + mean.reshape(weights.shape)
        weights = weights - (steps * clips)[:, None, None] * (1 - 0.9 * number / rounds) * speed
    return weights


def train_renewed(
    task: Task, start: Any, size: int, mean_of: Any, settings: list[tuple[float, float]], seed: int
) -> Any:
    """Return the heads likewise, with directions of public gradients at every round's head.

    Gradients are outer products, so that their products are those of errors times those of inputs,
    and no direction is ever written out.
    """
    generator = torch.Generator().manual_seed(seed)
    count = len(settings)
    clips, steps = (torch.tensor(part) for part in zip(*settings, strict=True))
    weights = start.repeat(count, 1, 1)
    speed = torch.zeros_like(weights)
    rounds = task.clients // COHORT
    order = torch.rand((count, task.clients), generator=generator).argsort(dim=1)
    for number in range(rounds):
        chosen = torch.randint(len(task.public), (PER_ROUND,), generator=generator)
        known = task.public[chosen].expand(count, -1, -1)
        wrong = errors_of(weights, known, task.public_labels[chosen].expand(count, -1))
        wrong = wrong / (wrong.norm(dim=2) * known.norm(dim=2)).clamp(min=1e-9)[:, :, None]
        products = (wrong @ wrong.transpose(1, 2)) * (known @ known.transpose(1, 2))
        values, vectors = torch.linalg.eigh(products.double())
        leading = (vectors[:, :, -size:] / values[:, None, -size:].clamp(min=1e-9).sqrt()).float()
        here = order[:, number * COHORT : (number + 1) * COHORT]
        x = task.x[here]
        errors = errors_of(weights, x, task.labels[here])
        rows = ((errors @ wrong.transpose(1, 2)) * (x @ known.transpose(1, 2))) @ leading
        rows = rows / torch.maximum(rows.norm(dim=2), clips[:, None])[:, :, None]
        shares = (leading @ mean_of(rows, generator)[:, :, None])[:, :, 0]
        mean = (wrong * shares[:, :, None]).transpose(1, 2) @ known
        speed = MOMENTUM * speed + mean
        weights = weights - (steps * clips)[:, None, None] * (1 - 0.9 * number / rounds) * speed
    return weights


def means(epsilon: float | None, size: int, dimension: int) -> tuple[Any, dict[str, Any]]:
    """Return what makes a decoded mean in clips: of rows, or, of all numbers, of their mean."""
    if epsilon is None:
        return (lambda rows, generator: rows.mean(dim=1) if size else rows), {}
    ball = Ball("l2", size or dimension)
    found = calibrate(
        "vmvu", ball=ball, epsilon=epsilon, delta=DELTA, releases=1, adjacency="zero-out"
    )
    facts = {
        "epsilon_upper": found.guarantee.epsilon_upper,
        "bytes": 56 + found.mechanism.layout.size,
    }
    if size:
        return (lambda rows, generator: vector_mean(rows, found.mechanism, generator)), facts
    # All numbers: normal noise of the releases' variance, which a mean of 500 is hardly apart from.
    deviation = (found.squared_error / COHORT) ** 0.5

    def noisy(mean: Any, generator: Any) -> Any:
        return mean + deviation * torch.randn(mean.shape, generator=generator)

    return noisy, facts | {"noise": "normal, of the releases' variance"}


def line(
    task: Task,
    name: str,
    start: Any,
    epsilon: float | None,
    size: int,
    pairs: list[tuple[float, float]],
    renewed: bool,
) -> dict[str, Any]:
    """Choose clip and step on held-out images; report five seeds on test images."""
    dimension = start.numel()
    mean_of, facts = means(epsilon, size, dimension)
    basis = None
    if size and renewed:
        facts["made"] = "every round"
    elif size:
        space = Subspace.of_gradients(public_gradients(task, start), size)
        basis = torch.from_numpy(space.directions.copy()).reshape(size, CLASSES, -1)
        facts["basis_bytes"] = space.bytes_once

    def heads_of(settings: list[tuple[float, float]], seed: int) -> Any:
        if size and renewed:
            return train_renewed(task, start, size, mean_of, settings, seed)
        return train(task, start, basis, mean_of, settings, seed)

    held = task.accuracies(heads_of(pairs, CHOOSING), False)
    best = int(np.argmax(held))
    for _ in range(MOST_WIDER):  # a best step at an end of the grid: look further
        tried = sorted(step for _, step in pairs)
        if pairs[best][1] not in (tried[0], tried[-1]):
            break
        further = tried[0] / 2 if pairs[best][1] == tried[0] else 2 * tried[-1]
        pairs = [*pairs, (pairs[best][0], further)]
        held += task.accuracies(heads_of(pairs[-1:], CHOOSING), False)
        best = int(np.argmax(held))
    heads = heads_of([pairs[best]] * SEEDS, 1)
    return {
        "line": name,
        "epsilon": epsilon,
        "k": size,
        "d": dimension,
        **facts,
        "clip": pairs[best][0],
        "step": pairs[best][1],
        "held": held[best],
        "test": task.accuracies(heads, True),
    }


def main() -> None:
    """Run every line and write them; those in the file stay."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=["digits", "objects"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--public", type=Path, help="of objects: Tiny-ImageNet's features")
    parser.add_argument("--features", type=int, default=0, help="of digits: 0 for pixels")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1.0, 4.0])
    parser.add_argument("--size", type=int, nargs="*", default=[0, 16, 64])
    parser.add_argument("--clips", type=float, nargs="*", default=list(CLIPS))
    parser.add_argument("--steps", type=float, nargs="*", default=list(STEPS), help="increasing")
    parser.add_argument("--start", nargs="*", default=["public", "first"])
    parser.add_argument("--renewed", action="store_true", help="directions of every round")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.task == "digits":
        task = digits(given.data, given.features)
    else:
        task = objects(given.data, given.public)
    say("read")
    results = json.loads(given.out.read_text()) if given.out.exists() else []
    what = {"task": given.task, "features": task.x.shape[1] - 1}
    kept = given.out.with_suffix(f".{what['features']}.npy")  # the public start, made once
    if kept.exists():
        taught = torch.from_numpy(np.load(kept))
        score = task.accuracies(taught[None], False)[0]
    else:
        taught, score = public_alone(task)
        np.save(kept, taught.numpy())
    done = {(one["features"], one["line"], one["epsilon"], one["k"]) for one in results}

    def add(result: dict[str, Any]) -> None:
        results.append({**what, **result})
        given.out.write_text(json.dumps(results, indent=1) + "\n")
        mean = 100 * float(np.mean(result["test"]))
        say(f"{mean:.1f} %  { {key: result[key] for key in result if key != 'test'} }")

    if (what["features"], "public alone", None, 0) not in done:
        alone = {"line": "public alone", "epsilon": None, "k": 0, "d": taught.numel()}
        add({**alone, "held": score, "test": task.accuracies(taught[None], True)})
        if bool(task.start.any()):
            first = task.accuracies(task.start[None], True)
            add({**alone, "line": "first start alone", "held": None, "test": first})
    starts = {"public": taught, "first": task.start}
    pairs = list(itertools.product(given.clips, given.steps))
    epsilons = [None if value == 0 else value for value in given.epsilon]
    for epsilon, size, name in itertools.product(epsilons, given.size, given.start):
        if time.monotonic() - BEGAN > 60 * given.minutes:
            say("time is up")
            return
        title = f"{name} start, renewed" if given.renewed and size else f"{name} start"
        if (what["features"], title, epsilon, size) not in done:
            add(line(task, title, starts[name], epsilon, size, pairs, given.renewed))


def say(words: str) -> None:
    """Print a line with the elapsed time."""
    print(f"{time.monotonic() - BEGAN:6.0f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
