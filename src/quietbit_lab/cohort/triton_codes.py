"""Codes of several bits over a cohort on the GPU: sums of table[code], nothing else written.

Idea     as `triton.py`, with a binary search as in `triton_rows.decide` in the place of one comparison and the
         law of `triton_law.py` in the second pass. Importing this module needs triton.
Symbols  as in `triton.py`; ``search`` = (offset, low, high, coefficients, half) of `device_tables.py`, whose
         margin allows for one rounding more than it counts: the product left * right is made in float32 here.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from quietbit.kernel.triton_law import _codes
from quietbit.kernel.triton_rows import _lower, _pair, _upper, as_double, clamp
from quietbit_lab.cohort.triton import SIZES, _load_key, _philox, _values, unit
from quietbit_lab.cohort.triton_settle import _one_of, _open_count, _tie

__all__ = ["settle_codes", "sum_codes"]

DOUBLES = ["first_bits", "second_bits", "high_bits", "low_bits", "least_bits", "most_bits"]


@triton.jit
def _code(
    x, scaled, primary, search, BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, CENTRED: tl.constexpr
):  # fmt: skip
    """The code of each product as far as 16 bits tell, by binary search, and whether it is left open.

    As `triton_rows.decide`, with its multiply-adds fused by name: both passes must get the same bits.
    """
    offset, low, high, table, half = search
    SYMBOLS: tl.constexpr = 2**BITS
    p = tl.fma(x, scaled, offset)
    p = clamp(p, low, high) if CELLS > 1 else unit(p)
    if CENTRED:
        p = tl.fma(p, 2.0, -1.0)
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
        v = tl.fma(_upper(pair), p, _lower(pair))
        for d in tl.static_range(1, DEGREE // 2 + 1):
            pair = _pair(table, code, DEGREE // 2 - d, step, CELLS, SYMBOLS)
            v = tl.fma(v, p, _upper(pair))
            v = tl.fma(v, p, _lower(pair))
        distance = word - v
        code = tl.where(distance > 0, code + SYMBOLS // 2 ** (step + 1), code)
        open_ = open_ | (tl.abs(distance) < half)
        if CELLS > 1:  # NaN marks cells that decide nothing
            open_ = open_ | (distance != distance)
    return code - start, open_


@triton.jit
def _row_codes(
    x, scaled, w, search, BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, CENTRED: tl.constexpr
):  # fmt: skip
    """The codes of eight places, a byte each in an int64, and a bit per place that is left open."""
    codes = w[0].to(tl.int64) & 0
    near = w[0].to(tl.int32) & 0
    for j in tl.static_range(8):
        primary = (w[j // 2] & 0xFFFF) if j % 2 == 0 else (w[j // 2] >> 16)
        code, open_ = _code(x[j], scaled, primary, search, BITS, DEGREE, CELLS, CENTRED)
        codes += code.to(tl.int64) << (8 * j)
        near += open_.to(tl.int32) << j
    return codes, near


@triton.jit
def _add(
    total, near, x, scaled, primary, search, table,
    BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """One place's sum with table[code] added."""
    code, open_ = _code(x, scaled, primary, search, BITS, DEGREE, CELLS, CENTRED)
    return total + tl.load(table + code), near | open_


@triton.jit
def _step(
    sums, x, client, kind, at, place, listing, search, left, rate, table, live,
    BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """One client and one class."""
    row, stream, key = place
    listed, count, capacity, rows = listing
    w = _philox(client.to(tl.uint32), row.to(tl.uint32), stream, kind.to(tl.uint32), key)
    scaled = tl.load(left + at) * rate
    near = row < 0
    a, near = _add(sums[0], near, x[0], scaled, w[0] & 0xFFFF, search, table, BITS, DEGREE, CELLS, CENTRED)
    b, near = _add(sums[1], near, x[1], scaled, w[0] >> 16, search, table, BITS, DEGREE, CELLS, CENTRED)
    c, near = _add(sums[2], near, x[2], scaled, w[1] & 0xFFFF, search, table, BITS, DEGREE, CELLS, CENTRED)
    d, near = _add(sums[3], near, x[3], scaled, w[1] >> 16, search, table, BITS, DEGREE, CELLS, CENTRED)
    e, near = _add(sums[4], near, x[4], scaled, w[2] & 0xFFFF, search, table, BITS, DEGREE, CELLS, CENTRED)
    f, near = _add(sums[5], near, x[5], scaled, w[2] >> 16, search, table, BITS, DEGREE, CELLS, CENTRED)
    g, near = _add(sums[6], near, x[6], scaled, w[3] & 0xFFFF, search, table, BITS, DEGREE, CELLS, CENTRED)
    h, near = _add(sums[7], near, x[7], scaled, w[3] >> 16, search, table, BITS, DEGREE, CELLS, CENTRED)
    item = at * rows + row
    open_ = near & live
    slot = tl.atomic_add(count + (item & 0), 1, mask=open_, sem="relaxed")
    tl.store(listed + slot, item, mask=open_ & (slot < capacity))
    return a, b, c, d, e, f, g, h


@triton.jit
def _store(sums, totals, at, feature, features):
    for j in tl.static_range(8):
        f = feature + 32 * j
        tl.atomic_add(totals + at + f, sums[j], mask=f < features, sem="relaxed")


@triton.jit(do_not_specialize=SIZES)
def sum_codes(
    left, right, totals, listed, count, capacity, key_at, streams, table,
    clients, classes, features, rows, per_program, splits, rate, offset, low, high, coefficients, half,
    BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, CENTRED: tl.constexpr,
    CLASSES: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Add table[code] of ``per_program`` clients of CLASSES classes of one configuration to the totals."""
    group = tl.program_id(2) // splits
    first = (tl.program_id(2) % splits) * per_program
    stop = tl.minimum(first + per_program, clients)
    kind = tl.program_id(1) * CLASSES
    row = tl.program_id(0) * LANES + tl.arange(0, LANES)
    feature = (row // 32) * 256 + row % 32
    place = (row, tl.load(streams + group).to(tl.uint32), _load_key(key_at))
    listing = (listed, count, capacity, rows)
    search = (offset, low, high, coefficients, half)
    live = row < rows  # lanes beyond the last row must list nothing
    o = (row & 0).to(tl.int64)
    s0 = (o, o, o, o, o, o, o, o)
    s1 = s0
    base = group.to(tl.int64) * clients
    client = first
    while client < stop:
        x = _values(right, client, feature, features)
        at = (base + client) * classes + kind
        s0 = _step(s0, x, client, kind, at, place, listing, search, left, rate, table, live,
                   BITS, DEGREE, CELLS, CENTRED)  # fmt: skip
        if CLASSES > 1:
            s1 = _step(s1, x, client, kind + 1, at + 1, place, listing, search, left, rate, table, live,
                       BITS, DEGREE, CELLS, CENTRED)  # fmt: skip
        client += 1
    at = (group.to(tl.int64) * classes + kind) * features
    _store(s0, totals, at, feature, features)
    if CLASSES > 1:
        _store(s1, totals, at + features, feature, features)


@triton.jit(do_not_specialize=SIZES + DOUBLES)
def settle_codes(
    left, right, totals, listed, count, capacity, key_at, streams, table,
    groups, clients, classes, features, rows, rate, offset, low, high, coefficients, half,
    first_bits, second_bits, high_bits, low_bits, least_bits, most_bits, knots, tails, levels, law,
    BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, CENTRED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Settle the undecided codes of the listed rows, or of all rows if the list overflowed."""
    key = _load_key(key_at)
    numbers = (as_double(first_bits), as_double(second_bits), as_double(high_bits), as_double(low_bits),
               as_double(least_bits), as_double(most_bits))  # fmt: skip
    search = (offset, low, high, coefficients, half)
    found = tl.load(count)
    everything = found > capacity
    total = tl.where(everything, groups.to(tl.int64) * clients * classes * rows, found.to(tl.int64))
    begin = tl.program_id(0).to(tl.int64) * LANES
    while begin < total:
        number = begin + tl.arange(0, LANES)
        here = number < total
        item = tl.load(listed + number, mask=here & (number * 0 + found <= capacity), other=0)
        item = tl.where(here, tl.where(everything, number, item), 0)
        at = item // rows
        row = (item % rows).to(tl.int32)
        kind = (at % classes).to(tl.int32)
        client = ((at // classes) % clients).to(tl.int32)
        group = at // classes // clients
        stream = tl.load(streams + group).to(tl.uint32)
        feature = (row // 32) * 256 + row % 32
        number_left = tl.load(left + at)
        x = _values(right, client, feature, features)
        w = _philox(client.to(tl.uint32), row.to(tl.uint32), stream, kind.to(tl.uint32), key)
        codes, near = _row_codes(x, number_left * rate, w, search, BITS, DEGREE, CELLS, CENTRED)
        near = tl.where(here, near, 0)
        while tl.max(near, axis=0) > 0:
            j = _open_count((near & -near) - 1).to(tl.int32)
            value = _one_of(j, x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7])
            word = _one_of(j, w[0] & 0xFFFF, w[0] >> 16, w[1] & 0xFFFF, w[1] >> 16,
                           w[2] & 0xFFFF, w[2] >> 16, w[3] & 0xFFFF, w[3] >> 16)  # fmt: skip
            tie = _tie(client, row, stream, kind, j, rows, key, 1)
            t = number_left.to(tl.float64) * value.to(tl.float64)
            exact = _codes(t, word.to(tl.int64), tie, numbers, knots, tails, levels, law, LANES, BITS)
            before = (codes >> (8 * j).to(tl.int64)) & 255
            change = tl.load(table + exact) - tl.load(table + before)
            f = feature + 32 * j
            target = (group * classes + kind) * features + f
            wanted = (near != 0) & (change != 0) & (f < features)
            tl.atomic_add(totals + target, change, mask=wanted, sem="relaxed")
            near = near & (near - 1)
        begin += tl.num_programs(0).to(tl.int64) * LANES
