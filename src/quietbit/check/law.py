"""A law: of one class of an engine, what leaves, its sensitivity, its noise, and how often.

Idea     a law is a function from a use of the class to releases, registered under the class's name
         with the names of its parameters. A release without noise proves nothing; one with noise
         has the certified account of quietbit.privacy, exact for Gaussian noise.
Symbols  mu: how far a neighbour moves what leaves, in standard deviations of its noise; z: noise
         over clip.
Source   docs/how-to/check-a-job.md, "Add a law".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeAlias, final

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatVector
from quietbit.check.attack import refuted_by_samples
from quietbit.check.program import Program
from quietbit.check.values import Given, Place, Unknown, Use, Value
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import FEW_OPERATIONS, round_up
from quietbit.privacy.subsampling import poisson_cost
from quietbit.target import Adjacency, Trust, Unit

__all__ = [
    "LAWS",
    "Batches",
    "Claim",
    "Law",
    "Noise",
    "Normal",
    "Reason",
    "Release",
    "Run",
    "Why",
    "law",
    "nothing",
]

DELTA = 1e-5  # where neither the job nor its reader names one
LEAST_NOISE = 2.0**-23  # of parameters of size 1 in float32: smaller noise is lost in rounding
COMPUTED = 1 - 1e-6  # of an exact epsilon: what outputs refute


class Reason(Enum):
    """Why something is not proved, or not what the job claims."""

    NO_CLIP = "no clip bounds what one client can change"
    NO_NOISE = "no noise is added"
    ROUNDED = "the noise is smaller than the rounding of float32"
    SENSITIVITY = "the noise is made for a sensitivity that is not that of the clip"
    SELECTION = "the selected coordinates are not paid for in the epsilon that is configured"
    IN_CLEAR = "it leaves in the clear"
    BUFFERS = "running statistics of BatchNorm are functions of the data and get no noise"
    FIXED_BATCHES = "the account assumes Poisson batches, and the loader draws shuffled ones"
    APPROXIMATE = "the account is an approximation, not a bound"
    PER_ROUND = "the claim is for one round, and all rounds add up"
    FORMULA = "sqrt(2 ln(1.25/delta)) holds for an epsilon below 1 only"
    WEIGHTS = "clients are weighted by numbers of their own, so that one can be all of the mean"
    MOVING_CLIP = "the noise is for the clip of the next round, not for that of this one"
    COUNT = "the noise of the clipped count is priced at half of its sensitivity"
    ENCRYPTED = "encryption hides updates from the server, and the sum that comes out has no noise"
    NOT_APPLIED = "the filter is for another task than the one whose result leaves"
    SCALARS = "arrays of dimension 0 leave as they are"
    SWITCHED_OFF = "it is switched off"
    SEEDED = "its randomness can be repeated by whoever knows the seed"
    UNKNOWN_CLASS = "check has no law of this class"


@final
@frozen
class Why:
    """A reason, where it is in the job, and its numbers in words."""

    reason: Reason
    place: Place
    detail: str = ""


@final
@frozen
class Claim:
    """What the job says of itself, for each round or for the whole run."""

    epsilon: float
    delta: float
    per_round: bool = True


class Noise(Protocol):
    """The noise of one release: what it costs, and what outputs of several refute."""

    @property
    def lost(self) -> float:
        """The probability that the cost does not hold."""

    def cost(self, adjacency: Adjacency) -> Cost | None:
        """Return the bare cost of one release; None where none is known."""

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return a lower bound on the epsilon of several releases."""


@final
@frozen
class Normal:
    """Gaussian noise: at most these ``mu`` between neighbours, for zero-out and for replace-one.

    ``attained`` is a mu that two neighbours have for sure under zero-out; None where it is the
    largest.
    """

    zero_out: float
    replace_one: float
    lost: float = 0.0
    attained: float | None = None

    @classmethod
    def of(cls, clip: float, deviation: float) -> Normal:
        """Return the noise of an update clipped to a norm; without a deviation there is none."""
        mu = clip / deviation if deviation > 0 else math.inf
        return cls(mu, 2 * mu)

    def cost(self, adjacency: Adjacency) -> Cost | None:
        """Return the exact cost, rounded up."""
        mu = self.zero_out if adjacency is Adjacency.ZERO_OUT else self.replace_one
        return Cost.gaussian(round_up(mu * mu / 2, FEW_OPERATIONS)) if mu < math.inf else None

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return the exact epsilon of a pair that is attained."""
        worst = self
        if self.attained is not None:
            worst = Normal(self.attained, 2 * self.attained)
        cost = worst.cost(adjacency)
        return math.inf if cost is None else (cost * times).epsilon(delta) * COMPUTED


@final
@frozen
class Batches:
    """DP-SGD on Poisson batches: noise ``multiplier`` times the clip, a sample in with ``rate``."""

    multiplier: float
    rate: float
    lost: float = field(default=0.0, init=False)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of one step to one sample."""
        near = self._whole(Adjacency.ZERO_OUT)
        far = self._whole(adjacency)
        if self.rate >= 1:
            return far.bare()
        return poisson_cost(near, far, self.rate).bare()

    def _whole(self, adjacency: Adjacency) -> Cost:
        slope = (adjacency.radii / self.multiplier) ** 2 / 2
        bare = Cost.gaussian(round_up(slope, FEW_OPERATIONS))
        return bare.of(adjacency, Unit.SAMPLE, Trust.LOCAL, samples=1)

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return what sums of log-likelihood ratios of the sample's share refute."""
        mu = adjacency.radii / self.multiplier

        def ratios(rng: np.random.Generator, trials: int, present: bool) -> FloatVector:
            total = np.zeros(trials)
            for _ in range(min(times, 2000)):
                seen = rng.standard_normal(trials)
                if present:
                    seen += mu * (rng.random(trials) < self.rate)
                grown = self.rate * np.expm1(np.minimum(mu * seen - mu * mu / 2, 600.0))
                total += np.log1p(grown)
            return total

        return refuted_by_samples(ratios, delta)


@final
@frozen
class Release:
    """One thing that leaves, ``times`` times; without ``noise`` nothing is proved of it."""

    what: str
    law: str
    place: Place
    noise: Noise | None = None
    times: int = 1
    unit: Unit = Unit.CLIENT
    trust: Trust = Trust.LOCAL
    claim: Claim | None = None
    why: tuple[Why, ...] = ()
    needs: tuple[str, ...] = ()  # what the proof relies on, and the job does not enforce

    def cost(self, adjacency: Adjacency) -> Cost | None:
        """Return the cost of all these releases; None where there is no proof."""
        cost = None if self.noise is None else self.noise.cost(adjacency)
        return None if cost is None else cost * self.times

    def epsilon(self, adjacency: Adjacency, delta: float) -> float:
        """Return the proven epsilon at ``delta``; infinite where nothing is proved."""
        cost = self.cost(adjacency)
        if cost is None or self.noise is None or self.noise.lost * self.times > delta:
            return math.inf
        return cost.epsilon(delta - self.noise.lost * self.times)

    def refuted(self, adjacency: Adjacency, delta: float) -> float:
        """Return the largest epsilon that outputs refute; infinite where they differ for sure."""
        if self.noise is None:
            return math.inf
        return self.noise.refuted(adjacency, self.times, delta)


@final
@frozen
class Run:
    """What a law may ask about the job besides the use of its class."""

    given: Given
    program: Program
    round_counts: tuple[Value, ...]  # every number of rounds that the job names
    place: Place  # of what says nothing about them

    @property
    def rounds(self) -> int:
        """How often a client answers."""
        known = {count for count in self.round_counts if not isinstance(count, Unknown)}
        open_counts = [count for count in self.round_counts if isinstance(count, Unknown)]
        value = known.pop() if len(known) == 1 and not open_counts else None
        place = open_counts[0].place if open_counts else self.place
        return self.number("rounds", value, place)

    @property
    def delta(self) -> float:
        """The delta at which something without a delta of its own is asked for."""
        return float(self.given.find("delta") or DELTA)

    def number(self, name: str, value: Value, place: Place) -> int:
        """Return a count that the job, or else its reader, names."""
        arguments = {} if value is None else {name: value}
        return Use(name, arguments, place, self.given).count(name)


Law: TypeAlias = Callable[[Use, Run], list[Release]]
LAWS: dict[str, tuple[tuple[str, ...], Law]] = {}  # by class: names of its parameters, and the law


def law(name: str, parameters: str = "") -> Callable[[Law], Law]:
    """Return a decorator that registers the law of a class or function."""

    def register(function: Law) -> Law:
        LAWS[name] = (tuple(parameters.split()), function)
        return function

    return register


def nothing(what: str, use: Use, *reasons: Reason, detail: str = "") -> Release:
    """Return a release of which nothing is proved, for these reasons."""
    why = tuple(Why(reason, use.place, detail) for reason in reasons)
    return Release(what, use.name, use.place, why=why)
