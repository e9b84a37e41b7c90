"""CLDP's mechanism for L1 balls: one sampled Walsh-Hadamard coefficient, one bit.

Idea     the coefficients of a vector of L1 norm C are at most C/sqrt(p) each, so a random one of
         them, rounded to a sign and randomised, is unbiased for the whole vector; a bit and the
         number of the coefficient are all that is sent. The number comes from a public nonce here.
Symbols  p = dimension padded to a power of two; A = C/sqrt(p); k = `bits` signs (one in the paper),
         g as in `signs`.
Source   Girgis, Data, Diggavi, Kairouz, Suresh (AISTATS 2021), "Shuffled model of federated
         learning: privacy, accuracy and communication trade-offs", their mechanism for the L1 ball.

The account is that of the local randomiser; what a shuffler would add is not counted. Error: p A^2
/ (k g^2) = C^2/(k g^2) per coordinate.
"""

from __future__ import annotations

from typing import final

from attrs import frozen

from quietbit._typing import FloatVector
from quietbit.kernel.transform import padded_size, rotate, rotate_back
from quietbit.mechanism.ball import Norm
from quietbit_lab.baseline.codebook import check_ball
from quietbit_lab.baseline.signs import SampledSigns
from quietbit_lab.baseline.tuned import searched_family

__all__ = ["FAMILY", "SampledCoefficient"]


@final
@frozen
class SampledCoefficient(SampledSigns):
    """CLDP on an L1 ball: ``bits`` signs by one randomised response of ``design_epsilon``."""

    def __attrs_post_init__(self) -> None:
        """Refuse another norm, and more signs than coefficients."""
        check_ball(self.ball, "CLDP", norm=Norm.L1)
        SampledSigns.__attrs_post_init__(self)

    @property
    def length(self) -> int:
        """The padded dimension, p."""
        return padded_size(self.ball.dimension)

    @property
    def spread(self) -> float:
        """1: no coefficient exceeds C/sqrt(p)."""
        return 1.0

    @property
    def moment_error(self) -> float:
        """What several signs of one symbol share."""
        return 0.0 if self.bits == 1 else 0.01

    def forth(self, inside: FloatVector) -> FloatVector:
        """Return the Walsh-Hadamard coefficients."""
        return rotate(inside, self.rotation_seed)

    def back(self, coefficients: FloatVector) -> FloatVector:
        """Undo the rotation."""
        return rotate_back(coefficients, self.rotation_seed)


FAMILY = searched_family(
    "cldp",
    lambda ball, loss, choices: SampledCoefficient(ball, choices.bits or 1, loss),
)
