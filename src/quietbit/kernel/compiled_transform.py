"""Compiled Walsh-Hadamard stages: sums and differences in the reference's order, few visits of memory.

Idea     stage s pairs entries 2^s apart. The first twelve run inside blocks of 4,096 entries as passes of constant
         geometry: every pass reads groups of four neighbours and writes one result to each quarter of a second buffer,
         so that loads and stores are the same plain vector loops whatever the stage, and after all of a block's stages
         the entries are back in their order. The later stages combine eight rows at a time, first inside spans that
         fit the second-level cache. Each number is rounded as often, and in the same order, as in the plain loop over
         stages: results are the reference's, bit for bit.
Symbols  n = the length; half = 2^s; a chunk is 4,096 neighbouring columns of the later stages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quietbit.kernel.jit import compiled

__all__ = ["BLOCK", "LARGEST", "SPAN", "divide", "early_stages", "late_stages", "multiply", "signed_copy"]

BLOCK = 1 << 12  # entries of the first twelve stages, and of a chunk
SPAN = 1 << 18  # entries transformed before the next are touched: 1 MB of float32
LARGEST = 2.0**96  # entries up to this keep every sum of 2^31 of them finite in float32


@compiled
def _pair_pass(x: Any, y: Any) -> None:
    """One stage, from neighbours to halves."""
    half = x.size // 2
    first, second = y[:half], y[half:]
    for i in range(half):
        a, b = x[2 * i], x[2 * i + 1]
        first[i] = a + b
        second[i] = a - b


@compiled
def _quad_pass(x: Any, y: Any) -> None:
    """Two stages, from four neighbours to quarters."""
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
    """All stages of one block of 2 .. BLOCK entries."""
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
def _eight_rows(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> None:
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
def _row(x: Any, start: int) -> Any:
    return x[start : start + BLOCK]


@compiled
def late_stages(x: Any, half: int, rows: int, first: int, last: int) -> None:
    """Join ``rows`` (2, 4 or 8) rows of ``half`` entries, for chunks ``first .. last - 1`` of columns."""
    for chunk in range(first, last):
        column = chunk * BLOCK
        s = (column // half) * rows * half + column % half
        if rows == 8:
            _eight_rows(
                _row(x, s),
                _row(x, s + half),
                _row(x, s + 2 * half),
                _row(x, s + 3 * half),
                _row(x, s + 4 * half),
                _row(x, s + 5 * half),
                _row(x, s + 6 * half),
                _row(x, s + 7 * half),
            )
        elif rows == 4:
            _four_rows(_row(x, s), _row(x, s + half), _row(x, s + 2 * half), _row(x, s + 3 * half))
        else:
            _two_rows(_row(x, s), _row(x, s + half))


@compiled
def early_stages(x: Any) -> None:
    """All stages inside each of the blocks that ``x`` is made of; a shorter ``x`` is one block."""
    other = np.empty(min(BLOCK, x.size), x.dtype)
    for at in range(0, x.size, BLOCK):
        _block(x[at : at + BLOCK], other)


@compiled
def multiply(x: Any, factor: Any) -> None:
    """Every entry times a power of two."""
    for i in range(x.size):
        x[i] *= factor


@compiled
def divide(x: Any, divisor: Any) -> None:
    """Every entry divided; not by way of a reciprocal, which would round twice."""
    for i in range(x.size):
        x[i] /= divisor


@compiled
def signed_copy(x: Any, factor: float, words: Any, out: Any) -> bool:
    """``out = factor * x`` with signs flipped where a bit is set; false if an entry is not finite or above LARGEST.

    ``words`` are 32 signs each, least significant bit first, the first belonging to the first entry.
    """
    fine = True
    full = x.size - x.size % 32
    for block in range(full // 32):
        word = words[block]
        source, target = x[32 * block : 32 * block + 32], out[32 * block : 32 * block + 32]
        for j in range(32):
            value = source[j] * factor
            target[j] = -value if (word >> np.uint32(j)) & np.uint32(1) else value
            fine &= abs(value) <= LARGEST
    for i in range(full, x.size):
        value = x[i] * factor
        out[i] = -value if (words[i // 32] >> np.uint32(i % 32)) & np.uint32(1) else value
        fine &= abs(value) <= LARGEST
    return fine
