"""Randomised response over k cells: a client answers truthfully with a set probability, and else with a random cell.

Idea     an evaluation asks for one cell: right or wrong, a bin of a histogram, a place in a confusion matrix. The
         client answers its cell with probability t, and else a cell drawn from all k, its own included. An update of
         shares (0.83 right, 0.17 wrong) becomes one cell first: that of an example drawn at random.
Symbols  t = T / 2^64; u_j = probability that an untruthful answer is cell j: 1/k, up to 2^-64.
Source   Warner (1965); Kairouz, Oh, Viswanath (2014) for k cells.

Account. Given its cell i an answer is j with probability t [i = j] + (1 - t) u_j, and with (1 - t) u_j where there is
none. So the max-divergence between any two answers is log(1 + t / ((1 - t) u)), u the smallest u_j, and between an
answer and none (zero-out: the zero vector has no cell) the larger of log(1 - t + t/u) and -log(1 - t). Vectors between
the corners are mixtures of these rows, with weights that rounding may change; mixtures are no further apart. T, u and k
are integers, and the logarithm of their fraction is rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import final

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, refuse_payload, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.ball import Ball, Norm, own_copy
from quietbit.mechanism.base import Accumulator, Body, Error, Layout, Mechanism, Parts, Reader
from quietbit.privacy.conversion import round_up
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency

__all__ = ["MOST_CELLS", "RandomisedResponse", "cell_ends", "check_cells", "drawn_cell"]

WORDS = 2**64
MOST_CELLS = 2**16
LEAST_TRUTH, MOST_TRUTH = 1e-9, 1 - 1e-12


def check_cells(value: int) -> int:
    """Return how many cells an answer names one of: 2 to 65,536."""
    return check_int(value, "cells", 2, MOST_CELLS)


def _truth(value: float) -> float:
    return check_real(value, "truth", at_least=LEAST_TRUTH, at_most=MOST_TRUTH)


@final
@frozen
class RandomisedResponse(Mechanism):
    """One of ``cells`` cells, answered truthfully with probability ``truth`` and else drawn from all of them.

    Updates are shares of cells, in the unit ball of the L1 norm; the decoded mean is the share of clients per cell.
    """

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
        budget, which = check_real(epsilon, "epsilon"), Adjacency(adjacency)
        many, odds = check_cells(cells), math.expm1(min(budget, 40.0))
        truth = odds / (odds + many)
        if which is Adjacency.ZERO_OUT:
            truth = min(-math.expm1(-budget), odds / (many - 1))
        truth = min(truth, MOST_TRUTH)
        while (found := cls(many, truth)).epsilon_upper(which) > budget:
            truth *= 1 - 1e-12  # room for the rounding of costs
            require(truth >= LEAST_TRUTH, "epsilon", epsilon, "large enough that an answer says something")
        return found

    @property
    def domain(self) -> Ball:
        """The unit L1 ball: shares of cells."""
        return Ball(Norm.L1, 1.0, self.cells)

    @property
    def layout(self) -> Layout:
        """One or two bytes that hold the cell."""
        return Layout.opaque(self.cells, 1 if self.cells <= 256 else 2)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Draw a cell by its share, and answer with it or with a random one."""
        ends = cell_ends(update, kernel, self.domain)
        place, honest, other = (int(word) for word in rng.draw(3).uniform64(0, 0, 3))
        cell = drawn_cell(ends, place)
        if cell is None or honest >= self.threshold:
            cell = other * self.cells >> 64
        out[:] = np.frombuffer(cell.to_bytes(out.size, "little"), dtype=np.uint8)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that counts the answers per cell."""
        return _Tally(self, np.zeros(self.cells, dtype=np.int64))

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the max-divergence."""
        return Cost.pure(self.epsilon_upper(adjacency))

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the max-divergence between two cells: one sample can change a client's cell as much as all can."""
        return self.cost(Adjacency.REPLACE_ONE)

    def epsilon_upper(self, adjacency: Adjacency) -> float:
        """Return the cost of an answer: exact fractions of what is sampled, their logarithm rounded up."""
        truth, other = Fraction(self.threshold, WORDS), Fraction(WORDS // self.cells, WORDS)
        if adjacency is Adjacency.REPLACE_ONE:
            return round_up(math.log1p(truth / ((1 - truth) * other)), 1e-14)
        return round_up(max(math.log1p(truth / other - truth), math.log1p(truth / (1 - truth))), 1e-14)

    def error(self) -> Error:
        """Return the error where all cells have the same share; no cell at all decodes to the same share of each."""
        other = 1 / self.cells
        return Error(squared=other * (1 - other) / self.truth**2, bias=other)

    def frequency(self, share: float) -> float:
        """Return the probability that an answer names a cell of this share; `share` is the inverse."""
        return self.truth * share + (1 - self.truth) / self.cells

    def share(self, frequency: float) -> float:
        """Return an unbiased estimate of the share of a cell named with this frequency; it may leave [0, 1]."""
        return (frequency - (1 - self.truth) / self.cells) / self.truth


def cell_ends(update: Parts, kernel: Kernel, ball: Ball) -> FloatVector:
    """Return where cells end on [0, 1], each as wide as its share; values that are not finite are refused."""
    values = own_copy(update).astype(np.float64)
    size = kernel.norm([values], ball.norm.order)
    return np.cumsum(np.maximum(values, 0.0) / max(size, 1.0))


def drawn_cell(ends: FloatVector, place: int) -> int | None:
    """Return the cell that a random 64-bit word draws; None where the shares add up to less and it draws none."""
    cell = int(np.searchsorted(ends, (place >> 11) * 2.0**-53, side="right"))
    return cell if cell < ends.size else None


@final
@define(eq=False)
class _Tally(Accumulator):
    """Counts of the answers per cell."""

    mechanism: RandomisedResponse
    counts: NDArray[np.int64]

    def check(self, body: Body) -> None:
        """Refuse a cell that does not exist."""
        cell = int.from_bytes(body.tobytes(), "little")
        if cell >= self.mechanism.cells:
            refuse_payload("cell of the answer", f"below {self.mechanism.cells}", cell)

    def add(self, bodies: Sequence[Body]) -> None:
        for body in bodies:
            self.counts[int.from_bytes(body.tobytes(), "little")] += 1

    def reader(self, count: int) -> Reader:
        truth, cells = self.mechanism.truth, self.mechanism.cells
        shares = np.asarray((self.counts / count - (1 - truth) / cells) / truth)
        return lambda start, stop: shares[start:stop]
