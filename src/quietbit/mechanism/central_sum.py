"""Calibration behind secure aggregation: the mechanism whose sums meet a target.

Idea     the target is met by the account of the sum over n clients, in which the other clients'
         bits are the noise. A small epsilon e per bit keeps probabilities near 1/2, at the cost of
         a factor cosh(e/2)^2 in variance; beta, which scales small coordinates up and clamps large
         ones, is searched from the private side. e starts at 1/2 and grows while the clamp would be
         within four deviations of a rotated coordinate.
Symbols  n: clients in a sum; k of them honest; error: expected squared error of a coordinate of
         the decoded *mean* of n clients, for the worst updates; bits on the wire:
         ceil(log2(n + 1)) per parameter, the masking modulus included.
Source   docs/theory/secure-aggregation.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast, final

from attrs import frozen

from quietbit.design.solve import closed_design
from quietbit.design.table import DesignSpec
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.ball import Ball, Norm, check_ball, check_norm
from quietbit.mechanism.base import Mechanism, core_of
from quietbit.mechanism.family import largest_private
from quietbit.mechanism.interpolated import MAX_BETA, UNBIASED, Decoder, InterpolatedMVU
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.rotation import fewest_kept, rotation_for, wants_rotation
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust, Unit

__all__ = ["SumCalibration", "calibrate_sum"]

LEAST_BETA = 1e-6
DESIGN_EPSILON = 0.5
MOST_DESIGN_EPSILON = 3.0
GROWTH = 1.5
DEVIATIONS = 4.0  # of a rotated coordinate; nothing is clamped within them
REMEDY = "take more clients in a sum or fewer releases"


@final
@frozen
class SumCalibration:
    """A mechanism whose secure sums meet a target.

    Attributes:
        mechanism: I-MVU with clamped inputs; where only some coordinates are kept, a `Projected` on
            rows 0, whose ``for_round`` has the rows of a round.
        wire_bits: what a client sends per parameter.
        squared_error: of a coordinate of the mean, in clips, as all lengths are.
        clamped_at: the magnitude to which larger rotated coordinates are clamped.
        saturated: the target allows more than the largest beta spends.
        response: a lower bound on the decoded share of an update.
        mean_norm: the norm of the mean that the projection's error is computed for.
        projection_error: the part of ``squared_error`` due to coordinates that are not kept.
    """

    mechanism: InterpolatedMVU | Projected
    guarantee: Guarantee
    clients: int
    min_honest_clients: int
    releases: int
    wire_bits: int
    squared_error: float
    clamped_at: float
    saturated: bool
    response: float = 1.0
    mean_norm: float = 0.0
    projection_error: float = 0.0

    @property
    def codes(self) -> InterpolatedMVU:
        """The mechanism that makes the codes, inside the projection where there is one."""
        return cast(InterpolatedMVU, core_of(self.mechanism))


def calibrate_sum(
    *,
    ball: Ball,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | str,
    clients: int,
    min_honest_clients: int | None = None,
    releases: int = 1,
    design_epsilon: float | None = None,
    decoder: Decoder = UNBIASED,
    rotate: bool | None = None,
    coordinates: int | str | None = None,
    mean_norm: float | None = None,
    account: Callable[[Mechanism], Guarantee] | None = None,
) -> SumCalibration:
    """Return the most accurate mechanism whose secure sums together stay within (epsilon, delta).

    Args:
        ball: the unit ball of updates; their clip is no part of a mechanism.
        epsilon: the target for all sums together; met from below.
        delta: above 0; at 0 a sum is no better than a single client.
        adjacency: which two data sets are neighbours.
        clients: how many codes are in a sum.
        min_honest_clients: how many of them at least answer and do not collude with the server; all
            by default.
        releases: how many sums the same client takes part in.
        design_epsilon: of a code; chosen by default. Beta is solved for, and inputs are clamped.
        decoder: which values codes stand for.
        rotate: whether updates in an L2 ball are rotated first: they are unless this is False.
        coordinates: how many rotated ones all clients keep, a power of two, or ``auto``; all by
            default.
        mean_norm: assumed or measured norm of the mean update in clips, for the projection's
            error; 1 by default.
        account: the guarantee of all releases together, where it is not that of ``releases`` sums
            fixed beforehand.
    """
    target = Target(
        epsilon, delta, adjacency, trust=Trust.SECURE_AGGREGATION, releases=releases
    ).limited()
    require(target.delta > 0, "delta", delta, "above 0 for a sum")
    check_ball(ball)
    count = check_int(clients, "clients", 2, MOST_CLIENTS)
    if min_honest_clients is None:
        honest = count
    else:
        honest = check_int(min_honest_clients, "min_honest_clients", 2, count)
    if mean_norm is None:
        norm = 1.0
    else:
        norm = check_real(mean_norm, "mean_norm", at_most=1.0)
    rotated = wants_rotation(ball, rotate)
    if coordinates is not None:
        check_norm(ball, Norm.L2, "where coordinates are kept")
        if coordinates == "auto":
            dense = calibrate_sum(
                ball=ball,
                **target.keywords(),
                clients=count,
                min_honest_clients=min_honest_clients,
                rotate=rotate,
                account=account,
            )
            coordinates = fewest_kept(dense.squared_error / norm**2, ball.dimension)
        size = check_int(coordinates, "coordinates", 1, padded_size(ball.dimension))
        code_ball = Ball(ball.norm, size)
        rotation = None  # rows are taken from updates that are rotated already
        farthest = math.sqrt(size) / DEVIATIONS
    elif rotated:
        code_ball = ball
        rotation = rotation_for(ball.dimension, whole=True)
        farthest = math.sqrt(rotation.block) / DEVIATIONS
    else:
        code_ball = ball
        rotation = None
        farthest = math.sqrt(ball.dimension) / 2

    def guess(bit_epsilon: float) -> float:
        """Return beta from a linear curve, as a start for the search."""

        def roughly(beta: float) -> float:
            variance = math.cosh(bit_epsilon * min(beta, 1.0) / 2) ** 2
            distance = bit_epsilon * beta / 2 * target.adjacency.radii
            slope = distance**2 / 2 * min(1.0, variance / honest)
            return Cost.linear(slope * target.releases).epsilon(target.delta)

        return largest_private(roughly, LEAST_BETA, MAX_BETA, target.epsilon, "a sum", REMEDY)

    if design_epsilon is None:
        bit_epsilon = DESIGN_EPSILON
        while bit_epsilon < MOST_DESIGN_EPSILON and guess(bit_epsilon) > max(1.0, farthest):
            bit_epsilon *= GROWTH
    else:
        bit_epsilon = check_real(design_epsilon, "design_epsilon")
    design = closed_design(DesignSpec(2, 1, bit_epsilon))

    def build(beta: float) -> InterpolatedMVU:
        return InterpolatedMVU(design, code_ball, beta, True, decoder, rotation)

    def spent(beta: float) -> float:
        mechanism = build(beta)
        if account is not None:
            return account(mechanism).epsilon_upper
        cost = mechanism.sum_privacy(honest, target.adjacency)
        return (cost * target.releases).epsilon(target.delta)

    start = guess(bit_epsilon)
    beta = largest_private(
        spent, LEAST_BETA, MAX_BETA, target.epsilon, "a sum", REMEDY, start=start
    )
    codes = build(beta)
    mechanism: InterpolatedMVU | Projected = codes
    projection_error = 0.0
    if coordinates is not None:
        mechanism = Projected(codes, ball, rows=0)
        projection_error = mechanism.projection_error(norm)
    response = mechanism.error().response
    missed = (1 - response) * norm**2 / ball.dimension
    noise = codes.variance(0.0) / count + codes.expectation(0.0) ** 2
    return SumCalibration(
        mechanism=mechanism,
        guarantee=Guarantee(spent(beta), target.delta, Unit.CLIENT, target.adjacency, target.trust),
        clients=count,
        min_honest_clients=honest,
        releases=target.releases,
        wire_bits=count.bit_length(),
        squared_error=noise + projection_error + missed,
        clamped_at=1 / max(beta, 1.0),
        saturated=beta >= MAX_BETA,
        response=response,
        mean_norm=0.0 if coordinates is None else norm,
        projection_error=projection_error,
    )
