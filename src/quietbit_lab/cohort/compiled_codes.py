"""Compiled sums of table[code] over a cohort: one class of one configuration, gradients never kept.

Idea     the passes of `compiled_sampling.py` on one client's products at a time, which stay in the cache; what they
         leave open is settled at once by `compiled_law.py`. Importing this module needs numba.
Symbols  as in `compiled_cohort.py` and `compiled_sampling.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quietbit.kernel.compiled_law import resolve
from quietbit.kernel.compiled_sampling import _list_open, _lookup_pass, _position_pass, _settle
from quietbit.kernel.jit import compiled
from quietbit_lab.cohort.compiled import _philox_rows, fill_words
from quietbit_lab.cohort.words import KIND, TILE

__all__ = ["sum_class"]


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
def _add(codes: Any, table: Any, sums: Any) -> None:
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
        _position_pass(x, gain, low, high, inverse, offset, top, cell, part)
        _lookup_pass(cell, words, code, codes)
        left_open = listed[: _list_open(codes, listed)]
        found = _settle(left_open, x, words, cell, part, lines, codes, 0, undecided, 0)
        if found > 0:
            index, word, value = undecided[0][:found], undecided[1][:found], undecided[2][:found]
            _ties(key, i, stream, kind, index, ties[:found])
            resolve(value, word, ties[:found], numbers, clamp, knots, tables, settled[:found])
            for n in range(found):
                codes[index[n]] = settled[n]
        _add(codes, table, sums)
