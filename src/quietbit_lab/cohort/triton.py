"""The cohort on the GPU: products, words, comparisons and counts in registers, nothing written but the counts.

Idea     a thread owns a row (eight features) of CLASSES classes of one configuration and walks through clients: eight
         loads serve 8 CLASSES bits. The sign of a float32 number is the bit. Rows with an undecided bit are listed; a
         second, small pass (`triton_settle.py`) corrects their counts. Nothing waits for the host. Importing
         this module needs triton.
Symbols  V, D, width: see `cohort_plan.py`, which proves what is decided here; rows, places, kinds: `cohort_words.py`.

Both kernels are compiled without automatic fusion and call `_distance`, so their D agree to the last bit. Philox's
counter is laid out so that its first three rounds hardly depend on lane and class at once: the compiler shares them.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from quietbit.kernel.triton_random import _philox_round, chacha_words
from quietbit.kernel.triton_rows import INTERPRETED

__all__ = ["count_bits", "unit"]

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
        c0, c1, c2, c3 = _philox_round(c0, c1, c2, c3, k0, k1)
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
