"""A 16-byte seed as a normal vector, in numpy: expansion, rows, the search for a seed, sums of many payloads.

Idea     the vector mechanism sends the key of a stream cipher, from which anyone expands the same standard normals, bit
         for bit. A public nonce of 8 bytes expands to the rows that a client kept. A server adds expanded payloads as
         integers into one rotated vector, so neither order nor device changes a sum.
Symbols  k = count, normals of a payload; p = size, the length of the rotated vector; u = direction, a unit vector of
         length k; z the normals of a seed; t = <u, z>.
Cipher   ChaCha20 (`rng.py`). Sixteen blocks are a tile of 128 words: word 128 g + 16 j + i of a stream is words 2
         j (lower half) and 2 j + 1 of block 16 g + i. Normals are read from the stream of (seed, nonce 0), rows from
         that of (a fixed key, nonce).
Source   Feldman and Talwar (ICML 2021) for sending a seed; Higham, "Accuracy and stability of numerical algorithms"
         (2002), chapters 3 and 4, for sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.kernel.quantile import EXPANSION_ERROR, LARGEST
from quietbit.kernel.rng import chacha_blocks, start_state

__all__ = [
    "FAILURE_UPPER", "FIRST_STREAMS", "MAX_COUNT", "ROWS_KEY", "SUMS", "acceptance_limits", "finest_shift", "inner",
    "inner_error_upper", "row_numbers", "seed_state", "strata", "stream_words", "tries_upper", "unit",
    "whole_tiles",
]  # fmt: skip

ROWS_KEY = b"quietbit rows v1"
BLOCKS, TILE = 16, 128  # blocks and words of a tile
SUMS = 64  # partial sums of an inner product
MAX_COUNT = 2**24
MAX_WIDTH = 2**24  # rows of a stratum
FAILURE_UPPER = 2.0**-60  # probability that a search finds nothing; what it then sends is independent of the update
FIRST_STREAMS = (0, 1)  # streams of a release's words: candidates, acceptance
UNIT = 2.0**-53
LOW32, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def stream_words(state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
    """Return the first ``count`` 64-bit words of a stream, in the order of tiles."""
    size = whole_tiles(count)
    raw = chacha_blocks(state, np.arange(size // 8)).astype(np.uint64).reshape(8, 2, size // TILE, BLOCKS)
    words = raw[:, 0] | (raw[:, 1] << HALF)  # (8, tiles, 16)
    return np.swapaxes(words, 0, 1).reshape(size)[:count]


def seed_state(seed: bytes) -> NDArray[np.uint32]:
    """Return the state that a seed's normals are read from; refuse anything but 16 bytes."""
    found = f"{len(seed)} bytes" if isinstance(seed, bytes | bytearray) else type(seed).__name__
    require(isinstance(seed, bytes) and len(seed) == 16, "seed", found, "16 bytes")
    return start_state(seed)


def row_numbers(words: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row that each word picks from its stratum."""
    width = np.diff(starts).astype(np.uint64)
    carried = ((words & LOW32) * width) >> HALF
    offset = ((words >> HALF) * width + carried) >> HALF
    return starts[:-1] + offset.astype(np.int64)


@lru_cache(maxsize=64)
def strata(count: int, size: int) -> NDArray[np.int64]:
    """Return where strata begin, and the end of the last."""
    length = check_int(size, "size", 1, 2**40)
    number = check_int(count, "count", 1, min(MAX_COUNT, length))
    require(length <= number * MAX_WIDTH, "size", length, f"at most {MAX_WIDTH} times the {number} rows kept")
    starts = np.arange(number + 1, dtype=np.int64) * length // number
    starts.setflags(write=False)
    return starts


def unit(vector: FloatVector) -> tuple[FloatVector, float]:
    """Return a vector's direction and length, both in double precision; zero has the direction of the first axis.

    The error of the direction is part of `inner_error_upper`; the length is within (k/64 + 10) 2^-53 of its value,
    relatively.
    """
    given = np.ascontiguousarray(vector, dtype=np.float64)
    fine = given.ndim == 1 and 0 < given.size <= MAX_COUNT
    require(fine, "vector", given.shape, f"flat, of 1 to {MAX_COUNT} numbers")
    largest = float(np.max(np.abs(given)))
    if not math.isfinite(largest):
        raise InvalidParameter("update must be finite everywhere, got a NaN or infinite entry.")
    if largest == 0.0:
        axis = np.zeros(given.size)
        axis[0] = 1.0
        return axis, 0.0
    # Dividing by a power of two is exact here, and keeps squares away from overflow and underflow.
    exponent = math.frexp(largest)[1]
    scaled = np.ldexp(given, -exponent)
    length = math.sqrt(inner(scaled, scaled))
    return scaled / length, math.ldexp(length, exponent)


def inner(left: FloatVector, right: NDArray[np.float64]) -> Any:
    """Add up inner products, one per row of ``right``, as every kernel does: 64 partial sums, then a tree."""
    product = np.zeros((*right.shape[:-1], -(-left.size // SUMS) * SUMS))
    np.multiply(left, right, out=product[..., : left.size])
    sums = np.zeros((*right.shape[:-1], SUMS))
    for start in range(0, product.shape[-1], SUMS):
        sums += product[..., start : start + SUMS]
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0][()]  # of a single vector a number


def inner_error_upper(count: int) -> float:
    """Bound |computed t - <y/|y|, z*>| for u = `unit(y)` and z = `normals`: rounding before a step is chosen.

    z* are the exact quantiles. With n = ceil(k/64) + 7 roundings between a product and the sum, |z| <= LARGEST and
    sum |u_i| <= sqrt(k) |u|: the sum's own error is at most gamma_n |u|_1 LARGEST; the direction's entries are off by
    gamma_{n+3} relatively (half of a sum of squares' error, its root, a quotient; entries that underflow are covered
    by the last digit given away); normals by EXPANSION_ERROR.
    """
    size = check_int(count, "count", 1, MAX_COUNT)
    depth = -(-size // SUMS) + 7
    rounding = (2 * depth + 4) * UNIT / (1 - (2 * depth + 4) * UNIT)
    return math.sqrt(size) * (rounding * LARGEST + EXPANSION_ERROR) * (1 + 2.0**-20)


def acceptance_limits(probabilities: Sequence[float] | FloatVector) -> NDArray[np.uint64]:
    """Return floor(2^64 p), at most 2^64 - 1: a uniform word is below it with probability limit / 2^64 <= p, exactly.

    >>> acceptance_limits([0.0, 0.5, 1.0]).tolist() == [0, 2**63, 2**64 - 1]
    True
    """
    chances = np.asarray(probabilities, dtype=np.float64).tolist()
    for chance in chances:
        require(0.0 <= chance <= 1.0, "acceptance probability", chance, "from 0 to 1")
    return np.array([min(int(math.ldexp(chance, 64)), 2**64 - 1) for chance in chances], dtype=np.uint64)


@lru_cache(maxsize=64)
def tries_upper(acceptance_lower: float) -> int:
    """Return how many candidates a search tries: all are rejected with probability at most FAILURE_UPPER.

    >>> tries_upper(0.1)
    396
    """
    chance = check_real(acceptance_lower, "acceptance_lower", above=0.0, at_most=1.0)
    require(chance >= 1e-9, "acceptance_lower", chance, "at least 1e-9: sample directly instead")
    return 1 if chance == 1.0 else math.ceil(60 * math.log(2) / -math.log1p(-chance) * (1 + 2.0**-40)) + 1


def finest_shift(most: int) -> int:
    """Return the shift of the finest fixed point whose sums of ``most`` payloads (weights counted) fit 63 bits.

    Numbers are round(2^shift z).
    Each normal is then off by at most 2^-(shift + 1) in the sum: with shift = 44, for up to 10,000 payloads, 3e-14.

    >>> finest_shift(1), finest_shift(10_000), finest_shift(10**9)
    (48, 44, 28)
    """
    weight = check_int(most, "most", 1, 2**40)
    return min(48, 58 - (weight - 1).bit_length())  # |z| < 2^4, so sums stay below 2^62


def whole_tiles(count: int) -> int:
    """Return the number of words of the tiles that hold ``count``."""
    return -(-count // TILE) * TILE
