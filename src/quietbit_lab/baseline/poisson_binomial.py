"""The Poisson binomial mechanism: a few coins a coordinate, biased by the update, and only sums are seen.

Idea     others' coins are the noise, as in the library's own one-bit sums; here the bias of a coin is linear in the
         coordinate, p = 1/2 + theta x/c, so the mean is unbiased everywhere in the clamp, at the price of a theta of
         at most a quarter.
Symbols  m = `coins` of a client and coordinate; n = clients; c = `clamp`: coordinates are cut to +-c after a public
         rotation; S = theta C/c: L2 distance of neighbours' p for zero-out, twice that for replace-one.
Source   Chen, Ozgur, Kairouz (ICML 2022), "The Poisson binomial mechanism for unbiased federated learning with secure
         aggregation".

Account. Not the paper's bound, whose constant is not sharp, but the library's certified one for sums of bits
(`quietbit.privacy.aggregate`): coins with bias p are the bits of a logistic design of epsilon e = log((1 + 2
theta)/(1 - 2 theta)) at x = 1/2 + logit(p)/2e, in [0, 1]. logit is convex above 1/2, so |x - 1/2| <= |p - 1/2|/(2
theta): zero-out neighbours are at most S/(2 theta) apart in x. Its slope is at most 4/(1 - 4 theta^2): replace-one
neighbours are at most 2 S * 2/(e (1 - 4 theta^2)) apart. m coins are m sums that a server could see one by one: m
times the divergence of one.
Error of the mean at zero: c^2/(4 theta^2 m n).
Sampling. A coin compares 64 random bits with a threshold; p is off by 2^-50 at most and at least 1/4: slack p m
2^-48.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.design.solve import solve_anew
from quietbit.design.spec import DesignSpec
from quietbit.design.table import Design
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.transform import padded_size, rotate, rotate_back
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Parts, check_adjacency
from quietbit.privacy.aggregate import aggregate_curve
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import LinearCurve, with_slack
from quietbit.privacy.guarantee import Adjacency, Trust, Unit
from quietbit.privacy.release import Release
from quietbit_lab.baseline.codebook import clipped
from quietbit_lab.baseline.sums import calibrate_sums, check_sum

__all__ = ["PoissonBinomial", "calibrate_poisson_binomial"]

MOST_COINS = 255
MOST_THETA = 0.25
COMFORTABLE_THETA = 0.1  # at which the change of variable costs replace-one neighbours 6 % and others nothing
SPREAD = 5.0  # the clamp, in deviations of an evenly spread update's coordinate: one in two million is cut


@final
@dataclass(frozen=True, slots=True)
class PoissonBinomial:
    """Poisson binomial sums over ``clients``: ``coins`` coins per coordinate with a bias of at most ``theta``.

    ``clamp`` is the largest magnitude of a rotated coordinate, in radii.
    """

    ball: Ball
    theta: float
    clients: int
    coins: int = 1
    clamp: float = 1.0
    rotation_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        put = object.__setattr__
        put(self, "clients", check_sum(self.ball, self.clients, 2)[0])
        require(self.clients >= 2, "clients", self.clients, "at least 2: alone, nobody hides anybody")
        put(self, "theta", check_real(self.theta, "theta", at_least=1e-7, at_most=MOST_THETA))
        put(self, "coins", check_int(self.coins, "coins", 1, MOST_COINS))
        put(self, "clamp", check_real(self.clamp, "clamp", at_most=1.0))
        put(self, "rotation_seed", check_int(self.rotation_seed, "rotation_seed", 0))

    @property
    def code_count(self) -> int:
        """The dimension, padded to a power of two."""
        return padded_size(self.ball.dimension)

    @property
    def wire_bits(self) -> int:
        """ceil(log2(m n + 1))."""
        return (self.coins * self.clients).bit_length()

    @property
    def squared_error(self) -> float:
        """c^2 / (4 theta^2 m n)."""
        return (self.clamp * self.ball.radius / self.theta) ** 2 / (4 * self.coins * self.clients)

    def encode(self, update: Parts, rng: RandomBits, kernel: Kernel) -> NDArray[np.int64]:
        """How many of m coins fell on heads, for every rotated coordinate."""
        inside = clipped(self.ball, update, rng, kernel)
        rotated = rotate(inside, self.rotation_seed) / (self.clamp * self.ball.radius)
        bias = self.theta * np.clip(rotated, -1.0, 1.0)
        block = rng.draw(rotated.size)
        # 2^63 + theta x 2^64: exact but for the roundings of the bias.
        limit = np.uint64(1 << 63) + np.rint(bias * 2.0**62).astype(np.int64).astype(np.uint64) * np.uint64(4)
        heads = np.zeros(rotated.size, dtype=np.int64)
        for coin in range(self.coins):
            heads += block.uniform64(coin, 0, rotated.size) < limit
        return heads

    def mean_from_sum(self, total: NDArray[np.int64]) -> FloatVector:
        """Less half of all coins, scaled and rotated back."""
        tosses = self.coins * self.clients
        bias = np.asarray(total, dtype=np.float64) / tosses - 0.5
        return rotate_back(bias * (self.clamp * self.ball.radius / self.theta), self.rotation_seed)[
            : self.ball.dimension
        ]

    def sum_privacy(self, adjacency: Adjacency) -> Release:
        """The account of sums of bits, m times."""
        which = check_adjacency(adjacency)
        each = math.log1p(2 * self.theta) - math.log1p(-2 * self.theta)
        distance = 1 / (2 * self.clamp)  # S/(2 theta)
        if which is Adjacency.REPLACE_ONE:
            distance = 2 * self.theta / self.clamp * 2 / (each * (1 - 4 * self.theta**2))
        margin = 1e-9  # of x: more than the roundings of e and of the design
        curve = aggregate_curve(
            _design(each), round_up(distance, 1e-12), self.clients, which, -margin, 1 + margin,
            alone=LinearCurve(round_up((each * distance) ** 2 / 2, 1e-9)),
        )  # fmt: skip
        slack = self.code_count * self.coins * 2.0**-48
        whole = with_slack(curve.repeat(self.coins), slack)
        return Release(whole, which, Unit.CLIENT, Trust.SECURE_AGGREGATION)


@lru_cache(maxsize=64)
def _design(epsilon: float) -> Design:
    return solve_anew(DesignSpec(2, 1, epsilon))


def calibrate_poisson_binomial(
    ball: Ball,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    clients: int,
    releases: int = 1,
    coins: int | None = None,
) -> PoissonBinomial:
    """The largest theta whose ``releases`` sums stay within (epsilon, delta), coordinates clamped at five deviations.

    Without a number of coins, the fewest of 2^b - 1 that leave theta room below a quarter.
    """
    which = check_adjacency(adjacency)
    clamp = min(1.0, SPREAD / math.sqrt(padded_size(ball.dimension)))

    def saturated(many: int) -> bool:
        """Whether the normal approximation of the sum would meet the target at the largest theta."""
        apart = COMFORTABLE_THETA / clamp * (1 if which is Adjacency.ZERO_OUT else 2)
        slope = many * releases * apart**2 / (2 * clients * (0.25 - COMFORTABLE_THETA**2))
        return LinearCurve(slope).epsilon_upper(delta) < epsilon

    if coins is None:
        coins = next((many for many in (1, 3, 7, 15, 31, 63, 127) if not saturated(many)), MOST_COINS)

    def build(loss: float) -> PoissonBinomial:
        return PoissonBinomial(ball, loss, clients, coins, clamp)

    return calibrate_sums(
        build,
        epsilon=epsilon,
        delta=delta,
        adjacency=which,
        releases=releases,
        name="Poisson binomial sums",
        least=1e-6,
        most=MOST_THETA,
    )
