"""The interpolated MVU mechanism (I-MVU): interpolated log-probabilities, one symbol per coordinate.

Idea     eta(x) is linear between the design's levels; every coordinate draws j ~ softmax(eta(x))
         independently. Unclamped (the paper's text) x ranges over [(1-beta)/2, (1+beta)/2]; clamped
         (the published code) x is cut to [0, 1]. Each range has its own constants, and the
         certificate covers the doubles that the sampler uses.
Symbols  x = 1/2 + beta u/(2C), C = radius; symbol j decodes to (C/beta)(2 a_j - 1).
Source   Guo et al. (ICML 2023), section "Interpolated MVU mechanism", Theorems 1 and 2.

Unbiased at zero. E[a | x] has slope k = sum_j a_j P'(j|x) at x = 1/2; the alphabet 1/2 + (a -
E[a|1/2])/k is unbiased to first order there. For one bit and two levels it is 1/2 -+ 1/epsilon,
whose variance meets the Cramer-Rao bound. Slack. |u_k| > C/m holds for fewer than m^p coordinates
of a vector in the L_p ball, so at most m^p of them see the whole range's smallest probability and
the rest that of the inner range.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, cast, final, get_args

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.solve import check_design, closed_design, design_limits, solve
from quietbit.design.table import Design, DesignSpec
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.sampler import SAMPLING_ERROR, Sampler
from quietbit.mechanism.abilities import (
    Designed,
    Rotating,
    RoughMoments,
    SamplePriced,
    Shortening,
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
    passed_on,
)
from quietbit.mechanism.family import Choices, SearchedFamily
from quietbit.mechanism.rotation import Rotation, check_rotated, response_lower, rotation_for
from quietbit.privacy.aggregate import aggregate_cost, codes_deviation_upper
from quietbit.privacy.cost import Cost, sample_share, sampling_slack_upper
from quietbit.privacy.divergence import smallest_probability_lower
from quietbit.privacy.interpolated import (
    dominated_l2_cost,
    interpolated_l1_cost,
    interpolated_l2_cost,
)
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = ["FAMILIES", "MAX_BETA", "UNBIASED", "Decoder", "InterpolatedMVU"]

MIN_BETA = 1e-6
MAX_BETA = 2.0**16
CUTS = tuple(2**k for k in range(1, 21))
ROUNDING = 2.0**-50  # more than the sampler's range can move when its ends are rounded to doubles
EVEN = 1e-9
FAR = 7.0  # deviations: at most one in 10^10 sign choices puts a rotated coordinate beyond
POINTS = 64
LEAST_SHARE = 0.1
MOST_SHARE = 0.3
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
class InterpolatedMVU(
    Mechanism, SamplePriced, Summable, Designed, Rotating, RoughMoments, Shortening
):
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
        return Sampler.from_design(
            self.design, self.beta / (2 * self.ball.radius), *self.input_range
        )

    @values.default
    def _values(self) -> FloatVector:
        """Return the decoded value of each symbol."""
        if self.decoder == UNBIASED:
            alphabet = _unbiased_at_centre(self.design)
        else:
            alphabet = self.design.alphabet
        values = (2 * alphabet - 1) * (self.ball.radius / self.beta)
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
            return (max(low, 0.0), min(high, 1.0))
        return (low, high)

    @property
    def certified_range(self) -> tuple[float, float]:
        """The range of inputs, widened by more than any rounding in the sampler."""
        (low, high), margin = self.input_range, ROUNDING * (1 + self.beta)
        return low - margin, high + margin

    @property
    def reach(self) -> float:
        """The largest ||x - 1/2|| in the ball's norm, rounded up: about beta / 2."""
        return math.nextafter(self.sampler.scale * self.ball.radius, math.inf)

    def distance(self, adjacency: Adjacency) -> float:
        """Return the largest distance of two neighbours' inputs: reaches, or corners of the box that a clamp leaves."""
        corner = math.pow(self.ball.dimension, 1 / self.ball.norm.order) * (
            self.certified_range[1] - 0.5
        )
        return adjacency.radii * min(self.reach, corner * (1 + 1e-15))

    @property
    def layout(self) -> Layout:
        """One code per coordinate."""
        return Layout.codes(self.bits, self.ball.dimension)

    def __attrs_post_init__(self) -> None:
        """Refuse a rotation of another dimension, or of an L1 ball."""
        if self.rotation is not None:
            check_int(
                self.rotation.block, "block of the rotation", 1, check_rotated(self.ball).dimension
            )

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Clip, rotate, sample and pack one symbol per coordinate in one pass of the kernel."""
        order = self.ball.norm.order
        radius = self.ball.radius
        turn = self.rotation
        if turn is None:
            kernel.sample_clipped(self.sampler, update, order, radius, rng, out)
        elif turn.exact:
            kernel.sample_clipped(
                self.sampler, [turn.exactly(update, self.ball, kernel)], order, radius, rng, out
            )
        else:
            kernel.sample_rotated(self.sampler, update, turn.seed, turn.block, radius, rng, out)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator of the symbols' values, rotated back once per mean."""
        back = None if self.rotation is None else self.rotation.back
        return code_accumulator(
            self.values, self.bits, self.ball.dimension, kernel, max_payloads, back
        )

    @property
    def prepares(self) -> str:
        """The word for a rotation, where updates are rotated."""
        return "" if self.rotation is None else "a rotation"

    def error(self) -> Error:
        """Return the largest variance over the coordinates of updates, and the loss of clamped ones, by enumeration.

        The squared biases of an update of length C add up to at most its missing part, C^2 (1 -
        response).
        """
        block = None if self.rotation is None else self.rotation.block
        radius = self.ball.radius
        (bias,), gain = self._moments(np.zeros(1))[0], self.gain
        if block is None:
            largest = radius
        else:
            largest = min(radius, FAR * radius / math.sqrt(block))
        noise = float(self._moments(np.linspace(0.0, largest, POINTS))[1].max())
        response = self.response(block)
        missed = (1 - response) * radius**2 / self.ball.dimension
        return Error((noise + bias**2) / gain**2 + missed, gain, float(bias), response=response)

    def response(self, block: int | None) -> float:
        """Return a lower bound on the decoded share of an update: codes saturate, and a clamp cuts."""
        (middle,), gain = self._moments(np.zeros(1))[0], self.gain

        def missing(values: FloatVector) -> FloatVector:
            return np.asarray(1.0 - (self._moments(values)[0] - middle) / (gain * values))

        return min(1.0, response_lower(missing, self.ball.radius, block))

    @property
    def gain(self) -> float:
        """The slope of the decoded mean at a coordinate of zero."""
        step = self.ball.radius * 2.0**-20
        low, high = self._moments(np.array([-step, step]))[0].tolist()
        return float(high - low) / (2 * step)

    def _moments(self, values: FloatVector) -> tuple[FloatVector, FloatVector]:
        """Return mean and variance of the decoded values of coordinates, rotated or not."""
        laws = _laws(self.design, np.clip(self.sampler.scale * values, *self.sampler.t_range))
        means = laws @ self.values
        return means, np.sum(laws * np.square(self.values - means[:, None]), axis=1)

    def distribution(self, value: float) -> FloatVector:
        """Return the probabilities of all symbols for a coordinate, rotated or not, of this value."""
        offset = float(
            np.clip(self.sampler.scale * self.ball.check_coordinate(value), *self.sampler.t_range)
        )
        return np.asarray(_laws(self.design, np.array([offset]))[0])

    def decoded(self, value: float) -> tuple[float, float]:
        """Return mean and variance by enumeration; for rotated updates, to first order at small coordinates."""
        (mean,), (variance,) = self._moments(np.array([value if self.rotation is None else 0.0]))
        return float(mean) if self.rotation is None else self.gain * value, float(variance)

    @property
    def moment_error(self) -> float:
        """A bound on the error of a rotated update's moments: three times the missing share of the mean."""
        if self.rotation is None:
            return 0.0
        return min(0.5, 3 * (1 - self.response(self.rotation.block)))

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of one release, sampling slack included.

        L1 ball: pure (Theorem 1, with the constant of the path through the centre, or the zero-out
        one), and at finite orders no more than the L2 account. L2 ball: with two levels a
        dominating Gaussian pair (sharp where inputs are clamped) beside Theorem 2, with more a
        certified kappa_alpha.
        """
        return self._exact_cost(adjacency).with_slack(self._slack)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the cost to one of ``samples`` samples, which moves x by its share of the reach from any point."""
        if self.rotation is not None:
            require(
                self.rotation.exact, "rotation", self.rotation, "exact where samples are protected"
            )
        moved = round_up(self.reach * sample_share(adjacency, samples), 1e-14)
        return self._exact_cost(Adjacency.REPLACE_ONE, moved).with_slack(self._slack)

    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the cost of one secure sum of ``clients`` releases to one of the clients.

        ``clients``, from 2 to 100,000, counts honest clients that answer and do not collude with
        the server. Designs of more bits whose codes are not sums of equal bits (`binomial_design`)
        are refused.
        """
        distance, (low, high) = self.distance(adjacency), self.certified_range
        alone = self._exact_cost(adjacency)
        slack = self._slack
        if self.bits > 1:
            slack = round_up(
                slack + self.ball.dimension * codes_deviation_upper(self.design, low, high)
            )
        return aggregate_cost(
            self.design, distance, clients, adjacency, low, high, alone=alone
        ).with_slack(slack)

    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the mean of the decoded updates from sums of codes; values that are not evenly spaced are refused."""
        count = check_int(clients, "clients", 1)
        values = self.values
        even = float(np.ptp(np.diff(values))) <= EVEN * float(np.ptp(values))
        require(even, "alphabet", values.tolist(), "evenly spaced for sums of codes")
        step = float(values[-1] - values[0]) / (len(values) - 1)
        sums = np.asarray(total, dtype=np.float64)
        largest = count * (len(values) - 1)
        inside = bool(np.all((sums >= 0) & (sums <= largest)))
        require(
            inside, "sums of codes", (float(sums.min()), float(sums.max())), f"from 0 to {largest}"
        )
        mean = np.asarray(float(values[0]) + step * (sums / count))
        if self.rotation is None:
            return mean
        return self.rotation.back(mean)

    @property
    def _slack(self) -> float:
        """One release's sampling slack: a bound on the log-ratio of the sampled law to the certified one."""
        (low, high), size = self.certified_range, self.ball.dimension
        worst = smallest_probability_lower(self.design, low, high)
        best = sampling_slack_upper(size, worst, SAMPLING_ERROR)
        for cut in CUTS:
            many = cut**self.ball.norm.order
            if many >= size:
                break
            inner = self.reach / cut + ROUNDING
            least = smallest_probability_lower(
                self.design, max(low, 0.5 - inner), min(high, 0.5 + inner)
            )
            few = sampling_slack_upper(many, worst, SAMPLING_ERROR)
            best = min(best, few + sampling_slack_upper(size - many, least, SAMPLING_ERROR))
        return best

    def _exact_cost(self, adjacency: Adjacency, moved: float = math.inf) -> Cost:
        """Return the cost of one release of an exact sampler, between inputs at most ``moved`` apart."""
        one, (low, high) = moved < math.inf, self.certified_range
        distance = min(self.distance(adjacency), moved)
        if self.ball.norm is Norm.L1:
            return interpolated_l1_cost(
                self.design, distance, adjacency, low, high, in_ball=not one
            )
        if self.design.spec.input_levels == 2:
            if one:
                single = distance
            else:
                single = (high - low) / 2 * adjacency.radii
            return dominated_l2_cost(self.design, distance, single, low, high, together=one)
        return interpolated_l2_cost(self.design, distance, adjacency, low, high)


def _laws(design: Design, offsets: FloatVector) -> FloatMatrix:
    """Return softmax(eta) at every x = 1/2 + offset, one row each; the end segments continue outside [0, 1]."""
    cells = design.spec.input_levels - 1
    place = (0.5 + offsets) * cells
    index = np.clip(np.floor(place), 0, cells - 1).astype(np.int64)
    eta = np.log(design.probabilities)
    lines = eta[index] + (eta[index + 1] - eta[index]) * (place - index)[:, None]
    weights = np.exp(lines - lines.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _unbiased_at_centre(design: Design) -> FloatVector:
    """Shift and stretch the alphabet so that its mean is x to first order at x = 1/2."""
    cells = design.spec.input_levels - 1
    law = _laws(design, np.zeros(1))[0]
    eta = np.log(design.probabilities)
    # At a level the two sides have different slopes: take their average.
    sides = {min(max(cells // 2, 0), cells - 1), (cells - 1) // 2}
    theta = np.mean([(eta[i + 1] - eta[i]) * cells for i in sides], axis=0)
    mean = float(law @ design.alphabet)
    slope = float(law @ ((theta - law @ theta) * (design.alphabet - mean)))
    require(slope > 0, "slope of the mean at x = 1/2", slope, "positive for an unbiased decoder")
    return np.asarray(0.5 + (design.alphabet - mean) / slope)


def _build(ball: Ball, loss: float, choices: Choices) -> InterpolatedMVU:
    clamp = bool(choices.clamp)
    decoder = cast(Decoder, choices.decoder or UNBIASED)
    turn = _rotation(ball, choices)
    if choices.design is not None:
        return InterpolatedMVU(choices.design, ball, loss, clamp, decoder, turn)
    design = closed_design(DesignSpec(choices.levels or 2, choices.bits or 1, loss))
    return InterpolatedMVU(
        design, ball, 1.0 if choices.beta is None else choices.beta, clamp, decoder, turn
    )


def _rotation(ball: Ball, choices: Choices) -> Rotation | None:
    """Return the rotation of updates in an L2 ball; None if it is switched off or updates arrive rotated."""
    if choices.rotate is None:
        wanted = ball.norm is Norm.L2
    else:
        wanted = choices.rotate
    require(
        ball.norm is Norm.L2 or not wanted,
        "rotate",
        wanted,
        "False on an l1 ball, whose norm no rotation keeps",
    )
    if wanted and not choices.rotated:
        return rotation_for(ball.dimension, exact=choices.by_sample)
    return None


def _share(ball: Ball, block: int | None) -> float | None:
    """Return the share of the radius at which a coordinate is clamped; None where clamping would gain little.

    At a tenth a dominating pair has 1.9 % more variance than Gaussian noise. A cut at three
    deviations of a rotated coordinate takes 0.6 % of an update at most; without a rotation an
    evenly spread one is eight times below the cut.
    """
    if block is None:
        share = 8 / math.sqrt(ball.dimension)
    else:
        share = 3 / math.sqrt(block)
    share = max(LEAST_SHARE, min(share, 1.0))
    return share if ball.norm is Norm.L2 and share <= MOST_SHARE else None


def _limits(ball: Ball, choices: Choices) -> tuple[float, float]:
    if choices.design is not None:
        return MIN_BETA, MAX_BETA
    return design_limits(choices.levels or 2, choices.bits or 1)


def _given(ball: Ball, strength: float, choices: Choices) -> InterpolatedMVU:
    """Return the mechanism for a design epsilon, with the design among the choices or else the best known one."""
    design = choices.design
    if design is None:
        design = solve(DesignSpec(choices.levels or 2, choices.bits or 1, strength))
    require(
        design.spec.epsilon == strength,
        "design_epsilon",
        strength,
        f"{design.spec.epsilon!r}, the design's",
    )
    return _build(
        ball, 1.0 if choices.beta is None else choices.beta, evolve(choices, design=design)
    )


def _sharpened(ball: Ball, choices: Choices) -> Choices:
    """Clamp inputs of one bit on an L2 ball where that makes the account sharp."""
    turn = _rotation(ball, choices)
    share = _share(
        ball, ball.dimension if choices.rotated else None if turn is None else turn.block
    )
    free = choices.beta is None and choices.clamp is None and choices.design is None
    if free and share is not None and (choices.levels or 2) == 2 and (choices.bits or 1) == 1:
        return evolve(choices, beta=1 / share, clamp=True)
    return choices


FAMILIES = (
    SearchedFamily(
        "imvu",
        ("bits", "levels", "beta", "clamp", "decoder", "design", "rotate"),
        "design_epsilon",
        _build,
        _limits,
        direct=_given,
        prepare=_sharpened,
        summable=True,
        work="a code drawn per coordinate",
    ),
)
