"""Sampling on the GPU: one read of the input, one write of packed codes, words made in registers.

Idea     a row is eight neighbouring coordinates, so its codes are `bits` whole bytes. A thread reads a row with
         16-byte loads, decides its eight codes in float32 from 16 primary bits each, and writes the bytes. A row
         with a coordinate that comes within the margin is put on a list, which `triton_law.resolve_rows` walks
         afterwards; nothing waits for the host. Importing this module needs triton.
Symbols  w the primary word; V, width, half, f: see `device_tables.py`, which also proves that what is decided
         here is what the exact law decides.

One bit. V is computed with 2^23 added to the polynomial's constant, so its bit pattern is 0x4B000000 + V; w is
given the same upper bits. The sign of the patterns' difference is the code, and the unsigned minimum over a row
says whether all eight are decided.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from quietbit.kernel.triton_random import chacha_words, philox_words
from quietbit.kernel.triton_rows import KEY_NAMES, as_double, clamp, decide, primaries, store_bytes

__all__ = ["sample_one_bit", "sample_thresholds"]

UNCHANGING = ["rate_bits", "offset_bits", "pattern"]  # float64 numbers travel as whole numbers with the same bits


@triton.jit
def _halves(tile, LANES: tl.constexpr, WIDTH: tl.constexpr):
    """A [LANES, 2 WIDTH] tile as its even and odd columns."""
    return tl.split(tl.reshape(tile, (LANES, WIDTH, 2)))


@triton.jit
def _load_row(x, row, rows, LANES: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """The eight coordinates of each row, by loads of WIDTH neighbours (16 bytes)."""
    at = x + row[:, None] * 8 + tl.arange(0, WIDTH)[None, :]
    here = (row < rows)[:, None]
    if x.dtype.element_ty == tl.bfloat16:
        # A bfloat16 is the upper half of a float32: taken from 32-bit words, each costs one instruction.
        words = x.to(tl.pointer_type(tl.int32)) + row[:, None] * 4 + tl.arange(0, 4)[None, :]
        tile = tl.load(words) if EVEN else tl.load(words, mask=here, other=0)
        left, right = (tile << 16).to(tl.float32, bitcast=True), (tile & -65536).to(tl.float32, bitcast=True)
        even, odd = _halves(left, LANES, 2)
        x0, x4 = tl.split(even)
        x2, x6 = tl.split(odd)
        even, odd = _halves(right, LANES, 2)
        x1, x5 = tl.split(even)
        x3, x7 = tl.split(odd)
        return x0, x1, x2, x3, x4, x5, x6, x7
    elif WIDTH == 8:
        tile = tl.load(at) if EVEN else tl.load(at, mask=here, other=0.0)
        even, odd = _halves(tile, LANES, 4)
        e0, e1 = _halves(even, LANES, 2)
        o0, o1 = _halves(odd, LANES, 2)
        x0, x4 = tl.split(e0)
        x2, x6 = tl.split(e1)
        x1, x5 = tl.split(o0)
        x3, x7 = tl.split(o1)
        return x0, x1, x2, x3, x4, x5, x6, x7
    elif WIDTH == 4:
        left = tl.load(at) if EVEN else tl.load(at, mask=here, other=0.0)
        right = tl.load(at + 4) if EVEN else tl.load(at + 4, mask=here, other=0.0)
        even, odd = _halves(left, LANES, 2)
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        even, odd = _halves(right, LANES, 2)
        x4, x6 = tl.split(even)
        x5, x7 = tl.split(odd)
        return x0, x1, x2, x3, x4, x5, x6, x7
    else:
        p = tl.load(at) if EVEN else tl.load(at, mask=here, other=0.0)
        q = tl.load(at + 2) if EVEN else tl.load(at + 2, mask=here, other=0.0)
        r = tl.load(at + 4) if EVEN else tl.load(at + 4, mask=here, other=0.0)
        s = tl.load(at + 6) if EVEN else tl.load(at + 6, mask=here, other=0.0)
        x0, x1 = tl.split(p)
        x2, x3 = tl.split(q)
        x4, x5 = tl.split(r)
        x6, x7 = tl.split(s)
        return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def _load_words(words, row, rows, LANES: tl.constexpr, EVEN: tl.constexpr):
    """Given primary words, two to a 32-bit word."""
    at = words + row[:, None] * 4 + tl.arange(0, 4)[None, :]
    tile = tl.load(at) if EVEN else tl.load(at, mask=(row < rows)[:, None], other=0)
    even, odd = _halves(tile.to(tl.uint32), LANES, 2)
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@triton.jit
def _list_open(open_, row, listed, count, capacity):
    """Append rows to the list; those beyond its end are counted, which makes the next pass redo everything."""
    place = tl.atomic_add(count + (row & 0), 1, mask=open_, sem="relaxed")
    tl.store(listed + place, row, mask=open_ & (place < capacity))


@triton.jit
def _one_bit_row(
    values, w, row, rows, out, listed, count, capacity,
    double_rate, double_offset, rate, offset, coefficients, width, upper_bits,
    DEGREE: tl.constexpr, EVEN: tl.constexpr, DOUBLE: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    codes = (row & 0).to(tl.uint32)
    closest = codes + 0xFFFFFFFF
    for j in tl.static_range(7, -1, -1):
        if DOUBLE:
            f = (values[j].to(tl.float64) * double_rate + double_offset).to(tl.float32)
        else:
            f = values[j].to(tl.float32) * rate + offset
        f = clamp(f, 0.0, 1.0)
        if CENTRED:
            f = 2.0 * f - 1.0
        v = f * coefficients[0] + coefficients[1]
        for k in tl.static_range(2, DEGREE + 1):
            v = v * f + coefficients[k]
        v = v.to(tl.uint32, bitcast=True)
        primary = ((w[j // 2] & 0xFFFF) | upper_bits) if j % 2 == 0 else ((w[j // 2] >> 16) + upper_bits)
        above = primary - v
        closest = tl.minimum(closest, above)
        codes = (codes << 1) | (above >> 31)
    here = row < rows
    open_ = closest <= width
    byte = (codes ^ 0xFF).to(tl.uint8)
    if EVEN:
        tl.store(out + row, byte)
    else:
        tl.store(out + row, byte, mask=here)
        open_ = open_ & here
    _list_open(open_, row, listed, count, capacity)


@triton.jit(do_not_specialize=KEY_NAMES + UNCHANGING)
def sample_one_bit(
    x, out, words, k0, k1, k2, k3, k4, k5, k6, k7,
    listed, count, capacity, rows,
    rate_bits, offset_bits, rate, offset, coefficients, width, pattern,
    DEGREE: tl.constexpr, GENERATOR: tl.constexpr, GROUPS: tl.constexpr, LANES: tl.constexpr,
    WIDTH: tl.constexpr, EVEN: tl.constexpr, DOUBLE: tl.constexpr,
    CENTRED: tl.constexpr,
):  # fmt: skip
    """One bit per coordinate; GROUPS rows per thread, LANES apart."""
    key = (k0.to(tl.uint32), k1.to(tl.uint32), k2.to(tl.uint32), k3.to(tl.uint32),
           k4.to(tl.uint32), k5.to(tl.uint32), k6.to(tl.uint32), k7.to(tl.uint32))  # fmt: skip
    double_rate, double_offset = as_double(rate_bits), as_double(offset_bits)
    upper_bits = pattern.to(tl.uint32)  # 0x4B000000, as an argument: two constants do not fit one instruction
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    row_0 = program * (LANES * GROUPS) + lane
    # All loads come before the first store, so that they are in flight together.
    x_0 = _load_row(x, row_0, rows, LANES, WIDTH, EVEN)
    x_1 = _load_row(x, row_0 + LANES, rows, LANES, WIDTH, EVEN) if GROUPS > 1 else x_0
    x_2 = _load_row(x, row_0 + 2 * LANES, rows, LANES, WIDTH, EVEN) if GROUPS > 2 else x_0
    x_3 = _load_row(x, row_0 + 3 * LANES, rows, LANES, WIDTH, EVEN) if GROUPS > 2 else x_0
    if GENERATOR == 2:
        f = chacha_words(program * LANES + lane, 0, key, 12)
    else:
        f = (lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane)
    for group in tl.static_range(GROUPS):
        row = row_0 + group * LANES
        if GENERATOR == 0:
            w = _load_words(words, row, rows, LANES, EVEN)
        elif GENERATOR != 2:
            w = philox_words(row, 0, key, 7 if GENERATOR == 3 else 10)
        else:
            w = (f[4 * group], f[4 * group + 1], f[4 * group + 2], f[4 * group + 3])
        if group == 0:
            values = x_0
        elif group == 1:
            values = x_1
        elif group == 2:
            values = x_2
        else:
            values = x_3
        _one_bit_row(values, w, row, rows, out, listed, count, capacity, double_rate, double_offset, rate, offset,
                     coefficients, width, upper_bits, DEGREE, EVEN, DOUBLE, CENTRED)  # fmt: skip


@triton.jit
def _thresholds_rows(
    x, w, row_0, rows, out, listed, count, capacity, double_rate, double_offset, rate, offset, low, high, table, half,
    BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, LANES: tl.constexpr, EVEN: tl.constexpr,
    DOUBLE: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    row = row_0 + tl.arange(0, LANES)
    index = row_0 * 8 + tl.arange(0, 8 * LANES)
    value = tl.load(x + index) if EVEN else tl.load(x + index, mask=index < rows * 8, other=0.0)
    primary = primaries(w[0], w[1], w[2], w[3], LANES)
    code, open_ = decide(value, primary, double_rate, double_offset, rate, offset, low, high, table, half,
                         BITS, DEGREE, CELLS, DOUBLE, CENTRED)  # fmt: skip
    kind: tl.constexpr = tl.uint32 if BITS <= 4 else tl.uint64
    place = tl.arange(0, 8)[None, :].to(kind) * BITS
    codes = tl.sum(tl.reshape(code.to(kind), (LANES, 8)) << place, axis=1)
    marked = tl.max(tl.reshape(open_.to(tl.int32), (LANES, 8)), axis=1) > 0
    store_bytes(codes, row, rows, out, BITS, EVEN)
    if not EVEN:
        marked = marked & (row < rows)
    _list_open(marked, row, listed, count, capacity)


@triton.jit(do_not_specialize=KEY_NAMES + UNCHANGING)
def sample_thresholds(
    x, out, words, k0, k1, k2, k3, k4, k5, k6, k7,
    listed, count, capacity, rows,
    rate_bits, offset_bits, rate, offset, low, high, table, half,
    BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, GENERATOR: tl.constexpr,
    GROUPS: tl.constexpr, LANES: tl.constexpr, EVEN: tl.constexpr, DOUBLE: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """BITS bits per coordinate, by binary search among the thresholds."""
    key = (k0.to(tl.uint32), k1.to(tl.uint32), k2.to(tl.uint32), k3.to(tl.uint32),
           k4.to(tl.uint32), k5.to(tl.uint32), k6.to(tl.uint32), k7.to(tl.uint32))  # fmt: skip
    double_rate, double_offset = as_double(rate_bits), as_double(offset_bits)
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    if GENERATOR == 2:
        f = chacha_words(program * LANES + lane, 0, key, 12)
    else:
        f = (lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane)
    for group in tl.static_range(GROUPS):
        row_0 = (program * GROUPS + group) * LANES
        if GENERATOR == 0:
            w = _load_words(words, row_0 + lane, rows, LANES, EVEN)
        elif GENERATOR != 2:
            w = philox_words(row_0 + lane, 0, key, 7 if GENERATOR == 3 else 10)
        else:
            w = (f[4 * group], f[4 * group + 1], f[4 * group + 2], f[4 * group + 3])
        _thresholds_rows(x, w, row_0, rows, out, listed, count, capacity, double_rate, double_offset, rate, offset,
                         low, high, table, half, BITS, DEGREE, CELLS, LANES, EVEN, DOUBLE, CENTRED)  # fmt: skip
