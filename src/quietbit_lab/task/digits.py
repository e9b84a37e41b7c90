"""Scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels that need no download.

Idea     large enough to learn from, small enough for a demonstration: 1,437 examples train, 360 test, in an
         order that is fixed once and for all.
Source   Alpaydin and Kaynak (1998), "Optical recognition of handwritten digits", as shipped by scikit-learn.
"""

from __future__ import annotations

import numpy as np

from quietbit._validate import QuietbitError, require_module
from quietbit_lab.task.dataset import Dataset, Examples

__all__ = ["load_digits"]

COUNT, TEST, CLASSES = 1797, 360, 10


def load_digits() -> Dataset:
    """The digits, pixels scaled to [0, 1] less one half, split at random with a fixed seed."""
    found = require_module("sklearn.datasets", "lab").load_digits()
    inputs = (np.asarray(found.data, dtype=np.float32) / np.float32(16)) - np.float32(0.5)
    labels = np.asarray(found.target, dtype=np.int64)
    if inputs.shape != (COUNT, 64) or np.bincount(labels, minlength=CLASSES).min() < 170:
        raise QuietbitError(f"The digits of scikit-learn must be {COUNT} images of 64 pixels, got {inputs.shape}.")
    order = np.random.default_rng(0).permutation(COUNT)
    test, train = order[:TEST], order[TEST:]
    return Dataset("digits", CLASSES, Examples(inputs[train], labels[train]), Examples(inputs[test], labels[test]))
