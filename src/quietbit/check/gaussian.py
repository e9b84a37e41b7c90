"""Clip to a norm, then Gaussian noise made by a formula: Flower's mod and filters like it.

Idea     sigma = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon, whatever the clip is. That is a
         theorem for epsilon below 1 and for the sensitivity of what is clipped: the clip itself for
         zero-out, twice the clip for replace-one. What is proved is the exact account of the
         deviation and the clip.
Source   Dwork and Roth (2014), Theorem A.1; flwr.clientapp.mod.LocalDpMod.
"""

from __future__ import annotations

import math

from attrs import evolve

from quietbit.check.law import (
    LEAST_NOISE,
    Claim,
    Normal,
    Reason,
    Release,
    Run,
    Why,
)
from quietbit.check.values import Use
from quietbit.errors import require
from quietbit.target import Adjacency

__all__ = ["by_formula"]

FINITE = "updates that are finite and not exactly zero, by whose norm the clip divides"


def by_formula(use: Use, run: Run) -> Release:
    """Return the release of a clipped update with noise by the formula."""
    clip, sensitivity, epsilon, delta = use.numbers(
        "clipping_norm", "sensitivity", "epsilon", "delta"
    )
    require(0 < delta < 1, f"delta ({use.place})", delta, "above 0 and below 1")
    require(epsilon > 0, f"epsilon ({use.place})", epsilon, "above 0")
    deviation = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    noise = Normal.of(clip, deviation)
    claim = Claim(epsilon, delta)
    rounds = run.rounds
    why = []
    if deviation == 0:
        why.append(Why(Reason.NO_NOISE, use.place))
    elif deviation < LEAST_NOISE:
        why.append(Why(Reason.ROUNDED, use.place, f"standard deviation {deviation:.2g}"))
    once = Release("update", use.name, use.place, noise, claim=claim, needs=(FINITE,))
    if sensitivity < clip:
        detail = f"sensitivity {sensitivity:g}, clip {clip:g}"
        why.append(Why(Reason.SENSITIVITY, use.place, detail))
    elif once.epsilon(Adjacency.ZERO_OUT, delta) > epsilon:
        why.append(Why(Reason.FORMULA, use.place, f"epsilon {epsilon:g}"))
    if rounds > 1:
        why.append(Why(Reason.PER_ROUND, use.place, f"{rounds} rounds"))
    return evolve(once, times=rounds, why=tuple(why))
