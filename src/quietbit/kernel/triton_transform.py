"""Walsh-Hadamard stages inside a GPU kernel: up to twelve per pass over memory, in the reference's order.

Idea     a program holds 4,096 entries: neighbours for the first twelve stages, later 2^r rows of a few neighbouring
         columns for the next r. A stage splits the tile into the two halves of all pairs and joins sums and differences
         again, in registers and shared memory; 2^20 entries are read and written twice, 2^27 three times. The first
         pass can read another tensor, scale it and flip its signs.
Symbols  half = distance of the first of a kernel's stages; N = entries of a tile; b = entries of a block, which is
         transformed separately.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from quietbit.kernel.transform import scale_of

__all__ = ["hadamard_stages"]

TILE_BITS = 12
LATE_BITS = 8  # most stages of one later pass: tiles keep 16 columns, a whole sector of float32


@triton.jit
def _stage(x, N: tl.constexpr, HALF: tl.constexpr):
    """Take sums and differences of entries HALF apart."""
    pairs = tl.permute(tl.reshape(x, (N // (2 * HALF), 2, HALF)), (0, 2, 1))
    a, b = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (N,))


@triton.jit
def _flipped(source, place, size, words, bit, factor, like, SCALED: tl.constexpr):
    """Return the source times the factor, with signs: 32 per word, a set bit is a minus; zeros after its end."""
    here = place < size
    v = tl.load(source + place, mask=here, other=0.0)
    if SCALED:
        v = v.to(tl.float64) * tl.load(factor)
    word = tl.load(words + (bit + place) // 32, mask=here, other=0)
    minus = (word >> ((bit + place) % 32).to(tl.int32)) & 1
    v = v.to(like)
    return v * (1 - 2 * minus).to(like)  # a product keeps the sign of a zero, as the reference does


@triton.jit
def _stages_kernel(
    x, length, source, size, words, bit, numbers, half,
    N: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, END: tl.constexpr, FLIP: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    """Apply stages; END 0: more stages follow; 1: multiply by the scale; 2: divide by it, correctly rounded.

    ``numbers`` are the scale and the factor: read from memory, because as arguments they would be rounded to float32.
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
        elif v.dtype == tl.float32:  # the plain quotient of float32 is off by up to two units in the last place
            v = tl.div_rn(v, tl.zeros_like(v) + scale)
        else:
            v = v / (tl.zeros_like(v) + scale)
    tl.store(x + index, v, mask=index < length)


def hadamard_stages(
    values: Any, block: int, source: Any = None, words: Any = None, bit: int = 0, factor: float = 1.0
) -> None:
    """Transform every block of a flat tensor on the device, and scale.

    With a ``source``, its entries times the factor are taken, signs flipped by the bits of ``words`` from number
    ``bit`` on, and zeros after its end; a block of 1 flips signs and does no more.
    """
    bits, done, (scale, exact) = block.bit_length() - 1, 0, scale_of(block)
    numbers = torch.tensor([scale, factor], dtype=torch.float64, device=values.device)
    read, flip = values if source is None else source, source is not None
    while done < bits or (done == 0 and flip):
        stages = min(TILE_BITS if done == 0 else LATE_BITS, bits - done)
        # The first stages take whole tiles of neighbours; later ones share a tile between rows and columns.
        columns = 1 if done == 0 else 1 << min(TILE_BITS - stages, done)
        tile = 1 << TILE_BITS if done == 0 else columns << stages
        final = (1 if exact else 2) if done + stages == bits else 0
        _stages_kernel[(-(-values.numel() // tile),)](
            values, values.numel(), read, read.numel(), values if words is None else words, bit, numbers, 1 << done,
            N=tile, COLUMNS=columns, STAGES=stages, END=final, FLIP=flip and done == 0, SCALED=factor != 1.0,
            num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
        done += max(stages, 1)
