r"""Figure 3: all parameters of a pre-trained WideResNet-28-10, fine-tuned on CIFAR-10 in private.

Idea     a client per image, 90 rounds of 500, each client once: 45,000 train, and 5,000 held-out
         training images choose step sizes. `client_rows` makes a cohort's gradients, `row_passes`
         what a mechanism needs of them, and the mean of the releases is drawn from the mechanism's
         law: sums of Gaussian noise are Gaussian, and a coordinate's sum of 500 bits is drawn as a
         normal of its own mean and variance (its excess kurtosis is -0.004). Every training is a
         line of the results; a job that is there is not run again.
Symbols  n clients of a chunk, d parameters; k kept coordinates of p = d padded.

    PYTHONPATH=src python experiments/fig3_finetune.py wide --data data --device cuda --minutes 7 \
        --jobs none:0:0.4,0.8 vmvu:10:0.1,0.2 gaussian:10:0.1,0.2 --out
        experiments/results/fig3-whole.json

A job is MECHANISM:EPSILON:STEP,STEP.. or MECHANISM:EPSILON:best:SEED,SEED.., which repeats the step
that was best on the held-out images. ``imvu`` and ``sign`` rotate updates in blocks of 4,096
coordinates, ``imvu-plain`` and ``sign-plain`` do not; ``imvu@4096`` keeps 4,096 rotated coordinates
per client, and ``vmvu*3`` sends three releases of every update, within the budget together, whose
mean is used.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from client_rows import Rows
from row_passes import SIDE, Law, kept, sums, unrotate
from wide_network import restored

from quietbit import Ball, calibrate
from quietbit.kernel.transform import padded_size, signs
from quietbit.mechanism.projected import Projected
from quietbit_lab.cohort.releases import along_of, put_back
from quietbit_lab.task.images import load_cifar10

DELTA, MOMENTUM, CLIP, HELD_OUT = 1e-5, 0.5, 1.0, 5000
ROTATION = 1  # seed of the signs
BEGAN = time.monotonic()


class Sum:
    """The decoded mean of a cohort's releases, in clips, from its rows chunk by chunk."""

    def __init__(
        self, name: str, epsilon: float, dimension: int, device: str, *, plain: bool
    ) -> None:
        self.dimension, self.device, self.plain, self.facts = dimension, device, plain, {}
        self.name, _, choice = name.partition("*")[0].replace("@", "-").partition("-")
        self.times = int(name.partition("*")[2] or 1)
        self.law, self.keep, self.spread, self.signs = Law("sum"), 0, 0.0, None
        if name == "none":
            return
        choices: dict[str, Any] = {"coordinates": int(choice)} if choice.isdigit() else {}
        target = {
            "epsilon": epsilon,
            "delta": DELTA,
            "adjacency": "zero-out",
            "releases": self.times,
        }
        found = calibrate(self.name, ball=Ball("l2", dimension), **target, **choices)  # type: ignore[arg-type]
        whole: Any = found.mechanism
        size = self.times * (56 + whole.layout.size)
        self.facts = {"epsilon_upper": found.guarantee.epsilon_upper, "bytes": size}
        self.mechanism: Any = whole.inner if isinstance(whole, Projected) else whole
        if self.name == "vmvu" or isinstance(whole, Projected):
            self.keep, self.seed = whole.keep, whole.rotation_seed
            self.signs = torch.tensor(
                signs(whole.padded, self.seed), dtype=torch.int8, device=device
            )
        if self.name == "gaussian":
            self.spread = self.mechanism.noise_multiplier
        elif self.name == "sign":
            noise = self.mechanism.inner.noise_multiplier
            self.law = Law("normal", 1 / (noise * math.sqrt(2)), self.mechanism.cut)
            self.spread = noise * math.sqrt(math.pi / 2)
        elif self.name == "imvu":
            odds = np.log(
                self.mechanism.design.probabilities[:, 1]
                / self.mechanism.design.probabilities[:, 0]
            )
            most = 1 / self.mechanism.beta if self.mechanism.clamp else math.inf
            self.law = Law("logistic", float(odds[1] - odds[0]) * self.mechanism.beta / 2, most)
            self.spread = float(self.mechanism.values[1])
        if not self.keep and choice != "plain" and self.name in ("imvu", "sign"):
            blocks = -(-dimension // SIDE**2)
            self.law = replace(self.law, rotated=True)
            self.signs = torch.tensor(
                signs(blocks * SIDE**2, ROTATION), dtype=torch.int8, device=device
            )

    def of(self, rows: Any, factors: Any, generator: Any) -> Any:
        """Return what a chunk adds: (d,), or where coordinates are kept their places and values."""
        if self.keep:
            found = [self._kept(rows, factors, generator) for _ in range(self.times)]
            return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
        total, squares = sums(rows, factors, self.law, self.signs, plain=self.plain)
        noise = (
            torch.randn(total.shape, generator=generator, device=self.device)
            if self.spread
            else 0.0
        )
        if self.law.name == "sum":
            return total + self.spread * math.sqrt(rows.shape[0]) * noise
        return (
            2 * self.spread * (total + (rows.shape[0] / 4 - squares).clamp(min=0.0).sqrt() * noise)
        )

    def _kept(self, rows: Any, factors: Any, generator: Any) -> tuple[Any, Any]:
        size = padded_size(self.dimension)
        width, shape = size // self.keep, (rows.shape[0], self.keep)
        offsets = torch.randint(width, shape, generator=generator, device=self.device)
        found = kept(rows, self.signs, offsets, plain=self.plain) * factors[:, None]
        y = found * math.sqrt(size / self.keep)
        y /= y.norm(dim=1, keepdim=True).clamp(min=1.0)
        places = offsets + torch.arange(self.keep, device=self.device) * width
        if self.name == "imvu":
            ones = torch.rand(shape, generator=generator, device=self.device) < 0.5 + self.law.of(y)
            return places, self.spread * (2.0 * ones - 1)
        length = y.norm(dim=1, keepdim=True)
        direction = y / length.clamp(min=1e-30)
        along = along_of(self.mechanism, length.clamp(max=1.0)[:, 0].double(), generator).to(
            y.dtype
        )
        z = torch.randn(shape, generator=generator, device=self.device)
        z += (along - (z * direction).sum(dim=1))[:, None] * direction
        return places, z / self.mechanism.profile.gain_lower

    def mean(self, parts: list[Any], clients: int) -> Any:
        """Of a cohort, from what its chunks added."""
        if not self.keep:
            whole = (
                torch.stack(parts).sum(dim=0) / clients if len(parts) > 1 else parts[0] / clients
            )
            return unrotate(whole, self.signs, self.dimension) if self.law.rotated else whole
        places, values = (torch.cat(found) for found in zip(*parts, strict=True))
        return put_back(values, places, self.dimension, self.seed)[0]


def train(
    rows: Rows, start: Any, data: dict[str, Any], summed: Sum, step: float, seed: int, given: Any
) -> None:
    """Fine-tune from ``start``; the step falls linearly to a tenth."""
    generator = torch.Generator(given.device).manual_seed(seed)
    weights, speed, clients = start.clone(), torch.zeros_like(start), data["clients"]
    order = torch.randperm(clients, generator=generator, device=given.device)
    rounds = min(given.rounds, clients // given.cohort)
    for number in range(rounds):
        rows.load(weights)
        cohort, parts = order[number * given.cohort : (number + 1) * given.cohort], []
        for chosen in cohort.split(rows.most):
            found, lengths = rows.of(data["images"][chosen], data["labels"][chosen])
            parts.append(summed.of(found, 1 / lengths.clamp(min=CLIP), generator))
        speed = MOMENTUM * speed + summed.mean(parts, cohort.numel())
        weights -= step * (1 - 0.9 * number / rounds) * speed
    rows.load(weights)


def accuracy(rows: Rows, images: Any, labels: Any) -> float:
    """Return the share of images that the network classifies correctly."""
    right = torch.zeros((), dtype=torch.int64, device=rows.device)
    with torch.no_grad():
        for some, wanted in zip(images.split(500), labels.split(500), strict=True):
            right += (rows.scores(some).argmax(dim=1) == wanted).sum()
    return int(right) / labels.numel()


def best_step(done: list[dict[str, Any]], name: str, epsilon: float) -> float:
    """Return the step of a cell's first seed with the highest accuracy on held-out images."""
    tried = [
        one for one in done if (one["mechanism"], one["epsilon"], one["seed"]) == (name, epsilon, 1)
    ]
    if not tried:
        raise SystemExit(f"{name}:{epsilon:g} has no first training yet, so that no step is best")
    return float(max(tried, key=lambda one: one["held_out"])["step"])


def main() -> None:
    """Jobs in the order given, until the time is up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path, help="wide.npz, or the folder of the parts of 8 bits")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--jobs", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=500)
    parser.add_argument("--chunk", type=int, default=500)
    parser.add_argument("--most", type=int, help="images, for a trial")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--eager", action="store_true", help="nothing compiled")
    parser.add_argument("--plain", action="store_true", help="no kernels of our own either")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    plain = given.plain or given.device != "cuda"
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    done = json.loads(given.out.read_text()) if given.out.exists() else []
    network = restored(given.weights, 10, blocks=given.blocks, width=given.width)
    rows = Rows(
        network.to(given.device),
        given.device,
        min(given.chunk, given.cohort),
        compiled=not (plain or given.eager),
    )
    start, dataset = rows.flat(), load_cifar10(given.data)
    images, labels, test, test_labels = (
        torch.from_numpy(np.ascontiguousarray(part[: given.most])).to(given.device)
        for part in (
            dataset.train.inputs,
            dataset.train.labels,
            dataset.test.inputs,
            dataset.test.labels,
        )
    )
    held = min(HELD_OUT, labels.numel() // 10)
    data = {"images": images, "labels": labels, "clients": labels.numel() - held}
    say(f"{rows.dimension:,} parameters, {data['clients']:,} clients")
    longest = 0.0
    for job in given.jobs:
        name, number, steps, *seeds = job.split(":")
        epsilon, summed = float(number), None
        for seed in [int(word) for word in seeds[0].split(",")] if seeds else [1]:
            for word in steps.split(","):
                step = best_step(done, name, epsilon) if word == "best" else float(word)
                cell = {"mechanism": name, "epsilon": epsilon, "step": step, "seed": seed}
                if any(cell.items() <= one.items() for one in done):
                    continue
                began = time.monotonic()
                if began - BEGAN + longest > 60 * given.minutes:
                    say("time is up")
                    return
                summed = summed or Sum(name, epsilon, rows.dimension, given.device, plain=plain)
                train(rows, start, data, summed, step, seed, given)
                scored = {
                    "held_out": accuracy(rows, images[-held:], labels[-held:]),
                    "test": accuracy(rows, test, test_labels),
                }
                longest = max(longest, time.monotonic() - began)
                done.append(
                    cell
                    | {"adjacency": "zero-out", "releases": summed.times, "clip": CLIP}
                    | summed.facts
                    | scored
                )
                given.out.parent.mkdir(parents=True, exist_ok=True)
                given.out.write_text(json.dumps(done, indent=1))
                say(
                    f"{name} {epsilon:g} step {step:g} seed {seed}: "
                    f"{100 * scored['held_out']:.1f} % held out, "
                    f"{100 * scored['test']:.1f} % of the test images, "
                    f"{time.monotonic() - began:.1f} s"
                )


def say(words: str) -> None:
    """Print a line with the elapsed time."""
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
