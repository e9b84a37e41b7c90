"""FEMNIST by writer: handwritten digits and letters, 62 classes, every writer a client.

Idea     90 % of the writers train and 10 % test, chosen at random once and for all. What is read is the part of
         LEAF's FEMNIST that could be had: 1,372 writers where the paper has 3,500, with fewer letters. LEAF's
         images are black on white; they are turned over, so that paper is 0 as in MNIST.
Source   Caldas et al. (2018), LEAF; Guo et al. (ICML 2023), section "Sample-level DP".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quietbit_lab.task.dataset import Dataset, Examples
from quietbit_lab.task.source import damaged, find, load_packed

__all__ = ["load_femnist"]

IMAGES, WRITERS, CLASSES = 97668, 1372, 62
TEST_SHARE = 10


def load_femnist(folder: Path, least: int = 1) -> Dataset:
    """FEMNIST from ``folder/femnist``, without writers of fewer than ``least`` images."""
    images = load_packed(find(folder, "femnist", "images.npy.xz"), (IMAGES, 28, 28))
    path = find(folder, "femnist", "meta.npz")
    try:
        with np.load(path, allow_pickle=False) as found:
            labels, writer = found["labels"].astype(np.int64), found["writer"].astype(np.int64)
    except (ValueError, KeyError, OSError, EOFError) as error:
        damaged(path, "arrays labels and writer", str(error))
    whole = labels.size == writer.size == IMAGES and np.unique(writer).size == WRITERS
    if not whole or np.unique(labels).size != CLASSES:
        damaged(path, f"{IMAGES} images of {WRITERS} writers in {CLASSES} classes", f"{labels.size} labels")
    sizes = np.bincount(writer, minlength=WRITERS)
    kept = np.flatnonzero(sizes >= least)
    if kept.size < TEST_SHARE:
        damaged(path, f"{TEST_SHARE} writers of at least {least} images", kept.size)
    order = np.random.default_rng(0).permutation(kept)
    testing = np.zeros(WRITERS, dtype=bool)
    testing[order[: kept.size // TEST_SHARE]] = True
    chosen = np.zeros(WRITERS, dtype=bool)
    chosen[kept] = True
    train, test = chosen[writer] & ~testing[writer], testing[writer]
    halves = [Examples(np.invert(images[half]), labels[half]) for half in (train, test)]  # 255 - pixel
    return Dataset("femnist", CLASSES, halves[0], halves[1], writer[train])
