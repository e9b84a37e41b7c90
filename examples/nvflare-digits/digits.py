"""The task itself, with neither NVFlare nor quietbit.

Digits, a linear softmax, gradient steps, accuracy.

Symbols  a model is one matrix, 10 x 65: a row of weights for each digit, its bias last. A site owns
         every n-th of the training images, in a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

CLASSES, PIXELS, TEST = 10, 64, 360
Floats = NDArray[np.float32]


class Examples(NamedTuple):
    """Images as rows, with a 1 for the bias at their end, and which digit each is."""

    images: Floats
    digits: NDArray[np.int64]


def load() -> tuple[Examples, Examples]:
    """Training and test examples, pixels in [-1/2, 1/2], in an order that is always the same."""
    found = load_digits()
    pixels = np.asarray(found.data, dtype=np.float32) / np.float32(16) - np.float32(0.5)
    images = np.concatenate([pixels, np.ones((len(pixels), 1), np.float32)], axis=1)
    digits = np.asarray(found.target, dtype=np.int64)
    order = np.random.default_rng(0).permutation(digits.size)
    test, train = order[:TEST], order[TEST:]
    return Examples(images[train], digits[train]), Examples(images[test], digits[test])


def own_examples(site: int, sites: int) -> Examples:
    """Return what one site trains on."""
    train, _ = load()
    return Examples(train.images[site::sites], train.digits[site::sites])


def start() -> Floats:
    """Return a model that knows nothing."""
    return np.zeros((CLASSES, PIXELS + 1), np.float32)


def train(model: Floats, examples: Examples, steps: int, rate: float) -> Floats:
    """Take some steps of gradient descent on all of the site's examples."""
    one_hot = np.eye(CLASSES, dtype=np.float32)[examples.digits]
    for _ in range(steps):
        scores = examples.images @ model.T
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = (scores / scores.sum(axis=1, keepdims=True) - one_hot) / np.float32(len(one_hot))
        model = model - np.float32(rate) * (errors.T @ examples.images)
    return model


def accuracy(model: Floats, examples: Examples) -> float:
    """Return the share of images whose digit the model names."""
    return float(((examples.images @ model.T).argmax(axis=1) == examples.digits).mean())
