r"""Figure 3: a pre-trained WideResNet-28-10, all of whose parameters are fine-tuned on CIFAR-10 in private.

Idea     a client per image, 100 rounds of 500, each client once. One backward pass gives every layer's input and the
         gradient at its output; their products are the clients' own gradients, a chunk of clients at a time in rows of
         36 million numbers. Rows are clipped, released by the mechanisms' laws, and added. Step sizes are chosen on
         5,000 held-out training images (45,000 clients train); the best network there is scored on the test set.
Symbols  n clients of a chunk, d parameters; k kept coordinates of p = d padded. One of a stratum each needs small
         Hadamard matrices only: index = stratum x width + offset, and the signs of a sum of bits multiply.

    PYTHONPATH=src python experiments/fig3_finetune.py wide.npz --data data --device cuda --minutes 8 \
        --jobs none:0:0.1,0.4 vmvu:10:0.03,0.1 gaussian:10:0.03,0.1 --out experiments/results/fig3-whole.json
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from wide_network import Wide, restored, scaled

from quietbit import Ball, calibrate
from quietbit.kernel.transform import padded_size, signs
from quietbit_lab.cohort.releases import along_of, hadamard_matrix, put_back
from quietbit_lab.task.images import load_cifar10

DELTA, MOMENTUM, CLIP, HELD_OUT = 1e-5, 0.5, 1.0, 5000
MOST_ALONE = 16.0  # of epsilon that the vector mechanism is designed for; more is left unused
SLICE = 1 << 22  # columns of a chunk that are randomised at once
BEGAN = time.monotonic()


class Rows:
    """Gradients of single clients of a network of convolutions, group normalisations and one dense layer."""

    def __init__(self, network: Wide, device: str, chunk: int) -> None:
        self.network, self.device, self.chunk = network, device, chunk
        self.kind = torch.bfloat16 if device == "cuda" else torch.float32
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        kinds = (nn.Conv2d, nn.GroupNorm, nn.Linear)
        self.layers = [module for module in network.modules() if isinstance(module, kinds)]
        self.places, start = [], 0
        for layer in self.layers:
            self.places.append(start)
            start += sum(parameter.numel() for parameter in layer.parameters())
        self.dimension = start
        self.buffer = torch.empty((chunk, start), dtype=self.kind, device=device)
        self.seen: dict[int, tuple[Any, Any]] = {}
        for place, layer in enumerate(self.layers):
            layer.register_forward_hook(self._watch(place))

    def _watch(self, place: int) -> Any:
        def saw(_: Any, inputs: Any, output: Any) -> None:
            if output.requires_grad:
                output.register_hook(lambda gradient: self.seen.__setitem__(place, (inputs[0].detach(), gradient)))

        return saw

    def flat(self) -> Any:
        """The parameters in one vector, in the rows' order."""
        return torch.cat([turned(p).reshape(-1).float() for layer in self.layers for p in layer.parameters()])

    def load(self, flat: Any) -> None:
        """Write a vector into the network."""
        start = 0
        for layer in self.layers:
            for parameter in layer.parameters():
                turned(parameter).copy_(flat[start : start + parameter.numel()].reshape(turned(parameter).shape))
                start += parameter.numel()

    def of(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """Rows (n, d), unclipped, and their lengths."""
        x = scaled(images).contiguous(memory_format=torch.channels_last).requires_grad_(True)
        with torch.autocast(self.device, self.kind, enabled=self.kind is torch.bfloat16):
            loss = nn.functional.cross_entropy(self.network(x).float(), labels, reduction="sum")
        torch.autograd.backward(loss, inputs=[x])
        rows, squares = self.buffer[: labels.numel()], torch.zeros(labels.numel(), device=self.device)
        for place, layer in enumerate(self.layers):
            start, (inputs, gradient) = self.places[place], self.seen.pop(place)
            for part in self._gradients(layer, inputs, gradient):
                here = rows[:, start : start + part.shape[1]]
                here.copy_(part)
                squares += torch.linalg.vector_norm(part, dim=1, dtype=torch.float32).square()
                start += part.shape[1]
        return rows, squares.sqrt()

    def _gradients(self, layer: Any, x: Any, g: Any) -> list[Any]:
        x, g = x.to(self.kind), g.to(self.kind)
        if isinstance(layer, nn.Linear):
            return [(g[:, :, None] * x[:, None, :]).reshape(x.shape[0], -1), g]
        if isinstance(layer, nn.GroupNorm):
            normal = nn.functional.group_norm(x.float(), layer.num_groups, eps=layer.eps)
            return [(normal * g).sum(dim=(2, 3)), g.float().sum(dim=(2, 3))]
        side = layer.kernel_size[0]
        padded = nn.functional.pad(x, (layer.padding[0],) * 4)
        stride, height, width = layer.stride[0], g.shape[2], g.shape[3]
        g = g.reshape(g.shape[0], g.shape[1], -1)
        found = torch.empty((x.shape[0], side, side, g.shape[1], x.shape[1]), dtype=self.kind, device=x.device)
        for row in range(side):
            for column in range(side):
                window = padded[:, :, row:, column:][:, :, : (height - 1) * stride + 1 : stride]
                window = window[:, :, :, : (width - 1) * stride + 1 : stride].reshape(x.shape[0], x.shape[1], -1)
                found[:, row, column] = g @ window.transpose(1, 2)
        return [found.reshape(x.shape[0], -1)]


def turned(parameter: Any) -> Any:
    """A convolution's filters with their places first, as the rows hold them; any other parameter as it is."""
    return parameter.permute(2, 3, 0, 1) if parameter.dim() == 4 else parameter


class Sum:
    """The decoded sum of a cohort's releases, a chunk of rows at a time, in units of the clip."""

    def __init__(self, name: str, cell: dict[str, Any], dimension: int, device: str) -> None:
        self.name, self.dimension, self.device, self.facts = name, dimension, device, {}
        if name != "none":
            epsilon = min(cell["epsilon"], MOST_ALONE) if name == "vmvu" else cell["epsilon"]
            found = calibrate(name, ball=Ball("l2", 1.0, dimension), delta=DELTA, **{**cell, "epsilon": epsilon})
            self.mechanism: Any = found.mechanism
            self.facts = {"epsilon_upper": found.guarantee.epsilon_upper, "bytes": 56 + self.mechanism.layout.size}
        if name == "vmvu":
            size = padded_size(dimension)
            self.signs = torch.tensor(signs(size, self.mechanism.rotation_seed), dtype=torch.bfloat16, device=device)
            self.padded = torch.zeros(size, dtype=torch.bfloat16 if device == "cuda" else torch.float32, device=device)

    def of(self, rows: Any, factors: Any, generator: Any) -> Any:
        """What a chunk adds; (d,), or for the vector mechanism the places and values that it keeps."""
        if self.name == "vmvu":
            return self._kept(rows, factors, generator)
        if self.name in ("none", "gaussian"):
            total = (factors.to(rows.dtype)[None] @ rows)[0].float()
            if self.name == "gaussian":
                spread = self.mechanism.noise_multiplier * math.sqrt(rows.shape[0])
                total += spread * torch.randn(total.shape, generator=generator, device=self.device)
            return total
        total = torch.empty(self.dimension, device=self.device)
        for start in range(0, self.dimension, SLICE):
            x = rows[:, start : start + SLICE].float() * factors[:, None]
            total[start : start + SLICE] = self._bits(x, generator)
        return total

    def _bits(self, x: Any, generator: Any) -> Any:
        if self.name == "sign":
            noise = self.mechanism.inner.noise_multiplier
            chance = torch.special.ndtr(x / noise)
            low, high = -noise * math.sqrt(math.pi / 2), noise * math.sqrt(math.pi / 2)
        else:
            odds = np.log(self.mechanism.design.probabilities[:, 1] / self.mechanism.design.probabilities[:, 0])
            offset = x * (self.mechanism.beta / 2)
            offset = offset.clamp(-0.5, 0.5) if self.mechanism.clamp else offset
            chance = torch.sigmoid(float(odds[0] + odds[1]) / 2 + float(odds[1] - odds[0]) * offset)
            low, high = self.mechanism.values.tolist()
        ones = (torch.rand(x.shape, generator=generator, device=self.device) < chance).sum(dim=0)
        return low * x.shape[0] + (high - low) * ones

    def _kept(self, rows: Any, factors: Any, generator: Any) -> tuple[Any, Any]:
        keep, size = self.mechanism.keep, padded_size(self.dimension)
        width = size // keep
        offsets = torch.randint(width, (rows.shape[0], keep), generator=generator, device=self.device)
        found = torch.empty((rows.shape[0], keep), device=self.device)
        for place in range(rows.shape[0]):
            found[place] = self._projections(rows[place], offsets[place], keep, size) * factors[place]
        y = found * math.sqrt(size / keep)
        y /= y.norm(dim=1, keepdim=True).clamp(min=1.0)
        length = y.norm(dim=1, keepdim=True)
        direction = y / length.clamp(min=1e-30)
        along = along_of(self.mechanism, length.clamp(max=1.0)[:, 0].double(), generator).float()
        z = torch.randn(y.shape, generator=generator, device=self.device)
        z += (along - (z * direction).sum(dim=1))[:, None] * direction
        return offsets + torch.arange(keep, device=self.device) * width, z / self.mechanism.profile.gain_lower

    def _projections(self, row: Any, offsets: Any, keep: int, size: int) -> Any:
        """The chosen coordinates of one rotated row: of stratum j the one at offsets[j]."""
        self.padded[: self.dimension] = row * self.signs[: self.dimension]
        width = size // keep
        left = 1 << (width.bit_length() // 2)
        kind = self.padded.dtype
        mixed = hadamard_matrix(keep, self.device).to(kind) @ self.padded.reshape(keep, width)
        outer = hadamard_matrix(left, self.device)[offsets // (width // left)]  # (keep, left)
        inner = hadamard_matrix(width // left, self.device)[offsets % (width // left)]
        half = torch.bmm(mixed.reshape(keep, left, width // left), inner.to(kind)[:, :, None])[:, :, 0]
        return (half.float() * outer).sum(dim=1)

    def mean(self, parts: list[Any], clients: int) -> Any:
        """Of a cohort, from what its chunks added."""
        if self.name != "vmvu":
            return torch.stack(parts).sum(dim=0) / clients
        places, values = (torch.cat(found) for found in zip(*parts, strict=True))
        return put_back(values, places, self.dimension, self.mechanism.rotation_seed)[0]


def train(rows: Rows, start: Any, data: dict[str, Any], summed: Sum, step: float, seed: int, given: Any) -> Any:
    """The fine-tuned parameters; the step falls linearly to a tenth."""
    generator = torch.Generator(given.device).manual_seed(seed)
    weights, speed, clients = start.clone(), torch.zeros_like(start), data["clients"]
    order = torch.randperm(clients, generator=generator, device=given.device)
    rounds = min(given.rounds, clients // given.cohort)
    for number in range(rounds):
        rows.load(weights)
        cohort, parts = order[number * given.cohort : (number + 1) * given.cohort], []
        for first in range(0, cohort.numel(), rows.chunk):
            chosen = cohort[first : first + rows.chunk]
            found, lengths = rows.of(data["images"][chosen], data["labels"][chosen])
            parts.append(summed.of(found, 1 / lengths.clamp(min=CLIP), generator))
        speed = MOMENTUM * speed + summed.mean(parts, cohort.numel())
        weights -= step * (1 - 0.9 * number / rounds) * speed
    rows.load(weights)


def accuracy(rows: Rows, images: Any, labels: Any) -> float:
    """The share that the network gets right."""
    right = 0
    with torch.no_grad(), torch.autocast(rows.device, rows.kind, enabled=rows.kind is torch.bfloat16):
        for first in range(0, labels.numel(), 500):
            x = scaled(images[first : first + 500]).contiguous(memory_format=torch.channels_last)
            right += int((rows.network(x).argmax(dim=1) == labels[first : first + 500]).sum())
    return right / labels.numel()


def main() -> None:
    """Jobs MECHANISM:EPSILON:STEP,STEP.. in the order given, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--jobs", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=500)
    parser.add_argument("--chunk", type=int, default=50)
    parser.add_argument("--most", type=int, help="images, for a trial")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    done = json.loads(given.out.read_text()) if given.out.exists() else []
    network = restored(given.weights, 10, blocks=given.blocks, width=given.width).to(given.device)
    rows = Rows(network.to(memory_format=torch.channels_last), given.device, given.chunk)
    start, dataset = rows.flat(), load_cifar10(given.data)
    images, labels, test, test_labels = (
        torch.from_numpy(np.ascontiguousarray(part[: given.most])).to(given.device)
        for part in (dataset.train.inputs, dataset.train.labels, dataset.test.inputs, dataset.test.labels)
    )
    held = min(HELD_OUT, labels.numel() // 10)
    say(f"{rows.dimension:,} parameters, {labels.numel():,} clients")
    for words in given.jobs:
        name, epsilon, steps = words.split(":")
        cell = {"epsilon": float(epsilon), "adjacency": "zero-out", "releases": 1}
        if any(one["mechanism"] == name and one["epsilon"] == cell["epsilon"] for one in done):
            continue
        if time.monotonic() - BEGAN > 60 * given.minutes:
            say("time is up")
            return
        summed = Sum(name, cell, rows.dimension, given.device)
        tried, best = {}, 0.0
        for step in (float(word) for word in steps.split(",")):
            began = time.monotonic()
            data = {"images": images, "labels": labels, "clients": labels.numel() - held}
            train(rows, start, data, summed, step, 1, given)
            tried[step] = accuracy(rows, images[-held:], labels[-held:])
            if tried[step] >= max(tried.values()):
                best, scored = step, accuracy(rows, test, test_labels)
            say(f"{name} {epsilon} step {step}: {100 * tried[step]:.1f} % held out, {time.monotonic() - began:.1f} s")
        found = {"mechanism": name, **cell, **summed.facts, "step": best, "clip": CLIP, "tried": list(tried.items())}
        done.append(found | {"accuracies": [scored]})
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(done, indent=1))
        say(f"{name} {epsilon}: {100 * scored:.1f} % (step {best})")


def say(words: str) -> None:
    """A line with the time."""
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
