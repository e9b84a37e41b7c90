"""Randomised response to be summed behind masks: one bit per cell, each flipped with a small probability.

Idea     behind masks the server sees only how many clients named a cell, so other clients' lies hide a client's bit,
         and few lies are enough: at epsilon 0.5 one in 160 for 10,000 clients, where an answer that is seen alone must
         be a coin three times in four. Two cells need one bit; with more, each cell has its own bit.
Symbols  p: probability of a lie, a multiple of 2^-40; k: cells; n: honest clients of a sum.
Source   Warner (1965) for a bit, Erlingsson, Pihur, Korolova (2014) for one bit per cell; the account of the sum is in
         `privacy.response_sum`.

Account. With two cells, another answer flips one bit; no answer at all (zero-out) is a fair coin. With more, another
answer flips two bits, and no answer is a zero in every cell, one bit away from any. Bits of different cells are
independent, so their divergences add up. Seen alone, a bit costs log((1 - p)/p), against a coin log(1/(2p)).
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._search import bisect
from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.accumulate import code_accumulator
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Accumulator, Body, Error, Layout, Mechanism, Parts
from quietbit.mechanism.response import cell_ends, check_cells, drawn_cell
from quietbit.privacy.account import Account
from quietbit.privacy.conversion import round_up
from quietbit.privacy.cost import Cost
from quietbit.privacy.response_sum import response_sum_cost
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust

__all__ = ["SummedResponse"]

GRAIN = 2.0**40
LEAST_LIE, MOST_LIE = 2.0**-30, 0.5 - 2.0**-20
SHARE = 0.97  # of delta, in a node's account of a sum (`privacy.account`)
LEAST_ODDS, MOST_ODDS = 1e-4, 20.0  # log((1 - p)/p)


def _lie(value: float) -> float:
    found = check_real(value, "lie", at_least=LEAST_LIE, at_most=MOST_LIE)
    require(found * GRAIN == math.floor(found * GRAIN), "lie", value, "a multiple of 2^-40")
    return found


@final
@frozen
class SummedResponse(Mechanism):
    """One bit per cell (one bit for two cells), set where the client is in it and flipped with probability ``lie``.

    Updates are shares of cells, in the unit ball of the L1 norm; the decoded mean is the share of clients per cell.
    """

    cells: int = field(converter=check_cells)
    lie: float = field(converter=_lie)

    @classmethod
    def within(cls, epsilon: float, delta: float, cells: int, adjacency: Adjacency, honest: int) -> SummedResponse:
        """Return the response with fewest lies whose sum over ``honest`` clients costs at most ``epsilon`` at a node.

        >>> round(SummedResponse.within(0.5, 1e-5, 2, Adjacency.REPLACE_ONE, 1_000).lie, 3)
        0.068
        """
        target = Target(epsilon, delta, adjacency, trust=Trust.SECURE_AGGREGATION).limited()
        account, many = Account(target, "adaptive"), check_int(honest, "honest", 2, MOST_CLIENTS)

        def at(odds: float) -> SummedResponse:
            return cls(cells, math.ceil(GRAIN / (1 + math.exp(odds))) / GRAIN)

        def holds(odds: float) -> bool:
            return at(odds).sum_privacy(many, adjacency).epsilon(delta * SHARE) <= target.epsilon

        require(holds(LEAST_ODDS), "epsilon", epsilon, "large enough that an answer says something")
        odds = MOST_ODDS if holds(MOST_ODDS) else bisect(holds, LEAST_ODDS, MOST_ODDS, relative=2e-4)
        while not account.allows(at(odds).sum_privacy(many, adjacency)):  # an account settles on one order beforehand
            odds *= 1 - 1e-3
        return at(odds)

    @property
    def domain(self) -> Ball:
        """The unit L1 ball: shares of cells."""
        return Ball(Norm.L1, 1.0, self.cells)

    @property
    def layout(self) -> Layout:
        """One bit per cell; for two cells, the second's."""
        return Layout.codes(1, 1 if self.cells == 2 else self.cells)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Draw a cell by its share, and flip each bit with probability ``lie``."""
        ends, count = cell_ends(update, kernel, self.domain), self.layout.count
        words = np.asarray(rng.draw(count + 2).uniform64(0, 0, count + 2), dtype=np.uint64)
        cell = drawn_cell(ends, int(words[0]))
        if self.cells == 2:
            truths = np.array([cell == 1 if cell is not None else int(words[1]) >> 63 == 1])
        else:
            truths = np.arange(count) == (-1 if cell is None else cell)
        lies = words[2:] < np.uint64(int(self.lie * GRAIN) << 24)
        out[:] = np.packbits(truths ^ lies, bitorder="little")

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that counts the ones per cell."""
        return code_accumulator(np.array([0.0, 1.0]), 1, self.layout.count, kernel, max_payloads, self._shares)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of one answer that the server sees alone."""
        coin, bits = self._apart(adjacency)
        each = math.log(0.5 / self.lie) if coin else math.log((1 - self.lie) / self.lie)
        return Cost.pure(round_up(bits * each, 1e-14))

    @property
    def summable(self) -> bool:
        """True: bits are added behind masks."""
        return True

    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the cost of one secure sum over ``clients`` honest clients to one of them."""
        many = check_int(clients, "clients", 2, MOST_CLIENTS)
        return response_sum_cost(self.lie, many, *self._apart(adjacency))

    def _apart(self, adjacency: Adjacency) -> tuple[bool, int]:
        """Return whether a neighbour's bit is a coin, and how many bits differ."""
        if self.cells == 2:
            return adjacency is Adjacency.ZERO_OUT, 1
        return False, 1 if adjacency is Adjacency.ZERO_OUT else 2

    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the share of each cell from its number of ones."""
        count, sums = check_int(clients, "clients", 1), np.asarray(total, dtype=np.float64)
        inside = bool(np.all((sums >= 0) & (sums <= count)))
        require(inside, "sums of bits", (float(sums.min()), float(sums.max())), f"from 0 to {count}")
        return self._shares(sums / count)

    def _shares(self, frequencies: FloatVector) -> FloatVector:
        found = np.asarray((frequencies - self.lie) / (1 - 2 * self.lie))
        return np.array([1 - found[0], found[0]]) if self.cells == 2 else found

    def error(self) -> Error:
        """Return the error per cell due to lies alone; with no cell at all, two cells decode to a half each."""
        return Error(squared=self.lie * (1 - self.lie) / (1 - 2 * self.lie) ** 2, bias=0.5 if self.cells == 2 else 0.0)

    def frequency(self, share: float) -> float:
        """Return the probability that an answer names a cell of this share; `share` is the inverse."""
        return self.lie + (1 - 2 * self.lie) * share

    def share(self, frequency: float) -> float:
        """Return an unbiased estimate of the share of a cell named with this frequency; it may leave [0, 1]."""
        return (frequency - self.lie) / (1 - 2 * self.lie)
