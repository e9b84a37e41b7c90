"""MNIST, also by writer, and Fashion-MNIST: images of 28 x 28 in the IDX format.

Idea     files are accepted packed or raw, and known by the md5 sums of their content. QMNIST's labels name the
         writer of every training digit: 539 writers, a natural partition into clients.
Source   LeCun, Cortes, Burges (1998); Yadav and Bottou (2019) for QMNIST; Xiao, Rasul, Vollgraf (2017) for
         Fashion-MNIST, as packaged by Debian (dataset-fashion-mnist).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit_lab.task.dataset import Dataset, Examples
from quietbit_lab.task.source import damaged, find, md5_of, read_idx

__all__ = ["IDX_FILES", "MNIST_SUMS", "load_fashion_mnist", "load_mnist"]

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
SHAPES = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))
# md5 of the raw IDX files: the same however they are packed.
MNIST_SUMS = dict(
    zip(
        IDX_FILES,
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        strict=True,
    )
)
FASHION_SUMS = dict(
    zip(
        IDX_FILES,
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        strict=True,
    )
)
QMNIST_FILE, QMNIST_SUM = "qmnist-train-labels-idx2-int.gz", "0058f8dd561b90ffdd0f734c6a30e5e4"
WRITERS, WRITER_COLUMN = 539, 2


def load_mnist(folder: Path, by_writer: bool = False) -> Dataset:
    """MNIST from ``folder/mnist``; with ``by_writer`` the writer of every training digit too."""
    arrays = _arrays(folder, "mnist", MNIST_SUMS)
    writers = _writers(folder, arrays[1]) if by_writer else None
    return _dataset("mnist", arrays, writers)


def load_fashion_mnist(folder: Path) -> Dataset:
    """Fashion-MNIST from ``folder/fashion-mnist``."""
    return _dataset("fashion-mnist", _arrays(folder, "fashion-mnist", FASHION_SUMS), None)


def _arrays(folder: Path, name: str, sums: dict[str, str]) -> list[NDArray[Any]]:
    files = zip(IDX_FILES, SHAPES, strict=True)
    return [_known(_either(folder, name, file), sums[file], shape) for file, shape in files]


def _dataset(name: str, arrays: list[NDArray[Any]], writers: NDArray[np.int64] | None) -> Dataset:
    train = Examples(arrays[0], arrays[1].astype(np.int64))
    return Dataset(name, 10, train, Examples(arrays[2], arrays[3].astype(np.int64)), writers)


def _either(folder: Path, name: str, file: str) -> Path:
    """The packed file, or the raw one where only that is there."""
    raw = folder / name / file
    return raw if raw.is_file() else find(folder, name, file + ".gz")


def _known(path: Path, wanted: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A file whose content is the published one, however it is packed."""
    array = _shaped(path, shape)
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in shape)
    found = hashlib.md5(head + array.tobytes(), usedforsecurity=False).hexdigest()
    if found != wanted:
        damaged(path, f"content of md5 sum {wanted}", found)
    return array


def _shaped(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    array = read_idx(path)
    if array.shape != shape or array.dtype != np.uint8:
        damaged(path, f"shape {shape} and type uint8", f"{array.shape} and {array.dtype}")
    return array


def _writers(folder: Path, labels: NDArray[Any]) -> NDArray[np.int64]:
    path = find(folder, "mnist", QMNIST_FILE)
    if md5_of(path) != QMNIST_SUM:
        damaged(path, f"md5 sum {QMNIST_SUM}", md5_of(path))
    table = read_idx(path).astype(np.int64)
    writers = table[:, WRITER_COLUMN]
    if not np.array_equal(table[:, 0], labels) or np.unique(writers).size != WRITERS:
        damaged(path, f"the labels of MNIST and {WRITERS} writers", f"{np.unique(writers).size} writers")
    return writers
