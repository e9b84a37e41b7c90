"""Pieces that both passes of the triton kernel share: rows, and codes decided from 16 bits.

Idea     a row is eight neighbouring coordinates; eight tensors with one coordinate each, or one flat tensor of all
         of them, whichever suits. Importing this module needs triton.
Symbols  see `device_tables.py`, which proves the margin ``half``.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["INTERPRETED", "KEY_NAMES", "as_double", "clamp", "decide", "eight", "primaries", "store_bytes"]

KEY_NAMES = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"]
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def clamp(p, low, high):
    """A NaN becomes the low end, as on the GPU; the interpreter's maximum would keep it."""
    if INTERPRETED:
        p = tl.where(p == p, p, low)
    return tl.minimum(tl.maximum(p, low), high)


@triton.jit
def as_double(bits):
    """The float64 number with these bits."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def eight(x0, x1, x2, x3, x4, x5, x6, x7, ROWS: tl.constexpr):
    """Eight tensors, one per coordinate of a row, as one flat tensor of all coordinates."""
    even = tl.join(tl.join(x0, x4), tl.join(x2, x6))
    odd = tl.join(tl.join(x1, x5), tl.join(x3, x7))
    return tl.reshape(tl.join(even, odd), (8 * ROWS,))


@triton.jit
def primaries(w0, w1, w2, w3, ROWS: tl.constexpr):
    """The primary words of all coordinates, from four 32-bit words per row."""
    return eight(
        w0 & 0xFFFF, w0 >> 16, w1 & 0xFFFF, w1 >> 16, w2 & 0xFFFF, w2 >> 16, w3 & 0xFFFF, w3 >> 16, ROWS
    )  # fmt: skip


@triton.jit
def _lower(pair):
    return pair.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _upper(pair):
    return (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _pair(table, code, POWER: tl.constexpr, STEP: tl.constexpr, CELLS: tl.constexpr, SYMBOLS: tl.constexpr):
    """Two coefficients of the threshold in the middle of what is left; the first two steps need no look-up."""
    at = table + POWER * CELLS * SYMBOLS + (SYMBOLS // 2 ** (STEP + 1) - 1)
    if CELLS > 1 or STEP > 1:
        return tl.load(at + code)
    elif STEP == 0:
        return tl.load(at)
    else:
        return tl.where(code > 0, tl.load(at + SYMBOLS // 2), tl.load(at))


@triton.jit
def store_bytes(codes, row, rows, out, BITS: tl.constexpr, EVEN: tl.constexpr):
    """The BITS bytes of each row."""
    here = row < rows
    if BITS == 2:
        tl.store(out.to(tl.pointer_type(tl.uint16)) + row, codes.to(tl.uint16), mask=None if EVEN else here)
    elif BITS == 4:
        tl.store(out.to(tl.pointer_type(tl.uint32)) + row, codes, mask=None if EVEN else here)
    elif BITS == 8:
        tl.store(out.to(tl.pointer_type(tl.uint64)) + row, codes, mask=None if EVEN else here)
    else:
        for byte in tl.static_range(BITS):
            piece = (codes >> (8 * byte)).to(tl.uint8)
            tl.store(out + row * BITS + byte, piece, mask=None if EVEN else here)


@triton.jit
def decide(
    value, primary, double_rate, double_offset, rate, offset, low, high, table, half,
    BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, DOUBLE: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """The code of each value as far as 16 bits tell, by binary search, and whether it is left open.

    The table holds coefficients in pairs, the even power below.
    """
    SYMBOLS: tl.constexpr = 2**BITS
    if DOUBLE:
        p = (value.to(tl.float64) * double_rate + double_offset).to(tl.float32)
    else:
        p = value.to(tl.float32) * rate + offset
    p = clamp(p, low, high) if CELLS > 1 else clamp(p, 0.0, 1.0)
    if CENTRED:
        p = 2.0 * p - 1.0
    start = (primary & 0).to(tl.int32)
    if CELLS > 1:
        cell = p.to(tl.int32)
        p = p - cell.to(tl.float32)
        start = cell * SYMBOLS
    word = (primary | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
    code = start
    open_ = start < 0
    for step in tl.static_range(BITS):
        pair = _pair(table, code, DEGREE // 2, step, CELLS, SYMBOLS)
        v = _upper(pair) * p + _lower(pair)
        for d in tl.static_range(1, DEGREE // 2 + 1):
            pair = _pair(table, code, DEGREE // 2 - d, step, CELLS, SYMBOLS)
            v = v * p + _upper(pair)
            v = v * p + _lower(pair)
        distance = word - v
        code = tl.where(distance > 0, code + SYMBOLS // 2 ** (step + 1), code)
        open_ = open_ | (tl.abs(distance) < half)
        if CELLS > 1:  # NaN marks cells that decide nothing
            open_ = open_ | (distance != distance)
    return code - start, open_
