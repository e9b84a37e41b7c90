"""The Walsh-Hadamard transform and the public random rotation, in numpy, as a reference.

Idea     flip signs at random, then mix all coordinates with a Hadamard matrix: whatever the update,
         no rotated coordinate is likely to be large, and any few of them are as informative as any
         others. The seed is public; a rotation hides nothing and costs no privacy. Every kernel
         performs the same additions in the same order.
Blocks   a rotation of all d coordinates needs no padding: H_b D on b consecutive coordinates, block
         after block, and where b does not divide d once more on the last b, with separate signs
         (docs/theory/rotation.md). Updates of which only some coordinates are sent are padded and
         rotated as one block, so that every coordinate depends on all.
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
    """Bound the rounding error of a rotation of ``size`` numbers, relative to their length.

    Every stage and both roundings of the scaling lengthen an error by 1 + u
    (docs/theory/numerics.md). In blocks, a coordinate goes through at most two rotations.
    """
    stages = check_int(size, "size", 1, MAX_SIZE).bit_length() - 1
    return (stages + 2) * unit * (1 + 2.0**-15)


def hadamard(values: NDArray[Any], block: int | None = None) -> NDArray[Any]:
    """Return the transform of every block of a flat array; without ``block``, of all of it."""
    size = values.size if block is None else block
    require(size > 0 and size & (size - 1) == 0, "length", size, "a power of two")
    result = values
    half = 1
    while half < size:
        pairs = result.reshape(-1, 2, half)
        left = pairs[:, 0]
        right = pairs[:, 1]
        result = np.stack([left + right, left - right], axis=1).reshape(-1)
        half *= 2
    return np.asarray(result / result.dtype.type(math.sqrt(size)))


@frozen
class Blocks:
    """The layout of a rotation of ``size`` numbers: in blocks, or as one block of that size.

    The signs of complete blocks are bits 0 .. size - 1 of the ``count`` public signs of this seed.
    Where numbers remain after them, one more block covers the last ``block`` numbers, overlapping;
    its signs are the next bits.
    """

    size: int
    block: int
    seed: int
    count: int

    @classmethod
    @lru_cache(maxsize=64, typed=True)
    def of(cls, size: int, block: int | None, seed: int) -> Blocks:
        """Divide ``size`` numbers into blocks of a power of two; None pads them to one block."""
        if block is None:
            padded = padded_size(size)
            return cls(padded, padded, check_int(seed, "seed", 0), padded)
        width = check_int(block, "block", 1, check_int(size, "size", 1, MAX_SIZE))
        require(width & (width - 1) == 0, "block", width, "a power of two")
        return cls(size, width, check_int(seed, "seed", 0), size + width)

    @property
    def whole(self) -> int:
        """The number of coordinates in complete blocks."""
        return self.size // self.block * self.block

    def words(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32] | None]:
        """Return the signs, 32 per word: of complete blocks, and of an overlapping last block."""
        words = sign_words(self.count, self.seed)
        whole = self.whole
        size = self.size
        if whole == size:
            return words, None
        first = words[: -(-size // 32)].copy()
        first[-(-whole // 32) :] = 0
        if whole % 32:
            first[whole // 32] &= np.uint32((1 << whole % 32) - 1)
        bits = np.unpackbits(words[size // 32 :].view(np.uint8), bitorder="little")
        bits = bits[size % 32 :][: self.block]
        padding = np.zeros(-bits.size % 32, np.uint8)
        last = np.packbits(np.append(bits, padding), bitorder="little")
        return first, last.view("<u4")


def rotate(values: NDArray[Any], how: Blocks | int) -> NDArray[Any]:
    """Return a flat array rotated in blocks; with a seed, padded with zeros to one block."""
    blocks = how if isinstance(how, Blocks) else Blocks.of(values.size, None, how)
    first, last = blocks.words()
    kind = values.dtype
    block = blocks.block
    whole = blocks.whole
    result = np.zeros(blocks.size, dtype=kind)
    result[: values.size] = values * _factors(first, values.size, kind)
    result[:whole] = hadamard(result[:whole], block)
    if last is not None:
        result[-block:] = hadamard(result[-block:] * _factors(last, block, kind))
    return result


def rotate_back(values: NDArray[Any], how: Blocks | int) -> NDArray[Any]:
    """Undo `rotate`, padding included: the transposes in reverse order."""
    blocks = how if isinstance(how, Blocks) else Blocks.of(values.size, None, how)
    first, last = blocks.words()
    kind = values.dtype
    block = blocks.block
    whole = blocks.whole
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
    """Return the key of Philox4x64 (ten rounds) whose words, from counter 1 on, are the signs."""
    sequence = np.random.SeedSequence(check_int(seed, "seed", 0), spawn_key=(size,))
    return np.asarray(sequence.generate_state(2, np.uint64), dtype=np.uint64)


def ending(size: int) -> tuple[int, float]:
    """Return how a transform is scaled at its end: mode 1 multiplies, mode 2 divides.

    Multiplying by 1 / sqrt(size) is exact where the size is an even power of two.
    """
    root = math.sqrt(size)
    stages = size.bit_length() - 1
    if stages % 2 == 0:
        return 1, 1.0 / root
    return 2, root


def check_finite_rotation(rotated: Any, sums: NDArray[np.float64]) -> Any:
    """Return a rotated update; refuse it if sums of its entries are infinite or NaN.

    An infinite or NaN entry spreads over its block. Entries below 2^96 never overflow in float32.
    """
    if not np.all(np.isfinite(sums)):
        rule = "finite everywhere, and below 2^96 once scaled"
        raise InvalidParameter.of("update", rule, "an entry that is not")
    return rotated
