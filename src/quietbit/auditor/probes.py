"""The updates that the auditor sends, and what the mechanism claims of each.

Idea     each fault shows for certain updates: zero, one coordinate at the boundary (both signs), all coordinates at
         once (both signs), rungs in between (a design's inner rows), and two updates far outside the ball, which must
         be released like their clipped versions: one along all coordinates, one along so few that it stands out from
         the noise and so many that none of them alone leaves the ball.
Symbols  u = update as sent; m_k, V_k = claimed mean and variance of decoded coordinate k, for the clipped update;
         shift_k = m_k(u) - m_k(u/1.1): what a response too strong by a tenth would add, to first order.

Rung j puts j/8 of the radius into one coordinate and shares the rest of the norm among the others, with public signs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import final

import numpy as np
from attrs import frozen

from quietbit._typing import FloatVector
from quietbit.errors import require
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Mechanism

__all__ = ["STRETCH", "Claims", "Probe", "probes"]

STRETCH = 1.1  # factor of the excess that the score tests are designed for
OUTSIDE = 3.0  # times the radius
FEW = {1: 4, 2: 12}  # coordinates that share it, by order of the norm: less than the radius each
RUNGS = 8
RUNG_SHARE = 4  # a rung gets this part of the samples
SIGNS_SEED = 20230723  # public: for the places of rungs and their other signs


@final
@frozen(eq=False)
class Probe:
    """One update and how often to send it; ``place`` is the coordinate that stands out, if any."""

    name: str
    update: FloatVector
    times: int
    place: int | None = None

    @property
    def outside(self) -> bool:
        """Whether it tests clipping."""
        return self.name.startswith("outside")


@final
class Claims:
    """The claimed mean and variance of decoded coordinates, looked up once per value."""

    def __init__(self, mechanism: Mechanism) -> None:
        self.ball, self.error = mechanism.domain, float(mechanism.moment_error)
        require(0 <= self.error < 1, "moment_error of the mechanism", self.error, "from 0 to below 1")
        self._mean, self._variance = cache(mechanism.expectation), cache(mechanism.variance)
        # A nearly certain coordinate has a tiny variance; one at zero shows how far values spread.
        self.at_zero = float(self.variance(np.zeros(1))[0])
        self.floor = max(self.at_zero / 9, (1e-12 * self.ball.radius) ** 2)

    def mean(self, target: FloatVector) -> FloatVector:
        """Return m_k for every coordinate."""
        return _each(self._mean, target, "claimed expectation")

    def variance(self, target: FloatVector) -> FloatVector:
        """Return V_k for every coordinate."""
        variance = _each(self._variance, target, "claimed variance")
        require(float(variance.min()) >= 0, "claimed variance", float(variance.min()), "at least 0")
        return variance

    def shift(self, target: FloatVector) -> FloatVector:
        """Return what a response too strong by a tenth would add to the mean, to first order."""
        return self.mean(target) - self.mean(target / STRETCH)


def _each(function: Callable[[float], float], values: FloatVector, name: str) -> FloatVector:
    """Apply a function of one number to an array with few different values."""
    different, places = np.unique(values, return_inverse=True)
    answers = np.array([float(function(value)) for value in different.tolist()])
    require(bool(np.all(np.isfinite(answers))), name, "NaN or infinity", "finite")
    return np.asarray(answers[places.reshape(-1)])


def probes(ball: Ball, samples: int) -> list[Probe]:
    """Return all updates to send, those of the epsilon bound first: zero, then pairs of opposites."""
    size, radius, order = ball.dimension, ball.radius, ball.norm.order
    one = np.zeros(size)
    one[0] = radius
    found = [
        Probe("zero", np.zeros(size), samples),
        Probe("one coordinate", one, samples, 0),
        Probe("one coordinate, negative", -one, samples, 0),
    ]
    signs = np.where(np.random.default_rng(SIGNS_SEED).random(size) < 0.5, -1.0, 1.0)
    outside = OUTSIDE * radius * np.ones(1)
    if size > 1:
        even = radius / size ** (1 / order)
        every = np.asarray(ball.clip(np.full(size, even)), dtype=np.float64)
        found += [Probe("every coordinate", every, samples), Probe("every coordinate, negative", -every, samples)]
        outside = OUTSIDE * even * signs
        few = np.zeros(size)
        count = min(size, FEW[order])
        few[-count:] = OUTSIDE * radius / count ** (1 / order) * signs[-count:]
        found.append(Probe("outside the ball, few coordinates", few, samples))
    found.append(Probe("outside the ball", outside, samples))
    parts = [sign * step / RUNGS for step in range(1, RUNGS) for sign in (1, -1)]
    return found + [_rung(ball, signs, part, max(samples // RUNG_SHARE, 1)) for part in parts]


def _rung(ball: Ball, signs: FloatVector, part: float, times: int) -> Probe:
    size, order = ball.dimension, ball.norm.order
    place = int(np.random.default_rng((SIGNS_SEED, round(RUNGS * (1 + part)))).integers(size))
    rest = (1 - abs(part) ** order) ** (1 / order)
    update = signs * (ball.radius * rest / max(size - 1, 1) ** (1 / order))
    update[place] = part * ball.radius
    return Probe(f"rung {part:g}", np.asarray(ball.clip(update), dtype=np.float64), times, place)
