"""Expansion on the device where tensors live: the normals, rows and sums of `expand.py`, bit for bit.

Idea     on a GPU one Triton kernel expands a payload's seed and nonce in registers and adds whole numbers to the total
         with atomic additions, which commute exactly. Where triton is missing, or the tensors are on another device,
         the same is done by torch operations one by one, 32-bit words held in 64-bit numbers.
Symbols  as in `expand.py` and `quantile.py`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import ModuleType
from typing import Any

from quietbit.errors import MissingDependency, check_int, require, require_module
from quietbit.kernel.expand import MAX_COUNT, ROWS_KEY, check_payloads, start_state, strata
from quietbit.kernel.quantile import normals_of_words_torch, quantile_table_torch

__all__ = ["accumulate_tensors", "normals_tensor"]

BLOCKS, TILE = 16, 128
MASK = 0xFFFFFFFF
PAYLOADS = 256  # expanded at once by torch operations


def normals_tensor(seeds: Any, count: int) -> Any:
    """(payloads, count) normals of a uint8 tensor of (payloads, 16) seeds, float64 on the same device."""
    torch = require_module("torch", "torch")
    require(seeds.dim() == 2 and seeds.shape[1] == 16, "seeds", tuple(seeds.shape), "(payloads, 16)")
    require(seeds.dtype == torch.uint8, "type of the seeds", str(seeds.dtype), "uint8")
    size = check_int(count, "count", 0, MAX_COUNT)
    code = _triton_code() if seeds.is_cuda else None
    if code is not None and size and seeds.shape[0]:
        keys = seeds.contiguous().view(torch.int32)
        return code.expand_normals(keys, size, quantile_table_torch(str(seeds.device)))
    return normals_of_words_torch(_words(torch, _states(torch, start_state(bytes(16)), key=seeds), size))


def accumulate_tensors(
    nonces: Any, seeds: Any, total: Any, *, count: int, shift: int, weights: Any | None = None
) -> None:
    """`expand.accumulate` for tensors: uint8 seeds and nonces, int64 total and weights, all on one device."""
    torch = require_module("torch", "torch")
    payloads = check_payloads(nonces, seeds, weights)
    fine = total.dim() == 1 and total.dtype == torch.int64 and total.is_contiguous()
    require(fine, "total", (str(total.dtype), tuple(total.shape)), "a flat, contiguous tensor of int64")
    starts = torch.from_numpy(strata(count, total.numel()).copy()).to(total.device)
    scale = math.ldexp(1.0, check_int(shift, "shift", 0, 48))
    each = torch.ones(payloads, dtype=torch.int64, device=total.device) if weights is None else weights.to(torch.int64)
    code = _triton_code() if total.is_cuda else None
    if code is not None and payloads:
        keys, tails = seeds.contiguous().view(torch.int32), nonces.contiguous().view(torch.int32)
        table = quantile_table_torch(str(total.device))
        code.add_payloads(tails, keys, each, starts, count, scale, table, start_state(ROWS_KEY), total)
        return
    width = torch.diff(starts)
    for first in range(0, payloads, PAYLOADS):
        part = slice(first, first + PAYLOADS)
        z = normals_of_words_torch(_words(torch, _states(torch, start_state(bytes(16)), key=seeds[part]), count))
        words = _words(torch, _states(torch, start_state(ROWS_KEY), nonce=nonces[part]), count)
        carried = ((words & MASK) * width) >> 32
        # Widths are at most 2^24: no product reaches the sign bit.
        chosen = starts[:-1] + ((((words >> 32) & MASK) * width + carried) >> 32)
        numbers = torch.round(z * scale).to(torch.int64) * each[part, None]
        total.index_add_(0, chosen.reshape(-1), numbers.reshape(-1))


def _states(torch: ModuleType, start: Any, key: Any = None, nonce: Any = None) -> Any:
    """(payloads, 16) start states with keys or nonces put in."""
    given = key if key is not None else nonce
    words = given.contiguous().view(torch.int32).to(torch.int64) & MASK
    state = torch.tensor(start.tolist(), dtype=torch.int64, device=given.device).repeat(given.shape[0], 1)
    if key is not None:
        state[:, 4:8] = words
        state[:, 8:12] = words
    else:
        state[:, 14:16] = words
    return state


def _words(torch: ModuleType, state: Any, count: int) -> Any:
    """(payloads, count) words in the order of tiles, as the bits of int64 numbers."""
    tiles = -(-count // TILE)
    number = torch.arange(tiles * BLOCKS, dtype=torch.int64, device=state.device)
    start = [state[:, word, None].expand(-1, number.numel()) for word in range(16)]
    start[12], start[13] = start[12] + (number & MASK), start[13] + (number >> 32)
    x = list(start)
    for turn in range(20):
        for column in range(4):
            a, b, c, d = (4 * row + (column + row * (turn % 2)) % 4 for row in range(4))
            x[a] = (x[a] + x[b]) & MASK
            x[d] = _turn(x[d] ^ x[a], 16)
            x[c] = (x[c] + x[d]) & MASK
            x[b] = _turn(x[b] ^ x[c], 12)
            x[a] = (x[a] + x[b]) & MASK
            x[d] = _turn(x[d] ^ x[a], 8)
            x[c] = (x[c] + x[d]) & MASK
            x[b] = _turn(x[b] ^ x[c], 7)
    final = [(word + begin) & MASK for word, begin in zip(x, start, strict=True)]
    pairs = [(final[2 * j] | (final[2 * j + 1] << 32)).view(-1, tiles, BLOCKS) for j in range(8)]
    return torch.stack(pairs, dim=2).reshape(state.shape[0], tiles * TILE)[:, :count]


def _turn(word: Any, by: int) -> Any:
    return ((word << by) & MASK) | (word >> (32 - by))


@lru_cache(maxsize=1)
def _triton_code() -> ModuleType | None:
    try:
        require_module("triton", "gpu")
    except MissingDependency:
        return None
    from quietbit.kernel import triton_expand

    return triton_expand
