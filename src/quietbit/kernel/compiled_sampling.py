"""Compiled sampling: float32 decisions in passes that fit the first-level cache, the exact law for the rest.

Idea     a pass is a plain loop over contiguous arrays, which the compiler turns into vector instructions;
         fusing the passes or indexing with offsets costs a factor of five. Undecided coordinates are written
         to a list (index, word, value) and settled later by `resolve`. A second look (`norm.py`) samples
         private copies of the pieces and adds up what they hold. Importing this module needs numba.
Law      undecided coordinates go through the functions of `law.py`, operator by operator, which are registered with
         the compiler instead of rewritten.
Symbols  w the primary word, V, width, half, code, lowest: see `tables.py`.
         A list of undecided coordinates is the tuple (index, word, value); ``found`` is how many it holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from quietbit.kernel import law
from quietbit.kernel.compiled_bits import PIECE, look, pack_bytes, pack_flags
from quietbit.kernel.jit import compiled, compiled_fast
from quietbit.kernel.law import CEILING, FLOOR, POWER_OFFSET, POWERS

__all__ = ["resolve", "sample_cells", "sample_one_bit"]

two_sum = register_jitable(law.two_sum)
two_product = register_jitable(law.two_product)
shift = register_jitable(law.shift)
log_weight = register_jitable(law.log_weight)
reduce_exponent = register_jitable(law.reduce_exponent)
exponential = register_jitable(law.exponential)


@compiled
def _segment(t: float, t_low: float, knots: Any, tails: Any) -> Any:
    last = knots.size - 2
    if last == 0:
        return 0
    index = int(np.floor((t + 0.5) * (knots.size - 1)))
    index = min(max(index, 0), last)
    below = ((t - knots[index]) + (t_low - tails[index])) < 0
    above = ((t - knots[index + 1]) + (t_low - tails[index + 1])) >= 0
    if below:
        index -= 1
    if above:
        index += 1
    return min(max(index, 0), last)


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
        if not (difference > FLOOR):
            difference = FLOOR
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
        if not (scaled > -CEILING):
            scaled = -CEILING
        if not (scaled < CEILING):
            scaled = CEILING
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
def _one_bit_piece(x: Any, words: Any, out: Any, start: int, plan: Any, room: Any, undecided: Any, found: int) -> int:
    """Sample at most PIECE inputs, one bit each; return how many coordinates are now listed as undecided."""
    gain, shift, low, coefficients, width = plan
    floors, pairs, packed, flags = room
    size = x.size
    if size < PIECE:
        pairs[:] = 0
    _polynomial_pass(x, gain, shift, low, coefficients, floors[:size])
    _compare_pass(words, floors[:size], width, pairs[:size])
    if size == PIECE:
        pack_flags(pairs.view(np.uint64), out, flags)
    else:
        pack_flags(pairs.view(np.uint64), packed, flags)
        out[:] = packed[: (size + 7) // 8]
    return _collect(flags.view(np.uint64), x, words, start, undecided, found)


@compiled
def sample_one_bit(plan: Any, order: int, x: Any, words: Any, out: Any, start: int, undecided: Any, found: int) -> Any:
    """Pack one bit per input into ``out``; return how many coordinates are now listed as undecided, and a sum.

    With an ``order`` private copies are sampled, and ``|value|^order`` of all sampled values is added up.
    """
    packed, flags = np.empty(PIECE // 8, np.uint8), np.empty(PIECE // 8, np.uint8)
    room = (np.empty(PIECE, np.uint16), np.empty(PIECE, np.uint8), packed, flags)
    own, total = np.empty(PIECE, x.dtype), 0.0
    for s in range(0, x.size, PIECE):
        e = min(x.size, s + PIECE)
        piece = x[s:e]
        if order != 0:
            total += look(piece, own[: e - s], order)
            piece = own[: e - s]
        found = _one_bit_piece(piece, words[s:e], out[s // 8 : (e + 7) // 8], start + s, plan, room, undecided, found)
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
    cell, part, codes = room[:3]
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
def _cells_piece(x: Any, words: Any, out: Any, start: int, law: Any, room: Any, undecided: Any, found: int) -> int:
    """Sample at most PIECE inputs by cells; return how many coordinates are now listed as undecided."""
    bits, plan, table, code = law
    cell, part, codes, listed, packed = room
    size = x.size
    _position_pass(x, plan, np.nextafter(np.float64(code.shape[0]), 0.0), cell[:size], part[:size])
    _lookup_pass(cell[:size], words, code, codes[:size])
    left = listed[: _list_open(codes[:size], listed)]
    found = _settle_open(left, x, words, room, table, start, undecided, found)
    codes[size:] = 0
    pack_bytes(codes.view(np.uint64), bits, packed)
    out[:] = packed[: out.size]
    return found


@compiled
def sample_cells(law: Any, order: int, x: Any, words: Any, out: Any, start: int, undecided: Any, found: int) -> Any:
    """Pack ``bits`` bits per input into ``out``; otherwise as `sample_one_bit`. ``law``: bits, plan, table, codes."""
    bits, own, total = law[0], np.empty(PIECE, x.dtype), 0.0
    codes, packed = np.empty(PIECE, np.uint8), np.empty(PIECE * bits // 8, np.uint8)
    room = (np.empty(PIECE, np.int32), np.empty(PIECE, np.float32), codes, np.empty(PIECE + 1, np.int32), packed)
    for s in range(0, x.size, PIECE):
        e = min(x.size, s + PIECE)
        piece, target = x[s:e], out[s * bits // 8 : (e * bits + 7) // 8]
        if order != 0:
            total += look(piece, own[: e - s], order)
            piece = own[: e - s]
        found = _cells_piece(piece, words[s:e], target, start + s, law, room, undecided, found)
    return found, total
