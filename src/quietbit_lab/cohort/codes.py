"""The cohort of `sums.py` for mechanisms of several bits: sums of table[code] over clients, codes never written.

Idea     the interpolated mechanism's sampler draws a code for each product left * right; a server adds up table[code],
         as `Kernel.accumulate` does with payloads. Whole numbers, so neither the order of clients nor the device
         matters. With `FixedPoint.of(alphabet, m).table` the mean of decoded values follows; with 0 .. B-1 the sum
         of codes.
Symbols  as in `sums.py` and `sampler.py`: x = 1/2 + scale left right. Codes are those of the per-client path: each
         word of `words.py` (philox) goes through the sampler's law.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import require, require_module
from quietbit.kernel.law import Gain
from quietbit.kernel.reference import exact_codes
from quietbit.kernel.sampler import Sampler, level_knots
from quietbit.kernel.tables import cell_table
from quietbit_lab.cohort.sums import FEW, WORKING_SET, check_factors, device_key, each_class, stream_numbers
from quietbit_lab.cohort.words import words_of

__all__ = ["reference_sums", "sum_codes"]

MOST_BITS = 8


def sum_codes(sampler: Sampler, left: Any, right: Any, *, table: Any, words_key: Any, streams: Any = None) -> Any:
    """The sum of table[code] over clients, for each configuration, class and feature: an int64 tensor (G, K, F).

    Args:
        sampler: of 1 to 8 bits, with a scale from 2^-90 to 2^90; it clamps x by itself.
        left: float32 tensor (G, m, K): clipped residuals, in the units of the sampler's inputs.
        right: float32 tensor (m, F) on the same device.
        table: 2^bits whole numbers; that sums over m clients fit 63 bits is the caller's to see to.
        words_key: as in `count_ones`; words come from Philox, which is no cipher: for simulations.
        streams: as in `count_ones`.
    """
    torch = require_module("torch", "torch")
    require(isinstance(sampler, Sampler) and sampler.bits <= MOST_BITS, "sampler", sampler, "a Sampler of 1 to 8 bits")
    require(2.0**-90 <= sampler.scale <= 2.0**90, "scale", sampler.scale, "from 2^-90 to 2^90")
    values = np.ascontiguousarray(table, dtype=np.int64)
    require(values.shape == (sampler.symbols,), "shape of the table", values.shape, f"({sampler.symbols},)")
    check_factors(torch, left, right)
    key = device_key(torch, words_key, left.device)
    numbers = stream_numbers(torch, streams, left)
    if left.device.type == "cuda":
        from quietbit_lab.cohort.triton_host import sum_on_device

        return sum_on_device(sampler, left, right, values, key, numbers)
    words = tuple(int(word) & 0xFFFFFFFF for word in key.tolist())
    arrays = left.detach().contiguous().numpy(), right.detach().contiguous().numpy()
    if find_spec("numba") is None:
        return torch.from_numpy(reference_sums(sampler, *arrays, values, words, numbers.tolist()))
    return torch.from_numpy(_compiled_sums(sampler, *arrays, values, words, numbers.tolist(), torch.get_num_threads()))


def reference_sums(
    sampler: Sampler, left: Any, right: Any, table: NDArray[np.int64], key: tuple[int, ...], streams: list[int]
) -> NDArray[np.int64]:
    """The same sums, slowly and obviously: numpy, every code by the exact law."""
    groups, clients, classes = left.shape
    sums = np.zeros((groups, classes, right.shape[1]), dtype=np.int64)
    step = max(1, WORKING_SET // max(1, classes * right.shape[1]))
    for g in range(groups):
        for start in range(0, clients, step):
            chosen = np.arange(start, min(clients, start + step))
            values = left[g, chosen].astype(np.float64)[:, :, None] * right[chosen].astype(np.float64)[:, None, :]
            primary, ties = words_of(key, "philox", streams[g], chosen, classes, right.shape[1])
            words = primary.reshape(-1).astype(np.uint16), ties.reshape(-1).astype(np.uint64)
            codes = exact_codes(sampler, values.reshape(-1), 1.0, *words)
            sums[g] += table[codes].reshape(values.shape).sum(axis=0)
    return sums


def _compiled_sums(
    sampler: Sampler,
    left: Any,
    right: Any,
    table: NDArray[np.int64],
    key: tuple[int, ...],
    streams: list[int],
    threads: int,
) -> NDArray[np.int64]:
    """The same sums by numba; a thread owns one class of one configuration at a time."""
    from quietbit_lab.cohort.compiled import sum_class

    groups, _, classes = left.shape
    sums = np.zeros((groups, classes, right.shape[1]), dtype=np.int64)
    cells, gain = cell_table(sampler), Gain.of(1.0, sampler.scale)
    plan = (gain.approximate(), *sampler.t_range, cells.inverse, cells.offset)
    lines = (np.float32(cells.half), cells.start, cells.step, cells.lowest, cells.highest)
    law = (sampler.base, sampler.base_tail, sampler.slope, sampler.slope_tail)
    exact = ((gain.first, gain.second, gain.high, gain.low), sampler.t_range, level_knots(sampler.levels), law)
    words = np.array(key, dtype=np.uint32)

    def work(pair: tuple[int, int]) -> None:
        g, k = pair
        column = np.ascontiguousarray(left[g, :, k])
        sum_class(column, right, words, streams[g], k, plan, lines, cells.code, exact, table, sums[g, k])

    each_class(work, groups, classes, threads if sums.size * right.shape[0] >= FEW else 1)
    return sums
