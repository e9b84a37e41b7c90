"""The interpolated log-probabilities, cut into their straight pieces over a range of inputs.

Idea     every constant of the interpolated mechanism is a statement about a few straight lines: this file
         restricts them to the inputs that can occur and merges symbols that reveal the same.
Symbols  segment i: eta(x) = start_i + slope_i (x - left_i) on [left_i, right_i]; slope_i = theta_i / h.
         sigma = softmax(eta): the law of the symbol. The end segments continue outside [0, 1].
Source   Guo et al. (ICML 2023), equation (imvu_interpolation); beta-scaling of the same section.

Two symbols whose slopes agree in every segment have a constant ratio of probabilities, so their sum is a
sufficient statistic: merging them changes no divergence between two inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector
from quietbit._validate import require
from quietbit.design.table import Design

__all__ = ["CENTRE", "Segments", "check_range", "log_softmax", "mean_and_law"]

CENTRE = 0.5  # where an update of zero lands


@final
@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The straight pieces of eta over [low, high]: arrays with a row per segment, a column per symbol."""

    left: FloatVector
    right: FloatVector
    start: FloatMatrix
    slope: FloatMatrix
    noise: float  # relative rounding error of any probability computed from these numbers, rounded up
    slope_error: float  # absolute rounding error of a slope: logarithms of nearly equal numbers are subtracted

    @classmethod
    def over(cls, design: Design, low: float, high: float, *, merge: bool = True) -> Segments:
        """The pieces of a design's interpolation that meet the range, the end ones extended to it."""
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
        """Unnormalised log-probabilities at ``x``, on the line of segment ``index`` wherever ``x`` is."""
        return self.start[index] + self.slope[index] * (x - self.left[index])[:, None]


def check_range(low: float, high: float) -> tuple[float, float]:
    """A finite range of inputs of positive length."""
    low, high = float(low), float(high)
    require(math.isfinite(low) and math.isfinite(high), "input range", (low, high), "finite")
    require(low < high, "input range", (low, high), "increasing")
    return low, high


def log_softmax(eta: FloatMatrix) -> FloatMatrix:
    """Log-probabilities, row by row."""
    shifted = eta - eta.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def mean_and_law(eta: FloatMatrix, values: FloatMatrix) -> tuple[FloatVector, FloatMatrix]:
    """sigma(eta) . values and sigma(eta), row by row."""
    weights = np.exp(eta - eta.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("...j,...j->...", weights, values), weights


def _merged(start: FloatMatrix, slope: FloatMatrix) -> tuple[FloatMatrix, FloatMatrix]:
    """Add up symbols whose slopes are equal to the last bit in every segment."""
    columns, place = np.unique(slope, axis=1, return_inverse=True)
    if columns.shape[1] == slope.shape[1]:
        return start, slope
    merged = np.full((start.shape[0], columns.shape[1]), -np.inf)
    for column, target in enumerate(np.ravel(place)):
        merged[:, target] = np.logaddexp(merged[:, target], start[:, column])
    return merged, columns
