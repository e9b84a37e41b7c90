"""Pure differential privacy of the interpolated mechanism: how fast its log-probabilities can move.

Idea     every constant of the interpolated mechanism is a statement about a few straight lines, the
         segments, restricted to the inputs that can occur; symbols that reveal the same are merged.
         D_inf(x || x') <= L |x - x'|, so d independent coordinates are (L ||x - x'||_1)-DP.
         Constants from tightest to the paper's: through the centre <= zero-out <= L <= eps + eps'.
Symbols  segment i: eta(x) = start_i + slope_i (x - left_i) on [left_i, right_i]; slope_i = theta_i
         / h. sigma = softmax(eta): the law of the symbol. The end segments continue outside [0, 1].
         m_i(x) = sigma(eta(x)) . slope_i; g_j(t) = log P(j | 1/2 + t) - log P(j | 1/2).
Source   Guo et al. (ICML 2023), equation (imvu_interpolation), beta-scaling of the same section,
         Lemma 1 and Theorem 1; docs/theory/interpolated.md proves the sharper constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.table import Design
from quietbit.errors import require

__all__ = [
    "CENTRE",
    "Segments",
    "check_range",
    "exact_levels",
    "lipschitz_upper",
    "log_softmax",
    "mean_and_law",
    "paper_constant_upper",
    "smallest_probability_lower",
    "through_centre_constant_upper",
    "zero_out_constant_upper",
]

CENTRE = 0.5  # the input of a zero update
_BISECTIONS = 50
_Index: TypeAlias = np.ndarray[tuple[int], np.dtype[np.intp]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The straight pieces of eta over [low, high]: one row per segment, one column per symbol."""

    left: FloatVector
    right: FloatVector
    start: FloatMatrix
    slope: FloatMatrix
    noise: (
        float  # relative rounding error of any probability computed from these numbers, rounded up
    )
    # absolute rounding error of a slope: logarithms of nearly equal numbers are subtracted
    slope_error: float

    @classmethod
    def over(cls, design: Design, low: float, high: float, *, merge: bool = True) -> Segments:
        """Return the pieces of a design's interpolation over the range, the end pieces extended to it."""
        low, high = check_range(low, high)
        eta = np.log(design.probabilities)
        levels = exact_levels(design)
        cells = design.spec.input_levels - 1
        slope = np.diff(eta, axis=0) * cells
        left = levels[:-1].copy()
        right = levels[1:].copy()
        left[0], right[-1] = min(low, 0.0), max(high, 1.0)
        used = (np.minimum(right, high) > np.maximum(left, low)) | ((left == low) & (right == high))
        anchor = levels[:-1][used]
        start = eta[:-1][used]
        left = np.maximum(left[used], low)
        right = np.minimum(right[used], high)
        slope = slope[used]
        start = start + slope * (left - anchor)[:, None]
        columns, place = np.unique(slope, axis=1, return_inverse=True)
        if (
            merge and columns.shape[1] < slope.shape[1]
        ):  # symbols with slopes equal to the last bit in every segment
            whole = np.full((start.shape[0], columns.shape[1]), -np.inf)
            for column, target in enumerate(np.ravel(place)):
                whole[:, target] = np.logaddexp(whole[:, target], start[:, column])
            start = whole
            slope = columns
        ends = start + slope * (right - left)[:, None]
        largest = float(max(np.abs(start).max(), np.abs(ends).max()))
        slope_error = 2.0**-50 * cells * (1.0 + float(np.abs(eta).max()))
        return cls(left, right, start, slope, 2.0**-49 * (16.0 + largest), slope_error)

    @property
    def span(self) -> FloatVector:
        """max_j slope - min_j slope of each segment, rounded up: how fast log-ratios of symbols can move."""
        width = np.ptp(self.slope, axis=1)
        return np.where(width > 0, width + 2 * self.slope_error, 0.0)

    def eta(self, index: _Index, x: FloatVector) -> FloatMatrix:
        """Return unnormalised log-probabilities at ``x``, on the line of segment ``index`` wherever ``x`` is."""
        return self.start[index] + self.slope[index] * (x - self.left[index])[:, None]


def exact_levels(design: Design) -> FloatVector:
    """Return the input levels, correctly rounded, so that a centre level is exactly 1/2."""
    return np.asarray(np.arange(design.spec.input_levels) / (design.spec.input_levels - 1))


def check_range(low: float, high: float) -> tuple[float, float]:
    """Return a range of inputs as floats; refuse one that is not finite and of positive length."""
    low = float(low)
    high = float(high)
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


def lipschitz_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return L: the exact Lipschitz constant of every log-probability over inputs in [low, high], rounded up."""
    return min(_constants(Segments.over(design, low, high)))


def paper_constant_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return the eps + eps' of Lemma 1, measured on the stored table and over [low, high], rounded up."""
    return _constants(Segments.over(design, low, high, merge=False))[1]


def zero_out_constant_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return the least c with |log P(j|x) - log P(j|1/2)| <= c |x - 1/2| over the range, which must contain 1/2."""
    return min(max(_gain_and_loss(design, low, high)), lipschitz_upper(design, low, high))


def through_centre_constant_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return (c_up + c_down) / 2: times the diameter of an L1 ball around 1/2 it bounds D_inf of any two points.

    It holds for pairs inside one ball, not for any two close inputs; it never exceeds the zero-out
    constant.
    """
    gain, loss = _gain_and_loss(design, low, high)
    return min((gain + loss) / 2 * (1 + 2.0**-52), lipschitz_upper(design, low, high))


def _gain_and_loss(design: Design, low: float, high: float) -> tuple[float, float]:
    """Return c_up and c_down over the range, rounded up."""
    low, high = check_range(low, high)
    require(low <= CENTRE <= high, "input range", (low, high), "around 1/2 for zero-out adjacency")
    # From the centre upwards, then downwards: the same piece of code on the mirrored lines.
    if high > CENTRE:
        above = _one_sided(Segments.over(design, CENTRE, high), False)
    else:
        above = (0.0, 0.0)
    if low < CENTRE:
        below = _one_sided(Segments.over(design, low, CENTRE), True)
    else:
        below = (0.0, 0.0)
    return max(above[0], below[0]), max(above[1], below[1])


def smallest_probability_lower(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return the least probability of any symbol over the range, rounded down: at an end of a segment, by concavity."""
    segments = Segments.over(design, low, high, merge=False)
    ends = segments.start + segments.slope * (segments.right - segments.left)[:, None]
    least = min(float(log_softmax(segments.start).min()), float(log_softmax(ends).min()))
    return math.exp(least) * (1 - 4 * segments.noise)


def _constants(segments: Segments) -> tuple[float, float]:
    """Return L and the paper's eps + eps', from the means m_i at both ends of every segment."""
    slope = segments.slope
    noise = segments.noise
    slope_error = 2 * segments.slope_error
    ends = segments.start + slope * (segments.right - segments.left)[:, None]
    at_left = mean_and_law(segments.start, slope)[0]
    at_right = mean_and_law(ends, slope)[0]
    steepest = np.maximum(slope.max(axis=1) - at_left, at_right - slope.min(axis=1)).max()
    drift = max(float(np.abs(at_left).max()), float(np.abs(at_right).max()))
    paper = (float(np.abs(slope).max()) + drift) * (1 + 8 * noise) + slope_error
    return float(steepest + 4 * noise * segments.span.max()) + slope_error, paper


def _one_sided(segments: Segments, mirrored: bool) -> tuple[float, float]:
    """Return c_up and c_down of the segments on one side of the centre, as lines in t = |x - 1/2|."""
    start = segments.start
    slope = segments.slope
    near = segments.left - CENTRE
    far = segments.right - CENTRE
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
    # Next to the centre: slopes at 0+, and the far end (at most its slope, which survives tiny
    # pieces).
    up = float(slope_near[0].max())
    down = float(np.minimum((error - at_far[0]) / far[0], -slope_far[0]).max())
    if len(near) > 1:
        ends = ((at_near[1:], near[1:, None]), (at_far[1:], far[1:, None]))
        up = max(up, *(float(((value + error) / t).max()) for value, t in ends))
        down = max(down, *(float(((error - value) / t).max()) for value, t in ends))
        # psi changes sign inside, and the tangent at the near end does not already rule the symbol
        # out.
        inside = (at_near < near[:, None] * slope_near) & (at_far > far[:, None] * slope_far)
        inside &= at_near + slope_near * (far - near)[:, None] + error > up * far[:, None]
        inside[0] = False
        rows, symbols = np.nonzero(inside)
        if len(rows):  # bisect on psi; the tangent at the lower end is a bound
            own = np.arange(len(rows))
            low = near[rows]
            high = far[rows]
            for _ in range(_BISECTIONS):
                middle = 0.5 * (low + high)
                value, rate = gain(rows, middle)
                before = value[own, symbols] < middle * rate[own, symbols]
                low = np.where(before, middle, low)
                high = np.where(before, high, middle)
            value, rate = gain(rows, low)
            tangent = value[own, symbols] + rate[own, symbols] * (high - low)
            up = max(up, float(((tangent + error) / high).max()))
    rounding = error * float(segments.span.max()) + 2 * segments.slope_error
    return up + rounding, down + rounding
