"""Sample the vector mechanism's output directly, for profiles too steep for a search.

Idea     along the direction u the output has density h(t) against N(0,1), across it it is plain
         noise: draw t, then z = g + (t - <u, g>) u with g standard normal, and round z to a few
         bits (`kernel/expand.py`), which is post-processing. Only codes leave, so z is computed in
         doubles, with a bound on its error; where a code is not certain, random words are
         lengthened and z is computed again in decimal arithmetic.
Symbols  A_s = the first cell of step s, 0 = A_0 < A_1 < ... < A_m = 2^127; w_s = the weight of step
         s; k = count; b = bits; w = the odd number of 63 bits that a word's quantile is taken of
         (`kernel/expand.py`).
Source   docs/theory/samplers.md, "Codes drawn directly": what an account may use, and its proof.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietbit._typing import FloatVector
from quietbit.design.normal import density, distribution
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.expand import (
    EXPANSION_ERROR,
    LARGEST,
    NormalQuantiser,
    inner,
    inner_error_upper,
    normals_of_words,
    unit,
)
from quietbit.kernel.rng import WordBlock, start_state

__all__ = ["DIRECT_STREAMS", "code_error_upper", "draw_codes", "step_cells", "step_limits"]

CELL_BITS = 127
CELLS = 2**CELL_BITS
FARTHEST = 11.0  # edge; the cells up to it are fine enough for the account's blur
# Streams of a release's words: of step, place and seed; and of the words that lengthen those of g.
DIRECT_STREAMS = (0, 1)
UNIT = 2.0**-53
LOW = np.uint64(2**63 - 1)
NEWTON = Decimal("1e-12")
DIGITS = Context(prec=90)


def step_cells(edges: Sequence[float] | FloatVector) -> tuple[int, ...]:
    """Return A_0 .. A_m for edges t_1 < ... < t_{m-1}: the nearest of 2^127 cells.

    >>> step_cells([0.0]) == (0, 2**126, 2**127)
    True
    """
    values = np.asarray(edges, dtype=np.float64).tolist()
    cells = [0]
    for value in values:
        require(abs(value) <= FARTHEST, "edge", value, f"between -{FARTHEST:g} and {FARTHEST:g}")
        with localcontext(DIGITS):
            cells.append(int((distribution(value) * CELLS).to_integral_value()))
    cells.append(CELLS)
    increasing = all(a < b for a, b in pairwise(cells))
    require(increasing, "edges", values, "increasing, with cells between")
    return tuple(cells)


def step_limits(cells: Sequence[int], weights: Sequence[float] | FloatVector) -> tuple[int, ...]:
    """Return floor(2^128 P(step <= s)) for all steps but the last, exactly.

    P is proportional to cells times weight. Weights follow from a private update, so that a refusal
    does not show them.
    """
    widths = [b - a for a, b in pairwise(cells)]
    heights = np.asarray(weights, dtype=np.float64).tolist()
    count = len(heights)
    require(count == len(widths), "number of weights", count, f"{len(widths)}, one per step")
    if not all(0.0 <= weight < math.inf for weight in heights):
        raise InvalidParameter.of("weights", "finite and not negative")
    # Denominators of doubles are powers of two, so the largest is common to all.
    ratios = [weight.as_integer_ratio() for weight in heights]
    common = max(denominator for _, denominator in ratios)
    masses = [n * (common // d) * width for (n, d), width in zip(ratios, widths, strict=True)]
    total = sum(masses)
    if total == 0:
        raise InvalidParameter.of("weights", "positive for at least one step")
    running_sums = accumulate(masses[:-1])
    return tuple((running << 128) // total for running in running_sums)


def draw_codes(
    vector: FloatVector,
    cells: Sequence[int],
    limits: Sequence[int],
    quantiser: NormalQuantiser,
    block: WordBlock,
    kernel: Kernel,
    *,
    streams: tuple[int, int] = DIRECT_STREAMS,
) -> NDArray[np.uint8]:
    """Return the codes of z = g + (t - <u, g>) u, where u is the direction of ``vector``.

    The first stream's words 0 and 1 choose the step, 2 and 3 the place in it, 4 and 5 are the seed
    of g. The second stream is read only if a code is not certain.
    """
    expected = len(cells) - 2
    require(len(limits) == expected, "number of limits", len(limits), f"{expected}")
    direction, _ = unit(vector)
    first = [int(word) for word in block.uniform64(streams[0], 0, 6)]
    place = _place(cells, limits, first)
    seed = np.array(first[4:], dtype="<u8").tobytes()
    words = kernel.words(start_state(seed), direction.size)
    along = _word_of(place)
    t = float(normals_of_words(np.array([along], dtype=np.uint64))[0])
    noise = normals_of_words(words)
    z: FloatVector = noise + (t - inner(direction, noise)) * direction
    gap = np.abs(z[:, None] - quantiser.thresholds).min(axis=1)
    if bool(np.all(gap > _doubt(direction, words, along))):
        return quantiser.encode(z)
    return _certain_codes(
        vector, place, words, block.uniform64(streams[1], 0, direction.size), quantiser
    )


def code_error_upper(count: int, bits: int, largest: float) -> float:
    """Return a bound on the total variation distance of codes from those of an exact z."""
    size = check_int(count, "count", 1, 2**16)
    levels = 2 ** check_int(bits, "bits", 1, 8)
    height = check_real(largest, "largest")
    peak = 0.5642 * size + 0.5657 * height
    moved = (levels - 1) * size * (size * 2.0**-126 + height * 2.0**-127)
    total: float = moved + 2e-32 * levels * peak + 1025 * 2.0**-127
    return total * (1 + 2.0**-40)


def _place(cells: Sequence[int], limits: Sequence[int], words: Sequence[int]) -> int:
    """Draw a cell: the first two words choose the step, the next two the cell within it."""
    step = bisect_right(limits, (words[0] << 64) | words[1])
    low = cells[step]
    high = cells[step + 1]
    return low + ((((words[2] << 64) | words[3]) * (high - low)) >> 128)


def _word_of(place: int) -> int:
    """Return the 64-bit word, sign first, whose cell contains a place; `kernel/expand.py`."""
    tail: int = min(place, CELLS - 1 - place)
    word = (tail >> 63) | 1
    if place < CELLS // 2:
        word |= 2**63
    return word


def _doubt(direction: FloatVector, words: NDArray[np.uint64], along: int) -> FloatVector:
    """Bound the distance of every computed entry of z from the exact one, for any further bits.

    a: rounding of the normal and the last addition; b: of t, <u, g>, the direction and two
    products; 2/w for the entry's word, and |u_i| times what the words of t and <u, g> leave open.
    """
    size = direction.size
    reach = LARGEST * (1.0 + math.sqrt(size))
    depth = size // 64 + 20
    a = EXPANSION_ERROR + 2 * UNIT * LARGEST
    b = EXPANSION_ERROR + inner_error_upper(size) + depth * UNIT * reach
    odd = ((words & LOW) | np.uint64(1)).astype(np.float64)
    open_ = np.where(odd > 1, 2.0 / odd, math.inf)
    number = (along & (2**63 - 1)) | 1
    b += 2.0 / number if number > 1 else math.inf
    size_u = np.abs(direction)
    # 0 times infinity would be NaN: t does not move an entry where u is zero.
    shared = float(np.sum(open_[size_u > 0] * size_u[size_u > 0]))
    doubt: FloatVector = (
        a + open_ + np.where(size_u > 0, np.maximum(size_u, 1e-300) * (b + shared), 0.0)
    ) * 1.000001
    return doubt


def _certain_codes(
    vector: FloatVector,
    place: int,
    words: NDArray[np.uint64],
    more: NDArray[np.uint64],
    quantiser: NormalQuantiser,
) -> NDArray[np.uint8]:
    """Return the codes from 128-bit words, in decimal arithmetic."""
    with localcontext(DIGITS):
        y = [Decimal(entry) for entry in vector.tolist()]
        if not any(y):
            y[0] = Decimal(1)  # as `unit` has it
        length = sum((entry * entry for entry in y), Decimal(0)).sqrt()
        u = [entry / length for entry in y]
        tail = min(place, CELLS - 1 - place)
        t = _quantile(2 * tail + 1, CELL_BITS + 1, negative=place < CELLS // 2)
        g = []
        for word, extra in zip(words.tolist(), more.tolist(), strict=True):
            odd = (word & (2**63 - 1)) | 1
            # The cell (odd - 1 .. odd + 1) / 2^64 has 2^64 parts of probability 2^-127; the middle
            # of one of them.
            g.append(_quantile(((odd - 1) << 64) + 2 * extra + 1, 128, negative=word >= 2**63))
        gap = t - sum((a * b for a, b in zip(u, g, strict=True)), Decimal(0))
        z = [b + gap * a for a, b in zip(u, g, strict=True)]
        thresholds = [Decimal(threshold) for threshold in quantiser.thresholds.tolist()]
        return np.array([bisect_right(thresholds, entry) for entry in z], dtype=np.uint8)


def _quantile(numerator: int, bits: int, *, negative: bool) -> Decimal:
    """Return the normal quantile whose tail is numerator / 2^bits <= 1/2.

    With d = (Q(x) - q) / phi(x) for a double x near it, it is x + d + x d^2 / 2 up to (1 + 2 x^2)
    d^3 / 6; d is below 1e-12.
    """
    q = Decimal(numerator) / 2**bits
    x = -float(special.ndtri(float(q)))
    d = (distribution(-x) - q) / density(x)
    if not abs(d) < NEWTON:
        raise InvalidParameter.of("first guess of a quantile", "within 1e-12")
    quantile: Decimal = Decimal(x) + (d + Decimal(x) * d * d / 2)
    return -quantile if negative else quantile
