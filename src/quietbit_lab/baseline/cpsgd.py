"""cpSGD: binomial noise on whole numbers, so that only fair coins are needed.

Idea     the number of heads among N fair coins is nearly normal, and a sum of clients' coins is one binomial again;
         the price of not being normal is a condition on N and terms that fade with it.
Symbols  N: coins in the sum, N/4 their variance; D1, D2, D8: distances of neighbours' integers; d: codes of an
         update; delta_0 = `release_delta`: what one release may lose.
Source   Agarwal, Suresh, Yu, Kumar, McMahan (NeurIPS 2018), "cpSGD", Theorem 1 with p = 1/2 and s = 1: needs
         N/4 >= max(23 log(10 d/delta_0), 2 D8), and gives
         eps = D2 sqrt(2 log(1.25/delta_0))/sqrt(N/4) + (c D2 sqrt(log(10/delta_0)) + b D1)/(N/4 (1 - delta_0/10))
               + (2/3 D8 log(1.25/delta_0) + k D8 log(20 d/delta_0) log(10/delta_0))/(N/4), b = 1/3, c = 5/2, k = 2/3.

That is an (eps, delta_0) for one release and no more: any such release is a post-processing of one that is purely
private but for an outcome of mass delta_0 (Kairouz, Oh, Viswanath 2015), so it goes into the ledger as a pure curve
with lost mass. Composition over releases is all the worse for it, which is the published account's price and not
this library's choice. tests/exact/test_baseline_sums.py holds the theorem against exact binomial tails. Coins are
bits of random words: exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietbit._search import bisect
from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Parts, check_adjacency
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import PureCurve, with_delta
from quietbit.privacy.guarantee import Adjacency, Trust, Unit
from quietbit.privacy.release import Release
from quietbit_lab.baseline.sums import Distances, Grid, check_sum, finest_reach

__all__ = ["BinomialNoise", "binomial_epsilon_upper", "calibrate_cpsgd"]

MOST_COINS = 2**16  # of one client and coordinate
NOISE_STREAM = 1000
SHARE = 0.5  # of delta that the theorem may use; composition has the rest


@final
@dataclass(frozen=True, slots=True)
class BinomialNoise:
    """Binomial noise spread over ``clients``: ``coins`` fair coins each, in sums modulo 2^``wire_bits``.

    ``reach`` is the radius in whole numbers; ``release_delta`` what the theorem may lose in one release.
    """

    ball: Ball
    coins: int
    reach: float
    clients: int
    release_delta: float
    wire_bits: int = 16
    rotation_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        put = object.__setattr__
        count, bits = check_sum(self.ball, self.clients, self.wire_bits)
        put(self, "clients", count)
        put(self, "wire_bits", bits)
        put(self, "coins", check_int(self.coins, "coins", 1, MOST_COINS))
        put(self, "reach", check_real(self.reach, "reach", at_most=2.0**40))
        put(self, "release_delta", check_real(self.release_delta, "release_delta", at_most=0.1))
        put(self, "rotation_seed", check_int(self.rotation_seed, "rotation_seed", 0))

    @property
    def grid(self) -> Grid:
        """Rotation, scale and rounding."""
        return Grid(self.ball, self.reach, self.rotation_seed)

    @property
    def variance(self) -> float:
        """Of the integer noise in the sum."""
        return self.coins * self.clients / 4

    @property
    def code_count(self) -> int:
        """The dimension, padded to a power of two."""
        return self.grid.size

    @property
    def squared_error(self) -> float:
        """Noise and rounding."""
        return self.grid.error(self.variance, self.clients)

    def encode(self, update: Parts, rng: RandomBits, kernel: Kernel) -> NDArray[np.int64]:
        """Integers with the heads of one client's coins, modulo 2^wire_bits."""
        integers, block = self.grid.integers(update, rng, kernel)
        heads = np.zeros(integers.size, dtype=np.int64)
        whole, last = divmod(self.coins, 64)
        for word in range(whole + (last > 0)):
            coins = block.uniform64(NOISE_STREAM + word, 0, integers.size)
            heads += _ones(coins if word < whole else coins >> np.uint64(64 - last))
        return np.asarray((integers + heads) & (2**self.wire_bits - 1))

    def mean_from_sum(self, total: NDArray[np.int64]) -> FloatVector:
        """Less the expected heads, centred, scaled and rotated back."""
        half, middle = 1 << (self.wire_bits - 1), self.coins * self.clients // 2
        centred = (np.asarray(total, dtype=np.int64) - middle + half) % (2 * half) - half
        odd = 0.5 * (self.coins * self.clients % 2)
        return self.grid.mean(centred.astype(np.float64) - odd, self.clients)

    def sum_privacy(self, adjacency: Adjacency) -> Release:
        """Theorem 1 for all clients' coins together."""
        which = check_adjacency(adjacency)
        epsilon = binomial_epsilon_upper(
            self.coins * self.clients, self.grid.distances(which), self.code_count, self.release_delta
        )
        curve = with_delta(PureCurve(epsilon), self.release_delta)
        return Release(curve, which, Unit.CLIENT, Trust.SECURE_AGGREGATION)


def _ones(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How many bits of every word are one."""
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8))
    return np.asarray(bits.reshape(-1, 64).sum(axis=1, dtype=np.int64))


def binomial_epsilon_upper(coins: int, apart: Distances, codes: int, delta: float) -> float:
    """Theorem 1's epsilon for N = ``coins`` in the sum; too few of them are refused."""
    variance = coins / 4
    least = max(23 * math.log(10 * codes / delta), 2 * apart.largest)
    require(
        variance >= least, "variance of the noise in the sum", variance, f"at least {least:.4g}, as Theorem 1 needs"
    )
    tenth, fourth = math.log(10 / delta), math.log(1.25 / delta)
    first = apart.l2 * math.sqrt(2 * fourth / variance)
    second = (2.5 * apart.l2 * math.sqrt(tenth) + apart.l1 / 3) / (variance * (1 - delta / 10))
    third = (2 / 3 * apart.largest * fourth + 2 / 3 * apart.largest * math.log(20 * codes / delta) * tenth) / variance
    return round_up(first + second + third, 1e-13)


def calibrate_cpsgd(
    ball: Ball,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    clients: int,
    releases: int = 1,
    wire_bits: int = 16,
) -> BinomialNoise:
    """The least noise whose ``releases`` sums stay within (epsilon, delta), half of delta for the theorem.

    The scale is as fine as the modulus, or the number of coins a client can toss, allows.
    """
    which = check_adjacency(adjacency)
    each = SHARE * delta / check_int(releases, "releases", 1)
    size = 1 << (ball.dimension - 1).bit_length()

    def build(loss: float) -> BinomialNoise:
        reach = finest_reach(1 / loss, clients, size, wire_bits)
        most = math.sqrt(MOST_COINS * clients) / 2 * loss * (1 - 1e-9)
        coins = max(1, math.ceil(4 * (min(reach, most) / loss) ** 2 / clients))
        return BinomialNoise(ball, coins, min(reach, most), clients, each, wire_bits)

    def private(loss: float) -> bool:
        try:
            found = build(loss)
            return found.sum_privacy(which).repeat(releases).epsilon_upper(delta) <= epsilon
        except InvalidParameter:
            return False

    start = next((loss for loss in np.geomspace(1.0, 1e-6, 60) if private(float(loss))), None)
    require(start is not None, "epsilon", epsilon, "larger, or bits more, for cpSGD's account")
    return build(bisect(private, float(start or 0.0), 1e3, relative=1e-6, by_ratio=True))
