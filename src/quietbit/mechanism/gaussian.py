"""The Gaussian mechanism: 32 bits per coordinate, the yardstick for the others.

Idea     add normal noise of standard deviation sigma = noise_multiplier * radius and send 32-bit floats.
Symbols  C = radius; S = C for zero-out and 2C for replace-one; rdp(alpha) = alpha S^2 / (2 sigma^2).
Source   Guo et al. (ICML 2023), section "Experiments"; Balle and Wang (2018) for the exact account.

The account is that of real-valued noise. Floating-point noise is not: its low digits can reveal which input
it was added to (Mironov 2012). Rounding to 32 bits blurs this and does not remove it. The discrete
mechanisms of this library have no such gap; prefer them wherever the guarantee must hold to the letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatArray, FloatVector
from quietbit._validate import finite_real, require
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.mechanism.base import check_adjacency, check_codes, check_inside, check_rng, check_value
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.mechanism.noise import CHUNK, normal
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import GaussianCurve
from quietbit.privacy.guarantee import Adjacency

__all__ = ["MAX_MULTIPLIER", "MIN_MULTIPLIER", "Gaussian", "float_codes", "float_values"]

MIN_MULTIPLIER, MAX_MULTIPLIER = 1e-6, 1e7


@final
@dataclass(frozen=True, slots=True)
class Gaussian:
    """Normal noise on an update in an L2 ball; codes are the bit patterns of 32-bit floats.

    ``noise_multiplier`` is the standard deviation in units of the radius, from 1e-6 to 1e7.
    """

    ball: Ball
    noise_multiplier: float

    def __post_init__(self) -> None:
        """Refuse another norm and a multiplier out of range."""
        require(isinstance(self.ball, Ball), "ball", self.ball, "a Ball")
        require(self.ball.norm is Norm.L2, "norm of the ball", self.ball.norm.value, "l2 for Gaussian noise")
        multiplier = finite_real(self.noise_multiplier, "noise_multiplier", at_most=MAX_MULTIPLIER)
        require(multiplier >= MIN_MULTIPLIER, "noise_multiplier", multiplier, f"at least {MIN_MULTIPLIER:g}")
        object.__setattr__(self, "noise_multiplier", multiplier)

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
    def sigma(self) -> float:
        """The standard deviation of the noise."""
        return self.noise_multiplier * self.ball.radius

    def encode(self, update: FloatArray, rng: RandomBits) -> Codes:
        """The noisy update as 32-bit patterns, in the update's shape."""
        array = check_inside(self.ball, update)
        check_rng(rng)
        return float_codes(array, rng, self.noisy)

    def decode(self, codes: Codes) -> FloatArray:
        """The noisy update as float32."""
        return float_values(codes, self.code_count)

    def privacy(self, adjacency: Adjacency) -> GaussianCurve:
        """The curve alpha S^2 / (2 sigma^2), with the exact account beside it."""
        check_adjacency(adjacency)
        distance = 1.0 if adjacency is Adjacency.ZERO_OUT else 2.0
        return GaussianCurve(round_up((distance / self.noise_multiplier) ** 2 / 2, 1e-14))

    def expectation(self, value: float) -> float:
        """The value itself (rounding to 32 bits aside)."""
        return check_value(self.ball, value)

    def variance(self, value: float) -> float:
        """sigma^2 (rounding to 32 bits aside)."""
        check_value(self.ball, value)
        return self.sigma**2

    def noisy(self, values: FloatVector, block: WordBlock, start: int) -> FloatVector:
        """Values of coordinates ``start ..`` with their noise, in double precision."""
        return values + self.sigma * normal(block, start, values.size)


def float_codes(update: NDArray[Any], rng: RandomBits, noisy: Any) -> Codes:
    """The bit patterns of ``noisy(values, block, start)`` as 32-bit floats, made a chunk at a time."""
    flat = update.reshape(-1)
    block = rng.draw(flat.size)
    codes = np.empty(flat.size, dtype=np.uint32)
    for start in range(0, flat.size, CHUNK):
        values = flat[start : start + CHUNK].astype(np.float64)
        codes[start : start + CHUNK] = noisy(values, block, start).astype(np.float32).view(np.uint32)
    return codes.reshape(update.shape)


def float_values(codes: Codes, count: int) -> FloatArray:
    """Bit patterns back as float32; a pattern that is no finite number is refused."""
    values: NDArray[np.float32] = np.array(check_codes(codes, 32, count), order="C").view(np.float32)
    require(bool(np.all(np.isfinite(values))), "codes", "a pattern of NaN or infinity", "finite floats")
    return values
