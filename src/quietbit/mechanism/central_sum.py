"""Calibration behind secure aggregation: the mechanism whose sums meet a target.

Idea     the target is met by the account of the sum over n clients, in which the other clients'
         bits are the noise. A small epsilon e per bit keeps probabilities near 1/2, at the cost of
         a factor cosh(e/2)^2 in variance; beta, which scales small coordinates up and clamps large
         ones, is searched from the private side. e starts at 1/2 and grows while the clamp would be
         within four deviations of a rotated coordinate.
Symbols  n: clients in a sum; k of them honest; c = 2^b - 1 bits to a code of b bits (binomial
         designs); error: expected squared error of a coordinate of the decoded *mean* of n clients,
         for the worst updates; bits on the wire: ceil(log2(c n + 1)) per parameter, the masking
         modulus included.
Source   docs/theory/secure-aggregation.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast, final

from attrs import frozen

from quietbit.design.closed_form import MOST_BINOMIAL_BITS, binomial_design
from quietbit.design.solve import solve
from quietbit.design.table import DesignSpec
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism, core_of
from quietbit.mechanism.family import largest_private
from quietbit.mechanism.interpolated import MAX_BETA, UNBIASED, Decoder, InterpolatedMVU
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.rotation import fewest_kept, rotation_for
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust, Unit

__all__ = ["SumCalibration", "calibrate_sum"]

LEAST_BETA = 1e-6
DESIGN_EPSILON = 0.5
MOST_DESIGN_EPSILON = 3.0
GROWTH = 1.5
DEVIATIONS = 4.0  # of a rotated coordinate; nothing is clamped within them
MORE = "more clients in a sum or fewer releases would help"


@final
@frozen
class SumCalibration:
    """A mechanism whose secure sums meet a target.

    ``wire_bits`` is what a client sends per parameter; ``squared_error`` is that of a coordinate of
    the mean; rotated coordinates beyond ``clamped_at`` in magnitude are clamped to it; ``response``
    is a lower bound on the decoded share of an update. ``saturated``: the target allows more than
    the largest beta spends. Where only some coordinates are kept, ``mechanism`` is a `Projected` on
    rows 0 (take those of a round with ``at``), and ``projection_error`` is the part of the error
    that the projection of a mean of norm ``mean_norm`` makes up.
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
        """The mechanism that makes the codes, which acts on the kept coordinates where only some are kept."""
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
    bits: int = 1,
    design_epsilon: float | None = None,
    decoder: Decoder = UNBIASED,
    rotate: bool | None = None,
    keep: int | str | None = None,
    mean_norm: float | None = None,
    account: Callable[[Mechanism], Guarantee] | None = None,
) -> SumCalibration:
    """Return the most accurate mechanism whose ``releases`` secure sums stay within (epsilon, delta).

    Args:
        ball: where updates lie.
        epsilon: the target for all sums together; met from below.
        delta: above 0; at 0 a sum is no better than a single client.
        adjacency: what the neighbouring world is.
        clients: how many codes are in a sum.
        min_honest_clients: how many of them at least answer and do not collude with the server; all
            by default.
        releases: how many sums the same client takes part in.
        bits: of a code, 1 to 4; with more than one the design is binomial.
        design_epsilon: of each bit; chosen by default. Beta is solved for, and inputs are clamped.
        decoder: which values codes stand for.
        rotate: whether updates in an L2 ball are rotated first: they are unless this is False.
        keep: how many rotated coordinates all clients keep, a power of two, or ``auto``; all by
            default.
        mean_norm: assumed or measured norm of the mean update, for the projection's error; the
            radius by default.
        account: the guarantee of all releases together, where it is not that of ``releases`` sums
            fixed beforehand.
    """
    target = Target(
        epsilon, delta, adjacency, trust=Trust.SECURE_AGGREGATION, releases=releases
    ).limited()
    require(target.delta > 0, "delta", delta, "above 0 for a sum")
    require(isinstance(ball, Ball), "ball", ball, "a Ball")
    count = check_int(clients, "clients", 2, MOST_CLIENTS)
    sure = check_int(
        count if min_honest_clients is None else min_honest_clients, "min_honest_clients", 2, count
    )
    width = check_int(bits, "bits", 1, MOST_BINOMIAL_BITS)
    many = 2**width - 1

    whole = ball
    if mean_norm is None:
        norm = ball.radius
    else:
        norm = check_real(mean_norm, "mean_norm", at_most=ball.radius)
    if keep is not None:
        require(
            ball.norm is Norm.L2,
            "norm of the ball",
            ball.norm.value,
            "l2 where coordinates are kept",
        )
        if keep == "auto":
            dense = calibrate_sum(
                ball=ball,
                **target.keywords(),
                clients=count,
                min_honest_clients=min_honest_clients,
                bits=bits,
                rotate=rotate,
                account=account,
            )
            keep = fewest_kept(dense.squared_error / norm**2, ball.dimension)
        ball = Ball(ball.norm, ball.radius, check_int(keep, "keep", 1, padded_size(ball.dimension)))

    def guess(each: float) -> float:
        """Return beta from a linear curve, as a start for the search."""

        def roughly(beta: float) -> float:
            price = math.cosh(each * min(beta, 1.0) / 2) ** 2
            slope = (
                many * (each * beta / 2 * target.adjacency.radii) ** 2 / 2 * min(1.0, price / sure)
            )
            return Cost.linear(slope * target.releases).epsilon(target.delta)

        return largest_private(roughly, LEAST_BETA, MAX_BETA, target.epsilon, "a sum", MORE)

    round_ball = ball.norm is Norm.L2
    require(
        round_ball or not rotate,
        "rotate",
        rotate,
        "False on an l1 ball, whose norm no rotation keeps",
    )
    if keep is None and round_ball and rotate is not False:
        turn = rotation_for(ball.dimension, whole=True)
    else:
        turn = None
    size = ball.dimension if turn is None else turn.block
    mixed = keep is not None or turn is not None
    farthest = max(1.0, math.sqrt(size) / (DEVIATIONS if mixed else 2))
    if design_epsilon is None:
        each = DESIGN_EPSILON
    else:
        each = check_real(design_epsilon, "design_epsilon")
    while design_epsilon is None and each < MOST_DESIGN_EPSILON and guess(each) > farthest:
        each *= GROWTH
    one = DesignSpec(2, 1, each)
    if width == 1:
        design = solve(one, cache=False)
    else:
        design = binomial_design(width, each * many)

    def build(beta: float) -> InterpolatedMVU:
        return InterpolatedMVU(design, ball, beta, True, decoder, turn)

    def spent(beta: float) -> float:
        found = build(beta)
        which = target.adjacency
        if account is not None:
            return account(found).epsilon_upper
        cost = found.sum_privacy(sure, which)
        return (cost * target.releases).epsilon(target.delta)

    found = build(
        largest_private(
            spent, LEAST_BETA, MAX_BETA, target.epsilon, "a sum", MORE, start=guess(each)
        )
    )
    lost = 0.0
    mechanism: InterpolatedMVU | Projected = found
    if keep is not None:
        lost = norm**2 / ball.dimension * (1 - ball.dimension / padded_size(whole.dimension))
        mechanism = Projected(found, whole, rows=0)
    response = mechanism.error().response
    missed = (1 - response) * norm**2 / whole.dimension
    return SumCalibration(
        mechanism=mechanism,
        guarantee=Guarantee(
            spent(found.beta), target.delta, Unit.CLIENT, target.adjacency, target.trust
        ),
        clients=count,
        min_honest_clients=sure,
        releases=target.releases,
        wire_bits=(many * count).bit_length(),
        squared_error=found.variance(0.0) / count + found.expectation(0.0) ** 2 + lost + missed,
        clamped_at=ball.radius / max(found.beta, 1.0),
        saturated=found.beta >= MAX_BETA,
        response=response,
        mean_norm=0.0 if keep is None else norm,
        projection_error=lost,
    )
