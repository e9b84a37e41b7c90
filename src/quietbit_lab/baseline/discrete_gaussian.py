"""The distributed discrete Gaussian: every client adds a little discrete normal noise, and only sums are seen.

Idea     the sum of n discrete Gaussians of variance parameter w is, but for a tiny factor, a discrete Gaussian of n
         w, which is as private as a continuous one.
Symbols  w = sigma^2: of one client; tau = 10 sum_{k=1}^{n-1} exp(-2 pi^2 w k/(k+1)): bound on |log ratio| between
         the law of the sum and the discrete Gaussian, per coordinate; D2: L2 distance of neighbours' integers.
Source   Kairouz, Liu, Steinke (ICML 2021), Theorem 9 and its corollary for sums; Canonne, Kamath, Steinke (NeurIPS
         2020), Theorem 4: a discrete Gaussian has D_alpha <= alpha D2^2/(2 n w) for whole-number shifts.

Account. alpha D2^2/(2 n w) with p tau of slack (`with_slack`): sharper than the two forms of the paper where tau
counts, and the same where it does not. tests/exact/test_baseline_sums.py holds tau against exact convolutions.
Sampling. Thresholds of 512 bits: a draw's law is within h_1 = 2^-490 of the discrete Gaussian in total variation,
what is cut off far out included. Where the real laws are within h of ideal ones in total variation, P <= P_ideal + h
<= e^eps P'_ideal + delta + h <= e^eps (P' + h) + delta + h: the loss of mass is (1 + e^eps) h. With h = n p h_1 and
n p <= 2^57 that is below 2^-100, which is what is lost here, for every eps up to 230; nobody needs a claim beyond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Parts, check_adjacency
from quietbit.mechanism.poisson import PoissonTable
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import LinearCurve, with_delta, with_slack
from quietbit.privacy.guarantee import Adjacency, Trust, Unit
from quietbit.privacy.release import Release
from quietbit_lab.baseline.sums import Grid, calibrate_sums, check_sum, finest_reach

__all__ = ["DistributedDiscreteGaussian", "calibrate_discrete_gaussian", "gaussian_table", "tau_upper"]

LEAST_DEVIATION = 0.5  # of one client's noise: below it the theorem says nothing
MOST_DEVIATION = 1e4
WORDS, DIGITS, GUARD = 8, 220, 96
LOST = 2.0**-100
MOST_SLACK = 1.0  # beyond, sums are no discrete Gaussians in any useful sense
NOISE_STREAM = 1000


@final
@dataclass(frozen=True, slots=True)
class DistributedDiscreteGaussian:
    """Discrete Gaussian noise spread over ``clients``, in sums modulo 2^``wire_bits``.

    ``noise_multiplier`` is the standard deviation of the noise in the sum, in radii.
    """

    ball: Ball
    noise_multiplier: float
    clients: int
    wire_bits: int = 16
    rotation_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and noise too fine for the integers."""
        put = object.__setattr__
        count, bits = check_sum(self.ball, self.clients, self.wire_bits)
        put(self, "clients", count)
        put(self, "wire_bits", bits)
        put(self, "noise_multiplier", check_real(self.noise_multiplier, "noise_multiplier", at_most=1e7))
        put(self, "rotation_seed", check_int(self.rotation_seed, "rotation_seed", 0))
        deviation = math.sqrt(self.variance / self.clients)
        rule = f"from {LEAST_DEVIATION:g} to {MOST_DEVIATION:g} (more or fewer bits make it so)"
        require(LEAST_DEVIATION <= deviation <= MOST_DEVIATION, "deviation of one client's integers", deviation, rule)

    @property
    def grid(self) -> Grid:
        """Rotation, scale and rounding."""
        size = 1 << (self.ball.dimension - 1).bit_length()
        reach = finest_reach(self.noise_multiplier, self.clients, size, self.wire_bits)
        # Noise finer than needed gains nothing; keep tables small.
        most = 0.9 * MOST_DEVIATION * math.sqrt(self.clients) / self.noise_multiplier
        return Grid(self.ball, min(reach, most), self.rotation_seed)

    @property
    def variance(self) -> float:
        """Of the integer noise in the sum."""
        return (self.noise_multiplier * self.grid.reach) ** 2

    @property
    def code_count(self) -> int:
        """The dimension, padded to a power of two."""
        return self.grid.size

    @property
    def squared_error(self) -> float:
        """Noise and rounding."""
        return self.grid.error(self.variance, self.clients)

    def encode(self, update: Parts, rng: RandomBits, kernel: Kernel) -> NDArray[np.int64]:
        """Integers with one client's share of the noise, modulo 2^wire_bits."""
        integers, block = self.grid.integers(update, rng, kernel)
        table = gaussian_table(self.variance / self.clients)
        return np.asarray((integers + table.draw(block, NOISE_STREAM, 0, integers.size)) & (2**self.wire_bits - 1))

    def mean_from_sum(self, total: NDArray[np.int64]) -> FloatVector:
        """Centred, scaled and rotated back."""
        half = 1 << (self.wire_bits - 1)
        centred = (np.asarray(total, dtype=np.int64) + half) % (2 * half) - half
        return self.grid.mean(centred.astype(np.float64), self.clients)

    def sum_privacy(self, adjacency: Adjacency) -> Release:
        """The discrete Gaussian of the sum, its distance from the real law, and what sampling adds."""
        which = check_adjacency(adjacency)
        slope = round_up(self.grid.distances(which).l2 ** 2 / (2 * self.variance), 1e-14)
        slack = round_up(self.code_count * tau_upper(self.variance / self.clients, self.clients), 1e-14)
        deviation = math.sqrt(self.variance / self.clients)
        require(slack <= MOST_SLACK, "deviation of one client's integers", deviation, "larger (more bits make it so)")
        curve = with_delta(with_slack(LinearCurve(slope), slack), LOST)
        return Release(curve, which, Unit.CLIENT, Trust.SECURE_AGGREGATION)


def tau_upper(variance: float, clients: int) -> float:
    """How far the logarithms of a sum of n discrete Gaussians are from those of one, rounded up."""
    shares = np.arange(1, min(clients, 10_000)) / np.arange(2, min(clients, 10_000) + 1)
    terms = np.exp(-2 * math.pi**2 * variance * shares)
    rest = max(0, clients - 10_000) * (float(terms[-1]) if terms.size else 0.0)
    return round_up(10 * (float(terms.sum()) + rest), 1e-9)


@lru_cache(maxsize=8)
def gaussian_table(variance: float) -> PoissonTable:
    """Thresholds of the discrete Gaussian with this parameter, to 512 bits."""
    context = Context(prec=DIGITS)
    exact = Decimal(variance)
    ratio = context.exp(context.divide(Decimal(-1), exact))  # weight(k+1)/weight(k) = e^(-(2k+1)/2v)
    step = context.exp(context.divide(Decimal(-1), context.multiply(Decimal(2), exact)))
    half, weight = [], Decimal(2) ** (64 * WORDS + GUARD)
    while weight >= 1:
        half.append(int(weight))
        weight = context.multiply(weight, step)
        step = context.multiply(step, ratio)
    whole = half[:0:-1] + half
    everything, running, thresholds = sum(whole), 0, []
    for one in whole[:-1]:
        running += one
        thresholds.append((running << (64 * WORDS)) // everything)
    heads = np.array([value >> (64 * (WORDS - 1)) for value in thresholds], dtype=np.uint64)
    heads.setflags(write=False)
    return PoissonTable(1 - len(half), WORDS, tuple(thresholds), heads)


def calibrate_discrete_gaussian(
    ball: Ball,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    clients: int,
    releases: int = 1,
    wire_bits: int = 16,
) -> DistributedDiscreteGaussian:
    """The least noise whose ``releases`` sums stay within (epsilon, delta)."""
    return calibrate_sums(
        lambda loss: DistributedDiscreteGaussian(ball, 1 / loss, clients, wire_bits),
        epsilon=epsilon,
        delta=delta,
        adjacency=check_adjacency(adjacency),
        releases=releases,
        name="the distributed discrete Gaussian",
        least=1e-6,
        most=1e3,
    )
