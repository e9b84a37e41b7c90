"""SQKR: subsampled signs of Kashin's representation, by randomised response.

Idea     in a redundant frame every vector has coefficients that are all of about the same size
         (Kashin); a few of their signs, sampled by public randomness, say as much about it as any
         others, and one randomised response hides them together.
Symbols  d = dimension; N = 2d padded to a power of two: length of the coefficients; F: two public
         rotations of the padded vector, an isometry R^d -> R^N, so that x = F^T a for a = F x and
         for many others; A = level C/sqrt(N): bound on |a_j|; k = `bits`.
Source   Chen, Kairouz, Ozgur (NeurIPS 2020), "Breaking the communication-privacy-accuracy
         trilemma"; Lyubarskii and Vershynin (2010) for the representation.

The representation is looked for by projecting back and forth between the cube and the plane F^T a =
x: a_0 = F x, then cut to the cube, then add F of half as much again as is missing. Always as many
turns, so that time tells nothing. One rotation is not a frame for that: half the rows of a padded
vector's Walsh-Hadamard transform repeat the other half. At level 1.9 and N >= 2d, 20 turns leave
less than 1/1000 of the update; what is left is a bias, and the last cut makes |a_j| <= A certain,
on which nothing in the account depends. Error: N A^2/(k g^2) = level^2 C^2/(k g^2) per coordinate,
g as in `signs`. The published comparison has 3.57 for level^2 by its own search for coefficients;
1.9^2 = 3.61.
"""

from __future__ import annotations

from typing import final

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import check_real
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.ball import usual_kernel
from quietbit_lab.baseline.base import MOST_BITS
from quietbit_lab.baseline.codebook import check_ball
from quietbit_lab.baseline.signs import SampledSigns, sign_gain
from quietbit_lab.baseline.tuned import searched_family

__all__ = ["FAMILY", "SubsampledSigns", "kashin"]

TURNS = 20
STEP = 1.5
MOST_DIMENSION = 2**21  # a few seconds of transforms, whoever described the mechanism
SMALL = 256  # dimensions below which the cube needs more room
RESIDUE = 0.01  # of what the search may leave over, and what cross terms of the frame may add


def _level(value: float) -> float:
    return check_real(value, "level", above=1.0, at_most=100.0)


@final
@frozen
class SubsampledSigns(SampledSigns):
    """SQKR on an L2 ball: ``bits`` signs by one randomised response of ``design_epsilon``.

    ``level`` is the size of the cube for the coefficients, in units of an evenly spread update.
    """

    level: float = field(converter=_level)

    @level.default
    def _usual_level(self) -> float:
        return 1.9 if self.ball.dimension >= SMALL else 2.5

    def __attrs_post_init__(self) -> None:
        """Refuse another norm, and more signs than coefficients."""
        check_ball(self.ball, "SQKR", 1, MOST_DIMENSION)
        SampledSigns.__attrs_post_init__(self)

    @property
    def length(self) -> int:
        """N."""
        return padded_size(2 * self.ball.dimension)

    @property
    def spread(self) -> float:
        """The size of the cube."""
        return self.level

    @property
    def moment_error(self) -> float:
        """The residue of the search, and what several signs of one symbol share."""
        return RESIDUE

    def forth(self, inside: FloatVector) -> FloatVector:
        """Return Kashin's coefficients."""
        return kashin(inside, self.length, self.reach, self.rotation_seed)

    def back(self, coefficients: FloatVector) -> FloatVector:
        """Undo both rotations."""
        return _back(coefficients, self.rotation_seed)


def kashin(vector: FloatVector, length: int, reach: float, seed: int) -> FloatVector:
    """Coefficients a with F^T a = vector but for a residue, none above ``reach``."""
    padded = np.zeros(length)
    padded[: vector.size] = vector
    coefficients = _forth(padded, seed)
    for _ in range(TURNS):
        cut = np.clip(coefficients, -reach, reach)
        padded[: vector.size] = vector - _back(cut, seed)[: vector.size]
        coefficients = cut + STEP * _forth(padded, seed)
    return np.clip(coefficients, -reach, reach)


def _forth(padded: FloatVector, seed: int) -> FloatVector:
    kernel = usual_kernel()
    once = kernel.rotate(padded, 2 * seed, kind=np.float64)
    return np.asarray(kernel.rotate(once, 2 * seed + 1, kind=np.float64))


def _back(coefficients: FloatVector, seed: int) -> FloatVector:
    kernel = usual_kernel()
    once = kernel.rotate_back(coefficients.copy(), 2 * seed + 1)
    return np.asarray(kernel.rotate_back(once, 2 * seed))


def best_bits(epsilon: float) -> int:
    """How many signs cost the least error; about as many as epsilon has nats.

    >>> [best_bits(float(epsilon)) for epsilon in (1, 2, 4, 8)]
    [1, 2, 4, 8]
    """
    return min(range(1, MOST_BITS + 1), key=lambda bits: 1 / (bits * sign_gain(bits, epsilon) ** 2))


FAMILY = searched_family(
    "sqkr",
    lambda ball, loss, choices: SubsampledSigns(ball, choices.bits or best_bits(loss), loss),
)
