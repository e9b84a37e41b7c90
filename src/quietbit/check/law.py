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
from attrs import evolve, frozen

from quietbit._typing import FloatVector
from quietbit.check.attack import refuted_by_samples
from quietbit.check.program import Program
from quietbit.check.values import Given, MissingValue, Place, Unknown, Use, Value
from quietbit.errors import check_real
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import FEW_OPERATIONS, round_up
from quietbit.privacy.subsampling import poisson_cost
from quietbit.target import Adjacency, Trust, Unit

__all__ = [
    "LAWS",
    "Batches",
    "Claim",
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
MOST_DELTA = 0.1
LEAST_NOISE = 2.0**-23  # of parameters of size 1 in float32: smaller noise is lost in rounding
COMPUTED = 1 - 1e-6  # of an exact epsilon: what outputs refute
MOST_STEPS = 2000  # that are sampled


class Reason(Enum):
    """Why something is not proved, or not what the job claims."""

    NO_CLIP = "no clip bounds what one client can change"
    NO_NOISE = "no noise is added"
    ROUNDED = "the noise is smaller than the rounding of float32"
    STRATEGY = "the noise is for a mean of clipped updates, and the strategy makes something else"
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
    CHANGING_NOISE = "the noise changes during the run"
    ENCRYPTED = "encryption hides updates from the server, and the sum that comes out has no noise"
    NOT_APPLIED = "the filter is for another task than the one whose result leaves"
    RECIPE = "what Python adds to a recipe or a job is seen in the job that it exports"
    SWITCHED_OFF = "it is switched off"
    SEEDED = "its randomness can be repeated by whoever knows the seed"
    UNKNOWN_CLASS = "check has no law of this class"


SEEDS = ("seed_everything", "set_seed", "set_random_seed")  # of all generators
NUMPY_SEEDS = ("random.seed", ".seed")
BUFFERED = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
CLIENTS = "clients"  # a way: what their own filters and mods do; the worst of their chains counts
TRAINING = "training"  # a way on which everything counts: what several engines cost adds up
# Without a proof, though neighbours need not differ for sure.
UNTRIED = {
    Reason.RECIPE,
    Reason.UNKNOWN_CLASS,
    Reason.SEEDED,
    Reason.STRATEGY,
    Reason.CHANGING_NOISE,
}


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
    """The noise of a release: the epsilon of several, proven and refuted."""

    def proven(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return an upper bound on epsilon; infinite where none is known."""

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return a lower bound on epsilon."""


@final
@frozen
class Normal:
    """Gaussian noise: ``mu`` deviations between neighbours for zero-out, twice for replace-one.

    ``attained`` is what two neighbours have for sure; None where it is the most. Where ``alike``,
    neighbours of both kinds are ``mu`` deviations apart at most.
    """

    mu: float
    attained: float | None = None
    alike: bool = False

    @classmethod
    def of(cls, clip: float, deviation: float) -> Normal:
        """Return the noise of an update clipped to a norm; without a deviation there is none."""
        return cls(clip / deviation if deviation > 0 else math.inf)

    def proven(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return the exact epsilon, rounded up."""
        if self.mu == math.inf:
            return math.inf
        radii = 1 if self.alike else adjacency.radii
        return (_gaussian(radii * self.mu) * times).epsilon(delta)

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return the exact epsilon of a pair that is attained, rounded down."""
        attained = self.mu if self.attained is None else self.attained
        return Normal(attained).proven(adjacency, times, delta) * COMPUTED


@final
@frozen
class Batches:
    """DP-SGD on Poisson batches: noise ``multiplier`` times the clip, a sample in with ``rate``."""

    multiplier: float
    rate: float

    def proven(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return the epsilon of so many steps for one sample."""
        step = self._whole(adjacency)
        if self.rate < 1:
            step = poisson_cost(self._whole(Adjacency.ZERO_OUT), step, self.rate)
        return (step.bare() * times).epsilon(delta)

    def _whole(self, adjacency: Adjacency) -> Cost:
        bare = _gaussian(adjacency.radii / self.multiplier)
        return bare.of(adjacency, Unit.SAMPLE, Trust.LOCAL, samples=1)

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return what sums of log-likelihood ratios of the sample's share refute."""
        mu = adjacency.radii / self.multiplier

        def ratios(rng: np.random.Generator, trials: int, present: bool) -> FloatVector:
            total = np.zeros(trials)
            for _ in range(min(times, MOST_STEPS)):
                drawn = rng.random(trials) < self.rate * present
                seen = rng.standard_normal(trials) + mu * drawn
                total += np.log1p(self.rate * np.expm1(np.minimum(mu * seen - mu * mu / 2, 600.0)))
            return total

        return refuted_by_samples(ratios, delta)


def _gaussian(mu: float) -> Cost:
    return Cost.gaussian(round_up(mu * mu / 2, FEW_OPERATIONS))


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
    way: str = ""  # out of the clients, where several are protected by laws of their own
    chain: str = ""  # of filters, on one way: the best of them counts

    def because(self, reason: Reason, detail: str = "") -> Release:
        """Return this with one more reason."""
        return evolve(self, why=(*self.why, Why(reason, self.place, detail)))

    def relying(self, *needs: str) -> Release:
        """Return this with more that the proof relies on."""
        return evolve(self, needs=(*self.needs, *needs))

    def epsilon(self, adjacency: Adjacency, delta: float) -> float:
        """Return the proven epsilon at ``delta``; infinite where nothing is proved."""
        return math.inf if self.noise is None else self.noise.proven(adjacency, self.times, delta)

    def refuted(self, adjacency: Adjacency, delta: float) -> float:
        """Return the largest epsilon that outputs refute; infinite where they differ for sure."""
        if self.noise is not None:
            return self.noise.refuted(adjacency, self.times, delta)
        return 0.0 if any(why.reason in UNTRIED for why in self.why) else math.inf


@final
@frozen
class Run:
    """What a law may ask about the job besides the use of its class."""

    given: Given
    program: Program
    parts: tuple[Use, ...]  # of NVFlare's configurations
    round_counts: tuple[Value, ...]  # of all workflows, one after the other
    place: Place  # of what says nothing about them

    @property
    def rounds(self) -> int:
        """How often a client answers."""
        counts = self.round_counts
        open_ = [count for count in counts if isinstance(count, Unknown)]
        value = open_[0] if open_ else sum(counts) or None
        return self.number("rounds", value, self.place)

    @property
    def known_rounds(self) -> int | None:
        """The same; None where neither the job nor its reader says."""
        try:
            return self.rounds
        except MissingValue:
            return None

    @property
    def delta(self) -> float:
        """The delta at which something without a delta of its own is asked for."""
        delta = self.given.find("delta")
        return DELTA if delta is None else check_real(delta, "delta", at_most=MOST_DELTA)

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


def nothing(use: Use, *reasons: Reason, what: str = "update", detail: str = "") -> Release:
    """Return a release of which nothing is proved, for these reasons."""
    release = Release(what, use.name, use.place, way=use.name)
    for reason in reasons:
        release = release.because(reason, detail)
    return release


def buffers(run: Run) -> list[Release]:
    """Return the statistics of BatchNorm, where nothing replaces them."""
    words = run.program.words
    if "ModuleValidator" in words:
        return []
    uses = [Use(name, {}, words[name], run.given) for name in BUFFERED if name in words]
    return [nothing(use, Reason.BUFFERS, what="model") for use in uses]


def seeded(use: Use, run: Run, *functions: str) -> list[Release]:
    """Return what is wrong where the job seeds the generator that noise is drawn from."""
    seeds = run.program.uses(*functions, *SEEDS)
    return [nothing(evolve(use, place=seed.place), Reason.SEEDED) for seed in seeds[:1]]
