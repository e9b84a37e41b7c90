r"""What mechanisms need of a cohort's rows, in one pass over them: sums over clients, and kept coordinates.

Idea     sums over clients of the rows, or of the chances of their bits and the squares of those; and of every rotated
         row one coordinate of each of k strata, for which small Hadamard matrices do: index = stratum x width + offset,
         and the signs of a sum of bits multiply. The plain way is here; on a GPU `row_kernels` reads every row once.
Symbols  rows (n, d) and factors (n,): clipped rows are rows * factors. t = chance - 1/2. p = d padded, w = p / k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from quietbit_lab.cohort.releases import hadamard_matrix

COLUMNS = 1 << 18  # at once


@dataclass(frozen=True)
class Law:
    """What is added up: the rows themselves, or t = chance - 1/2 of a bit at ``scale`` x, x cut at ``most``."""

    name: str
    scale: float = 1.0
    most: float = math.inf

    def of(self, x: Any) -> Any:
        """Of clipped coordinates."""
        x = x.clamp(-self.most, self.most) * self.scale
        if self.name == "logistic":
            return torch.sigmoid(x) - 0.5
        return 0.5 * torch.erf(x) if self.name == "normal" else x


def sums(rows: Any, factors: Any, law: Law, *, plain: bool) -> tuple[Any, Any]:
    """Over clients, of what the law says and of its squares: (d,) and (d,)."""
    if not plain:
        from row_kernels import sums_on_device

        return sums_on_device(rows, factors, law)
    parts = [law.of(part.to(factors.dtype) * factors[:, None]) for part in rows.split(COLUMNS, dim=1)]
    return torch.cat([t.sum(dim=0) for t in parts]), torch.cat([t.square().sum(dim=0) for t in parts])


def kept(rows: Any, signs: Any, offsets: Any, *, plain: bool) -> Any:
    """Of every rotated row and every stratum the coordinate at its offset: (n, k); ``signs`` are p numbers of int8."""
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
    return (half * outer).sum(dim=1, dtype=torch.float64 if row.dtype == torch.float64 else torch.float32)
