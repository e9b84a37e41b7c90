"""CIFAR-10: images of 32 x 32 in three colours, from the packed batches or the original Python ones.

Idea     the packed form holds planes G, R-G and B-G (modulo 256) after a two-dimensional difference; two
         running sums undo it exactly. The original pickles are never opened: unpickling runs code.
Source   Krizhevsky (2009). Its binary version (data_batch_1.bin, ...) is read too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit_lab.task.dataset import Dataset, Examples
from quietbit_lab.task.source import damaged, find, load_packed

__all__ = ["load_cifar10"]

BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
SIZE, CLASSES = 10000, 10
MEANS = (125.306918, 122.950394, 113.865383)  # of the training pixels, 255 times the published ones


def load_cifar10(folder: Path) -> Dataset:
    """CIFAR-10 from ``folder/cifar10``; counts per class and the training pixels' means are verified."""
    binary = (folder / "cifar10" / "data_batch_1.bin").is_file()
    parts = [_binary(folder, name) if binary else (_packed(folder, name), None) for name in BATCHES]
    images = np.concatenate([images for images, _ in parts[:5]])
    if binary:
        labels = np.concatenate([found for _, found in parts[:5] if found is not None])
        test_labels = parts[5][1]
    else:
        labels, test_labels = _labels(folder)
    for name, values, count in (("training", labels, 5000), ("test", test_labels, 1000)):
        counts = np.bincount(np.asarray(values), minlength=CLASSES)
        if counts.tolist() != [count] * CLASSES:
            damaged(folder / "cifar10", f"{count} {name} images of each class", counts.tolist())
    means = images.mean(axis=(0, 1, 2), dtype=np.float64)
    if np.abs(means - MEANS).max() > 1e-4:
        damaged(folder / "cifar10", f"mean colours {MEANS}", means.round(6).tolist())
    train = Examples(images, np.asarray(labels).astype(np.int64))
    return Dataset("cifar10", CLASSES, train, Examples(parts[5][0], np.asarray(test_labels).astype(np.int64)))


def _packed(folder: Path, name: str) -> NDArray[Any]:
    planes = load_packed(find(folder, "cifar10", f"{name}.npy.xz"), (3, SIZE, 32, 32))
    planes = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    green = planes[0]
    return np.stack([planes[1] + green, green, planes[2] + green], axis=-1)


def _labels(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    path = find(folder, "cifar10", "labels.npz")
    try:
        with np.load(path, allow_pickle=False) as found:
            return found["train"], found["test"]
    except (ValueError, KeyError, OSError, EOFError) as error:
        damaged(path, "arrays train and test", str(error))


def _binary(folder: Path, name: str) -> tuple[NDArray[Any], NDArray[Any] | None]:
    path = find(folder, "cifar10", f"{name}.bin")
    rows = np.fromfile(path, dtype=np.uint8)
    if rows.size != SIZE * 3073:
        damaged(path, f"{SIZE * 3073} bytes", rows.size)
    table = rows.reshape(SIZE, 3073)
    return np.ascontiguousarray(table[:, 1:].reshape(SIZE, 3, 32, 32).transpose(0, 2, 3, 1)), table[:, 0]
