"""The interpolated MVU mechanism (I-MVU): interpolated log-probabilities, one symbol per coordinate.

Idea     eta(x) is linear between the design's levels; every coordinate draws j ~ softmax(eta(x)) on its
         own.
Symbols  x = 1/2 + beta u/(2C), C = radius; symbol j decodes to (C/beta)(2 a_j - 1).
Source   Guo et al. (ICML 2023), section "Interpolated MVU mechanism", Theorems 1 and 2.

Unbiased at zero. E[a | x] has slope k = sum_j a_j P'(j|x) at x = 1/2; the alphabet 1/2 + (a - E[a|1/2])/k
is unbiased to first order there. For one bit and two levels it is 1/2 -+ 1/epsilon, whose variance
1/epsilon^2 = 1/M meets the Cramer-Rao bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final, get_args

import numpy as np

from quietbit._typing import Codes, FloatArray, FloatVector
from quietbit._validate import require
from quietbit.design.table import Design
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.select import select
from quietbit.mechanism.base import (
    check_adjacency,
    check_codes,
    check_inside,
    check_rng,
    check_value,
    lookup,
)
from quietbit.mechanism.clipping import Ball, Norm, usual_kernel
from quietbit.mechanism.scaling import Scaling
from quietbit.privacy.aggregate import aggregate_curve
from quietbit.privacy.aggregate_codes import aggregate_codes_curve, codes_deviation_upper
from quietbit.privacy.conversion import round_up
from quietbit.privacy.curve import PrivacyCurve, with_slack
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.interpolated import interpolated_l1_curve, interpolated_l2_curve

__all__ = ["Decoder", "InterpolatedMVU"]

Decoder: TypeAlias = Literal["alphabet", "unbiased-at-zero"]


@final
@dataclass(frozen=True, slots=True)
class InterpolatedMVU:
    """I-MVU of a design on updates in an L1 or L2 ball.

    ``beta`` spreads small coordinates over the design's range; ``clamp`` cuts inputs to [0, 1], as the
    published code does, where the paper lets the end segments continue. ``decoder`` says which values symbols
    stand for on the server: the design's alphabet, or that alphabet rescaled to be unbiased to first order
    at a coordinate of zero. It changes no privacy.
    """

    design: Design
    ball: Ball
    beta: float = 1.0
    clamp: bool = False
    decoder: Decoder = "alphabet"
    scaling: Scaling = field(init=False, repr=False, compare=False)
    sampler: Sampler = field(init=False, repr=False, compare=False)
    values: FloatVector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what is no design, ball, beta or decoder; compile the sampler."""
        require(isinstance(self.design, Design), "design", self.design, "a Design")
        require(isinstance(self.ball, Ball), "ball", self.ball, "a Ball")
        choices = get_args(Decoder)
        require(self.decoder in choices, "decoder", self.decoder, "one of " + ", ".join(choices))
        scaling = Scaling(self.ball.radius, self.beta, self.clamp)
        object.__setattr__(self, "beta", scaling.beta)
        object.__setattr__(self, "scaling", scaling)
        object.__setattr__(self, "sampler", scaling.sampler(self.design))
        alphabet = self.design.alphabet
        if self.decoder == "unbiased-at-zero":
            alphabet = _unbiased_at_centre(self.design)
        values = (2 * alphabet - 1) * (self.ball.radius / self.beta)
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    @property
    def domain(self) -> Ball:
        """Where updates must lie."""
        return self.ball

    @property
    def bits(self) -> int:
        """The design's output bits."""
        return self.design.spec.output_bits

    @property
    def code_count(self) -> int:
        """One code per coordinate."""
        return self.ball.dimension

    def encode(self, update: FloatArray, rng: RandomBits, *, kernel: str | None = None) -> Codes:
        """One symbol per coordinate, in the update's shape; ``kernel`` names one, and changes no code."""
        array = check_inside(self.ball, update)
        check_rng(rng)
        chosen = usual_kernel() if kernel is None else select(kernel)
        return chosen.sample(self.sampler, array, rng, verified=True)

    def decode(self, codes: Codes) -> FloatArray:
        """The values that the symbols stand for, as float64."""
        return lookup(self.values, check_codes(codes, self.bits, self.code_count))

    def law(self, value: float) -> FloatVector:
        """The probabilities of all symbols for an update's coordinate of this value."""
        number = check_value(self.ball, value)
        low, high = self.sampler.t_range
        return _law(self.design, min(max(self.sampler.scale * number, low), high))

    def expectation(self, value: float) -> float:
        """The mean of the decoded value, by enumeration."""
        return float(self.law(value) @ self.values)

    def variance(self, value: float) -> float:
        """The variance of the decoded value, by enumeration."""
        law = self.law(value)
        return float(law @ np.square(self.values - law @ self.values))

    def privacy(self, adjacency: Adjacency) -> PrivacyCurve:
        """The curve of one release, sampling slack included.

        L1 ball: pure (Theorem 1, with the constant of the path through the centre, or the zero-out one), and at finite
        orders the smaller of that and the L2 account, which holds for the same inputs. L2 ball: Theorem 2
        with two levels, a certified kappa_alpha with more.
        """
        check_adjacency(adjacency)
        return with_slack(self._exact_curve(adjacency), self.scaling.slack_upper(self.design, self.ball))

    def aggregate_privacy(self, clients: int, adjacency: Adjacency) -> PrivacyCurve:
        """The curve of one secure sum of ``clients`` releases, for one of the clients.

        ``clients``, from 2 to 100,000, counts the honest clients that answer and do not collude with the server;
        it sees the sum of their codes and nothing else (`Trust.SECURE_AGGREGATION`). One-bit designs, and with more
        bits those whose codes are sums of equal bits (`binomial_design`); others are refused.
        """
        check_adjacency(adjacency)
        distance, (low, high) = self.scaling.distance(adjacency, self.ball), self.scaling.certified_range
        alone = self._exact_curve(adjacency)
        slack = self.scaling.slack_upper(self.design, self.ball)
        if self.bits == 1:
            curve = aggregate_curve(self.design, distance, clients, adjacency, low, high, alone=alone)
            return with_slack(curve, slack)
        curve = aggregate_codes_curve(self.design, distance, clients, adjacency, low, high, alone=alone)
        deviation = codes_deviation_upper(self.design, low, high)
        return with_slack(curve, round_up(slack + self.ball.dimension * deviation))

    def _exact_curve(self, adjacency: Adjacency) -> PrivacyCurve:
        """The curve of one release of an exact sampler."""
        distance, (low, high) = self.scaling.distance(adjacency, self.ball), self.scaling.certified_range
        if self.ball.norm is Norm.L1:
            return interpolated_l1_curve(self.design, distance, adjacency, low, high, with_renyi=True, in_ball=True)
        return interpolated_l2_curve(self.design, distance, adjacency, low, high)


def _law(design: Design, offset: float) -> FloatVector:
    """softmax(eta) at x = 1/2 + offset; the end segments continue outside [0, 1]."""
    cells = design.spec.input_levels - 1
    place = (0.5 + offset) * cells
    index = int(min(max(np.floor(place), 0), cells - 1))
    eta = np.log(design.probabilities[[index, index + 1]])
    line = eta[0] + (eta[1] - eta[0]) * (place - index)
    weights = np.exp(line - line.max())
    return np.asarray(weights / weights.sum())


def _unbiased_at_centre(design: Design) -> FloatVector:
    """The alphabet moved and stretched so that its mean is x to first order at x = 1/2."""
    cells = design.spec.input_levels - 1
    law, eta = _law(design, 0.0), np.log(design.probabilities)
    # At a level the two sides have different slopes: take their average.
    sides = {min(max(cells // 2, 0), cells - 1), (cells - 1) // 2}
    theta = np.mean([(eta[i + 1] - eta[i]) * cells for i in sides], axis=0)
    mean = float(law @ design.alphabet)
    slope = float(law @ ((theta - law @ theta) * (design.alphabet - mean)))
    require(slope > 0, "slope of the mean at x = 1/2", slope, "positive for an unbiased decoder")
    return np.asarray(0.5 + (design.alphabet - mean) / slope)
