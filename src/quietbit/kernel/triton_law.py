"""The law of `law.py` on the GPU: what rows with an undecided coordinate go through.

Idea     the same functions, operator by operator, handed to triton instead of written again. Launched with
         ``enable_fp_fusion=False``, so that products and sums round apart as they do in the reference. A listed
         row is decided once more, and what stays open in it is settled one coordinate per row at a time: one
         round for nearly all. The pass reads how much there is to do from the device: nothing waits for the host,
         and a list that overflowed means that every row is done again. Importing this module needs triton.
Symbols  as in `sampler.py`; a row is eight coordinates.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from types import FunctionType
from typing import Any

import triton
import triton.language as tl

from quietbit.kernel import law
from quietbit.kernel.triton_random import primary_words, tie_words
from quietbit.kernel.triton_rows import INTERPRETED, KEY_NAMES, as_double, decide, eight, primaries

__all__ = ["LIMIT", "resolve_rows"]

UNCHANGING = [
    "first_bits", "second_bits", "high_bits", "low_bits", "least_bits", "most_bits", "rate_bits", "offset_bits",
]  # fmt: skip
LIMIT = 256  # rows times symbols in a tile: few, because the pass is short and waits for its slowest


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
def _codes(values, first, second, numbers, knots, tails, levels, tables, COUNT: tl.constexpr, BITS: tl.constexpr):
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


@triton.jit(do_not_specialize=KEY_NAMES + UNCHANGING)
def resolve_rows(
    x, out, words, ties, k0, k1, k2, k3, k4, k5, k6, k7, listed, count, capacity, dimension, rows,
    first_bits, second_bits, high_bits, low_bits, least_bits, most_bits, knots, tails, levels, tables,
    trust, rate_bits, offset_bits, rate, offset, low, high, table, half,
    BITS: tl.constexpr, GENERATOR: tl.constexpr, ROWS: tl.constexpr,
    DEGREE: tl.constexpr, CELLS: tl.constexpr, DOUBLE: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """Exact codes of the listed rows and of a last, incomplete one; of all rows if the list overflowed.

    With given words the host lists every row itself and ``ties`` holds eight words per listed row.
    """
    key = (k0.to(tl.uint32), k1.to(tl.uint32), k2.to(tl.uint32), k3.to(tl.uint32),
           k4.to(tl.uint32), k5.to(tl.uint32), k6.to(tl.uint32), k7.to(tl.uint32))  # fmt: skip
    numbers = (as_double(first_bits), as_double(second_bits), as_double(high_bits), as_double(low_bits),
               as_double(least_bits), as_double(most_bits))  # fmt: skip
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
        codes, open_ = decide(values, words_here, as_double(rate_bits), as_double(offset_bits), rate, offset, low, high,
                              table, half, BITS, DEGREE, CELLS, DOUBLE, CENTRED)  # fmt: skip
        open_ = ((open_ | (trust == 0)) & inside).to(tl.int32)
        while tl.max(tl.max(open_, axis=1), axis=0) > 0:
            # The first open coordinate of each row, alone in its row: sums over a row pick it.
            at = tl.min(tl.where(open_ > 0, place, 8), axis=1)[:, None]
            chosen = place == at
            value = tl.sum(tl.where(chosen, values.to(tl.float64), 0.0), axis=1)
            first = tl.sum(tl.where(chosen, words_here.to(tl.int64), 0), axis=1)
            second = tl.sum(tl.where(chosen, ties_here, 0), axis=1)
            exact = _codes(value, first, second, numbers, knots, tails, levels, tables, ROWS, BITS)
            codes = tl.where(chosen, exact[:, None], codes)
            open_ = tl.where(chosen, 0, open_)
        codes = tl.where(inside, codes, 0).to(tl.int64)
        packed = tl.sum(codes << (BITS * place), axis=1)
        for byte in tl.static_range(BITS):
            used = here & ((row * 8 * BITS + 8 * byte) < dimension * BITS)
            tl.store(out + row * BITS + byte, (packed >> (8 * byte)).to(tl.uint8), mask=used)
        first_item += tl.num_programs(0).to(tl.int64) * ROWS
