"""Single-precision stand-ins for the law, each with a proved margin: what a fast kernel decides from.

Idea     a kernel compares 16 primary bits with an approximation of G_k = 65536 F_k. When the two are further
         apart than the margin m the decision is that of the exact law; otherwise the coordinate goes to
         `law.py` with all its 64 bits. So an approximation need not be good, only its error known.
Symbols  t = x - 1/2; R the range of the slopes of a segment; h the width of a cell; w the primary word.
Facts    F_k' = F_k (1 - F_k) D with D the difference of two averages of slopes, |D| <= R, and D' the
         difference of two variances, |D'| <= R^2 / 4. Hence |F_k'| <= R / 4 and |F_k''| <= (0.0963 + 0.0625)
         R^2 < 0.16 R^2 inside a segment: a straight line between two values h apart misses F_k by at most
         0.02 (R h)^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.kernel.reference import cumulative
from quietbit.kernel.sampler import Sampler, level_knots

__all__ = ["CellTable", "OddPolynomial", "cell_table", "odd_polynomial"]

UNIT = 65536.0
ROUNDOFF = 2.0**-24
UNDECIDED = 255
TARGET_CELLS = 1024
MAX_TABLE = 1 << 18  # cells times symbols
WIDEST = 64  # the widest undecided range, in words out of 65536, at which a polynomial still pays


def _slope_range(sampler: Sampler) -> float:
    return float((sampler.slope.max(axis=1) - sampler.slope.min(axis=1)).max())


def _scaled_cumulative(sampler: Sampler, t: FloatVector) -> NDArray[np.float64]:
    """65536 F_k at each t."""
    return UNIT * cumulative(sampler, t, np.zeros_like(t))


@final
@dataclass(frozen=True, slots=True, eq=False)
class CellTable:
    """G_k as straight lines on cells of equal width, and a look-up by cell and the word's upper byte.

    Position ``t * inverse + offset`` has the cell as whole part and f as fraction; there G_k - 1/2 is within
    ``half - 1/2`` of ``start[cell, k] + step[cell, k] * f``, in float32, for any order of operations: the
    line misses G_k by at most 0.02 (R h)^2 units, and eight roundings of numbers below 2^17 add less than
    2^-4. So w decides threshold k if it is ``half`` or more away from that line. ``code[cell, w >> 8]`` is
    the code if all such words decide alike in the whole cell, else UNDECIDED; ``lowest`` and ``highest``
    bound what they may have.
    """

    inverse: float
    offset: float
    half: float
    start: NDArray[np.float32]
    step: NDArray[np.float32]
    code: NDArray[np.uint8]
    lowest: NDArray[np.uint8]
    highest: NDArray[np.uint8]


@lru_cache(maxsize=32)
def cell_table(sampler: Sampler) -> CellTable:
    """The cell table of a sampler; cells end at the levels, where the law has kinks."""
    low, high = sampler.t_range
    segments, symbols = sampler.levels - 1, sampler.symbols
    width = max(high - low, 1e-3)
    budget = min(TARGET_CELLS, MAX_TABLE // symbols)
    per_segment = max(1, floor(budget / (width * segments)))
    inverse = float(segments * per_segment)
    # A clamp far outside [0, 1] would need too many cells: the outermost ones then decide nothing.
    wanted = floor((low + 0.5) * inverse), ceil((high + 0.5) * inverse)
    first, last = max(wanted[0], -8 * budget), min(wanted[1], floor(inverse) + 8 * budget)
    nodes = np.arange(first, last + 2, dtype=np.float64) / inverse - 0.5
    values = _scaled_cumulative(sampler, nodes)
    margin = UNIT * 0.02 * (_slope_range(sampler) / inverse) ** 2 + 2.0**-4
    left, right = values[:-1], values[1:]
    smallest, largest = np.minimum(left, right) - margin, np.maximum(left, right) + margin
    words = 256.0 * np.arange(256)
    # Thresholds are sorted, so counting those passed is a search in each cell's row.
    lowest = np.stack([np.searchsorted(row, words, side="right") for row in largest])
    highest = np.stack([np.searchsorted(row, words + 256.0, side="left") for row in smallest])
    code = np.where(lowest == highest, lowest, UNDECIDED).astype(np.uint8)
    start = (left - 0.5).astype(np.float32)
    for row, cut in ((0, first > wanted[0]), (-1, last < wanted[1])):
        if cut:
            code[row], lowest[row], highest[row], start[row] = (
                UNDECIDED,
                0,
                symbols - 1,
                np.nan,
            )  # no comparison with NaN decides
    return CellTable(
        inverse=inverse,
        offset=0.5 * inverse - first,
        half=0.5 + margin,
        start=start,
        step=(right - left).astype(np.float32),
        code=code,
        lowest=lowest.astype(np.uint8),
        highest=highest.astype(np.uint8),
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class OddPolynomial:
    """G_0 of a one-bit sampler as c + z (q_0 + q_1 z^2 + ...), z = t + shift, in float32.

    ``coefficients`` are (c, q_last, ..., q_0). The constant c is lowered by the margin, so that G_0 lies
    between the polynomial and the polynomial plus ``width - 1``: with T its whole part, w < T gives 0 and w
    >= T + width + 1 gives 1. Clamping z to [low, high] keeps T inside 0 .. 65535.
    """

    shift: float
    low: float
    high: float
    coefficients: tuple[np.float32, ...]
    width: int


@lru_cache(maxsize=32)
def odd_polynomial(sampler: Sampler) -> OddPolynomial | None:
    """The cheapest polynomial with a small margin, or None where the cell table serves better."""
    if sampler.bits != 1:
        return None
    low, high = sampler.t_range
    shift = 0.0
    if sampler.levels == 2 and sampler.slope[0, 1] != 0.0:
        shift = float(sampler.base[0, 1] / sampler.slope[0, 1])  # the sigmoid is odd around its middle
    reach = max(abs(low + shift), abs(high + shift))
    if not (2.0**-40 < reach < 2.0**10 and abs(shift) < 2.0**10 and high > low):
        return None
    grid = np.linspace(low, high, 32769)
    grid = np.union1d(grid, np.clip(level_knots(sampler.levels)[0], low, high))
    exact = _scaled_cumulative(sampler, grid)[:, 0]
    best: OddPolynomial | None = None
    for terms in (2, 3, 4, 5, 7, 9, 12):
        found = _fit(sampler, grid, exact, shift, reach, terms)
        if found is not None and (best is None or found.width < best.width):
            best = found
        if best is not None and best.width <= 4:
            break
    return best


def _fit(
    sampler: Sampler, grid: FloatVector, exact: FloatVector, shift: float, reach: float, terms: int
) -> OddPolynomial | None:
    """A least-squares fit on Chebyshev-like points, with everything that can go wrong added up."""
    low, high = sampler.t_range
    angles = np.linspace(0.0, np.pi, 513)
    nodes = 0.5 * (low + high) - 0.5 * (high - low) * np.cos(angles)
    z = (nodes + shift) / reach
    columns = np.stack([np.ones_like(z)] + [z ** (2 * k + 1) for k in range(terms)], axis=1)
    solved = np.linalg.lstsq(columns, _scaled_cumulative(sampler, nodes)[:, 0], rcond=None)[0]
    powers = [0] + [2 * k + 1 for k in range(terms)]
    rounded = [np.float32(c / reach**p) for c, p in zip(solved.tolist(), powers, strict=True)]
    c = [float(value) for value in rounded]
    at = grid + shift
    off = np.abs(sum(value * at**p for value, p in zip(c, powers, strict=True)) - exact)
    spacing = float(np.diff(grid).max())
    steep = _slope_range(sampler)
    sizes = [abs(value) * reach**p for value, p in zip(c, powers, strict=True)]
    curve = UNIT * 0.16 * steep**2 + sum(p * (p - 1) * s for p, s in zip(powers, sizes, strict=True)) / reach**2
    between = spacing**2 / 8 * curve  # how far the error can rise between two points of the grid
    moved = 8 * ROUNDOFF * (reach + abs(shift)) * UNIT * steep / 4  # z itself is rounded
    evaluated = ROUNDOFF * (2 * terms + 6) * (sum(sizes) + UNIT)
    outside = 4 * ROUNDOFF * sum(p * s for p, s in zip(powers, sizes, strict=True))  # of the clamp's rounding
    margin = float(off.max()) + between + moved + evaluated + outside + 2.0**-16
    width = ceil(2 * margin) + 1
    if width > WIDEST or exact.min() - 3 * margin < 1 or exact.max() + margin > UNIT - 2:
        return None
    constant = np.float32(c[0] - margin)
    ordered: list[Any] = [constant, *reversed(rounded[1:])]
    lowest, highest = np.float32(low + shift), np.float32(high + shift)
    return OddPolynomial(shift, float(lowest), float(highest), tuple(ordered), width)
