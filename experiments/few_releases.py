r"""Accuracy where a client takes part a few times.

The vector mechanism, I-MVU and the Gaussian at equal budgets.

Idea     linear models on fixed features, a client per example, every client once per epoch; a
         cohort's releases are drawn from the mechanisms' laws on one device
         (`quietbit_lab.cohort`). Two seeds choose step and clip of every line, five others report.

    PYTHONPATH=src:extra QUIETBIT_DATA=data python experiments/few_releases.py --task mnist --device
        cuda --minutes 8 \ --out back/few-releases-mnist.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quietbit import Ball, calibrate
from quietbit_lab.cohort.means import gaussian_mean, unit_mean
from quietbit_lab.cohort.releases import kept_rows, put_back, vector_mean
from quietbit_lab.task.registry import TaskSpec, build_task

CHOOSING, REPORTING = (101, 102), (1, 2, 3, 4, 5)
DELTA, MOMENTUM = 1e-5, 0.5
STEPS = (0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5)
CLIPS = (8.0, 30.0)
BEGAN = time.monotonic()


class Linear:
    """Softmax regression whose per-example gradients are outer products, on one device."""

    def __init__(self, problem: Any, device: str) -> None:
        data, self.device = problem.dataset, device
        self.inputs = self._features(data.train.inputs)
        self.labels = torch.tensor(data.train.labels.astype(np.int64), device=device)
        self.test = self._features(data.test.inputs)
        self.test_labels = torch.tensor(data.test.labels.astype(np.int64), device=device)
        self.classes, self.width = data.classes, self.inputs.shape[1]
        self.dimension = self.classes * self.width
        self.lengths = self.inputs.norm(dim=1)
        self.start = torch.zeros((self.classes, self.width), device=device)

    def _features(self, inputs: Any) -> Any:
        flat = torch.tensor(inputs.reshape(inputs.shape[0], -1), device=self.device)
        return torch.cat((flat, torch.ones((flat.shape[0], 1), device=self.device)), dim=1)

    def updates(self, weights: Any, clients: Any, clip: float) -> Any:
        """Clipped gradients of a cohort in units of the clip, a row each."""
        features = self.inputs[clients]
        errors = torch.softmax(features @ weights.T, dim=1)
        errors[torch.arange(clients.numel(), device=self.device), self.labels[clients]] -= 1
        norms = errors.norm(dim=1) * self.lengths[clients]
        errors /= torch.clamp(norms, min=clip)[:, None]
        return (errors[:, :, None] * features[:, None, :]).reshape(clients.numel(), -1)

    def accuracy(self, weights: Any) -> float:
        """Return the share of test examples that are classified correctly."""
        return float(((self.test @ weights.T).argmax(dim=1) == self.test_labels).float().mean())


def mean_of(mechanism: Any, name: str) -> Any:
    """(rows, generator) -> the decoded mean of a cohort, in units of the clip."""
    if name == "none":
        return lambda rows, generator: rows.mean(dim=0)
    if name == "vmvu":
        return lambda rows, generator: vector_mean(rows, mechanism, generator)
    if name in ("gaussian", "imvu"):
        return lambda rows, generator: unit_mean(rows, mechanism, generator)

    def projected(rows: Any, generator: Any) -> Any:
        places, y = kept_rows(rows, mechanism.ball.dimension, 0, generator)
        return put_back(unit_mean(y[:, None], mechanism, generator), places, rows.shape[1], 0)[0]

    return projected


def train(
    model: Linear, mean: Any, step: float, clip: float, epochs: int, cohort: int, seed: int
) -> float:
    """Accuracy after every client has sent ``epochs`` updates.

    The step falls linearly to a tenth.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    weights = model.start.clone()
    speed = torch.zeros_like(weights)
    clients = model.inputs.shape[0]
    rounds = epochs * (clients // cohort)
    order = torch.empty(0, device=model.device)
    for number in range(rounds):
        place = number % (clients // cohort)
        if place == 0:
            order = torch.randperm(clients, generator=generator, device=model.device)
        rows = model.updates(weights, order[place * cohort : (place + 1) * cohort], clip)
        speed = MOMENTUM * speed + mean(rows, generator).reshape(weights.shape)
        weights = weights - step * (1 - 0.9 * number / rounds) * speed
    found = model.accuracy(weights)
    return found if math.isfinite(found) else 0.0


def line(model: Linear, name: str, cell: dict[str, Any], cohort: int) -> dict[str, Any]:
    """Choose on two seeds, report on five."""
    mechanism, facts = None, {}
    if name.startswith("sum") or name == "central":
        return _trusting(model, name, cell, cohort)
    if name != "none":
        kind, _, keep = name.partition("-")
        ball = Ball("l2", model.dimension)
        found = calibrate(
            kind, ball=ball, delta=DELTA, coordinates=int(keep) if keep else None, **cell
        )
        mechanism = found.mechanism.inner if keep else found.mechanism
        facts = {
            "squared_error": found.squared_error,
            "epsilon_upper": found.guarantee.epsilon_upper,
        }
        facts["body_bytes"] = mechanism.layout.size
    return _chosen(model, name, cell, cohort, mean_of(mechanism, name), facts)


def _trusting(model: Linear, name: str, cell: dict[str, Any], cohort: int) -> dict[str, Any]:
    """Run a cell with masked sums (all coordinates, or the same few of every client) or with a trusted server."""
    ball = Ball("l2", model.dimension)
    if name == "central":
        found = calibrate("gaussian", ball=ball, delta=DELTA, **cell)
        deviation = found.mechanism.noise_multiplier / math.sqrt(
            cohort
        )  # noise once for the whole sum
        return _chosen(
            model,
            name,
            cell,
            cohort,
            lambda rows, generator: gaussian_mean(rows, deviation, generator),
            {},
        )
    keep = int(name.partition("-")[2]) if "-" in name else None
    summed = calibrate("imvu", ball=ball, delta=DELTA, honest=cohort, coordinates=keep, **cell)
    codes: Any = summed.mechanism.core
    facts = {
        "squared_error": summed.error.of_mean(cohort),
        "epsilon_upper": summed.guarantee.epsilon_upper,
    }
    facts["sum_bytes"] = -(-cohort.bit_length() * (keep or model.dimension) // 8)

    def shared(rows: Any, generator: Any) -> Any:
        if keep is None:
            return unit_mean(rows, codes, generator)
        one = torch.zeros((1, rows.shape[1]), device=rows.device)
        places, _ = kept_rows(one, keep, 0, generator)
        _, y = kept_rows(rows, keep, 0, generator, places)
        return put_back(unit_mean(y, codes, generator)[None], places, rows.shape[1], 0)[0]

    return _chosen(model, name, cell, cohort, shared, facts)


def _chosen(
    model: Linear, name: str, cell: dict[str, Any], cohort: int, mean: Any, facts: dict[str, Any]
) -> dict[str, Any]:
    epochs = int(cell.get("releases", 1))
    tried = {}
    for clip in CLIPS:
        best = 0.0
        for step in STEPS:
            got = [train(model, mean, step, clip, epochs, cohort, seed) for seed in CHOOSING]
            tried[clip, step] = float(np.mean(got))
            best = max(best, tried[clip, step])
            if tried[clip, step] < best - 0.08:
                break  # larger steps only get worse
    clip, step = max(tried, key=lambda pair: tried[pair])
    reported = [train(model, mean, step, clip, epochs, cohort, seed) for seed in REPORTING]
    grid = [[*pair, value] for pair, value in tried.items()]
    return {
        "mechanism": name,
        **cell,
        **facts,
        "clip": clip,
        "step": step,
        "accuracies": reported,
        "chosen_on": grid,
    }


def main() -> None:
    """Every line of the grid until the time is up; what is in the file already is kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--cohort", type=int, default=600)
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--releases", type=int, nargs="*", default=[1])
    parser.add_argument("--mechanism", nargs="*", default=["vmvu", "gaussian", "imvu"])
    parser.add_argument("--adjacency", nargs="*", default=["zero-out", "replace-one"])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    done = json.loads(given.out.read_text()) if given.out.exists() else []
    model = Linear(build_task(TaskSpec(given.task), seed=0, device=given.device), given.device)
    say(f"{given.task}: {model.dimension:,} parameters")
    for releases, adjacency, epsilon, name in itertools.product(
        given.releases, given.adjacency, given.epsilon, given.mechanism
    ):
        cell = {"epsilon": epsilon, "adjacency": adjacency, "releases": releases}
        if any(
            all(one[key] == value for key, value in {**cell, "mechanism": name}.items())
            for one in done
        ):
            continue
        if time.monotonic() - BEGAN > 60 * given.minutes:
            say("time is up")
            break
        done.append(line(model, name, cell, given.cohort))
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(done, indent=1))
        got = 100 * np.array(done[-1]["accuracies"])
        say(
            f"{name} {cell}: {got.mean():.1f} +- {got.std():.1f} (step {done[-1]['step']}, clip {done[-1]['clip']})"
        )


def say(words: str) -> None:
    """Print a line with the elapsed time."""
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
