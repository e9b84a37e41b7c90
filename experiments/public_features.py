r"""Features of CIFAR-10 from a network that saw public images only, and public directions to turn them onto.

Idea     a head of few parameters needs few releases. Tiny-ImageNet, enlarged the same way, gives
         the mean of the channels and the directions that tell classes apart (within-class
         whitening, then the largest between-class directions); neither looks at CIFAR-10. Kept in
         half precision.
Source   Fisher (1936); Rao (1948) for several classes.

    PYTHONPATH=src python experiments/public_features.py --network efficientnet --data data --device
    cuda --out eff.npz PYTHONPATH=src python experiments/public_features.py --network wide --data
    data --device cuda --out wide-f.npz
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from wide_network import restored, scaled, tiny_images

from quietbit_lab.task.efficientnet import NAMED, SIDE, EfficientNetLite0, read_efficientnet
from quietbit_lab.task.images import load_cifar10

BEGAN = time.monotonic()
MOST, SMALL = 512, 256  # directions kept
PUBLIC = 50_000  # images that give the directions


def public_directions(x: Any, labels: Any, ridge: float = 1e-2) -> dict[str, Any]:
    """Mean and directions, from public channels (count, channels) and their classes."""
    x = x.double()
    mean = x.mean(dim=0)
    centred = x - mean
    classes = int(labels.max()) + 1
    means = torch.zeros((classes, x.shape[1]), dtype=x.dtype, device=x.device).index_add_(
        0, labels, centred
    )
    means /= torch.bincount(labels, minlength=classes).clamp(min=1)[:, None]
    inner = centred - means[labels]
    within = inner.T @ inner / x.shape[0]
    values, vectors = torch.linalg.eigh(
        within + ridge * within.diagonal().mean() * torch.eye(x.shape[1]).to(within)
    )
    white = vectors * values.rsqrt() @ vectors.T
    _, size, right = torch.linalg.svd(means @ white, full_matrices=False)
    kept = min(MOST, classes - 1)
    spreads, axes = torch.linalg.eigh(centred.T @ centred / x.shape[0])
    pca, spread = axes.flip(1)[:, :MOST], spreads.flip(0)[:MOST]
    fisher = {
        "lda": white @ right[:kept].T,
        "lda_spread": size[:kept].pow(-2),
    }  # within over between
    return {"mean": mean, "pca": pca, "spread": spread} | fisher


def main() -> None:
    """Channels of both data sets, and the directions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--network", required=True, help="efficientnet, or what wide_network.py kept"
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tuned", type=Path, help="scales and shifts of tune_normalisation.py")
    parser.add_argument(
        "--side",
        type=int,
        nargs="*",
        default=[SIDE],
        help="EfficientNet's sides, of which it is the mean",
    )
    parser.add_argument(
        "--flip", action="store_true", help="the mean of an image's channels and its mirror image's"
    )
    parser.add_argument("--most", type=int, help="images of each kind, for a trial")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--small", type=Path, help=f"another file: the first {SMALL} principal axes in eight bits"
    )
    given = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    dataset = load_cifar10(given.data)
    public, labels, _, _ = tiny_images(given.data / "tiny-imagenet-32")
    say("images read")
    extra = {}
    if given.network == "efficientnet":
        network = read_efficientnet(given.data, given.device)
        if given.tuned:
            with np.load(given.tuned) as scales:
                weights = {**network.weights, **{name: scales[name] for name in scales.files}}
            network = EfficientNetLite0(weights, given.device)

        def channels(images: Any) -> Any:
            return sum(network.channels(images, side) for side in given.side) / len(given.side)

        rows = torch.from_numpy(network.weights["_fc.weight"])
        extra["start"] = numbers(torch.stack([rows[named].mean(dim=0) for named in NAMED]))
        extra["classifier"] = numbers(
            torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)[2][:MOST].T
        )
    else:
        wide = restored(Path(given.network), 10, blocks=given.blocks, width=given.width).to(
            given.device
        )

        def channels(images: Any) -> Any:
            with torch.no_grad():
                return wide.channels(
                    scaled(torch.from_numpy(np.ascontiguousarray(images)).to(given.device))
                )

    def all_of(images: Any) -> Any:
        found = []
        for start in range(0, len(images), given.batch):
            here = images[start : start + given.batch]
            found.append(
                (channels(here) + channels(here[:, :, ::-1])) / 2 if given.flip else channels(here)
            )
        say(f"{len(images):,} images")
        return torch.cat(found)

    order = np.random.default_rng(0).permutation(len(public))[: given.most or PUBLIC]
    train, test = (
        all_of(dataset.train.inputs[: given.most]),
        all_of(dataset.test.inputs[: given.most]),
    )
    seen = all_of(public[order])
    directed = public_directions(seen, torch.from_numpy(labels[order]).to(given.device))
    if "classifier" in extra:
        along = (seen.double() - directed["mean"]) @ torch.from_numpy(extra["classifier"]).to(
            seen.device
        ).double()
        directed["classifier_spread"] = along.square().mean(dim=0)
    kept = {name: numbers(value) for name, value in directed.items()} | extra
    found = {
        "train_labels": dataset.train.labels[: given.most],
        "test_labels": dataset.test.labels[: given.most],
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        given.out, train=train.half().cpu().numpy(), test=test.half().cpu().numpy(), **found, **kept
    )
    say(f"kept in {given.out}")
    if given.small:
        axes, steps = directed["pca"][:, :SMALL], 4 * directed["spread"][:SMALL].sqrt() / 127
        for name, part in (("train", train), ("test", test)):
            turned = ((part.double() - directed["mean"]) @ axes / steps).round().clamp(-127, 127)
            found[name] = turned.to(torch.int8).cpu().numpy()
        public = {name: kept[name] for name in ("mean", "spread", "start") if name in kept}
        np.savez(
            given.small,
            **found,
            **public,
            pca=kept["pca"][:, :SMALL].astype(np.float16),
            steps=numbers(steps),
        )
        say(f"kept in {given.small}")


def numbers(values: Any) -> Any:
    """As float32, on the host."""
    return values.float().cpu().numpy()


def say(words: str) -> None:
    """Print a line with the elapsed time."""
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
