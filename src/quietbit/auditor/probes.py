"""Which updates the auditor sends, and what the mechanism claims of each.

Idea     a fault shows where it is looked for: nothing at all, one coordinate at the boundary (both signs), all
         coordinates at once (both signs), rungs in between (a design's inner rows), and two updates far outside
         the ball, which must be released like their clipped versions: one along all coordinates, one along so few
         that it stands out from the noise and so numerous that none of them alone leaves the ball.
Symbols  u = update as sent; m_k, V_k = claimed mean and variance of decoded coordinate k, for the clipped update;
         shift_k = m_k(u) - m_k(u/1.1): what a response too strong by a tenth would add, to first order.

Rung j puts j/8 of the radius into one coordinate and shares the rest of the norm among the others, with public signs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from quietbit._typing import FloatVector
from quietbit.errors import require
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Mechanism

__all__ = ["STRETCH", "Claims", "Probe", "probes"]

STRETCH = 1.1  # the excess that the score tests are made for
OUTSIDE = 3.0  # times the radius
FEW = {1: 4, 2: 12}  # coordinates that share it, by the order of the norm: less than the radius each
RUNGS = 8
RUNG_SHARE = 4  # a rung gets this part of the samples
SIGNS_SEED = 20230723  # public: of where rungs are and of their other signs


@final
@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One update and how often to send it; ``place`` is the coordinate that stands out, if one does."""

    name: str
    update: FloatVector
    times: int
    place: int | None = None

    @property
    def outside(self) -> bool:
        """Whether clipping is what it is about."""
        return self.name.startswith("outside")

    def target(self, ball: Ball) -> FloatVector:
        """What is released: the update, clipped."""
        return np.asarray(ball.clip(self.update), dtype=np.float64)


@final
class Claims:
    """The claimed mean and variance of decoded coordinates, looked up once for every value."""

    def __init__(self, mechanism: Mechanism) -> None:
        self.ball = mechanism.domain
        self._mean = _Cached(mechanism.expectation, "expectation")
        self._variance = _Cached(mechanism.variance, "variance")
        # A coordinate that is nearly certain has a tiny variance; one at zero tells how far values spread.
        self.at_zero = float(self.variance(np.zeros(1))[0])
        self.floor = max(self.at_zero / 9, (1e-12 * self.ball.radius) ** 2)
        error = mechanism.moment_error
        require(0 <= error < 1, "moment_error of the mechanism", error, "from 0 to below 1")
        self.error = float(error)

    def mean(self, target: FloatVector) -> FloatVector:
        """m_k for every coordinate."""
        return self._mean.of(target)

    def variance(self, target: FloatVector) -> FloatVector:
        """V_k for every coordinate."""
        variance = self._variance.of(target)
        require(float(variance.min()) >= 0, "claimed variance", float(variance.min()), "at least 0")
        return variance

    def shift(self, target: FloatVector) -> FloatVector:
        """What a response too strong by a tenth would add to the mean, to first order."""
        return self.mean(target) - self.mean(target / STRETCH)

    def earlier_shift(self, target: FloatVector) -> FloatVector:
        """The same one step before: where it is larger than ``shift``, the response levels off."""
        return self.mean(target / STRETCH) - self.mean(target / STRETCH**2)


class _Cached:
    """A function of one number, applied to arrays with few different values."""

    def __init__(self, function: Callable[[float], float], name: str) -> None:
        self._function, self._name, self._known = function, name, dict[float, float]()

    def of(self, values: FloatVector) -> FloatVector:
        different, places = np.unique(values, return_inverse=True)
        answers = np.array([self._answer(value) for value in different.tolist()])
        require(bool(np.all(np.isfinite(answers))), f"claimed {self._name}", "NaN or infinity", "finite")
        return np.asarray(answers[places.reshape(-1)])

    def _answer(self, value: float) -> float:
        if value not in self._known:
            self._known[value] = float(self._function(value))
        return self._known[value]


def probes(ball: Ball, samples: int) -> list[Probe]:
    """All updates to send, those of the epsilon bound first: zero, then pairs of opposites."""
    size, radius = ball.dimension, ball.radius
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
        even = radius / size ** (1 / ball.norm.order)
        every = np.asarray(ball.clip(np.full(size, even)), dtype=np.float64)
        found += [Probe("every coordinate", every, samples), Probe("every coordinate, negative", -every, samples)]
        outside = OUTSIDE * even * signs
        few = np.zeros(size)
        count = min(size, FEW[ball.norm.order])
        few[-count:] = OUTSIDE * radius / count ** (1 / ball.norm.order) * signs[-count:]
        found.append(Probe("outside the ball, few coordinates", few, samples))
    found.append(Probe("outside the ball", outside, samples))
    return found + [_rung(ball, signs, part, samples) for part in _parts()]


def _parts() -> list[float]:
    return [sign * step / RUNGS for step in range(1, RUNGS) for sign in (1, -1)]


def _rung(ball: Ball, signs: FloatVector, part: float, samples: int) -> Probe:
    size, order = ball.dimension, ball.norm.order
    place = int(np.random.default_rng((SIGNS_SEED, round(RUNGS * (1 + part)))).integers(size))
    rest = (1 - abs(part) ** order) ** (1 / order)
    update: Any = signs * (ball.radius * rest / max(size - 1, 1) ** (1 / order)) if size > 1 else np.zeros(1)
    update[place] = part * ball.radius
    times = max(samples // RUNG_SHARE, 1)
    return Probe(f"rung {part:g}", np.asarray(ball.clip(update), dtype=np.float64), times, place)
