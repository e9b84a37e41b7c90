"""Words inside a GPU kernel: ChaCha in registers, as in `rng.py`; seeds expanded as in `expand.py`; public signs.

Idea     a thread expands the key at its own block number; tuples of tensors hold one word of every thread. For a
         payload it expands one block of the seed's stream and one of the nonce's: the eight words of a block are 16
         apart in a tile, so neighbouring threads read neighbouring strata. Products and sums are not fused.
         Importing this module needs triton.
Symbols  as in `expand.py`; lane = the number of a block within its payload.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

__all__ = ["add_payloads", "chacha_words", "expand", "pair", "primary_words", "sign_words"]

LANES = 128  # blocks of a program: 1,024 normals


@triton.jit
def _quarter(a, b, c, d):
    """Apply a quarter round to four words."""
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
def chacha_words(block, stream, key, ROUNDS: tl.constexpr, SHORT: tl.constexpr = False, high=0):
    """Return the 16 words of each block number (int64), nonce (stream, high); SHORT: the key is 128 bits, repeated."""
    zero = (block & 0).to(tl.uint32)
    d0, d1, d2, d3 = (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32), zero + stream, zero + high
    b0, b1, b2, b3 = zero + key[0], zero + key[1], zero + key[2], zero + key[3]
    c0, c1, c2, c3 = (b0, b1, b2, b3) if SHORT else (zero + key[4], zero + key[5], zero + key[6], zero + key[7])
    a0, a3 = zero + 0x61707865, zero + 0x6B206574
    a1 = zero + (0x3120646E if SHORT else 0x3320646E)
    a2 = zero + (0x79622D36 if SHORT else 0x79622D32)
    start = (a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3)
    for _ in range(ROUNDS // 2):  # a loop, because the compiler takes ten times as long when it is unrolled
        a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    end = (a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3)
    return [start[word] + end[word] for word in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)]


@triton.jit
def _one_of_four(at, w0, w1, w2, w3):
    return tl.where(at < 2, tl.where(at == 0, w0, w1), tl.where(at == 2, w2, w3))


@triton.jit
def primary_words(row, words, key, GIVEN: tl.constexpr):
    """Return four 32-bit words, the primary words of the eight coordinates of each row; given ones are read."""
    if GIVEN:
        return [tl.load(words + row * 4 + j).to(tl.uint32) for j in (0, 1, 2, 3)]
    else:
        f, at = chacha_words((row // 512) * 128 + row % 128, 0, key, 12), (row % 512) // 128
        return [_one_of_four(at, f[j], f[4 + j], f[8 + j], f[12 + j]) for j in (0, 1, 2, 3)]


@triton.jit
def pair(low, high):
    """Return two 32-bit words as one of 64."""
    return (low.to(tl.int64) & 0xFFFFFFFF) | (high.to(tl.int64) << 32)


@triton.jit
def _block(lane, key, tail, PLAIN: tl.constexpr):
    """Return the eight 64-bit words of each block, ChaCha20 with a 128-bit key and a 64-bit nonce; PLAIN: nonce 0."""
    k = [tl.load(key + j).to(tl.uint32, bitcast=True) for j in (0, 1, 2, 3)]
    if PLAIN:
        w = chacha_words(lane, 0, k, 20, True)
    else:
        w = chacha_words(lane, tl.load(tail).to(tl.uint32, bitcast=True), k, 20, True,
                         tl.load(tail + 1).to(tl.uint32, bitcast=True))  # fmt: skip
    return [pair(w[2 * j], w[2 * j + 1]) for j in (0, 1, 2, 3, 4, 5, 6, 7)]


@triton.jit
def _normal(word, table):
    """Return one normal per word (see `quantile.py`)."""
    bits = ((word & 0x7FFFFFFFFFFFFFFF) | 1).to(tl.float64).to(tl.int64, bitcast=True)
    row = table + ((bits >> 48) - 16368) * 8
    t = 2.0 * (((bits & 0xFFFFFFFFFFFF) << 4) | 0x3FF0000000000000).to(tl.float64, bitcast=True) - 3.0
    z = tl.load(row + 7)
    for k in tl.static_range(7):
        z = z * t + tl.load(row + (6 - k))
    return tl.where(word < 0, -z, z)


@triton.jit
def _expand_kernel(keys, tails, table, out, count, LANES: tl.constexpr, NORMALS: tl.constexpr):
    stream = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1).to(tl.int64) * LANES + tl.arange(0, LANES)
    words = _block(lane, keys + stream * 4, tails + stream * 2, False)
    for j in tl.static_range(8):
        index = 128 * (lane // 16) + lane % 16 + 16 * j
        found = _normal(words[j], table) if NORMALS else words[j]
        tl.store(out + stream * count + index, found, mask=index < count)


@triton.jit
def _add_kernel(tails, keys, weights, starts, scale, table, total, row_key, count, LANES: tl.constexpr):
    payload = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1).to(tl.int64) * LANES + tl.arange(0, LANES)
    words = _block(lane, keys + payload * 4, tails, True)
    places = _block(lane, row_key, tails + payload * 2, False)
    weight, factor = tl.load(weights + payload), tl.load(scale)
    for j in tl.static_range(8):
        index = 128 * (lane // 16) + lane % 16 + 16 * j
        here = index < count
        z = _normal(words[j], table) * factor
        # Adding and subtracting 1.5 * 2^52 rounds to the nearest integer, ties to even; |z| is below 2^52.
        whole = ((z + 6755399441055744.0) - 6755399441055744.0).to(tl.int64)
        start = tl.load(starts + index, mask=here, other=0)
        width = tl.load(starts + index + 1, mask=here, other=0) - start
        carried = ((places[j] & 0xFFFFFFFF) * width) >> 32
        offset = (((places[j] >> 32) & 0xFFFFFFFF) * width + carried) >> 32
        tl.atomic_add(total + start + offset, whole * weight, mask=here, sem="relaxed")


def expand(keys: Any, tails: Any, count: int, table: Any, normals: bool) -> Any:
    """Return (streams, count) normals, or int64 words, from int32 tensors of (streams, 4) keys, (streams, 2) nonces."""
    kind = torch.float64 if normals else torch.int64
    out = torch.empty((keys.shape[0], count), dtype=kind, device=keys.device)
    if out.numel():
        shape = {"LANES": LANES, "NORMALS": normals, "num_warps": 4, "enable_fp_fusion": False}
        _expand_kernel[(keys.shape[0], -(-count // (8 * LANES)))](keys, tails, table, out, count, **shape)
    return out


def add_payloads(
    tails: Any, keys: Any, weights: Any, starts: Any, scale: float, table: Any, row_key: bytes, total: Any
) -> None:
    """Add all payloads to the total; ``row_key`` is the key of the rows' stream."""
    count = starts.numel() - 1
    # Key and scale are read from memory: as arguments they would become 64-bit numbers and a float32.
    places = torch.tensor(np.frombuffer(row_key, dtype="<i4").tolist(), dtype=torch.int32, device=total.device)
    factor = torch.full((1,), scale, dtype=torch.float64, device=total.device)
    given = (tails, keys, weights, starts, factor, table, total, places, count)
    grid = (keys.shape[0], -(-count // (8 * LANES)))
    _add_kernel[grid](*given, LANES=LANES, num_warps=4, enable_fp_fusion=False)


@triton.jit(do_not_specialize=["key_0", "key_1"])
def sign_words(out, key_0, key_1, count, SIZE: tl.constexpr):
    """Write public signs as `transform.sign_words` does: Philox4x64 with ten rounds, four 64-bit words per counter."""
    number = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    zero = (number & 0).to(tl.uint64)
    c0, c1, c2, c3 = (number + 1).to(tl.uint64), zero, zero, zero
    k0, k1 = zero + key_0.to(tl.uint64), zero + key_1.to(tl.uint64)
    m0, m1 = zero + 0xD2E7470EE14C6C93, zero + 0xCA5A826395121157
    for _ in tl.static_range(10):
        high_0, high_1 = tl.umulhi(c0, m0), tl.umulhi(c2, m1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, c2 * m1, high_0 ^ c3 ^ k1, c0 * m0
        k0, k1 = k0 + 0x9E3779B97F4A7C15, k1 + 0xBB67AE8584CAA73B
    c = (c0, c1, c2, c3)
    for j in tl.static_range(4):
        tl.store(out + 4 * number + j, c[j].to(tl.int64), mask=4 * number + j < count)
