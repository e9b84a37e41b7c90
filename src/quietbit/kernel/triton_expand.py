"""Expansion of seeds inside a GPU kernel: eight normals, and eight rows, per thread and payload.

Idea     a thread expands one block of the seed's stream and one of the nonce's; the eight words of a block are a tile's
         words 16 apart, so neighbouring threads read neighbouring strata. Products and sums are not fused.
Symbols  as in `expand.py`; lane = the number of a block within its payload.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from quietbit.kernel.triton_rng import chacha_words

__all__ = ["add_payloads", "expand"]

LANES = 128  # blocks of a program: 1,024 normals


@triton.jit
def _pair(low, high):
    return (low.to(tl.int64) & 0xFFFFFFFF) | (high.to(tl.int64) << 32)


@triton.jit
def _block(lane, k0, k1, k2, k3, m0, m1):
    """Return the eight 64-bit words of each block, ChaCha20 with a 128-bit key and the 64-bit nonce (m0, m1)."""
    w = chacha_words(lane, m0, (k0, k1, k2, k3, k0, k1, k2, k3), 20, True, m1)
    return (
        _pair(w[0], w[1]), _pair(w[2], w[3]), _pair(w[4], w[5]), _pair(w[6], w[7]),
        _pair(w[8], w[9]), _pair(w[10], w[11]), _pair(w[12], w[13]), _pair(w[14], w[15]),
    )  # fmt: skip


@triton.jit
def _normal(word, table):
    """One normal per word: see `quantile.py`."""
    bits = ((word & 0x7FFFFFFFFFFFFFFF) | 1).to(tl.float64).to(tl.int64, bitcast=True)
    row = table + ((bits >> 48) - 16368) * 8
    t = 2.0 * (((bits & 0xFFFFFFFFFFFF) << 4) | 0x3FF0000000000000).to(tl.float64, bitcast=True) - 3.0
    z = tl.load(row + 7)
    for k in tl.static_range(7):
        z = z * t + tl.load(row + (6 - k))
    return tl.where(word < 0, -z, z)


@triton.jit
def _load_word(at):
    return tl.load(at).to(tl.uint32, bitcast=True)


@triton.jit
def _expand_kernel(keys, tails, table, out, count, LANES: tl.constexpr, NORMALS: tl.constexpr):
    stream = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1).to(tl.int64) * LANES + tl.arange(0, LANES)
    key, tail = keys + stream * 4, tails + stream * 2
    words = _block(lane, _load_word(key), _load_word(key + 1), _load_word(key + 2), _load_word(key + 3),
                   _load_word(tail), _load_word(tail + 1))  # fmt: skip
    first = 128 * (lane // 16) + lane % 16
    for j in tl.static_range(8):
        index = first + 16 * j
        found = _normal(words[j], table) if NORMALS else words[j]
        tl.store(out + stream * count + index, found, mask=index < count)


@triton.jit
def _add_kernel(
    tails, keys, weights, starts, scale, table, total, row_key, count, LANES: tl.constexpr
):  # fmt: skip
    payload = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1).to(tl.int64) * LANES + tl.arange(0, LANES)
    key, tail = keys + payload * 4, tails + payload * 2
    words = _block(lane, _load_word(key), _load_word(key + 1), _load_word(key + 2), _load_word(key + 3), 0, 0)
    r0, r1, r2, r3 = _load_word(row_key), _load_word(row_key + 1), _load_word(row_key + 2), _load_word(row_key + 3)
    places = _block(lane, r0, r1, r2, r3, _load_word(tail), _load_word(tail + 1))
    weight, factor = tl.load(weights + payload), tl.load(scale)
    first = 128 * (lane // 16) + lane % 16
    for j in tl.static_range(8):
        index = first + 16 * j
        here = index < count
        z = _normal(words[j], table) * factor
        # Adding and taking away 1.5 * 2^52 rounds to the nearest whole number, ties to even; |z| is below 2^52.
        whole = ((z + 6755399441055744.0) - 6755399441055744.0).to(tl.int64)
        start = tl.load(starts + index, mask=here, other=0)
        width = tl.load(starts + index + 1, mask=here, other=0) - start
        carried = ((places[j] & 0xFFFFFFFF) * width) >> 32
        offset = (((places[j] >> 32) & 0xFFFFFFFF) * width + carried) >> 32
        tl.atomic_add(total + start + offset, whole * weight, mask=here, sem="relaxed")


def expand(keys: Any, tails: Any, count: int, table: Any, normals: bool) -> Any:
    """(streams, count) normals, or words as int64, of int32 tensors of (streams, 4) keys and (streams, 2) nonces."""
    kind = torch.float64 if normals else torch.int64
    out = torch.empty((keys.shape[0], count), dtype=kind, device=keys.device)
    if out.numel():
        grid = (keys.shape[0], -(-count // (8 * LANES)))
        shape = {"LANES": LANES, "NORMALS": normals, "num_warps": 4, "enable_fp_fusion": False}
        _expand_kernel[grid](keys, tails, table, out, count, **shape)
    return out


def add_payloads(
    tails: Any, keys: Any, weights: Any, starts: Any, count: int, scale: float, table: Any, row_key: bytes, total: Any
) -> None:
    """Add all payloads to the total; ``row_key`` is the key of the rows' stream."""
    grid = (keys.shape[0], -(-count // (8 * LANES)))
    # Key and scale are read from memory: as arguments they would become 64-bit numbers and a float32.
    places = torch.tensor(np.frombuffer(row_key, dtype="<i4").tolist(), dtype=torch.int32, device=total.device)
    factor = torch.full((1,), scale, dtype=torch.float64, device=total.device)
    given = (tails, keys, weights, starts, factor, table, total, places, count)
    _add_kernel[grid](*given, LANES=LANES, num_warps=4, enable_fp_fusion=False)
