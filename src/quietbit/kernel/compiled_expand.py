"""Compiled expansion: ChaCha20 tiles, normals, rows, the search for a seed, and sums of many payloads.

Idea     a tile is sixteen blocks of ChaCha20 side by side: each of the 320 quarter rounds is a loop over sixteen
         lanes, one vector instruction per operation. The passes that follow are plain loops over contiguous arrays.
         Arithmetic and symbols are those of `expand.py`. Importing this module needs numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quietbit.kernel.expand import BLOCKS, FIRST_INDEX, INDEX_SHIFT, LOW, ONE_BITS, REST, SUMS, TILE
from quietbit.kernel.jit import compiled

__all__ = ["add_payloads", "expand_normals", "expand_words", "first_accepted", "noise_steps"]

HALF = np.uint64(32)
LOW32 = np.uint64(0xFFFFFFFF)


@compiled
def _quarter(a: Any, b: Any, c: Any, d: Any) -> Any:
    a = np.uint32(a + b)
    d = np.uint32(d ^ a)
    d = np.uint32((d << np.uint32(16)) | (d >> np.uint32(16)))
    c = np.uint32(c + d)
    b = np.uint32(b ^ c)
    b = np.uint32((b << np.uint32(12)) | (b >> np.uint32(20)))
    a = np.uint32(a + b)
    d = np.uint32(d ^ a)
    d = np.uint32((d << np.uint32(8)) | (d >> np.uint32(24)))
    c = np.uint32(c + d)
    b = np.uint32(b ^ c)
    b = np.uint32((b << np.uint32(7)) | (b >> np.uint32(25)))
    return a, b, c, d


@compiled
def _double_round(words: Any) -> Any:
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = words
    a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
    a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
    a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
    a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
    a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
    a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
    a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
    a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3


@compiled
def _tile(s: Any, block: Any, out: Any) -> None:
    """Write blocks ``block .. block + 15`` of the stream with start state ``s``, as (16 words, 16 blocks)."""
    s0, s1, s2, s3 = s[0], s[1], s[2], s[3]
    k0, k1, k2, k3 = s[4], s[5], s[6], s[7]
    k4, k5, k6, k7 = s[8], s[9], s[10], s[11]
    n0, n1 = s[14], s[15]
    begin = (np.uint64(s[12]) | (np.uint64(s[13]) << HALF)) + np.uint64(block)
    for i in range(BLOCKS):
        number = begin + np.uint64(i)
        t0, t1 = np.uint32(number & LOW32), np.uint32(number >> HALF)
        x = (s0, s1, s2, s3, k0, k1, k2, k3, k4, k5, k6, k7, t0, t1, n0, n1)
        x = _double_round(_double_round(_double_round(_double_round(_double_round(x)))))
        x = _double_round(_double_round(_double_round(_double_round(_double_round(x)))))
        out[0, i], out[1, i], out[2, i], out[3, i] = x[0] + s0, x[1] + s1, x[2] + s2, x[3] + s3
        out[4, i], out[5, i], out[6, i], out[7, i] = x[4] + k0, x[5] + k1, x[6] + k2, x[7] + k3
        out[8, i], out[9, i], out[10, i], out[11, i] = x[8] + k4, x[9] + k5, x[10] + k6, x[11] + k7
        out[12, i], out[13, i], out[14, i], out[15, i] = x[12] + t0, x[13] + t1, x[14] + n0, x[15] + n1


@compiled
def _words(state: Any, tile: int, raw: Any, out: Any) -> None:
    """Write the 128 words of a tile to ``out``."""
    _tile(state, BLOCKS * tile, raw)
    for j in range(8):
        low, high, to = raw[2 * j], raw[2 * j + 1], out[BLOCKS * j : BLOCKS * j + BLOCKS]
        for i in range(BLOCKS):
            to[i] = np.uint64(low[i]) | (np.uint64(high[i]) << HALF)


@compiled
def _normals(words: Any, table: Any, bits: Any, out: Any) -> None:
    """Write one normal per word; ``bits`` is a buffer of as many int64 numbers."""
    doubles = bits.view(np.float64)
    for i in range(out.size):
        doubles[i] = np.float64((np.int64(words[i]) & np.int64(LOW)) | np.int64(1))
    for i in range(out.size):
        row = table[(bits[i] >> np.int64(INDEX_SHIFT)) - np.int64(FIRST_INDEX)]
        bits[i] = ((bits[i] & np.int64(REST)) << np.int64(4)) | np.int64(ONE_BITS)
        t = 2.0 * doubles[i] - 3.0
        z = (((row[7] * t + row[6]) * t + row[5]) * t + row[4]) * t + row[3]
        z = ((z * t + row[2]) * t + row[1]) * t + row[0]
        out[i] = -z if np.int64(words[i]) < 0 else z


@compiled
def expand_words(state: Any, out: Any) -> None:
    """Write words 0 .. out.size - 1 of a stream; ``out`` holds whole tiles."""
    raw = np.empty((16, BLOCKS), np.uint32)
    for tile in range(out.size // TILE):
        _words(state, tile, raw, out[TILE * tile : TILE * tile + TILE])


@compiled
def expand_normals(state: Any, table: Any, out: Any) -> None:
    """Write normals 0 .. out.size - 1 of a stream; ``out`` holds whole tiles."""
    raw = np.empty((16, BLOCKS), np.uint32)
    words, bits = np.empty(TILE, np.uint64), np.empty(TILE, np.int64)
    for tile in range(out.size // TILE):
        _words(state, tile, raw, words)
        _normals(words, table, bits, out[TILE * tile : TILE * tile + TILE])


@compiled
def noise_steps(values: Any, words: Any, numbers: Any, normal: bool, table: Any, near: Any, sure: Any) -> None:
    """Compute `rounded.steps_of`: the nearest multiples of the grid, and whether they are certain."""
    unit, grid, off, reach = numbers
    z, bits = np.empty(TILE), np.empty(TILE, np.int64)
    for at in range(0, words.size, TILE):
        some = words[at : at + TILE]
        if normal:
            _normals(some, table, bits[: some.size], z[: some.size])
        for i in range(some.size):
            odd = np.float64((np.int64(some[i]) & np.int64(LOW)) | np.int64(1))
            if not normal:
                size = -np.log(min(odd * 2.0**-63, 1.0))
                z[i] = -size if np.int64(some[i]) < 0 else size
            x = values[at + i]
            t = (x + unit * z[i]) / grid
            whole = np.rint(t)
            doubt = (unit * (off + 2.0 / odd) + 2.0**-51 * (abs(x) + reach * unit)) / grid * (1 + 2.0**-20)
            near[at + i] = whole
            sure[at + i] = abs(t - whole) < 0.5 - doubt and odd > 1.0 and abs(t) < 2.0**51


@compiled
def _set_key(state: Any, seed: Any) -> None:
    """Write a 128-bit key of four words into both halves."""
    for k in range(4):
        state[4 + k] = seed[k]
        state[8 + k] = seed[k]


@compiled
def _inner(direction: Any, z: Any, sums: Any) -> float:
    """Add up the inner product in the order of `expand.inner`: 64 partial sums, then a tree."""
    sums[:] = 0.0
    for start in range(0, z.size, SUMS):
        a, b = direction[start : start + SUMS], z[start : start + SUMS]
        for j in range(SUMS):
            sums[j] += a[j] * b[j]
    half = SUMS // 2
    while half > 0:
        for j in range(half):
            sums[j] += sums[j + half]
        half //= 2
    return float(sums[0])


@compiled
def first_accepted(seeds: Any, words: Any, state: Any, direction: Any, edges: Any, limits: Any, table: Any) -> int:
    """Return the index of the first accepted candidate, or -1; ``direction`` is padded with zeros to whole tiles."""
    z, sums = np.empty(direction.size), np.empty(SUMS)
    for i in range(words.size):
        _set_key(state, seeds[i])
        expand_normals(state, table, z)
        if words[i] < limits[np.searchsorted(edges, _inner(direction, z, sums), side="right")]:
            return i
    return -1


@compiled
def _add_tile(words: Any, z: Any, starts: Any, scale: float, total: Any) -> None:
    """Scatter one tile; rows are ``starts[i] + floor(word * width / 2^64)``."""
    for i in range(starts.size - 1):
        width = np.uint64(starts[i + 1] - starts[i])
        carried = ((words[i] & LOW32) * width) >> HALF
        offset = ((words[i] >> HALF) * width + carried) >> HALF
        total[starts[i] + np.int64(offset)] += np.int64(np.rint(z[i] * scale))


@compiled
def add_payloads(tails: Any, keys: Any, states: Any, starts: Any, scale: float, table: Any, total: Any) -> None:
    """Expand and add all payloads, tile by tile, so that the part of the total under a tile stays in the cache."""
    raw = np.empty((16, BLOCKS), np.uint32)
    words, bits, z = np.empty(TILE, np.uint64), np.empty(TILE, np.int64), np.empty(TILE)
    (row_state, seed_state), count = states, starts.size - 1
    for tile in range((count + TILE - 1) // TILE):
        part = starts[TILE * tile : min(count, TILE * tile + TILE) + 1]
        for i in range(len(keys)):
            _set_key(seed_state, keys[i])
            _words(seed_state, tile, raw, words)
            _normals(words, table, bits, z)
            row_state[14], row_state[15] = tails[i, 0], tails[i, 1]
            _words(row_state, tile, raw, words)
            _add_tile(words, z, part, scale, total)
