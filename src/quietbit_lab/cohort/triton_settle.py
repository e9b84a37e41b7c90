"""The second pass over a cohort: undecided bits by the exact law, counts corrected.

Idea     a listed row's float32 numbers are computed again, to the same bits, which tells its undecided places and how
         the first pass counted them; each is settled by the float64 law of `cohort_law.py` with its 48 tie bits, one
         per row and turn. A list that overflowed means that every row is looked at. Importing this module needs triton.
Symbols  as in `triton.py`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from quietbit.kernel.triton_random import chacha_words
from quietbit_lab.cohort.triton import SIZES, _distance, _halves, _load_key, _negative, _philox, _values

__all__ = ["settle_bits"]


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
    """The law of `cohort_law.thresholds`, operator by operator; t is a float64."""
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
