r"""Figure 3's network: a WideResNet-28-10, pre-trained on public images.

Idea     group normalisation (16 groups) sees one sample at a time, so that a client of one image
         has a gradient of its own. Convolutions are pre-trained with standardised weights;
         afterwards the standardised weights are what is kept, and the network that is fine-tuned
         has plain convolutions.
Source   Zagoruyko and Komodakis (2016); Wu and He (2018); Qiao et al. (2019) for standardised
         weights. Figure 3 of Guo et al. (ICML 2023) is pre-trained on ImageNet; here it is
         Tiny-ImageNet at 32 x 32 (100,000 images of 200 classes).

    PYTHONPATH=src python experiments/wide_network.py --images data/tiny-imagenet-32 --device cuda
    --out wide
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

BEGAN = time.monotonic()
GROUPS, STABLE = 16, 1e-5
MOST_BYTES = 15 * 2**20  # of a file of 8-bit weights


class Standardised(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1 / fan-in, times a fixed gain."""

    def filters(self) -> Any:
        """Return the filters that it convolves with."""
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        centred = self.weight - mean
        length = centred.square().sum(dim=(1, 2, 3), keepdim=True).add(STABLE).sqrt()
        return centred / length * 2**0.5

    def forward(self, x: Any) -> Any:
        """Convolve."""
        return nn.functional.conv2d(x, self.filters().to(x.dtype), None, self.stride, self.padding)


class Normalised(nn.GroupNorm):
    """Group normalisation, cut at zero."""

    def __init__(self, channels: int) -> None:
        super().__init__(GROUPS, channels)

    def forward(self, x: Any) -> Any:
        """Normalise and cut."""
        return nn.functional.relu(super().forward(x))


class Block(nn.Module):
    """Two convolutions beside a way past them."""

    def __init__(self, conv: Any, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Normalised(ins), Normalised(outs)
        self.conv1 = conv(ins, outs, 3, stride=stride, padding=1, bias=False)
        self.conv2 = conv(outs, outs, 3, padding=1, bias=False)
        self.past = conv(ins, outs, 1, stride=stride, bias=False) if ins != outs else None

    def forward(self, x: Any) -> Any:
        """Both ways, added."""
        y = self.norm1(x)
        z = self.conv2(self.norm2(self.conv1(y)))
        return z + (x if self.past is None else self.past(y))


class Wide(nn.Module):
    """WideResNet of depth 6 n + 4 and width w: pooled channels, and a head on them."""

    def __init__(self, classes: int, *, plain: bool, blocks: int = 4, width: int = 10) -> None:
        super().__init__()
        conv: Any = nn.Conv2d if plain else Standardised
        sizes = [16, 16 * width, 32 * width, 64 * width]
        self.stem = conv(3, 16, 3, padding=1, bias=False)
        layers = []
        for group in range(3):
            for place in range(blocks):
                ins = sizes[group] if place == 0 else sizes[group + 1]
                layers.append(Block(conv, ins, sizes[group + 1], 2 if group and place == 0 else 1))
        self.blocks = nn.Sequential(*layers)
        self.norm = Normalised(sizes[3])
        self.head = nn.Linear(sizes[3], classes)

    def channels(self, x: Any) -> Any:
        """Return what the head sees."""
        return self.norm(self.blocks(self.stem(x))).mean(dim=(2, 3))

    def forward(self, x: Any) -> Any:
        """Scores."""
        return self.head(self.channels(x))


def scaled(images: Any) -> Any:
    """Bytes (count, height, width, 3) on any device as planes around zero."""
    return (images.permute(0, 3, 1, 2).float() - 120) / 64


def plain_weights(network: Wide) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights that a network with plain convolutions needs to do the same, without the head."""
    found = {}
    for name, module in network.named_modules():
        if isinstance(module, Standardised):
            found[f"{name}.weight"] = module.filters()
        elif isinstance(module, nn.GroupNorm):
            found |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
    return {name: value.detach().float().cpu().numpy() for name, value in found.items()}


def keep_in_bytes(
    folder: Path, weights: dict[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    """Write filters as 8-bit numbers with a scale each, in files below 16 MiB.

    What is read back is returned.

    Numbers of one dimension (scales and shifts of normalisations) are kept as they are.
    """
    parts: list[dict[str, np.ndarray[Any, Any]]] = [{}]
    for name, value in weights.items():
        found = {name: value}
        if value.ndim > 1:
            scale = np.abs(value).max(axis=tuple(range(1, value.ndim)), keepdims=True) / 127
            whole = np.rint(value / np.maximum(scale, 1e-30)).astype(np.int8)
            found = {f"{name}:bytes": whole, f"{name}:scale": scale.astype(np.float32)}
        size = sum(each.nbytes for each in (parts[-1] | found).values())
        parts = (
            [*parts, found] if size > MOST_BYTES and parts[-1] else [*parts[:-1], parts[-1] | found]
        )
    folder.mkdir(parents=True, exist_ok=True)
    for place, part in enumerate(parts):
        np.savez(folder / f"wide-{place}.npz", **part)  # type: ignore[arg-type]
    return kept_weights(folder)


def kept_weights(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Weights from one file as they were, or from a folder's files of 8-bit numbers."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for file in sorted(path.glob("wide-*.npz")) if path.is_dir() else [path]:
        with np.load(file) as kept:
            found |= {name: kept[name] for name in kept.files}
    whole = {name.removesuffix(":bytes"): name for name in found if name.endswith(":bytes")}
    filters = {
        name: found[marked].astype(np.float32) * found[f"{name}:scale"]
        for name, marked in whole.items()
    }
    return filters | {
        name: value.astype(np.float32) for name, value in found.items() if ":" not in name
    }


def restored(path: Path, classes: int, **sizes: int) -> Wide:
    """Return the plain network with kept weights and a head of zeros."""
    network = Wide(classes, plain=True, **sizes)
    weights = {name: torch.from_numpy(value) for name, value in kept_weights(path).items()}
    missing, unexpected = network.load_state_dict(weights, strict=False)
    if sorted(missing) != ["head.bias", "head.weight"] or unexpected:
        raise SystemExit(f"{path} is of another network: {missing} {unexpected}")
    nn.init.zeros_(network.head.weight)
    nn.init.zeros_(network.head.bias)
    return network


def tiny_images(folder: Path, most: int | None = None) -> tuple[Any, Any, Any, Any]:
    """Training and validation images and labels of Tiny-ImageNet, cut out of their sheets."""
    from PIL import Image

    index = json.loads((folder / "index.json").read_text())

    def cut(path: Path) -> np.ndarray[Any, Any]:
        sheet = np.asarray(Image.open(path).convert("RGB"))
        return sheet.reshape(25, 32, 20, 32, 3).transpose(0, 2, 1, 3, 4).reshape(500, 32, 32, 3)

    classes = index["classes"][:most]
    with ThreadPoolExecutor(16) as pool:
        train = list(pool.map(cut, [folder / "train" / f"{name}.webp" for name in classes]))
        test = list(pool.map(cut, sorted((folder / "val").glob("*.webp"))))
    labels = np.repeat(np.arange(len(classes)), 500)
    test_labels = np.asarray(index["val_labels"])
    kept = test_labels < len(classes)
    return np.concatenate(train), labels, np.concatenate(test)[kept], test_labels[kept]


def varied(images: Any, generator: Any) -> Any:
    """Move each image by up to four pixels and flip it at random, independently of the others."""
    count, device = images.shape[0], images.device
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    moves = torch.randint(9, (2, count), generator=generator, device=device)
    rows = moves[0][:, None] + torch.arange(32, device=device)
    columns = moves[1][:, None] + torch.arange(32, device=device)
    turned = torch.rand(count, generator=generator, device=device) < 0.5
    columns = torch.where(turned[:, None], columns.flip(1), columns)
    first = torch.arange(count, device=device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[first, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def accuracy(network: Any, images: Any, labels: Any, half: Any) -> float:
    """Return the share of images that a network classifies correctly."""
    right = 0
    with torch.no_grad(), half:
        for start in range(0, labels.numel(), 1000):
            scores = network(scaled(images[start : start + 1000]))
            right += int((scores.argmax(dim=1) == labels[start : start + 1000]).sum())
    return right / labels.numel()


def main() -> None:
    """Pre-train, and keep the plain weights in 8 bits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--classes", type=int)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator(given.device).manual_seed(0)
    found = tiny_images(given.images, given.classes)
    images, labels, test, test_labels = (
        torch.from_numpy(np.ascontiguousarray(part)).to(given.device) for part in found
    )
    say(f"{labels.numel():,} images")
    sizes = {"blocks": given.blocks, "width": given.width}
    network = (
        Wide(int(labels.max()) + 1, plain=False, **sizes)
        .to(given.device)
        .to(memory_format=torch.channels_last)
    )
    model: Any = torch.compile(network) if given.device == "cuda" else network
    steps = labels.numel() // given.batch
    optimiser = torch.optim.SGD(
        network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.2, total_steps=steps * given.epochs)
    half = torch.autocast(given.device, torch.bfloat16)
    for epoch in range(given.epochs):
        order = torch.randperm(labels.numel(), generator=generator, device=given.device)
        for step in range(steps):
            chosen = order[step * given.batch : (step + 1) * given.batch]
            batch = varied(scaled(images[chosen]), generator).contiguous(
                memory_format=torch.channels_last
            )
            with half:
                loss = nn.functional.cross_entropy(
                    model(batch), labels[chosen], label_smoothing=0.1
                )
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            plan.step()
        say(f"epoch {epoch + 1}: loss {loss.item():.3f}")
        if (epoch + 1) % 4 == 0 or epoch + 1 == given.epochs:
            say(
                f"epoch {epoch + 1}: {100 * accuracy(network, test, test_labels, half):.1f} % of the validation images"
            )
    kept = keep_in_bytes(given.out, plain_weights(network))
    rounded = (
        Wide(int(labels.max()) + 1, plain=True, **sizes)
        .to(given.device)
        .to(memory_format=torch.channels_last)
    )
    rounded.load_state_dict(
        {name: torch.from_numpy(value) for name, value in kept.items()}, strict=False
    )
    rounded.head.load_state_dict(network.head.state_dict())
    say(
        f"kept in {given.out}: {100 * accuracy(rounded, test, test_labels, half):.1f} % with weights of 8 bits"
    )


def say(words: str) -> None:
    """Print a line with the elapsed time."""
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
