"""A seed of 16 bytes as a normal vector: expansion, rows, the search for a seed, sums of many payloads.

Idea     the vector mechanism sends the key of a stream cipher; whoever has it expands it to the same standard
         normals, bit for bit. A public nonce of 8 bytes expands to the rows a client kept. A server adds expanded
         payloads as whole numbers into one rotated vector, so neither order nor device changes a sum.
Symbols  k = count, normals of a payload; p = size, the length of the rotated vector; u = direction, a unit vector of
         length k; z the normals of a seed; t = <u, z>.
Cipher   ChaCha20 with 64-bit block number and 64-bit nonce; keys of 128 bits are repeated and marked by the constants
         of Bernstein's variant. Sixteen blocks are a tile of 128 words: word 128 g + 16 j + i of a stream is words 2
         j (lower half) and 2 j + 1 of block 16 g + i. Normals are read from the stream of (seed, nonce 0), rows from
         that of (a fixed key, nonce).
Source   Bernstein, "ChaCha, a variant of Salsa20" (2008); RFC 8439; Feldman and Talwar (ICML 2021) for sending a seed;
         Higham, "Accuracy and stability of numerical algorithms" (2002), chapters 3 and 4, for sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, MissingDependency, check_int, check_real, require, require_module
from quietbit.kernel.quantile import EXPANSION_ERROR, LARGEST, normals_of_words, quantile_table
from quietbit.kernel.rng import WordBlock

__all__ = [
    "FAILURE_UPPER",
    "FIRST_STREAMS",
    "acceptance_limits",
    "accumulate",
    "chacha20_blocks",
    "check_payloads",
    "finest_shift",
    "inner",
    "inner_error_upper",
    "normals",
    "rows",
    "scatter",
    "search",
    "start_state",
    "strata",
    "stream_words",
    "tries_upper",
    "unit",
]

SIGMA = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
TAU = (0x61707865, 0x3120646E, 0x79622D36, 0x6B206574)  # "expand 16-byte k"
ROWS_KEY = b"quietbit rows v1"
BLOCKS, TILE = 16, 128  # blocks and words of a tile
SUMS = 64  # partial sums of an inner product
MAX_COUNT = 2**24
MAX_WIDTH = 2**24  # rows of a stratum
BATCH = 64  # candidates whose words are drawn together
FAILURE_UPPER = 2.0**-60  # that a search finds nothing: belongs into delta
FIRST_STREAMS = (0, 1)  # streams of a release's words: candidates, acceptance
UNIT = 2.0**-53
LOW32, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def start_state(key: bytes, nonce: bytes = bytes(8)) -> NDArray[np.uint32]:
    """The sixteen words a stream starts from: constants, key, block number 0, nonce."""
    require(isinstance(key, bytes) and len(key) in (16, 32), "key", _shape_of(key), "16 or 32 bytes")
    require(isinstance(nonce, bytes) and len(nonce) == 8, "nonce", _shape_of(nonce), "8 bytes")
    words = np.frombuffer(key if len(key) == 32 else key + key, dtype="<u4")
    constants = SIGMA if len(key) == 32 else TAU
    tail = np.frombuffer(nonce, dtype="<u4")
    return np.concatenate([np.array(constants, np.uint32), words, np.zeros(2, np.uint32), tail]).astype(np.uint32)


def chacha20_blocks(state: NDArray[np.uint32], first: int, count: int) -> NDArray[np.uint32]:
    """Words of blocks ``first .. first + count - 1`` after the one ``state`` names, one row per word; numpy.

    ``state`` may have leading axes, one stream each; the result is (..., 16, count).
    """
    number = (state[..., 12] | (state[..., 13].astype(np.uint64) << HALF))[..., None]
    number = number + np.arange(first, first + count, dtype=np.uint64)
    shape = (*state.shape[:-1], count)
    start = [np.broadcast_to(state[..., word, None], shape) for word in range(16)]
    start[12], start[13] = (number & LOW32).astype(np.uint32), (number >> HALF).astype(np.uint32)
    x = [word.copy() for word in start]
    for turn in range(20):
        for column in range(4):
            a, b, c, d = (4 * row + (column + row * (turn % 2)) % 4 for row in range(4))
            x[a] += x[b]
            x[d] = _turn(x[d] ^ x[a], 16)
            x[c] += x[d]
            x[b] = _turn(x[b] ^ x[c], 12)
            x[a] += x[b]
            x[d] = _turn(x[d] ^ x[a], 8)
            x[c] += x[d]
            x[b] = _turn(x[b] ^ x[c], 7)
    return np.stack([word + begin for word, begin in zip(x, start, strict=True)], axis=-2)


def stream_words(state: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
    """The first ``count`` words of 64 bits of a stream, in the order of tiles."""
    code, size = _machine_code(), _whole_tiles(count)
    if code is not None and state.ndim == 1:
        out = np.empty(size, np.uint64)
        code.expand_words(state, out)
        return out[:count]
    return _words_numpy(state, size)[..., :count]


def normals(seed: bytes, count: int) -> FloatVector:
    """``count`` standard normals of a seed of 16 bytes, each within EXPANSION_ERROR of an exact quantile.

    The first of many do not depend on how many are asked for.

    >>> normals(bytes(16), 3).tolist() == normals(bytes(16), 300)[:3].tolist()
    True
    """
    require(isinstance(seed, bytes) and len(seed) == 16, "seed", _shape_of(seed), "16 bytes")
    size, code = check_int(count, "count", 0, MAX_COUNT), _machine_code()
    if code is None:
        return normals_of_words(_words_numpy(start_state(seed), _whole_tiles(size))[:size])
    out = np.empty(_whole_tiles(size))
    code.expand_normals(start_state(seed), quantile_table(), out)
    return out[:size]


def rows(nonce: bytes, count: int, size: int) -> NDArray[np.int64]:
    """One row from each of ``count`` strata of ``0 .. size - 1``, in order.

    Stratum j is floor(j p/k) .. floor((j+1) p/k) - 1. A row of a stratum of width s <= 2^24 is chosen with
    probability 1/s up to 2^-64, a relative bias below 2^-40. All strata have the same width exactly when k divides p;
    otherwise widths differ by one, and a row's chance from k/p by a factor of at most 1/(1 - k/p).

    >>> bool(np.all(np.diff(rows(bytes(8), 5, 64)) > 0))
    True
    """
    starts = strata(count, size)
    words = stream_words(start_state(ROWS_KEY, nonce), starts.size - 1)
    return _row_numbers(words, starts)


def unit(vector: FloatVector) -> tuple[FloatVector, float]:
    """The direction of a vector and its length, both in double precision; zero has the direction of the first axis.

    The error of the direction is part of `inner_error_upper`; the length is within (k/64 + 10) 2^-53 of its value,
    relatively.
    """
    given = np.ascontiguousarray(vector, dtype=np.float64)
    require(
        given.ndim == 1 and 0 < given.size <= MAX_COUNT, "vector", given.shape, f"flat, of 1 to {MAX_COUNT} numbers"
    )
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


def inner(left: FloatVector, right: FloatVector) -> float:
    """The inner product in a fixed order: 64 partial sums, then a tree; every kernel adds in this order."""
    product = np.zeros(-(-left.size // SUMS) * SUMS)
    np.multiply(left, right, out=product[: left.size])
    sums = np.zeros(SUMS)
    for row in product.reshape(-1, SUMS):
        sums += row
    while sums.size > 1:
        sums = sums[: sums.size // 2] + sums[sums.size // 2 :]
    return float(sums[0])


def inner_error_upper(count: int) -> float:
    """|computed t - <y/|y|, z*>| for u = `unit(y)` and z = `normals`: what rounding can do before a step is chosen.

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
    """floor(2^64 p), at most 2^64 - 1: a uniform word is below it with the probability limit / 2^64 <= p, exactly.

    >>> acceptance_limits([0.0, 0.5, 1.0]).tolist() == [0, 2**63, 2**64 - 1]
    True
    """
    found = []
    for value in np.asarray(probabilities, dtype=np.float64):
        number = float(value)
        require(0.0 <= number <= 1.0, "acceptance probability", number, "from 0 to 1")
        found.append(min(int(math.ldexp(number, 64)), 2**64 - 1))
    return np.array(found, dtype=np.uint64)


def tries_upper(acceptance_lower: float) -> int:
    """Candidates after which a search gives up: all are rejected with probability at most FAILURE_UPPER.

    >>> tries_upper(0.1)
    396
    """
    chance = check_real(acceptance_lower, "acceptance_lower", above=0.0, at_most=1.0)
    require(chance >= 1e-9, "acceptance_lower", chance, "at least 1e-9: sample directly instead")
    return 1 if chance == 1.0 else math.ceil(60 * math.log(2) / -math.log1p(-chance) * (1 + 2.0**-40)) + 1


def search(
    direction: FloatVector,
    edges: FloatVector,
    limits: NDArray[np.uint64],
    block: WordBlock,
    *,
    acceptance_lower: float,
    streams: tuple[int, int] = FIRST_STREAMS,
) -> tuple[bytes, int]:
    """The first of the candidate seeds that is accepted, and how many were looked at.

    Candidate i is words 2 i and 2 i + 1 of the first stream; it is accepted if word i of the second stream is below
    ``limits[s]``, s = the number of ``edges`` at most t. Given the words the answer is a function of the arguments
    alone.

    ``acceptance_lower`` bounds the chance of one candidate from below, for every direction. After `tries_upper` of it
    the next candidate is returned unseen, which is the law of a zero update: nothing about the update is told by
    that, and the event has probability at most FAILURE_UPPER, which belongs into delta. The number of candidates
    follows the same geometric law for every update, so the time taken tells nothing either.
    """
    size = direction.size
    fine = direction.ndim == 1 and 0 < size <= MAX_COUNT and bool(np.all(np.isfinite(direction)))
    require(fine, "direction", direction.shape, f"flat and finite, of 1 to {MAX_COUNT} numbers")
    require(limits.shape == (edges.size + 1,), "limits", limits.shape, f"one more than the {edges.size} edges")
    require(
        limits.dtype == np.uint64 and edges.dtype == np.float64, "limits", str(limits.dtype), "uint64, edges float64"
    )
    require(bool(np.all(edges[1:] > edges[:-1])), "edges", "another order", "increasing")
    cap, code = tries_upper(acceptance_lower), _machine_code()
    padded = np.zeros(_whole_tiles(size))
    padded[:size] = direction
    state = start_state(bytes(16))
    for begin in range(0, cap, BATCH):
        some = min(BATCH, cap - begin)
        seeds = block.uniform64(streams[0], 2 * begin, 2 * some).astype("<u8", copy=False)
        words = block.uniform64(streams[1], begin, some)
        if code is not None:
            keys = seeds.view("<u4").reshape(some, 4)
            at = int(code.first_accepted(keys, words, state, padded, edges, limits, quantile_table()))
        else:
            at = _first_accepted(seeds, words, direction, edges, limits)
        if at >= 0:
            return seeds[2 * at : 2 * at + 2].tobytes(), begin + at + 1
    return block.uniform64(streams[0], 2 * cap, 2).astype("<u8", copy=False).tobytes(), cap + 1


def finest_shift(most: int) -> int:
    """The finest fixed point whose sums of ``most`` payloads (weights counted) fit 63 bits.

    Numbers are round(2^shift z).
    Each normal is then off by at most 2^-(shift + 1) in the sum: with shift = 44, for up to 10,000 payloads, 3e-14.

    >>> finest_shift(1), finest_shift(10_000), finest_shift(10**9)
    (48, 44, 28)
    """
    weight = check_int(most, "most", 1, 2**40)
    return min(48, 58 - (weight - 1).bit_length())  # |z| < 2^4, so sums stay below 2^62


def accumulate(
    nonces: NDArray[np.uint8],
    seeds: NDArray[np.uint8],
    total: NDArray[np.int64],
    *,
    count: int,
    shift: int,
    weights: NDArray[np.int64] | None = None,
) -> None:
    """Add ``weight * round(2^shift z)`` of every payload to the rows of its nonce; whole numbers, so order is nothing.

    ``nonces`` is (payloads, 8) and ``seeds`` (payloads, 16); a weight of -1 takes a payload out again, exactly.
    Whether sums fit is the caller's to see to (`finest_shift`).
    """
    payloads = check_payloads(nonces, seeds, weights)
    require(total.ndim == 1 and total.dtype == np.int64, "total", str(total.dtype), "a flat array of int64")
    require(total.flags.c_contiguous and total.flags.writeable, "total", "another", "writable and in a row")
    starts, scale = strata(count, total.size), math.ldexp(1.0, check_int(shift, "shift", 0, 48))
    each = np.ones(payloads, np.int64) if weights is None else np.ascontiguousarray(weights, dtype=np.int64)
    keys = np.ascontiguousarray(seeds).view("<u4")
    tails = np.ascontiguousarray(nonces).view("<u4")
    code = _machine_code()
    if code is not None:
        states = start_state(ROWS_KEY), start_state(bytes(16))
        code.add_payloads(tails, keys, each, *states, starts, scale, quantile_table(), total)
        return
    size = _whole_tiles(count)
    for i in range(payloads):
        z = normals_of_words(_words_numpy(start_state(keys[i].tobytes()), size)[:count])
        words = _words_numpy(start_state(ROWS_KEY, tails[i].tobytes()), size)[:count]
        # Strata are disjoint, so no row appears twice in a payload.
        total[_row_numbers(words, starts)] += np.rint(z * scale).astype(np.int64) * each[i]


def scatter(nonce: bytes, numbers: NDArray[np.int64], total: NDArray[np.int64]) -> None:
    """Add whole numbers to the rows of a nonce: what `accumulate` does, for a payload that carries codes."""
    fine = numbers.ndim == 1 and numbers.dtype == np.int64
    require(fine, "numbers", str(numbers.dtype), "a flat array of int64")
    require(total.ndim == 1 and total.dtype == np.int64, "total", str(total.dtype), "a flat array of int64")
    total[rows(nonce, numbers.size, total.size)] += numbers


def _shape_of(value: Any) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes | bytearray) else type(value).__name__


def _whole_tiles(count: int) -> int:
    return -(-count // TILE) * TILE


def _turn(word: Any, by: int) -> Any:
    return (word << np.uint32(by)) | (word >> np.uint32(32 - by))


def _words_numpy(state: NDArray[np.uint32], size: int) -> NDArray[np.uint64]:
    """``size`` words, a multiple of the tile."""
    raw = chacha20_blocks(state, 0, size // 8).astype(np.uint64)
    raw = raw.reshape(*raw.shape[:-2], 8, 2, size // TILE, BLOCKS)
    words = raw[..., 0, :, :] | (raw[..., 1, :, :] << HALF)  # (..., 8, tiles, 16)
    return np.swapaxes(words, -3, -2).reshape(*state.shape[:-1], size)


@lru_cache(maxsize=64)
def strata(count: int, size: int) -> NDArray[np.int64]:
    """Where strata begin, and the end."""
    length = check_int(size, "size", 1, 2**40)
    number = check_int(count, "count", 1, min(MAX_COUNT, length))
    require(length <= number * MAX_WIDTH, "size", length, f"at most {MAX_WIDTH} times the {number} rows kept")
    starts = np.arange(number + 1, dtype=np.int64) * length // number
    starts.setflags(write=False)
    return starts


def _row_numbers(words: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    width = np.diff(starts).astype(np.uint64)
    carried = ((words & LOW32) * width) >> HALF
    offset = ((words >> HALF) * width + carried) >> HALF
    return starts[:-1] + offset.astype(np.int64)


def _first_accepted(
    seeds: NDArray[np.uint64], words: NDArray[np.uint64], direction: FloatVector, edges: FloatVector, limits: Any
) -> int:
    for i, word in enumerate(words):
        z = normals(seeds[2 * i : 2 * i + 2].tobytes(), direction.size)
        if word < limits[int(np.searchsorted(edges, inner(direction, z), side="right"))]:
            return i
    return -1


def check_payloads(nonces: Any, seeds: Any, weights: Any) -> int:
    """How many payloads there are; arrays or tensors of other shapes or types are refused."""
    count = int(seeds.shape[0]) if seeds.ndim == 2 else -1
    fine = seeds.ndim == 2 and seeds.shape[1] == 16 and nonces.shape == (count, 8)
    require(fine, "seeds and nonces", (tuple(seeds.shape), tuple(nonces.shape)), "(payloads, 16) and (payloads, 8)")
    bytes_alone = str(seeds.dtype).endswith("uint8") and str(nonces.dtype).endswith("uint8")
    require(bytes_alone, "seeds and nonces", (str(seeds.dtype), str(nonces.dtype)), "bytes")
    shaped = weights is None or tuple(weights.shape) == (count,)
    require(shaped, "weights", None if weights is None else tuple(weights.shape), f"one for each of {count} payloads")
    return count


@lru_cache(maxsize=1)
def _machine_code() -> ModuleType | None:
    """The compiled functions, or None without numba."""
    try:
        require_module("numba", "cpu")
    except MissingDependency:
        return None
    from quietbit.kernel import compiled_expand

    return compiled_expand
