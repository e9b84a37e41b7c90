"""The cohort on the GPU: products, words, comparisons and counts in registers, nothing written but the counts.

Idea     a thread owns a row (eight features) of CLASSES classes of one configuration and walks through clients: eight
         loads serve 8 CLASSES bits. The sign of a float32 number is the bit. Rows with an undecided bit are listed.
Settling a second, small pass computes a listed row's float32 numbers again, to the same bits, which tells its
         undecided places and how the first pass counted them; each is settled by the float64 law with its 48 tie
         bits, one per row and turn, and counts are corrected. A list that overflowed means that every row is looked
         at. Nothing waits for the host.
Codes    of several bits: a binary search as in the kernel's `triton_sampling.decide` in the place of one comparison,
         and its law in the second pass.
Symbols  V, D, width: see `plan.py`, which proves what is decided here; rows, places, kinds: `words.py`; ``search`` =
         (offset, low, high, coefficients, half) of the kernel's `tables.py`, whose margin allows for one rounding
         more than it counts: the product left * right is made in float32 here.

Both passes are compiled without automatic fusion and call `_distance`, so their D agree to the last bit. Philox's
counter is laid out so that its first three rounds hardly depend on lane and class at once: the compiler shares them.
Importing this module needs triton.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from quietbit.kernel.triton_rng import chacha_words, philox_round
from quietbit.kernel.triton_sampling import (
    INTERPRETED,
    as_double,
    clamp,
    coefficient_pair,
    exact_codes,
    lower_float,
    upper_float,
)

__all__ = ["count_bits", "settle_bits", "settle_codes", "sum_codes"]

DOUBLES = ["first_bits", "second_bits", "high_bits", "low_bits", "least_bits", "most_bits"]
# One compilation serves all sizes.
SIZES = ["capacity", "groups", "clients", "classes", "features", "rows", "per_program", "splits", "pattern_bits"]


@triton.jit
def unit(x):
    """Clamped to [0, 1]; a NaN becomes 0."""
    if INTERPRETED:
        x = tl.where(x == x, x, 0.0)
        return tl.minimum(tl.maximum(x, 0.0), 1.0)
    else:
        return tl.inline_asm_elementwise("cvt.sat.f32.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _power_of_two(x):
    if INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _inverse(x):
    if INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _distance(scaled, value, word, numbers, FORM: tl.constexpr, TERMS: tl.constexpr):
    """D of each feature: ``scaled`` is left / (2 R), ``word`` is 1.5 2^23 + w as a float."""
    f = unit(tl.fma(value, scaled, 0.5))
    if FORM == 0:
        z = tl.fma(f, 2.0, -1.0)
        square = z * z
        q = tl.fma(square, numbers[TERMS - 1], numbers[TERMS - 2])
        for k in tl.static_range(3, TERMS + 1):
            q = tl.fma(q, square, numbers[TERMS - k])
        v = tl.fma(q, z, 12615680.0)
    elif FORM == 1:
        p = tl.fma(f, 2.0 * numbers[0], -numbers[0])
        v = tl.fma(_inverse(1.0 + _power_of_two(p)), 65536.0, 12582912.0)
    else:
        p = tl.fma(f, 2.0 * numbers[0], -numbers[0])
        side = tl.fma(_power_of_two(-tl.abs(p)), -32768.0, 32768.0)
        v = 12615680.0 - tl.where(p > 0.0, side, -side)
    return word - v


@triton.jit
def _halves(w, pattern):
    """Lower and upper 16 bits as floats 1.5 2^23 + w."""
    low = ((w & 0xFFFF) | pattern).to(tl.float32, bitcast=True)
    high = ((w >> 16) + pattern).to(tl.float32, bitcast=True)
    return low, high


@triton.jit
def _philox(client, row, stream, kind, key):
    c0, c1, c2, c3 = client ^ key[4], row ^ key[5], stream ^ key[2], kind ^ key[3]
    k0, k1 = key[0], key[1]
    for _ in tl.static_range(10):
        c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0, k1)
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def _load_key(key):
    return (
        tl.load(key).to(tl.uint32), tl.load(key + 1).to(tl.uint32), tl.load(key + 2).to(tl.uint32),
        tl.load(key + 3).to(tl.uint32), tl.load(key + 4).to(tl.uint32), tl.load(key + 5).to(tl.uint32),
        tl.load(key + 6).to(tl.uint32), tl.load(key + 7).to(tl.uint32),
    )  # fmt: skip


@triton.jit
def _negative(d):
    """1 where d < 0: its sign bit."""
    return (d.to(tl.uint32, bitcast=True) >> 31).to(tl.int32)


@triton.jit
def _add_row(zeros, values, scaled, w, numbers, pattern, FORM: tl.constexpr, TERMS: tl.constexpr):
    """Eight counts of zeros with the bits of one client added, and how close a word came to its threshold."""
    w0, w1 = _halves(w[0], pattern)
    w2, w3 = _halves(w[1], pattern)
    w4, w5 = _halves(w[2], pattern)
    w6, w7 = _halves(w[3], pattern)
    d0 = _distance(scaled, values[0], w0, numbers, FORM, TERMS)
    d1 = _distance(scaled, values[1], w1, numbers, FORM, TERMS)
    d2 = _distance(scaled, values[2], w2, numbers, FORM, TERMS)
    d3 = _distance(scaled, values[3], w3, numbers, FORM, TERMS)
    d4 = _distance(scaled, values[4], w4, numbers, FORM, TERMS)
    d5 = _distance(scaled, values[5], w5, numbers, FORM, TERMS)
    d6 = _distance(scaled, values[6], w6, numbers, FORM, TERMS)
    d7 = _distance(scaled, values[7], w7, numbers, FORM, TERMS)
    near = tl.minimum(tl.minimum(tl.minimum(tl.abs(d0), tl.abs(d1)), tl.minimum(tl.abs(d2), tl.abs(d3))),
                      tl.minimum(tl.minimum(tl.abs(d4), tl.abs(d5)), tl.minimum(tl.abs(d6), tl.abs(d7))))  # fmt: skip
    added = (
        zeros[0] + _negative(d0), zeros[1] + _negative(d1), zeros[2] + _negative(d2), zeros[3] + _negative(d3),
        zeros[4] + _negative(d4), zeros[5] + _negative(d5), zeros[6] + _negative(d6), zeros[7] + _negative(d7),
    )  # fmt: skip
    return added, near


@triton.jit
def _values(right, client, feature, features):
    """The eight features of each row; those beyond the end repeat the last."""
    at = right + client.to(tl.int64) * features
    last = features - 1
    return (
        tl.load(at + tl.minimum(feature, last)), tl.load(at + tl.minimum(feature + 32, last)),
        tl.load(at + tl.minimum(feature + 64, last)), tl.load(at + tl.minimum(feature + 96, last)),
        tl.load(at + tl.minimum(feature + 128, last)), tl.load(at + tl.minimum(feature + 160, last)),
        tl.load(at + tl.minimum(feature + 192, last)), tl.load(at + tl.minimum(feature + 224, last)),
    )  # fmt: skip


@triton.jit
def _list_open(near, width, item, listed, count, capacity):
    """Append rows to the list; those beyond its end are counted, which makes the next pass look at everything."""
    open_ = near <= width
    place = tl.atomic_add(count + (item & 0), 1, mask=open_, sem="relaxed")
    tl.store(listed + place, item, mask=open_ & (place < capacity))


@triton.jit
def _philox_step(zeros, values, client, kind, at, place, table, plan, FORM: tl.constexpr, TERMS: tl.constexpr):
    """One client and one class; ``place`` = (row, stream, key), ``table`` the list."""
    row, stream, key = place
    listed, count, capacity, rows = table
    left, rate, numbers, pattern, width = plan
    w = _philox(client.to(tl.uint32), row.to(tl.uint32), stream, kind.to(tl.uint32), key)
    zeros, near = _add_row(zeros, values, tl.load(left + at) * rate, w, numbers, pattern, FORM, TERMS)
    _list_open(near, width, at * rows + row, listed, count, capacity)
    return zeros


@triton.jit
def _chacha_step(
    zeros, right, feature, features, quad, stop, kind, base, classes, place, table, plan,
    FORM: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """Four clients of one class: a block of the cipher has words for all of them."""
    row, stream, key = place
    listed, count, capacity, rows = table
    left, rate, numbers, pattern, width = plan
    block = ((kind * rows + row).to(tl.int64) << 32) + quad
    words = chacha_words(block, stream, key, 12)
    for quarter in tl.static_range(4):
        client = 4 * quad + quarter
        if client < stop:
            at = (base + client) * classes + kind
            w = (words[4 * quarter], words[4 * quarter + 1], words[4 * quarter + 2], words[4 * quarter + 3])
            values = _values(right, client, feature, features)
            zeros, near = _add_row(zeros, values, tl.load(left + at) * rate, w, numbers, pattern, FORM, TERMS)
            _list_open(near, width, at * rows + row, listed, count, capacity)
    return zeros


@triton.jit
def _store_row(zeros, clients, counts, at, feature, features):
    """Add what is not zero to the totals."""
    for j in tl.static_range(8):
        f = feature + 32 * j
        tl.atomic_add(counts + at + f, clients - zeros[j], mask=f < features, sem="relaxed")


@triton.jit(do_not_specialize=SIZES)
def count_bits(
    left, right, counts, listed, count, capacity, key_at, streams,
    clients, classes, features, rows, per_program, splits, rate, numbers, pattern_bits, width,
    FORM: tl.constexpr, TERMS: tl.constexpr, CLASSES: tl.constexpr, GENERATOR: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Add the bits of ``per_program`` clients of CLASSES classes of one configuration to the counts."""
    pattern = pattern_bits.to(tl.uint32)  # an argument: two constants do not fit one instruction
    group = tl.program_id(2) // splits
    first = (tl.program_id(2) % splits) * per_program
    stop = tl.minimum(first + per_program, clients)
    kind = tl.program_id(1) * CLASSES
    row = tl.program_id(0) * LANES + tl.arange(0, LANES)
    feature = (row // 32) * 256 + row % 32
    place = (row, tl.load(streams + group).to(tl.uint32), _load_key(key_at))
    table = (listed, count, capacity, rows)
    # Lanes beyond the last row must list nothing: their numbers are those of other rows.
    plan = (left, rate, numbers, pattern, tl.where(row < rows, width, -1.0))
    o = row & 0
    s0 = (o, o, o, o, o, o, o, o)
    s1, s2, s3, s4 = s0, s0, s0, s0
    base = group.to(tl.int64) * clients
    if GENERATOR == 1:
        client = first
        while client < stop:  # the interpreter has no range of tensors
            x = _values(right, client, feature, features)
            at = (base + client) * classes + kind
            s0 = _philox_step(s0, x, client, kind, at, place, table, plan, FORM, TERMS)
            if CLASSES > 1:
                s1 = _philox_step(s1, x, client, kind + 1, at + 1, place, table, plan, FORM, TERMS)
            if CLASSES > 2:
                s2 = _philox_step(s2, x, client, kind + 2, at + 2, place, table, plan, FORM, TERMS)
            if CLASSES > 3:
                s3 = _philox_step(s3, x, client, kind + 3, at + 3, place, table, plan, FORM, TERMS)
            if CLASSES > 4:
                s4 = _philox_step(s4, x, client, kind + 4, at + 4, place, table, plan, FORM, TERMS)
            client += 1
    else:
        quad = first // 4
        while 4 * quad < stop:
            s0 = _chacha_step(s0, right, feature, features, quad, stop, kind, base, classes, place, table, plan,
                              FORM, TERMS)  # fmt: skip
            if CLASSES > 1:
                s1 = _chacha_step(s1, right, feature, features, quad, stop, kind + 1, base, classes, place, table,
                                  plan, FORM, TERMS)  # fmt: skip
            quad += 1
    at = (group.to(tl.int64) * classes + kind) * features
    many = stop - first
    _store_row(s0, many, counts, at, feature, features)
    if CLASSES > 1:
        _store_row(s1, many, counts, at + features, feature, features)
    if CLASSES > 2:
        _store_row(s2, many, counts, at + 2 * features, feature, features)
    if CLASSES > 3:
        _store_row(s3, many, counts, at + 3 * features, feature, features)
    if CLASSES > 4:
        _store_row(s4, many, counts, at + 4 * features, feature, features)


@triton.jit
def _open_count(mask):
    """Set bits among the lowest eight."""
    total = mask & 1
    for j in tl.static_range(1, 8):
        total += (mask >> j) & 1
    return total


@triton.jit
def _open_places(
    values, scaled, w, numbers, pattern, width, feature, features, FORM: tl.constexpr, TERMS: tl.constexpr
):  # fmt: skip
    """Bit j of the first: place j is undecided; of the second: it was counted as one."""
    near = feature & 0
    ahead = feature & 0
    for j in tl.static_range(8):
        low, high = _halves(w[j // 2], pattern)
        d = _distance(scaled, values[j], low if j % 2 == 0 else high, numbers, FORM, TERMS)
        inside = feature + 32 * j < features
        near += ((tl.abs(d) <= width) & inside).to(tl.int32) << j
        ahead += (1 - _negative(d)) << j
    return near, ahead


@triton.jit
def _one_of(at, w0, w1, w2, w3, w4, w5, w6, w7):
    """The word whose number is ``at``."""
    low = tl.where(at < 2, tl.where(at == 0, w0, w1), tl.where(at == 2, w2, w3))
    high = tl.where(at < 6, tl.where(at == 4, w4, w5), tl.where(at == 6, w6, w7))
    return tl.where(at < 4, low, high)


@triton.jit
def _tie(client, row, stream, kind, j, rows, key, GENERATOR: tl.constexpr):
    """The 48 tie bits of place j of each row."""
    if GENERATOR == 1:
        turn = kind.to(tl.uint32) + ((1 + j // 2).to(tl.uint32) << 24)
        w0, w1, w2, w3 = _philox(client.to(tl.uint32), row.to(tl.uint32), stream, turn, key)
        low, high = tl.where(j % 2 == 0, w0, w2), tl.where(j % 2 == 0, w1, w3)
    else:
        block = ((kind * rows + row).to(tl.int64) << 32) + client
        w = chacha_words(block, stream + (1 << 24), key, 12)
        low = _one_of(j, w[0], w[2], w[4], w[6], w[8], w[10], w[12], w[14])
        high = _one_of(j, w[1], w[3], w[5], w[7], w[9], w[11], w[13], w[15])
    return low.to(tl.int64) | ((high & 0xFFFF).to(tl.int64) << 32)


@triton.jit
def _exact_bit(t, reach, law, primary, tie):
    """The law of `law.thresholds`, operator by operator; t is a float64."""
    t = tl.where(t > -reach, t, -reach)
    t = tl.where(t < reach, t, reach)
    a = tl.minimum(tl.abs(t), 48.0)
    cell = tl.minimum((a * 4.0).to(tl.int32), 191)
    h = a - (cell.to(tl.float64) * 0.25 + 0.125)
    q = tl.load(law + cell * 16 + 15)
    for power in tl.static_range(1, 16):
        q = q * h + tl.load(law + cell * 16 + 15 - power)
    q = tl.where(q > 0.0, q, 0.0)
    scaled = tl.where(t < 0.0, 1.0 - q, q) * 65536.0
    upper = tl.floor(scaled)
    lower = tl.floor((scaled - upper) * 281474976710656.0).to(tl.int64)
    top = upper.to(tl.int64)
    return (primary > top) | ((primary == top) & (tie >= lower))


@triton.jit(do_not_specialize=SIZES)
def settle_bits(
    left, right, counts, listed, count, capacity, key_at, streams, law, reach_at,
    groups, clients, classes, features, rows, rate, numbers, pattern_bits, width,
    FORM: tl.constexpr, TERMS: tl.constexpr, GENERATOR: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Settle the undecided bits of the listed rows, or of all rows if the list overflowed."""
    key = _load_key(key_at)
    pattern = pattern_bits.to(tl.uint32)
    reach = tl.load(reach_at)
    found = tl.load(count)
    everything = found > capacity
    total = tl.where(everything, groups.to(tl.int64) * clients * classes * rows, found.to(tl.int64))
    begin = tl.program_id(0).to(tl.int64) * LANES
    while begin < total:
        number = begin + tl.arange(0, LANES)
        here = number < total
        item = tl.load(listed + number, mask=here & (number * 0 + found <= capacity), other=0)
        item = tl.where(everything, number, item)
        item = tl.where(here, item, 0)
        at = item // rows
        row = (item % rows).to(tl.int32)
        kind = (at % classes).to(tl.int32)
        client = ((at // classes) % clients).to(tl.int32)
        group = at // classes // clients
        stream = tl.load(streams + group).to(tl.uint32)
        feature = (row // 32) * 256 + row % 32
        number_left = tl.load(left + at)
        scaled = number_left * rate
        x = _values(right, client, feature, features)
        if GENERATOR == 1:
            w = _philox(client.to(tl.uint32), row.to(tl.uint32), stream, kind.to(tl.uint32), key)
        else:
            v = chacha_words(((kind * rows + row).to(tl.int64) << 32) + client // 4, stream, key, 12)
            q = client % 4
            w = (_one_of(q, v[0], v[4], v[8], v[12], v[0], v[0], v[0], v[0]),
                 _one_of(q, v[1], v[5], v[9], v[13], v[0], v[0], v[0], v[0]),
                 _one_of(q, v[2], v[6], v[10], v[14], v[0], v[0], v[0], v[0]),
                 _one_of(q, v[3], v[7], v[11], v[15], v[0], v[0], v[0], v[0]))  # fmt: skip
        near, ahead = _open_places(x, scaled, w, numbers, pattern, width, feature, features, FORM, TERMS)
        near = tl.where(here, near, 0)
        while tl.max(near, axis=0) > 0:
            # The lowest set bit of each row's open places: one bit settled per row and turn.
            lowest = near & -near
            j = (_open_count(lowest - 1)).to(tl.int32)
            value = _one_of(j, x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7])
            word = _one_of(j, w[0] & 0xFFFF, w[0] >> 16, w[1] & 0xFFFF, w[1] >> 16,
                           w[2] & 0xFFFF, w[2] >> 16, w[3] & 0xFFFF, w[3] >> 16)  # fmt: skip
            tie = _tie(client, row, stream, kind, j, rows, key, GENERATOR)
            t = number_left.to(tl.float64) * value.to(tl.float64)
            bit = _exact_bit(t, reach, law, word.to(tl.int64), tie).to(tl.int32)
            change = bit - ((ahead & lowest) != 0).to(tl.int32)
            target = (group * classes + kind) * features + feature + 32 * j
            tl.atomic_add(counts + target, change, mask=(near != 0) & (change != 0), sem="relaxed")
            near = near & (near - 1)
        begin += tl.num_programs(0).to(tl.int64) * LANES


@triton.jit
def _code(
    x, scaled, primary, search, BITS: tl.constexpr, DEGREE: tl.constexpr, CELLS: tl.constexpr, CENTRED: tl.constexpr
):  # fmt: skip
    """The code of each product as far as 16 bits tell, by binary search, and whether it is left open.

    As `triton_sampling.decide`, with its multiply-adds fused by name: both passes must get the same bits.
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
        pair = coefficient_pair(table, code, DEGREE // 2, step, CELLS, SYMBOLS)
        v = tl.fma(upper_float(pair), p, lower_float(pair))
        for d in tl.static_range(1, DEGREE // 2 + 1):
            pair = coefficient_pair(table, code, DEGREE // 2 - d, step, CELLS, SYMBOLS)
            v = tl.fma(v, p, upper_float(pair))
            v = tl.fma(v, p, lower_float(pair))
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
def _codes_step(
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
def _store_sums(sums, totals, at, feature, features):
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
        s0 = _codes_step(s0, x, client, kind, at, place, listing, search, left, rate, table, live,
                               BITS, DEGREE, CELLS, CENTRED)  # fmt: skip
        if CLASSES > 1:
            s1 = _codes_step(s1, x, client, kind + 1, at + 1, place, listing, search, left, rate, table, live,
                                   BITS, DEGREE, CELLS, CENTRED)  # fmt: skip
        client += 1
    at = (group.to(tl.int64) * classes + kind) * features
    _store_sums(s0, totals, at, feature, features)
    if CLASSES > 1:
        _store_sums(s1, totals, at + features, feature, features)


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
            exact = exact_codes(t, word.to(tl.int64), tie, numbers, knots, tails, levels, law, LANES, BITS)
            before = (codes >> (8 * j).to(tl.int64)) & 255
            change = tl.load(table + exact) - tl.load(table + before)
            f = feature + 32 * j
            target = (group * classes + kind) * features + f
            wanted = (near != 0) & (change != 0) & (f < features)
            tl.atomic_add(totals + target, change, mask=wanted, sem="relaxed")
            near = near & (near - 1)
        begin += tl.num_programs(0).to(tl.int64) * LANES
