"""The Poisson binomial mechanism: a few biased coins per coordinate; only sums are seen.

Idea     others' coins are the noise, as in the library's own one-bit sums; here the bias of a coin
         is linear in the coordinate, p = 1/2 + theta x/c, so the mean is unbiased everywhere in the
         clamp, at the cost of a theta of at most a quarter.
Symbols  m = `coins` of a client and coordinate; n = clients; c = `clamp`: coordinates are cut to
         +-c after a public rotation; S = theta C/c: L2 distance of neighbours' p for zero-out,
         twice that for replace-one.
Source   Chen, Ozgur, Kairouz (ICML 2022), "The Poisson binomial mechanism for unbiased federated
         learning with secure aggregation".

Account. Not the paper's bound, whose constant is not sharp, but the library's certified one for
sums of bits (`quietbit.privacy.aggregate`): coins with bias p are the bits of a logistic design of
epsilon e = log((1 + 2 theta)/(1 - 2 theta)) at x = 1/2 + logit(p)/2e, in [0, 1]. logit is convex
above 1/2, so |x - 1/2| <= |p - 1/2|/(2 theta): zero-out neighbours are at most S/(2 theta) apart in
x. Its slope is at most 4/(1 - 4 theta^2): replace-one neighbours are at most 2 S * 2/(e (1 - 4
theta^2)) apart. m coins are m sums that a server could see one by one: m times the divergence of
one. Error of the mean at zero: c^2/(4 theta^2 m n). Sampling. A coin compares 64 random bits with a
threshold; p is off by 2^-50 at most and at least 1/4: slack p m 2^-48.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.design.solve import closed_design
from quietbit.design.table import Design, DesignSpec
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.transform import padded_size, rotate
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Parts
from quietbit.privacy.aggregate import aggregate_cost
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency, Target
from quietbit_lab.baseline.codebook import clipped
from quietbit_lab.baseline.sums import SumBaseline, calibrate_sums

__all__ = ["PoissonBinomial", "calibrate_poisson_binomial"]

MOST_COINS = 255
MOST_THETA = 0.25
COMFORTABLE_THETA = (
    0.1  # at which the change of variable costs replace-one neighbours 6 % and others nothing
)
# the clamp, in deviations of an evenly spread update's coordinate: one in two million is cut
SPREAD = 5.0


def _theta(value: float) -> float:
    return check_real(value, "theta", at_least=1e-7, at_most=MOST_THETA)


def _coins(value: int) -> int:
    return check_int(value, "coins", 1, MOST_COINS)


def _clamp(value: float) -> float:
    return check_real(value, "clamp", at_most=1.0)


@final
@frozen
class PoissonBinomial(SumBaseline):
    """Poisson binomial sums over ``clients``: ``coins`` per coordinate, bias up to ``theta``.

    ``clamp`` is the largest magnitude of a rotated coordinate, in radii.
    """

    theta: float = field(converter=_theta)
    coins: int = field(default=1, converter=_coins)
    clamp: float = field(default=1.0, converter=_clamp)

    def __attrs_post_init__(self) -> None:
        """Refuse a client alone."""
        require(
            self.clients >= 2,
            "clients",
            self.clients,
            "at least 2",
            "a client alone is hidden by nobody",
        )

    @property
    def wire_bits(self) -> int:
        """ceil(log2(m n + 1))."""
        return (self.coins * self.clients).bit_length()

    @property
    def squared_error(self) -> float:
        """c^2 / (4 theta^2 m n)."""
        return (self.clamp / self.theta) ** 2 / (4 * self.coins * self.clients)

    def encode(self, update: Parts, rng: RandomBits, kernel: Kernel) -> NDArray[np.int64]:
        """How many of m coins fell on heads, for every rotated coordinate."""
        inside = clipped(self.ball, update, 1.0, rng, kernel)
        rotated = rotate(inside, self.rotation_seed) / self.clamp
        bias = self.theta * np.clip(rotated, -1.0, 1.0)
        block = rng.draw(rotated.size)
        # 2^63 + theta x 2^64: exact but for the roundings of the bias.
        limit = np.uint64(1 << 63) + np.rint(bias * 2.0**62).astype(np.int64).astype(
            np.uint64
        ) * np.uint64(4)
        heads = np.zeros(rotated.size, dtype=np.int64)
        for coin in range(self.coins):
            heads += block.uniform64(coin, 0, rotated.size) < limit
        return heads

    def mean_from_sum(self, total: NDArray[np.int64]) -> FloatVector:
        """Less half of all coins, scaled and rotated back."""
        tosses = self.coins * self.clients
        bias = np.asarray(total, dtype=np.float64) / tosses - 0.5
        return self.rotated_back(bias * (self.clamp / self.theta))

    def sum_curve(self, adjacency: Adjacency) -> Cost:
        """Return the account of sums of bits, m times."""
        each = math.log1p(2 * self.theta) - math.log1p(-2 * self.theta)
        distance = 1 / (2 * self.clamp)  # S/(2 theta)
        if adjacency is Adjacency.REPLACE_ONE:
            distance = 2 * self.theta / self.clamp * 2 / (each * (1 - 4 * self.theta**2))
        margin = 1e-9  # of x: more than the roundings of e and of the design
        curve = aggregate_cost(
            _design(each),
            round_up(distance, 1e-12),
            self.clients,
            adjacency,
            -margin,
            1 + margin,
            alone=Cost.linear(round_up((each * distance) ** 2 / 2, 1e-9)),
        )
        slack = self.code_count * self.coins * 2.0**-48
        return (curve * self.coins).with_slack(slack)


@lru_cache(maxsize=64)
def _design(epsilon: float) -> Design:
    return closed_design(DesignSpec(2, 1, epsilon))


def calibrate_poisson_binomial(
    ball: Ball, target: Target, clients: int, coins: int | None = None
) -> PoissonBinomial:
    """Return the largest theta whose sums meet the target, coordinates clamped at five deviations.

    Without a number of coins, the fewest of 2^b - 1 that leave theta room below a quarter.
    """
    clamp = min(1.0, SPREAD / math.sqrt(padded_size(ball.dimension)))

    def saturated(many: int) -> bool:
        """Return whether the sum's normal approximation meets the target at the largest theta."""
        apart = COMFORTABLE_THETA / clamp * (1 if target.adjacency is Adjacency.ZERO_OUT else 2)
        slope = many * target.releases * apart**2 / (2 * clients * (0.25 - COMFORTABLE_THETA**2))
        return Cost.linear(slope).epsilon(target.delta) < target.epsilon

    if coins is None:
        coins = next(
            (many for many in (1, 3, 7, 15, 31, 63, 127) if not saturated(many)), MOST_COINS
        )

    def build(loss: float) -> PoissonBinomial:
        return PoissonBinomial(ball, clients, loss, coins, clamp)

    return calibrate_sums(build, target, "Poisson binomial sums", 1e-6, MOST_THETA)
