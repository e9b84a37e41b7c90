"""The passes of `row_passes` as Triton kernels.

Every row is read once, nothing of its size is written.

Idea     sums: a program owns some columns and walks through the clients. Kept coordinates: a
         program owns a few columns of one client's row, laid out as k strata of width w: two
         products with small Hadamard matrices turn the strata, the signs of row `offset` of the
         large matrix turn the columns, and sums over columns are added up.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from row_passes import SIDE

from quietbit_lab.cohort.releases import hadamard_matrix

SUM, LOGISTIC, NORMAL = (tl.constexpr(place) for place in range(3))
BLOCK = 1024  # columns of a program that adds up
TILES = 8  # steps of columns of a program that keeps coordinates


@triton.jit
def _sums(
    rows,
    factors,
    first,
    second,
    stride,
    scale,
    most,
    count: tl.constexpr,
    law: tl.constexpr,
    block: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < stride
    total = tl.zeros((block,), dtype=tl.float32)
    squares = tl.zeros((block,), dtype=tl.float32)
    here = rows + place
    for client in range(count):
        x = tl.load(here, mask=inside, other=0.0).to(tl.float32) * tl.load(factors + client)
        x = tl.minimum(tl.maximum(x, -most), most) * scale
        if law == LOGISTIC:
            x = 1.0 / (1.0 + tl.exp(-x)) - 0.5
        if law == NORMAL:
            x = 0.5 * tl.erf(x)
        total += x
        squares += x * x
        here += stride
    tl.store(first + place, total, mask=inside)
    tl.store(second + place, squares, mask=inside)


@triton.jit
def _rotated_sums(
    rows,
    flips,
    factors,
    turns,
    first,
    second,
    columns,
    stride,
    scale,
    most,
    count: tl.constexpr,
    law: tl.constexpr,
    side: tl.constexpr,
):
    within = tl.arange(0, side)[:, None] * side + tl.arange(0, side)[None, :]
    place = tl.program_id(0).to(tl.int64) * side * side + within
    inside = place < columns
    flip = tl.load(flips + place).to(rows.dtype.element_ty)
    turn = tl.load(turns + within)
    half = turn.to(rows.dtype.element_ty)
    total = tl.zeros((side, side), dtype=tl.float32)
    squares = tl.zeros((side, side), dtype=tl.float32)
    here = rows + place
    for client in range(count):
        x = tl.load(here, mask=inside, other=0.0) * flip
        x = tl.dot(tl.dot(half, x), turn, input_precision="tf32") * (
            tl.load(factors + client) / side
        )
        x = tl.minimum(tl.maximum(x, -most), most) * scale
        if law == LOGISTIC:
            x = 1.0 / (1.0 + tl.exp(-x)) - 0.5
        if law == NORMAL:
            x = 0.5 * tl.erf(x)
        total += x
        squares += x * x
        here += stride
    tl.store(first + place, total)
    tl.store(second + place, squares)


@triton.jit
def _kept(
    rows,
    signs,
    offsets,
    left,
    right,
    out,
    stride,
    width,
    major: tl.constexpr,
    minor: tl.constexpr,
    step: tl.constexpr,
    tiles: tl.constexpr,
):
    client = tl.program_id(0).to(tl.int64)
    keep: tl.constexpr = major * minor
    strata = tl.arange(0, keep)
    turn_minor = tl.load(
        right + tl.arange(0, minor)[:, None] * minor + tl.arange(0, minor)[None, :]
    )
    turn_major = tl.load(left + tl.arange(0, major)[:, None] * major + tl.arange(0, major)[None, :])
    stratum = tl.arange(0, minor)[:, None] + tl.arange(0, major)[None, :] * minor
    offset = tl.load(offsets + client * keep + stratum)
    total = tl.zeros((minor, major), dtype=tl.float32)
    for tile in range(tiles):
        column = (tl.program_id(1) * tiles + tile) * step + tl.arange(0, step)
        place = strata[:, None] * width + column[None, :]
        inside = place < stride
        x = tl.load(rows + client * stride + place, mask=inside, other=0.0)
        x = x * tl.load(signs + place, mask=inside, other=0).to(x.dtype)
        x = tl.permute(tl.reshape(x, (major, minor, step)), (0, 2, 1))
        y = tl.dot(tl.reshape(x, (major * step, minor)), turn_minor).to(x.dtype)
        y = tl.permute(tl.reshape(y, (major, step, minor)), (1, 2, 0))
        z = tl.reshape(
            tl.dot(tl.reshape(y, (step * minor, major)), turn_major), (step, minor, major)
        )
        # The sign of row `offset` at a column is the parity of their common bits: of the last four
        # a table knows it.
        low = offset[None, :, :] & (column & 15)[:, None, None]
        z = tl.sum(tl.where(((0x6996 >> low) & 1) == 1, -z, z), axis=0)
        high = offset & (((tl.program_id(1) * tiles + tile) * step) >> 4 << 4)
        high ^= high >> 16
        high ^= high >> 8
        high ^= high >> 4
        total += tl.where(((0x6996 >> (high & 15)) & 1) == 1, -z, z)
    tl.atomic_add(out + client * keep + stratum, total)


def sums_on_device(rows: Any, factors: Any, law: Any) -> tuple[Any, Any]:
    """`row_passes.sums`."""
    count, columns = rows.shape[0], rows.stride(0)
    first, second = torch.empty((2, columns), dtype=torch.float32, device=rows.device)
    number = {"sum": SUM, "logistic": LOGISTIC, "normal": NORMAL}[law.name].value
    most = min(law.most, 3e38)
    given = (rows, factors, first, second, columns, law.scale, most)
    _sums[(triton.cdiv(columns, BLOCK),)](*given, count=count, law=number, block=BLOCK, num_warps=4)
    return first[: rows.shape[1]], second[: rows.shape[1]]


def rotated_sums_on_device(rows: Any, factors: Any, law: Any, signs: Any) -> tuple[Any, Any]:
    """`row_passes.sums` of rotated coordinates."""
    first, second = torch.empty((2, signs.numel()), dtype=torch.float32, device=rows.device)
    number = {"sum": SUM, "logistic": LOGISTIC, "normal": NORMAL}[law.name].value
    turns = hadamard_matrix(SIDE, str(rows.device)).to(torch.float32) * math.sqrt(SIDE)
    given = (
        rows,
        signs,
        factors,
        turns,
        first,
        second,
        rows.shape[1],
        rows.stride(0),
        law.scale,
        min(law.most, 3e38),
    )
    _rotated_sums[(signs.numel() // SIDE**2,)](
        *given, count=rows.shape[0], law=number, side=SIDE, num_warps=4
    )
    return first, second


def kept_on_device(rows: Any, signs: Any, offsets: Any) -> Any:
    """`row_passes.kept`."""
    (count, keep), size = offsets.shape, signs.numel()
    bits = keep.bit_length() - 1
    major, minor = 1 << bits // 2, 1 << (bits - bits // 2)
    width = size // keep
    step = min(max(16384 // keep, 4), 16, width)
    tiles = min(TILES, width // step)
    left, right = (
        (hadamard_matrix(each, str(rows.device)) * math.sqrt(each)).to(rows.dtype)
        for each in (major, minor)
    )
    out = torch.zeros((count, keep), dtype=torch.float32, device=rows.device)
    grid = (count, width // (step * tiles))
    given = (rows, signs, offsets.to(torch.int32), left, right, out, rows.stride(0), width)
    _kept[grid](*given, major=major, minor=minor, step=step, tiles=tiles, num_warps=8)
    return out / math.sqrt(size)
