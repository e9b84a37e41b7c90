"""Calibration: the least noise that meets a target, found on the account itself and from the private side.

Idea     each mechanism has one number that makes it more revealing; its account is non-decreasing in that
         number, so a bracket is narrowed until the private end is within 2e-5 of the target. The private
         end is returned: the guarantee never exceeds the target, whatever the search did.
Symbols  loss: the number that is searched: a design's epsilon, beta, or one over a noise multiplier.
Source   the paper tunes by grid; the rule to end on the private side is dp_accounting's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast, final, get_args

from quietbit._typing import FloatMatrix, FloatVector
from quietbit._validate import InvalidParameter, QuietbitError, finite_real, require, whole_number
from quietbit.design.certify import certify
from quietbit.design.closed_form import closed_form
from quietbit.design.rounding import exact_rows
from quietbit.design.spec import MAX_EPSILON, MIN_EPSILON, MIN_STEP, DesignSpec
from quietbit.design.table import Design
from quietbit.mechanism import gaussian, skellam
from quietbit.mechanism.base import Mechanism, check_adjacency
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.gaussian import Gaussian
from quietbit.mechanism.interpolated import Decoder, InterpolatedMVU
from quietbit.mechanism.laplace import Laplace
from quietbit.mechanism.scaling import MAX_BETA
from quietbit.mechanism.sign import Sign
from quietbit.mechanism.skellam import Skellam
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit, check_delta

__all__ = ["Calibration", "MechanismName", "calibrate"]

MechanismName: TypeAlias = Literal["imvu", "mvu", "gaussian", "laplace", "sign", "skellam"]
Family: TypeAlias = Callable[[float], Mechanism]
Account: TypeAlias = Callable[[Mechanism], float]

ACCURACY = 2e-5
MAX_RELEASES = 10**9
MIN_BETA = 1e-6
MOST_LEVELS = 65


@final
@dataclass(frozen=True, slots=True)
class Calibration:
    """A mechanism that meets a target, what it guarantees, and what it costs in accuracy.

    ``squared_error`` is the expected squared error of a decoded coordinate whose true value is 0 (for `Sign`,
    whose +1 and -1 have no unit, after dividing by its slope at 0); ``gaussian_squared_error`` is the same for
    a Gaussian calibrated to the same target on the L2 ball of the same radius. ``saturated`` says that the
    target allows more than this kind of mechanism can be made to reveal with a certificate, so that the
    guarantee is more than 1e-4 below it: one release of I-MVU or MVU at an epsilon of 30 and more, where
    probabilities meet the accuracy of the sampler and of the doubles that hold them.
    """

    mechanism: Mechanism
    guarantee: Guarantee
    releases: int
    squared_error: float
    gaussian_squared_error: float
    saturated: bool


def calibrate(
    mechanism: MechanismName,
    *,
    ball: Ball,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    releases: int = 1,
    bits: int | None = None,
    levels: int | None = None,
    beta: float = 1.0,
    clamp: bool = False,
    decoder: Decoder = "alphabet",
    design: Design | None = None,
    unit: Unit = Unit.CLIENT,
    trust: Trust = Trust.LOCAL,
    account: Account | None = None,
) -> Calibration:
    """The most accurate mechanism of its kind whose releases together stay within (epsilon, delta).

    Args:
        mechanism: ``imvu`` (solves for the design's epsilon, or for beta where a design is given), ``mvu``,
            ``gaussian``, ``laplace``, ``sign`` (of the noise that fits the ball's norm) or ``skellam``.
        ball: where updates lie.
        epsilon: the target for all releases of one party together; met to a relative 1e-4 from below.
        delta: in [0, 1); at 0 only pure mechanisms can answer.
        adjacency: what the neighbouring world is.
        releases: how often the same party takes part.
        bits: per code; 1 by default, 16 for ``skellam``.
        levels: of the design; 2 for ``imvu``, and for ``mvu`` about the root of the dimension.
        beta: of ``imvu`` when its design is solved for.
        clamp: of ``imvu``.
        decoder: of ``imvu``.
        design: calibrate beta for this design (``imvu`` only).
        unit: whose data the guarantee is about.
        trust: who may look.
        account: the epsilon at this delta that a mechanism costs the most exposed party, where that is not
            ``releases`` times its own curve (samples of clients of several sizes, say).

    A target too small for the mechanism is refused.
    """
    check_adjacency(adjacency)
    require(isinstance(ball, Ball), "ball", ball, "a Ball")
    target, delta = finite_real(epsilon, "epsilon"), check_delta(delta)
    times = whole_number(releases, "releases", 1, MAX_RELEASES)
    names = get_args(MechanismName)
    require(mechanism in names, "mechanism", mechanism, "one of " + ", ".join(names))
    given = design is None or mechanism == "imvu"
    require(given, "design", "a design", f"left out for {mechanism} (it is for imvu)")
    if mechanism == "imvu" and design is not None:
        family: Family = lambda loss: InterpolatedMVU(design, ball, loss, clamp, decoder)  # noqa: E731
        low, high = MIN_BETA, MAX_BETA
    else:
        family, low, high = _family(mechanism, ball, bits, levels, beta, clamp, decoder)

    def measured(found: Mechanism) -> float:
        return _epsilon(found, adjacency, times, delta) if account is None else account(found)

    found = family(_largest_private(lambda loss: measured(family(loss)), low, high, target, mechanism))
    reached = measured(found)
    return Calibration(
        mechanism=found,
        guarantee=Guarantee(reached, delta, unit, adjacency, trust),
        releases=times,
        squared_error=_error(found),
        gaussian_squared_error=_gaussian_error(ball, target, delta, measured),
        saturated=reached < target * (1 - 1e-4),
    )


def _family(
    name: str, ball: Ball, bits: int | None, levels: int | None, beta: float, clamp: bool, decoder: Decoder
) -> tuple[Family, float, float]:
    """The mechanism as a function of its loss, and the range of losses."""
    noise = (1 / gaussian.MAX_MULTIPLIER, 1 / gaussian.MIN_MULTIPLIER)
    if name == "gaussian":
        return lambda loss: Gaussian(ball, 1 / loss), *noise
    if name == "laplace":
        return lambda loss: Laplace(ball, 1 / loss), *noise
    if name == "sign":
        inner = Gaussian if ball.norm is Norm.L2 else Laplace
        return lambda loss: Sign(inner(ball, 1 / loss)), *noise
    if name == "skellam":
        width = 16 if bits is None else bits
        limits = (1 / skellam.MAX_MULTIPLIER, 1 / skellam.MIN_MULTIPLIER)
        return lambda loss: Skellam(ball, 1 / loss, width), *limits
    width = 1 if bits is None else bits
    count = levels if levels is not None else 2 if name == "imvu" else _usual_levels(ball)
    spec = DesignSpec(count, width, 1.0)
    known = closed_form(spec) is not None
    rule = "2, or bits 1 (for others solve a design and pass it: beta is then calibrated)"
    require(known, "levels", count, rule)
    low = max(MIN_EPSILON, MIN_STEP * (count - 1)) * (1 + 1e-9)

    def solved(loss: float) -> Design:
        return _design(DesignSpec(count, width, loss))

    if name == "mvu":
        return lambda loss: DitheredMVU(solved(loss), ball), low, MAX_EPSILON
    return lambda loss: InterpolatedMVU(solved(loss), ball, beta, clamp, decoder), low, MAX_EPSILON


def _design(spec: DesignSpec) -> Design:
    """The closed-form design of a spec; where doubles make it steeper than asked, its spec says how steep."""
    formula = closed_form(spec)
    require(formula is not None, "spec", spec, "one with a closed form")
    table, alphabet = cast(tuple[FloatMatrix, FloatVector], formula)
    made = Design(spec, exact_rows(table), alphabet)
    measured = certify(made)
    if measured.meets_spec:
        return made
    return Design(replace(spec, epsilon=measured.epsilon_upper), made.probabilities, made.alphabet)


def _usual_levels(ball: Ball) -> int:
    """Odd, so that zero is a level, and about as many as make dithering harmless."""
    half = math.ceil(math.sqrt(ball.dimension) / 2)
    return min(2 * half + 1, MOST_LEVELS)


def _epsilon(mechanism: Mechanism, adjacency: Adjacency, releases: int, delta: float) -> float:
    return mechanism.privacy(adjacency).repeat(releases).epsilon_upper(delta)


def _largest_private(account: Callable[[float], float], low: float, high: float, target: float, name: str) -> float:
    """The largest loss found with account(loss) <= target; the bracket's lower end is always private."""

    def safe(loss: float) -> float:
        try:
            return account(loss)
        except QuietbitError:  # what cannot be built or certified counts as infinitely revealing
            return math.inf

    value = account(low)
    if math.isinf(value):
        raise InvalidParameter(f"delta must be above 0 for {name}, which is never purely private.")
    require(value <= target, "epsilon", target, f"at least {value:.4g}, the least that {name} reaches here")
    private = low
    revealing, above = _first_above(safe, low, high, target)
    if above <= target:
        return revealing
    for step in range(200):
        if value >= target * (1 - ACCURACY) or revealing <= private * (1 + 1e-13):
            break
        middle = _between(private, value, revealing, above, target, step)
        there = safe(middle)
        if there <= target:
            private, value = middle, there
        else:
            revealing, above = middle, there
    return private


def _first_above(account: Callable[[float], float], low: float, high: float, target: float) -> tuple[float, float]:
    """A loss whose account exceeds the target, from strides that grow; else the end of the range."""
    loss, stride = low, 4.0
    while loss < high:
        loss = min(loss * stride, high)
        value = account(loss)
        if value > target:
            return loss, value
        stride = min(stride * 2, 64.0)
    return high, account(high)


def _between(private: float, value: float, revealing: float, above: float, target: float, step: int) -> float:
    """A loss inside the bracket: by log-log interpolation, and by halving at every third step."""
    left, right = math.log(private), math.log(revealing)
    share = 0.5
    if value > 0 and above < math.inf and step % 3 < 2:
        aim = math.log(target * (1 - ACCURACY / 2))
        share = (aim - math.log(value)) / (math.log(above) - math.log(value))
    edge = 0.02
    return math.exp(left + min(max(share, edge), 1 - edge) * (right - left))


def _error(mechanism: Mechanism) -> float:
    if isinstance(mechanism, Sign):
        return mechanism.variance(0.0) / mechanism.slope_at_zero**2
    return mechanism.variance(0.0) + mechanism.expectation(0.0) ** 2


def _gaussian_error(ball: Ball, target: float, delta: float, measured: Account) -> float:
    """The Gaussian's error at the same target; infinite at delta = 0, where none exists."""
    if delta == 0:
        return math.inf
    low, high = 1 / gaussian.MAX_MULTIPLIER, 1 / gaussian.MIN_MULTIPLIER
    round_ball = Ball(Norm.L2, ball.radius, ball.dimension)

    def account(loss: float) -> float:
        return measured(Gaussian(round_ball, 1 / loss))

    return Gaussian(round_ball, 1 / _largest_private(account, low, high, target, "gaussian")).variance(0.0)
