"""cpSGD: binomial noise on whole numbers, so that only fair coins are needed.

Idea     the number of heads among N fair coins is nearly normal, and a sum of clients' coins is one
         binomial again; the cost of not being normal is a condition on N and terms that fade with
         it.
Symbols  N: coins in the sum, N/4 their variance; D1, D2, D8: distances of neighbours' integers; d:
         codes of an update; delta_0 = `release_delta`: what one release may lose.
Source   Agarwal, Suresh, Yu, Kumar, McMahan (NeurIPS 2018), "cpSGD", Theorem 1 with p = 1/2 and s =
         1: needs N/4 >= max(23 log(10 d/delta_0), 2 D8), and gives eps = D2 sqrt(2
         log(1.25/delta_0))/sqrt(N/4) + (c D2 sqrt(log(10/delta_0)) + b D1)/(N/4 (1 - delta_0/10))
               + (2/3 D8 log(1.25/delta_0) + k D8 log(20 d/delta_0) log(10/delta_0))/(N/4), b = 1/3,
               c = 5/2, k = 2/3.

That is an (eps, delta_0) for one release and no more: any such release is a post-processing of one
that is purely private but for an outcome of mass delta_0 (Kairouz, Oh, Viswanath 2015), so it goes
into the ledger as a pure curve with lost mass. Composition over releases is all the worse for it,
which is the published account's cost and not this library's choice.
tests/lab/exact/test_baseline_sums.py holds the theorem against exact binomial tails. Coins are
bits of random words: exact.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._search import bisect
from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.kernel.rng import WordBlock
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.ball import Ball
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency, Target
from quietbit_lab.baseline.sums import Distances, Grid, NoisySum, finest_reach, sums_epsilon

__all__ = ["BinomialNoise", "binomial_epsilon_upper", "calibrate_cpsgd"]

MOST_COINS = 2**16  # of one client and coordinate
NOISE_STREAM = 1000
SHARE = 0.5  # of delta that the theorem may use; composition has the rest


def _coins(value: int) -> int:
    return check_int(value, "coins", 1, MOST_COINS)


def _reach(value: float) -> float:
    return check_real(value, "reach", at_most=2.0**40)


def _release_delta(value: float) -> float:
    return check_real(value, "release_delta", at_most=0.1)


@final
@frozen
class BinomialNoise(NoisySum):
    """Binomial noise over ``clients``: ``coins`` fair coins each, modulo 2^``wire_bits``.

    ``reach`` is the clip in whole numbers; ``release_delta`` what the theorem may lose in one
    release.
    """

    coins: int = field(converter=_coins)
    reach: float = field(converter=_reach)
    release_delta: float = field(converter=_release_delta)

    @property
    def grid(self) -> Grid:
        """Rotation, scale and rounding."""
        return Grid(self.ball, self.reach, self.rotation_seed)

    @property
    def variance(self) -> float:
        """Of the integer noise in the sum."""
        return self.doubled_middle / 4

    @property
    def doubled_middle(self) -> int:
        """All coins: half of them are expected to be heads."""
        return self.coins * self.clients

    def noise(self, block: WordBlock, size: int) -> NDArray[np.int64]:
        """Return the heads of one client's coins."""
        heads = np.zeros(size, dtype=np.int64)
        whole, last = divmod(self.coins, 64)
        for word in range(whole + (last > 0)):
            coins = block.uniform64(NOISE_STREAM + word, 0, size)
            heads += _ones(coins if word < whole else coins >> np.uint64(64 - last))
        return heads

    def sum_curve(self, adjacency: Adjacency) -> Cost:
        """Return Theorem 1 for all clients' coins together."""
        apart = self.grid.distances(adjacency)
        epsilon = binomial_epsilon_upper(
            self.coins * self.clients, apart, self.code_count, self.release_delta
        )
        return Cost.pure(epsilon).with_lost(self.release_delta)


def _ones(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How many bits of every word are one."""
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8))
    return np.asarray(bits.reshape(-1, 64).sum(axis=1, dtype=np.int64))


def binomial_epsilon_upper(coins: int, apart: Distances, codes: int, delta: float) -> float:
    """Theorem 1's epsilon for N = ``coins`` in the sum; too few of them are refused."""
    variance = coins / 4
    least = max(23 * math.log(10 * codes / delta), 2 * apart.largest)
    require(
        variance >= least,
        "variance of the noise in the sum",
        variance,
        f"at least {least:.4g}, as Theorem 1 needs",
    )
    tenth = math.log(10 / delta)
    fourth = math.log(1.25 / delta)
    first = apart.l2 * math.sqrt(2 * fourth / variance)
    second = (2.5 * apart.l2 * math.sqrt(tenth) + apart.l1 / 3) / (variance * (1 - delta / 10))
    third = (
        2 / 3 * apart.largest * fourth
        + 2 / 3 * apart.largest * math.log(20 * codes / delta) * tenth
    ) / variance
    return round_up(first + second + third, 1e-13)


def calibrate_cpsgd(ball: Ball, target: Target, clients: int, wire_bits: int = 16) -> BinomialNoise:
    """Return the least noise whose sums meet the target, half of delta for the theorem.

    The scale is as fine as the modulus, or the number of coins a client can toss, allows.
    """
    each = SHARE * target.delta / target.releases
    size = padded_size(ball.dimension)

    def build(loss: float) -> BinomialNoise:
        reach = finest_reach(1 / loss, clients, size, wire_bits)
        most = math.sqrt(MOST_COINS * clients) / 2 * loss * (1 - 1e-9)
        coins = max(1, math.ceil(4 * (min(reach, most) / loss) ** 2 / clients))
        return BinomialNoise(ball, clients, coins, min(reach, most), each, wire_bits=wire_bits)

    def private(loss: float) -> bool:
        try:
            return sums_epsilon(build(loss), target) <= target.epsilon
        except InvalidParameter:
            return False

    start = next((loss for loss in np.geomspace(1.0, 1e-6, 60) if private(float(loss))), None)
    require(
        start is not None,
        "epsilon",
        target.epsilon,
        "large enough for cpSGD's account",
        "raise it, or use more bits",
    )
    return build(bisect(private, float(start or 0.0), 1e3, relative=1e-6, by_ratio=True))
