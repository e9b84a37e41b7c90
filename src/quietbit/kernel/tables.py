"""Single-precision approximations of the law with proved margins, from which fast kernels decide.

Idea     a kernel compares 16 primary bits with an approximation of G_k = 65536 F_k. Where the two
         differ by more than the margin m the decision is that of the exact law; otherwise the
         coordinate is decided by the law (`sampler.py`) with all its 64 bits. So an approximation
         need not be good, only its error known (docs/theory/numerics.md). Where the law is smooth
         enough each G_k - 1/2 is one polynomial over the whole clamp: a CPU uses it for one bit,
         and lines on cells for more; a GPU evaluates `bits` polynomials in a binary search.
Symbols  t = x - 1/2; w the primary word; position p = t rate + offset; f = p clamped to [0, 1], or
         among cells the fraction of p clamped to [lowest, highest]; R the range of the slopes of a
         segment.
One bit  `lowered` is c_0 - m rounded down. A GPU adds 2^23 to it, so that float32 arithmetic itself
         rounds to a whole number V; a CPU adds 1/2 and truncates. Either way G_0 - 2 m - 2 <= V <=
         G_0, so w < V gives 0 and w - V > width = ceil(2 m + 2) - 1 gives 1; V is not negative
         because G_0 >= 2 m + 3 is required.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from decimal import Decimal
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
# Degrees of polynomials to try in turn, on [0, 1] and then on [-1, 1] (True).
DEGREES = (
    (False, 3),
    (False, 5),
    (False, 7),
    (True, 5),
    (True, 7),
    (True, 9),
    (True, 11),
    (True, 13),
    (True, 15),
)
GOOD = {1: 8.0}  # by bits, a margin below which a higher degree gains nothing; else 1/2
WORST = {1: 24.0}  # by bits, a margin above which cells are better; else 8
GRID = 32769
NODES = 257  # of the points that polynomials are fitted to
DIGITS = 60
MAX_POINTS = 1 << 22  # grid points times symbols
Points: TypeAlias = tuple[FloatVector, NDArray[np.float64]]  # values of f, and of all G_k there


def _slope_range(sampler: Sampler) -> float:
    return float(np.ptp(sampler.slope, axis=1).max())


def scaled_cumulative(sampler: Sampler, t: FloatVector) -> NDArray[np.float64]:
    """Return 65536 F_k at each t."""
    return UNIT * cumulative(sampler, t, np.zeros_like(t))


@final
@dataclass(frozen=True, slots=True, eq=False)
class CellTable:
    """G_k as straight lines on cells of equal width, and codes by cell and the word's upper byte.

    Position ``t * inverse + offset`` has the cell as integral part and f as fraction; there G_k -
    1/2 is within ``half - 1/2`` of ``start[cell, k] + step[cell, k] * f``, in float32, so w decides
    threshold k if it is ``half`` or more away from that line. ``code[cell, w >> 8]`` is the code if
    all such words give the same one everywhere in the cell, else UNDECIDED; ``lowest`` and
    ``highest`` bound the codes that they may give.
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
    segments = sampler.levels - 1
    symbols = sampler.symbols
    width = max(high - low, 1e-3)
    budget = min(TARGET_CELLS, MAX_TABLE // symbols)
    per_segment = max(1, floor(budget / (width * segments)))
    inverse = float(segments * per_segment)
    # A clamp far outside [0, 1] would need too many cells: the outermost ones then decide nothing.
    first_wanted = floor((low + 0.5) * inverse)
    last_wanted = ceil((high + 0.5) * inverse)
    first = max(first_wanted, -8 * budget)
    last = min(last_wanted, floor(inverse) + 8 * budget)
    nodes = np.arange(first, last + 2, dtype=np.float64) / inverse - 0.5
    values = scaled_cumulative(sampler, nodes)
    margin = UNIT * 0.02 * (_slope_range(sampler) / inverse) ** 2 + 2.0**-4
    left = values[:-1]
    right = values[1:]
    smallest = np.minimum(left, right) - margin
    largest = np.maximum(left, right) + margin
    words = 256.0 * np.arange(256)
    # Thresholds are sorted, so counting those passed is a search in each cell's row.
    lowest = np.stack([np.searchsorted(row, words, side="right") for row in largest])
    highest = np.stack([np.searchsorted(row, words + 256.0, side="left") for row in smallest])
    code = np.where(lowest == highest, lowest, UNDECIDED).astype(np.uint8)
    start = (left - 0.5).astype(np.float32)
    for row, cut in ((0, first > first_wanted), (-1, last < last_wanted)):
        if cut:
            code[row] = UNDECIDED
            lowest[row] = 0
            highest[row] = symbols - 1
            start[row] = np.nan  # no comparison with NaN decides
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
class Thresholds:
    """Polynomials of the thresholds: ``coefficients[d, cell, k]`` of f^d in G_k - 1/2.

    A single cell means that f runs from 0 to 1 over the clamp. Column k = 2^bits - 1 is unused.
    Word w decides threshold k if it is ``half`` or more away. Position p is t times ``rate`` plus
    ``offset``, clamped to ``lowest .. highest``. ``lowered`` is None where one bit cannot be
    decided by rounding alone; ``centred`` polynomials are in 2 f - 1.
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
        knots = level_knots(sampler.levels)[0]
        levels = np.clip((knots - low) / (high - low), 0.0, 1.0)
        grid = _points(sampler, np.union1d(even, levels))
        nodes = _points(sampler, chebyshev_nodes())
        for centred, degree in DEGREES:
            fit = _fit_thresholds(sampler, grid, nodes, degree, centred)
            if best is None or fit.half < best.half - 0.25:
                best = fit
            if best.half <= 0.5 + GOOD.get(sampler.bits, 0.5):
                break
    if best is None or not best.half <= 0.5 + WORST.get(sampler.bits, 8.0):
        best = _lines(sampler)
    best.coefficients.setflags(write=False)
    return best


def _points(sampler: Sampler, f: FloatVector) -> Points:
    low, high = sampler.t_range
    return f, scaled_cumulative(sampler, np.clip(low + (high - low) * f, low, high))


@lru_cache(maxsize=1)
def chebyshev_nodes() -> FloatVector:
    """Return 1/2 - cos(pi j / (NODES - 1)) / 2 for every j, from NODES - 1 a power of two.

    In decimals, as a library's cosine differs between machines; so would a library's least squares,
    which decimals do below, and a client's table with them.
    """
    with decimal.localcontext(prec=DIGITS):
        cosine = Decimal(-1)
        for _ in range((NODES - 1).bit_length() - 1):
            cosine = ((1 + cosine) / 2).sqrt()
        cosines = [Decimal(1), cosine]
        while len(cosines) < NODES:
            cosines.append(2 * cosine * cosines[-1] - cosines[-2])
        return np.array([float((1 - value) / 2) for value in cosines])


@lru_cache(maxsize=len(DEGREES))
def _least_squares(degree: int, centred: bool) -> NDArray[np.float64]:
    """Return the matrix that maps values at the nodes to coefficients, the constant first."""
    with decimal.localcontext(prec=DIGITS):
        nodes = [Decimal(value) for value in chebyshev_nodes().tolist()]
        if centred:
            nodes = [2 * value - 1 for value in nodes]
        powers = [[Decimal(1)] * NODES]
        for _ in range(degree):
            powers.append([a * b for a, b in zip(powers[-1], nodes, strict=True)])
        # Orthogonal polynomials (Gram and Schmidt), and each one's coefficients.
        orthogonal: list[list[Decimal]] = []
        combined: list[list[Decimal]] = []
        for k, power in enumerate(powers):
            values = power
            own = [Decimal(int(j == k)) for j in range(degree + 1)]
            for earlier, parts in zip(orthogonal, combined, strict=True):
                share = _inner(earlier, values)
                values = [a - share * b for a, b in zip(values, earlier, strict=True)]
                own = [a - share * b for a, b in zip(own, parts, strict=True)]
            length = _inner(values, values).sqrt()
            orthogonal.append([value / length for value in values])
            combined.append([part / length for part in own])
        solver = [
            [
                sum(parts[k] * row[j] for parts, row in zip(combined, orthogonal, strict=True))
                for j in range(NODES)
            ]
            for k in range(degree + 1)
        ]
        return np.array(solver, dtype=np.float64)


def _inner(left: list[Decimal], right: list[Decimal]) -> Decimal:
    return sum((a * b for a, b in zip(left, right, strict=True)), Decimal(0))


def _fit_thresholds(
    sampler: Sampler, grid: Points, nodes: Points, degree: int, centred: bool
) -> Thresholds:
    """Fit least squares on Chebyshev points, and add up all errors into the margin."""
    slant = 2.0 if centred else 1.0  # the derivative of the polynomial's variable
    f = slant * grid[0] - (slant - 1.0)
    exact = grid[1]
    low, high = sampler.t_range
    reach = high - low
    steep = _slope_range(sampler)
    powers = np.arange(degree + 1)
    solver = _least_squares(degree, centred)[:, :, None]
    rounded = (solver * (nodes[1] - 0.5)).sum(axis=1).astype(np.float32)
    value = np.zeros_like(exact)
    for row in rounded[::-1].astype(np.float64):
        value = value * f[:, None] + row
    off = np.abs(value - (exact - 0.5)).max(initial=0.0)
    sizes = np.abs(rounded.astype(np.float64)).max(axis=1, initial=0.0)
    curve_of_law = UNIT * 0.16 * (steep * reach / slant) ** 2
    curve_of_fit = float((powers * (powers - 1) * sizes).sum())
    curve = curve_of_law + curve_of_fit
    between = float(np.diff(f).max()) ** 2 / 8 * curve
    offset = -low / reach
    moved = 2 * ROUNDOFF * (4 + 3 * abs(offset)) * UNIT * steep / 4 * reach
    evaluated = ROUNDOFF * ((2 * degree + 4) * float(sizes.sum()) + 2 * UNIT)
    margin = float(off) + between + moved + evaluated + 2.0**-16
    table = np.zeros((degree + 1, 1, sampler.symbols), dtype=np.float32)
    table[:, 0, :-1] = rounded
    lowered = None
    if sampler.bits == 1 and exact.min() >= 2 * margin + 3:
        lowered = float(floor(float(rounded[0, 0]) - margin))
    return Thresholds(
        coefficients=table,
        rate=1.0 / reach,
        offset=offset,
        lowest=0.0,
        highest=1.0,
        half=0.5 + margin,
        lowered=lowered,
        width=ceil(2 * margin + 2) - 1,
        centred=centred,
    )


def _lines(sampler: Sampler) -> Thresholds:
    """Return the cell table, with the position's rounding to float32 added to its margin."""
    cells = cell_table(sampler)
    count = len(cells.start)
    # At least two cells, because one means a polynomial on [0, 1].
    table = np.zeros((2, max(2, count), sampler.symbols), dtype=np.float32)
    table[0, :count, :-1] = cells.start
    table[1, :count, :-1] = cells.step
    low, high = sampler.t_range
    last = float(np.nextafter(np.float32(count), np.float32(0)))
    lowest = low * cells.inverse + cells.offset
    highest = high * cells.inverse + cells.offset
    steepest = float(np.abs(cells.step).max(initial=0.0))
    moved = 2 * steepest * 8 * ROUNDOFF * (count + abs(cells.offset))
    return Thresholds(
        coefficients=table,
        rate=cells.inverse,
        offset=cells.offset,
        lowest=min(max(lowest, 0.0), float(count)),
        highest=min(max(highest, 0.0), last),
        half=cells.half + moved + 2.0**-16,
        lowered=None,
        width=0,
        centred=False,
    )
