"""Randomised response over k cells: answered one by one, or as bits that are summed behind masks.

Idea     an evaluation asks for one cell: right or wrong, a bin of a histogram, a place in a
         confusion matrix. An update of shares (0.83 right, 0.17 wrong) becomes one cell first: that
         of an example drawn at random. Seen alone, the cell is true with probability t, else drawn
         from all k. Behind masks other clients' lies hide a client's bit, so few are enough: at
         epsilon 0.5 one in 160 for 10,000 clients. Two cells need one bit, more one each.
Symbols  t = T / 2^64; u: the least probability that an untruthful answer is a given cell; p:
         probability of a lie.
Source   Warner (1965); Kairouz, Oh, Viswanath (2014), k cells; Erlingsson, Pihur, Korolova (2014),
         a bit per cell; docs/theory/samplers.md for both accounts, `privacy.aggregate` for that of
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
SHARE = 0.97  # of delta, in a node's account of a sum (`privacy.account`)
LEAST_ODDS = 1e-4  # log((1 - p)/p)
MOST_ODDS = 20.0


def check_cells(value: int) -> int:
    """Return how many cells an answer names one of: 2 to 65,536."""
    return check_int(value, "cells", 2, MOST_CELLS)


def _truth(value: float) -> float:
    return check_real(value, "truth", at_least=LEAST_TRUTH, at_most=MOST_TRUTH)


class Response(Mechanism):
    """A cell, drawn from an update of shares of cells in the unit L1 ball; decoded to the share of clients per cell."""

    __slots__ = ()
    cells: int

    ball = passed_on("shares")

    @property
    def shares(self) -> Ball:
        """The unit L1 ball: shares of cells."""
        return Ball(Norm.L1, 1.0, self.cells)

    def _ends(self, update: Parts, kernel: Kernel) -> FloatVector:
        """Return where cells end on [0, 1], each as wide as its share; values that are not finite are refused."""
        values = own_copy(update).astype(np.float64)
        size = kernel.norm([values], self.ball.norm.order)
        return np.cumsum(np.maximum(values, 0.0) / max(size, 1.0))


def _drawn(ends: FloatVector, place: int) -> int | None:
    """Return the cell that a random 64-bit word draws; None where the shares add up to less and it draws none."""
    cell = int(np.searchsorted(ends, (place >> 11) * 2.0**-53, side="right"))
    return cell if cell < ends.size else None


@final
@frozen
class RandomisedResponse(Response, SamplePriced):
    """One of ``cells`` cells, answered truthfully with probability ``truth`` and else drawn from all of them."""

    cells: int = field(converter=check_cells)
    truth: float = field(converter=_truth)
    threshold: int = field(init=False, repr=False, eq=False)  # T

    @threshold.default
    def _threshold(self) -> int:
        return math.floor(Fraction(self.truth) * WORDS)

    @classmethod
    def within(cls, epsilon: float, cells: int, adjacency: Adjacency | str) -> RandomisedResponse:
        """Return the most truthful response that costs at most ``epsilon`` under this adjacency.

        >>> round(RandomisedResponse.within(2.0, 2, "replace-one").truth, 4)
        0.7616
        """
        budget = check_real(epsilon, "epsilon")
        which = Adjacency(adjacency)
        many = check_cells(cells)
        odds = math.expm1(min(budget, 40.0))
        truth = odds / (odds + many)
        if which is Adjacency.ZERO_OUT:
            truth = min(-math.expm1(-budget), odds / (many - 1))
        truth = min(truth, MOST_TRUTH)
        while (found := cls(many, truth)).epsilon_upper(which) > budget:
            truth *= 1 - 1e-12  # room for the rounding of costs
            require(
                truth >= LEAST_TRUTH,
                "epsilon",
                epsilon,
                "large enough that an answer says something",
            )
        return found

    @property
    def layout(self) -> Layout:
        """One or two bytes that hold the cell."""
        return Layout.opaque(self.cells, 1 if self.cells <= 256 else 2)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Draw a cell by its share, and answer with it or with a random one."""
        ends = self._ends(update, kernel)
        place, honest, other = (int(word) for word in rng.draw(3).uniform64(0, 0, 3))
        cell = _drawn(ends, place)
        if cell is None or honest >= self.threshold:
            cell = other * self.cells >> 64
        out[:] = np.frombuffer(cell.to_bytes(out.size, "little"), dtype=np.uint8)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that counts the answers per cell."""
        return CellCounts(self, np.zeros(self.cells, dtype=np.int64))

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the max-divergence."""
        return Cost.pure(self.epsilon_upper(adjacency))

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the max-divergence between two cells: one sample can change a client's cell as much as all can."""
        return self.cost(Adjacency.REPLACE_ONE)

    def epsilon_upper(self, adjacency: Adjacency) -> float:
        """Return the cost of an answer: exact fractions of what is sampled, their logarithm rounded up."""
        truth = Fraction(self.threshold, WORDS)
        other = Fraction(WORDS // self.cells, WORDS)
        if adjacency is Adjacency.REPLACE_ONE:
            return round_up(math.log1p(truth / ((1 - truth) * other)), 1e-14)
        return round_up(
            max(math.log1p(truth / other - truth), math.log1p(truth / (1 - truth))), 1e-14
        )

    def error(self) -> Error:
        """Return the error where all cells have the same share; no cell at all decodes to the same share of each."""
        other = 1 / self.cells
        return Error(squared=other * (1 - other) / self.truth**2, bias=other)

    def frequency(self, share: float) -> float:
        """Return the probability that an answer names a cell of this share; `share` is the inverse."""
        return self.truth * share + (1 - self.truth) / self.cells

    def share(self, frequency: Any) -> Any:
        """Return unbiased estimates of the shares of cells named with these frequencies; they may leave [0, 1]."""
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
        shares = self.mechanism.share(self.counts / count)
        return lambda start, stop: shares[start:stop]


def _lie(value: float) -> float:
    found = check_real(value, "lie", at_least=LEAST_LIE, at_most=MOST_LIE)
    require(found * GRAIN == math.floor(found * GRAIN), "lie", value, "a multiple of 2^-40")
    return found


@final
@frozen
class SummedResponse(Response, Summable):
    """One bit per cell (one for two cells), set where the client is in it and flipped with probability ``lie``."""

    cells: int = field(converter=check_cells)
    lie: float = field(converter=_lie)

    @classmethod
    def within(
        cls, epsilon: float, delta: float, cells: int, adjacency: Adjacency, honest: int
    ) -> SummedResponse:
        """Return the response with fewest lies whose sum over ``honest`` clients costs at most ``epsilon`` at a node.

        >>> round(SummedResponse.within(0.5, 1e-5, 2, Adjacency.REPLACE_ONE, 1_000).lie, 3)
        0.068
        """
        target = Target(epsilon, delta, adjacency, trust=Trust.SECURE_AGGREGATION).limited()
        account = Account(target, "adaptive")
        many = check_int(honest, "honest", 2, MOST_CLIENTS)

        def at(odds: float) -> SummedResponse:
            return cls(cells, math.ceil(GRAIN / (1 + math.exp(odds))) / GRAIN)

        def holds(odds: float) -> bool:
            return at(odds).sum_privacy(many, adjacency).epsilon(delta * SHARE) <= target.epsilon

        require(holds(LEAST_ODDS), "epsilon", epsilon, "large enough that an answer says something")
        if holds(MOST_ODDS):
            odds = MOST_ODDS
        else:
            odds = bisect(holds, LEAST_ODDS, MOST_ODDS, relative=2e-4)
        while not account.allows(
            at(odds).sum_privacy(many, adjacency)
        ):  # an account settles on one order beforehand
            odds *= 1 - 1e-3
        return at(odds)

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
        if self.cells == 2:
            truths = np.array([cell == 1 if cell is not None else int(words[1]) >> 63 == 1])
        else:
            truths = np.arange(count) == (-1 if cell is None else cell)
        lies = words[2:] < np.uint64(int(self.lie * GRAIN) << 24)
        out[:] = np.packbits(truths ^ lies, bitorder="little")

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that counts the ones per cell."""
        return code_accumulator(
            np.array([0.0, 1.0]), 1, self.layout.count, kernel, max_payloads, self._shares
        )

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of one answer seen alone: log((1 - p)/p) per bit, or log(1/(2p)) against a coin."""
        coin, bits = self._apart(adjacency)
        if coin:
            each = math.log(0.5 / self.lie)
        else:
            each = math.log((1 - self.lie) / self.lie)
        return Cost.pure(round_up(bits * each, 1e-14))

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
        count = check_int(clients, "clients", 1)
        sums = np.asarray(total, dtype=np.float64)
        inside = bool(np.all((sums >= 0) & (sums <= count)))
        require(
            inside, "sums of bits", (float(sums.min()), float(sums.max())), f"from 0 to {count}"
        )
        return self._shares(sums / count)

    def _shares(self, frequencies: FloatVector) -> FloatVector:
        found = np.asarray(self.share(frequencies))
        if self.cells == 2:
            return np.array([1 - found[0], found[0]])
        return found

    def error(self) -> Error:
        """Return the error per cell due to lies alone; with no cell at all, two cells decode to a half each."""
        return Error(
            squared=self.lie * (1 - self.lie) / (1 - 2 * self.lie) ** 2,
            bias=0.5 if self.cells == 2 else 0.0,
        )

    def frequency(self, share: float) -> float:
        """Return the probability that an answer names a cell of this share; `share` is the inverse."""
        return self.lie + (1 - 2 * self.lie) * share

    def share(self, frequency: Any) -> Any:
        """Return unbiased estimates of the shares of cells named with these frequencies; they may leave [0, 1]."""
        return (frequency - self.lie) / (1 - 2 * self.lie)
