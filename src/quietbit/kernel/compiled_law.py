"""The law of `law.py` for one coordinate, compiled: what undecided coordinates go through.

Idea     the same functions, operator by operator, registered with the compiler instead of written again.
         Importing this module needs numba; `cpu.py` imports it when a kernel is made.
Symbols  as in `sampler.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from quietbit.kernel import law
from quietbit.kernel.jit import compiled
from quietbit.kernel.law import CEILING, FLOOR, POWER_OFFSET, POWERS

__all__ = ["resolve"]

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
def _weights(
    base: Any, base_tail: Any, slope: Any, slope_tail: Any, t: float, t_low: float, high: Any, low: Any
) -> None:
    """Unnormalised weights of all symbols into ``high``; plain loops over contiguous rows vectorise."""
    peak = -np.inf
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
    """Sklansky's order, as in the reference."""
    half = 1
    while half < sums.size:
        for start in range(half, sums.size, 2 * half):
            left = sums[start - 1]
            for j in range(start, start + half):
                sums[j] += left
        half *= 2


@compiled
def resolve(
    values: Any,
    primary: Any,
    ties: Any,
    gain: tuple[float, float, float, float],
    clamp: tuple[float, float],
    knots: tuple[Any, Any],
    tables: tuple[Any, Any, Any, Any],
    codes: Any,
) -> None:
    """The exact code of every listed value from its 16 primary and 48 tie bits."""
    base, base_tail, slope, slope_tail = tables
    symbols = base.shape[1]
    sums = np.empty(symbols)
    low = np.empty(symbols)
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
        _weights(base[row], base_tail[row], slope[row], slope_tail[row], t, t_low, sums, low)
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
        codes[i] = code
