"""Compiled bit work and sums: packing, unpacking, counting packed bits, block sums of norms, second looks.

Idea     eight codes are one 64-bit word; three shift-and-mask steps squeeze them together (or spread them
         again). Fifteen packed payloads are added coordinate by coordinate with carry-save adders: 11 full
         adders on 64 coordinates at a time give four bit planes, which are spilled into the total once per
         fifteen payloads. Importing this module needs numba.
Symbols  b = bits; a plane's bit k belongs to coordinate k of its word.
Source   Warren, Hacker's Delight (2012), chapters 5 and 7; Mula, Kurz, Lemire (2018) on carry-save
         population counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quietbit.kernel.jit import compiled, compiled_sum
from quietbit.kernel.norm import BLOCK, LANES, ROWS

__all__ = [
    "GROUP", "PIECE", "add_lookup", "block_sums", "count_group", "look", "pack_bytes", "pack_flags", "unpack_bytes",
]  # fmt: skip

GROUP = 15  # payloads added at once: what four planes can hold
SPAN = 64  # words of a plane handled in one pass
PIECE = 2048  # coordinates in a pass: 20 kB of inputs, words and results

ONE, TWO, THREE = np.uint32(1), np.uint32(2), np.uint32(3)
LOW_BITS = np.uint64(0x0101010101010101)
GATHER = np.uint64(0x0102040810204080)  # times a word of 0/1 bytes: their bits in the top byte


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
                n = (
                    ((a >> s) & ONE)
                    | (((b >> s) & ONE) << ONE)
                    | (((c >> s) & ONE) << TWO)
                    | (((d >> s) & ONE) << THREE)
                )
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
