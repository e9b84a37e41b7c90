"""The Walsh-Hadamard transform and the public random rotation made of it, in numpy; the reference of all kernels.

Idea     flip signs at random, then mix all coordinates with a Hadamard matrix: whatever the update,
         no rotated coordinate is likely to be large, and a few of them are as informative as any
         others. The seed is public; rotating hides nothing and costs no privacy. Every kernel
         performs the same additions in the same order.
Blocks   the rotation of all d coordinates needs no padding: H_b D on b consecutive coordinates,
         block after block, and where b does not divide d once more on the last b, with separate
         signs (docs/theory/rotation.md). Updates of which a few coordinates are kept are padded and
         rotated as a whole, so that every one depends on all.
Symbols  H_n / sqrt(n) is orthogonal, symmetric and its own inverse; D = signs; u = 2^-24 in
         float32.
Source   Ailon and Chazelle (2006); Suresh et al. (ICML 2017) for distributed means.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, require

__all__ = [
    "Blocks",
    "hadamard",
    "padded_size",
    "rotate",
    "rotate_back",
    "rotation_error_upper",
    "signs",
]

MAX_SIZE = 2**40


def padded_size(dimension: int) -> int:
    """Return the power of two that a vector of this dimension is padded to."""
    return 1 << (check_int(dimension, "dimension", 1, MAX_SIZE) - 1).bit_length()


def rotation_error_upper(size: int, unit: float = 2.0**-24) -> float:
    """Bound the length of the rounding error of a rotation of ``size`` numbers, relative to the length rotated.

    Every stage and both roundings of the scaling lengthen an error by 1 + u
    (docs/theory/kernels.md); in blocks a coordinate goes through two of them at most.
    """
    stages = check_int(size, "size", 1, MAX_SIZE).bit_length() - 1
    return (stages + 2) * unit * (1 + 2.0**-15)


def hadamard(values: NDArray[Any], block: int | None = None) -> NDArray[Any]:
    """Return the transform of every block of a flat array, by default of all of it; the input is not modified."""
    result, half, size = values, 1, values.size if block is None else block
    require(size > 0 and size & (size - 1) == 0, "length", size, "a power of two")
    while half < size:
        pairs = result.reshape(-1, 2, half)
        result = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(
            -1
        )
        half *= 2
    return np.asarray(result / result.dtype.type(math.sqrt(size)))


@frozen
class Blocks:
    """The layout of a rotation of ``size`` numbers: in blocks, or as one block of that size.

    The signs of whole blocks are bits 0 .. size - 1 of the ``count`` public signs of this seed;
    numbers after the last whole block keep theirs until the last block, which overlaps, is applied:
    its signs are the next bits.
    """

    size: int
    block: int
    seed: int
    count: int

    @classmethod
    def of(cls, size: int, block: int | None, seed: int) -> Blocks:
        """Divide ``size`` numbers into blocks, a power of two of at most that size; None: one padded block."""
        if block is None:
            whole = padded_size(size)
            return cls(whole, whole, check_int(seed, "seed", 0), whole)
        width = check_int(block, "block", 1, check_int(size, "size", 1, MAX_SIZE))
        require(width & (width - 1) == 0, "block", width, "a power of two")
        return cls(size, width, check_int(seed, "seed", 0), size + width)

    @property
    def whole(self) -> int:
        """The number of coordinates in whole blocks."""
        return self.size // self.block * self.block

    def words(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32] | None]:
        """Return the signs, 32 per word: of whole blocks, and of the last block where it overlaps."""
        words, whole, size = sign_words(self.count, self.seed), self.whole, self.size
        if whole == size:
            return words, None
        first = words[: -(-size // 32)].copy()
        first[-(-whole // 32) :] = 0
        if whole % 32:
            first[whole // 32] &= np.uint32((1 << whole % 32) - 1)
        bits = np.unpackbits(words[size // 32 :].view(np.uint8), bitorder="little")[size % 32 :][
            : self.block
        ]
        return first, np.packbits(
            np.append(bits, np.zeros(-bits.size % 32, np.uint8)), bitorder="little"
        ).view("<u4")


def rotate(values: NDArray[Any], how: Blocks | int) -> NDArray[Any]:
    """Return a flat array rotated in blocks; with a seed, padded with zeros to a power of two and rotated as one."""
    blocks = how if isinstance(how, Blocks) else Blocks.of(values.size, None, how)
    (first, last), kind, block, whole = blocks.words(), values.dtype, blocks.block, blocks.whole
    result = np.zeros(blocks.size, dtype=kind)
    result[: values.size] = values * _factors(first, values.size, kind)
    result[:whole] = hadamard(result[:whole], block)
    if last is not None:
        result[-block:] = hadamard(result[-block:] * _factors(last, block, kind))
    return result


def rotate_back(values: NDArray[Any], how: Blocks | int) -> NDArray[Any]:
    """Undo `rotate`, padding included: the transposes in reverse order."""
    blocks = how if isinstance(how, Blocks) else Blocks.of(values.size, None, how)
    (first, last), kind, block, whole = blocks.words(), values.dtype, blocks.block, blocks.whole
    result = values.copy()
    if last is not None:
        result[-block:] = hadamard(result[-block:]) * _factors(last, block, kind)
    result[:whole] = hadamard(result[:whole], block)
    return np.asarray(result * _factors(first, result.size, kind))


def signs(size: int, seed: int) -> FloatVector:
    """Return public signs, +1.0 or -1.0: a function of size and seed alone, on every machine."""
    return _factors(sign_words(check_int(size, "size", 1, MAX_SIZE), seed), size, np.float64)


def _factors(words: NDArray[np.uint32], size: int, kind: Any) -> NDArray[Any]:
    bits = np.unpackbits(words.view(np.uint8), count=size, bitorder="little")
    return np.where(bits, -1.0, 1.0).astype(kind)


def sign_words(size: int, seed: int) -> NDArray[np.uint32]:
    """Return the signs, 32 per word: a set bit is a minus, least significant first."""
    words = np.random.Philox(key=sign_key(size, seed)).random_raw(-(-size // 64))
    return words.astype("<u8", copy=False).view("<u4")


@lru_cache(maxsize=64)
def sign_key(size: int, seed: int) -> NDArray[np.uint64]:
    """Return the key of Philox4x64 with ten rounds whose words, from counter 1 on, are the signs."""
    sequence = np.random.SeedSequence(check_int(seed, "seed", 0), spawn_key=(size,))
    return np.asarray(sequence.generate_state(2, np.uint64), dtype=np.uint64)


def ending(size: int) -> tuple[int, float]:
    """Return how a transform ends: (1, 1 / sqrt(size)) to multiply where that is exact, else (2, sqrt(size))."""
    even = (size.bit_length() - 1) % 2 == 0
    return (1, 1.0 / math.sqrt(size)) if even else (2, math.sqrt(size))


def check_finite_rotation(rotated: Any, sums: NDArray[np.float64]) -> Any:
    """Return a rotated update; refuse it if its sums show an infinite or NaN entry, which spreads over its block.

    Entries below 2^96 never make one in float32.
    """
    if not np.all(np.isfinite(sums)):
        raise InvalidParameter(
            "update must be finite everywhere, and once scaled below 2^96, got another entry."
        )
    return rotated
