"""Norms and sums of payloads on the GPU, without unpacking anything into memory.

Idea     one-bit payloads are added as bit planes: a carry-save adder takes four payloads at a time and 32
         coordinates per word, 18 operations for 128 bits; the planes are spelled out once per 255 payloads. Wider
         codes are cut from their bytes in registers and looked up. Norms follow the fixed order of `norm.py`;
         their block sums are added exactly, as whole numbers, and the clip factor follows on the device, so that
         sampling need not wait for the host. Importing this module needs triton.
Symbols  plane p holds bit p of every coordinate's count; a limb is 20 bits of a block's sum.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from quietbit.kernel.triton_sampling import two_product, two_sum

__all__ = [
    "LIMBS",
    "LIMB_BITS",
    "MAX_GROUP",
    "add_codes",
    "add_limbs",
    "add_looks",
    "block_sums",
    "clip_numbers",
    "count_ones",
]

MAX_GROUP = 252  # payloads per launch of `count_ones`: eight planes, four at a time
LIMBS = 8
LIMB_BITS = 20


@triton.jit
def _full_adder(a, b, c):
    """Sum and carry of three bits, 32 times."""
    return a ^ b ^ c, (a & b) | (c & (a ^ b))


@triton.jit
def count_ones(payloads, stride, how_many, total, words, dimension, table, LANES: tl.constexpr):
    """Add ``table[0] * zeros + table[1] * ones`` to each coordinate's total; payloads are rows of 32-bit words."""
    word = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    here = word < words
    zero = (word & 0).to(tl.uint32)
    nothing = (word & 0).to(tl.int32)
    p0, p1, p2, p3, p4, p5, p6, p7 = zero, zero, zero, zero, zero, zero, zero, zero
    k = how_many * 0
    while k < how_many:
        at = payloads + word + k * stride
        a = tl.load(at, mask=here, other=0).to(tl.uint32)
        b = tl.load(at + stride, mask=here & (nothing + (k + 1) < how_many), other=0).to(tl.uint32)
        c = tl.load(at + 2 * stride, mask=here & (nothing + (k + 2) < how_many), other=0).to(tl.uint32)
        d = tl.load(at + 3 * stride, mask=here & (nothing + (k + 3) < how_many), other=0).to(tl.uint32)
        p0, ab = _full_adder(p0, a, b)
        p0, cd = _full_adder(p0, c, d)
        p1, carry = _full_adder(p1, ab, cd)
        p2, carry = p2 ^ carry, p2 & carry
        p3, carry = p3 ^ carry, p3 & carry
        p4, carry = p4 ^ carry, p4 & carry
        p5, carry = p5 ^ carry, p5 & carry
        p6, carry = p6 ^ carry, p6 & carry
        p7 = p7 ^ carry
        k += 4
    bit = tl.arange(0, 32)[None, :].to(tl.uint32)
    ones = (p0[:, None] >> bit) & 1
    ones += ((p1[:, None] >> bit) & 1) << 1
    ones += ((p2[:, None] >> bit) & 1) << 2
    ones += ((p3[:, None] >> bit) & 1) << 3
    ones += ((p4[:, None] >> bit) & 1) << 4
    ones += ((p5[:, None] >> bit) & 1) << 5
    ones += ((p6[:, None] >> bit) & 1) << 6
    ones += ((p7[:, None] >> bit) & 1) << 7
    index = word[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = index < dimension
    before = tl.load(total + index, mask=inside, other=0)
    zero_adds, one_adds = tl.load(table), tl.load(table + 1)
    added = zero_adds * how_many + (one_adds - zero_adds) * ones.to(tl.int64)
    tl.store(total + index, before + added.to(before.dtype), mask=inside)


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
def _halved(lanes, BLOCKS: tl.constexpr, HALF: tl.constexpr, SPLIT: tl.constexpr):
    """lanes[j] + lanes[j + HALF]: two terms, so it does not matter how the compiler adds them up."""
    if SPLIT:
        left, right = tl.split(tl.permute(tl.reshape(lanes, (BLOCKS, 2, HALF)), (0, 2, 1)))
        return left + right
    else:
        return tl.sum(tl.reshape(lanes, (BLOCKS, 2, HALF)), axis=1)


@triton.jit
def block_sums(
    x, sums, peak, first, size, blocks, scale,
    ORDER: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The sums of blocks of 16 rows of 256 terms: rows one after the other, lanes by halving; ``peak``: their largest.

    EVEN: every block from ``first`` on that the grid covers is whole. Bits of non-negative doubles sort as whole
    numbers, and those of a NaN come last, so the peak is kept as a whole number.
    """
    number = first + tl.program_id(0).to(tl.int64) * BLOCKS
    block = number + tl.arange(0, BLOCKS)
    at = x + number * 4096
    place = tl.arange(0, BLOCKS)[:, None] * 4096 + tl.arange(0, 256)[None, :]
    left = size - number * 4096
    power = tl.load(scale)
    lanes = (place & 0).to(tl.float64)
    for row in tl.static_range(16):
        if EVEN:
            value = tl.load(at + (place + row * 256)).to(tl.float64)
        else:
            value = tl.load(at + (place + row * 256), mask=place + row * 256 < left, other=0.0).to(tl.float64)
        if SCALED:
            value = value * power
        lanes = lanes + (value * value if ORDER == 2 else tl.abs(value))
    for level in tl.static_range(8):
        lanes = _halved(lanes, BLOCKS, 128 // 2**level, SPLIT)
    found = tl.reshape(lanes, (BLOCKS,))
    tl.store(sums + block, found, mask=block < blocks)
    tl.atomic_max(peak, tl.max(tl.where(block < blocks, found.to(tl.int64, bitcast=True), 0), axis=0))


@triton.jit
def add_limbs(sums, size, peak, limbs, SIZE: tl.constexpr, LIMBS: tl.constexpr, LIMB_BITS: tl.constexpr):
    """Cut the block sums into limbs below the power of two above their peak; counts what does not fit in the last."""
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    rest = tl.load(sums + index, mask=index < size, other=0.0)
    exponent = (tl.load(peak) >> 52) - 1022  # the peak is below 2^exponent
    for k in tl.static_range(LIMBS):
        shift = (k + 1) * LIMB_BITS - exponent
        limb = tl.floor(rest * ((shift + 1023) << 52).to(tl.float64, bitcast=True))
        rest = rest - limb * ((1023 - shift) << 52).to(tl.float64, bitcast=True)
        tl.atomic_add(limbs + k, tl.sum(limb.to(tl.int64), axis=0))
    tl.atomic_add(limbs + LIMBS, tl.sum((rest != 0).to(tl.int64), axis=0))


@triton.jit
def add_looks(looks, size, sums, SIZE: tl.constexpr):
    """Sums of SIZE neighbours each: the host adds up the rest."""
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(looks + index, mask=index < size, other=0.0), axis=0))


@triton.jit
def _exact_total(limbs, exponent):
    """The sum that eight limbs stand for, rounded once: 60 bits or more and one that says whether more follow."""
    MASK: tl.constexpr = 0xFFFFF
    l7 = tl.load(limbs + 7)
    l6 = tl.load(limbs + 6) + (l7 >> 20)
    l5 = tl.load(limbs + 5) + (l6 >> 20)
    l4 = tl.load(limbs + 4) + (l5 >> 20)
    l3 = tl.load(limbs + 3) + (l4 >> 20)
    l2 = tl.load(limbs + 2) + (l3 >> 20)
    l1 = tl.load(limbs + 1) + (l2 >> 20)
    l0 = tl.load(limbs) + (l1 >> 20)
    high = (l0 << 20) | (l1 & MASK)
    next_bits = ((l2 & MASK) << 20) | (l3 & MASK)
    rest = (l4 | l5 | l6 | l7) & MASK
    length = (high.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1022  # high is below 2^length
    shift = tl.minimum(tl.maximum(61 - length, 0), 40)
    below = 40 - shift
    sticky = (((next_bits & (((rest & 0) + 1 << below) - 1)) | rest) != 0).to(tl.int64)
    whole = ((high << shift) | (next_bits >> below) | sticky).to(tl.float64)
    return whole * ((exponent - 40 - shift + 1023) << 52).to(tl.float64, bitcast=True), l0


@triton.jit
def _not_above(factor, norm, high, middle, low):
    """Whether factor * norm <= high + middle + low."""
    product, lost = two_product(factor, norm)
    a, a_lost = two_sum(high, -product)
    b, b_lost = two_sum(a, -lost)
    c, c_lost = two_sum(b, middle)
    return c + ((a_lost + b_lost) + (c_lost + low)) >= 0.0


@triton.jit
def clip_numbers(limbs, peak_at, plan, numbers, ORDER: tl.constexpr, LIMBS: tl.constexpr):
    """Norm, clip factor and gain as the host would compute them, for sampling to go on without waiting for it.

    ``plan``: (1 - room)(1 - NORM_ERROR) radius as three doubles, mantissa and exponent of the scale, the clamp's ends,
    rate and offset of a position. ``numbers``: the eight that sampling reads, then norm and factor, NaN where the norm
    is none or out of the range that is handled here.
    """
    peak = tl.load(peak_at)
    total, top = _exact_total(limbs, (peak >> 52) - 1022)
    fits = (tl.load(limbs + LIMBS) == 0) & (peak > (623 << 52)) & (peak < (1423 << 52)) & (top < (1 << 41))
    norm = tl.sqrt(total) if ORDER == 2 else total
    norm = tl.where(fits, norm, 1.0)
    high, middle, low = tl.load(plan), tl.load(plan + 1), tl.load(plan + 2)
    quotient = high / norm
    bits = quotient.to(tl.int64, bitcast=True)
    # Rounding ``high`` and the quotient moved it by less than two units in the last place.
    factor = (bits - 2).to(tl.float64, bitcast=True)
    for step in tl.static_range(-1, 3):
        larger = (bits + step).to(tl.float64, bitcast=True)
        factor = tl.where(_not_above(larger, norm, high, middle, low), larger, factor)
    factor = tl.where(_not_above(1.0 + 0.0 * norm, norm, high, middle, low), 1.0, factor)
    bits = factor.to(tl.int64, bitcast=True)
    mantissa = ((bits & 0xFFFFFFFFFFFFF) | (1023 << 52)).to(tl.float64, bitcast=True)
    product, lost = two_product(mantissa, tl.load(plan + 3))
    carry = (product > 2.0) | ((product == 2.0) & (lost >= 0.0))
    scale = tl.where(carry, 0.5, 1.0)
    product, lost = product * scale, lost * scale
    exponent = (bits >> 52) - 1023 + tl.load(plan + 4).to(tl.int64) + carry.to(tl.int64)
    fits = fits & (exponent > -900) & (exponent < 900)
    exponent = tl.minimum(tl.maximum(exponent, -900), 900)
    power = ((exponent + 1023) << 52).to(tl.float64, bitcast=True)
    rate = product * power * tl.load(plan + 7)
    fits = fits & (rate > 2.0**-100) & (rate < 2.0**100)
    nothing = float("nan")
    tl.store(numbers, power)
    tl.store(numbers + 1, 1.0)
    tl.store(numbers + 2, product)
    tl.store(numbers + 3, lost)
    tl.store(numbers + 4, tl.load(plan + 5))
    tl.store(numbers + 5, tl.load(plan + 6))
    tl.store(numbers + 6, tl.where(fits, rate, 0.0))
    tl.store(numbers + 7, tl.load(plan + 8))
    tl.store(numbers + 8, tl.where(fits, norm, nothing))
    tl.store(numbers + 9, tl.where(fits, factor, nothing))
