"""CLDP's mechanism for L1 balls: one sampled Walsh-Hadamard coefficient, one bit.

Idea     the coefficients of a vector of L1 norm C are at most C/sqrt(p) each, so a random one of them, rounded to a
         sign and randomised, is unbiased for the whole vector; a bit and the number of the coefficient are all that
         is sent. The number comes from a public nonce here.
Symbols  p = dimension padded to a power of two; A = C/sqrt(p); k = `bits` signs (one in the paper), g as in `signs`.
Source   Girgis, Data, Diggavi, Kairouz, Suresh (AISTATS 2021), "Shuffled model of federated learning: privacy,
         accuracy and communication trade-offs", their mechanism for the L1 ball.

The account is that of the local randomiser; what a shuffler would add is not counted. Error: p A^2 / (k g^2) =
C^2/(k g^2) per coordinate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.transform import padded_size, rotate, rotate_back
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
from quietbit.mechanism.family import SearchedFamily
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.release import Release
from quietbit_lab.baseline.codebook import check_ball, clipped, new_nonce, numbered_layout, put
from quietbit_lab.baseline.signs import sign_accumulator, sign_gain, symbol_of
from quietbit_lab.baseline.tilt import subset_levels, tilt_release
from quietbit_lab.baseline.tuned import LEAST_EPSILON, MOST_EPSILON

__all__ = ["FAMILY", "SampledCoefficient"]

MOST_BITS = 12


@final
@dataclass(frozen=True, slots=True)
class SampledCoefficient:
    """CLDP on updates in an L1 ball: ``bits`` signs by one randomised response of ``design_epsilon``."""

    ball: Ball
    design_epsilon: float
    bits: int = 1
    rotation_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse another norm and numbers out of range."""
        put_in = object.__setattr__
        put_in(
            self,
            "design_epsilon",
            check_real(self.design_epsilon, "design_epsilon", at_least=LEAST_EPSILON, at_most=MOST_EPSILON),
        )
        check_ball(self.ball, Norm.L1, "CLDP")
        put_in(self, "bits", check_int(self.bits, "bits", 1, min(MOST_BITS, self.length)))
        put_in(self, "rotation_seed", check_int(self.rotation_seed, "rotation_seed", 0))

    @property
    def domain(self) -> Ball:
        """Where updates are clipped to."""
        return self.ball

    @property
    def length(self) -> int:
        """p: coefficients of an update."""
        return padded_size(self.ball.dimension)

    @property
    def reach(self) -> float:
        """A: the largest coefficient."""
        return self.ball.radius / math.sqrt(self.length)

    @property
    def layout(self) -> Layout:
        """A nonce and the signs."""
        return numbered_layout(self.ball.dimension, self.bits)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Coefficients, a few of their signs, randomised response."""
        coefficients = rotate(clipped(self.ball, update, rng, kernel), self.rotation_seed)
        block = rng.draw(max(2, self.bits))
        nonce = new_nonce(block)
        put(out, nonce, symbol_of(coefficients, self.reach, self.bits, self.design_epsilon, nonce, block))

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Sums of signs, transformed back once per mean."""
        scale = self.reach / sign_gain(self.bits, self.design_epsilon)

        def finish(mean: FloatVector) -> FloatVector:
            return rotate_back(mean * scale, self.rotation_seed)[: self.ball.dimension]

        return sign_accumulator(self.length, self.bits, max_payloads, finish)

    def privacy(self, adjacency: Adjacency, samples: int | None = None) -> Release:
        """Randomised response over 2^bits symbols."""
        refuse_samples(samples, "CLDP rounds at random before its randomised response")
        return tilt_release(*subset_levels(1 << self.bits, 1, self.design_epsilon), check_adjacency(adjacency))

    def error(self) -> Error:
        """C^2 / (k g^2)."""
        return Error(self.variance(0.0))

    def expectation(self, value: float) -> float:
        """The value itself."""
        return check_value(self.ball, value)

    def variance(self, value: float) -> float:
        """The second moment less the squared value."""
        number = check_value(self.ball, value)
        gain = sign_gain(self.bits, self.design_epsilon)
        return ((self.ball.radius / gain) ** 2 - number**2) / self.bits

    @property
    def moment_error(self) -> float:
        """What several signs of one symbol share."""
        return 0.0 if self.bits == 1 else 0.01


FAMILY = SearchedFamily(
    "cldp",
    (SampledCoefficient,),
    uses=("bits",),
    strength="design_epsilon",
    build=lambda ball, loss, choices: SampledCoefficient(ball, loss, choices.bits or 1),
    limits=lambda ball, choices: (LEAST_EPSILON, MOST_EPSILON),
    work="a transform, and a few bits",
    baseline=True,
)
