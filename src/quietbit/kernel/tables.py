"""Single-precision approximations of the law with proved margins, from which fast kernels decide.

Idea     a kernel compares 16 primary bits with an approximation of G_k = 65536 F_k. When the two
         are further apart than the margin m the decision is that of the exact law; otherwise the
         coordinate goes to the law (`sampler.py`) with all its 64 bits. So an approximation need
         not be good, only its error known (docs/theory/kernels.md). Where the law is mild enough
         each G_k - 1/2 is one polynomial over the whole clamp: a CPU uses it for one bit, and lines
         on cells for more; a GPU evaluates `bits` polynomials in a binary search.
Symbols  t = x - 1/2; w the primary word; position p = t rate + offset; f = p clamped to [0, 1], or
         among cells the fraction of p clamped to [lowest, highest]; R the range of the slopes of a
         segment.
One bit  `lowered` is c_0 - m rounded down. A GPU adds 2^23 to it, so that float32 arithmetic itself
         rounds to a whole number V; a CPU adds 1/2 and cuts the fraction off. Either way G_0 - 2 m
         - 2 <= V <= G_0, so w < V gives 0 and w - V > width = ceil(2 m + 2) - 1 gives 1; V is not
         negative because G_0 >= 2 m + 3 is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.kernel.reference import cumulative
from quietbit.kernel.sampler import Sampler, level_knots

__all__ = [
    "UNDECIDED",
    "CellTable",
    "Thresholds",
    "cell_table",
    "scaled_cumulative",
    "threshold_plan",
]

UNIT = 65536.0
ROUNDOFF = 2.0**-24
UNDECIDED = 255
TARGET_CELLS = 1024
MAX_TABLE = 1 << 18  # cells times symbols
DEGREES = (
    (False, 3),
    (False, 5),
    (False, 7),
    *((True, degree) for degree in range(5, 17, 2)),
)  # True: on [-1, 1]
GOOD = {1: 8.0}  # a margin below which a higher degree gains nothing; with more bits, 1/2
WORST = {1: 24.0}  # a margin above which cells serve better; with more bits, 8
GRID = 32769
MAX_POINTS = 1 << 22  # grid points times symbols
Points: TypeAlias = tuple[FloatVector, NDArray[np.float64]]  # values of f, and of all G_k there


def _slope_range(sampler: Sampler) -> float:
    return float((sampler.slope.max(axis=1) - sampler.slope.min(axis=1)).max())


def scaled_cumulative(sampler: Sampler, t: FloatVector) -> NDArray[np.float64]:
    """Return 65536 F_k at each t."""
    return UNIT * cumulative(sampler, t, np.zeros_like(t))


@final
@dataclass(frozen=True, slots=True, eq=False)
class CellTable:
    """G_k as straight lines on cells of equal width, and a look-up by cell and the word's upper byte.

    Position ``t * inverse + offset`` has the cell as whole part and f as fraction; there G_k - 1/2
    is within ``half - 1/2`` of ``start[cell, k] + step[cell, k] * f``, in float32, so w decides
    threshold k if it is ``half`` or more away from that line. ``code[cell, w >> 8]`` is the code if
    all such words decide alike in the whole cell, else UNDECIDED; ``lowest`` and ``highest`` bound
    what they may have.
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
    """Tabulate a sampler in cells that end at the levels, where the law has kinks."""
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
    values = scaled_cumulative(sampler, nodes)
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
        if cut:  # no comparison with NaN decides
            code[row], lowest[row], highest[row], start[row] = UNDECIDED, 0, symbols - 1, np.nan
    bounds = (lowest.astype(np.uint8), highest.astype(np.uint8))
    lines = (start, (right - left).astype(np.float32))
    return CellTable(inverse, 0.5 * inverse - first, 0.5 + margin, *lines, code, *bounds)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Thresholds:
    """``coefficients[d, cell, k]`` of f^d in G_k - 1/2, one cell where f runs from 0 to 1; the last column is unused.

    Word w decides threshold k if it is ``half`` or more away. ``rate`` and ``offset`` take t to p;
    p is clamped to ``lowest .. highest``. ``lowered`` is None where one bit cannot be decided by
    rounding alone; ``centred`` polynomials are in 2 f - 1.
    """

    coefficients: NDArray[np.float32]
    rate: float
    offset: float
    lowest: float
    highest: float
    half: float
    lowered: float | None
    width: int
    centred: bool


@lru_cache(maxsize=32)
def threshold_plan(sampler: Sampler) -> Thresholds:
    """Return one polynomial per threshold where the margin allows it, else the cells' lines."""
    best: Thresholds | None = None
    low, high = sampler.t_range
    if 2.0**-40 < high - low < 2.0**10 and max(abs(low), abs(high)) < 2.0**10:
        even = np.linspace(0.0, 1.0, min(GRID, MAX_POINTS // sampler.symbols))
        levels = np.clip((level_knots(sampler.levels)[0] - low) / (high - low), 0.0, 1.0)
        chosen = np.union1d(even, levels), 0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, 257))
        grid, nodes = (
            (f, scaled_cumulative(sampler, np.clip(low + (high - low) * f, low, high)))
            for f in chosen
        )
        for centred, degree in DEGREES:
            found = _fit_thresholds(sampler, grid, nodes, degree, centred)
            if best is None or found.half < best.half - 0.25:
                best = found
            if best.half <= 0.5 + GOOD.get(sampler.bits, 0.5):
                break
    if best is None or not best.half <= 0.5 + WORST.get(sampler.bits, 8.0):
        best = _lines(sampler)
    best.coefficients.setflags(write=False)
    return best


def _fit_thresholds(
    sampler: Sampler, grid: Points, nodes: Points, degree: int, centred: bool
) -> Thresholds:
    """Fit least squares on Chebyshev points, and add up all errors into the margin."""
    slant = 2.0 if centred else 1.0  # the derivative of the polynomial's variable
    (f, exact), (at, wanted) = (
        (slant * points - (slant - 1.0), values) for points, values in (grid, nodes)
    )
    low, high = sampler.t_range
    reach, steep = high - low, _slope_range(sampler)
    solved = np.linalg.lstsq(at[:, None] ** np.arange(degree + 1), wanted - 0.5, rcond=None)[0]
    rounded = solved.astype(np.float32)
    value = np.zeros_like(exact)
    for row in rounded[::-1].astype(np.float64):
        value = value * f[:, None] + row
    off = np.abs(value - (exact - 0.5)).max(initial=0.0)
    sizes = np.abs(rounded.astype(np.float64)).max(axis=1, initial=0.0)
    powers = np.arange(degree + 1)
    curve = UNIT * 0.16 * (steep * reach / slant) ** 2 + float(
        (powers * (powers - 1) * sizes).sum()
    )
    between = float(np.diff(f).max()) ** 2 / 8 * curve
    offset = -low / reach
    moved = 2 * ROUNDOFF * (4 + 3 * abs(offset)) * UNIT * steep / 4 * reach
    evaluated = ROUNDOFF * ((2 * degree + 4) * float(sizes.sum()) + 2 * UNIT)
    margin = float(off) + between + moved + evaluated + 2.0**-16
    table = np.zeros((degree + 1, 1, sampler.symbols), dtype=np.float32)
    table[:, 0, :-1] = rounded
    lowered, width = None, ceil(2 * margin + 2) - 1
    if sampler.bits == 1 and exact.min() >= 2 * margin + 3:
        lowered = float(floor(float(rounded[0, 0]) - margin))
    return Thresholds(table, 1.0 / reach, offset, 0.0, 1.0, 0.5 + margin, lowered, width, centred)


def _lines(sampler: Sampler) -> Thresholds:
    """Return the cell table, with the position's rounding to float32 added to its margin."""
    cells = cell_table(sampler)
    count = len(cells.start)
    # At least two, because one piece means a polynomial on [0, 1].
    table = np.zeros((2, max(2, count), sampler.symbols), dtype=np.float32)
    table[0, :count, :-1], table[1, :count, :-1] = cells.start, cells.step
    low, high = sampler.t_range
    lowest, highest = (
        min(max(t * cells.inverse + cells.offset, 0.0), float(count)) for t in (low, high)
    )
    highest = min(highest, float(np.nextafter(np.float32(count), np.float32(0))))
    steepest = float(np.abs(cells.step).max(initial=0.0))
    moved = 2 * steepest * 8 * ROUNDOFF * (count + abs(cells.offset))
    half = cells.half + moved + 2.0**-16
    return Thresholds(table, cells.inverse, cells.offset, lowest, highest, half, None, 0, False)
