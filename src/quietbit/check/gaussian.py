"""Clip to a norm, then Gaussian noise made by a formula: Flower's mod and filters like it.

Idea     sigma = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon, whatever the clip is. That is a
         theorem for epsilon below 1 and for the sensitivity of what is clipped: the clip itself for
         zero-out, twice the clip for replace-one. What is proved is the exact account of the
         deviation and the clip.
Source   Dwork and Roth (2014), Theorem A.1; flwr.clientapp.mod.LocalDpMod.
"""

from __future__ import annotations

import math

from quietbit.check.law import LEAST_NOISE, Claim, Normal, Reason, Release, Run
from quietbit.check.values import Use
from quietbit.errors import require
from quietbit.target import Adjacency

__all__ = ["by_formula"]

FINITE = (
    "updates that are finite and not exactly zero, by whose norm the clip divides, in arrays of "
    "floats with a dimension: others leave as they are"
)


def by_formula(use: Use, run: Run) -> Release:
    """Return the release of a clipped update with noise by the formula."""
    names = ("clipping_norm", "sensitivity", "epsilon", "delta")
    clip, sensitivity, epsilon, delta = use.numbers(*names)
    rule = "above 0, delta below 1"
    require(epsilon > 0 and 0 < delta < 1, f"epsilon, delta ({use.place})", (epsilon, delta), rule)
    deviation = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    noise = None if deviation < LEAST_NOISE else Normal(clip / deviation)
    claim = Claim(epsilon, delta)
    release = Release("update", use.name, use.place, noise, run.rounds, claim=claim)
    if noise is None:
        reason = Reason.ROUNDED if deviation > 0 else Reason.NO_NOISE
        release = release.because(reason, f"standard deviation {deviation:.2g}")
    if sensitivity < clip:
        detail = f"sensitivity {sensitivity:g}, clip {clip:g}"
        release = release.because(Reason.SENSITIVITY, detail)
    elif noise is not None and noise.proven(Adjacency.ZERO_OUT, 1, delta) > epsilon:
        release = release.because(Reason.FORMULA, f"epsilon {epsilon:g}")
    if release.times > 1:
        release = release.because(Reason.PER_ROUND, f"{release.times} rounds")
    return release.relying(FINITE)
