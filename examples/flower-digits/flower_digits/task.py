"""The task itself, with neither Flower nor quietbit.

Digits, a linear softmax, gradient steps, accuracy.

Symbols  weight: 10 x 64, bias: 10. A node owns every n-th of the training images, in a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

CLASSES, PIXELS, TEST = 10, 64, 360
Floats = NDArray[np.float32]
Model = dict[str, Floats]


class Examples(NamedTuple):
    """Images as rows, and which digit each is."""

    images: Floats
    digits: NDArray[np.int64]


def load() -> tuple[Examples, Examples]:
    """Training and test examples, pixels in [-1/2, 1/2], in an order that is always the same."""
    found = load_digits()
    images = np.asarray(found.data, dtype=np.float32) / np.float32(16) - np.float32(0.5)
    digits = np.asarray(found.target, dtype=np.int64)
    order = np.random.default_rng(0).permutation(digits.size)
    test, train = order[:TEST], order[TEST:]
    return Examples(images[train], digits[train]), Examples(images[test], digits[test])


def own_examples(partition: int, partitions: int) -> Examples:
    """Return what one node trains on."""
    train, _ = load()
    return Examples(train.images[partition::partitions], train.digits[partition::partitions])


def start() -> Model:
    """Return a model that knows nothing."""
    return {
        "weight": np.zeros((CLASSES, PIXELS), np.float32),
        "bias": np.zeros(CLASSES, np.float32),
    }


def train(model: Model, examples: Examples, steps: int, rate: float) -> Model:
    """Take some steps of gradient descent on all of the node's examples."""
    weight, bias = model["weight"], model["bias"]
    one_hot = np.eye(CLASSES, dtype=np.float32)[examples.digits]
    for _ in range(steps):
        scores = examples.images @ weight.T + bias
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = (scores / scores.sum(axis=1, keepdims=True) - one_hot) / np.float32(len(one_hot))
        weight = weight - np.float32(rate) * (errors.T @ examples.images)
        bias = bias - np.float32(rate) * errors.sum(axis=0)
    return {"weight": weight, "bias": bias}


def accuracy(model: Model, examples: Examples) -> float:
    """Return the share of images whose digit the model names."""
    scores = examples.images @ model["weight"].T + model["bias"]
    return float((scores.argmax(axis=1) == examples.digits).mean())
