"""Both passes of sampling on the GPU: float32 decisions for all, the exact law for what they leave open.

Idea     a row is eight neighbouring coordinates, so its codes are `bits` whole bytes. A thread reads a row with
         16-byte loads, decides its eight codes in float32 from 16 primary bits each, and writes the bytes; words
         are made in registers. A row with a coordinate that comes within the margin is put on a list, which
         `resolve_rows` walks afterwards: it decides a listed row once more, and settles what stays open in it by
         the law, one coordinate per row at a time: one round for nearly all. That pass reads how much there is to
         do from the device: nothing waits for the host, and a list that overflowed means that every row is done
         again.
Law      the functions of `law.py`, operator by operator, handed to triton instead of written again. `resolve_rows`
         is launched with ``enable_fp_fusion=False``, so that products and sums round apart as in the reference.
Symbols  w the primary word; V, width, half, f: see `tables.py`, which also proves that what is decided here is what
         the exact law decides; law: as in `sampler.py`.

One bit. V is computed with 2^23 added to the polynomial's constant, so its bit pattern is 0x4B000000 + V; w is
given the same upper bits. The sign of the patterns' difference is the code, and the unsigned minimum over a row
says whether all eight are decided.

``numbers`` are eight doubles on the device: the gain's four (`law.Gain`), the clamp's two ends, and rate and offset
that take an input to a position (`tables.py`). A second look (`norm.py`): a row's terms are added where its codes are
made from registers, that is in the first pass unless it is listed, else in the second. Importing this module needs
triton.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from types import FunctionType
from typing import Any

import triton
import triton.language as tl

from quietbit.kernel import law
from quietbit.kernel.triton_rng import chacha_words, philox_words, primary_words, tie_words

__all__ = [
    "INTERPRETED",
    "LIMIT",
    "as_double",
    "clamp",
    "coefficient_pair",
    "exact_codes",
    "lower_float",
    "resolve_rows",
    "sample_one_bit",
    "sample_thresholds",
    "two_product",
    "two_sum",
    "upper_float",
]

KEY_NAMES = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"]
UNCHANGING = [*KEY_NAMES, "pattern"]
LIMIT = 256  # rows times symbols in a tile: few, because the pass is short and waits for its slowest
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
def lower_float(pair):
    """The lower half of 64 bits as a float32."""
    return pair.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def upper_float(pair):
    """The upper half of 64 bits as a float32."""
    return (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def coefficient_pair(table, code, POWER: tl.constexpr, STEP: tl.constexpr, CELLS: tl.constexpr, SYMBOLS: tl.constexpr):
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
        pair = coefficient_pair(table, code, DEGREE // 2, step, CELLS, SYMBOLS)
        v = upper_float(pair) * p + lower_float(pair)
        for d in tl.static_range(1, DEGREE // 2 + 1):
            pair = coefficient_pair(table, code, DEGREE // 2 - d, step, CELLS, SYMBOLS)
            v = v * p + upper_float(pair)
            v = v * p + lower_float(pair)
        distance = word - v
        code = tl.where(distance > 0, code + SYMBOLS // 2 ** (step + 1), code)
        open_ = open_ | (tl.abs(distance) < half)
        if CELLS > 1:  # NaN marks cells that decide nothing
            open_ = open_ | (distance != distance)
    return code - start, open_


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
def _term(value, LOOK: tl.constexpr):
    """What a value adds to the sum of a second look: its absolute value, or its square."""
    wide = value.to(tl.float64)
    return wide * wide if LOOK == 2 else tl.abs(wide)


@triton.jit
def _one_bit_row(
    values, w, row, rows, out, listed, count, capacity,
    double_rate, double_offset, rate, offset, coefficients, width, upper_bits,
    DEGREE: tl.constexpr, EVEN: tl.constexpr, DOUBLE: tl.constexpr, CENTRED: tl.constexpr, LOOK: tl.constexpr,
):  # fmt: skip
    """Codes of one row per thread; what the rows that are not listed add to a second look."""
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
    looked = (row & 0).to(tl.float64)
    if LOOK > 0:
        for j in tl.static_range(8):
            looked += _term(values[j], LOOK)
        looked = tl.where(open_, 0.0, looked)
    return looked


@triton.jit(do_not_specialize=UNCHANGING)
def sample_one_bit(
    x, out, words, k0, k1, k2, k3, k4, k5, k6, k7,
    listed, count, capacity, rows, numbers, looks, coefficients, width, pattern,
    DEGREE: tl.constexpr, GENERATOR: tl.constexpr, GROUPS: tl.constexpr, LANES: tl.constexpr,
    WIDTH: tl.constexpr, EVEN: tl.constexpr, DOUBLE: tl.constexpr, CENTRED: tl.constexpr, LOOK: tl.constexpr,
):  # fmt: skip
    """One bit per coordinate; GROUPS rows per thread, LANES apart. ``looks`` gets each program's sum."""
    key = (k0.to(tl.uint32), k1.to(tl.uint32), k2.to(tl.uint32), k3.to(tl.uint32),
           k4.to(tl.uint32), k5.to(tl.uint32), k6.to(tl.uint32), k7.to(tl.uint32))  # fmt: skip
    double_rate, double_offset = tl.load(numbers + 6), tl.load(numbers + 7)
    rate, offset = double_rate.to(tl.float32), double_offset.to(tl.float32)
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
    looked = (lane & 0).to(tl.float64)
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
        looked += _one_bit_row(
            values, w, row, rows, out, listed, count, capacity, double_rate, double_offset, rate, offset,
            coefficients, width, upper_bits, DEGREE, EVEN, DOUBLE, CENTRED, LOOK,
        )  # fmt: skip
    if LOOK > 0:
        tl.store(looks + program, tl.sum(looked, axis=0))


@triton.jit
def _thresholds_rows(
    x, w, row_0, rows, out, listed, count, capacity, double_rate, double_offset, rate, offset, low, high, table, half,
    BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, LANES: tl.constexpr, EVEN: tl.constexpr,
    DOUBLE: tl.constexpr, CENTRED: tl.constexpr, LOOK: tl.constexpr,
):  # fmt: skip
    """Codes of LANES rows; what the rows that are not listed add to a second look."""
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
    looked = (row & 0).to(tl.float64)
    if LOOK > 0:
        looked = tl.where(marked, 0.0, tl.sum(tl.reshape(_term(value, LOOK), (LANES, 8)), axis=1))
    return looked


@triton.jit(do_not_specialize=UNCHANGING)
def sample_thresholds(
    x, out, words, k0, k1, k2, k3, k4, k5, k6, k7,
    listed, count, capacity, rows, numbers, looks, low, high, table, half,
    BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, GENERATOR: tl.constexpr, GROUPS: tl.constexpr,
    LANES: tl.constexpr, EVEN: tl.constexpr, DOUBLE: tl.constexpr, CENTRED: tl.constexpr, LOOK: tl.constexpr,
):  # fmt: skip
    """BITS bits per coordinate, by binary search among the thresholds."""
    key = (k0.to(tl.uint32), k1.to(tl.uint32), k2.to(tl.uint32), k3.to(tl.uint32),
           k4.to(tl.uint32), k5.to(tl.uint32), k6.to(tl.uint32), k7.to(tl.uint32))  # fmt: skip
    double_rate, double_offset = tl.load(numbers + 6), tl.load(numbers + 7)
    rate, offset = double_rate.to(tl.float32), double_offset.to(tl.float32)
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    if GENERATOR == 2:
        f = chacha_words(program * LANES + lane, 0, key, 12)
    else:
        f = (lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane, lane)
    looked = (lane & 0).to(tl.float64)
    for group in tl.static_range(GROUPS):
        row_0 = (program * GROUPS + group) * LANES
        if GENERATOR == 0:
            w = _load_words(words, row_0 + lane, rows, LANES, EVEN)
        elif GENERATOR != 2:
            w = philox_words(row_0 + lane, 0, key, 7 if GENERATOR == 3 else 10)
        else:
            w = (f[4 * group], f[4 * group + 1], f[4 * group + 2], f[4 * group + 3])
        looked += _thresholds_rows(
            x, w, row_0, rows, out, listed, count, capacity, double_rate, double_offset, rate, offset,
            low, high, table, half, BITS, DEGREE, CELLS, LANES, EVEN, DOUBLE, CENTRED, LOOK,
        )  # fmt: skip
    if LOOK > 0:
        tl.store(looks + program, tl.sum(looked, axis=0))


def _constant(value: float) -> Any:
    """A number that compiled and interpreted functions may both read from their module."""
    return value if INTERPRETED.value else tl.constexpr(value)


_numbers = {name: _constant(value) for name, value in vars(law).items() if isinstance(value, float)}
# Triton looks at annotations, and only accepts constants there.
_names: dict[str, Any] = {**_numbers, "Any": tl.constexpr(None), "tl": tl, "__name__": __name__}


def _ported(function: Any) -> Any:
    """A function of `law.py`, compiled for the GPU with its constants and callees."""
    copy = FunctionType(function.__code__, _names, function.__name__)
    copy.__module__ = __name__
    _names[function.__name__] = triton.jit(copy)
    return _names[function.__name__]


two_sum = _ported(law.two_sum)
two_product = _ported(law.two_product)
shift = _ported(law.shift)
log_weight = _ported(law.log_weight)
reduce_exponent = _ported(law.reduce_exponent)
exponential = _ported(law.exponential)
FLOOR = _numbers["FLOOR"]
CEILING = _numbers["CEILING"]


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
    """Sklansky's order, as in the reference: the last sum of a left half joins its right half."""
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
def exact_codes(values, first, second, numbers, knots, tails, levels, tables, COUNT: tl.constexpr, BITS: tl.constexpr):
    """The exact code of each value (float64) from its primary and tie words (int64)."""
    SYMBOLS: tl.constexpr = 2**BITS
    scaled = values * numbers[0] * numbers[1]
    scaled = tl.where(scaled > -CEILING, scaled, -CEILING)
    scaled = tl.where(scaled < CEILING, scaled, CEILING)
    t, t_low = shift(scaled, numbers[2], numbers[3])
    low, high = numbers[4], numbers[5]
    below, above = ((t - low) + t_low) < 0, ((t - high) + t_low) > 0
    t_low = tl.where(below | above, 0.0, t_low)
    t = tl.where(below, low, tl.where(above, high, t))
    segment = _segment(t, t_low, knots, tails, levels)
    symbol = tl.arange(0, SYMBOLS)[None, :]
    at = tables + segment[:, None] * SYMBOLS + symbol
    size = (levels - 1) * SYMBOLS
    base, base_tail = tl.load(at), tl.load(at + size)
    slope, slope_tail = tl.load(at + 2 * size), tl.load(at + 3 * size)
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
    reached = (first[:, None] > top) | ((first[:, None] == top) & (second[:, None] >= lower))
    return tl.sum((reached & (symbol < SYMBOLS - 1)).to(tl.int32), axis=1)


@triton.jit
def _tie(low, high):
    return low.to(tl.int64) | ((high & 0xFFFF).to(tl.int64) << 32)


@triton.jit(do_not_specialize=KEY_NAMES)
def resolve_rows(
    x, out, words, ties, k0, k1, k2, k3, k4, k5, k6, k7, listed, count, capacity, dimension, rows,
    numbers_at, looks, knots, tails, levels, tables, trust, low, high, table, half,
    BITS: tl.constexpr, GENERATOR: tl.constexpr, ROWS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr,
    DOUBLE: tl.constexpr, CENTRED: tl.constexpr, LOOK: tl.constexpr,
):  # fmt: skip
    """Exact codes of the listed rows and of a last, incomplete one; of all rows if the list overflowed.

    With given words the host lists every row itself and ``ties`` holds eight words per listed row.
    """
    key = (k0.to(tl.uint32), k1.to(tl.uint32), k2.to(tl.uint32), k3.to(tl.uint32),
           k4.to(tl.uint32), k5.to(tl.uint32), k6.to(tl.uint32), k7.to(tl.uint32))  # fmt: skip
    numbers = (tl.load(numbers_at), tl.load(numbers_at + 1), tl.load(numbers_at + 2), tl.load(numbers_at + 3),
               tl.load(numbers_at + 4), tl.load(numbers_at + 5))  # fmt: skip
    double_rate, double_offset = tl.load(numbers_at + 6), tl.load(numbers_at + 7)
    rate, offset = double_rate.to(tl.float32), double_offset.to(tl.float32)
    looked = (tl.arange(0, ROWS) & 0).to(tl.float64)
    found = tl.load(count)
    everything = found > capacity
    total = found.to(tl.int64)
    if GENERATOR != 0:
        all_rows = (dimension + 7) // 8
        total = tl.where(everything, all_rows, found + (all_rows - rows)).to(tl.int64)
    place = tl.arange(0, 8)[None, :].to(tl.int64)
    first_item = tl.program_id(0).to(tl.int64) * ROWS
    while first_item < total:
        item = first_item + tl.arange(0, ROWS).to(tl.int64)
        here = item < total
        if GENERATOR != 0:
            row = tl.load(listed + item, mask=here & (item < found) & (item * 0 + found <= capacity), other=0)
            row = tl.where(everything, item, tl.where(item < found, row, rows))
        else:
            row = tl.load(listed + item, mask=here, other=0)
        row = tl.where(here, row, 0)
        w0, w1, w2, w3 = primary_words(row, words, key, GENERATOR)
        w0, w1, w2, w3 = w0.to(tl.uint32), w1.to(tl.uint32), w2.to(tl.uint32), w3.to(tl.uint32)
        index = row[:, None] * 8 + place
        inside = here[:, None] & (index < dimension)
        if GENERATOR == 0:
            ties_here = tl.load(ties + item[:, None] * 8 + place, mask=inside, other=0)
        else:
            v = tie_words(row, key, GENERATOR)
            flat = eight(_tie(v[0], v[1]), _tie(v[2], v[3]), _tie(v[4], v[5]), _tie(v[6], v[7]),
                         _tie(v[8], v[9]), _tie(v[10], v[11]), _tie(v[12], v[13]), _tie(v[14], v[15]),
                         ROWS)  # fmt: skip
            ties_here = tl.reshape(flat, (ROWS, 8))
        words_here = tl.reshape(primaries(w0, w1, w2, w3, ROWS), (ROWS, 8))
        values = tl.load(x + index, mask=inside, other=0.0)
        if LOOK > 0:
            looked += tl.sum(_term(values, LOOK), axis=1)
        codes, open_ = decide(values, words_here, double_rate, double_offset, rate, offset, low, high,
                              table, half, BITS, DEGREE, CELLS, DOUBLE, CENTRED)  # fmt: skip
        open_ = ((open_ | (trust == 0)) & inside).to(tl.int32)
        while tl.max(tl.max(open_, axis=1), axis=0) > 0:
            # The first open coordinate of each row, alone in its row: sums over a row pick it.
            at = tl.min(tl.where(open_ > 0, place, 8), axis=1)[:, None]
            chosen = place == at
            value = tl.sum(tl.where(chosen, values.to(tl.float64), 0.0), axis=1)
            first = tl.sum(tl.where(chosen, words_here.to(tl.int64), 0), axis=1)
            second = tl.sum(tl.where(chosen, ties_here, 0), axis=1)
            exact = exact_codes(value, first, second, numbers, knots, tails, levels, tables, ROWS, BITS)
            codes = tl.where(chosen, exact[:, None], codes)
            open_ = tl.where(chosen, 0, open_)
        codes = tl.where(inside, codes, 0).to(tl.int64)
        packed = tl.sum(codes << (BITS * place), axis=1)
        for byte in tl.static_range(BITS):
            used = here & ((row * 8 * BITS + 8 * byte) < dimension * BITS)
            tl.store(out + row * BITS + byte, (packed >> (8 * byte)).to(tl.uint8), mask=used)
        first_item += tl.num_programs(0).to(tl.int64) * ROWS
    if LOOK > 0:
        tl.store(looks + tl.program_id(0), tl.sum(looked, axis=0))
