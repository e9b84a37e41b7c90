"""SQKR: subsampled signs of Kashin's representation, by randomised response.

Idea     in a redundant frame every vector has coefficients that are all of about the same size (Kashin); a few of
         their signs, sampled by public randomness, say as much about it as any others, and one randomised response
         hides them together.
Symbols  d = dimension; N = 2d padded to a power of two: length of the coefficients; F: two public rotations of the
         padded vector, an isometry R^d -> R^N, so that x = F^T a for a = F x and for many others; A = level
         C/sqrt(N): bound on |a_j|; k = `bits`.
Source   Chen, Kairouz, Ozgur (NeurIPS 2020), "Breaking the communication-privacy-accuracy trilemma"; Lyubarskii and
         Vershynin (2010) for the representation.

The representation is looked for by projecting back and forth between the cube and the plane F^T a = x: a_0 = F x,
then cut to the cube, then add F of half as much again as is missing. Always as many turns, so that time tells
nothing. One rotation is no frame for that: half the rows of a padded vector's Walsh-Hadamard transform repeat the
other half. At level 1.9 and N >= 2d, 20 turns leave less than 1/1000 of the update; what is left is a bias, and the
last cut makes |a_j| <= A certain, on which nothing in the account depends.
Error: N A^2/(k g^2) = level^2 C^2/(k g^2) per coordinate, g as in `signs`. The published comparison has 3.57 for
level^2 by its own search for coefficients; 1.9^2 = 3.61.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.transform import hadamard_, padded_size, signs
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import (
    Accumulator,
    Body,
    Error,
    Layout,
    Parts,
    check_adjacency,
    check_value,
    refuse_samples,
)
from quietbit.mechanism.family import Choices, SearchedFamily
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.release import Release
from quietbit_lab.baseline.codebook import check_ball, clipped, new_nonce, numbered_layout, put
from quietbit_lab.baseline.signs import sign_accumulator, sign_gain, symbol_of
from quietbit_lab.baseline.tilt import subset_levels, tilt_release
from quietbit_lab.baseline.tuned import LEAST_EPSILON, MOST_EPSILON

__all__ = ["FAMILY", "SubsampledSigns", "kashin"]

MOST_BITS = 12
TURNS, STEP = 20, 1.5
MOST_DIMENSION = 2**21  # a few seconds of transforms, whoever described the mechanism
SMALL = 256  # dimensions below which the cube needs more room
RESIDUE = 0.01  # of what the search may leave over, and what cross terms of the frame may add


@final
@dataclass(frozen=True, slots=True)
class SubsampledSigns:
    """SQKR on updates in an L2 ball: ``bits`` signs by one randomised response of ``design_epsilon``.

    ``level`` is the size of the cube for the coefficients, in units of an evenly spread update.
    """

    ball: Ball
    design_epsilon: float
    bits: int
    level: float = 1.9
    rotation_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse another norm and numbers out of range."""
        put_in = object.__setattr__
        put_in(
            self,
            "design_epsilon",
            check_real(self.design_epsilon, "design_epsilon", at_least=LEAST_EPSILON, at_most=MOST_EPSILON),
        )
        check_ball(self.ball, Norm.L2, "SQKR", 1, MOST_DIMENSION)
        put_in(self, "bits", check_int(self.bits, "bits", 1, min(MOST_BITS, self.length)))
        put_in(self, "level", check_real(self.level, "level", above=1.0, at_most=100.0))
        put_in(self, "rotation_seed", check_int(self.rotation_seed, "rotation_seed", 0))

    @property
    def domain(self) -> Ball:
        """Where updates are clipped to."""
        return self.ball

    @property
    def length(self) -> int:
        """N: coefficients of an update."""
        return padded_size(2 * self.ball.dimension)

    @property
    def reach(self) -> float:
        """A: the largest coefficient."""
        return self.level * self.ball.radius / math.sqrt(self.length)

    @property
    def layout(self) -> Layout:
        """A nonce and the signs."""
        return numbered_layout(self.ball.dimension, self.bits)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Kashin's coefficients, a few of their signs, randomised response."""
        inside = clipped(self.ball, update, rng, kernel)
        coefficients = kashin(inside, self.length, self.reach, self.rotation_seed)
        block = rng.draw(max(2, self.bits))
        nonce = new_nonce(block)
        put(out, nonce, symbol_of(coefficients, self.reach, self.bits, self.design_epsilon, nonce, block))

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sums of signs; both rotations are undone once per mean."""
        scale = self.reach / sign_gain(self.bits, self.design_epsilon)

        def finish(mean: FloatVector) -> FloatVector:
            return _back(mean * scale, self.rotation_seed)[: self.ball.dimension]

        return sign_accumulator(self.length, self.bits, max_payloads, finish)

    def privacy(self, adjacency: Adjacency, samples: int | None = None) -> Release:
        """Randomised response over 2^bits symbols."""
        refuse_samples(samples, "SQKR rounds at random before its randomised response")
        return tilt_release(*subset_levels(1 << self.bits, 1, self.design_epsilon), check_adjacency(adjacency))

    def error(self) -> Error:
        """level^2 C^2 / (k g^2)."""
        return Error(self.variance(0.0))

    def expectation(self, value: float) -> float:
        """The value itself, but for what the search for coefficients leaves over."""
        return check_value(self.ball, value)

    def variance(self, value: float) -> float:
        """The second moment less the squared value; signs of other rows add up to as much in the mean only."""
        number = check_value(self.ball, value)
        gain = sign_gain(self.bits, self.design_epsilon)
        return (self.level * self.ball.radius / gain) ** 2 / self.bits - number**2 / self.bits

    @property
    def moment_error(self) -> float:
        """The residue of the search, and what several signs of one symbol share."""
        return RESIDUE


def kashin(vector: FloatVector, length: int, reach: float, seed: int) -> FloatVector:
    """Coefficients a with F^T a = vector but for a residue, none above ``reach``."""
    padded = np.zeros(length)
    padded[: vector.size] = vector
    found = _forth(padded, seed)
    for _ in range(TURNS):
        cut = np.clip(found, -reach, reach)
        padded[: vector.size] = vector - _back(cut, seed)[: vector.size]
        found = cut + STEP * _forth(padded, seed)
    return np.clip(found, -reach, reach)


def _forth(padded: FloatVector, seed: int) -> FloatVector:
    first, second = _both_signs(padded.size, seed)
    return np.asarray(hadamard_(hadamard_(padded * first) * second))


def _back(coefficients: FloatVector, seed: int) -> FloatVector:
    first, second = _both_signs(coefficients.size, seed)
    return np.asarray(hadamard_(hadamard_(coefficients.copy()) * second) * first)


@lru_cache(maxsize=4)
def _both_signs(size: int, seed: int) -> tuple[FloatVector, FloatVector]:
    return signs(size, 2 * seed), signs(size, 2 * seed + 1)


def best_bits(epsilon: float) -> int:
    """How many signs cost the least error; about as many as epsilon has nats.

    >>> [best_bits(float(epsilon)) for epsilon in (1, 2, 4, 8)]
    [1, 2, 4, 8]
    """
    return min(range(1, MOST_BITS + 1), key=lambda bits: 1 / (bits * sign_gain(bits, epsilon) ** 2))


def _build(ball: Ball, loss: float, choices: Choices) -> SubsampledSigns:
    level = 1.9 if ball.dimension >= SMALL else 2.5
    return SubsampledSigns(ball, loss, choices.bits or best_bits(loss), level)


FAMILY = SearchedFamily(
    "sqkr",
    (SubsampledSigns,),
    uses=("bits",),
    strength="design_epsilon",
    build=_build,
    limits=lambda ball, choices: (LEAST_EPSILON, MOST_EPSILON),
    work="some eighty transforms, and a few bits",
    baseline=True,
)
