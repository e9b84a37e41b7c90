"""The distributed discrete Gaussian: every client adds a little noise; only sums are seen.

Idea     the sum of n discrete Gaussians of variance parameter w is, but for a tiny factor, a
         discrete Gaussian of n w, which is as private as a continuous one.
Symbols  w = sigma^2: of one client; tau = 10 sum_{k=1}^{n-1} exp(-2 pi^2 w k/(k+1)): bound on |log
         ratio| between the law of the sum and the discrete Gaussian, per coordinate; D2: L2
         distance of neighbours' integers.
Source   Kairouz, Liu, Steinke (ICML 2021), Theorem 9 and its corollary for sums; Canonne, Kamath,
         Steinke (NeurIPS 2020), Theorem 4: a discrete Gaussian has D_alpha <= alpha D2^2/(2 n w)
         for whole-number shifts.

Account. alpha D2^2/(2 n w) with p tau of slack (`with_slack`): sharper than the two forms of the
paper where tau counts, and the same where it does not. tests/lab/exact/test_baseline_sums.py holds
tau against exact convolutions. Sampling. Thresholds of 512 bits: a draw's law is within h_1 =
2^-490 of the discrete Gaussian in total variation, what is cut off far out included. Where the real
laws are within h of ideal ones in total variation, P <= P_ideal + h <= e^eps P'_ideal + delta + h
<= e^eps (P' + h) + delta + h: the loss of mass is (1 + e^eps) h. With h = n p h_1 and n p <= 2^57
that is below 2^-100, which is what is lost here, for every eps up to 230; nobody needs a claim
beyond.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit.errors import check_real, require
from quietbit.kernel.rng import WordBlock
from quietbit.mechanism.ball import Ball
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency, Target
from quietbit_lab.baseline.sums import Grid, NoisySum, calibrate_sums, finest_reach
from quietbit_lab.baseline.thresholds import ThresholdTable

__all__ = [
    "DistributedDiscreteGaussian",
    "calibrate_discrete_gaussian",
    "gaussian_table",
    "tau_upper",
]

LEAST_DEVIATION = 0.5  # of one client's noise: below it the theorem says nothing
MOST_DEVIATION = 1e4
WORDS = 8
DIGITS = 220
GUARD = 96
LOST = 2.0**-100
MOST_SLACK = 1.0  # beyond, sums are not discrete Gaussians in any useful sense
NOISE_STREAM = 1000


def _noise_multiplier(value: float) -> float:
    return check_real(value, "noise_multiplier", at_most=1e7)


@final
@frozen
class DistributedDiscreteGaussian(NoisySum):
    """Discrete Gaussian noise spread over ``clients``, in sums modulo 2^``wire_bits``.

    ``noise_multiplier`` is the standard deviation of the noise in the sum, in radii.
    """

    noise_multiplier: float = field(converter=_noise_multiplier)

    def __attrs_post_init__(self) -> None:
        """Refuse noise too fine for the integers."""
        rule = f"from {LEAST_DEVIATION:g} to {MOST_DEVIATION:g}"
        remedy = "use more bits if it is too small, fewer if it is too large"
        within = LEAST_DEVIATION <= self.deviation <= MOST_DEVIATION
        require(within, "deviation of one client's integers", self.deviation, rule, remedy)

    @property
    def grid(self) -> Grid:
        """Return rotation, scale and rounding, with noise no finer than needed."""
        reach = finest_reach(self.noise_multiplier, self.clients, self.code_count, self.wire_bits)
        most = 0.9 * MOST_DEVIATION * math.sqrt(self.clients) / self.noise_multiplier
        return Grid(self.ball, min(reach, most), self.rotation_seed)

    @property
    def variance(self) -> float:
        """Of the integer noise in the sum."""
        return (self.noise_multiplier * self.grid.reach) ** 2

    @property
    def deviation(self) -> float:
        """Of one client's integer noise."""
        return math.sqrt(self.variance / self.clients)

    def noise(self, block: WordBlock, size: int) -> NDArray[np.int64]:
        """Return one client's discrete normal numbers."""
        return np.asarray(
            gaussian_table(self.variance / self.clients).draw(block, NOISE_STREAM, 0, size)
        )

    def sum_curve(self, adjacency: Adjacency) -> Cost:
        """Return the cost of the sum's discrete Gaussian, with its slack and that of sampling."""
        slope = round_up(self.grid.distances(adjacency).l2 ** 2 / (2 * self.variance), 1e-14)
        slack = round_up(
            self.code_count * tau_upper(self.variance / self.clients, self.clients), 1e-14
        )
        require(
            slack <= MOST_SLACK,
            "deviation of one client's integers",
            self.deviation,
            "large enough for sums to be nearly discrete Gaussian",
            "use more bits",
        )
        return Cost.linear(slope).with_slack(slack).with_lost(LOST)


def tau_upper(variance: float, clients: int) -> float:
    """How far the logarithms of a sum of n discrete Gaussians are from those of one, rounded up."""
    shares = np.arange(1, min(clients, 10_000)) / np.arange(2, min(clients, 10_000) + 1)
    terms = np.exp(-2 * math.pi**2 * variance * shares)
    rest = max(0, clients - 10_000) * (float(terms[-1]) if terms.size else 0.0)
    return round_up(10 * (float(terms.sum()) + rest), 1e-9)


@lru_cache(maxsize=8)
def gaussian_table(variance: float) -> ThresholdTable:
    """Thresholds of the discrete Gaussian with this parameter, to 512 bits."""
    context = Context(prec=DIGITS)
    exact = Decimal(variance)
    ratio = context.exp(
        context.divide(Decimal(-1), exact)
    )  # weight(k+1)/weight(k) = e^(-(2k+1)/2v)
    step = context.exp(context.divide(Decimal(-1), context.multiply(Decimal(2), exact)))
    half = []
    weight = Decimal(2) ** (64 * WORDS + GUARD)
    while weight >= 1:
        half.append(int(weight))
        weight = context.multiply(weight, step)
        step = context.multiply(step, ratio)
    return ThresholdTable.of_weights(1 - len(half), WORDS, half[:0:-1] + half)


def calibrate_discrete_gaussian(
    ball: Ball, target: Target, clients: int, wire_bits: int = 16
) -> DistributedDiscreteGaussian:
    """Return the least noise whose sums meet the target."""

    def build(loss: float) -> DistributedDiscreteGaussian:
        return DistributedDiscreteGaussian(ball, clients, 1 / loss, wire_bits=wire_bits)

    return calibrate_sums(build, target, "the distributed discrete Gaussian", 1e-6, 1e3)
