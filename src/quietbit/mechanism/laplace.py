"""The Laplace mechanism: pure privacy for an L1 ball, 32 bits per coordinate.

Idea     add Laplace noise of scale scale_multiplier * radius and send 32-bit floats.
Symbols  e = S / scale with S = radius for zero-out and twice that for replace-one: epsilon of the release.
Source   Guo et al. (ICML 2023), section "Experiments"; Mironov (2017), Proposition 6, for the divergence.

One coordinate moved by t scales has (alpha - 1) D_alpha = log(alpha/(2 alpha - 1) e^((alpha-1) t) +
(alpha-1)/(2 alpha - 1) e^(-alpha t)): a logarithm of a sum of exponentials, hence convex in t, and 0 at 0.
So moving several coordinates by t_k >= 0 costs no more than moving one by their sum, and the vector's curve
is the scalar's at e. The floating-point caveat of `gaussian.py` holds here too (Mironov 2012 is about this
very mechanism).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from quietbit._typing import Codes, FloatArray, FloatVector
from quietbit._validate import finite_real, require
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.mechanism.base import check_adjacency, check_inside, check_rng, check_value
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.mechanism.gaussian import MAX_MULTIPLIER, MIN_MULTIPLIER, float_codes, float_values
from quietbit.mechanism.noise import laplace
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import FunctionCurve, PureCurve
from quietbit.privacy.guarantee import Adjacency

__all__ = ["Laplace"]


@final
@dataclass(frozen=True, slots=True)
class Laplace:
    """Laplace noise on an update in an L1 ball; codes are the bit patterns of 32-bit floats.

    ``scale_multiplier`` is the noise's scale in units of the radius, from 1e-6 to 1e7.
    """

    ball: Ball
    scale_multiplier: float

    def __post_init__(self) -> None:
        """Refuse another norm and a multiplier out of range."""
        require(isinstance(self.ball, Ball), "ball", self.ball, "a Ball")
        require(self.ball.norm is Norm.L1, "norm of the ball", self.ball.norm.value, "l1 for Laplace noise")
        multiplier = finite_real(self.scale_multiplier, "scale_multiplier", at_most=MAX_MULTIPLIER)
        require(multiplier >= MIN_MULTIPLIER, "scale_multiplier", multiplier, f"at least {MIN_MULTIPLIER:g}")
        object.__setattr__(self, "scale_multiplier", multiplier)

    @property
    def domain(self) -> Ball:
        """Where updates must lie."""
        return self.ball

    @property
    def bits(self) -> int:
        """32: codes carry floats."""
        return 32

    @property
    def code_count(self) -> int:
        """One code per coordinate."""
        return self.ball.dimension

    @property
    def scale(self) -> float:
        """The scale of the noise: its mean magnitude."""
        return self.scale_multiplier * self.ball.radius

    def encode(self, update: FloatArray, rng: RandomBits) -> Codes:
        """The noisy update as 32-bit patterns, in the update's shape."""
        array = check_inside(self.ball, update)
        check_rng(rng)
        return float_codes(array, rng, self.noisy)

    def decode(self, codes: Codes) -> FloatArray:
        """The noisy update as float32."""
        return float_values(codes, self.code_count)

    def privacy(self, adjacency: Adjacency) -> FunctionCurve:
        """Pure, with Laplace's own divergences at finite orders."""
        check_adjacency(adjacency)
        distance = 1.0 if adjacency is Adjacency.ZERO_OUT else 2.0
        epsilon = round_up(distance / self.scale_multiplier, 1e-14)
        return FunctionCurve(_Divergence(epsilon), f"Laplace, epsilon {epsilon:g}", epsilon)

    def expectation(self, value: float) -> float:
        """The value itself (rounding to 32 bits aside)."""
        return check_value(self.ball, value)

    def variance(self, value: float) -> float:
        """Twice the squared scale (rounding to 32 bits aside)."""
        check_value(self.ball, value)
        return 2 * self.scale**2

    def noisy(self, values: FloatVector, block: WordBlock, start: int) -> FloatVector:
        """Values of coordinates ``start ..`` with their noise, in double precision."""
        return values + self.scale * laplace(block, start, values.size)


@final
@dataclass(frozen=True, slots=True)
class _Divergence:
    """D_alpha of two Laplace laws whose centres are ``epsilon`` scales apart."""

    epsilon: float

    def __call__(self, alpha: float) -> float:
        eps = self.epsilon
        # e^((alpha-1) eps) (1 - r (1 - e^(-(2 alpha - 1) eps))), r = (alpha-1)/(2 alpha-1) at most 1/2.
        share = (alpha - 1) / (2 * alpha - 1)
        moment = (alpha - 1) * eps + math.log1p(share * math.expm1(-(2 * alpha - 1) * eps))
        exact = (moment + 1e-15 * (1 + abs(moment))) / (alpha - 1)
        return min(PureCurve(eps).rdp(alpha), round_up(exact))
