"""Words inside a GPU kernel: ChaCha, as in `rng.py` and `expand.py`, in registers; public signs, as in `transform.py`.

Idea     a thread expands the key at its own block number; tuples of tensors hold one word of every thread.
         Importing this module needs triton.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["chacha_words", "primary_words", "sign_words"]


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
    n0 = (block & 0xFFFFFFFF).to(tl.uint32)
    n1 = (block >> 32).to(tl.uint32)
    n2, n3 = zero + stream, zero + high
    k0, k1, k2, k3 = zero + key[0], zero + key[1], zero + key[2], zero + key[3]
    k4, k5, k6, k7 = zero + key[4], zero + key[5], zero + key[6], zero + key[7]
    s0, s3 = zero + 0x61707865, zero + 0x6B206574
    s1 = zero + (0x3120646E if SHORT else 0x3320646E)
    s2 = zero + (0x79622D36 if SHORT else 0x79622D32)
    a0, a1, a2, a3 = s0, s1, s2, s3
    b0, b1, b2, b3 = k0, k1, k2, k3
    c0, c1, c2, c3 = k4, k5, k6, k7
    d0, d1, d2, d3 = n0, n1, n2, n3
    for _ in range(ROUNDS // 2):  # a loop, because unrolled it takes the compiler ten times as long
        a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    return (
        a0 + s0, a1 + s1, a2 + s2, a3 + s3, b0 + k0, b1 + k1, b2 + k2, b3 + k3,
        c0 + k4, c1 + k5, c2 + k6, c3 + k7, d0 + n0, d1 + n1, d2 + n2, d3 + n3,
    )  # fmt: skip


@triton.jit
def _one_of_four(at, w0, w1, w2, w3):
    return tl.where(at < 2, tl.where(at == 0, w0, w1), tl.where(at == 2, w2, w3))


@triton.jit
def primary_words(row, words, key, GIVEN: tl.constexpr):
    """Four 32-bit words, the primary words of the eight coordinates of each row; given ones are read."""
    if GIVEN:
        at = words + row * 4
        return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    else:
        found = chacha_words((row // 512) * 128 + row % 128, 0, key, 12)
        at = (row % 512) // 128
        return (
            _one_of_four(at, found[0], found[4], found[8], found[12]),
            _one_of_four(at, found[1], found[5], found[9], found[13]),
            _one_of_four(at, found[2], found[6], found[10], found[14]),
            _one_of_four(at, found[3], found[7], found[11], found[15]),
        )


@triton.jit(do_not_specialize=["key_0", "key_1"])
def sign_words(out, key_0, key_1, count, SIZE: tl.constexpr):
    """Public signs as `transform.sign_words` has them: Philox4x64 with ten rounds, four words of 64 bits a counter."""
    number = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    zero = (number & 0).to(tl.uint64)
    c0, c1, c2, c3 = (number + 1).to(tl.uint64), zero, zero, zero
    k0, k1 = zero + key_0.to(tl.uint64), zero + key_1.to(tl.uint64)
    m0, m1 = zero + 0xD2E7470EE14C6C93, zero + 0xCA5A826395121157
    for _ in tl.static_range(10):
        high_0, high_1 = tl.umulhi(c0, m0), tl.umulhi(c2, m1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, c2 * m1, high_0 ^ c3 ^ k1, c0 * m0
        k0, k1 = k0 + 0x9E3779B97F4A7C15, k1 + 0xBB67AE8584CAA73B
    at = out + 4 * number
    tl.store(at, c0.to(tl.int64), mask=4 * number < count)
    tl.store(at + 1, c1.to(tl.int64), mask=4 * number + 1 < count)
    tl.store(at + 2, c2.to(tl.int64), mask=4 * number + 2 < count)
    tl.store(at + 3, c3.to(tl.int64), mask=4 * number + 3 < count)
