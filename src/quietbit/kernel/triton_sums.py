"""Norms and sums of payloads on the GPU, without unpacking anything into memory.

Idea     codes are extracted from their bytes in registers and looked up, faster than payloads are copied to the device.
         Norms follow the fixed order of `norm.py`; their block sums are added exactly, as integers. Importing this
         module needs triton.
Symbols  a limb is 20 bits of a block's sum.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LIMBS", "LIMB_BITS", "MAX_GROUP", "add_codes", "add_limbs", "block_sums"]

MAX_GROUP = 252  # payloads per launch
LIMBS = 8
LIMB_BITS = 20


@triton.jit
def add_codes(payloads, stride, how_many, total, size, dimension, table, BITS: tl.constexpr, SIZE: tl.constexpr):
    """Add ``table[code]`` of every payload; payloads are rows of ``size`` bytes, ``stride`` apart."""
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = index < dimension
    at = index * BITS
    byte, place = at // 8, (at % 8).to(tl.int32)
    sums = tl.load(total + index, mask=inside, other=0)
    k = how_many * 0
    while k < how_many:
        here = payloads + byte + k * stride
        window = tl.load(here, mask=inside, other=0).to(tl.int32)
        if 8 % BITS != 0:
            window |= tl.load(here + 1, mask=inside & (byte + 1 < size), other=0).to(tl.int32) << 8
        if BITS > 8:
            window |= tl.load(here + 2, mask=inside & (byte + 2 < size), other=0).to(tl.int32) << 16
        sums += tl.load(table + ((window >> place) & (2**BITS - 1)), mask=inside, other=0).to(sums.dtype)
        k += 1
    tl.store(total + index, sums, mask=inside)


@triton.jit
def _lanes(at, place, left, scale, ORDER: tl.constexpr, SCALED: tl.constexpr, EVEN: tl.constexpr):
    """Add up 16 rows of terms in order; EVEN: all are there."""
    lanes = (place & 0).to(tl.float64)
    for row in tl.static_range(16):
        here = place + row * 256
        value = tl.load(at + here) if EVEN else tl.load(at + here, mask=here < left, other=0.0)
        value = value.to(tl.float64)
        if SCALED:
            value = value * tl.load(scale)
        lanes = lanes + (value * value if ORDER == 2 else tl.abs(value))
    return lanes


@triton.jit
def block_sums(
    x, sums, limbs, size, blocks, scale,
    ORDER: tl.constexpr, SCALED: tl.constexpr, BLOCKS: tl.constexpr, LIMBS: tl.constexpr,
):  # fmt: skip
    """Add up blocks of 16 rows of 256 terms: rows in order, lanes by halving.

    After the limbs and their last count is the largest sum: bits of non-negative doubles sort as integers, and those of
    a NaN come last, so it is kept as an integer.
    """
    number = tl.program_id(0).to(tl.int64) * BLOCKS
    block = number + tl.arange(0, BLOCKS)
    place = tl.arange(0, BLOCKS)[:, None] * 4096 + tl.arange(0, 256)[None, :]
    left = size - number * 4096
    if left >= BLOCKS * 4096:
        lanes = _lanes(x + number * 4096, place, left, scale, ORDER, SCALED, True)
    else:
        lanes = _lanes(x + number * 4096, place, left, scale, ORDER, SCALED, False)
    for level in tl.static_range(8):  # two terms each, so the compiler's order does not matter
        left_half, right = tl.split(tl.permute(tl.reshape(lanes, (BLOCKS, 2, 128 // 2**level)), (0, 2, 1)))
        lanes = left_half + right
    found = tl.reshape(lanes, (BLOCKS,))
    tl.store(sums + block, found, mask=block < blocks)
    tl.atomic_max(limbs + LIMBS + 1, tl.max(tl.where(block < blocks, found.to(tl.int64, bitcast=True), 0), axis=0))


@triton.jit
def add_limbs(sums, size, limbs, SIZE: tl.constexpr, LIMBS: tl.constexpr, LIMB_BITS: tl.constexpr):
    """Split the block sums into limbs below the power of two above the largest; count misfits in the last."""
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    rest = tl.load(sums + index, mask=index < size, other=0.0)
    exponent = (tl.load(limbs + LIMBS + 1) >> 52) - 1022  # the largest is below 2^exponent
    for k in tl.static_range(LIMBS):
        shift = (k + 1) * LIMB_BITS - exponent
        limb = tl.floor(rest * ((shift + 1023) << 52).to(tl.float64, bitcast=True))
        rest = rest - limb * ((1023 - shift) << 52).to(tl.float64, bitcast=True)
        tl.atomic_add(limbs + k, tl.sum(limb.to(tl.int64), axis=0))
    tl.atomic_add(limbs + LIMBS, tl.sum((rest != 0).to(tl.int64), axis=0))
