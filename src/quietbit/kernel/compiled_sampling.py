"""Compiled sampling, packing and sums: float32 decisions in passes that fit the cache, the exact law for the rest.

Idea     a pass is a plain loop over contiguous arrays, which the compiler turns into vector instructions; fusing the
         passes or indexing with offsets costs a factor of five. Undecided coordinates are written to a list (index,
         word, value), ``found`` long, and settled later by `resolve`, with the functions of `sampler.py` themselves.
Bits     eight codes are one 64-bit word; three shift-and-mask steps squeeze them together or spread them again.
         Fifteen packed payloads are added with carry-save adders: 11 full adders on 64 coordinates at a time give four
         bit planes, which are spilled into the total once per fifteen payloads.
Symbols  w the primary word, V, width, half, code, lowest: see `tables.py`; a plane's bit k belongs to coordinate k.
Source   Warren, Hacker's Delight (2012), chapters 5 and 7; Mula, Kurz, Lemire (2018) on carry-save population counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from quietbit.kernel.jit import compiled, compiled_fast, compiled_sum
from quietbit.kernel.norm import BLOCK, LANES, ROWS
from quietbit.kernel.sampler import CEILING, FLOOR, LAW, POWER_OFFSET, POWERS

__all__ = [
    "GROUP", "add_lookup", "block_sums", "count_group", "pack_bytes", "resolve", "sample_cells", "sample_one_bit",
    "unpack_bytes",
]  # fmt: skip

GROUP = 15  # payloads added at once: what four planes can hold
SPAN = 64  # words of a plane handled in one pass
PIECE = 2048  # coordinates in a pass: 20 kB of inputs, words and results

ONE, TWO, THREE = np.uint32(1), np.uint32(2), np.uint32(3)
LOW_BITS = np.uint64(0x0101010101010101)
GATHER = np.uint64(0x0102040810204080)  # times a word of 0/1 bytes: their bits in the top byte
two_sum, two_product, shift, log_weight, reduce_exponent, exponential = (register_jitable(step) for step in LAW)


@compiled
def pack_flags(pairs: Any, low: Any, high: Any) -> None:
    """Pack bit 0 of every byte into ``low``, bit 1 into ``high``; ``pairs`` are the bytes as 64-bit words."""
    for i in range(low.size):
        low[i] = np.uint8(((pairs[i] & LOW_BITS) * GATHER) >> np.uint64(56))
    for i in range(low.size):
        high[i] = np.uint8((((pairs[i] >> np.uint64(1)) & LOW_BITS) * GATHER) >> np.uint64(56))


@compiled
def _mask(width: int, period: int) -> Any:
    """Return ones in the low ``width`` bits of every ``period`` bits."""
    ones = ~np.uint64(0) if width >= 64 else (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    mask = np.uint64(0)
    for start in range(0, 64, period):
        mask |= ones << np.uint64(start)
    return mask


@compiled
def pack_bytes(words: Any, bits: int, out: Any) -> None:
    """Pack eight codes per word, ``bits`` <= 8, into ``bits`` bytes of ``out`` each; overwrites the words."""
    if bits == 1:
        for i in range(words.size):
            out[i] = np.uint8((words[i] * GATHER) >> np.uint64(56))
        return
    one, two, four = _mask(bits, 16), _mask(2 * bits, 32), _mask(4 * bits, 64)
    s1, s2, s3 = np.uint64(8 - bits), np.uint64(16 - 2 * bits), np.uint64(32 - 4 * bits)
    t1, t2, t3 = one << np.uint64(bits), two << np.uint64(2 * bits), four << np.uint64(4 * bits)
    for i in range(words.size):
        v = words[i]
        v = (v & one) | ((v >> s1) & t1)
        v = (v & two) | ((v >> s2) & t2)
        words[i] = (v & four) | ((v >> s3) & t3)
    if bits == 2:
        pairs = out.view(np.uint16)
        for i in range(words.size):
            pairs[i] = np.uint16(words[i])
    elif bits == 4:
        quads = out.view(np.uint32)
        for i in range(words.size):
            quads[i] = np.uint32(words[i])
    else:
        for i in range(words.size):
            for k in range(bits):
                out[i * bits + k] = np.uint8((words[i] >> np.uint64(8 * k)) & np.uint64(255))


@compiled
def unpack_bytes(data: Any, bits: int, words: Any) -> None:
    """Invert `pack_bytes`: ``data`` holds ``bits`` bytes per word."""
    one, two, four = _mask(bits, 16), _mask(2 * bits, 32), _mask(4 * bits, 64)
    s1, s2, s3 = np.uint64(8 - bits), np.uint64(16 - 2 * bits), np.uint64(32 - 4 * bits)
    t1, t2, t3 = one << np.uint64(bits), two << np.uint64(2 * bits), four << np.uint64(4 * bits)
    for i in range(words.size):
        v = np.uint64(0)
        for k in range(bits):
            v |= np.uint64(data[i * bits + k]) << np.uint64(8 * k)
        v = (v & four) | ((v & t3) << s3)
        v = (v & two) | ((v & t2) << s2)
        words[i] = (v & one) | ((v & t1) << s1)


@compiled
def _full_adder(a: Any, b: Any, c: Any) -> Any:
    half = a ^ b
    return half ^ c, (a & b) | (half & c)


@compiled
def _planes(rows: Any, start: int, ones: Any, twos: Any, fours: Any, eights: Any) -> None:
    """Add fifteen rows bit by bit into four planes."""
    r0, r1, r2, r3, r4 = rows[0, start:], rows[1, start:], rows[2, start:], rows[3, start:], rows[4, start:]
    r5, r6, r7, r8, r9 = rows[5, start:], rows[6, start:], rows[7, start:], rows[8, start:], rows[9, start:]
    r10, r11, r12, r13, r14 = (rows[10, start:], rows[11, start:], rows[12, start:], rows[13, start:], rows[14, start:])
    for i in range(ones.size):
        a, a2 = _full_adder(r0[i], r1[i], r2[i])
        b, b2 = _full_adder(r3[i], r4[i], r5[i])
        c, c2 = _full_adder(r6[i], r7[i], r8[i])
        d, d2 = _full_adder(r9[i], r10[i], r11[i])
        e, e2 = _full_adder(r12[i], r13[i], r14[i])
        f, f2 = _full_adder(a, b, c)
        ones[i], g2 = _full_adder(d, e, f)
        h, h4 = _full_adder(a2, b2, c2)
        j, j4 = _full_adder(d2, e2, f2)
        twos[i], k4 = _full_adder(g2, h, j)
        fours[i], eights[i] = _full_adder(h4, j4, k4)


@compiled
def count_group(rows: Any, base: Any, step: Any, total: Any) -> None:
    """Add ``base + step * (number of ones)`` per coordinate; ``rows`` is (GROUP, words) of packed bits."""
    planes = np.empty((4, SPAN), np.uint64)
    octets = planes.view(np.uint8)
    for start in range(0, rows.shape[1], SPAN):
        size = min(SPAN, rows.shape[1] - start, (total.size - 64 * start + 63) // 64)
        if size <= 0:
            return
        _planes(rows, start, planes[0, :size], planes[1, :size], planes[2, :size], planes[3, :size])
        for i in range(min(8 * size, (total.size - 64 * start) // 8)):
            a, b = np.uint32(octets[0, i]), np.uint32(octets[1, i])
            c, d = np.uint32(octets[2, i]), np.uint32(octets[3, i])
            at = 64 * start + 8 * i
            for j in range(8):
                s = np.uint32(j)
                n = (a >> s & ONE) | (b >> s & ONE) << ONE | (c >> s & ONE) << TWO | (d >> s & ONE) << THREE
                total[at + j] += base + step * n
        rest = min(64 * size, total.size - 64 * start)
        for k in range(rest - rest % 8, rest):
            count = 0
            for plane in range(4):
                count += ((octets[plane, k // 8] >> (k % 8)) & 1) << plane
            total[64 * start + k] += base + step * count


@compiled
def add_lookup(codes: Any, table: Any, total: Any) -> None:
    """Add ``table[code]`` to each coordinate."""
    for i in range(total.size):
        total[i] += table[codes[i]]


@compiled
def _add_row(x: Any, scale: Any, order: int, lanes: Any) -> None:
    if order == 2 and scale == 1.0:
        for j in range(lanes.size):
            v = np.float64(x[j])
            lanes[j] += v * v
    elif order == 2:
        for j in range(lanes.size):
            v = np.float64(x[j]) * scale
            lanes[j] += v * v
    else:
        for j in range(lanes.size):
            lanes[j] += abs(np.float64(x[j]) * scale)


@compiled
def _halve(lanes: Any, half: int) -> None:
    for j in range(half):
        lanes[j] += lanes[j + half]


@compiled
def block_sums(x: Any, scale: float, order: int, out: Any) -> None:
    """Write one sum of ``|scale * x|^order`` per block, in the order that `norm.py` fixes.

    It reads row after row, as memory is fastest: four rows at once, with the lanes in registers, took twice as long.
    """
    lanes = np.empty(LANES)
    for block in range(out.size):
        lanes[:] = 0.0
        rest = min(BLOCK, x.size - block * BLOCK)
        for row in range(ROWS):
            at = block * BLOCK + row * LANES
            size = min(LANES, rest - row * LANES)
            if size > 0:
                _add_row(x[at : at + size], scale, order, lanes[:size])
        _halve(lanes, 128)  # written out: a loop over halves is slower
        _halve(lanes, 64)
        _halve(lanes, 32)
        _halve(lanes, 16)
        _halve(lanes, 8)
        out[block] = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))


@compiled_sum
def look(x: Any, own: Any, order: int) -> float:
    """Copy values into private memory and add up ``|value|^order`` of the copy; each is loaded once."""
    total = 0.0
    for i in range(own.size):
        value = x[i]
        own[i] = value
        wide = np.float64(value)
        total += wide * wide if order == 2 else abs(wide)
    return total


@compiled
def _segment(t: float, t_low: float, knots: Any, tails: Any) -> Any:
    last = knots.size - 2
    index = min(max(int(np.floor((t + 0.5) * (knots.size - 1))), 0), last)
    below = ((t - knots[index]) + (t_low - tails[index])) < 0
    above = ((t - knots[index + 1]) + (t_low - tails[index + 1])) >= 0
    return min(max(index - int(below) + int(above), 0), last)


@compiled
def _weights(tables: Any, row: int, t: float, t_low: float, high: Any, low: Any) -> None:
    """Write the unnormalised weights of all symbols into ``high``; plain loops over contiguous rows vectorise."""
    peak, (bases, base_tails, slopes, slope_tails) = -np.inf, tables
    base, base_tail, slope, slope_tail = bases[row], base_tails[row], slopes[row], slope_tails[row]
    for j in range(high.size):
        high[j], low[j] = log_weight(base[j], base_tail[j], slope[j], slope_tail[j], t, t_low)
    for j in range(high.size):
        peak = max(peak, high[j])
    for j in range(high.size):
        difference, lost = two_sum(high[j], -peak)
        difference = difference if difference > FLOOR else FLOOR
        exponent, remainder = reduce_exponent(difference, low[j] + lost)
        high[j] = exponential(remainder) * POWERS[int(exponent) + POWER_OFFSET]


@compiled
def _prefix_sums(sums: Any) -> None:
    """Add up in Sklansky's order, as in the reference."""
    half = 1
    while half < sums.size:
        for start in range(half, sums.size, 2 * half):
            left = sums[start - 1]
            for j in range(start, start + half):
                sums[j] += left
        half *= 2


@compiled
def resolve(listed: Any, ties: Any, law: Any, bits: int, out: Any) -> None:
    """Overwrite the packed code of every listed value by the exact one, from its 16 primary and 48 tie bits."""
    (index, primary, values), (gain, clamp, knots, tables) = listed, law
    symbols = tables[0].shape[1]
    sums, low = np.empty(symbols), np.empty(symbols)
    for i in range(values.size):
        scaled = values[i] * gain[0] * gain[1]
        scaled = scaled if scaled > -CEILING else -CEILING
        scaled = scaled if scaled < CEILING else CEILING
        t, t_low = shift(scaled, gain[2], gain[3])
        if ((t - clamp[0]) + t_low) < 0:
            t, t_low = clamp[0], 0.0
        elif ((t - clamp[1]) + t_low) > 0:
            t, t_low = clamp[1], 0.0
        row = _segment(t, t_low, knots[0], knots[1])
        _weights(tables, row, t, t_low, sums, low)
        _prefix_sums(sums)
        first = np.int64(primary[i])
        second = np.int64(ties[i] & np.uint64(0xFFFFFFFFFFFF))
        code = 0
        for k in range(symbols - 1):
            scaled_up = sums[k] / sums[symbols - 1] * 65536.0
            upper = np.floor(scaled_up)
            lower = np.floor((scaled_up - upper) * 281474976710656.0)
            if first > np.int64(upper) or (first == np.int64(upper) and second >= np.int64(lower)):
                code += 1
        for j in range(bits):
            at = index[i] * bits + j
            mask = np.uint8(1) << np.uint8(at % 8)
            out[at // 8] = (out[at // 8] & ~mask) | np.uint8(((code >> j) & 1) << (at % 8))


@compiled_fast
def _polynomial_pass(x: Any, gain: Any, shift: Any, low: Any, coefficients: Any, out: Any) -> None:
    """Compute V of each input; a NaN is treated as the low end."""
    for i in range(out.size):
        z = np.float32(x[i] * gain + shift)
        z = z if z > low else low
        z = z if z < np.float32(1.0) else np.float32(1.0)
        q = coefficients[0]
        for k in range(1, len(coefficients)):
            q = q * z + coefficients[k]
        out[i] = np.uint16(np.int32(q))


@compiled
def _compare_pass(words: Any, floors: Any, width: Any, out: Any) -> None:
    """Set bit 0 to the code and bit 1 if undecided. The difference wraps around, which at worst asks once too often."""
    for i in range(out.size):
        above = np.uint16(words[i] - floors[i])
        out[i] = np.uint8(words[i] >= floors[i]) | (np.uint8(above <= width) << np.uint8(1))


@compiled
def _collect(flags: Any, x: Any, words: Any, first: int, undecided: Any, found: int) -> int:
    """Append the coordinates whose flag bit is set."""
    index, word, value = undecided
    for i in range(flags.size):
        left = flags[i]
        if left != 0:
            for j in range(64):
                at = 64 * i + j
                if (left >> np.uint64(j)) & np.uint64(1) and at < x.size:
                    index[found] = first + at
                    word[found] = words[at]
                    value[found] = x[at]
                    found += 1
    return found


@compiled
def sample_one_bit(plan: Any, order: int, x: Any, words: Any, out: Any, start: int, undecided: Any, found: int) -> Any:
    """Pack one bit per input into ``out``; return how many coordinates are now listed as undecided, and a sum.

    With an ``order`` private copies are sampled, and ``|value|^order`` of all sampled values is added up.
    """
    gain, shift, low, coefficients, width = plan
    floors, pairs = np.empty(PIECE, np.uint16), np.empty(PIECE, np.uint8)
    packed, flags = np.empty(PIECE // 8, np.uint8), np.empty(PIECE // 8, np.uint8)
    own, total = np.empty(PIECE, x.dtype), 0.0
    for s in range(0, x.size, PIECE):
        e = min(x.size, s + PIECE)
        piece, here, target, size = x[s:e], words[s:e], out[s // 8 : (e + 7) // 8], e - s
        if order != 0:
            total += look(piece, own[:size], order)
            piece = own[:size]
        _polynomial_pass(piece, gain, shift, low, coefficients, floors[:size])
        _compare_pass(here, floors[:size], width, pairs[:size])
        pairs[size:] = 0
        pack_flags(pairs.view(np.uint64), target if size == PIECE else packed, flags)
        if size < PIECE:
            target[:] = packed[: target.size]
        found = _collect(flags.view(np.uint64), piece, here, start + s, undecided, found)
    return found, total


@compiled_fast
def _position_pass(x: Any, plan: Any, top: Any, cell: Any, part: Any) -> None:
    """Compute cell and fraction of each input, in double precision; a NaN is treated as the low end."""
    gain, low, high, inverse, offset = plan
    for i in range(cell.size):
        t = np.float64(x[i]) * gain
        t = t if t > low else low
        t = t if t < high else high
        p = t * inverse + offset
        p = p if p > 0.0 else 0.0
        p = p if p < top else top
        k = np.int32(p)
        cell[i] = k
        part[i] = np.float32(p - np.float64(k))


@compiled
def _lookup_pass(cell: Any, words: Any, code: Any, out: Any) -> None:
    """Look up the code by cell and upper byte of the word; 255 where that does not decide it."""
    for i in range(out.size):
        out[i] = code[cell[i], words[i] >> np.uint16(8)]


@compiled
def _list_open(codes: Any, listed: Any) -> int:
    """Collect the positions that the look-up left open, without a branch that could be mispredicted."""
    count = 0
    for i in range(codes.size):
        listed[count] = i
        count += codes[i] == 255
    return count


@compiled
def _settle_open(listed: Any, x: Any, words: Any, room: Any, table: Any, start: int, undecided: Any, found: int) -> int:
    """Compare open coordinates with the thresholds in question; list those that are too close to one."""
    half, line_start, line_step, lowest, highest = table
    (cell, part, codes), (index, word, value) = room, undecided
    for at in range(listed.size):
        i = listed[at]
        row, column = cell[i], words[i] >> np.uint16(8)
        w, f = np.float32(words[i]), part[i]
        code = np.int64(lowest[row, column])
        decided = True
        for k in range(code, highest[row, column]):
            distance = w - (line_start[row, k] + line_step[row, k] * f)
            code += distance > 0
            decided &= abs(distance) >= half
        codes[i] = code
        if not decided:
            index[found] = start + i
            word[found] = words[i]
            value[found] = x[i]
            found += 1
    return found


@compiled
def sample_cells(law: Any, order: int, x: Any, words: Any, out: Any, start: int, undecided: Any, found: int) -> Any:
    """Pack ``bits`` bits per input into ``out``; otherwise as `sample_one_bit`. ``law``: bits, plan, table, codes."""
    (bits, plan, table, code), own, total = law, np.empty(PIECE, x.dtype), 0.0
    cell, part, codes = np.empty(PIECE, np.int32), np.empty(PIECE, np.float32), np.empty(PIECE, np.uint8)
    listed, packed = np.empty(PIECE + 1, np.int32), np.empty(PIECE * bits // 8, np.uint8)
    top = np.nextafter(np.float64(code.shape[0]), 0.0)
    for s in range(0, x.size, PIECE):
        e = min(x.size, s + PIECE)
        piece, here, target, size = x[s:e], words[s:e], out[s * bits // 8 : (e * bits + 7) // 8], e - s
        if order != 0:
            total += look(piece, own[:size], order)
            piece = own[:size]
        _position_pass(piece, plan, top, cell[:size], part[:size])
        _lookup_pass(cell[:size], here, code, codes[:size])
        left = listed[: _list_open(codes[:size], listed)]
        found = _settle_open(left, piece, here, (cell, part, codes), table, start + s, undecided, found)
        codes[size:] = 0
        pack_bytes(codes.view(np.uint64), bits, packed)
        target[:] = packed[: target.size]
    return found, total
