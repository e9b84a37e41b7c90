"""MVU for many models: every client's update is written out, dithered, randomised and added, model after model.

Idea     the length of a dithered vector decides whether it is drawn again, so the cohort kernel, which never sees a
         whole vector, does not fit. Rows of some clients are made from their two factors, symbols are drawn by
         comparing a uniform with cumulative probabilities, and only sums leave. Plain torch operations in float32:
         slower than the cohort kernel by an order of magnitude.
Symbols  u: an update's coordinate; F_k: probability of a symbol of at most k; B symbols with values v_j. The sum of
         values is m v_0 + sum_k (v_{k+1} - v_k) #{U >= F_k}.
Source   `mechanism/dithered.py` for the law, to which probabilities are equal up to float32 roundings (about 1e-7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from quietbit._validate import InvalidParameter, require_module
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.rounding import TRIES
from quietbit_lab.task.linear_device import Tensor

if TYPE_CHECKING:
    from quietbit_lab.task.linear_sums import DrawKey

__all__ = ["RowsMean", "check_rows"]

ROWS_GPU, ROWS_CPU = 1 << 25, 1 << 20  # coordinates written out at once


def check_rows(mechanism: Any) -> None:
    """Refuse what cannot be drawn row by row here."""
    if isinstance(mechanism, DitheredMVU) and mechanism.design.spec.input_levels % 2 == 1:
        return
    raise InvalidParameter(
        f"{type(mechanism).__name__} is not made for many models at once (MVU needs an odd number of levels): "
        "leave out --device."
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class RowsMean:
    """Symbols drawn for every client and coordinate, a few clients at a time."""

    mechanisms: Sequence[DitheredMVU]
    device: Any
    draws: str = "every client"

    def mean(self, errors: Tensor, features: Tensor, key: DrawKey) -> Tensor:
        """Model after model."""
        torch, generator = require_module("torch", "lab"), key.generator(self.device)
        means = [
            _one(mechanism, errors[place].float(), features, generator)
            for place, mechanism in enumerate(self.mechanisms)
        ]
        return torch.stack(means)


def _one(mechanism: DitheredMVU, errors: Tensor, features: Tensor, generator: Any) -> Tensor:
    """The mean for one model, errors (K, m)."""
    torch, (clients, width), classes = require_module("torch", "lab"), features.shape, errors.shape[0]
    most = max(1, (ROWS_GPU if features.is_cuda else ROWS_CPU) // (classes * width))
    steps = np.diff(mechanism.values)
    total = torch.zeros((classes, width), dtype=torch.float64, device=features.device)
    for start in range(0, clients, most):
        rows = errors[:, start : start + most].T[:, :, None] * features[start : start + most, None, :]
        bounds = _dithered(mechanism, rows, generator)
        uniform = torch.rand(rows.shape, generator=generator, device=rows.device)
        for step, bound in zip(steps.tolist(), bounds, strict=True):
            total.add_((uniform >= bound).sum(dim=0), alpha=step)
    return (total / clients + float(mechanism.values[0])).float()


def _dithered(mechanism: DitheredMVU, rows: Tensor, generator: Any) -> list[Tensor]:
    """F_k of the level that every coordinate was dithered to."""
    torch, norm = require_module("torch", "lab"), mechanism.ball.norm
    cells = mechanism.design.spec.input_levels - 1
    half, limit = cells / 2, (mechanism.reach * cells) ** norm.order
    grid = (rows * (half / mechanism.ball.radius)).clamp_(-half, half)
    floor = grid.floor()
    part = grid - floor
    points = floor + (torch.rand(rows.shape, generator=generator, device=rows.device) < part)
    for _ in range(TRIES):
        again = (_lengths(points, norm) > limit).nonzero()[:, 0]
        if again.numel() == 0:
            break
        fresh = torch.rand((again.numel(), *rows.shape[1:]), generator=generator, device=rows.device)
        points[again] = floor[again] + (fresh < part[again])
    else:
        points[again] = grid[again].trunc()
    cumulative = _table(np.cumsum(mechanism.design.probabilities, axis=1), rows.device)
    place = (points + half).long()
    return [cumulative[place, symbol] for symbol in range(cumulative.shape[1] - 1)]


def _lengths(points: Tensor, norm: Norm) -> Tensor:
    torch = require_module("torch", "lab")
    each = points.abs() if norm is Norm.L1 else points.square()
    return each.sum(dim=(1, 2), dtype=torch.float64)


def _table(values: Any, device: Any) -> Tensor:
    torch = require_module("torch", "lab")
    return torch.from_numpy(np.array(values, dtype=np.float32)).to(device)
