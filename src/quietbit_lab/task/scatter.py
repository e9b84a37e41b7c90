"""ScatterNet features, computed once and kept on disk.

Idea     a fixed wavelet transform turns images into features on which a linear model does well; it needs no
         training, hence no privacy. Channels are normalised in 27 groups per image, without learnt scales.
         The cache is a plain .npy file with a checksum beside it; a file that fails it is computed anew.
Symbols  J = 2 scales, 8 angles: 81 channels per colour at a quarter of the resolution.
Source   Tramèr and Boneh (ICLR 2021); Oyallon and Mallat (CVPR 2015); kymatio (Andreux et al., 2020).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quietbit._files import cache_folder, write_json, write_whole
from quietbit._validate import QuietbitError, require, require_module
from quietbit_lab.task.dataset import Dataset, Examples

__all__ = ["CHANNELS", "scatter", "scattered"]

Report: TypeAlias = Callable[[float, str], None]
SCALES, ANGLES, GROUPS, CHANNELS = 2, 8, 27, 81
BATCH = 500
EPSILON = 1e-5  # added to the variance of a group, as torch does
VERSION = 1


def scattered(
    dataset: Dataset, report: Report | None = None, folder: Path | None = None, device: str = "cpu"
) -> Dataset:
    """The data set with ScatterNet features in place of images, from the cache where they are there.

    Where they are not, ``device`` computes them; a GPU's differ from a CPU's in the last digits of float32.
    """
    parts = []
    for split, examples in (("train", dataset.train), ("test", dataset.test)):
        tell, place = report or (lambda *_: None), folder or cache_folder("features")
        inputs = _cached(f"{dataset.name}-{split}", examples.inputs, tell, place, device)
        parts.append(Examples(inputs, examples.labels))
    return Dataset(dataset.name, dataset.classes, parts[0], parts[1], dataset.writers)


def scatter(images: NDArray[Any], normalised: bool = True, device: str = "cpu") -> NDArray[np.float32]:
    """Features of uint8 images (count, height, width[, colours]): (count, channels, height/4, width/4)."""
    require(images.dtype == np.uint8 and images.ndim in (3, 4), "images", images.shape, "uint8, with 3 or 4 axes")
    torch, transform = _transform(images.shape[1:3], device)
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    with torch.no_grad():
        inputs = torch.from_numpy(np.ascontiguousarray(planes, dtype=np.float32)).to(device) / 255
        found = transform(inputs)  # count, colours, 81, height/4, width/4
        features = found.reshape(found.shape[0], -1, *found.shape[-2:])
        if normalised:
            features = torch.nn.functional.group_norm(features, GROUPS, eps=EPSILON)
        result: NDArray[np.float32] = features.contiguous().cpu().numpy()
    return result


@lru_cache(maxsize=2)
def _transform(shape: tuple[int, ...], device: str) -> tuple[Any, Any]:
    torch = require_module("torch", "lab")
    # The torch front end by its own module: the package's usual door opens every other back end too.
    module = require_module("kymatio.scattering2d.frontend.torch_frontend", "lab")
    return torch, module.ScatteringTorch2D(J=SCALES, shape=tuple(shape), L=ANGLES).to(device)


def _cached(name: str, images: NDArray[Any], report: Report, folder: Path, device: str) -> NDArray[np.float32]:
    """Features mapped from the cache file, which is made first where it is missing or damaged."""
    seal = _seal(images)
    path, note = folder / f"{name}.npy", folder / f"{name}.json"
    if not _valid(path, note, seal):
        _compute(path, note, seal, images, name, report, device)
    features: NDArray[np.float32] = np.load(path, mmap_mode="r")
    return features


def _compute(path: Path, note: Path, seal: str, images: NDArray[Any], name: str, report: Report, device: str) -> None:
    shape = (images.shape[0], *scatter(images[:1], device=device).shape[1:])
    digest = hashlib.sha256()

    def write(file: IO[bytes]) -> None:
        head = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, head)
        for start in range(0, images.shape[0], BATCH):
            block = scatter(images[start : start + BATCH], device=device).astype("<f4", copy=False).tobytes()
            digest.update(block)
            file.write(block)
            done = min(images.shape[0], start + BATCH)
            report(done / images.shape[0], f"ScatterNet features of {name}, {done:,} of {images.shape[0]:,}")

    note.unlink(missing_ok=True)
    write_whole(path, write)
    write_json(
        note, {"images": seal, "features": digest.hexdigest(), "shape": list(shape), "bytes": path.stat().st_size}
    )


def _valid(path: Path, note: Path, seal: str) -> bool:
    """Whether the cache holds the features of these images, to the last byte."""
    try:
        said = json.loads(note.read_text())
        if said["images"] != seal or path.stat().st_size != said["bytes"]:
            return False
        features = np.load(path, mmap_mode="r")
        digest = hashlib.sha256()
        for start in range(0, features.shape[0], 16 * BATCH):
            digest.update(features[start : start + 16 * BATCH].tobytes())
        return bool(digest.hexdigest() == said["features"])
    except (OSError, ValueError, KeyError, TypeError, QuietbitError):
        return False


def _seal(images: NDArray[Any]) -> str:
    """What the features depend on: the images, and how they are made."""
    how = f"{VERSION}:{SCALES}:{ANGLES}:{GROUPS}:{EPSILON}:{images.shape}"
    return hashlib.sha256(how.encode() + np.ascontiguousarray(images).tobytes()).hexdigest()
