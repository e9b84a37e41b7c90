"""The GPU's kernel for `outer.py`.

Idea     a program owns four times ``BLOCK`` features of one class of one model and a stretch of
         clients; each call of Philox gives a lane four uniform numbers, one for each of its
         features. Seven rounds of it pass BigCrush (Salmon et al. 2011), and are enough for a
         simulation.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["sum_codes"]


@triton.jit  # type: ignore[untyped-decorator]
def _drawn(  # type: ignore[no-untyped-def]
    u, uniform, table, low, inverse, whole, BITS: tl.constexpr, CELLS: tl.constexpr
):
    """Return the code drawn for each u: search 2^BITS - 1 thresholds, linear in a cell."""
    x = (u - low) * inverse
    x = tl.where(x > 0, tl.minimum(x, CELLS - 1e-3), 0.0)  # so that a NaN is 0
    cell = x.to(tl.int32)
    part = x - cell.to(tl.float32)
    row = table + cell * (2**BITS - 1)
    code = tl.zeros_like(cell)
    for bit in tl.static_range(BITS):
        threshold = row + code + (2 ** (BITS - 1 - bit) - 1)
        here = tl.load(threshold)
        there = tl.load(threshold + (2**BITS - 1))
        code = tl.where(uniform >= here + part * (there - here), code + 2 ** (BITS - 1 - bit), code)
    if BITS == 1:
        found = code * tl.load(whole + 1)
    else:
        found = tl.load(whole + code)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def sum_codes(  # type: ignore[no-untyped-def]
    left,
    right,
    tables,
    places,
    wholes,
    total,
    seed,
    clients,
    classes,
    features,
    chunk,
    BITS: tl.constexpr,
    CELLS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add a stretch of clients to the sums of one class of one model."""
    row = tl.program_id(0)
    model = tl.program_id(0) // classes
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * 4 * BLOCK + tl.arange(0, BLOCK)
    low = tl.load(places + 2 * model)
    inverse = tl.load(places + 2 * model + 1)
    table = tables + model * (CELLS + 1) * (2**BITS - 1)
    whole = wholes + model * 2**BITS
    lanes = tl.num_programs(1) * BLOCK
    own = seed + row.to(tl.int64) * 0x632BE59BD9B4E019
    sum_0 = tl.zeros((BLOCK,), dtype=tl.int32)
    sum_1 = sum_0
    sum_2 = sum_0
    sum_3 = sum_0
    client = tl.program_id(2) * chunk
    stop = tl.minimum(client + chunk, clients)
    while client < stop:  # the interpreter has no range of tensors
        a = tl.load(left + row * clients + client)
        base = right + client * features + first
        r0, r1, r2, r3 = tl.rand4x(own, client * lanes + lane, n_rounds=7)
        u0 = a * tl.load(base, mask=first < features, other=0.0)
        u1 = a * tl.load(base + BLOCK, mask=first + BLOCK < features, other=0.0)
        u2 = a * tl.load(base + 2 * BLOCK, mask=first + 2 * BLOCK < features, other=0.0)
        u3 = a * tl.load(base + 3 * BLOCK, mask=first + 3 * BLOCK < features, other=0.0)
        sum_0 += _drawn(u0, r0, table, low, inverse, whole, BITS, CELLS)
        sum_1 += _drawn(u1, r1, table, low, inverse, whole, BITS, CELLS)
        sum_2 += _drawn(u2, r2, table, low, inverse, whole, BITS, CELLS)
        sum_3 += _drawn(u3, r3, table, low, inverse, whole, BITS, CELLS)
        client += 1
    out = total + row.to(tl.int64) * features + first
    tl.atomic_add(out, sum_0.to(tl.int64), mask=first < features)
    tl.atomic_add(out + BLOCK, sum_1.to(tl.int64), mask=first + BLOCK < features)
    tl.atomic_add(out + 2 * BLOCK, sum_2.to(tl.int64), mask=first + 2 * BLOCK < features)
    tl.atomic_add(out + 3 * BLOCK, sum_3.to(tl.int64), mask=first + 3 * BLOCK < features)
