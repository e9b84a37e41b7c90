"""Expansion of seeds inside a GPU kernel: eight normals, and eight rows, per thread and payload.

Idea     a thread expands one block of the seed's stream and one of the nonce's; the eight words of a block are a tile's
         words 16 apart, so neighbouring threads read neighbouring strata. Products and sums are not fused.
Symbols  as in `expand.py`; lane = the number of a block within its payload.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["add_payloads", "expand_normals"]

LANES = 128  # blocks of a program: 1,024 normals


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _pair(low, high):
    return (low.to(tl.int64) & 0xFFFFFFFF) | (high.to(tl.int64) << 32)


@triton.jit
def _block(lane, k0, k1, k2, k3, m0, m1):
    """The eight 64-bit words of each block, ChaCha20 with a 128-bit key and the 64-bit nonce (m0, m1)."""
    zero = (lane & 0).to(tl.uint32)
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3120646E, zero + 0x79622D36, zero + 0x6B206574
    k0, k1, k2, k3 = zero + k0, zero + k1, zero + k2, zero + k3
    n0, n1 = zero + m0, zero + m1
    t0, t1 = (lane & 0xFFFFFFFF).to(tl.uint32), (lane >> 32).to(tl.uint32)
    a0, a1, a2, a3 = s0, s1, s2, s3
    b0, b1, b2, b3 = k0, k1, k2, k3
    c0, c1, c2, c3 = k0, k1, k2, k3
    d0, d1, d2, d3 = t0, t1, n0, n1
    for _ in range(10):
        a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    return (
        _pair(a0 + s0, a1 + s1),
        _pair(a2 + s2, a3 + s3),
        _pair(b0 + k0, b1 + k1),
        _pair(b2 + k2, b3 + k3),
        _pair(c0 + k0, c1 + k1),
        _pair(c2 + k2, c3 + k3),
        _pair(d0 + t0, d1 + t1),
        _pair(d2 + n0, d3 + n1),
    )


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
def _normals_kernel(keys, table, out, count, LANES: tl.constexpr):
    payload = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1).to(tl.int64) * LANES + tl.arange(0, LANES)
    key = keys + payload * 4
    words = _block(lane, _load_word(key), _load_word(key + 1), _load_word(key + 2), _load_word(key + 3), 0, 0)
    first = 128 * (lane // 16) + lane % 16
    for j in tl.static_range(8):
        index = first + 16 * j
        tl.store(out + payload * count + index, _normal(words[j], table), mask=index < count)


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


def expand_normals(keys: Any, count: int, table: Any) -> Any:
    """(payloads, count) normals of an int32 tensor of (payloads, 4) keys."""
    out = torch.empty((keys.shape[0], count), dtype=torch.float64, device=keys.device)
    grid = (keys.shape[0], -(-count // (8 * LANES)))
    _normals_kernel[grid](keys, table, out, count, LANES=LANES, num_warps=4, enable_fp_fusion=False)
    return out


def add_payloads(
    tails: Any, keys: Any, weights: Any, starts: Any, count: int, scale: float, table: Any, row_state: Any, total: Any
) -> None:
    """Add all payloads to the total; ``row_state`` is the start state of the rows' stream."""
    grid = (keys.shape[0], -(-count // (8 * LANES)))
    # Key and scale are read from memory: as arguments they would become 64-bit numbers and a float32.
    row_key = torch.from_numpy(row_state[4:8].view("<i4").copy()).to(total.device)
    factor = torch.full((1,), scale, dtype=torch.float64, device=total.device)
    _add_kernel[grid](
        tails,
        keys,
        weights,
        starts,
        factor,
        table,
        total,
        row_key,
        count,
        LANES=LANES,
        num_warps=4,
        enable_fp_fusion=False,
    )
