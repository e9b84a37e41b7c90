"""Randomised response over k cells: answered one by one, or as bits that are summed behind masks.

Idea     an evaluation asks for one cell: right or wrong, a bin of a histogram, a cell of a
         confusion matrix. An update of shares (0.83 right, 0.17 wrong) is first reduced to the cell
         of an example drawn at random. Seen alone, the answer is that cell with probability t, else
         one drawn from all k. Behind masks other clients' lies hide a client's bit, so few lies are
         enough: at epsilon 0.5 one in 160 for 10,000 clients. Two cells need one bit; more need one
         bit each.
Symbols  t = T / 2^64; u: the least probability that an untruthful answer is a given cell; p:
         probability of a lie.
Source   Warner (1965); Kairouz, Oh, Viswanath (2014), k cells; Erlingsson, Pihur, Korolova (2014),
         a bit per cell; docs/theory/numerics.md for both accounts, `privacy.aggregate` for that of
         sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, final

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from quietbit._search import bisect
from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, refuse_payload, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.abilities import SamplePriced, Summable
from quietbit.mechanism.accumulate import code_accumulator
from quietbit.mechanism.ball import Ball, Norm, own_copy
from quietbit.mechanism.base import (
    Accumulator,
    Body,
    Error,
    Layout,
    Mechanism,
    Parts,
    Reader,
    array_reader,
    check_sums,
    passed_on,
)
from quietbit.privacy.account import Account
from quietbit.privacy.aggregate import response_sum_cost
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import round_up
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust

__all__ = ["MOST_CELLS", "CellCounts", "RandomisedResponse", "SummedResponse", "check_cells"]

WORDS = 2**64
MOST_CELLS = 2**16
LEAST_TRUTH = 1e-9
MOST_TRUTH = 1 - 1e-12
GRAIN = 2.0**40
LEAST_LIE = 2.0**-30
MOST_LIE = 0.5 - 2.0**-20
SHARE = 0.97  # of delta, that a node's account gives to one sum (`privacy.account`)
TOO_SMALL = "large enough that an answer depends on the cell"
LEAST_ODDS = 1e-4  # log((1 - p)/p)
MOST_ODDS = 20.0


def check_cells(value: int) -> int:
    """Return the number of cells of an answer: 2 to 65,536."""
    return check_int(value, "cells", 2, MOST_CELLS)


def _truth(value: float) -> float:
    return check_real(value, "truth", at_least=LEAST_TRUTH, at_most=MOST_TRUTH)


class Response(Mechanism):
    """An answer that names a cell; decoded to the share of clients per cell.

    An update holds a client's shares of the cells, in the unit L1 ball.
    """

    __slots__ = ()
    cells: int

    ball = passed_on("shares")

    @property
    def shares(self) -> Ball:
        """The unit L1 ball, which holds all shares of cells."""
        return Ball(Norm.L1, 1.0, self.cells)

    def _ends(self, update: Parts, kernel: Kernel) -> FloatVector:
        """Return the ends of cells on [0, 1], each as wide as its share; refuse NaN or infinity."""
        shares = own_copy(update).astype(np.float64)
        norm = kernel.norm([shares], self.ball.norm.order)
        return np.cumsum(np.maximum(shares, 0.0) / max(norm, 1.0))


def _drawn(ends: FloatVector, word: int) -> int | None:
    """Return the cell that a random 64-bit word draws; None beyond the last, if shares are few."""
    cell = int(np.searchsorted(ends, (word >> 11) * 2.0**-53, side="right"))
    return cell if cell < ends.size else None


@final
@frozen
class RandomisedResponse(Response, SamplePriced):
    """One of ``cells`` cells: the client's with probability ``truth``, else drawn from all."""

    cells: int = field(converter=check_cells)
    truth: float = field(converter=_truth)
    threshold: int = field(init=False, repr=False, eq=False)  # T

    @threshold.default
    def _threshold(self) -> int:
        return math.floor(Fraction(self.truth) * WORDS)

    @classmethod
    def within(cls, epsilon: float, cells: int, adjacency: Adjacency | str) -> RandomisedResponse:
        """Return the most truthful response that costs at most ``epsilon``.

        >>> round(RandomisedResponse.within(2.0, 2, "replace-one").truth, 4)
        0.7616
        """
        budget = check_real(epsilon, "epsilon")
        neighbours = Adjacency(adjacency)
        count = check_cells(cells)
        odds = math.expm1(min(budget, 40.0))
        truth = odds / (odds + count)
        if neighbours is Adjacency.ZERO_OUT:
            truth = min(-math.expm1(-budget), odds / (count - 1))
        response = cls(count, min(truth, MOST_TRUTH))
        while response.epsilon_upper(neighbours) > budget:
            truth = response.truth * (1 - 1e-12)  # room for the rounding of costs
            require(truth >= LEAST_TRUTH, "epsilon", epsilon, TOO_SMALL)
            response = cls(count, truth)
        return response

    @property
    def layout(self) -> Layout:
        """One or two bytes that hold the cell."""
        return Layout.opaque(self.cells, 1 if self.cells <= 256 else 2)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Draw a cell by its share, and answer with it or with a random one."""
        ends = self._ends(update, kernel)
        first, second, third = (int(word) for word in rng.draw(3).uniform64(0, 0, 3))
        cell = _drawn(ends, first)
        if cell is None or second >= self.threshold:
            cell = third * self.cells >> 64
        out[:] = np.frombuffer(cell.to_bytes(out.size, "little"), dtype=np.uint8)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that counts the answers per cell."""
        return CellCounts(self, np.zeros(self.cells, dtype=np.int64))

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the largest log-ratio of the probabilities of an answer, as a pure cost."""
        return Cost.pure(self.epsilon_upper(adjacency))

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the replace-one cost: one sample can change a client's cell as much as all can."""
        return self.cost(Adjacency.REPLACE_ONE)

    def epsilon_upper(self, adjacency: Adjacency) -> float:
        """Return the epsilon of an answer, from exact fractions; the logarithm is rounded up."""
        truth = Fraction(self.threshold, WORDS)
        other = Fraction(WORDS // self.cells, WORDS)
        if adjacency is Adjacency.REPLACE_ONE:
            return round_up(math.log1p(truth / ((1 - truth) * other)), 1e-14)
        more_likely = math.log1p(truth / other - truth)
        less_likely = math.log1p(truth / (1 - truth))
        return round_up(max(more_likely, less_likely), 1e-14)

    def error(self) -> Error:
        """Return the error for equal shares, to which an empty update decodes."""
        other = 1 / self.cells
        return Error(squared=other * (1 - other) / self.truth**2, bias=other)

    def frequency(self, share: float) -> float:
        """Return the probability that an answer names a cell; `share` is the inverse."""
        return self.truth * share + (1 - self.truth) / self.cells

    def share(self, frequency: Any) -> Any:
        """Return unbiased shares from frequencies of answers; they may lie outside [0, 1]."""
        return (frequency - (1 - self.truth) / self.cells) / self.truth


@define(eq=False)
class CellCounts(Accumulator):
    """Counts of the answers per cell."""

    mechanism: RandomisedResponse
    counts: NDArray[np.int64]

    def check(self, body: Body) -> None:
        """Refuse a cell that does not exist."""
        cell = int.from_bytes(body.tobytes(), "little")
        if cell >= self.mechanism.cells:
            refuse_payload("cell of the answer", f"below {self.mechanism.cells}", cell)

    def add(self, bodies: Sequence[Body]) -> None:
        """Count the answers."""
        for body in bodies:
            self.counts[int.from_bytes(body.tobytes(), "little")] += 1

    def reader(self, count: int) -> Reader:
        """Return a reader of the shares of cells."""
        return array_reader(self.mechanism.share(self.counts / count))


def _lie(value: float) -> float:
    number = check_real(value, "lie", at_least=LEAST_LIE, at_most=MOST_LIE)
    require(number * GRAIN == math.floor(number * GRAIN), "lie", value, "a multiple of 2^-40")
    return number


@final
@frozen
class SummedResponse(Response, Summable):
    """One bit per cell, set for the client's cell, then flipped with probability ``lie``.

    Two cells have one bit: the second's.
    """

    cells: int = field(converter=check_cells)
    lie: float = field(converter=_lie)

    @classmethod
    def within(
        cls, epsilon: float, delta: float, cells: int, adjacency: Adjacency, honest: int
    ) -> SummedResponse:
        """Return the response with fewest lies whose sums over ``honest`` clients meet the target.

        The target is met in a node's account.

        >>> round(SummedResponse.within(0.5, 1e-5, 2, Adjacency.REPLACE_ONE, 1_000).lie, 3)
        0.068
        """
        target = Target(epsilon, delta, adjacency, trust=Trust.SECURE_AGGREGATION).limited()
        account = Account(target, "adaptive")
        clients = check_int(honest, "honest", 2, MOST_CLIENTS)

        def response(odds: float) -> SummedResponse:
            return cls(cells, math.ceil(GRAIN / (1 + math.exp(odds))) / GRAIN)

        def cost(odds: float) -> Cost:
            return response(odds).sum_privacy(clients, adjacency)

        def holds(odds: float) -> bool:
            return cost(odds).epsilon(delta * SHARE) <= target.epsilon

        require(holds(LEAST_ODDS), "epsilon", epsilon, TOO_SMALL)
        if holds(MOST_ODDS):
            odds = MOST_ODDS
        else:
            odds = bisect(holds, LEAST_ODDS, MOST_ODDS, relative=2e-4)
        # An account chooses one order in advance, and may allow a little less.
        while not account.allows(cost(odds)):
            odds *= 1 - 1e-3
        return response(odds)

    @property
    def layout(self) -> Layout:
        """One bit per cell; for two cells, the second's."""
        return Layout.codes(1, 1 if self.cells == 2 else self.cells)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Draw a cell by its share, and flip each bit with probability ``lie``."""
        ends = self._ends(update, kernel)
        count = self.layout.count
        words = np.asarray(rng.draw(count + 2).uniform64(0, 0, count + 2), dtype=np.uint64)
        cell = _drawn(ends, int(words[0]))
        if self.cells > 2:
            truths = np.arange(count) == (-1 if cell is None else cell)
        elif cell is None:  # a coin
            truths = np.array([int(words[1]) >> 63 == 1])
        else:
            truths = np.array([cell == 1])
        lies = words[2:] < np.uint64(int(self.lie * GRAIN) << 24)
        out[:] = np.packbits(truths ^ lies, bitorder="little")

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that counts the ones per cell."""
        values = np.array([0.0, 1.0])
        count = self.layout.count
        return code_accumulator(values, 1, count, kernel, max_payloads, self._shares)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of an answer alone: log((1 - p)/p) per bit, log(1/(2p)) for a coin."""
        coin, bits = self._differing(adjacency)
        if coin:
            bit_cost = math.log(0.5 / self.lie)
        else:
            bit_cost = math.log((1 - self.lie) / self.lie)
        return Cost.pure(round_up(bits * bit_cost, 1e-14))

    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the cost of one secure sum over ``clients`` honest clients to one of them."""
        count = check_int(clients, "clients", 2, MOST_CLIENTS)
        return response_sum_cost(self.lie, count, *self._differing(adjacency))

    def _differing(self, adjacency: Adjacency) -> tuple[bool, int]:
        """Return whether a neighbour's bit is a coin, and how many bits differ."""
        zero_out = adjacency is Adjacency.ZERO_OUT
        if self.cells == 2:
            return zero_out, 1
        return False, 1 if zero_out else 2

    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the share of each cell from its number of ones."""
        count = check_int(clients, "clients", 1)
        return self._shares(check_sums(total, count) / count)

    def _shares(self, frequencies: FloatVector) -> FloatVector:
        shares = np.asarray(self.share(frequencies))
        if self.cells == 2:
            return np.array([1 - shares[0], shares[0]])
        return shares

    def error(self) -> Error:
        """Return the error per cell due to lies alone; an empty update decodes to two halves."""
        squared = self.lie * (1 - self.lie) / (1 - 2 * self.lie) ** 2
        return Error(squared, bias=0.5 if self.cells == 2 else 0.0)

    def frequency(self, share: float) -> float:
        """Return the probability that an answer names a cell; `share` is the inverse."""
        return self.lie + (1 - 2 * self.lie) * share

    def share(self, frequency: Any) -> Any:
        """Return unbiased shares from frequencies of answers; they may lie outside [0, 1]."""
        return (frequency - self.lie) / (1 - 2 * self.lie)
