"""The distance of two neighbours' updates that differ in one sample of a mean of clipped gradients.

Idea     a client's update is anywhere in its ball. Where the privacy unit is a sample, n_c gradients of norm at most C
         are averaged: zeroing one sample's contribution moves the update by at most C / n_c, replacing it by 2 C / n_c,
         from any point that the other samples determine. So the constants must hold between any two inputs at that
         distance: those of replace-one.
Symbols  C = clip = radius of the ball; n_c = samples of the client, public.
Source   Guo et al. (ICML 2023), section "Sample-level DP"; Theorems 1 and 2 for the interpolated mechanism.

Rounding. Updates are float32 or wider: `Uplink(unit=Unit.SAMPLE)` refuses half precision. Two neighbouring ones are
rounded apart: each entry by 2^-24 of itself, up to three times (the mean, a factor that undoes the first rounding, its
product), so each update by 3 x 2^-24 C and their distance by less than 2^-21 C. That is a large part of C / n_c when
clients are large, so it is added to it.

No price per sample: MVU, and Skellam noise where vectors are rounded within bounds. Both redraw the rounding until
the vector is short enough, which is not a contraction: two close updates can round to grid vectors that are far apart,
and the accounts cover whole updates only. Skellam noise rounded coordinate by coordinate has one (`skellam`).
"""

from __future__ import annotations

from quietbit.errors import check_int
from quietbit.privacy.conversion import round_up
from quietbit.target import Adjacency

__all__ = ["ROUNDING", "sample_share"]

ROUNDING = 2.0**-21  # of the clip


def sample_share(adjacency: Adjacency, samples: int) -> float:
    """Return how far one of ``samples`` samples can move the update, in units of the clip, rounded up.

    >>> 0.5 < sample_share(Adjacency.ZERO_OUT, 2) < 0.5000005
    True
    """
    count = check_int(samples, "samples of a client", 1)
    return round_up(adjacency.radii / count + ROUNDING, 1e-15)
