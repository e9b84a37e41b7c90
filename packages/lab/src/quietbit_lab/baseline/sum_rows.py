"""A calibrated sum beside alternatives at the same epsilon: Gaussian, Skellam, local releases.

Idea     each row is calibrated to the same target, and has the error of a coordinate of the decoded
         mean, at 0.
Source   docs/theory/secure-aggregation.md; Agarwal, Kairouz, Liu (NeurIPS 2021) for Skellam noise
         over clients, each adding variance v/n. The ideal distributed Gaussian is a yardstick: real
         numbers have no modulus.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

from attrs import frozen

from quietbit._search import bisect
from quietbit.errors import require
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.calibrate import calibrate
from quietbit.mechanism.family import largest_private
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency, Target, Trust
from quietbit_lab.baseline.skellam import length_upper
from quietbit_lab.baseline.skellam_cost import skellam_cost
from quietbit_lab.baseline.skellam_noise import stays_within

__all__ = ["SumRow", "compare_sums"]

SKELLAM_BITS = 16
WRAP = 1e-6


@final
@frozen
class SumRow:
    """One row of the comparison; its error is infinite where the target is out of reach."""

    name: str
    bits: int
    epsilon_upper: float
    squared_error: float
    trust: Trust


def compare_sums(
    *,
    ball: Ball,
    target: Target,
    clients: int,
    min_honest_clients: int | None = None,
) -> tuple[SumRow, ...]:
    """Calibrate codes behind masks on an L2 ball, and return them with their alternatives.

    Two rows need no secure aggregation: the same codes seen one by one, whose epsilon is the local
    one, and one bit calibrated for a server that sees every payload. Where 16 bits are too few for
    Skellam noise, its error is infinite.
    """
    require(ball.norm is Norm.L2, "norm of the ball", ball.norm.value, "l2 for the comparison")
    honest = min_honest_clients or clients
    share = honest / clients
    epsilon = target.epsilon
    delta = target.delta
    adjacency = target.adjacency
    releases = target.releases
    calibrated = calibrate("imvu", ball=ball, **target.keywords(), honest=honest)
    squared_error = calibrated.error.of_mean(clients)

    def gaussian(loss: float) -> float:
        return Cost.gaussian(releases * (adjacency.radii * loss) ** 2 / 2).epsilon(delta)

    def skellam(loss: float) -> float:
        return (_skellam(ball, 1 / loss, clients, share, adjacency)[0] * releases).epsilon(delta)

    noise = largest_private(gaussian, 1e-7, 1e4, epsilon, "a Gaussian", accuracy=1e-9)
    grains = _first_within(skellam, epsilon)
    if skellam(grains) <= epsilon:
        grainy = _skellam(ball, 1 / grains, clients, share, adjacency)[1]
    else:
        grainy = math.inf
    local = calibrate("imvu", ball=ball, **target.keywords())
    secure = Trust.SECURE_AGGREGATION
    seen = (calibrated.mechanism.privacy(adjacency) * releases).epsilon(delta)
    ideal = (1 / noise / clients) ** 2 / share
    return (
        SumRow(
            "one bit, secure sum",
            clients.bit_length(),
            calibrated.guarantee.epsilon_upper,
            squared_error,
            secure,
        ),
        SumRow("ideal distributed Gaussian", 32, gaussian(noise), ideal, secure),
        SumRow("Skellam, secure sum", SKELLAM_BITS, skellam(grains), grainy, secure),
        SumRow("the same codes, seen one by one", 1, seen, squared_error, Trust.LOCAL),
        SumRow(
            "one bit, local",
            1,
            local.guarantee.epsilon_upper,
            local.squared_error / clients,
            Trust.LOCAL,
        ),
    )


def _first_within(account: Callable[[float], float], target: float) -> float:
    """Return the largest loss on a ladder that meets the target: few bits are not monotone."""
    ladder = [10 ** (2 - step / 40) for step in range(201)]
    values = [account(loss) for loss in ladder]
    for place, (loss, value) in enumerate(zip(ladder, values, strict=True)):
        if value <= target:
            return bisect(
                lambda loss: account(loss) <= target, loss, ladder[max(place - 1, 0)], relative=1e-9
            )
    return ladder[values.index(min(values))]


def _skellam(
    ball: Ball, multiplier: float, clients: int, share: float, adjacency: Adjacency
) -> tuple[Cost, float]:
    """Return the cost of a sum and the squared error of its mean, at ``multiplier`` clips."""
    size = 1 << (ball.dimension - 1).bit_length()
    noise = multiplier / math.sqrt(share)
    reach = _skellam_reach(noise, clients, size)  # a clip in units of the integers
    variance = (multiplier * reach) ** 2
    length = max(1.0, length_upper(Norm.L2, reach, size))
    l1 = min(length, math.sqrt(size * length))
    l2 = math.sqrt(length)
    error = (variance / share + clients / 6) * (1 / reach / clients) ** 2
    return skellam_cost(adjacency.radii * l1, adjacency.radii * l2, variance), error


def _skellam_reach(multiplier: float, clients: int, size: int) -> float:
    """Find the finest scale at which a sum wraps with probability at most WRAP."""
    doubt = math.log(6 * size / WRAP)

    def fits(reach: float) -> bool:
        signal = clients * reach * min(1.0, math.sqrt(2 * doubt / size)) + math.sqrt(
            clients * doubt / 2
        )
        return stays_within(
            2.0 ** (SKELLAM_BITS - 1) - 1 - signal, (multiplier * reach) ** 2, doubt
        )

    return bisect(fits, 1e-9, 2.0**SKELLAM_BITS * (1 + 1 / multiplier), halvings=80, by_ratio=True)
