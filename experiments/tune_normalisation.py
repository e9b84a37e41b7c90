r"""EfficientNet-Lite0's normalisations fitted to small public images, so that it sees what CIFAR-10's look like.

Idea     the network learnt from large photographs; an image of 32 x 32 pixels, enlarged, is blurred
         to it. Its 42,016 scales and shifts are trained on Tiny-ImageNet at 32 x 32, enlarged
         alike, so that the network's own classifier names these images right; classifier and
         convolutions stay as they are. CIFAR-10 is not looked at. The 200 classes are some of
         ImageNet's 1,000 in the same order, and which ones is found by the network itself.
Source   Frankle, Schwab, Morcos (ICLR 2021): what scales and shifts alone can learn.

    PYTHONPATH=src python experiments/tune_normalisation.py --data data --device cuda --out
    tuned.npz
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from wide_network import tiny_images

from quietbit_lab.task.efficientnet import (
    BLOCKS,
    STABLE,
    EfficientNetLite0,
    convolved,
    enlarged,
    read_efficientnet,
)

BEGAN = time.monotonic()
BATCH, RATE, SMOOTH, SHIFT, WARM = 256, 1e-3, 0.1, 3, 50
NAMING = 40  # images of a class that find its name


class Tuned:
    """The network with scales and shifts that can be trained.

    Convolutions in the precision of ``kind``.
    """

    def __init__(self, network: EfficientNetLite0, device: str, kind: Any) -> None:
        self.network, self.device, self.kind = network, device, kind
        self.fixed: dict[str, Any] = {}
        self.trained: dict[str, Any] = {}
        for convolution, norm, _, _ in itertools.chain(*BLOCKS):
            found = {
                name: self._tensor(f"{norm}.{name}")
                for name in ("weight", "bias", "running_mean", "running_var")
            }
            weight = self._tensor(f"{convolution}.weight").to(
                kind, memory_format=torch.channels_last
            )
            self.fixed[convolution] = weight
            self.fixed[norm] = (found["running_mean"], (found["running_var"] + STABLE).rsqrt())
            self.trained[f"{norm}.weight"] = found["weight"].requires_grad_()
            self.trained[f"{norm}.bias"] = found["bias"].requires_grad_()
        self.classifier, self.offsets = self._tensor("_fc.weight"), self._tensor("_fc.bias")

    def _tensor(self, name: str) -> Any:
        return torch.from_numpy(self.network.weights[name].copy()).to(self.device)

    def scores(self, images: Any) -> Any:
        """Of the 1,000 classes, for a tensor of uint8 images."""
        channels = self.network.pooled(enlarged(images).to(self.kind), self._layer)
        return channels.float() @ self.classifier.T + self.offsets

    def _layer(self, x: Any, convolution: str, norm: str, stride: int, cut: bool) -> Any:
        mean, root = self.fixed[norm]
        scale = self.trained[f"{norm}.weight"] * root
        shift = self.trained[f"{norm}.bias"] - mean * scale
        x = convolved(x, self.fixed[convolution], stride)
        x = x * scale.to(self.kind)[:, None, None] + shift.to(self.kind)[:, None, None]
        return torch.nn.functional.hardtanh(x, 0.0, 6.0) if cut else x


def named(likelihoods: Any) -> Any:
    """Increasing places, one for every row, whose sum is the largest.

    The classes' names among 1,000 in order.
    """
    rows, names = likelihoods.shape
    best, came = np.zeros(names + 1), np.zeros((rows, names), dtype=bool)
    for row in range(rows):
        took = best[:-1] + likelihoods[row]  # best[j]: the rows so far among the first j names
        best = np.concatenate(([-np.inf], np.maximum.accumulate(took)))
        came[row] = took >= best[1:]
    found, last = np.zeros(rows, dtype=np.int64), names
    for row in reversed(range(rows)):
        last = found[row] = int(np.flatnonzero(came[row, :last])[-1])
    return found


def main() -> None:
    """Names of the classes, then training until the epochs or the seconds are over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=120.0, help="of training")
    parser.add_argument(
        "--naming", type=int, default=NAMING, help="images of a class that find its name"
    )
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--scored", type=int, default=10_000, help="validation images")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    device = given.device
    images, labels, other, other_labels = (
        torch.from_numpy(np.ascontiguousarray(part))
        for part in tiny_images(given.data / "tiny-imagenet-32")
    )
    images, labels = images.to(device), labels.to(device).long()
    other, other_labels = (
        other[: given.scored].to(device),
        other_labels[: given.scored].to(device).long(),
    )
    tuned = Tuned(
        read_efficientnet(given.data, device),
        device,
        torch.bfloat16 if device == "cuda" else torch.float32,
    )
    say("images read")
    order = labels.argsort(stable=True).reshape(int(labels.max()) + 1, -1)[:, : given.naming]
    with torch.no_grad():
        means = [
            tuned.scores(images[row]).log_softmax(dim=1).mean(dim=0).cpu().numpy() for row in order
        ]
    places = torch.from_numpy(named(np.stack(means))).to(device)
    say("names: " + " ".join(str(place) for place in places.tolist()))

    def right() -> float:
        with torch.no_grad():
            parts = zip(other.split(500), other_labels.split(500), strict=True)
            hits = [(tuned.scores(x)[:, places].argmax(dim=1) == y).float().sum() for x, y in parts]
        return float(sum(hits)) / len(other)

    say(f"{100 * right():.1f} % of the validation images before")
    optimiser = torch.optim.Adam(tuned.trained.values(), lr=RATE, betas=(0.9, 0.99))
    generator = np.random.default_rng(0)
    steps, began = max(1, int(given.epochs * len(images) / given.batch)), time.monotonic()
    for step in range(steps):
        share = max(step / steps, (time.monotonic() - began) / given.seconds)
        if share >= 1:
            break
        optimiser.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / WARM) * (1 - share)
        chosen = torch.from_numpy(generator.integers(0, len(images), given.batch)).to(device)
        here = images[chosen].roll(tuple(generator.integers(-SHIFT, SHIFT + 1, 2).tolist()), (1, 2))
        if generator.random() < 0.5:
            here = here.flip(2)
        scores = tuned.scores(here)[:, places]
        loss = torch.nn.functional.cross_entropy(scores, labels[chosen], label_smoothing=SMOOTH)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0:
            say(f"step {step} of {steps}: {float(loss.detach()):.3f}")
    say(f"{100 * right():.1f} % of the validation images after {step + 1} steps of {given.batch}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        given.out, **{name: value.detach().cpu().numpy() for name, value in tuned.trained.items()}
    )
    say(f"kept in {given.out}")


def say(words: str) -> None:
    """Print a line with the elapsed time."""
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
