"""Compiled sampling: float32 decisions in passes over pieces that fit the first-level cache.

Idea     a pass is a plain loop over contiguous arrays, which the compiler turns into vector instructions;
         fusing the passes or indexing with offsets costs a factor of five. Undecided coordinates are written
         to a list (index, word, value) and settled later by `compiled_law.resolve`.
Symbols  w the primary word, T = floor of the lowered polynomial, width, half, code, lowest: see `tables.py`.
         A list of undecided coordinates is the tuple (index, word, value); ``found`` is how many it holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quietbit.kernel.compiled_bits import pack_bytes, pack_flags
from quietbit.kernel.jit import compiled, compiled_fast

__all__ = ["PIECE", "place_codes", "sample_cells", "sample_one_bit"]

PIECE = 2048  # coordinates in a pass: 20 kB of inputs, words and results


@compiled_fast
def _polynomial_pass(x: Any, gain: Any, shift: Any, low: Any, high: Any, coefficients: Any, out: Any) -> None:
    """T of each input; a NaN is treated as the low end."""
    for i in range(out.size):
        z = np.float32(x[i] * gain + shift)
        z = z if z > low else low
        z = z if z < high else high
        square = z * z
        q = coefficients[1]
        for k in range(2, len(coefficients)):
            q = q * square + coefficients[k]
        out[i] = np.uint16(np.int32(q * z + coefficients[0]))


@compiled
def _compare_pass(words: Any, floors: Any, width: Any, out: Any) -> None:
    """Bit 0: the code; bit 1: undecided. The difference wraps around, which at worst asks once too often."""
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
def sample_one_bit(x: Any, words: Any, out: Any, start: int, plan: Any, undecided: Any, found: int) -> int:
    """Pack one bit per input into ``out``; returns how many undecided coordinates are listed now."""
    gain, shift, low, high, coefficients, width = plan
    floors = np.empty(PIECE, np.uint16)
    pairs = np.empty(PIECE, np.uint8)
    flags = np.empty(PIECE // 8, np.uint8)
    full = x.size - x.size % PIECE
    for s in range(0, full, PIECE):
        _polynomial_pass(x[s : s + PIECE], gain, shift, low, high, coefficients, floors)
        _compare_pass(words[s : s + PIECE], floors, width, pairs)
        pack_flags(pairs.view(np.uint64), out[s // 8 : (s + PIECE) // 8], flags)
        part = x[s : s + PIECE]
        found = _collect(flags.view(np.uint64), part, words[s : s + PIECE], start + s, undecided, found)
    rest = x.size - full
    if rest > 0:
        pairs[:] = 0
        _polynomial_pass(x[full:], gain, shift, low, high, coefficients, floors[:rest])
        _compare_pass(words[full:], floors[:rest], width, pairs[:rest])
        last = np.empty(PIECE // 8, np.uint8)
        pack_flags(pairs.view(np.uint64), last, flags)
        out[full // 8 :] = last[: (rest + 7) // 8]
        found = _collect(flags.view(np.uint64), x[full:], words[full:], start + full, undecided, found)
    return found


@compiled_fast
def _position_pass(
    x: Any, gain: Any, low: Any, high: Any, inverse: Any, offset: Any, top: Any, cell: Any, part: Any
) -> None:
    """Cell and fraction of each input, in double precision; a NaN is treated as the low end."""
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
    for i in range(out.size):
        out[i] = code[cell[i], words[i] >> np.uint16(8)]


@compiled
def _list_open(codes: Any, listed: Any) -> int:
    """Positions the look-up left open, collected without a branch that could be mispredicted."""
    count = 0
    for i in range(codes.size):
        listed[count] = i
        count += codes[i] == 255
    return count


@compiled
def _settle(
    listed: Any,
    x: Any,
    words: Any,
    cell: Any,
    part: Any,
    table: Any,
    codes: Any,
    start: int,
    undecided: Any,
    found: int,
) -> int:
    """Compare open coordinates with the thresholds in question; list those that come too close to one."""
    half, line_start, line_step, lowest, highest = table
    index, word, value = undecided
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
def sample_cells(
    x: Any,
    words: Any,
    out: Any,
    start: int,
    bits: int,
    plan: Any,
    table: Any,
    code: Any,
    undecided: Any,
    found: int,
) -> int:
    """Pack ``bits`` bits per input into ``out``; returns how many undecided coordinates are listed now."""
    gain, low, high, inverse, offset = plan
    top = np.nextafter(np.float64(code.shape[0]), 0.0)
    cell = np.empty(PIECE, np.int32)
    part = np.empty(PIECE, np.float32)
    codes = np.empty(PIECE, np.uint8)
    listed = np.empty(PIECE + 1, np.int32)
    packed = np.empty(PIECE * bits // 8, np.uint8)
    for s in range(0, x.size, PIECE):
        size = min(PIECE, x.size - s)
        piece, chosen = x[s : s + size], words[s : s + size]
        _position_pass(piece, gain, low, high, inverse, offset, top, cell[:size], part[:size])
        _lookup_pass(cell[:size], chosen, code, codes[:size])
        left = listed[: _list_open(codes[:size], listed)]
        found = _settle(left, piece, chosen, cell, part, table, codes, start + s, undecided, found)
        codes[size:] = 0
        pack_bytes(codes.view(np.uint64), bits, packed)
        begin = s * bits // 8
        count = (size * bits + 7) // 8
        out[begin : begin + count] = packed[:count]
    return found


@compiled
def place_codes(out: Any, bits: int, index: Any, codes: Any) -> None:
    """Overwrite the packed codes at the given positions."""
    for i in range(index.size):
        for j in range(bits):
            at = index[i] * bits + j
            mask = np.uint8(1) << np.uint8(at % 8)
            bit = (np.uint8(codes[i]) >> np.uint8(j)) & np.uint8(1)
            out[at // 8] = (out[at // 8] & ~mask) | np.uint8(bit << np.uint8(at % 8))
