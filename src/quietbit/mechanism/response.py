"""Randomised response over k cells, which the server sees.

Idea     an evaluation asks for one cell: right or wrong, a bin of a histogram, a cell of a
         confusion matrix. An update of shares (0.83 right, 0.17 wrong) is first reduced to the cell
         of an example drawn at random. The answer is that cell with probability t, else one
         drawn from all k.
Symbols  t = T / 2^64; u: the least probability that an untruthful answer is a given cell.
Source   Warner (1965); Kairouz, Oh, Viswanath (2014), k cells; docs/theory/numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, final

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from quietbit.errors import check_int, check_real, refuse_payload, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
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
    passed_on,
)
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = ["MOST_CELLS", "CellCounts", "RandomisedResponse", "check_cells"]

WORDS = 2**64
MOST_CELLS = 2**16
LEAST_TRUTH = 1e-9
MOST_TRUTH = 1 - 1e-12
TOO_SMALL = "large enough that an answer depends on the cell"


def check_cells(value: int) -> int:
    """Return the number of cells of an answer: 2 to 65,536."""
    return check_int(value, "cells", 2, MOST_CELLS)


def _truth(value: float) -> float:
    return check_real(value, "truth", at_least=LEAST_TRUTH, at_most=MOST_TRUTH)


@final
@frozen
class RandomisedResponse(Mechanism):
    """One of ``cells`` cells: the client's with probability ``truth``, else drawn from all.

    An update holds a client's shares of the cells, in the unit L1 ball. A mean is decoded to the
    share of clients per cell.
    """

    cells: int = field(converter=check_cells)
    truth: float = field(converter=_truth)
    threshold: int = field(init=False, repr=False, eq=False)  # T

    ball = passed_on("shares")

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
        require(truth >= LEAST_TRUTH, "epsilon", epsilon, TOO_SMALL)
        response = cls(count, min(truth, MOST_TRUTH))
        while response.epsilon_upper(neighbours) > budget:
            response = cls(count, response.truth * (1 - 1e-12))  # room for the rounding of costs
        return response

    @property
    def shares(self) -> Ball:
        """The unit L1 ball, which holds all shares of cells."""
        return Ball(Norm.L1, self.cells)

    @property
    def layout(self) -> Layout:
        """One or two bytes that hold the cell."""
        return Layout.opaque(self.cells, 1 if self.cells <= 256 else 2)

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Draw a cell by its share, and answer with it or with a random one."""
        shares = own_copy(update).astype(np.float64)
        norm = kernel.norm([shares], self.ball.norm.order)
        ends = np.cumsum(np.maximum(shares, 0.0) / max(norm, 1.0))
        first, second, third = (int(word) for word in rng.draw(3).uniform64(0, 0, 3))
        cell = int(np.searchsorted(ends, (first >> 11) * 2.0**-53, side="right"))
        # Shares that are few may leave the word beyond the last end: then no cell is drawn.
        if cell == self.cells or second >= self.threshold:
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
