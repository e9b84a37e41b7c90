"""The Skellam mechanism: rotate, scale, round within bounds, add Skellam noise, wrap into b bits.

Idea     a public random rotation spreads the update evenly over the coordinates; integers with
         discrete noise then wrap modulo 2^b almost without harm, because values that large hardly
         ever occur.
Symbols  C = clip; D = dimension padded to a power of two; s = `scale`; v = (noise_multiplier C
         s)^2 the noise's variance; D1, D2: largest L1 and L2 length of the rounded vector.
Source   Agarwal, Kairouz, Liu (NeurIPS 2021), Algorithm 1 and Theorem 3.5; Kairouz, Liu, Steinke
         (ICML 2021) for the rotation and the rounding; packages/lab/docs/rounded-skellam.md
         for the proofs and the tables.

Rounding. At random it keeps the mean of a coordinate but lengthens the vector; drawing again until
D2^2 <= `length_upper` makes the bound certain. Privacy rests on that bound, checked in integers,
and not on how exact probabilities, rotation or floating-point work are. Integers satisfy |z| <=
z^2, so D1 <= min(D2^2, sqrt(D) D2). Samples. Drawing again divides by a chance that depends on the
update, so `Skellam` has no cost per sample. `IndependentSkellam` has; floating-point work counts
there: rotating and scaling in doubles moves each of two updates by at most (log2 D + 6) 2^-53 C,
less than 2^-47 C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.mechanism.accumulate import code_accumulator
from quietbit.mechanism.ball import Ball, Norm, check_ball, own_copy
from quietbit.mechanism.base import (
    Accumulator,
    Body,
    Error,
    Layout,
    Mechanism,
    Parts,
    Wrapper,
    only,
)
from quietbit.mechanism.family import (
    MAX_MULTIPLIER,
    MIN_MULTIPLIER,
    Choices,
    SearchedFamily,
    check_multiplier,
)
from quietbit.mechanism.rotation import check_seed
from quietbit.mechanism.rounding import ROUNDING_SHIFT, independent_rounding, uniform_doubles
from quietbit.privacy.cost import Cost, sample_share
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency
from quietbit_lab.baseline.skellam_cost import rounded_skellam_cost, skellam_cost
from quietbit_lab.baseline.skellam_noise import (
    largest_scale,
    noise_length_upper,
    skellam_noise,
    words_needed,
)

__all__ = [
    "FAMILY",
    "IndependentSkellam",
    "Skellam",
    "conditional_rounding",
    "length_upper",
]

Rounding: TypeAlias = Callable[[FloatVector, WordBlock], NDArray[np.int64]]

SLACK = 2.0**-62  # what `words_needed` promises
MIN_DEVIATION = 0.5  # of the noise, in units of the integers: below it the bound says nothing
LEAST_ALONE = 1.3  # the same for independent rounding
MOST_WORDS = (
    64  # per draw: a table then takes about a second; little noise in many bits needs thousands
)
LEAST_FOR_CLIENTS = 0.02  # noise multiplier calibrated for whole clients; less protects nobody
# of conditional rounding; each fails with probability at most e^(-1/2): all of them with less than
# 1e-43
TRIES = 200
FLOATS = 2.0**-46  # of the clip: how far rotating and scaling in doubles can move two updates apart


def _bits(value: int) -> int:
    return check_int(value, "bits", 2, 16)


def _wrap(value: float) -> float:
    return check_real(value, "wrap_probability", at_most=0.5)


@final
@frozen
class Skellam(Mechanism):
    """Skellam noise on an update in an L2 ball, in ``code_count`` codes of 2 to 16 bits.

    ``noise_multiplier`` is the noise's standard deviation in clips; ``rotation_seed``
    is public.
    """

    ball: Ball = field(converter=check_ball)
    noise_multiplier: float = field(converter=check_multiplier)
    bits: int = field(default=16, converter=_bits)
    rotation_seed: int = field(default=0, converter=check_seed)
    wrap_probability: float = field(default=1e-6, converter=_wrap)

    def __attrs_post_init__(self) -> None:
        """Refuse any other norm, and too few bits for the noise."""
        require(
            self.ball.norm is Norm.L2,
            "norm of the ball",
            self.ball.norm.value,
            "l2 for Skellam noise",
        )
        deviation = math.sqrt(self.noise_variance)
        require(
            deviation >= MIN_DEVIATION,
            "standard deviation of the integer noise",
            deviation,
            f"at least {MIN_DEVIATION:g}",
            "use more bits",
        )
        require(
            self._words <= MOST_WORDS,
            "random words of a draw",
            self._words,
            f"at most {MOST_WORDS}",
            "raise noise_multiplier, or use fewer bits",
        )

    @property
    def code_count(self) -> int:
        """The dimension, padded to a power of two by the rotation."""
        return 1 << (self.ball.dimension - 1).bit_length()

    @property
    def layout(self) -> Layout:
        """One code per coordinate of the padded vector."""
        return Layout.codes(self.bits, self.code_count)

    @property
    def scale(self) -> float:
        """s: integers per clip."""
        given = (self.noise_multiplier, self.bits, self.code_count, self.wrap_probability)
        return largest_scale(*given)

    @property
    def noise_variance(self) -> float:
        """v: the variance of the integer noise, (noise_multiplier * scale)^2."""
        return (self.noise_multiplier * self.scale) ** 2

    @property
    def squared_length(self) -> float:
        """An upper bound on the sum of squares of a rounded vector; at least 1."""
        return max(1.0, length_upper(Norm.L2, self.scale, self.code_count))

    def sensitivities(self, adjacency: Adjacency) -> tuple[float, float]:
        """Return (D1, D2): neighbours' rounded vectors are within them in L1 and L2; rounded up."""
        l2 = math.sqrt(self.squared_length)
        l1 = min(self.squared_length, math.sqrt(self.code_count) * l2)
        return round_up(adjacency.radii * l1, 1e-15), round_up(adjacency.radii * l2, 1e-15)

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write ``code_count`` codes: the noisy integers modulo 2^bits."""

        def within_bounds(values: FloatVector, block: WordBlock) -> NDArray[np.int64]:
            return conditional_rounding(values, Norm.L2, self.squared_length, block) // 2

        _write(self, within_bounds, update, clip, rng, kernel, out)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator of centred integers; the mean is scaled and rotated back."""
        half = 2 ** (self.bits - 1)
        centred = ((np.arange(2 * half) + half) % (2 * half) - half).astype(np.float64)

        def finish(mean: FloatVector) -> FloatVector:
            return np.asarray(kernel.rotate_back(mean / self.scale, self.rotation_seed))[
                : self.ball.dimension
            ]

        honest = self.honest_length * self.scale
        return code_accumulator(
            centred, self.bits, self.code_count, kernel, max_payloads, finish, honest
        )

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost by Theorem 3.5 for the integer sensitivities, sampling slack included."""
        return skellam_cost(*self.sensitivities(adjacency), self.noise_variance).with_slack(SLACK)

    def error(self) -> Error:
        """Return (v + 1/6)/s^2: rounding adds 0 to 1/4, and 1/6 on average over fractions."""
        return Error((self.noise_variance + 1 / 6) / self.scale**2)

    @property
    def honest_length(self) -> float:
        """A bound for a rounded vector plus its noise; wrapping adds nothing."""
        size = self.code_count
        noise = noise_length_upper(size, self.noise_variance)
        return 1 + (math.sqrt(size) + noise) / self.scale

    @property
    def moment_error(self) -> float:
        """The largest relative error of ``variance``, which takes rounding as 1/6 (0 to 1/4)."""
        return (1 / 6) / (self.noise_variance + 1 / 6)

    @property
    def _words(self) -> int:
        return words_needed(self.noise_variance, 2 ** (self.bits - 1), self.code_count)


@final
@frozen
class IndependentSkellam(Wrapper):
    """``inner``'s noise and codes, each coordinate rounded independently: for samples."""

    inner: Skellam = field(validator=only(Skellam, "a Skellam"))

    def __attrs_post_init__(self) -> None:
        """Refuse too little noise."""
        deviation = math.sqrt(self.inner.noise_variance)
        require(
            deviation >= LEAST_ALONE,
            "standard deviation of the integer noise",
            deviation,
            f"at least {LEAST_ALONE:g} where coordinates are rounded independently",
            "use more bits",
        )

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write ``code_count`` codes: the noisy integers modulo 2^bits."""
        _write(self.inner, independent_rounding, update, clip, rng, kernel, out)

    def grid_steps(self, distance: float) -> float:
        """Return how many grid steps updates this many clips apart differ, rounded up."""
        inner = self.inner
        steps = inner.scale * (distance + FLOATS) + math.sqrt(inner.code_count) * ROUNDING_SHIFT
        return round_up(steps, 1e-14)

    def cost_apart(self, distance: float) -> Cost:
        """Return c(alpha) times the squared steps between updates, sampling slack included."""
        return rounded_skellam_cost(
            self.grid_steps(distance), self.inner.noise_variance
        ).with_slack(SLACK)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost between two clients' updates."""
        return self.cost_apart(adjacency.radii)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the cost between two updates that differ in one sample."""
        return self.cost_apart(sample_share(adjacency, samples))


def length_upper(norm: Norm, reach: float, dimension: int, *, offset: bool = False) -> float:
    """Return a bound that a rounded vector within ``reach`` meets with chance 1 - e^(-1/2).

    It bounds the sum of squares (L2) or of magnitudes (L1), in grid spacings from the centre.
    ``offset``: the centre lies midway between grid points.
    """
    root = math.sqrt(dimension)
    reach = reach * (1 + 1e-9)  # inputs are scaled in doubles
    if norm is Norm.L2:
        return min((reach + root) ** 2, reach**2 + dimension / 4 + reach + root / 2)
    return reach + min(float(dimension), dimension / 2 * offset + root / 2)


def conditional_rounding(
    values: FloatVector, norm: Norm, bound: float, block: WordBlock, *, offset: bool = False
) -> NDArray[np.int64]:
    """Return twice the grid points chosen beside ``values``, whose length is within the bound.

    Grid points are integers, or with ``offset`` halves of odd integers. Try k reads stream k of the
    words.
    """
    shift = 0.5 if offset else 0.0
    floor = np.floor(values - shift)
    part = values - shift - floor
    low = 2 * floor.astype(np.int64) + int(offset)
    limit = math.floor(bound * 2**norm.order)
    for attempt in range(TRIES):
        uniform = uniform_doubles(block, attempt, values.size)
        points = low + 2 * (uniform < part)
        if norm is Norm.L2:
            length = points @ points
        else:
            length = np.abs(points).sum()
        if int(length) <= limit:
            return np.asarray(points)
    inward = 2 * np.floor(np.abs(values) - shift).astype(np.int64) + int(offset)
    return np.asarray(np.where(values < 0, -1, 1) * np.maximum(inward, int(offset)))


def _write(
    mechanism: Skellam,
    rounding: Rounding,
    update: Parts,
    clip: float,
    rng: RandomBits,
    kernel: Kernel,
    out: Body,
) -> None:
    """Clip, rotate, scale, round with ``rounding``, add the noise and wrap."""
    inside = mechanism.ball.clip(own_copy(update), clip)
    rotated = kernel.rotate(inside, mechanism.rotation_seed, kind=np.float64)
    rotated *= mechanism.scale / clip
    block = rng.draw(rotated.size)
    integers = rounding(rotated, block)
    noise = skellam_noise(mechanism.noise_variance, mechanism._words, block, rotated.size)
    codes = (integers + noise) & (2**mechanism.bits - 1)
    out[:] = np.frombuffer(kernel.pack(codes, mechanism.bits), dtype=np.uint8)


def _build(ball: Ball, loss: float, choices: Choices) -> Skellam | IndependentSkellam:
    return _given(ball, 1 / loss, choices)


def _given(ball: Ball, multiplier: float, choices: Choices) -> Skellam | IndependentSkellam:
    mechanism = Skellam(ball, multiplier, choices.bits or 16)
    if choices.by_sample:
        return IndependentSkellam(mechanism)
    return mechanism


def _limits(ball: Ball, choices: Choices) -> tuple[float, float]:
    return 1 / MAX_MULTIPLIER, 1 / (MIN_MULTIPLIER if choices.by_sample else LEAST_FOR_CLIENTS)


FAMILY = SearchedFamily(
    "skellam",
    ("bits",),
    "noise_multiplier",
    _build,
    _limits,
    direct=_given,
    remedy="use 16 bits, fewer coordinates, fewer releases, or vmvu, which rounds no integers",
    baseline=True,
)
