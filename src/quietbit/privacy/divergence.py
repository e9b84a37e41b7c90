"""Pure differential privacy of the interpolated mechanism: how fast its log-probabilities can move.

Idea     every constant of the interpolated mechanism is a statement about a few straight lines, the
         segments, restricted to the inputs that can occur; symbols that reveal the same are merged.
         D_inf(x || x') <= L |x - x'|, so d independent coordinates are (L ||x - x'||_1)-DP.
         Constants from tightest to loosest: through the centre <= zero-out <= L.
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
    "check_around_centre",
    "check_range",
    "exact_levels",
    "lipschitz_upper",
    "log_softmax",
    "mean_and_law",
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
    """The straight pieces of eta over [low, high]: one row per segment, one column per symbol.

    ``noise`` bounds the relative rounding error of any probability computed from these numbers,
    ``slope_error`` the absolute one of a slope: logarithms of nearly equal numbers are subtracted.
    """

    left: FloatVector
    right: FloatVector
    start: FloatMatrix
    slope: FloatMatrix
    noise: float
    slope_error: float

    @classmethod
    def over(cls, design: Design, low: float, high: float, *, merge: bool = True) -> Segments:
        """Return the pieces of a design's interpolation, the end pieces extended to the range.

        ``merge`` joins symbols whose slopes are equal to the last bit in every segment.
        """
        low, high = check_range(low, high)
        eta = np.log(design.probabilities)
        levels = exact_levels(design)
        count = design.spec.input_levels - 1
        left = levels[:-1].copy()
        right = levels[1:].copy()
        left[0] = min(low, 0.0)
        right[-1] = max(high, 1.0)
        inside = np.minimum(right, high) > np.maximum(left, low)
        used = inside | ((left == low) & (right == high))
        left = np.maximum(left[used], low)
        right = np.minimum(right[used], high)
        slope = (np.diff(eta, axis=0) * count)[used]
        start = eta[:-1][used] + slope * (left - levels[:-1][used])[:, None]
        if merge:
            start, slope = _merged(start, slope)
        ends = start + slope * (right - left)[:, None]
        largest = float(max(np.abs(start).max(), np.abs(ends).max()))
        noise = 2.0**-49 * (16.0 + largest)
        slope_error = 2.0**-50 * count * (1.0 + float(np.abs(eta).max()))
        return cls(left, right, start, slope, noise, slope_error)

    @property
    def end(self) -> FloatMatrix:
        """Unnormalised log-probabilities at the right end of each segment."""
        return np.asarray(self.start + self.slope * (self.right - self.left)[:, None])

    @property
    def span(self) -> FloatVector:
        """max_j slope - min_j slope of each segment, rounded up."""
        width = np.ptp(self.slope, axis=1)
        return np.where(width > 0, width + 2 * self.slope_error, 0.0)

    def eta(self, index: _Index, x: FloatVector) -> FloatMatrix:
        """Return unnormalised log-probabilities at ``x`` on the lines of the segments ``index``."""
        return self.start[index] + self.slope[index] * (x - self.left[index])[:, None]


def _merged(start: FloatMatrix, slope: FloatMatrix) -> tuple[FloatMatrix, FloatMatrix]:
    """Return the lines of symbols with equal slopes as one, of their joint probability."""
    columns, place = np.unique(slope, axis=1, return_inverse=True)
    if columns.shape[1] == slope.shape[1]:
        return start, slope
    joint = np.full((start.shape[0], columns.shape[1]), -np.inf)
    for column, target in enumerate(np.ravel(place)):
        joint[:, target] = np.logaddexp(joint[:, target], start[:, column])
    return joint, columns


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


def check_around_centre(low: float, high: float) -> tuple[float, float]:
    """Return a range of inputs; refuse one without the input of a zero update."""
    low, high = check_range(low, high)
    rule = "around 1/2, the input of a zero update, for zero-out adjacency"
    require(low <= CENTRE <= high, "input range", (low, high), rule)
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
    """Return L, the Lipschitz constant of every log-probability over [low, high], rounded up."""
    segments = Segments.over(design, low, high)
    slope = segments.slope
    rising = slope.max(axis=1) - mean_and_law(segments.start, slope)[0]
    falling = mean_and_law(segments.end, slope)[0] - slope.min(axis=1)
    steepest = np.maximum(rising, falling).max()
    rounding = 4 * segments.noise * segments.span.max()
    return float(steepest + rounding) + 2 * segments.slope_error


def zero_out_constant_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return the least c with |log P(j|x) - log P(j|1/2)| <= c |x - 1/2| over the range.

    The range must contain 1/2.
    """
    constant = max(_gain_and_loss(design, low, high))
    return min(constant, lipschitz_upper(design, low, high))


def through_centre_constant_upper(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return (c_up + c_down) / 2, which bounds D_inf per unit of an L1 ball's diameter.

    It holds for any two points of a ball around 1/2, not for any two close inputs; it never exceeds
    the zero-out constant.
    """
    gain, loss = _gain_and_loss(design, low, high)
    constant = (gain + loss) / 2 * (1 + 2.0**-52)
    return min(constant, lipschitz_upper(design, low, high))


def smallest_probability_lower(design: Design, low: float = 0.0, high: float = 1.0) -> float:
    """Return the least probability of any symbol over the range, rounded down.

    Log-probabilities are concave on a segment, so the least is at one of its ends.
    """
    segments = Segments.over(design, low, high, merge=False)
    at_start = float(log_softmax(segments.start).min())
    at_end = float(log_softmax(segments.end).min())
    return math.exp(min(at_start, at_end)) * (1 - 4 * segments.noise)


def _gain_and_loss(design: Design, low: float, high: float) -> tuple[float, float]:
    """Return c_up and c_down over the range, rounded up."""
    low, high = check_around_centre(low, high)
    gains = [0.0]
    losses = [0.0]
    if high > CENTRE:
        above = _Ray.upwards(Segments.over(design, CENTRE, high))
        gains.append(above.steepest_gain())
        losses.append(above.steepest_loss())
    if low < CENTRE:
        below = _Ray.downwards(Segments.over(design, low, CENTRE))
        gains.append(below.steepest_gain())
        losses.append(below.steepest_loss())
    return max(gains), max(losses)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Ray:
    """The segments on one side of the centre as lines in t = |x - 1/2|, the nearest first."""

    start: FloatMatrix
    slope: FloatMatrix
    near: FloatVector
    far: FloatVector
    error: float  # of a log-probability
    rounding: float  # of a constant

    @classmethod
    def upwards(cls, segments: Segments) -> _Ray:
        """Return the segments of inputs above the centre."""
        near = segments.left - CENTRE
        far = segments.right - CENTRE
        return cls(segments.start, segments.slope, near, far, *cls._errors(segments))

    @classmethod
    def downwards(cls, segments: Segments) -> _Ray:
        """Return the segments of inputs below the centre, mirrored."""
        near = segments.left - CENTRE
        far = segments.right - CENTRE
        start = (segments.start + segments.slope * (far - near)[:, None])[::-1]
        slope = -segments.slope[::-1]
        return cls(start, slope, -far[::-1], -near[::-1], *cls._errors(segments))

    @staticmethod
    def _errors(segments: Segments) -> tuple[float, float]:
        error = 8 * segments.noise
        return error, error * float(segments.span.max()) + 2 * segments.slope_error

    def gain(self, rows: _Index, t: FloatVector) -> tuple[FloatMatrix, FloatMatrix]:
        """Return g_j(t) and g_j'(t) of all symbols, on the lines of the given segments."""
        slope = self.slope[rows]
        eta = self.start[rows] + slope * (t - self.near[rows])[:, None]
        value = log_softmax(eta) - log_softmax(self.start[0])
        return value, slope - mean_and_law(eta, slope)[0][:, None]

    def _ends(self) -> tuple[tuple[FloatMatrix, FloatMatrix], tuple[FloatMatrix, FloatMatrix]]:
        """Return the gains and their derivatives at both ends of all segments."""
        every = np.arange(len(self.near))
        return self.gain(every, self.near), self.gain(every, self.far)

    def steepest_gain(self) -> float:
        """Return c_up, the largest g_j(t) / t, rounded up."""
        near = self.near[:, None]
        far = self.far[:, None]
        (at_near, slope_near), (at_far, slope_far) = self._ends()
        steepest = float(slope_near[0].max())  # next to the centre: the slope at 0+
        if len(near) == 1:
            return steepest + self.rounding
        for value, t in ((at_near, near), (at_far, far)):
            steepest = max(steepest, float(((value[1:] + self.error) / t[1:]).max()))
        # g / t has a maximum inside where t g' - g changes sign, unless the tangent at the near end
        # rules the symbol out already.
        inside = (at_near < near * slope_near) & (at_far > far * slope_far)
        inside &= at_near + slope_near * (far - near) + self.error > steepest * far
        inside[0] = False
        rows, symbols = np.nonzero(inside)
        if len(rows):
            steepest = max(steepest, self._inner_maximum(rows, symbols))
        return steepest + self.rounding

    def _inner_maximum(self, rows: _Index, symbols: _Index) -> float:
        """Bound the largest g_j(t) / t inside segments; the tangent at the lower end is a bound."""
        each = np.arange(len(rows))
        low = self.near[rows]
        high = self.far[rows]
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            value, rate = self.gain(rows, middle)
            before = value[each, symbols] < middle * rate[each, symbols]
            low = np.where(before, middle, low)
            high = np.where(before, high, middle)
        value, rate = self.gain(rows, low)
        tangent = value[each, symbols] + rate[each, symbols] * (high - low)
        return float(((tangent + self.error) / high).max())

    def steepest_loss(self) -> float:
        """Return c_down, the largest -g_j(t) / t, rounded up."""
        (at_near, _), (at_far, slope_far) = self._ends()
        # Next to the centre: the far end, and at most its slope, which survives tiny pieces.
        first = np.minimum((self.error - at_far[0]) / self.far[0], -slope_far[0])
        steepest = float(first.max())
        if len(self.near) > 1:
            for value, t in ((at_near, self.near), (at_far, self.far)):
                losses = (self.error - value[1:]) / t[1:, None]
                steepest = max(steepest, float(losses.max()))
        return steepest + self.rounding
