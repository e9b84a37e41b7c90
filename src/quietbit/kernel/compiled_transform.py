"""Compiled Walsh-Hadamard stages: sums and differences in the reference's order, with few passes over memory.

Idea     stage s pairs entries 2^s apart. The first twelve run inside blocks of 4,096 entries as passes of constant
         geometry: every pass reads groups of four neighbours and writes one result to each quarter of a second buffer,
         so that loads and stores are plain vector loops whatever the stage, and in the end the entries are back in
         their order. The later stages combine eight rows at a time, first inside spans that fit the second-level cache;
         the last of them also scale, and add up a norm's blocks. Each number is rounded as often and in the same order
         as in the plain loop over stages, and nothing is fused: results are the reference's, bit for bit.
Symbols  half = 2^s; a chunk is 4,096 neighbouring columns of the later stages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quietbit.kernel.compiled_sampling import block_sums
from quietbit.kernel.jit import compiled
from quietbit.kernel.norm import BLOCK

__all__ = ["SPAN", "early_stages", "flip", "late_stages"]

# A norm's block of 4,096 entries is also that of the first twelve stages, and of a chunk.
SPAN = 1 << 18  # entries transformed before the next are touched: 1 MB of float32
SIGN = np.uint32(0x80000000)
# Powers of two that lift bit j of a word to the top: shifts would be done in 64 bits, products are not.
TO_TOP = np.uint32(1) << np.arange(31, -1, -1, dtype=np.uint32)


@compiled
def _pair_pass(x: Any, y: Any) -> None:
    """Apply one stage, from neighbours to halves."""
    half = x.size // 2
    first, second = y[:half], y[half:]
    for i in range(half):
        a, b = x[2 * i], x[2 * i + 1]
        first[i] = a + b
        second[i] = a - b


@compiled
def _quad_pass(x: Any, y: Any) -> None:
    """Apply two stages, from four neighbours to quarters."""
    q = x.size // 4
    first, second, third, fourth = y[:q], y[q : 2 * q], y[2 * q : 3 * q], y[3 * q :]
    for i in range(q):
        a, b, c, d = x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]
        a, b = a + b, a - b
        c, d = c + d, c - d
        first[i] = a + c
        second[i] = b + d
        third[i] = a - c
        fourth[i] = b - d


@compiled
def _block(x: Any, other: Any) -> None:
    """Apply all stages of one block of 2 .. BLOCK entries."""
    left = 1
    while left < x.size:
        if left == 1 and (x.size & 0x5555555555555555) == 0:  # an odd number of stages
            _pair_pass(x, other)
            left *= 2
        else:
            _quad_pass(x, other)
            left *= 4
        if left < x.size:
            _quad_pass(other, x)
            left *= 4
        else:
            x[:] = other


@compiled
def _row(x: Any, start: int) -> Any:
    return x[start : start + BLOCK]


@compiled
def _two_rows(a: Any, b: Any) -> None:
    for j in range(a.size):
        p, q = a[j], b[j]
        a[j] = p + q
        b[j] = p - q


@compiled
def _four_rows(a: Any, b: Any, c: Any, d: Any) -> None:
    for j in range(a.size):
        p, q, r, s = a[j], b[j], c[j], d[j]
        p, q = p + q, p - q
        r, s = r + s, r - s
        a[j] = p + r
        b[j] = q + s
        c[j] = p - r
        d[j] = q - s


@compiled
def _eight(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> None:
    for j in range(a.size):
        p, q, r, s = a[j], b[j], c[j], d[j]
        t, u, v, w = e[j], f[j], g[j], h[j]
        p, q = p + q, p - q
        r, s = r + s, r - s
        t, u = t + u, t - u
        v, w = v + w, v - w
        p, r = p + r, p - r
        q, s = q + s, q - s
        t, v = t + v, t - v
        u, w = u + w, u - w
        a[j] = p + t
        b[j] = q + u
        c[j] = r + v
        d[j] = s + w
        e[j] = p - t
        f[j] = q - u
        g[j] = r - v
        h[j] = s - w


@compiled
def late_stages(x: Any, half: int, rows: int, first: int, last: int, ending: Any) -> None:
    """Join ``rows`` (2, 4 or 8) rows of ``half`` entries, for chunks ``first .. last - 1`` of columns."""
    for chunk in range(first, last):
        column = chunk * BLOCK
        s = (column // half) * rows * half + column % half
        if rows == 8:
            a, b, c, d = _row(x, s), _row(x, s + half), _row(x, s + 2 * half), _row(x, s + 3 * half)
            s4 = s + 4 * half
            _eight(a, b, c, d, _row(x, s4), _row(x, s4 + half), _row(x, s4 + 2 * half), _row(x, s4 + 3 * half))
        elif rows == 4:
            _four_rows(_row(x, s), _row(x, s + half), _row(x, s + 2 * half), _row(x, s + 3 * half))
        else:
            _two_rows(_row(x, s), _row(x, s + half))
        for k in range(rows):
            _finish(_row(x, s + k * half), ending, (s + k * half) // BLOCK)


@compiled
def _finish(x: Any, ending: Any, block: int) -> None:
    """Finish the transform of whole blocks from number ``block`` on, or of less than one.

    ``ending`` is (mode, scale, sums). Mode 0: more stages follow. Mode 1: multiply by the scale, a power of two. Mode
    2: divide by it; not by way of a reciprocal, which would round twice. Then sums of squares go to ``sums``, where it
    has room for them.
    """
    mode, scale, sums = ending
    if mode == 1:
        for i in range(x.size):
            x[i] *= scale
    elif mode == 2:
        for i in range(x.size):
            x[i] /= scale
    if mode != 0 and sums.size > 0:
        block_sums(x, 1.0, 2, sums[block : block + (x.size + BLOCK - 1) // BLOCK])


@compiled
def _empty(x: Any) -> bool:
    """Return whether a whole block is zeros, none of them negative."""
    found = np.uint64(0)
    for word in x.view(np.uint64):
        found |= word
    return bool(found == 0)


@compiled
def early_stages(x: Any, size: int, ending: Any, sparse: bool = False) -> None:
    """Apply all stages inside each block of ``size`` <= BLOCK entries that ``x`` is made of.

    ``sparse``: skip blocks of zeros; for public numbers alone, because it shows in the running time.
    """
    other = np.empty(size, x.dtype)
    for at in range(0, x.size, size):
        if not (sparse and size == BLOCK and _empty(x[at : at + size])):
            _block(x[at : at + size], other)
    for at in range(0, x.size, BLOCK):
        _finish(x[at : at + BLOCK], ending, at // BLOCK)


@compiled
def _flip(source: Any, words: Any, target: Any) -> None:
    """Copy numbers, given as bits, with the sign changed where a bit is set: 32 signs per word, the lowest first."""
    full = source.size // 32
    for i in range(full):
        word, x, y = words[i], source[32 * i : 32 * i + 32], target[32 * i : 32 * i + 32]
        for j in range(32):
            y[j] = x[j] ^ (np.uint32(word * TO_TOP[j]) & SIGN)
    for i in range(32 * full, source.size):
        target[i] = source[i] ^ (np.uint32(words[i // 32] * TO_TOP[i % 32]) & SIGN)


@compiled
def _flip_scaled(x: Any, factor: float, words: Any, out: Any) -> None:
    """Write ``factor * x``, a product of doubles rounded once to float32, with signs."""
    for at in range(0, x.size, BLOCK):
        source, target = x[at : at + BLOCK], out[at : at + BLOCK]
        for i in range(target.size):
            target[i] = np.float32(np.float64(source[i]) * factor)
        bits = target.view(np.uint32)
        _flip(bits, words[at // 32 :], bits)


@compiled
def _flip_doubles(x: Any, factor: float, words: Any, out: Any) -> None:
    """Write ``factor * x`` in doubles, with signs."""
    for i in range(x.size):
        value = np.float64(x[i]) * factor
        out[i] = -value if (words[i // 32] >> np.uint32(i % 32)) & np.uint32(1) else value


def flip(x: Any, factor: float, words: Any, out: Any) -> None:
    """Write ``factor * x`` with signs."""
    if out.dtype == np.float64:
        _flip_doubles(x, factor, words, out)
    elif factor == 1.0 and x.dtype == np.float32:
        _flip(x.view(np.uint32), words, out.view(np.uint32))
    else:
        _flip_scaled(x, factor, words, out)
