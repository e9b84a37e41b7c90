"""Calibration behind secure aggregation, and what the alternatives cost.

Idea     the target is met by the account of the sum over n clients, in which others' bits are the noise. A small
         design epsilon e keeps their probabilities near 1/2, at a price of cosh(e/2)^2 in variance; beta, which
         scales small coordinates up and clamps large ones, is searched from the private side.
Symbols  error: expected squared error of a coordinate of the decoded *mean* of n clients whose coordinate is 0;
         bits: per parameter and client on the wire, the masking modulus included.
Source   docs/theory/secure-aggregation.md; Agarwal, Kairouz, Liu (NeurIPS 2021) for Skellam noise over clients.

Skellam. Each client adds noise of variance v/n to its rounded vector, so the sum carries v; the sum must fit into the
modulus 2^b: rotated coordinates of n clients (all alike at worst), n roundings (Hoeffding) and the noise (Chernoff).
The ideal distributed Gaussian is a yardstick: real numbers have no modulus, and 32 bits are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from quietbit._validate import InvalidParameter, finite_real, require, whole_number
from quietbit.design.solve import solve_anew
from quietbit.design.spec import DesignSpec
from quietbit.mechanism.base import check_adjacency
from quietbit.mechanism.calibrate import MAX_RELEASES, calibrate
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.mechanism.interpolated import Decoder, InterpolatedMVU
from quietbit.mechanism.rounding import length_upper
from quietbit.mechanism.scaling import MAX_BETA
from quietbit.privacy.aggregate import MOST_CLIENTS
from quietbit.privacy.curve import FunctionCurve, GaussianCurve, LinearCurve
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit, check_delta
from quietbit.privacy.skellam import skellam_curve

__all__ = ["SumCalibration", "SumRow", "calibrate_sum", "compare_sums"]

LEAST_BETA = 1e-6
DESIGN_EPSILON = 0.5
ACCURACY = 5e-5
SKELLAM_BITS = 16
WRAP = 1e-6


@final
@dataclass(frozen=True, slots=True)
class SumCalibration:
    """A one-bit mechanism whose secure sum meets a target.

    ``wire_bits`` is ceil(log2(clients + 1)), per parameter; ``squared_error`` that of the mean at zero; coordinates
    beyond ``clamped_at`` in magnitude are cut to it. ``saturated``: the target allows more than the search goes to.
    """

    mechanism: InterpolatedMVU
    guarantee: Guarantee
    clients: int
    releases: int
    wire_bits: int
    squared_error: float
    clamped_at: float
    saturated: bool


@final
@dataclass(frozen=True, slots=True)
class SumRow:
    """One line of the comparison."""

    name: str
    bits: int
    epsilon_upper: float
    squared_error: float
    trust: Trust


def calibrate_sum(
    *,
    ball: Ball,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    clients: int,
    releases: int = 1,
    design_epsilon: float = DESIGN_EPSILON,
    decoder: Decoder = "unbiased-at-zero",
    unit: Unit = Unit.CLIENT,
) -> SumCalibration:
    """The most accurate one-bit mechanism whose ``releases`` secure sums stay within (epsilon, delta).

    ``clients`` honest clients answer in every sum and do not collude with the server. The design has two levels and
    ``design_epsilon``; beta is solved for, and inputs are clamped. Refused: delta = 0, where a sum is no better than
    one client, and targets below the search.
    """
    check_adjacency(adjacency)
    require(isinstance(ball, Ball), "ball", ball, "a Ball")
    target = finite_real(epsilon, "epsilon")
    require(check_delta(delta) > 0, "delta", delta, "above 0 for a sum")
    count = whole_number(clients, "clients", 2, MOST_CLIENTS)
    times = whole_number(releases, "releases", 1, MAX_RELEASES)

    design = solve_anew(DesignSpec(2, 1, design_epsilon))

    def build(beta: float) -> InterpolatedMVU:
        return InterpolatedMVU(design, ball, beta, True, decoder)

    def account(beta: float) -> float:
        return build(beta).aggregate_privacy(count, adjacency).repeat(times).epsilon_upper(delta)

    def guess(beta: float) -> float:
        away = beta / 2 if adjacency is Adjacency.ZERO_OUT else beta
        price = math.cosh(design_epsilon * min(beta, 1.0) / 2) ** 2
        slope = (design_epsilon * away) ** 2 / 2 * min(1.0, price / count) * times
        return LinearCurve(slope).epsilon_upper(delta)

    loss, reached = _search(account, _root(guess, LEAST_BETA, MAX_BETA, target), target)
    found = build(loss)
    return SumCalibration(
        mechanism=found,
        guarantee=Guarantee(reached, delta, unit, adjacency, Trust.SECURE_AGGREGATION),
        clients=count,
        releases=times,
        wire_bits=count.bit_length(),
        squared_error=found.variance(0.0) / count + found.expectation(0.0) ** 2,
        clamped_at=ball.radius / max(found.beta, 1.0),
        saturated=reached < target * (1 - 1e-3),
    )


def compare_sums(
    *, ball: Ball, epsilon: float, delta: float, adjacency: Adjacency, clients: int, releases: int = 1
) -> tuple[SumRow, ...]:
    """One bit behind masks, the ideal Gaussian, Skellam with 16 bits, and one bit without masks, at the same target.

    The ball must be an L2 ball. The last row is the local guarantee: it needs no secure aggregation. Where 16 bits are
    too few for Skellam noise, its row has the least epsilon they reach and an infinite error.
    """
    require(isinstance(ball, Ball) and ball.norm is Norm.L2, "ball", ball, "an L2 ball for the comparison")
    one = calibrate_sum(
        ball=ball, epsilon=epsilon, delta=delta, adjacency=adjacency, clients=clients, releases=releases
    )
    count = one.clients
    away = ball.radius if adjacency is Adjacency.ZERO_OUT else 2 * ball.radius

    def gaussian(loss: float) -> float:
        return GaussianCurve(releases * (away / ball.radius * loss) ** 2 / 2).epsilon_upper(delta)

    def skellam(loss: float) -> float:
        return _skellam(ball, 1 / loss, count, adjacency)[0].repeat(releases).epsilon_upper(delta)

    noise = _root(gaussian, 1e-7, 1e4, epsilon)
    grains = _first_within(skellam, epsilon)
    local = calibrate(
        "imvu",
        ball=ball,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        releases=releases,
        decoder="unbiased-at-zero",
    )
    secure = Trust.SECURE_AGGREGATION
    grainy = _skellam(ball, 1 / grains, count, adjacency)[1] if skellam(grains) <= epsilon else math.inf
    return (
        SumRow("one bit, secure sum", one.wire_bits, one.guarantee.epsilon_upper, one.squared_error, secure),
        SumRow("ideal distributed Gaussian", 32, gaussian(noise), (ball.radius / noise / count) ** 2, secure),
        SumRow("Skellam", SKELLAM_BITS, skellam(grains), grainy, secure),
        SumRow("one bit, local", 1, local.guarantee.epsilon_upper, local.squared_error / count, Trust.LOCAL),
    )


def _search(account: Callable[[float], float], start: float, target: float) -> tuple[float, float]:
    """The largest loss found whose account is within the target, and the account there."""
    private, value, revealing = 0.0, 0.0, math.inf
    loss = start
    for _ in range(40):
        there = account(loss)
        if there <= target:
            private, value = loss, there
            if there >= target * (1 - ACCURACY) or loss >= MAX_BETA:
                break
        else:
            revealing = loss
        # Epsilon is nearly proportional to the loss, between its first and second power: aim inside the bracket.
        step = loss * (target * (1 - ACCURACY / 2) / there) ** 0.9
        step = step if private < step < revealing else 0.5 * (private + min(revealing, 2 * loss))
        loss = min(step, MAX_BETA)
        if loss < LEAST_BETA:
            break
    if private == 0:
        raise InvalidParameter(f"epsilon must be larger for this many clients and releases, got {target!r}.")
    return private, value


def _root(account: Callable[[float], float], low: float, high: float, target: float) -> float:
    """The largest loss within a factor 1 + 1e-9 of the boundary that meets the target, by halving the logarithm."""
    if account(high) <= target:
        return high
    require(account(low) <= target, "epsilon", target, f"at least {account(low):.3g}")
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if account(middle) <= target else (low, middle)
    return low


def _first_within(account: Callable[[float], float], target: float) -> float:
    """The largest loss on a fine ladder that meets the target, else the one that comes nearest.

    With few bits more noise also means coarser integers, so the account need not be monotone.
    """
    ladder = [10 ** (2 - step / 40) for step in range(201)]
    values = [account(loss) for loss in ladder]
    for place, value in enumerate(values):
        if value <= target:
            return _root(account, ladder[place], ladder[max(place - 1, 0)], target) if place else ladder[0]
    return ladder[values.index(min(values))]


def _skellam(ball: Ball, multiplier: float, clients: int, adjacency: Adjacency) -> tuple[FunctionCurve, float]:
    """The curve of a sum with noise ``multiplier`` times the radius, and the squared error of the mean."""
    size = 1 << (ball.dimension - 1).bit_length()
    reach = _skellam_reach(multiplier, clients, size)  # radius in units of the integers
    variance = (multiplier * reach) ** 2
    length = max(1.0, length_upper(Norm.L2, reach, size))
    l1, l2 = min(length, math.sqrt(size * length)), math.sqrt(length)
    times = 1 if adjacency is Adjacency.ZERO_OUT else 2
    error = (variance + clients / 6) * (ball.radius / reach / clients) ** 2
    return skellam_curve(times * l1, times * l2, variance), error


def _skellam_reach(multiplier: float, clients: int, size: int) -> float:
    """The finest scale at which a sum leaves the modulus with probability at most WRAP, by bisection."""
    doubt = math.log(6 * size / WRAP)

    def fits(reach: float) -> bool:
        signal = clients * reach * min(1.0, math.sqrt(2 * doubt / size)) + math.sqrt(clients * doubt / 2)
        room, variance = 2.0 ** (SKELLAM_BITS - 1) - 1 - signal, (multiplier * reach) ** 2
        if room <= 0:
            return False
        root = math.hypot(variance, room)
        return room * math.asinh(room / variance) - room * room / (root + variance) >= doubt

    low, high = 1e-9, 2.0**SKELLAM_BITS * (1 + 1 / multiplier)
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
