"""Compiled cohort counting: one class of one configuration over all clients, gradients never written.

Idea     per client: words of a row of features, then one pass that multiplies, compares and counts. Passes are plain
         loops over contiguous arrays, which the compiler turns into vector instructions; a row with undecided bits
         is looked at again and those bits are settled by the exact law. Codes of several bits go through the passes
         of the kernel's `compiled_sampling.py` on one client's products at a time, which stay in the cache. Importing
         this module needs numba.
Symbols  rows, places, kinds: see `words.py`; V, D, width: see `plan.py`.
"""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np

from quietbit.kernel.chacha import SIGMA
from quietbit.kernel.compiled_sampling import list_open, lookup_pass, position_pass, resolve, settle_open
from quietbit.kernel.jit import compiled, compiled_fast
from quietbit.kernel.rng import PHILOX_M0, PHILOX_M1, PHILOX_W0, PHILOX_W1
from quietbit_lab.cohort.law import CELLS, DEGREE, END, PER_UNIT
from quietbit_lab.cohort.plan import MAGIC
from quietbit_lab.cohort.words import KIND, TILE

__all__ = ["count_class", "sum_class"]

LOW = np.uint64(0xFFFFFFFF)
M0, M1 = np.uint64(PHILOX_M0), np.uint64(PHILOX_M1)
W0, W1 = np.uint64(PHILOX_W0), np.uint64(PHILOX_W1)
HALF = np.uint64(32)
S0, S1, S2, S3 = (np.uint32(word) for word in SIGMA)
# 2^g for |g| <= 1/2: Taylor's polynomial of degree 6 stops less than 2^-22 short.
E1, E2, E3, E4, E5, E6 = (np.float32(np.log(2.0) ** k / factorial(k)) for k in range(1, 7))
ZERO, CENTRE, ONE, TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)
MIDDLE, BIG, UP, BASE = np.float32(32768.0), np.float32(65536.0), np.float32(MAGIC), np.float32(MAGIC + 32768.0)
TOP = np.float32(MAGIC + 65535.0)
MOST = 65535  # bits that a 16-bit count holds


@compiled
def _philox_rows(key: Any, client: Any, first_row: Any, stream: Any, kind: Any, out: Any) -> None:
    """The four words of each row from ``first_row`` on."""
    a, b = np.uint64(client) ^ np.uint64(key[4]), np.uint64(stream) ^ np.uint64(key[2])
    d, white = np.uint64(kind) ^ np.uint64(key[3]), np.uint64(key[5])
    w0, w1, w2, w3 = out[0], out[1], out[2], out[3]
    for i in range(w0.size):
        c0, c1, c2, c3 = a, (np.uint64(i) + np.uint64(first_row)) ^ white, b, d
        k0, k1 = np.uint64(key[0]), np.uint64(key[1])
        for _ in range(10):
            first, second = c0 * M0, c2 * M1
            c0 = (second >> HALF) ^ c1 ^ k0
            c2 = (first >> HALF) ^ c3 ^ k1
            c1, c3 = second & LOW, first & LOW
            k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
        w0[i], w1[i], w2[i], w3[i] = np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)


@compiled
def _mix(a: Any, b: Any, c: Any, d: Any) -> None:
    """A quarter round of ChaCha on rows of words."""
    for i in range(a.size):
        p, q, r, s = a[i], b[i], c[i], d[i]
        p = np.uint32(p + q)
        s = np.uint32(s ^ p)
        s = np.uint32((s << np.uint32(16)) | (s >> np.uint32(16)))
        r = np.uint32(r + s)
        q = np.uint32(q ^ r)
        q = np.uint32((q << np.uint32(12)) | (q >> np.uint32(20)))
        p = np.uint32(p + q)
        s = np.uint32(s ^ p)
        s = np.uint32((s << np.uint32(8)) | (s >> np.uint32(24)))
        r = np.uint32(r + s)
        q = np.uint32(q ^ r)
        q = np.uint32((q << np.uint32(7)) | (q >> np.uint32(25)))
        a[i], b[i], c[i], d[i] = p, q, r, s


@compiled
def _chacha_rows(key: Any, low: Any, first_row: Any, nonce: Any, x: Any) -> None:
    """The sixteen words of each row from ``first_row`` on: ``x`` is (16, rows)."""
    size = x.shape[1]
    x[0], x[1], x[2], x[3] = S0, S1, S2, S3
    for k in range(8):
        x[4 + k] = key[k]
    x[12], x[14], x[15] = np.uint32(low), np.uint32(nonce), np.uint32(0)
    for i in range(size):
        x[13, i] = np.uint32(first_row + i)
    for _ in range(6):
        for k in range(4):
            _mix(x[k], x[4 + k], x[8 + k], x[12 + k])
        for k in range(4):
            _mix(x[k], x[4 + (k + 1) % 4], x[8 + (k + 2) % 4], x[12 + (k + 3) % 4])
    x[0] += S0
    x[1] += S1
    x[2] += S2
    x[3] += S3
    for k in range(8):
        x[4 + k] += np.uint32(key[k])
    x[12] += np.uint32(low)
    x[14] += np.uint32(nonce)
    for i in range(size):
        x[13, i] += np.uint32(first_row + i)


@compiled
def _in_order(words: Any, out: Any) -> None:
    """Primary words of whole rows (4, rows) in the order of features."""
    tiles = words.shape[1] // 32
    pairs, places = words.reshape(4, tiles, 32), out.reshape(tiles, 8, 32)
    for tile in range(tiles):
        for k in range(4):
            both, low, high = pairs[k, tile], places[tile, 2 * k], places[tile, 2 * k + 1]
            for i in range(32):
                low[i] = np.uint16(both[i])
            for i in range(32):
                high[i] = np.uint16(both[i] >> np.uint32(16))


@compiled_fast
def _odd_pass(right: Any, left: Any, coefficients: Any, out: Any) -> None:
    """V of each feature, clamped to 16 bits, which leaves more undecided and nothing wrong; a NaN counts as -R."""
    for i in range(out.size):
        f = right[i] * left + CENTRE
        f = f if f > ZERO else ZERO
        f = f if f < ONE else ONE
        z = TWO * f - ONE
        square = z * z
        q = coefficients[0]
        for k in range(1, len(coefficients)):
            q = q * square + coefficients[k]
        v = q * z + BASE
        v = v if v > UP else UP
        v = v if v < TOP else TOP
        out[i] = np.uint16(np.int32(v - UP))


@compiled_fast
def _exponential_pass(right: Any, left: Any, turns: Any, sign: Any, out: Any) -> None:
    """2^p with p = z turns, or -|z| turns for ``sign`` = -1."""
    for i in range(out.size):
        f = right[i] * left + CENTRE
        f = f if f > ZERO else ZERO
        f = f if f < ONE else ONE
        p = (TWO * f - ONE) * turns
        p = p if sign > ZERO else -abs(p)
        whole = (p + UP) - UP
        g = p - whole
        e = np.float32((((((E6 * g + E5) * g + E4) * g + E3) * g + E2) * g + E1) * g + ONE)
        out[i] = np.int32(e.view(np.int32) + (np.int32(whole) << np.int32(23))).view(np.float32)


@compiled_fast
def _logistic_pass(power: Any, out: Any) -> None:
    for i in range(out.size):
        v = BIG / (ONE + power[i]) + UP
        v = v if v < TOP else TOP
        out[i] = np.uint16(np.int32(v - UP))


@compiled_fast
def _laplace_pass(power: Any, right: Any, left: Any, out: Any) -> None:
    for i in range(out.size):
        side = MIDDLE - MIDDLE * power[i]
        side = side if right[i] * left > ZERO else -side
        v = (MIDDLE - side) + UP
        v = v if v < TOP else TOP
        out[i] = np.uint16(np.int32(v - UP))


@compiled
def _compare_pass(words: Any, v: Any, width: Any, counts: Any) -> Any:
    """Count what is not below V; says whether anything may be undecided (differences wrap around)."""
    open_ = np.uint16(0)
    for i in range(v.size):
        counts[i] = np.uint16(counts[i] + np.uint16(words[i] >= v[i]))
        open_ |= np.uint16(np.uint16(words[i] - v[i] + width) <= np.uint16(width + width))
    return open_ != 0


@compiled
def _exact_bit(t: float, reach: float, table: Any, primary: Any, tie: Any) -> Any:
    """The law of `law.thresholds`, operator by operator."""
    if not (t > -reach):
        t = -reach
    if not (t < reach):
        t = reach
    a = abs(t)
    if a > END:
        a = END
    cell: Any = min(np.int64(a * PER_UNIT), CELLS - 1)
    h = a - (cell * (1.0 / PER_UNIT) + 0.5 / PER_UNIT)
    q = table[cell, DEGREE]
    for power in range(DEGREE - 1, -1, -1):
        q = q * h + table[cell, power]
    if not (q > 0.0):
        q = 0.0
    scaled = (1.0 - q if t < 0.0 else q) * 65536.0
    upper = np.floor(scaled)
    lower = np.int64(np.floor((scaled - upper) * 281474976710656.0))
    top = np.int64(upper)
    return primary > top or (primary == top and tie >= lower)


@compiled
def _any_open(words: Any, v: Any, width: Any) -> Any:
    open_ = np.uint16(0)
    for i in range(v.size):
        open_ |= np.uint16(np.uint16(words[i] - v[i] + width) <= np.uint16(width + width))
    return open_ != 0


@compiled
def _settle_tile(
    right: Any,
    left: Any,
    words: Any,
    v: Any,
    first: int,
    last: int,
    width: Any,
    exact: Any,
    address: Any,
    counts: Any,
) -> None:
    key, chacha, client, stream, kind, rows = address
    reach, table = exact
    x = np.empty((16, 1), np.uint32)
    for f in range(first, last):
        d = np.int32(words[f]) - np.int32(v[f])
        if abs(d) <= width:
            row, place = 32 * (f // TILE) + f % 32, f % TILE // 32
            if chacha:
                _chacha_rows(key, client, kind * rows + row, stream + (1 << KIND), x)
                low, high = x[2 * place, 0], x[2 * place + 1, 0]
            else:
                _philox_rows(key, client, row, stream, kind + ((1 + place // 2) << KIND), x)
                low, high = x[2 * (place % 2), 0], x[2 * (place % 2) + 1, 0]
            tie = np.int64(low) | (np.int64(high & np.uint32(0xFFFF)) << np.int64(32))
            bit = _exact_bit(np.float64(left) * np.float64(right[f]), reach, table, np.int64(words[f]), tie)
            counts[f] = np.uint16(counts[f] + np.int32(bit) - np.int32(d >= 0))


@compiled
def _settle(right: Any, left: Any, words: Any, v: Any, width: Any, exact: Any, address: Any, counts: Any) -> None:
    """Correct the undecided bits of one client and class, tile by tile."""
    for first in range(0, v.size, TILE):
        last = min(first + TILE, v.size)
        if _any_open(words[first:last], v[first:last], np.uint16(width)):
            _settle_tile(right, left, words, v, first, last, width, exact, address, counts)


@compiled
def fill_words(key: Any, chacha: bool, client: int, stream: int, kind: int, blocks: Any, words: Any) -> None:
    """The primary words of one client and class; chacha12 makes ``blocks`` (16, rows) for four clients at a time."""
    if not chacha:
        _philox_rows(key, client, 0, stream, kind, blocks)
        _in_order(blocks[:4], words)
        return
    if client % 4 == 0:
        _chacha_rows(key, client // 4, kind * blocks.shape[1], stream, blocks)
    _in_order(blocks[4 * (client % 4) : 4 * (client % 4) + 4], words)


@compiled
def count_class(
    left: Any,
    right: Any,
    key: Any,
    chacha: bool,
    stream: int,
    kind: int,
    plan: Any,
    exact: Any,
    counts: Any,
) -> None:
    """Add the bits of class ``kind`` of all clients to ``counts``; ``left`` has one number per client."""
    form, rate, turns, coefficients, width = plan
    clients, features = right.shape
    rows = 32 * ((features + TILE - 1) // TILE)
    blocks = np.empty((16, rows), np.uint32)
    all_words, v = np.empty(8 * rows, np.uint16), np.empty(features, np.uint16)
    words, power = all_words[:features], np.empty(features, np.float32)
    short = np.zeros(features, np.uint16)
    for i in range(clients):
        fill_words(key, chacha, i, stream, kind, blocks, all_words)
        scaled = np.float32(left[i] * rate)
        if form == 0:
            _odd_pass(right[i], scaled, coefficients, v)
        elif form == 1:
            _exponential_pass(right[i], scaled, turns, ONE, power)
            _logistic_pass(power, v)
        else:
            _exponential_pass(right[i], scaled, turns, -ONE, power)
            _laplace_pass(power, right[i], scaled, v)
        if _compare_pass(words, v, np.uint16(width), short):
            _settle(right[i], left[i], words, v, width, exact, (key, chacha, i, stream, kind, rows), short)
        if i % MOST == MOST - 1 or i == clients - 1:
            for f in range(features):
                counts[f] += np.int32(short[f])
            short[:] = 0


@compiled
def _products(right: Any, left: Any, out: Any) -> None:
    """Exact: two float32 numbers multiply to a float64."""
    for i in range(out.size):
        out[i] = np.float64(right[i]) * np.float64(left)


@compiled
def _ties(key: Any, client: int, stream: int, kind: int, features: Any, out: Any) -> None:
    """The tie words of some features."""
    x = np.empty((4, 1), np.uint32)
    for i in range(out.size):
        f = features[i]
        row, place = 32 * (f // TILE) + f % 32, f % TILE // 32
        _philox_rows(key, client, row, stream, kind + ((1 + place // 2) << KIND), x)
        low, high = x[2 * (place % 2), 0], x[2 * (place % 2) + 1, 0]
        out[i] = np.uint64(low) | (np.uint64(high & np.uint32(0xFFFF)) << np.uint64(32))


@compiled
def _add_codes(codes: Any, table: Any, sums: Any) -> None:
    for i in range(sums.size):
        sums[i] += table[codes[i]]


@compiled
def sum_class(
    left: Any,
    right: Any,
    key: Any,
    stream: int,
    kind: int,
    plan: Any,
    lines: Any,
    code: Any,
    exact: Any,
    table: Any,
    sums: Any,
) -> None:
    """Add table[code] of class ``kind`` of all clients to ``sums``; ``left`` has one number per client."""
    gain, low, high, inverse, offset = plan
    numbers, clamp, knots, tables = exact
    clients, features = right.shape
    rows = 32 * ((features + TILE - 1) // TILE)
    top = np.nextafter(np.float64(code.shape[0]), 0.0)
    blocks, all_words = np.empty((4, rows), np.uint32), np.empty(8 * rows, np.uint16)
    words = all_words[:features]
    x, cell, part = np.empty(features), np.empty(features, np.int32), np.empty(features, np.float32)
    codes, listed = np.empty(features, np.uint8), np.empty(features + 1, np.int32)
    undecided = (np.empty(features, np.int64), np.empty(features, np.uint16), np.empty(features))
    ties, settled = np.empty(features, np.uint64), np.empty(features, np.uint8)
    for i in range(clients):
        fill_words(key, False, i, stream, kind, blocks, all_words)
        _products(right[i], left[i], x)
        position_pass(x, gain, low, high, inverse, offset, top, cell, part)
        lookup_pass(cell, words, code, codes)
        left_open = listed[: list_open(codes, listed)]
        found = settle_open(left_open, x, words, cell, part, lines, codes, 0, undecided, 0)
        if found > 0:
            index, word, value = undecided[0][:found], undecided[1][:found], undecided[2][:found]
            _ties(key, i, stream, kind, index, ties[:found])
            resolve(value, word, ties[:found], numbers, clamp, knots, tables, settled[:found])
            for n in range(found):
                codes[index[n]] = settled[n]
        _add_codes(codes, table, sums)
