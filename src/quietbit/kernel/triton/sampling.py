"""Both passes of sampling on the GPU: float32 decisions, then the exact law for open coordinates.

Idea     a row is eight neighbouring coordinates, so its codes are exactly `bits` bytes. A thread
         reads a row with 16-byte loads, decides its eight codes in float32 from 16 primary bits
         each, made in registers, and writes the bytes. A row with a coordinate within the margin is
         listed; `resolve_rows` decides it once more, and settles by the law the coordinates that
         stay open, one coordinate per row at a time. It reads the length of the list from the
         device, so nothing waits for the host; if the list overflowed, every row is done again.
Rotated  a program holds a complete block of 4,096 as eight columns of 512 rows: three stages are
         sums and differences of columns; then other bits of the place become columns, by way of
         shared memory, for the next three.
Law      the functions of `sampler.py` themselves, launched with ``enable_fp_fusion=False``, so that
         they round as on the CPU.
Symbols  w the primary word; V, width, half, f: see `tables.py`. ``numbers`` are nine doubles on the
         device: the gain's four (`sampler.Gain`), the clamp's two ends, rate and offset that take
         an input to a position, and the factor before a rotation. A second look (`norm.py`) adds a
         row's terms in the pass that makes its final codes.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from types import FunctionType
from typing import Any

import triton
import triton.language as tl

from quietbit.kernel import sampler as law
from quietbit.kernel.triton.passes import chacha_words, pair, primary_words

__all__ = ["INTERPRETED", "LIMIT", "resolve_rows", "sample_rows"]

KEY_NAMES = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"]
# Rows times symbols in a tile: few, because the second pass is short and waits for its slowest.
LIMIT = 256
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def clamp(p, low, high):
    """Limit p to [low, high]; a NaN becomes the low end, also in the interpreter."""
    if INTERPRETED:
        p = tl.where(p == p, p, low)
    return tl.minimum(tl.maximum(p, low), high)


@triton.jit
def _position(value, numbers, DOUBLE: tl.constexpr):
    """Return the positions of inputs; ``numbers`` are rate and offset, in float64 and float32."""
    if DOUBLE:
        return (value.to(tl.float64) * numbers[0] + numbers[1]).to(tl.float32)
    else:
        return value.to(tl.float32) * numbers[2] + numbers[3]


@triton.jit
def eight(x0, x1, x2, x3, x4, x5, x6, x7, ROWS: tl.constexpr):
    """Join eight tensors, one per coordinate of a row, into one flat tensor of all coordinates."""
    even = tl.join(tl.join(x0, x4), tl.join(x2, x6))
    odd = tl.join(tl.join(x1, x5), tl.join(x3, x7))
    return tl.reshape(tl.join(even, odd), (8 * ROWS,))


@triton.jit
def primaries(w0, w1, w2, w3, ROWS: tl.constexpr):
    """Return the primary words of all coordinates, from four 32-bit words per row."""
    return eight(
        w0 & 0xFFFF,
        w0 >> 16,
        w1 & 0xFFFF,
        w1 >> 16,
        w2 & 0xFFFF,
        w2 >> 16,
        w3 & 0xFFFF,
        w3 >> 16,
        ROWS,
    )


@triton.jit
def _coefficients(
    table, code, POWER: tl.constexpr, STEP: tl.constexpr, CELLS: tl.constexpr, SYMBOLS: tl.constexpr
):
    """Return two coefficients of the middle threshold that remains at a step of the search.

    With one cell, the first two steps need no look-up.
    """
    at = table + POWER * CELLS * SYMBOLS + (SYMBOLS // 2 ** (STEP + 1) - 1)
    if CELLS > 1 or STEP > 1:
        both = tl.load(at + code)
    elif STEP == 0:
        both = tl.load(at)
    else:
        both = tl.where(code > 0, tl.load(at + SYMBOLS // 2), tl.load(at))
    odd = (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    even = both.to(tl.int32).to(tl.float32, bitcast=True)
    return odd, even


@triton.jit
def store_bytes(codes, row, rows, out, BITS: tl.constexpr):
    """Write the BITS bytes of each row."""
    here = row < rows
    if BITS == 2:
        tl.store(out.to(tl.pointer_type(tl.uint16)) + row, codes.to(tl.uint16), mask=here)
    elif BITS == 4:
        tl.store(out.to(tl.pointer_type(tl.uint32)) + row, codes, mask=here)
    elif BITS == 8:
        tl.store(out.to(tl.pointer_type(tl.uint64)) + row, codes, mask=here)
    else:
        for byte in tl.static_range(BITS):
            tl.store(out + row * BITS + byte, (codes >> (8 * byte)).to(tl.uint8), mask=here)


@triton.jit
def decide(
    value,
    primary,
    numbers,
    low,
    high,
    table,
    half,
    BITS: tl.constexpr,
    DEGREE: tl.constexpr,
    CELLS: tl.constexpr,
    DOUBLE: tl.constexpr,
    CENTRED: tl.constexpr,
):
    """Return each value's code from 16 bits, by binary search, and whether it is left open.

    The table holds coefficients in pairs, the even power below.
    """
    SYMBOLS: tl.constexpr = 2**BITS
    p = _position(value, numbers, DOUBLE)
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
        odd, even = _coefficients(table, code, DEGREE // 2, step, CELLS, SYMBOLS)
        v = odd * p + even
        for d in tl.static_range(1, DEGREE // 2 + 1):
            odd, even = _coefficients(table, code, DEGREE // 2 - d, step, CELLS, SYMBOLS)
            v = (v * p + odd) * p + even
        distance = word - v
        code = tl.where(distance > 0, code + SYMBOLS // 2 ** (step + 1), code)
        open_ = open_ | (tl.abs(distance) < half)
        if CELLS > 1:  # NaN marks cells that decide nothing
            open_ = open_ | (distance != distance)
    return code - start, open_


@triton.jit
def _four(tile, ROWS: tl.constexpr):
    """Return the columns of a [ROWS, 4] tile."""
    even, odd = tl.split(tl.reshape(tile, (ROWS, 2, 2)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def _columns(tile, ROWS: tl.constexpr):
    """Return the columns of a [ROWS, 8] tile."""
    even, odd = tl.split(tl.reshape(tile, (ROWS, 4, 2)))
    x0, x2, x4, x6 = _four(even, ROWS)
    x1, x3, x5, x7 = _four(odd, ROWS)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def _load_row(x, row, here, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the eight coordinates of each row, by loads of WIDTH neighbours (16 bytes)."""
    at = x + row[:, None] * 8 + tl.arange(0, WIDTH)[None, :]
    mask = here[:, None]
    if WIDTH == 8:
        return _columns(tl.load(at, mask=mask, other=0.0), ROWS)
    elif WIDTH == 4:
        left = tl.load(at, mask=mask, other=0.0)
        right = tl.load(at + 4, mask=mask, other=0.0)
        return _four(left, ROWS) + _four(right, ROWS)
    else:
        p = [tl.load(at + 2 * j, mask=mask, other=0.0) for j in (0, 1, 2, 3)]
        return tl.split(p[0]) + tl.split(p[1]) + tl.split(p[2]) + tl.split(p[3])


@triton.jit
def _term(value, LOOK: tl.constexpr):
    """Return what a value adds to the sum of a second look: its absolute value, or its square."""
    wide = value.to(tl.float64)
    return wide * wide if LOOK == 2 else tl.abs(wide)


@triton.jit
def _one_bit_codes(
    values,
    w,
    numbers,
    coefficients,
    width,
    upper_bits,
    DEGREE: tl.constexpr,
    DOUBLE: tl.constexpr,
    CENTRED: tl.constexpr,
):
    """Return one byte of codes per row, and whether one of the row's coordinates is left open.

    The bit pattern of 2^23 + V is 0x4B000000 + V; w gets the same upper bits. The sign of the
    difference is the code, and its unsigned minimum over a row says whether all eight are decided.
    """
    codes = w[0] & 0
    closest = codes + 0xFFFFFFFF
    for j in tl.static_range(7, -1, -1):
        f = clamp(_position(values[j], numbers, DOUBLE), 0.0, 1.0)
        if CENTRED:
            f = 2.0 * f - 1.0
        v = f * coefficients[0] + coefficients[1]
        for k in tl.static_range(2, DEGREE + 1):
            v = v * f + coefficients[k]
        v = v.to(tl.uint32, bitcast=True)
        if j % 2 == 0:
            primary = (w[j // 2] & 0xFFFF) | upper_bits
        else:
            primary = (w[j // 2] >> 16) + upper_bits
        above = primary - v
        closest = tl.minimum(closest, above)
        codes = (codes << 1) | (above >> 31)
    return codes ^ 0xFF, closest <= width


@triton.jit
def _rates(numbers):
    """Return rate and offset that take an input to a position, in float64 and in float32."""
    rate = tl.load(numbers + 6)
    offset = tl.load(numbers + 7)
    return rate, offset, rate.to(tl.float32), offset.to(tl.float32)


@triton.jit
def _three_stages(x0, x1, x2, x3, x4, x5, x6, x7):
    """Take sums and differences of neighbouring columns, then of those two and four apart."""
    x0, x1, x2, x3 = x0 + x1, x0 - x1, x2 + x3, x2 - x3
    x4, x5, x6, x7 = x4 + x5, x4 - x5, x6 + x7, x6 - x7
    x0, x2, x1, x3 = x0 + x2, x0 - x2, x1 + x3, x1 - x3
    x4, x6, x5, x7 = x4 + x6, x4 - x6, x5 + x7, x5 - x7
    return x0 + x4, x1 + x5, x2 + x6, x3 + x7, x0 - x4, x1 - x5, x2 - x6, x3 - x7


@triton.jit
def _turned(x, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    """Make three other bits of the place the columns, and the remaining ones the rows."""
    tile = tl.permute(tl.reshape(eight(*x, 512), (8, 8, 8, 8)), (A, B, C, D))
    return _columns(tl.reshape(tile, (512, 8)), 512)


@triton.jit
def _flip(v, flips, factor, SCALED: tl.constexpr):
    """Multiply by the factor, round once to float32, and flip the sign where the bit is set."""
    if SCALED:
        v = v.to(tl.float64) * factor
    bits = v.to(tl.float32).to(tl.uint32, bitcast=True)
    return (bits ^ (flips << 31)).to(tl.float32, bitcast=True)


@triton.jit
def _rotated_rows(x, signs, row, here, times, WIDTH: tl.constexpr, SCALED: tl.constexpr):
    """Return four groups of 128 rows of a complete block of 4,096, rotated in float32.

    Twelve stages in the order of the reference, three at a time in registers.
    """
    v = _load_row(x, row, here, 512, WIDTH)
    # A byte has the signs of a row.
    flips = tl.load(signs.to(tl.pointer_type(tl.uint8)) + row).to(tl.uint32)
    v = [_flip(v[j], flips >> j, times, SCALED) for j in (0, 1, 2, 3, 4, 5, 6, 7)]
    # The order of the place's bits before each turn, and which of them become columns.
    v = _turned(_three_stages(*v), 0, 1, 3, 2)  # 9-11, 6-8, 3-5, 0-2: 3-5 become columns
    v = _turned(_three_stages(*v), 0, 3, 2, 1)  # 9-11, 6-8, 0-2, 3-5: 6-8 become columns
    v = _turned(_three_stages(*v), 3, 1, 2, 0)  # 9-11, 3-5, 0-2, 6-8: 9-11 become columns
    v = _turned(_three_stages(*v), 3, 0, 1, 2)  # 6-8, 3-5, 0-2, 9-11: all in order again
    # Times 1/64, exactly; four groups of 128 neighbours.
    g = [_four(tl.permute(tl.reshape(column * 0.015625, (4, 128)), (1, 0)), 128) for column in v]
    return [
        (g[0][k], g[1][k], g[2][k], g[3][k], g[4][k], g[5][k], g[6][k], g[7][k])
        for k in (0, 1, 2, 3)
    ]


@triton.jit(do_not_specialize=[*KEY_NAMES, "pattern"])
def sample_rows(
    x,
    signs,
    out,
    words,
    k0,
    k1,
    k2,
    k3,
    k4,
    k5,
    k6,
    k7,
    kept,
    listed,
    found,
    capacity,
    rows,
    skip,
    numbers_at,
    coefficients,
    width,
    pattern,
    low,
    high,
    table,
    half,
    BITS: tl.constexpr,
    DEGREE: tl.constexpr,
    CELLS: tl.constexpr,
    GIVEN: tl.constexpr,
    DOUBLE: tl.constexpr,
    CENTRED: tl.constexpr,
    LOOK: tl.constexpr,
    SECOND: tl.constexpr,
    WIDTH: tl.constexpr,
    SCALED: tl.constexpr,
    ONE: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """Decide the codes of four rows per thread, 128 apart, in float32; list the rows left open.

    ONE: one bit by its polynomial, else BITS bits by binary search among the thresholds. ROTATED:
    a program rotates and samples a block of 4,096; ``kept`` then receives the values of listed
    rows. ``found`` receives the number of listed rows, SECOND sums of the second pass, and each
    program's sum of this one.
    """
    key = [part.to(tl.uint32) for part in (k0, k1, k2, k3, k4, k5, k6, k7)]
    numbers = _rates(numbers_at)
    # 0x4B000000, as an argument because two constants do not fit one instruction.
    upper_bits = pattern.to(tl.uint32)
    tile = tl.program_id(0).to(tl.int64) + skip // 512
    kind: tl.constexpr = tl.uint32 if BITS <= 4 else tl.uint64
    row_0 = tile * 512 + tl.arange(0, 128)
    # All loads come before the first store, so that they are in flight together.
    if ROTATED:
        all_rows = tile * 512 + tl.arange(0, 512)
        times = tl.load(numbers_at + 8)
        values = _rotated_rows(x, signs, all_rows, all_rows < rows, times, WIDTH, SCALED)
    elif ONE:
        at = row_0 - skip
        values = [_load_row(x, at + g, row_0 + g < rows, 128, WIDTH) for g in (0, 128, 256, 384)]
    if not GIVEN:
        f = chacha_words(tile * 128 + tl.arange(0, 128), 0, key, 12)  # sixteen words for four rows
    looked = (row_0 & 0).to(tl.float64)
    for group in tl.static_range(4):
        row = row_0 + group * 128
        here = row < rows
        if GIVEN:
            four = words + row[:, None] * 4 + tl.arange(0, 4)[None, :]
            w = _four(tl.load(four, mask=here[:, None], other=0).to(tl.uint32), 128)
        else:
            w = (f[4 * group], f[4 * group + 1], f[4 * group + 2], f[4 * group + 3])
        if ONE:
            v = values[group]
            codes, open_ = _one_bit_codes(
                v, w, numbers, coefficients, width, upper_bits, DEGREE, DOUBLE, CENTRED
            )
        else:
            index = (tile * 512 + group * 128) * 8 + tl.arange(0, 1024)
            v = tl.load(x + (index - skip * 8), mask=index < rows * 8, other=0.0)
            code, left = decide(
                v,
                primaries(*w, 128),
                numbers,
                low,
                high,
                table,
                half,
                BITS,
                DEGREE,
                CELLS,
                DOUBLE,
                CENTRED,
            )
            place = tl.arange(0, 8)[None, :].to(kind) * BITS
            codes = tl.sum(tl.reshape(code.to(kind), (128, 8)) << place, axis=1)
            open_ = tl.max(tl.reshape(left.to(tl.int32), (128, 8)), axis=1) > 0
        store_bytes(codes, row, rows, out, BITS)
        open_ = open_ & here
        # Rows beyond the end of the list are counted, which makes the next pass redo everything.
        counter = found.to(tl.pointer_type(tl.int32)) + (row & 0)
        slot = tl.atomic_add(counter, 1, mask=open_, sem="relaxed")
        fits = open_ & (slot < capacity)
        tl.store(listed + slot, row, mask=fits)
        if ROTATED:
            for j in tl.static_range(8):
                tl.store(kept + slot.to(tl.int64) * 8 + j, v[j], mask=fits)
        if LOOK > 0:
            if ONE:
                terms = (row & 0).to(tl.float64)
                for j in tl.static_range(8):
                    terms += _term(v[j], LOOK)
            else:
                terms = tl.sum(tl.reshape(_term(v, LOOK), (128, 8)), axis=1)
            looked += tl.where(open_, 0.0, terms)
    if LOOK > 0:
        tl.store(found + (1 + SECOND) + tl.program_id(0), tl.sum(looked, axis=0))


# Triton evaluates annotations and accepts only constants there; interpreted functions read plain
# numbers.
_names: dict[str, Any] = {"Any": tl.constexpr(None), "tl": tl, "__name__": __name__}
_constant = float if INTERPRETED.value else tl.constexpr
_names |= {name: _constant(value) for name, value in vars(law).items() if isinstance(value, float)}
FLOOR = _names["FLOOR"]
CEILING = _names["CEILING"]


def _ported(function: Any) -> Any:
    """Compile a function of the law for the GPU, with its constants and callees."""
    copy = FunctionType(function.__code__, _names, function.__name__)
    copy.__module__ = __name__
    _names[function.__name__] = triton.jit(copy)
    return _names[function.__name__]


two_sum, two_product, shift, log_weight, reduce_exponent, exponential = map(_ported, law.LAW)


@triton.jit
def _segment(t, t_low, knots, tails, levels):
    last = levels - 2
    index = tl.floor((t + 0.5) * (levels - 1).to(tl.float64)).to(tl.int32)
    index = tl.minimum(tl.maximum(index, 0), last)
    below = ((t - tl.load(knots + index)) + (t_low - tl.load(tails + index))) < 0
    above = ((t - tl.load(knots + index + 1)) + (t_low - tl.load(tails + index + 1))) >= 0
    index = index - below.to(tl.int32) + above.to(tl.int32)
    return tl.minimum(tl.maximum(index, 0), last)


@triton.jit
def _prefix_sums(sums, COUNT: tl.constexpr, SYMBOLS: tl.constexpr, BITS: tl.constexpr):
    """Add up in Sklansky's order: the last sum of a left half is added to its right half."""
    for level in tl.static_range(BITS):
        view = tl.reshape(sums, (COUNT, SYMBOLS // 2 ** (level + 1), 2, 2**level))
        left, right = tl.split(tl.permute(view, (0, 1, 3, 2)))
        place = tl.arange(0, 2**level)[None, None, :]
        # One term and zeros: whatever the order, the sum is that term.
        last = tl.sum(tl.where(place == 2**level - 1, left, 0.0), axis=2)[:, :, None]
        view = tl.permute(tl.join(left, right + last), (0, 1, 3, 2))
        sums = tl.reshape(view, (COUNT, SYMBOLS))
    return sums


@triton.jit
def exact_codes(
    values,
    first,
    second,
    numbers,
    knots,
    tails,
    levels,
    tables,
    COUNT: tl.constexpr,
    BITS: tl.constexpr,
):
    """Compute the exact code of each value (float64) from its primary and tie words (int64)."""
    SYMBOLS: tl.constexpr = 2**BITS
    scaled = values * numbers[0] * numbers[1]
    scaled = tl.where(scaled > -CEILING, scaled, -CEILING)
    scaled = tl.where(scaled < CEILING, scaled, CEILING)
    t, t_low = shift(scaled, numbers[2], numbers[3])
    low = numbers[4]
    high = numbers[5]
    below = ((t - low) + t_low) < 0
    above = ((t - high) + t_low) > 0
    t_low = tl.where(below | above, 0.0, t_low)
    t = tl.where(below, low, tl.where(above, high, t))
    segment = _segment(t, t_low, knots, tails, levels)
    symbol = tl.arange(0, SYMBOLS)[None, :]
    at = tables + segment[:, None] * SYMBOLS + symbol
    size = (levels - 1) * SYMBOLS
    base = tl.load(at)
    base_tail = tl.load(at + size)
    slope = tl.load(at + 2 * size)
    slope_tail = tl.load(at + 3 * size)
    total, tail = log_weight(base, base_tail, slope, slope_tail, t[:, None], t_low[:, None])
    difference, lost = two_sum(total, -tl.max(total, axis=1)[:, None])
    difference = tl.where(difference > FLOOR, difference, FLOOR)
    exponent, remainder = reduce_exponent(difference, tail + lost)
    power = ((exponent.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    sums = _prefix_sums(exponential(remainder) * power, COUNT, SYMBOLS, BITS)
    whole = tl.sum(tl.where(symbol == SYMBOLS - 1, sums, 0.0), axis=1)[:, None]
    scaled_up = sums / whole * 65536.0
    upper = tl.floor(scaled_up)
    lower = tl.floor((scaled_up - upper) * 281474976710656.0).to(tl.int64)
    top = upper.to(tl.int64)
    tied = (first[:, None] == top) & (second[:, None] >= lower)
    reached = (first[:, None] > top) | tied
    return tl.sum((reached & (symbol < SYMBOLS - 1)).to(tl.int32), axis=1)


@triton.jit(do_not_specialize=KEY_NAMES)
def resolve_rows(
    x,
    out,
    words,
    ties,
    k0,
    k1,
    k2,
    k3,
    k4,
    k5,
    k6,
    k7,
    listed,
    sums,
    capacity,
    dimension,
    rows,
    skip,
    numbers_at,
    knots,
    tails,
    levels,
    tables,
    trust,
    low,
    high,
    table,
    half,
    BITS: tl.constexpr,
    GIVEN: tl.constexpr,
    ROWS: tl.constexpr,
    DEGREE: tl.constexpr,
    CELLS: tl.constexpr,
    DOUBLE: tl.constexpr,
    CENTRED: tl.constexpr,
    LOOK: tl.constexpr,
    KEPT: tl.constexpr,
    SECOND: tl.constexpr,
):
    """Write the exact codes of the listed rows and of a last, incomplete one.

    If the list overflowed, write those of all rows. GIVEN: ``ties`` has eight words for each of
    these rows. KEPT: ``x`` has the values of the listed rows only, eight each; the caller must then
    check for an overflow.
    """
    key = [part.to(tl.uint32) for part in (k0, k1, k2, k3, k4, k5, k6, k7)]
    rates = _rates(numbers_at)
    numbers = [tl.load(numbers_at + number) for number in (0, 1, 2, 3, 4, 5)]
    looked = (tl.arange(0, ROWS) & 0).to(tl.float64)
    found = tl.load(sums.to(tl.pointer_type(tl.int32)))
    everything = found > capacity
    all_rows = (dimension + 7) // 8
    if KEPT:
        total = tl.minimum(found, capacity).to(tl.int64)
    else:
        total = tl.where(everything, all_rows - skip, found + (all_rows - rows)).to(tl.int64)
    place = tl.arange(0, 8)[None, :].to(tl.int64)
    first_item = tl.program_id(0).to(tl.int64) * ROWS
    while first_item < total:
        item = first_item + tl.arange(0, ROWS).to(tl.int64)
        here = item < total
        in_list = (item < found) & (item * 0 + found <= capacity)
        row = tl.load(listed + item, mask=here & in_list, other=0)
        if not KEPT:
            row = tl.where(everything, skip + item, tl.where(item < found, row, rows))
        row = tl.where(here, row, skip)
        w = primary_words(row, words, key, GIVEN)
        index = row[:, None] * 8 + place
        inside = here[:, None] & (index < dimension)
        if GIVEN:
            ties_here = tl.load(ties + item[:, None] * 8 + place, mask=inside, other=0)
        else:
            v = chacha_words(row, 1, key, 12)
            pairs = [pair(v[2 * j], v[2 * j + 1]) for j in (0, 1, 2, 3, 4, 5, 6, 7)]
            flat = eight(*pairs, ROWS)
            ties_here = tl.reshape(flat, (ROWS, 8)) & 0xFFFFFFFFFFFF
        words_here = tl.reshape(primaries(*w, ROWS), (ROWS, 8))
        source = item[:, None] * 8 + place if KEPT else index - skip * 8
        values = tl.load(x + source, mask=inside, other=0.0)
        if LOOK > 0:
            looked += tl.sum(_term(values, LOOK), axis=1)
        codes, open_ = decide(
            values, words_here, rates, low, high, table, half, BITS, DEGREE, CELLS, DOUBLE, CENTRED
        )
        open_ = ((open_ | (trust == 0)) & inside).to(tl.int32)
        while tl.max(tl.max(open_, axis=1), axis=0) > 0:
            # The first open coordinate of each row, alone in its row: sums over a row pick it.
            at = tl.min(tl.where(open_ > 0, place, 8), axis=1)[:, None]
            chosen = place == at
            value = tl.sum(tl.where(chosen, values.to(tl.float64), 0.0), axis=1)
            first = tl.sum(tl.where(chosen, words_here.to(tl.int64), 0), axis=1)
            second = tl.sum(tl.where(chosen, ties_here, 0), axis=1)
            exact = exact_codes(
                value, first, second, numbers, knots, tails, levels, tables, ROWS, BITS
            )
            codes = tl.where(chosen, exact[:, None], codes)
            open_ = tl.where(chosen, 0, open_)
        codes = tl.where(inside, codes, 0).to(tl.int64)
        packed = tl.sum(codes << (BITS * place), axis=1)
        for byte in tl.static_range(BITS):
            used = here & ((row * 8 * BITS + 8 * byte) < dimension * BITS)
            tl.store(out + row * BITS + byte, (packed >> (8 * byte)).to(tl.uint8), mask=used)
        first_item += tl.num_programs(0).to(tl.int64) * ROWS
    if LOOK > 0:
        tl.store(sums + 1 + tl.program_id(0), tl.sum(looked, axis=0))
