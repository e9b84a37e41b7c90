"""Vectors of one-bit coordinates: one Gaussian pair dominates the release, so its account is the exact Gaussian's.

Idea     many small independent bits are almost a Gaussian. This file says how much more variance makes "almost" a
         theorem: no observer tells two neighbours apart better than it tells N(0, 1) from N(mu, 1), at every
         epsilon at once. Gaussian pairs compose exactly and adaptively, so any number of releases is one sum.
Symbols  x_i: half the distance of coordinate i's two log-odds; budget >= sum x_i^2; largest >= x_i for every i;
         mu^2: what `dominating_square_upper` returns.
Source   docs/theory/exact-accounts.md has statement and proof; composition: Dong, Roth, Su (2022), Corollary 2.

    mu^2 = budget + largest^2 (1 + log(1 + 2 budget / largest^2) / 6),      largest <= 1.

The first term is the Fisher information's own budget, which no account can go below; the second is what bits
cost on top of a Gaussian: with every coordinate clamped to a tenth of the radius 1.9 %, to a twentieth 0.5 %.
"""

from __future__ import annotations

import math

from quietbit._validate import finite_real, require
from quietbit.design.table import Design
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import GaussianPairCurve
from quietbit.privacy.segments import Segments

__all__ = ["LARGEST_HALF_STEP", "bits_l2_curve", "dominating_square_upper"]

LARGEST_HALF_STEP = 1.0  # the theorem's range; further out single bits are so revealing that Rényi is no worse
_ROUNDING = 1e-14  # of a handful of operations on positive doubles


def dominating_square_upper(budget: float, largest: float) -> float:
    """mu^2 of a Gaussian pair that dominates every product of bits with this budget, rounded up.

    Args:
        budget: an upper bound on the sum over coordinates of (half the difference of the log-odds) squared.
        largest: an upper bound on that half difference for every single coordinate.

    Infinite where ``largest`` exceeds 1 and the budget allows it, as the theorem then says nothing.

    >>> dominating_square_upper(1.0, 0.1) < 1.019
    True
    """
    budget, largest = _size(budget, "budget"), _size(largest, "largest")
    largest = min(largest, math.sqrt(budget) * (1 + _ROUNDING))  # one coordinate cannot exceed the whole budget
    if budget == 0 or largest == 0:
        return 0.0
    # The formula increases in both arguments; the second term keeps the square above underflow.
    square = max(largest * largest * (1 + _ROUNDING), budget * 1e-30)
    if not (largest <= LARGEST_HALF_STEP and square <= 1 + 2 * _ROUNDING):
        return math.inf
    return round_up(budget + square * (1 + math.log1p(2 * budget / square) / 6), _ROUNDING)


def bits_l2_curve(design: Design, distance: float, largest: float, low: float, high: float) -> GaussianPairCurve:
    """The curve of a vector sent through a one-bit interpolated mechanism, for either adjacency.

    Args:
        design: any number of levels, one output bit; more bits are refused.
        distance: the largest L2 distance of two neighbours' inputs, ``Scaling.distance(adjacency, ball)``.
        largest: the largest distance of two neighbours' inputs in one coordinate: that of clamped inputs from
            the centre for zero-out, twice as much for replace-one.
        low: the smallest input that occurs.
        high: the largest one.

    Where the theorem does not reach (``largest`` too large) the curve answers by its Rényi bound alone.
    """
    bits = design.spec.output_bits
    require(bits == 1, "output_bits", bits, "1 for the account of bits (others: interpolated_l2_curve)")
    distance, largest = finite_real(distance, "distance"), finite_real(largest, "largest")
    # Log-odds are piecewise linear with these slopes, so half a difference is at most half the steepest times |x - x'|.
    steepest = float(Segments.over(design, low, high).span.max())
    largest = min(largest, round_up(high - low, _ROUNDING))
    reach = round_up(steepest * distance / 2, _ROUNDING)
    budget = round_up(reach * reach, _ROUNDING)
    square = dominating_square_upper(budget, round_up(steepest * largest / 2, _ROUNDING))
    # D_alpha of two bits is at most alpha (half difference)^2 / 2: the log-partition's second derivative is at most 1/4.
    return GaussianPairCurve(budget / 2, square / 2)


def _size(value: float, name: str) -> float:
    """A number of at least 0; infinite is allowed, NaN is not."""
    require(value >= 0, name, value, "a number of at least 0")
    return float(value)
