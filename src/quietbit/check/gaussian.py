"""Clip to a norm, then Gaussian noise made by a formula: Flower's mod and filters like it.

Idea     sigma = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon, whatever the clip is. That is a
         theorem for epsilon below 1 and for the sensitivity of what is clipped: the clip itself for
         zero-out, twice the clip for replace-one. What is proved is the exact account of the
         deviation and the clip.
Source   Dwork and Roth (2014), Theorem A.1; flwr.clientapp.mod.LocalDpMod.
"""

from __future__ import annotations

import math

from quietbit.check.law import LEAST_NOISE, Claim, Normal, Reason, Release, Run, Why
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
    noise = Normal.of(clip, deviation)
    is_lost = deviation < LEAST_NOISE
    rounds = run.rounds
    why = []
    if is_lost:
        reason = Reason.ROUNDED if deviation > 0 else Reason.NO_NOISE
        why.append(Why(reason, use.place, f"standard deviation {deviation:.2g}"))
    if sensitivity < clip:
        detail = f"sensitivity {sensitivity:g}, clip {clip:g}"
        why.append(Why(Reason.SENSITIVITY, use.place, detail))
    elif noise.proven(Adjacency.ZERO_OUT, 1, delta) > epsilon:
        why.append(Why(Reason.FORMULA, use.place, f"epsilon {epsilon:g}"))
    if rounds > 1:
        why.append(Why(Reason.PER_ROUND, use.place, f"{rounds} rounds"))
    claim = Claim(epsilon, delta)
    return Release(
        "update",
        use.name,
        use.place,
        None if is_lost else noise,
        rounds,
        claim=claim,
        why=tuple(why),
        needs=(FINITE,),
    )
