"""Releases whose density against a public law is bounded: how they are drawn, and what they cost.

Idea     many local mechanisms pick one of M public candidates, or a point of a public sphere, and
         differ in nothing but a density h >= 0 of mean one against the uniform law. All that their
         privacy depends on is the range of h. An update of length r < 1 uses 1 - r + r h, so a zero
         vector gets the uniform law itself.
Symbols  M: candidates; h in [low, high]; a = (1 - low)/(high - low): the mass that h = high would
         have if h took no values but the two.
Source   Kairouz, Oh, Viswanath (2016) for extremal mechanisms with two levels; the pairs are proved
         here.

Dominating pairs. E (h - c h')_+ is convex in (h, h'), so over all pairs of densities with values in
[low, high] and mean one (under an atomless law, of which any other is a coarsening) it is largest
where both take the two values only, high on a set of mass a each. With b the mass of the overlap it
is, for c >= 1, (a - b)(high - c low)_+, so the overlap should be as small as it can be, max(0, 2a -
1), whatever c is; for c < 1 use E (h - c h')_+ = 1 - c + E (c h' - h)_+. Hence one pair of at most
four masses dominates all replace-one neighbours. Zero-out neighbours are (h, 1): the same argument
gives the two-level h. Mixtures over what is drawn before (rounded bits, lengths) are covered by
convexity.

Sampling. Weights are whole multiples of 2^-44, their sum is exact, and 128 random bits pick a place
below the sum. A weight is off by 2^-45, relatively 2^-45 / low at most; their mean by as much as
rounding makes it, which is checked to be below 2^-41; the place by less than 2^-60. Every
probability is within e^s of the one meant, s = 2^-44 / low + 2^-40.
"""

from __future__ import annotations

import math

import numpy as np

from quietbit._typing import FloatVector
from quietbit.errors import require
from quietbit.kernel.rng import WordBlock
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency

__all__ = ["MOST_CANDIDATES", "cap_levels", "draw", "subset_levels", "tilt_cost"]

UNIT = 2.0**44
MEAN_ERROR = 2.0**-41
LEAST_LEVEL = 2.0**-30
MOST_CANDIDATES = 2**16
NEGLIGIBLE = 1e-14
COMPUTED = 1e-12  # more than the masses of a pair are off, relatively


def draw(densities: FloatVector, share: float, block: WordBlock, stream: int) -> int:
    """Draw the number of a candidate, j with probability proportional to 1 - share + share h_j."""
    weights = np.rint(((1.0 - share) + share * densities) * UNIT).astype(np.int64)
    ends = np.cumsum(weights)
    total = int(ends[-1])
    mean = total / (UNIT * weights.size)
    is_density = abs(mean - 1) <= MEAN_ERROR and int(weights.min()) > 0
    require(is_density, "mean of the densities", mean, "one")
    high, low = (int(word) for word in block.uniform64(stream, 0, 2))
    place = ((high << 64) | low) * total >> 128
    return int(np.searchsorted(ends, place, side="right"))


def subset_levels(candidates: int, chosen: int, epsilon: float) -> tuple[float, float]:
    """Return h's two values, where ``chosen`` candidates are e^epsilon times as likely.

    >>> subset_levels(2, 1, np.log(3.0))
    (0.5, 1.5)
    """
    factor = float(np.exp(-epsilon))
    total = chosen + (candidates - chosen) * factor
    return candidates * factor / total, candidates / total


def cap_levels(cap: float, epsilon: float) -> tuple[float, float]:
    """PrivUnit's densities outside and inside a cap of this mass.

    >>> cap_levels(0.5, math.log(3.0))
    (0.5, 1.5)
    """
    factor = math.exp(-epsilon)
    total = cap + (1 - cap) * factor
    return factor / total, 1 / total


def tilt_cost(low: float, high: float, adjacency: Adjacency) -> Cost:
    """Return the curve of a release with density in [low, high], with `draw`'s sampling."""
    require(LEAST_LEVEL <= low < 1, "smallest density", low, "below 1 and at least 2^-30")
    require(1 < high < 1 / LEAST_LEVEL, "largest density", high, "above 1 and below 2^30")
    mass = (1 - low) / (high - low)
    if adjacency is Adjacency.ZERO_OUT:
        pair = [mass * high, (1 - mass) * low], [mass, 1 - mass]
    else:
        both = max(0.0, 2 * mass - 1)
        single = mass - both
        neither = 1 - 2 * mass + both
        if both > 0:
            rest = both * high
        else:
            rest = neither * low
        last = (
            [rest] if rest > NEGLIGIBLE else []
        )  # less than that is rounding, for which the account has room
        pair = [single * high, single * low, *last], [single * low, single * high, *last]
    curve = Cost.from_masses(*pair, relative_error=COMPUTED)
    return curve.with_slack(2.0**-44 / low + 2.0**-40)
