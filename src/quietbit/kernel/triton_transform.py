"""Walsh-Hadamard stages inside a GPU kernel: up to twelve per visit of memory, in the reference's order.

Idea     a program holds 4,096 entries: neighbours for the first twelve stages, later 2^r rows of a few neighbouring
         columns for the next r. A stage splits the tile into the two halves of all pairs and joins sums and differences
         again, in registers and shared memory; 2^20 entries are read and written twice, 2^27 three times.
Symbols  half = distance of the first of a kernel's stages; N = entries of a tile.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["hadamard_stages"]

TILE_BITS = 12
LATE_BITS = 8  # stages of one later visit at most: tiles keep 16 columns, a whole sector of float32


@triton.jit
def _stage(x, N: tl.constexpr, HALF: tl.constexpr):
    """Sums and differences of entries HALF apart."""
    pairs = tl.permute(tl.reshape(x, (N // (2 * HALF), 2, HALF)), (0, 2, 1))
    a, b = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (N,))


@triton.jit
def _stages_kernel(
    x, half, scale, N: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, END: tl.constexpr
):  # fmt: skip
    """END 0: more stages follow; 1: multiply by the scale; 2: divide by it, correctly rounded.

    The scale is read from memory: as an argument it would be rounded to float32.
    """
    place = tl.arange(0, N)
    column = tl.program_id(0).to(tl.int64) * COLUMNS
    start = (column // half) * (half * (N // COLUMNS)) + column % half
    at = x + start + (place // COLUMNS).to(tl.int64) * half + place % COLUMNS
    v = tl.load(at)
    for s in tl.static_range(STAGES):
        v = _stage(v, N, COLUMNS * 2**s)
    if END == 1:
        v = v * tl.load(scale)
    elif END == 2:
        divisor = tl.zeros_like(v) + tl.load(scale)
        if v.dtype == tl.float32:  # noqa: SIM108 (decided when compiled)
            v = tl.div_rn(v, divisor)  # the plain quotient of float32 is off by up to two units in the last place
        else:
            v = v / divisor
    tl.store(at, v)


def hadamard_stages(values: Any, scale: float, exact_scale: bool) -> None:
    """All stages on a flat CUDA tensor of a power of two of entries, then the scale (see the kernel)."""
    bits, done = values.numel().bit_length() - 1, 0
    end = 1 if exact_scale else 2
    factor = values.new_full((1,), scale)
    while done < bits:
        stages = min(TILE_BITS if done == 0 else LATE_BITS, bits - done)
        # The first stages take whole tiles of neighbours; later ones share a tile between rows and columns.
        columns = 1 if done == 0 else 1 << min(TILE_BITS - stages, done)
        size = columns << stages
        final = end if done + stages == bits else 0
        _stages_kernel[(values.numel() // size,)](
            values,
            1 << done,
            factor,
            N=size,
            COLUMNS=columns,
            STAGES=stages,
            END=final,
            num_warps=8,
            enable_fp_fusion=False,
        )
        done += stages
