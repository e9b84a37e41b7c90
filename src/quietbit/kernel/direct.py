"""Drawing the vector mechanism's output directly, for profiles too steep for a search.

Idea     along the direction u the output has density h(t) against N(0,1), across it it is plain noise: draw t, then z
         = g + (t - <u, g>) u with g standard normal. t is drawn in whole numbers: the 2^63 equally likely cells of
         the normal quantile (`quantile.py`) are shared out between the steps of h; one word chooses the step, another
         the cell. z is then rounded to a few bits (`quantiser.py`), which is post-processing.
Symbols  A_s = the first cell of step s, 0 = A_0 < A_1 < ... < A_m = 2^63; h_s = the level of step s; k = count; b =
         bits.

What an account may use. The steps have probabilities exactly (A_{s+1} - A_s) / 2^63 under the base law and (c_s -
c_{s-1}) / 2^64 when drawn, c = `step_limits`: within 2^-63 of (A_{s+1} - A_s) h_s / sum. Inside a step the law of t
is the same for every update, and any interval has its share up to 2^-63. What rounding of z can do to codes is
`rounding_mass_upper`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietbit._typing import FloatVector
from quietbit._validate import finite_real, require, whole_number
from quietbit.kernel.expand import inner, inner_error_upper, normals
from quietbit.kernel.quantile import EXPANSION_ERROR, LARGEST, normals_of_words
from quietbit.kernel.rng import WordBlock

__all__ = ["DIRECT_STREAMS", "draw_across", "draw_along", "rounding_mass_upper", "step_cells", "step_limits"]

CELLS = 2**63
DIRECT_STREAMS = (0, 1)  # streams of a release's words: step and cell, the key of the noise
UNIT = 2.0**-53


def step_cells(edges: Sequence[float] | FloatVector) -> tuple[int, ...]:
    """A_0 .. A_m for edges t_1 < ... < t_{m-1}: the nearest cells. These numbers are the profile that is sampled.

    >>> step_cells([0.0]) == (0, 2**62, 2**63)
    True
    """
    found = [0]
    for edge in np.asarray(edges, dtype=np.float64):
        value = float(edge)
        require(abs(value) <= 8.9, "edge", value, "between -8.9 and 8.9")
        # From the nearer tail, where a double has the most digits.
        tail = int(float(special.ndtr(-abs(value))) * CELLS)
        found.append(tail if value < 0 else CELLS - tail)
    found.append(CELLS)
    require(all(a < b for a, b in pairwise(found)), "edges", "others", "increasing, with cells between")
    return tuple(found)


def step_limits(cells: Sequence[int], levels: Sequence[float] | FloatVector) -> NDArray[np.uint64]:
    """floor(2^64 P(step <= s)) for all steps but the last, P proportional to cells times level, in exact arithmetic."""
    widths = [b - a for a, b in pairwise(cells)]
    heights = [float(level) for level in np.asarray(levels, dtype=np.float64)]
    require(len(heights) == len(widths), "levels", len(heights), f"one for each of {len(widths)} steps")
    require(all(0.0 <= level < math.inf for level in heights), "levels", "others", "finite and not negative")
    # Denominators of doubles are powers of two, so the largest is common to all.
    ratios = [level.as_integer_ratio() for level in heights]
    common = max(denominator for _, denominator in ratios)
    exact = [n * (common // d) * width for (n, d), width in zip(ratios, widths, strict=True)]
    total, running, found = sum(exact), 0, []
    require(total > 0, "levels", "zeros", "positive somewhere")
    for part in exact[:-1]:
        running += part
        found.append(min((running << 64) // total, 2**64 - 1))
    return np.array(found, dtype=np.uint64)


def draw_along(
    cells: Sequence[int], limits: NDArray[np.uint64], block: WordBlock, *, stream: int = DIRECT_STREAMS[0]
) -> float:
    """t: the step of the stream's first word, the cell of its second, and that cell's quantile."""
    fine = limits.dtype == np.uint64 and limits.shape == (len(cells) - 2,)
    require(fine, "limits", limits.shape, f"{len(cells) - 2} whole numbers of 64 bits")
    first, second = (int(word) for word in block.uniform64(stream, 0, 2))
    step = int(np.searchsorted(limits, np.uint64(first), side="right"))
    low, high = int(cells[step]), int(cells[step + 1])
    cell = low + ((second * (high - low)) >> 64)
    word = (CELLS | (2 * cell + 1)) if cell < CELLS // 2 else 2 * (CELLS - 1 - cell) + 1
    return float(normals_of_words(np.array([word], dtype=np.uint64))[0])


def draw_across(
    direction: FloatVector, along: float, block: WordBlock, *, stream: int = DIRECT_STREAMS[1]
) -> FloatVector:
    """The output z = g + (t - <u, g>) u; g are the normals of a seed that the stream's first two words make."""
    fine = direction.ndim == 1 and direction.size > 0 and bool(np.all(np.isfinite(direction)))
    require(fine, "direction", direction.shape, "flat and finite")
    require(math.isfinite(along), "t", along, "finite")
    seed = block.uniform64(stream, 0, 2).astype("<u8", copy=False).tobytes()
    noise = normals(seed, direction.size)
    result: FloatVector = noise + (along - inner(direction, noise)) * direction
    return result


def rounding_mass_upper(count: int, bits: int, density_upper: float) -> float:
    """The probability that rounding anywhere in z changes a code of 2^bits levels: belongs into delta, for each world.

    ``density_upper`` bounds the density of t, max over steps of h times the normal density. An entry is off by at
    most a + |u_i| b: a for the normal and the last addition, b for t, <u, g>, the direction and two products. Entry i
    given t is normal of variance 1 - u_i^2, so its density is at most 0.5642 where u_i^2 <= 1/2; for the one entry
    where that may fail it is at most sqrt(2) times the density of t. Each of 2^b - 1 thresholds catches an interval
    of twice the error, and sum |u_i| <= sqrt(k).
    """
    size = whole_number(count, "count", 1, 2**24)
    thresholds = 2 ** whole_number(bits, "bits", 1, 8) - 1
    peak = finite_real(density_upper, "density_upper")
    reach = LARGEST * (1.0 + math.sqrt(size))
    depth = size // 64 + 20
    a = EXPANSION_ERROR + 2 * UNIT * LARGEST
    b = EXPANSION_ERROR + inner_error_upper(size) + depth * UNIT * reach
    usual = 0.5642 * (size * a + math.sqrt(size) * b)
    total: float = 2.0 * thresholds * (usual + max(1.4143 * peak, 0.5642) * (a + b)) * (1 + 2.0**-20)
    return total
