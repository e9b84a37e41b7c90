"""GPU kernels other than sampling: expansion of keys, sums of payloads and norms, rotations.

Idea     a thread expands a key at its own block number (`rng.py`, `expand.py`); tuples of tensors
         hold one word of every thread. The eight words of a block are 16 apart in a tile, so
         neighbouring threads read neighbouring strata. Codes are extracted from their bytes in
         registers, and block sums of norms are added exactly, as integers of 20-bit limbs.
Stages   a program holds 4,096 entries: neighbours for the first twelve stages of a transform, later
         2^r rows of a few neighbouring columns for the next r; 2^20 entries are read and written
         twice, 2^27 three times.
Symbols  lane = the number of a block within its payload; half = distance of the first of a kernel's
         stages; N = entries of a tile. Products and sums are not fused.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from quietbit.kernel.transform import ending

__all__ = [
    "LANES",
    "LIMBS",
    "LIMB_BITS",
    "MAX_GROUP",
    "add_codes",
    "add_limbs",
    "add_seeds",
    "block_sums",
    "chacha_words",
    "expand",
    "hadamard_stages",
    "pair",
    "primary_words",
    "sign_words",
]

LANES = 128  # blocks of a program: 1,024 normals
MAX_GROUP = 252  # payloads per launch
LIMBS = 8
LIMB_BITS = 20
TILE_BITS = 12
LATE_BITS = 8  # most stages of one later pass: tiles have 16 columns, a full sector of float32


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
    """Return the 16 words of each block number (int64), with nonce (stream, high).

    SHORT: the key has 128 bits and is repeated.
    """
    zero = (block & 0).to(tl.uint32)
    d0 = (block & 0xFFFFFFFF).to(tl.uint32)
    d1 = (block >> 32).to(tl.uint32)
    d2 = zero + stream
    d3 = zero + high
    b0 = zero + key[0]
    b1 = zero + key[1]
    b2 = zero + key[2]
    b3 = zero + key[3]
    c0 = b0 if SHORT else zero + key[4]
    c1 = b1 if SHORT else zero + key[5]
    c2 = b2 if SHORT else zero + key[6]
    c3 = b3 if SHORT else zero + key[7]
    a0 = zero + 0x61707865
    a3 = zero + 0x6B206574
    a1 = zero + (0x3120646E if SHORT else 0x3320646E)
    a2 = zero + (0x79622D36 if SHORT else 0x79622D32)
    start = (a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3)
    # A loop, because the compiler takes ten times as long when it is unrolled.
    for _ in range(ROUNDS // 2):
        a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    end = (a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3)
    return [
        start[word] + end[word] for word in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    ]


@triton.jit
def _one_of_four(at, w0, w1, w2, w3):
    return tl.where(at < 2, tl.where(at == 0, w0, w1), tl.where(at == 2, w2, w3))


@triton.jit
def primary_words(row, words, key, GIVEN: tl.constexpr):
    """Return four 32-bit words: the primary words of the eight coordinates of each row.

    GIVEN: they are read from memory instead of made from the key.
    """
    if GIVEN:
        return [tl.load(words + row * 4 + j).to(tl.uint32) for j in (0, 1, 2, 3)]
    else:
        f = chacha_words((row // 512) * 128 + row % 128, 0, key, 12)
        at = (row % 512) // 128
        return [_one_of_four(at, f[j], f[4 + j], f[8 + j], f[12 + j]) for j in (0, 1, 2, 3)]


@triton.jit
def pair(low, high):
    """Return two 32-bit words as one of 64."""
    return (low.to(tl.int64) & 0xFFFFFFFF) | (high.to(tl.int64) << 32)


@triton.jit
def _block(lane, key, tail, PLAIN: tl.constexpr):
    """Return the eight 64-bit words of each ChaCha20 block, with a 128-bit key and a nonce.

    PLAIN: the nonce is 0.
    """
    k = [tl.load(key + j).to(tl.uint32, bitcast=True) for j in (0, 1, 2, 3)]
    if PLAIN:
        w = chacha_words(lane, 0, k, 20, True)
    else:
        low = tl.load(tail).to(tl.uint32, bitcast=True)
        high = tl.load(tail + 1).to(tl.uint32, bitcast=True)
        w = chacha_words(lane, low, k, 20, True, high)
    return [pair(w[2 * j], w[2 * j + 1]) for j in (0, 1, 2, 3, 4, 5, 6, 7)]


@triton.jit
def _normal(word, table):
    """Return one normal per word (see `normals.py`)."""
    bits = ((word & 0x7FFFFFFFFFFFFFFF) | 1).to(tl.float64).to(tl.int64, bitcast=True)
    row = table + ((bits >> 48) - 16368) * 8
    fraction = ((bits & 0xFFFFFFFFFFFF) << 4) | 0x3FF0000000000000
    t = 2.0 * fraction.to(tl.float64, bitcast=True) - 3.0
    z = tl.load(row + 7)
    for k in tl.static_range(7):
        z = z * t + tl.load(row + (6 - k))
    return tl.where(word < 0, -z, z)


@triton.jit
def expand(keys, tails, table, out, count, LANES: tl.constexpr, NORMALS: tl.constexpr):
    """Write (streams, count) normals or int64 words of (streams, 4) keys and (streams, 2) nonces.

    Keys and nonces are int32.
    """
    stream = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1).to(tl.int64) * LANES + tl.arange(0, LANES)
    words = _block(lane, keys + stream * 4, tails + stream * 2, False)
    for j in tl.static_range(8):
        index = 128 * (lane // 16) + lane % 16 + 16 * j
        value = _normal(words[j], table) if NORMALS else words[j]
        tl.store(out + stream * count + index, value, mask=index < count)


@triton.jit
def add_seeds(tails, keys, starts, scale, table, total, row_key, count, LANES: tl.constexpr):
    """Add all payloads to the total by atomic additions, which commute exactly.

    ``row_key`` is the key of the stream that chooses rows.
    """
    payload = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1).to(tl.int64) * LANES + tl.arange(0, LANES)
    words = _block(lane, keys + payload * 4, tails, True)
    places = _block(lane, row_key, tails + payload * 2, False)
    factor = tl.load(scale)
    for j in tl.static_range(8):
        index = 128 * (lane // 16) + lane % 16 + 16 * j
        here = index < count
        z = _normal(words[j], table) * factor
        # Adding and subtracting 1.5 * 2^52 rounds to the nearest integer, ties to even; |z| is
        # below 2^52.
        whole = ((z + 6755399441055744.0) - 6755399441055744.0).to(tl.int64)
        start = tl.load(starts + index, mask=here, other=0)
        width = tl.load(starts + index + 1, mask=here, other=0) - start
        carried = ((places[j] & 0xFFFFFFFF) * width) >> 32
        offset = (((places[j] >> 32) & 0xFFFFFFFF) * width + carried) >> 32
        tl.atomic_add(total + start + offset, whole, mask=here, sem="relaxed")


@triton.jit(do_not_specialize=["key_0", "key_1"])
def sign_words(out, key_0, key_1, count, SIZE: tl.constexpr):
    """Write public signs as `transform.sign_words` does, by Philox4x64 with ten rounds.

    A counter gives four 64-bit words.
    """
    number = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    zero = (number & 0).to(tl.uint64)
    c0 = (number + 1).to(tl.uint64)
    c1 = zero
    c2 = zero
    c3 = zero
    k0 = zero + key_0.to(tl.uint64)
    k1 = zero + key_1.to(tl.uint64)
    m0 = zero + 0xD2E7470EE14C6C93
    m1 = zero + 0xCA5A826395121157
    for _ in tl.static_range(10):
        high_0 = tl.umulhi(c0, m0)
        high_1 = tl.umulhi(c2, m1)
        low_0 = c0 * m0
        low_1 = c2 * m1
        c0 = high_1 ^ c1 ^ k0
        c1 = low_1
        c2 = high_0 ^ c3 ^ k1
        c3 = low_0
        k0 = k0 + 0x9E3779B97F4A7C15
        k1 = k1 + 0xBB67AE8584CAA73B
    c = (c0, c1, c2, c3)
    for j in tl.static_range(4):
        tl.store(out + 4 * number + j, c[j].to(tl.int64), mask=4 * number + j < count)


@triton.jit
def add_codes(
    payloads,
    stride,
    count,
    total,
    size,
    dimension,
    table,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Add ``table[code]`` of every payload, each ``size`` bytes long, ``stride`` bytes apart."""
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = index < dimension
    bit = index * BITS
    byte = bit // 8
    place = (bit % 8).to(tl.int32)
    sums = tl.load(total + index, mask=inside, other=0)
    k = count * 0
    while k < count:
        here = payloads + byte + k * stride
        window = tl.load(here, mask=inside, other=0).to(tl.int32)
        if 8 % BITS != 0:
            second = tl.load(here + 1, mask=inside & (byte + 1 < size), other=0)
            window |= second.to(tl.int32) << 8
        if BITS > 8:
            third = tl.load(here + 2, mask=inside & (byte + 2 < size), other=0)
            window |= third.to(tl.int32) << 16
        code = (window >> place) & (2**BITS - 1)
        sums += tl.load(table + code, mask=inside, other=0).to(sums.dtype)
        k += 1
    tl.store(total + index, sums, mask=inside)


@triton.jit
def _lanes(at, place, left, scale, ORDER: tl.constexpr, SCALED: tl.constexpr, EVEN: tl.constexpr):
    """Add up 16 rows of terms in order; EVEN: no term lies beyond the end."""
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
    x,
    sums,
    limbs,
    size,
    blocks,
    scale,
    ORDER: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCKS: tl.constexpr,
    LIMBS: tl.constexpr,
):
    """Add up blocks of 16 rows of 256 terms: rows in order, lanes by halving.

    After the limbs and the count of misfits, ``limbs`` has the largest sum as an integer: bits of
    non-negative doubles sort as integers, those of a NaN last.
    """
    number = tl.program_id(0).to(tl.int64) * BLOCKS
    block = number + tl.arange(0, BLOCKS)
    inside = block < blocks
    place = tl.arange(0, BLOCKS)[:, None] * 4096 + tl.arange(0, 256)[None, :]
    first = x + number * 4096
    left = size - number * 4096
    if left >= BLOCKS * 4096:
        lanes = _lanes(first, place, left, scale, ORDER, SCALED, True)
    else:
        lanes = _lanes(first, place, left, scale, ORDER, SCALED, False)
    for level in tl.static_range(8):  # two terms each, so the compiler's order does not matter
        halves = tl.reshape(lanes, (BLOCKS, 2, 128 // 2**level))
        left_half, right_half = tl.split(tl.permute(halves, (0, 2, 1)))
        lanes = left_half + right_half
    result = tl.reshape(lanes, (BLOCKS,))
    tl.store(sums + block, result, mask=inside)
    bits = tl.where(inside, result.to(tl.int64, bitcast=True), 0)
    tl.atomic_max(limbs + LIMBS + 1, tl.max(bits, axis=0))


@triton.jit
def add_limbs(sums, size, limbs, SIZE: tl.constexpr, LIMBS: tl.constexpr, LIMB_BITS: tl.constexpr):
    """Split the block sums into limbs, from the largest sum's power of two down; count misfits."""
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    rest = tl.load(sums + index, mask=index < size, other=0.0)
    exponent = (tl.load(limbs + LIMBS + 1) >> 52) - 1022  # the largest is below 2^exponent
    for k in tl.static_range(LIMBS):
        shift = (k + 1) * LIMB_BITS - exponent
        up = ((shift + 1023) << 52).to(tl.float64, bitcast=True)
        down = ((1023 - shift) << 52).to(tl.float64, bitcast=True)
        limb = tl.floor(rest * up)
        rest = rest - limb * down
        tl.atomic_add(limbs + k, tl.sum(limb.to(tl.int64), axis=0))
    tl.atomic_add(limbs + LIMBS, tl.sum((rest != 0).to(tl.int64), axis=0))


@triton.jit
def _stage(x, N: tl.constexpr, HALF: tl.constexpr):
    """Take sums and differences of entries HALF apart."""
    pairs = tl.permute(tl.reshape(x, (N // (2 * HALF), 2, HALF)), (0, 2, 1))
    a, b = tl.split(pairs)
    joined = tl.permute(tl.join(a + b, a - b), (0, 2, 1))
    return tl.reshape(joined, (N,))


@triton.jit
def _flipped(source, place, size, words, bit, factor, like, SCALED: tl.constexpr):
    """Return the source times the factor, with signs, and zeros after its end.

    A word has 32 signs; a set bit is a minus.
    """
    here = place < size
    v = tl.load(source + place, mask=here, other=0.0)
    if SCALED:
        v = v.to(tl.float64) * tl.load(factor)
    number = bit + place
    word = tl.load(words + number // 32, mask=here, other=0)
    minus = (word >> (number % 32).to(tl.int32)) & 1
    v = v.to(like)
    return v * (1 - 2 * minus).to(like)  # a product keeps the sign of a zero, as the reference does


@triton.jit
def _stages_kernel(
    x,
    length,
    source,
    size,
    words,
    bit,
    numbers,
    half,
    N: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    END: tl.constexpr,
    FLIP: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Apply stages, and scale the result after the last.

    END 0: more stages follow; 1: multiply by the scale; 2: divide by it, correctly rounded.
    ``numbers`` are the scale and the factor, read from memory because arguments would be rounded to
    float32.
    """
    place = tl.arange(0, N)
    if COLUMNS == 1:
        index = tl.program_id(0).to(tl.int64) * N + place
    else:
        column = tl.program_id(0).to(tl.int64) * COLUMNS
        start = (column // half) * (half * (N // COLUMNS)) + column % half
        index = start + (place // COLUMNS).to(tl.int64) * half + place % COLUMNS
    if FLIP:
        v = _flipped(source, index, size, words, bit, numbers + 1, x.dtype.element_ty, SCALED)
    else:
        v = tl.load(x + index, mask=index < length, other=0.0)
    for s in tl.static_range(STAGES):
        v = _stage(v, N, COLUMNS * 2**s)
    if END > 0:
        scale = tl.load(numbers).to(v.dtype)  # exact, or sqrt(b) rounded to the type
        if END == 1:
            v = v * scale
        elif v.dtype == tl.float32:
            # The plain quotient of float32 is off by up to two units in the last place.
            v = tl.div_rn(v, tl.zeros_like(v) + scale)
        else:
            v = v / (tl.zeros_like(v) + scale)
    tl.store(x + index, v, mask=index < length)


def hadamard_stages(
    values: Any,
    block: int,
    source: Any = None,
    words: Any = None,
    bit: int = 0,
    factor: float = 1.0,
) -> None:
    """Transform every block of a flat tensor on the device, and scale.

    With a ``source``, the transformed numbers are its entries times the factor, with signs from bit
    number ``bit`` of ``words`` on, and zeros after its end; a block of 1 only flips signs.
    """
    bits = block.bit_length() - 1
    mode, scale = ending(block)
    numbers = torch.tensor([scale, factor], dtype=torch.float64, device=values.device)
    flip = source is not None
    read = source if flip else values
    done = 0
    while done < bits or (done == 0 and flip):
        # The first stages take a tile of neighbours; later ones share it between rows and columns.
        if done == 0:
            stages = min(TILE_BITS, bits)
            columns = 1
            tile = 1 << TILE_BITS
        else:
            stages = min(LATE_BITS, bits - done)
            columns = 1 << min(TILE_BITS - stages, done)
            tile = columns << stages
        final = mode if done + stages == bits else 0
        _stages_kernel[(-(-values.numel() // tile),)](
            values,
            values.numel(),
            read,
            read.numel(),
            values if words is None else words,
            bit,
            numbers,
            1 << done,
            N=tile,
            COLUMNS=columns,
            STAGES=stages,
            END=final,
            FLIP=flip and done == 0,
            SCALED=factor != 1.0,
            num_warps=8,
            enable_fp_fusion=False,
        )
        done += max(stages, 1)
