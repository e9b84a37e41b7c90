"""The randomised Hadamard rotation: public, orthogonal, quick.

Idea     flip signs at random, then mix all coordinates with a Hadamard matrix: whatever the update, no
         rotated coordinate is likely to be large. The seed is public; rotating hides nothing and costs no
         privacy.
Symbols  D = a power of two; H_D / sqrt(D) is orthogonal and its own inverse.
Source   Ailon and Chazelle (2006); Suresh et al. (ICML 2017) for distributed means.
"""

from __future__ import annotations

import math

import numpy as np

from quietbit._typing import FloatVector

__all__ = ["rotate", "rotate_back"]


def rotate(vector: FloatVector, seed: int) -> FloatVector:
    """The vector padded with zeros to a power of two and rotated; a zero vector stays zero."""
    size = 1 << (vector.size - 1).bit_length()
    padded = np.zeros(size)
    padded[: vector.size] = vector
    return _hadamard(padded * _signs(size, seed))


def rotate_back(vector: FloatVector, seed: int) -> FloatVector:
    """The inverse, padding included."""
    return np.asarray(_hadamard(vector) * _signs(vector.size, seed))


def _signs(size: int, seed: int) -> FloatVector:
    """Signs that are a function of size and seed alone, on every machine."""
    key = np.random.SeedSequence(seed, spawn_key=(size,)).generate_state(2, np.uint64)
    words = np.random.Philox(key=key).random_raw(-(-size // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")[:size]
    return np.where(bits, -1.0, 1.0)


def _hadamard(vector: FloatVector) -> FloatVector:
    size, half = vector.size, 1
    values = vector.astype(np.float64, copy=True)
    while half < size:
        pairs = values.reshape(-1, 2, half)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return np.asarray(values / math.sqrt(size))
