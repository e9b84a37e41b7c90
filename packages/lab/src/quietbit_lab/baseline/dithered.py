"""MVU as first published: dither to the levels, bound the norm, sample a row per coordinate.

Idea     between levels a coordinate moves to a neighbouring level at random, without bias; the
         dithered vector is drawn again until it lies within S of (1/2, ..., 1/2), and each level
         draws from its row.
Symbols  x = 1/2 + u/(2C); h = 1/(n-1); S: `reach`, chosen so that a try succeeds with probability
         0.39 or more.
Source   Chaudhuri et al. (2022); Guo et al. (ICML 2023), section "MVU mechanism"; the theorem of
         `dithered_cost` asks only that every grid vector ever sampled lies within S.

Rows are sampled by the interpolated kernel at the levels, which rounded to doubles are off by less
than 2^-53: that, times the Lipschitz constant, is in the slack. The number of tries is not
released, and should not be observable.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatVector
from quietbit.design.solve import check_design, closed_design, design_limits
from quietbit.design.table import Design, DesignSpec
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.sampler import SAMPLING_ERROR, Sampler
from quietbit.mechanism.accumulate import code_accumulator
from quietbit.mechanism.ball import Ball, Norm, check_ball, own_copy
from quietbit.mechanism.base import Accumulator, Body, Error, Layout, Mechanism, Parts, passed_on
from quietbit.mechanism.family import Choices, SearchedFamily
from quietbit.privacy.cost import Cost, sampling_slack_upper
from quietbit.privacy.divergence import lipschitz_upper
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency
from quietbit_lab.baseline.dithered_cost import dithered_l1_cost, dithered_l2_cost
from quietbit_lab.baseline.skellam import conditional_rounding, length_upper
from quietbit_lab.design.search import solve

__all__ = ["FAMILY", "DitheredMVU"]

MOST_LEVELS = 65


@final
@frozen
class DitheredMVU(Mechanism):
    """MVU on updates in an L1 or L2 ball; its moments are those before rejection.

    Dithering makes a vector longer by about h sqrt(d)/2, so few levels in many dimensions cost
    privacy: see ``reach``.
    """

    design: Design = field(converter=check_design)
    ball: Ball = field(converter=check_ball)
    sampler: Sampler = field(init=False, repr=False, eq=False)
    values: FloatVector = field(init=False, repr=False, eq=False)

    @sampler.default
    def _sampler(self) -> Sampler:
        # Inputs count half spacings from the centre, so they are integers.
        return Sampler.from_design(self.design, 0.5 / self._cells, 0.0, 1.0)

    @values.default
    def _values(self) -> FloatVector:
        """Return the decoded value of each symbol."""
        values = 2 * self.design.alphabet - 1
        values.setflags(write=False)
        return values

    bits = passed_on("design.spec.output_bits")
    designed = passed_on("design")

    @property
    def layout(self) -> Layout:
        """One code per coordinate."""
        return Layout.codes(self.bits, self.ball.dimension)

    @property
    def reach(self) -> float:
        """S, rounded up: grid vectors lie within it of (1/2, ..., 1/2), in the ball's norm."""
        bound = self._bound
        if self.ball.norm is Norm.L2:
            length = math.sqrt(bound)
        else:
            length = bound
        return round_up(length / self._cells, 1e-14)

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write one symbol per coordinate: dithered within bounds, sampled from its level's row."""
        inside = self.ball.clip(own_copy(update), clip)
        grid = inside.astype(np.float64) * (self._cells / (2 * clip))
        # Scaling rounds: a value on the outermost level must not land beyond it.
        np.clip(grid, -self._cells / 2, self._cells / 2, out=grid)
        block = rng.draw(grid.size)
        points = conditional_rounding(
            grid, self.ball.norm, self._bound, block, offset=self._cells % 2 == 1
        )
        kernel.sample_packed(self.sampler, points.astype(np.float64), rng, out)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator that sums the symbols' decoded values."""
        return code_accumulator(self.values, self.bits, self.ball.dimension, kernel, max_payloads)

    def error(self) -> Error:
        """Return the error at a coordinate of zero, before rejection."""
        bias, variance = self.decoded(0.0)
        return Error(variance + bias**2, bias=bias)

    def distribution(self, value: float) -> FloatVector:
        """Return all symbols' probabilities for a coordinate of this value, before rejection."""
        place = (self.ball.check_coordinate(value) / 2 + 0.5) * self._cells
        index = int(min(math.floor(place), self._cells - 1))
        part = place - index
        table = self.design.probabilities
        return np.asarray((1 - part) * table[index] + part * table[index + 1])

    def decoded(self, value: float) -> tuple[float, float]:
        """Return mean and variance of the decoded value by enumeration, before rejection."""
        law = self.distribution(value)
        return float(law @ self.values), float(law @ np.square(self.values - law @ self.values))

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return a Rényi cost for an L2 ball, a pure one for an L1 ball (see `dithered_cost`)."""
        size = self.ball.dimension
        slack = sampling_slack_upper(size, float(self.design.probabilities.min()), SAMPLING_ERROR)
        slack += size * lipschitz_upper(self.design) * 2.0**-52
        if self.ball.norm is Norm.L2:
            curve = dithered_l2_cost
        else:
            curve = dithered_l1_cost
        return curve(self.design, self.reach, adjacency).with_slack(slack)

    @property
    def _cells(self) -> int:
        return self.design.spec.input_levels - 1

    @property
    def _bound(self) -> float:
        """The bound of conditional rounding: on a sum of squares or of magnitudes, in spacings."""
        size = self.ball.dimension
        half = self._cells / 2
        bound = length_upper(
            self.ball.norm, half, size, offset=self._cells % 2 == 1
        )  # the centre is between levels
        return min(bound, size * half**self.ball.norm.order)


def _levels(ball: Ball, choices: Choices) -> int:
    """Return an odd number of levels, large enough for dithering to cost little."""
    half = math.ceil(math.sqrt(ball.dimension) / 2)
    return choices.levels or min(2 * half + 1, MOST_LEVELS)


def _build(ball: Ball, loss: float, choices: Choices) -> DitheredMVU:
    return DitheredMVU(
        closed_design(DesignSpec(_levels(ball, choices), choices.bits or 1, loss)), ball
    )


def _limits(ball: Ball, choices: Choices) -> tuple[float, float]:
    return design_limits(_levels(ball, choices), choices.bits or 1)


def _given(ball: Ball, strength: float, choices: Choices) -> DitheredMVU:
    """Return the mechanism of a design of this epsilon, with enough levels for dithering."""
    return DitheredMVU(
        solve(DesignSpec(choices.levels or MOST_LEVELS, choices.bits or 1, strength)), ball
    )


FAMILY = SearchedFamily(
    "mvu",
    ("bits", "levels"),
    "design_epsilon",
    _build,
    _limits,
    direct=_given,
    baseline=True,
)
