r"""Compute what mechanisms need of a cohort's rows in one pass over them.

Sums over clients, and kept coordinates.

Idea     sums over clients of the rows, or of the chances of their bits and the squares of those;
         and of every rotated row one coordinate of each of k strata, for which small Hadamard
         matrices do: index = stratum x width + offset, and the signs of a sum of bits multiply. The
         plain way is here; on a GPU `row_kernels` reads every row once.
Symbols  rows (n, d) and factors (n,): clipped rows are rows * factors. t = chance - 1/2. p = d
         padded, w = p / k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from quietbit_lab.cohort.releases import hadamard_matrix

COLUMNS = 1 << 18  # at once
# a rotated block has SIDE x SIDE coordinates, so that H of the block is two products with H of the
# side
SIDE = 64


@dataclass(frozen=True)
class Law:
    """What is added up: the rows themselves, or t = chance - 1/2 of a bit at ``scale`` x, x cut at ``most``.

    ``rotated``: of the coordinates of rows that were rotated block by block (`rotate`).
    """

    name: str
    scale: float = 1.0
    most: float = math.inf
    rotated: bool = False

    def of(self, x: Any) -> Any:
        """Of clipped coordinates."""
        x = x.clamp(-self.most, self.most) * self.scale
        if self.name == "logistic":
            return torch.sigmoid(x) - 0.5
        return 0.5 * torch.erf(x) if self.name == "normal" else x


def rotate(rows: Any, signs: Any) -> Any:
    """Rotate (n, d) rows in blocks of 4,096, the last one padded with zeros.

    (n, p) for p ``signs``.
    """
    padded = torch.nn.functional.pad(rows, (0, signs.numel() - rows.shape[1])) * signs
    turn = hadamard_matrix(SIDE, str(rows.device)).to(rows.dtype)
    return (turn @ padded.reshape(-1, SIDE, SIDE) @ turn).reshape(rows.shape[0], -1)


def unrotate(vector: Any, signs: Any, dimension: int) -> Any:
    """Undo `rotate` for one vector."""
    turn = hadamard_matrix(SIDE, str(vector.device)).to(vector.dtype)
    return ((turn @ vector.reshape(-1, SIDE, SIDE) @ turn).reshape(-1) * signs)[:dimension]


def sums(rows: Any, factors: Any, law: Law, signs: Any = None, *, plain: bool) -> tuple[Any, Any]:
    """Sum over clients what the law says and its squares.

    (d,) and (d,), or (p,) of rotated coordinates.
    """
    if not plain:
        from row_kernels import rotated_sums_on_device, sums_on_device

        return (
            rotated_sums_on_device(rows, factors, law, signs)
            if law.rotated
            else sums_on_device(rows, factors, law)
        )
    if law.rotated:
        rows = rotate(rows.to(factors.dtype), signs)
    parts = [
        law.of(part.to(factors.dtype) * factors[:, None]) for part in rows.split(COLUMNS, dim=1)
    ]
    return torch.cat([t.sum(dim=0) for t in parts]), torch.cat(
        [t.square().sum(dim=0) for t in parts]
    )


def kept(rows: Any, signs: Any, offsets: Any, *, plain: bool) -> Any:
    """Of every rotated row and every stratum the coordinate at its offset: (n, k).

    ``signs`` are p numbers of int8.
    """
    if not plain:
        from row_kernels import kept_on_device

        return kept_on_device(rows, signs, offsets)
    found = [_kept_of(row, signs, each) for row, each in zip(rows, offsets, strict=True)]
    return torch.stack(found)


def _kept_of(row: Any, signs: Any, offsets: Any) -> Any:
    keep, size = offsets.numel(), signs.numel()
    width = size // keep
    padded = torch.zeros(size, dtype=row.dtype, device=row.device)
    padded[: row.numel()] = row * signs[: row.numel()]
    left = 1 << (width.bit_length() // 2)
    device = str(row.device)
    mixed = hadamard_matrix(keep, device).to(row.dtype) @ padded.reshape(keep, width)
    outer = hadamard_matrix(left, device)[offsets // (width // left)].to(row.dtype)  # (keep, left)
    inner = hadamard_matrix(width // left, device)[offsets % (width // left)].to(row.dtype)
    half = torch.bmm(mixed.reshape(keep, left, width // left), inner[:, :, None])[:, :, 0]
    return (half * outer).sum(
        dim=1, dtype=torch.float64 if row.dtype == torch.float64 else torch.float32
    )
