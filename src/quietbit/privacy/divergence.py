"""Pure differential privacy of the interpolated mechanism: how fast its log-probabilities can move.

Idea     every constant of the interpolated mechanism is a statement about a few straight lines, the segments,
         restricted to the inputs that can occur; symbols that reveal the same are merged. D_inf(x || x') <=
         L |x - x'|, so d independent coordinates are (L ||x - x'||_1)-DP. Constants from tightest to the paper's:
         through the centre <= zero-out <= L <= eps + eps'.
Symbols  segment i: eta(x) = start_i + slope_i (x - left_i) on [left_i, right_i]; slope_i = theta_i / h.
         sigma = softmax(eta): the law of the symbol. The end segments continue outside [0, 1].
         m_i(x) = sigma(eta(x)) . slope_i; g_j(t) = log P(j | 1/2 + t) - log P(j | 1/2).
Source   Guo et al. (ICML 2023), equation (imvu_interpolation), beta-scaling of the same section, Lemma 1 and Theorem 1;
         the sharper constants follow here.

Two symbols whose slopes agree in every segment have a constant ratio of probabilities, so their sum is a
sufficient statistic: merging them changes no divergence between two inputs.

L. Inside segment i, d/dx log P(j|x) = slope_i[j] - m_i(x), and m_i' is a variance, so m_i is non-decreasing
and the extremes over the segment are at its ends: no search is needed. The paper states Lemma 1 on [0, 1];
here the segments cover the whole range of inputs, beta > 1 included.

Zero-out. sup over t of max_j |g_j(t)| / |t|. In a segment g_j is linear minus convex, hence concave. On the
piece next to the centre, where g_j(0) = 0, g/t is largest at 0+ (the slope there) and -g/t at the far end. On
a piece [a, b], 0 < a: -g/t is quasi-convex, so largest at an end; g/t is quasi-concave, and with
psi = g - t g' (non-decreasing) it is largest at a if psi(a) >= 0, at b if psi(b) <= 0, else where psi
vanishes. Bisection leaves psi(l) <= 0 <= psi(r), and the tangent at l bounds g/t on [l, r] by
(g(l) + g'(l) (r - l)) / r from above. All of it is exact up to rounding, which is added.

Through the centre. Let c_up be the least constant with g_j(t) <= c_up |t|, and c_down that with -g_j(t) <= c_down |t|;
the zero-out constant is the larger. For two vectors in the same L1 ball of radius r around the centre,
log P(y|x) - log P(y|x') = (log P(y|x) - log P(y|1/2)) + (log P(y|1/2) - log P(y|x')) <= (c_up + c_down) r: the
constant of replace-one in a ball is (c_up + c_down) / 2 on its diameter 2 r.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.table import Design
from quietbit.errors import require

__all__ = [
    "CENTRE", "Segments", "check_range", "lipschitz_upper", "log_softmax", "mean_and_law", "paper_constant_upper",
    "smallest_probability_lower", "through_centre_constant_upper", "zero_out_constant_upper",
]  # fmt: skip

CENTRE = 0.5  # the input of a zero update


@final
@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The straight pieces of eta over [low, high]: one row per segment, one column per symbol."""

    left: FloatVector
    right: FloatVector
    start: FloatMatrix
    slope: FloatMatrix
    noise: float  # relative rounding error of any probability computed from these numbers, rounded up
    slope_error: float  # absolute rounding error of a slope: logarithms of nearly equal numbers are subtracted

    @classmethod
    def over(cls, design: Design, low: float, high: float, *, merge: bool = True) -> Segments:
        """Return the pieces of a design's interpolation over the range, the end pieces extended to it."""
        low, high = check_range(low, high)
        eta = np.log(design.probabilities)
        cells = design.spec.input_levels - 1
        levels = np.arange(cells + 1) / cells  # correctly rounded, so that a centre level is exactly 1/2
        slope = np.diff(eta, axis=0) * cells
        left, right = levels[:-1].copy(), levels[1:].copy()
        left[0], right[-1] = min(low, 0.0), max(high, 1.0)
        used = (np.minimum(right, high) > np.maximum(left, low)) | ((left == low) & (right == high))
        anchor, start = levels[:-1][used], eta[:-1][used]
        left, right = np.maximum(left[used], low), np.minimum(right[used], high)
        slope = slope[used]
        start = start + slope * (left - anchor)[:, None]
        if merge:
            start, slope = _merged(start, slope)
        ends = start + slope * (right - left)[:, None]
        largest = float(max(np.abs(start).max(), np.abs(ends).max()))
        slope_error = 2.0**-50 * cells * (1.0 + float(np.abs(eta).max()))
        return cls(left, right, start, slope, 2.0**-49 * (16.0 + largest), slope_error)

    @property
    def span(self) -> FloatVector:
        """max_j slope - min_j slope of each segment, rounded up: how fast log-ratios of symbols can move."""
        width = np.ptp(self.slope, axis=1)
        return np.where(width > 0, width + 2 * self.slope_error, 0.0)

    def eta(self, index: np.ndarray[tuple[int], np.dtype[np.intp]], x: FloatVector) -> FloatMatrix:
        """Return unnormalised log-probabilities at ``x``, on the line of segment ``index`` wherever ``x`` is."""
        return self.start[index] + self.slope[index] * (x - self.left[index])[:, None]


def check_range(low: float, high: float) -> tuple[float, float]:
    """Return a range of inputs as floats; refuse one that is not finite and of positive length."""
    low, high = float(low), float(high)
    require(math.isfinite(low) and math.isfinite(high), "input range", (low, high), "finite")
    require(low < high, "input range", (low, high), "increasing")
    return low, high


def log_softmax(eta: FloatMatrix) -> FloatMatrix:
    """Return log-probabilities, row by row."""
    shifted = eta - eta.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def mean_and_law(eta: FloatMatrix, values: FloatMatrix) -> tuple[FloatVector, FloatMatrix]:
    """Return sigma(eta) . values and sigma(eta), row by row."""
    weights = np.exp(eta - eta.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("...j,...j->...", weights, values), weights


def _merged(start: FloatMatrix, slope: FloatMatrix) -> tuple[FloatMatrix, FloatMatrix]:
    """Merge symbols whose slopes are equal to the last bit in every segment."""
    columns, place = np.unique(slope, axis=1, return_inverse=True)
    if columns.shape[1] == slope.shape[1]:
        return start, slope
    merged = np.full((start.shape[0], columns.shape[1]), -np.inf)
    for column, target in enumerate(np.ravel(place)):
        merged[:, target] = np.logaddexp(merged[:, target], start[:, column])
    return merged, columns


_BISECTIONS = 50
_Index: TypeAlias = np.ndarray[tuple[int], np.dtype[np.intp]]


def lipschitz_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return L: the exact Lipschitz constant of every log-probability over inputs in [low, high], rounded up."""
    segments = Segments.over(design, low, high)
    return min(_lipschitz(segments), _paper(segments))


def paper_constant_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return the eps + eps' of Lemma 1, measured on the stored table and over [low, high], rounded up."""
    return _paper(Segments.over(design, low, high, merge=False))


def zero_out_constant_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return the least c with |log P(j|x) - log P(j|1/2)| <= c |x - 1/2| for all j and x in the range, rounded up.

    The range must contain the centre 1/2.
    """
    return min(max(_gain_and_loss(design, low, high)), lipschitz_upper(design, low, high))


def through_centre_constant_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return (c_up + c_down) / 2: times the diameter of an L1 ball around 1/2 it bounds D_inf of any two points.

    It holds for pairs inside one ball, not for any two close inputs; it never exceeds the zero-out constant.
    """
    gain, loss = _gain_and_loss(design, low, high)
    return min((gain + loss) / 2 * (1 + 2.0**-52), lipschitz_upper(design, low, high))


def _gain_and_loss(design: Design, low: float, high: float) -> tuple[float, float]:
    """Return c_up and c_down over the range, rounded up."""
    low, high = check_range(low, high)
    require(low <= CENTRE <= high, "input range", (low, high), "around 1/2 for zero-out adjacency")
    # From the centre upwards, then downwards: the same piece of code on the mirrored lines.
    above = _one_sided(Segments.over(design, CENTRE, high), False) if high > CENTRE else (0.0, 0.0)
    below = _one_sided(Segments.over(design, low, CENTRE), True) if low < CENTRE else (0.0, 0.0)
    return max(above[0], below[0]), max(above[1], below[1])


def smallest_probability_lower(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return the least probability of any symbol over the range, rounded down.

    log P(j|x) is concave in each segment, so its minimum is at an end of one.
    """
    segments = Segments.over(design, low, high, merge=False)
    ends = segments.start + segments.slope * (segments.right - segments.left)[:, None]
    least = min(float(log_softmax(segments.start).min()), float(log_softmax(ends).min()))
    return math.exp(least) * (1 - 4 * segments.noise)


def _slope_range(segments: Segments) -> tuple[FloatVector, FloatVector]:
    """Return m_i at the left and at the right end of every segment."""
    ends = segments.start + segments.slope * (segments.right - segments.left)[:, None]
    return mean_and_law(segments.start, segments.slope)[0], mean_and_law(ends, segments.slope)[0]


def _lipschitz(segments: Segments) -> float:
    at_left, at_right = _slope_range(segments)
    up = segments.slope.max(axis=1) - at_left
    down = at_right - segments.slope.min(axis=1)
    return float(np.maximum(up, down).max() + 4 * segments.noise * segments.span.max()) + 2 * segments.slope_error


def _paper(segments: Segments) -> float:
    at_left, at_right = _slope_range(segments)
    drift = max(float(np.abs(at_left).max()), float(np.abs(at_right).max()))
    metric = float(np.abs(segments.slope).max())
    return (metric + drift) * (1 + 8 * segments.noise) + 2 * segments.slope_error


def _one_sided(segments: Segments, mirrored: bool) -> tuple[float, float]:
    """Return c_up and c_down of the segments on one side of the centre, as lines in t = |x - 1/2|."""
    start, slope = segments.start, segments.slope
    near, far = segments.left - CENTRE, segments.right - CENTRE
    if mirrored:
        start = (start + slope * (far - near)[:, None])[::-1]
        slope = -slope[::-1]
        near, far = -far[::-1], -near[::-1]
    centre = log_softmax(start[0])
    error = 8 * segments.noise

    def gain(rows: _Index, t: FloatVector) -> tuple[FloatMatrix, FloatMatrix]:
        """Return g_j(t) and g_j'(t) of all symbols, on the lines of the given segments."""
        eta = start[rows] + slope[rows] * (t - near[rows])[:, None]
        return log_softmax(eta) - centre, slope[rows] - mean_and_law(eta, slope[rows])[0][:, None]

    every = np.arange(len(near))
    at_near, slope_near = gain(every, near)
    at_far, slope_far = gain(every, far)
    # Next to the centre: slopes at 0+, and the far end (at most its slope, which survives tiny pieces).
    up = float(slope_near[0].max())
    down = float(np.minimum((error - at_far[0]) / far[0], -slope_far[0]).max())
    if len(near) > 1:
        ends = ((at_near[1:], near[1:, None]), (at_far[1:], far[1:, None]))
        up = max(up, *(float(((value + error) / t).max()) for value, t in ends))
        down = max(down, *(float(((error - value) / t).max()) for value, t in ends))
        # psi changes sign inside, and the tangent at the near end does not already rule the symbol out.
        inside = (at_near < near[:, None] * slope_near) & (at_far > far[:, None] * slope_far)
        inside &= at_near + slope_near * (far - near)[:, None] + error > up * far[:, None]
        inside[0] = False
        rows, symbols = np.nonzero(inside)
        if len(rows):
            up = max(up, _interior(gain, rows, symbols, near[rows], far[rows], error))
    rounding = error * float(segments.span.max()) + 2 * segments.slope_error
    return up + rounding, down + rounding


def _interior(
    gain: Callable[[_Index, FloatVector], tuple[FloatMatrix, FloatMatrix]],
    rows: _Index,
    symbols: _Index,
    low: FloatVector,
    high: FloatVector,
    error: float,
) -> float:
    """Return the largest certified g/t strictly inside a piece away from the centre, by bisecting on psi."""
    own = np.arange(len(rows))
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        value, rate = gain(rows, middle)
        before = value[own, symbols] < middle * rate[own, symbols]
        low, high = np.where(before, middle, low), np.where(before, high, middle)
    value, rate = gain(rows, low)
    tangent = value[own, symbols] + rate[own, symbols] * (high - low)
    return float(((tangent + error) / high).max())
