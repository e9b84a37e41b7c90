"""Data sets of images: MNIST, Fashion-MNIST, CIFAR-10, FEMNIST by writer, small digits.

Idea     every loader says what a file must hold and refuses anything else. MNIST's files are
         accepted packed or raw, and known by the md5 sums of their content; QMNIST's labels name
         the writer of every training digit: 539 writers, a natural partition into clients.
         CIFAR-10's packed form holds planes G, R-G and B-G (modulo 256) after a two-dimensional
         difference, which two running sums undo exactly; the original pickles are never opened:
         unpickling runs code. Of FEMNIST the part that could be had is read: 1,372 writers where
         the paper has 3,500, with fewer letters; 90 % of them train and 10 % test, chosen once and
         for all. LEAF's images are black on white and are turned over, so that paper is 0 as in
         MNIST. The digits, 1,797 images of 8 x 8 pixels, lie beside this file as scikit-learn ships
         them: 1,437 examples train, 360 test.
Source   LeCun, Cortes, Burges (1998); Yadav and Bottou (2019) for QMNIST; Xiao, Rasul, Vollgraf
         (2017) for Fashion-MNIST, as packaged by Debian (dataset-fashion-mnist); Krizhevsky (2009);
         Caldas et al. (2018), LEAF, and Guo et al. (ICML 2023), section "Sample-level DP"; Alpaydin
         and Kaynak (1998), "Optical recognition of handwritten digits" (UCI, CC BY 4.0).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit_lab.task.dataset import (
    Dataset,
    Examples,
    damaged,
    find,
    load_packed,
    md5_of,
    read_idx,
)

__all__ = [
    "BATCHES",
    "IDX_FILES",
    "MNIST_SUMS",
    "load_cifar10",
    "load_digits",
    "load_fashion_mnist",
    "load_femnist",
    "load_mnist",
]

TEN = 10  # classes of all but FEMNIST
DIGITS = 1797
DIGITS_FILE = Path(__file__).with_name("digits.csv.gz")
DIGITS_TESTED = 360
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
SHAPES = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))
# md5 of the raw IDX files: the same however they are packed.
_MD5 = {
    "mnist": "6bbc9ace898e44ae57da46a324031adb a25bea736e30d166cdddb491f175f624 "
    "2646ac647ad5339dbf082846283269ea 27ae3e4e09519cfbb04c329615203637",
    "fashion-mnist": "f4a8712d7a061bf5bd6d2ca38dc4d50a 9018921c3c673c538a1fc5bad174d6f9 "
    "8181f5470baa50b63fa0f6fddb340f0a 15d484375f8d13e6eb1aabb0c3f46965",
}
MNIST_SUMS, FASHION_SUMS = (
    dict(zip(IDX_FILES, sums.split(), strict=True)) for sums in _MD5.values()
)
QMNIST_FILE = "qmnist-train-labels-idx2-int.gz"
QMNIST_SUM = "0058f8dd561b90ffdd0f734c6a30e5e4"
QMNIST_WRITERS = 539
WRITER_COLUMN = 2
BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
SIZE = 10000  # images of a batch
MEANS = (125.306918, 122.950394, 113.865383)  # of the training pixels, 255 times the published ones
FEMNIST_IMAGES = 97668
WRITERS = 1372
SIXTY_TWO = 62
TEST_SHARE = 10


def load_digits() -> Dataset:
    """Load the digits, pixels scaled to [0, 1] less one half, split at random with a fixed seed."""
    rows = np.loadtxt(DIGITS_FILE, delimiter=",", dtype=np.float32)  # 64 pixels and a label each
    inputs = rows[:, :-1] / np.float32(16) - np.float32(0.5)
    labels = rows[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(DIGITS)
    test = order[:DIGITS_TESTED]
    train = order[DIGITS_TESTED:]
    return Dataset(
        "digits", TEN, Examples(inputs[train], labels[train]), Examples(inputs[test], labels[test])
    )


def load_mnist(folder: Path, by_writer: bool = False) -> Dataset:
    """MNIST from ``folder/mnist``; with ``by_writer`` the writer of every training digit too."""
    arrays = _arrays(folder, "mnist", MNIST_SUMS)
    if by_writer:
        writers = _writers(folder, arrays[1])
    else:
        writers = None
    return _dataset("mnist", arrays, writers)


def load_fashion_mnist(folder: Path) -> Dataset:
    """Fashion-MNIST from ``folder/fashion-mnist``."""
    return _dataset("fashion-mnist", _arrays(folder, "fashion-mnist", FASHION_SUMS), None)


def _arrays(folder: Path, name: str, sums: dict[str, str]) -> list[NDArray[Any]]:
    files = zip(IDX_FILES, SHAPES, strict=True)
    return [_known(_either(folder, name, file), sums[file], shape) for file, shape in files]


def _dataset(name: str, arrays: list[NDArray[Any]], writers: NDArray[np.int64] | None) -> Dataset:
    train = Examples(arrays[0], arrays[1].astype(np.int64))
    return Dataset(name, TEN, train, Examples(arrays[2], arrays[3].astype(np.int64)), writers)


def _either(folder: Path, name: str, file: str) -> Path:
    """Return the path of the packed file, or of the raw one if only that is there."""
    raw = folder / name / file
    if raw.is_file():
        return raw
    return find(folder, name, file + ".gz")


def _known(path: Path, wanted: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read a file whose content must be the published one, however it is packed."""
    array = _shaped(path, shape)
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in shape)
    digest = hashlib.md5(head + array.tobytes(), usedforsecurity=False).hexdigest()
    if digest != wanted:
        damaged(path, f"content of md5 sum {wanted}", digest)
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
    if not np.array_equal(table[:, 0], labels) or np.unique(writers).size != QMNIST_WRITERS:
        damaged(
            path,
            f"the labels of MNIST and {QMNIST_WRITERS} writers",
            f"{np.unique(writers).size} writers",
        )
    return writers


def load_cifar10(folder: Path) -> Dataset:
    """Read CIFAR-10 from ``folder/cifar10``; verify counts per class and the pixels' means."""
    binary = (folder / "cifar10" / "data_batch_1.bin").is_file()
    parts = [_binary(folder, name) if binary else (_packed(folder, name), None) for name in BATCHES]
    images = np.concatenate([images for images, _ in parts[:5]])
    if binary:
        labels = np.concatenate(
            [batch_labels for _, batch_labels in parts[:5] if batch_labels is not None]
        )
        test_labels = parts[5][1]
    else:
        labels, test_labels = _labels(folder)
    for name, values, count in (("training", labels, 5000), ("test", test_labels, 1000)):
        counts = np.bincount(np.asarray(values), minlength=TEN)
        if counts.tolist() != [count] * TEN:
            damaged(folder / "cifar10", f"{count} {name} images of each class", counts.tolist())
    means = images.mean(axis=(0, 1, 2), dtype=np.float64)
    if np.abs(means - MEANS).max() > 1e-4:
        damaged(folder / "cifar10", f"mean colours {MEANS}", means.round(6).tolist())
    train = Examples(images, np.asarray(labels).astype(np.int64))
    return Dataset(
        "cifar10", TEN, train, Examples(parts[5][0], np.asarray(test_labels).astype(np.int64))
    )


def _packed(folder: Path, name: str) -> NDArray[Any]:
    planes = load_packed(find(folder, "cifar10", f"{name}.npy.xz"), (3, SIZE, 32, 32))
    planes = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    green = planes[0]
    return np.stack([planes[1] + green, green, planes[2] + green], axis=-1)


def _labels(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    path = find(folder, "cifar10", "labels.npz")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["train"], arrays["test"]
    except (ValueError, KeyError, OSError, EOFError) as error:
        damaged(path, "arrays train and test", str(error))


def _binary(folder: Path, name: str) -> tuple[NDArray[Any], NDArray[Any] | None]:
    path = find(folder, "cifar10", f"{name}.bin")
    rows = np.fromfile(path, dtype=np.uint8)
    if rows.size != SIZE * 3073:
        damaged(path, f"{SIZE * 3073} bytes", rows.size)
    table = rows.reshape(SIZE, 3073)
    return np.ascontiguousarray(table[:, 1:].reshape(SIZE, 3, 32, 32).transpose(0, 2, 3, 1)), table[
        :, 0
    ]


def load_femnist(folder: Path, least: int = 1) -> Dataset:
    """FEMNIST from ``folder/femnist``, without writers of fewer than ``least`` images."""
    images = load_packed(find(folder, "femnist", "images.npy.xz"), (FEMNIST_IMAGES, 28, 28))
    path = find(folder, "femnist", "meta.npz")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            labels = arrays["labels"].astype(np.int64)
            writer = arrays["writer"].astype(np.int64)
    except (ValueError, KeyError, OSError, EOFError) as error:
        damaged(path, "arrays labels and writer", str(error))
    complete = labels.size == writer.size == FEMNIST_IMAGES and np.unique(writer).size == WRITERS
    if not complete or np.unique(labels).size != SIXTY_TWO:
        damaged(
            path,
            f"{FEMNIST_IMAGES} images of {WRITERS} writers in {SIXTY_TWO} classes",
            f"{labels.size} labels",
        )
    sizes = np.bincount(writer, minlength=WRITERS)
    writers = np.flatnonzero(sizes >= least)
    if writers.size < TEST_SHARE:
        damaged(path, f"{TEST_SHARE} writers of at least {least} images", writers.size)
    order = np.random.default_rng(0).permutation(writers)
    testing = np.zeros(WRITERS, dtype=bool)
    testing[order[: writers.size // TEST_SHARE]] = True
    chosen = np.zeros(WRITERS, dtype=bool)
    chosen[writers] = True
    train = chosen[writer] & ~testing[writer]
    test = testing[writer]
    halves = [
        Examples(np.invert(images[half]), labels[half]) for half in (train, test)
    ]  # 255 - pixel
    return Dataset("femnist", SIXTY_TWO, halves[0], halves[1], writer[train])
