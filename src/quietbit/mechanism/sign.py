"""SignSGD: one bit per coordinate, the sign of a noisy value.

Idea     whatever is computed from a private release is as private: the curve is the inner mechanism's.
Symbols  decode gives +1 or -1, which has no unit: what a server does with it (a majority, a learning rate)
         is its own choice. `slope_at_zero` is the derivative of the expectation at 0, by which one divides
         to get the units back.
Source   Jin et al. (2020), "Stochastic-sign SGD"; Guo et al. (ICML 2023), section "Experiments".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from quietbit._typing import Codes, FloatArray
from quietbit._validate import require
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.base import check_codes, check_inside, check_rng, check_value, lookup
from quietbit.mechanism.clipping import Ball
from quietbit.mechanism.gaussian import Gaussian
from quietbit.mechanism.laplace import Laplace
from quietbit.mechanism.noise import CHUNK
from quietbit.privacy.curve import PrivacyCurve
from quietbit.privacy.guarantee import Adjacency

__all__ = ["Sign"]

VALUES = np.array([-1.0, 1.0])
VALUES.setflags(write=False)


@final
@dataclass(frozen=True, slots=True)
class Sign:
    """The sign of a Gaussian's or a Laplace's noisy update: code 1 where it is not negative, else 0."""

    inner: Gaussian | Laplace

    def __post_init__(self) -> None:
        """Refuse any other inner mechanism."""
        require(isinstance(self.inner, Gaussian | Laplace), "inner", self.inner, "a Gaussian or a Laplace")

    @property
    def domain(self) -> Ball:
        """The inner mechanism's ball."""
        return self.inner.ball

    @property
    def bits(self) -> int:
        """One."""
        return 1

    @property
    def code_count(self) -> int:
        """One code per coordinate."""
        return self.domain.dimension

    @property
    def slope_at_zero(self) -> float:
        """The derivative of the expectation at 0: sqrt(2/pi)/sigma, or 1/scale for Laplace noise."""
        if isinstance(self.inner, Gaussian):
            return math.sqrt(2 / math.pi) / self.inner.sigma
        return 1 / self.inner.scale

    def encode(self, update: FloatArray, rng: RandomBits) -> Codes:
        """One bit per coordinate, in the update's shape."""
        array = check_inside(self.domain, update)
        check_rng(rng)
        flat = array.reshape(-1)
        block = rng.draw(flat.size)
        codes = np.empty(flat.size, dtype=np.uint8)
        for start in range(0, flat.size, CHUNK):
            values = flat[start : start + CHUNK].astype(np.float64)
            codes[start : start + CHUNK] = self.inner.noisy(values, block, start) >= 0
        return codes.reshape(array.shape)

    def decode(self, codes: Codes) -> FloatArray:
        """-1 for code 0 and +1 for code 1."""
        return lookup(VALUES, check_codes(codes, 1, self.code_count))

    def privacy(self, adjacency: Adjacency) -> PrivacyCurve:
        """The inner mechanism's curve: taking a sign is post-processing."""
        return self.inner.privacy(adjacency)

    def expectation(self, value: float) -> float:
        """P(+1) - P(-1)."""
        number = check_value(self.domain, value)
        if isinstance(self.inner, Gaussian):
            return math.erf(number / (self.inner.sigma * math.sqrt(2)))
        return math.copysign(-math.expm1(-abs(number) / self.inner.scale), number)

    def variance(self, value: float) -> float:
        """1 - expectation^2."""
        return 1 - self.expectation(value) ** 2
