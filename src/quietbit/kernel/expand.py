"""The words of a 16-byte seed, in numpy, and the rows of a nonce; how long a search takes.

Idea     the vector mechanism sends the key of a stream cipher, from which everybody expands the
         same standard normals, bit for bit. A public nonce of 8 bytes expands to the rows that a
         client sends. A server adds expanded payloads as integers into one rotated vector, so
         neither order nor device changes a sum.
Symbols  k = count, normals of a payload (`normals.py`); p = size, the length of the rotated vector.
Words    of ChaCha20 in tiles of sixteen blocks (docs/reference/wire_format.md), for normals with
         (seed, nonce 0), for rows with (a fixed key, nonce).
Source   Feldman and Talwar (ICML 2021) for sending a seed.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietbit.errors import check_int, check_real, require
from quietbit.kernel.normals import MAX_COUNT
from quietbit.kernel.rng import chacha_blocks, check_bytes, start_state

__all__ = ["acceptance_limits", "finest_shift", "strata", "tries_upper"]

ROWS_KEY = b"quietbit rows v1"
BLOCKS = 16  # of a tile
TILE = 128  # words of a tile
MAX_WIDTH = 2**24  # rows of a stratum
FAILURE_UPPER = 2.0**-60  # probability that a search accepts nothing; it then sends pure noise
LOW32 = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def stream_words(state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
    """Return the first ``count`` 64-bit words of a stream, in the order of tiles."""
    size = whole_tiles(count)
    blocks = chacha_blocks(state, np.arange(size // 8)).astype(np.uint64)
    halves = blocks.reshape(8, 2, size // TILE, BLOCKS)
    words = halves[:, 0] | (halves[:, 1] << HALF)  # (8, tiles, 16)
    return np.swapaxes(words, 0, 1).reshape(size)[:count]


def whole_tiles(count: int) -> int:
    """Return the number of words of the tiles that hold ``count``."""
    return -(-count // TILE) * TILE


def seed_state(seed: bytes) -> NDArray[np.uint32]:
    """Return the state that a seed's normals are read from; refuse anything but 16 bytes."""
    check_bytes(seed, "seed", 16)
    return start_state(seed)


def row_numbers(words: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row that each word selects from its stratum."""
    width = np.diff(starts).astype(np.uint64)
    carried = ((words & LOW32) * width) >> HALF
    offset = ((words >> HALF) * width + carried) >> HALF
    return starts[:-1] + offset.astype(np.int64)


@lru_cache(maxsize=64)
def strata(count: int, size: int) -> NDArray[np.int64]:
    """Return where strata begin, and the end of the last."""
    length = check_int(size, "size", 1, 2**40)
    number = check_int(count, "count", 1, min(MAX_COUNT, length))
    rule = f"at most {MAX_WIDTH} times the number of rows, {number}"
    require(length <= number * MAX_WIDTH, "size", length, rule)
    starts = np.arange(number + 1, dtype=np.int64) * length // number
    starts.setflags(write=False)
    return starts


def acceptance_limits(probabilities: ArrayLike) -> NDArray[np.uint64]:
    """Return floor(2^64 p), at most 2^64 - 1, for each probability p.

    A uniform word is below its limit with probability limit / 2^64 <= p, exactly.
    """
    limits = []
    for chance in np.asarray(probabilities, dtype=np.float64).tolist():
        require(0.0 <= chance <= 1.0, "acceptance probability", chance, "from 0 to 1")
        limits.append(min(int(math.ldexp(chance, 64)), 2**64 - 1))
    return np.array(limits, dtype=np.uint64)


@lru_cache(maxsize=64)
def tries_upper(acceptance_lower: float) -> int:
    """Return how many candidates a search tries.

    All of them are rejected with probability at most FAILURE_UPPER.
    """
    chance = check_real(acceptance_lower, "acceptance_lower", above=0.0, at_most=1.0)
    require(chance >= 1e-9, "acceptance_lower", chance, "at least 1e-9", "sample directly instead")
    if chance == 1.0:
        return 1
    tries = 60 * math.log(2) / -math.log1p(-chance) * (1 + 2.0**-40)
    return math.ceil(tries) + 1


def finest_shift(most: int) -> int:
    """Return the largest shift with which sums of round(2^shift z) over ``most`` payloads fit.

    They fit 63 bits; the shift is 44 for 10,000 payloads.
    """
    payloads = check_int(most, "most", 1, 2**40)
    return min(48, 58 - (payloads - 1).bit_length())  # |z| < 2^4, so sums stay below 2^62
