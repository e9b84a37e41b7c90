"""The interpolated MVU mechanism (I-MVU): interpolated log-probabilities, a symbol per coordinate.

Idea     eta(x) is linear between the design's levels; every coordinate draws j ~ softmax(eta(x))
         independently. Unclamped (the paper's text) x ranges over [(1-beta)/2, (1+beta)/2]; clamped
         (the published code) x is cut to [0, 1]. Each range has its own constants, and the
         certificate covers the doubles that the sampler uses.
Symbols  x = 1/2 + beta u/2, u in clips; symbol j decodes to (2 a_j - 1)/beta clips.
Source   Guo et al. (ICML 2023), section "Interpolated MVU mechanism", Theorems 1 and 2.

Unbiased at zero. E[a | x] has slope k = sum_j a_j P'(j|x) at x = 1/2; the alphabet 1/2 + (a -
E[a|1/2])/k is unbiased to first order there. For one bit and two levels it is 1/2 -+ 1/epsilon,
whose variance meets the Cramer-Rao bound.

Slack. |u_k| > 1/m holds for fewer than m^p coordinates of a vector in the L_p ball, so at most m^p
of them have the smallest probability of the full range, and the rest that of the inner range.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.solve import check_design
from quietbit.design.table import Design
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.sampler import DIGITS, SAMPLING_ERROR, Sampler
from quietbit.mechanism.abilities import (
    Summable,
)
from quietbit.mechanism.accumulate import code_accumulator
from quietbit.mechanism.ball import Ball, Norm, check_ball
from quietbit.mechanism.base import (
    LEFT_OUT,
    Accumulator,
    Body,
    Error,
    Layout,
    Mechanism,
    Parts,
    check_sums,
    passed_on,
)
from quietbit.mechanism.rotation import (
    Rotation,
    check_rotated,
    response_lower,
)
from quietbit.privacy.aggregate import aggregate_cost
from quietbit.privacy.cost import Cost, sample_share, sampling_slack_upper
from quietbit.privacy.divergence import smallest_probability_lower
from quietbit.privacy.interpolated import (
    dominated_l2_cost,
    interpolated_l1_cost,
    interpolated_l2_cost,
)
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = ["MAX_BETA", "UNBIASED", "Decoder", "InterpolatedMVU"]

MAX_BETA = 2.0**16
CUTS = tuple(2**k for k in range(1, 21))
ROUNDING = 2.0**-50  # more than the sampler's range can move when its ends are rounded to doubles
FAR = 7.0  # deviations; a rotated coordinate lies beyond with probability 1e-10 at most
POINTS = 64
Decoder: TypeAlias = Literal["alphabet", "unbiased-at-zero"]
UNBIASED: Decoder = "unbiased-at-zero"


def _decoder(value: Decoder) -> Decoder:
    require(value in get_args(Decoder), "decoder", value, "one of " + ", ".join(get_args(Decoder)))
    return value


def _beta(value: float) -> float:
    return check_real(value, "beta", at_most=MAX_BETA)


def _clamp(value: bool) -> bool:
    require(isinstance(value, bool), "clamp", value, "True or False")
    return value


@final
@frozen
class InterpolatedMVU(Mechanism, Summable):
    """I-MVU of a design on updates in an L1 or L2 ball.

    ``beta``, above 0 and up to 65,536, spreads small coordinates over the design's range; ``clamp``
    clamps inputs to [0, 1]. ``decoder`` chooses the values of symbols on the server and does not
    affect privacy: the design's alphabet rescaled to be unbiased to first order at a coordinate of
    zero, or the alphabet itself, as in the paper, which stretches small coordinates by the error's
    ``gain`` (1.04 to 9 in its experiments). ``rotation`` first mixes the coordinates of updates in
    an L2 ball; None, as in the paper, leaves them unchanged.
    """

    design: Design = field(converter=check_design)
    ball: Ball = field(converter=check_ball)
    beta: float = field(default=1.0, converter=_beta)
    clamp: bool = field(default=False, converter=_clamp)
    decoder: Decoder = field(default=UNBIASED, converter=_decoder)
    rotation: Rotation | None = field(default=None, metadata=LEFT_OUT)
    sampler: Sampler = field(init=False, repr=False, eq=False)
    values: FloatVector = field(init=False, repr=False, eq=False)

    @sampler.default
    def _sampler(self) -> Sampler:
        return Sampler.from_design(self.design, self.beta / 2, *self.input_range)

    @values.default
    def _values(self) -> FloatVector:
        """Return the decoded value of each symbol."""
        if self.decoder == UNBIASED:
            alphabet = _unbiased_at_centre(self.design)
        else:
            alphabet = self.design.alphabet
        values = (2 * alphabet - 1) * (1 / self.beta)
        values.setflags(write=False)
        return values

    bits = passed_on("design.spec.output_bits")
    designed = passed_on("design")

    @property
    def input_range(self) -> tuple[float, float]:
        """The smallest and the largest input x."""
        low = (1 - self.beta) / 2
        high = (1 + self.beta) / 2
        if self.clamp:
            return max(low, 0.0), min(high, 1.0)
        return low, high

    @property
    def certified_range(self) -> tuple[float, float]:
        """The range of inputs, widened by more than any rounding in the sampler."""
        low, high = self.input_range
        margin = ROUNDING * (1 + self.beta)
        return low - margin, high + margin

    @property
    def reach(self) -> float:
        """The largest ||x - 1/2|| in the ball's norm, beta / 2, rounded up as for any clip."""
        return math.nextafter(self.sampler.scale, math.inf)

    def distance(self, adjacency: Adjacency) -> float:
        """Return the largest distance of two neighbours' inputs, in the ball or the clamped box."""
        _, high = self.certified_range
        corner = math.pow(self.ball.dimension, 1 / self.ball.norm.order) * (high - 0.5)
        return adjacency.radii * min(self.reach, corner * (1 + 1e-15))

    @property
    def layout(self) -> Layout:
        """One code per coordinate."""
        return Layout.codes(self.bits, self.ball.dimension)

    def __attrs_post_init__(self) -> None:
        """Refuse a rotation in blocks longer than the dimension, or of an L1 ball."""
        if self.rotation is not None:
            largest = check_rotated(self.ball).dimension
            check_int(self.rotation.block, "block of the rotation", 1, largest)

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Clip, rotate, sample and pack one symbol per coordinate in one pass of the kernel."""
        order = self.ball.norm.order
        rotation = self.rotation
        if rotation is not None and not rotation.exact:
            seed = rotation.seed
            kernel.sample_rotated(self.sampler, update, seed, rotation.block, clip, rng, out)
            return
        if rotation is not None:
            update = [rotation.exactly(update, clip, kernel)]
        kernel.sample_clipped(self.sampler, update, order, clip, rng, out)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator of the symbols' values, rotated back once per mean."""
        size = self.ball.dimension
        back = None if self.rotation is None else self.rotation.back
        return code_accumulator(self.values, self.bits, size, kernel, max_payloads, back)

    @property
    def _block(self) -> int | None:
        """The length of the blocks in which updates are rotated; None without a rotation."""
        if self.rotation is None:
            return None
        return self.rotation.block

    def error(self) -> Error:
        """Return the largest variance of a coordinate, and what clamped ones miss, by enumeration.

        The squared biases of an update of length 1 add up to at most its missing part, 1 -
        response.
        """
        gain = self.gain
        (bias,), _ = self._moments(np.zeros(1))
        largest = 1.0
        if self._block is not None:
            largest = min(1.0, FAR / math.sqrt(self._block))
        _, variances = self._moments(np.linspace(0.0, largest, POINTS))
        noise = float(variances.max())
        response = self.response(self._block)
        missed = (1 - response) / self.ball.dimension
        return Error((noise + bias**2) / gain**2 + missed, gain, float(bias), response=response)

    def response(self, block: int | None) -> float:
        """Return a lower bound on the decoded share of an update: codes saturate or are clamped."""
        gain = self.gain
        (middle,), _ = self._moments(np.zeros(1))

        def missing(values: FloatVector) -> FloatVector:
            means, _ = self._moments(values)
            return np.asarray(1.0 - (means - middle) / (gain * values))

        return min(1.0, response_lower(missing, block))

    @property
    def gain(self) -> float:
        """The slope of the decoded mean at a coordinate of zero."""
        step = 2.0**-20
        (low, high), _ = self._moments(np.array([-step, step]))
        return float(high - low) / (2 * step)

    def _moments(self, values: FloatVector) -> tuple[FloatVector, FloatVector]:
        """Return mean and variance of the decoded values of coordinates, rotated or not."""
        laws = _laws(self.design, np.clip(self.sampler.scale * values, *self.sampler.t_range))
        means = laws @ self.values
        return means, np.sum(laws * np.square(self.values - means[:, None]), axis=1)

    def distribution(self, value: float) -> FloatVector:
        """Return the probabilities of the symbols of a coordinate, rotated or not."""
        coordinate = self.ball.check_coordinate(value)
        offset = float(np.clip(self.sampler.scale * coordinate, *self.sampler.t_range))
        return np.asarray(_laws(self.design, np.array([offset]))[0])

    def decoded(self, value: float) -> tuple[float, float]:
        """Return mean and variance by enumeration; of rotated updates, to first order."""
        if self.rotation is None:
            (mean,), (variance,) = self._moments(np.array([value]))
            return float(mean), float(variance)
        _, (variance,) = self._moments(np.zeros(1))
        return self.gain * value, float(variance)

    @property
    def moment_error(self) -> float:
        """A bound on the error of a rotated update's moments: three times its missing share."""
        if self.rotation is None:
            return 0.0
        return min(0.5, 3 * (1 - self.response(self._block)))

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of one release, sampling slack included.

        L1 ball: pure (Theorem 1, with the constant of the path through the centre, or the zero-out
        one), and at finite orders no more than the L2 account. L2 ball: with two levels a
        dominating Gaussian pair (sharp where inputs are clamped) and Theorem 2, with more levels a
        certified kappa_alpha.
        """
        return self._exact_cost(adjacency).with_slack(self._slack)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the cost to one of ``samples`` samples, which moves x by a share of the reach."""
        rotation = self.rotation
        if rotation is not None:
            require(rotation.exact, "rotation", rotation, "exact where samples are protected")
        moved = round_up(self.reach * sample_share(adjacency, samples), 1e-14)
        return self._exact_cost(Adjacency.REPLACE_ONE, moved).with_slack(self._slack)

    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the cost of one secure sum of ``clients`` releases to one of the clients.

        ``clients``, from 2 to 100,000, counts honest clients that answer and do not collude with
        the server. Designs of more than one bit are refused.
        """
        low, high = self.certified_range
        distance = self.distance(adjacency)
        alone = self._exact_cost(adjacency)
        cost = aggregate_cost(self.design, distance, clients, adjacency, low, high, alone=alone)
        return cost.with_slack(self._slack)

    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the mean of the decoded updates from sums of codes of one bit."""
        count = check_int(clients, "clients", 1)
        require(self.bits == 1, "bits", self.bits, "1 for sums of codes")
        zero, one = self.values
        mean = np.asarray(float(zero) + float(one - zero) * (check_sums(total, count) / count))
        if self.rotation is None:
            return mean
        return self.rotation.back(mean)

    @property
    def _slack(self) -> float:
        """A bound on the log-ratio of the sampled law of a release to the certified one."""
        low, high = self.certified_range
        size = self.ball.dimension
        least = smallest_probability_lower(self.design, low, high)
        best = sampling_slack_upper(size, least, SAMPLING_ERROR)
        for cut in CUTS:
            outer_count = cut**self.ball.norm.order
            if outer_count >= size:
                break
            inner = self.reach / cut + ROUNDING
            inner_low = max(low, 0.5 - inner)
            inner_high = min(high, 0.5 + inner)
            inner_least = smallest_probability_lower(self.design, inner_low, inner_high)
            outer_slack = sampling_slack_upper(outer_count, least, SAMPLING_ERROR)
            inner_slack = sampling_slack_upper(size - outer_count, inner_least, SAMPLING_ERROR)
            best = min(best, outer_slack + inner_slack)
        return best

    def _exact_cost(self, adjacency: Adjacency, moved: float = math.inf) -> Cost:
        """Return the cost of an exact sampler's release, between inputs at most ``moved`` apart.

        ``moved`` is finite for one sample, and infinite for a client.
        """
        by_sample = moved < math.inf
        low, high = self.certified_range
        distance = min(self.distance(adjacency), moved)
        if self.ball.norm is Norm.L1:
            return interpolated_l1_cost(
                self.design, distance, adjacency, low, high, in_ball=not by_sample
            )
        if self.design.spec.input_levels > 2:
            return interpolated_l2_cost(self.design, distance, adjacency, low, high)
        single = (high - low) / 2 * adjacency.radii
        if by_sample:
            single = distance
        return dominated_l2_cost(self.design, distance, single, low, high, together=by_sample)


def _laws(design: Design, offsets: FloatVector) -> FloatMatrix:
    """Return softmax(eta) at every x = 1/2 + offset, one row each; ends continue outside [0, 1]."""
    cells = design.spec.input_levels - 1
    place = (0.5 + offsets) * cells
    index = np.clip(np.floor(place), 0, cells - 1).astype(np.int64)
    eta = np.log(design.probabilities)
    lines = eta[index] + (eta[index + 1] - eta[index]) * (place - index)[:, None]
    weights = np.exp(lines - lines.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _unbiased_at_centre(design: Design) -> FloatVector:
    """Shift and stretch the alphabet so that its mean is x to first order at x = 1/2.

    In decimals, rounded once: nodes that replay rounds decode with the values of every machine.
    """
    cells = design.spec.input_levels - 1
    with decimal.localcontext(prec=DIGITS):
        rows = {
            level: np.array([Decimal(value).ln() for value in design.probabilities[level].tolist()])
            for level in range(max(0, cells // 2 - 1), min(cells, cells // 2 + 1) + 1)
        }
        index = min(cells // 2, cells - 1)
        share = Decimal(cells) / 2 - index
        lines = rows[index] + (rows[index + 1] - rows[index]) * share
        weights = np.array([line.exp() for line in lines])
        law = weights / weights.sum()
        # At a level the two sides have different slopes: take their average.
        sides = {index, (cells - 1) // 2}
        theta = sum((rows[i + 1] - rows[i]) * cells for i in sides) / len(sides)
        alphabet = np.array([Decimal(value) for value in design.alphabet.tolist()])
        mean = law @ alphabet
        slope = law @ ((theta - law @ theta) * (alphabet - mean))
        rule = "positive for an unbiased decoder"
        require(slope > 0, "slope of the mean at x = 1/2", float(slope), rule)
        values = Decimal("0.5") + (alphabet - mean) / slope
    return np.asarray(values, dtype=np.float64)
