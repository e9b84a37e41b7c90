"""Calibration behind secure aggregation: the mechanism whose sums meet a target, and its alternatives.

Idea     the target is met by the account of the sum over n clients, in which the other clients' bits are the noise. A
         small epsilon e per bit keeps probabilities near 1/2, at the cost of a factor cosh(e/2)^2 in variance; beta,
         which scales small coordinates up and clamps large ones, is searched from the private side. e starts at 1/2
         and grows while the clamp would be within four deviations of a rotated coordinate. Alternatives (`SumRow`) are
         calibrated to the same epsilon.
Symbols  n: clients in a sum; k of them honest; c = 2^b - 1 bits to a code of b bits (binomial designs);
         error: expected squared error of a coordinate of the decoded *mean* of n clients, for the worst updates (in the
         comparison, at 0); bits on the wire: ceil(log2(c n + 1)) per parameter, the masking modulus included.
Source   docs/theory/secure-aggregation.md; Agarwal, Kairouz, Liu (NeurIPS 2021) for Skellam noise over clients, each
         adding variance v/n. The ideal distributed Gaussian is a yardstick: real numbers have no modulus.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast, final

from attrs import frozen

from quietbit._search import bisect
from quietbit.design.closed_form import MOST_BINOMIAL_BITS, binomial_design
from quietbit.design.solve import solve
from quietbit.design.table import DesignSpec
from quietbit.errors import check_int, check_real, require
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.calibrate import calibrate
from quietbit.mechanism.family import largest_private
from quietbit.mechanism.interpolated import MAX_BETA, UNBIASED, Decoder, InterpolatedMVU
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.rotation import fewest_kept, rotation_for
from quietbit.mechanism.skellam import length_upper, stays_within
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.privacy.skellam import skellam_cost
from quietbit.privacy.subsampling import secret_cohort_cost
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust, Unit

__all__ = ["SumCalibration", "SumRow", "calibrate_sum", "compare_calibration", "compare_sums"]

LEAST_BETA = 1e-6
DESIGN_EPSILON, MOST_DESIGN_EPSILON, GROWTH = 0.5, 3.0, 1.5
DEVIATIONS = 4.0  # of a rotated coordinate; nothing is clamped within them
SKELLAM_BITS = 16
WRAP = 1e-6
MORE = "more clients in a sum or fewer releases would help"


@final
@frozen
class SumCalibration:
    """A mechanism whose secure sums meet a target.

    ``wire_bits`` is what a client sends per parameter; ``squared_error`` is that of a coordinate of the mean; rotated
    coordinates beyond ``clamped_at`` in magnitude are clamped to it; ``response`` is a lower bound on the decoded share
    of an update. ``saturated``: the target allows more than the largest beta spends. Where only some coordinates are
    kept, ``mechanism`` is a `Projected` on rows 0 (take those of a round with ``at``), and ``projection_error`` is the
    part of the error that the projection of a mean of norm ``mean_norm`` makes up.
    """

    mechanism: Mechanism
    guarantee: Guarantee
    clients: int
    min_honest_clients: int
    releases: int
    wire_bits: int
    squared_error: float
    clamped_at: float
    saturated: bool
    response: float = 1.0
    population: int | None = None
    mean_norm: float = 0.0
    projection_error: float = 0.0

    @property
    def codes(self) -> InterpolatedMVU:
        """The mechanism that makes the codes, which acts on the kept coordinates where only some are kept."""
        return cast(InterpolatedMVU, self.mechanism.core)


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
    population: int | None = None,
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
        min_honest_clients: how many of them at least answer and do not collude with the server; all by default.
        releases: how many sums the same client takes part in (or might, with a secret cohort).
        bits: of a code, 1 to 4; with more than one the design is binomial.
        design_epsilon: of each bit; chosen by default. Beta is solved for, and inputs are clamped.
        decoder: which values codes stand for.
        rotate: whether updates in an L2 ball are rotated first: they are unless this is False.
        keep: how many rotated coordinates all clients keep, a power of two, or ``auto``; all by default.
        mean_norm: assumed or measured norm of the mean update, for the projection's error; the radius by default.
        account: the guarantee of all releases together, where it is not that of ``releases`` sums fixed beforehand.
        population: only where nobody learns who took part: how many clients the cohort is drawn from, anew each time.

    Clients not counted on in a secret cohort are refused: who colludes knows whether it took part.
    """
    target = Target(epsilon, delta, adjacency, trust=Trust.SECURE_AGGREGATION, releases=releases).limited()
    require(target.delta > 0, "delta", delta, "above 0 for a sum")
    require(isinstance(ball, Ball), "ball", ball, "a Ball")
    count = check_int(clients, "clients", 2, MOST_CLIENTS)
    sure = check_int(count if min_honest_clients is None else min_honest_clients, "min_honest_clients", 2, count)
    width = check_int(bits, "bits", 1, MOST_BINOMIAL_BITS)
    crowd = None if population is None else check_int(population, "population", count)
    many = 2**width - 1
    require(crowd is None or sure == count, "min_honest_clients", min_honest_clients, "left out with a secret cohort")

    whole = ball
    norm = ball.radius if mean_norm is None else check_real(mean_norm, "mean_norm", at_most=ball.radius)
    if keep is not None:
        require(ball.norm is Norm.L2, "norm of the ball", ball.norm.value, "l2 where coordinates are kept")
        if keep == "auto":
            dense = calibrate_sum(
                ball=ball, **target.keywords(), clients=count, min_honest_clients=min_honest_clients, bits=bits,
                population=population, rotate=rotate, account=account,
            )  # fmt: skip
            keep = fewest_kept(dense.squared_error / norm**2, ball.dimension)
        ball = Ball(ball.norm, ball.radius, check_int(keep, "keep", 1, padded_size(ball.dimension)))

    def guess(each: float) -> float:
        """Return beta from a linear curve, as a start for the search."""

        def roughly(beta: float) -> float:
            price = math.cosh(each * min(beta, 1.0) / 2) ** 2
            slope = many * (each * beta / 2 * target.adjacency.radii) ** 2 / 2 * min(1.0, price / sure)
            return Cost.linear(slope * target.releases).epsilon(target.delta)

        return largest_private(roughly, LEAST_BETA, MAX_BETA, target.epsilon, "a sum", MORE)

    round_ball = ball.norm is Norm.L2
    require(round_ball or not rotate, "rotate", rotate, "False on an l1 ball, whose norm no rotation keeps")
    turn = rotation_for(ball.dimension, whole=True) if keep is None and round_ball and rotate is not False else None
    size = ball.dimension if turn is None else turn.block
    mixed = keep is not None or turn is not None
    farthest = max(1.0, math.sqrt(size) / (DEVIATIONS if mixed else 2))
    each = DESIGN_EPSILON if design_epsilon is None else check_real(design_epsilon, "design_epsilon")
    while design_epsilon is None and each < MOST_DESIGN_EPSILON and guess(each) > farthest:
        each *= GROWTH
    one = DesignSpec(2, 1, each)
    design = solve(one, cache=False) if width == 1 else binomial_design(width, each * many)

    def build(beta: float) -> InterpolatedMVU:
        return InterpolatedMVU(design, ball, beta, True, decoder, turn)

    def spent(beta: float) -> float:
        found, which = build(beta), target.adjacency
        if account is not None:
            return account(found).epsilon_upper
        cost = found.sum_privacy(sure, which)
        if crowd is not None:
            far = found.sum_privacy(sure, Adjacency.REPLACE_ONE)
            cost = secret_cohort_cost(cost, count, crowd, which, server_learns_cohort=False, replace_one=far)
        return (cost * target.releases).epsilon(target.delta)

    found = build(largest_private(spent, LEAST_BETA, MAX_BETA, target.epsilon, "a sum", MORE, start=guess(each)))
    lost = 0.0 if keep is None else norm**2 / ball.dimension * (1 - ball.dimension / padded_size(whole.dimension))
    mechanism = found if keep is None else Projected(found, whole, rows=0)
    response = mechanism.error().response
    missed = (1 - response) * norm**2 / whole.dimension
    return SumCalibration(
        mechanism=mechanism,
        guarantee=Guarantee(spent(found.beta), target.delta, Unit.CLIENT, target.adjacency, target.trust),
        clients=count,
        min_honest_clients=sure,
        releases=target.releases,
        wire_bits=(many * count).bit_length(),
        squared_error=found.variance(0.0) / count + found.expectation(0.0) ** 2 + lost + missed,
        clamped_at=ball.radius / max(found.beta, 1.0),
        saturated=found.beta >= MAX_BETA,
        response=response,
        population=crowd,
        mean_norm=0.0 if keep is None else norm,
        projection_error=lost,
    )


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
    *, ball: Ball, target: Target, clients: int, min_honest_clients: int | None = None, bits: int = 1
) -> tuple[SumRow, ...]:
    """Calibrate codes behind masks on an L2 ball and return their `compare_calibration`."""
    honest = min_honest_clients
    found = calibrate_sum(ball=ball, **target.keywords(), clients=clients, min_honest_clients=honest, bits=bits)
    return compare_calibration(found, target.epsilon)


def compare_calibration(found: SumCalibration, epsilon: float) -> tuple[SumRow, ...]:
    """Return a calibrated sum on an L2 ball, and its alternatives at the target ``epsilon``; no secret cohort in those.

    Two rows need no secure aggregation: the same codes seen one by one, whose epsilon is the local one, and one bit
    calibrated for a server that sees every payload. Where 16 bits are too few for Skellam noise, its error is infinite.
    """
    mechanism, guarantee = found.codes, found.guarantee
    ball, adjacency, delta, releases = mechanism.ball, guarantee.adjacency, guarantee.delta, found.releases
    require(ball.norm is Norm.L2, "ball", ball, "an L2 ball for the comparison")
    count, share = found.clients, found.min_honest_clients / found.clients

    def gaussian(loss: float) -> float:
        return Cost.gaussian(releases * (adjacency.radii * loss) ** 2 / 2).epsilon(delta)

    def skellam(loss: float) -> float:
        return (_skellam(ball, 1 / loss, count, share, adjacency)[0] * releases).epsilon(delta)

    noise = largest_private(gaussian, 1e-7, 1e4, epsilon, "a Gaussian", accuracy=1e-9)
    grains = _first_within(skellam, epsilon)
    grainy = _skellam(ball, 1 / grains, count, share, adjacency)[1] if skellam(grains) <= epsilon else math.inf
    local = calibrate("imvu", ball=ball, epsilon=epsilon, delta=delta, adjacency=adjacency, releases=releases)
    secure, width = Trust.SECURE_AGGREGATION, mechanism.bits
    many = "one bit" if width == 1 else f"{width} bits"
    seen = (mechanism.privacy(adjacency) * releases).epsilon(delta)
    ideal = (ball.radius / noise / count) ** 2 / share
    return (
        SumRow(f"{many}, secure sum", found.wire_bits, guarantee.epsilon_upper, found.squared_error, secure),
        SumRow("ideal distributed Gaussian", 32, gaussian(noise), ideal, secure),
        SumRow("Skellam, secure sum", SKELLAM_BITS, skellam(grains), grainy, secure),
        SumRow("the same codes, seen one by one", width, seen, found.squared_error, Trust.LOCAL),
        SumRow("one bit, local", 1, local.guarantee.epsilon_upper, local.squared_error / count, Trust.LOCAL),
    )


def _first_within(account: Callable[[float], float], target: float) -> float:
    """Return the largest loss on a fine ladder that meets the target, else the nearest: few bits are not monotone."""
    ladder = [10 ** (2 - step / 40) for step in range(201)]
    values = [account(loss) for loss in ladder]
    for place, (loss, value) in enumerate(zip(ladder, values, strict=True)):
        if value <= target:
            return bisect(lambda loss: account(loss) <= target, loss, ladder[max(place - 1, 0)], relative=1e-9)
    return ladder[values.index(min(values))]


def _skellam(ball: Ball, multiplier: float, clients: int, share: float, adjacency: Adjacency) -> tuple[Cost, float]:
    """Return the cost of a sum and the squared error of its mean; honest noise is ``multiplier`` times the radius."""
    size = 1 << (ball.dimension - 1).bit_length()
    whole = multiplier / math.sqrt(share)
    reach = _skellam_reach(whole, clients, size)  # radius in units of the integers
    variance = (multiplier * reach) ** 2
    length = max(1.0, length_upper(Norm.L2, reach, size))
    l1, l2 = min(length, math.sqrt(size * length)), math.sqrt(length)
    error = (variance / share + clients / 6) * (ball.radius / reach / clients) ** 2
    return skellam_cost(adjacency.radii * l1, adjacency.radii * l2, variance), error


def _skellam_reach(multiplier: float, clients: int, size: int) -> float:
    """Find the finest scale at which a sum leaves the modulus with probability at most WRAP, by bisection."""
    doubt = math.log(6 * size / WRAP)

    def fits(reach: float) -> bool:
        signal = clients * reach * min(1.0, math.sqrt(2 * doubt / size)) + math.sqrt(clients * doubt / 2)
        return stays_within(2.0 ** (SKELLAM_BITS - 1) - 1 - signal, (multiplier * reach) ** 2, doubt)

    return bisect(fits, 1e-9, 2.0**SKELLAM_BITS * (1 + 1 / multiplier), halvings=80, by_ratio=True)
