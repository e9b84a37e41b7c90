"""Calibration: the most accurate mechanism of a family that meets a target, or of all families.

Idea     the family searches; the account is that of the mechanism itself, so the guarantee never
         exceeds the target, whatever the search did. The error is reported beside the Gaussian's at
         the same target. ``auto`` calibrates every family and, of those with nearly the smallest
         error, takes the one that sends fewest bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Never, TypeAlias, final

from attrs import evolve, frozen

from quietbit.design.table import Design
from quietbit.errors import (
    InvalidParameter,
    QuietbitError,
    check_current,
    check_int,
    require,
)
from quietbit.mechanism.abilities import Batches, Summable
from quietbit.mechanism.ball import Ball, Norm, check_ball
from quietbit.mechanism.base import Error, Mechanism
from quietbit.mechanism.batch import site_release
from quietbit.mechanism.family import OWN, SHARED, Choices
from quietbit.mechanism.forecast import forecast
from quietbit.mechanism.interpolated_family import calibrated_codes
from quietbit.mechanism.projected import ProjectedSamples, project
from quietbit.mechanism.registry import AUTO, families, family
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import MOST_CLIENTS, Adjacency, Target

__all__ = [
    "AUTO",
    "AUTO_RULE",
    "Alternative",
    "Calibration",
    "alternatives",
    "calibrate",
    "smallest_of_the_best",
]

AUTO_RULE = "of the mechanisms within 5 % of the least error, the one that sends the fewest bytes"
# Keywords of earlier versions, and what they are now.
RENAMED = {
    "keep": "now coordinates",
    "clients": "now honest: the clients that answer and do not collude with the server",
    "min_honest_clients": "now honest",
}
NEARLY = 1.05  # factor of error that is acceptable for sending less

Priced: TypeAlias = Callable[[Mechanism], Guarantee]


@final
@frozen
class Calibration:
    """A mechanism that meets a target, with its guarantee and its error.

    Attributes:
        gaussian_squared_error: of a Gaussian calibrated to the same target on the L2 ball of the
            same clip; behind secure aggregation, of such noise shared out among honest clients.
        saturated: the guarantee is more than 1e-4 below the target, because no certified mechanism
            of this kind reveals more in one release (I-MVU and MVU from an epsilon of 30 on, the
            vector mechanism above 18 zero-out or 30 replace-one); several releases spend more.
        reason: why ``auto`` chose this mechanism.
    """

    mechanism: Mechanism
    guarantee: Guarantee
    releases: int
    error: Error
    gaussian_squared_error: float
    saturated: bool
    reason: str = ""

    @property
    def squared_error(self) -> float:
        """The squared error per decoded coordinate in clips, for the worst update in the ball."""
        return self.error.squared

    @property
    def relative_error(self) -> float:
        """The squared error divided by the Gaussian's."""
        return self.error.squared / self.gaussian_squared_error


@final
@frozen
class Alternative:
    """One way to meet a target, or its ``refusal``."""

    mechanism: str
    coordinates: int | str | None
    calibration: Calibration | None
    refusal: str = ""


def calibrate(
    mechanism: str,
    *,
    ball: Ball,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | str,
    releases: int = 1,
    samples: int | None = None,
    sampling_rate: float | None = None,
    local_steps: int | None = None,
    local_rate: float | None = None,
    local_bits: int = 4,
    bits: int | None = None,
    levels: int | None = None,
    beta: float | None = None,
    clamp: bool | None = None,
    decoder: str | None = None,
    design: Design | None = None,
    rotate: bool | None = None,
    coordinates: int | str | None = None,
    rows: str | None = None,
    honest: int | None = None,
    account: Priced | None = None,
    **earlier: Never,
) -> Calibration:
    """Return the most accurate mechanism whose releases together stay within (epsilon, delta).

    Args:
        mechanism: the name of a family: ``imvu``, ``vmvu``, ``gaussian``, or that of an installed
            package, such as ``mvu`` or ``skellam`` of the laboratory; ``auto`` for the best: of
            those within 5 % of the smallest error, the one that sends the fewest bytes.
        ball: the norm and the number of parameters of updates, in clips.
        epsilon: the target for all releases of one client together; met from below, to 1e-4 of it.
        delta: in [0, 1); 0 needs a pure mechanism.
        adjacency: which two data sets are neighbours.
        releases: how many releases the same client makes.
        samples: how many samples a client has, where the privacy unit is one sample rather than the
            client. With ``coordinates``, their gradients are then sent by `Uplink.send_samples`.
        sampling_rate: the probability with which each of a site's samples, about ``samples``, is in
            a secret batch.
        local_steps: how many private steps a site takes before it sends the difference of models.
        local_rate: the learning rate of such a step.
        local_bits: bits per coordinate of that difference, 1 to 8.
        bits: per code; 1 by default, 16 for ``skellam``.
        levels: of the design; 2 for ``imvu``, and for ``mvu`` about the root of the dimension.
        beta: of ``imvu`` when its design is solved for.
        clamp: of ``imvu``.
        decoder: of ``imvu``: ``alphabet`` or ``unbiased-at-zero``.
        design: calibrate beta for this design (``imvu``).
        rotate: mix coordinates by a public rotation first (``imvu`` on an L2 ball), by default;
            False as in the paper.
        coordinates: how many rotated ones a client keeps, a power of two, or ``auto``: as many as
            make the projection cost at most 1 % of the error. By default ``vmvu`` keeps 1,024 or
            more, and the others keep all.
        rows: ``own``: every release draws the rows that it keeps (default); ``shared``: all clients
            of a round keep the same.
        honest: behind secure aggregation, how many clients of a sum at least answer and do not
            collude with the server (``imvu`` with codes of one bit). The target is then for the
            sums, and ``releases`` is the number of sums that a client takes part in.
        account: returns the guarantee of the most exposed client, where that is not ``releases``
            times the mechanism's cost.
        **earlier: names of earlier versions, which are refused with the new one.

    A target too small for the mechanism is refused, and so is a choice that it does not use.
    """
    for name in earlier:
        check_current(name, RENAMED)
        raise TypeError(f"calibrate() got an unexpected keyword argument {name!r}")
    target = Target(epsilon, delta, adjacency, releases=releases).limited()
    check_ball(ball)
    choices = Choices(bits, levels, beta, clamp, decoder, design, rotate=rotate, rows=rows)
    if mechanism == AUTO:
        for name, value in (
            ("sampling_rate", sampling_rate),
            ("local_steps", local_steps),
            ("rows", rows),
            ("honest", honest),
        ):
            require(value is None, name, value, f"left out for {AUTO}", "name a mechanism")
        rule = "named where bits, levels, beta, clamp, decoder, design or rotate are"
        require(choices == Choices(), "mechanism", AUTO, rule)
        ways = alternatives(ball, target, samples=samples, coordinates=coordinates, account=account)
        return _chosen(ways, target)
    if sampling_rate is None:
        rule = "left out without a sampling rate, by which sites draw batches"
        require(local_steps is None and local_rate is None, "local_steps", local_steps, rule)
    elif samples is None:
        rule = "given where batches are drawn: about how many a site has"
        raise InvalidParameter.of("samples", rule)

    chosen = family(mechanism)
    choices = evolve(choices, by_sample=samples is not None)
    if "coordinates" in chosen.uses:
        choices = evolve(choices, coordinates=coordinates)
    if "rows" not in chosen.uses:
        fits = rows is None or coordinates is not None
        require(fits, "rows", rows, "left out where all coordinates are kept")
        choices = evolve(choices, rows=None)
    choices.check(chosen)
    if honest is not None:
        honest = check_int(honest, "honest", 2, MOST_CLIENTS)
        require(mechanism == "imvu", "mechanism", mechanism, "imvu for sums")
        require(samples is None, "samples", samples, "left out for sums, which protect clients")
        solved = evolve(choices, decoder=None, rotate=None) == Choices()
        rule = "left out for sums, whose codes of one bit are calibrated"
        require(solved, "bits, levels, beta, clamp or design", choices, rule)
        require(rows != OWN, "rows", rows, "shared for sums")

    def release(mechanism: Mechanism) -> Mechanism:
        if sampling_rate is None or samples is None:
            return mechanism
        return site_release(mechanism, samples, sampling_rate, local_steps, local_rate, local_bits)

    def guarantee_of(mechanism: Mechanism) -> Guarantee:
        sent = release(mechanism)
        if account is not None:
            return account(sent)
        if honest is not None:
            cost = Summable.of(sent).sum_privacy(honest, target.adjacency)
            return (cost * target.releases).guarantee(target.delta)
        batches = Batches.find(sent)
        divisor = samples if batches is None else batches.batch
        return (sent.privacy(target.adjacency, divisor) * target.releases).guarantee(target.delta)

    def epsilon_of(mechanism: Mechanism) -> float:
        return guarantee_of(mechanism).epsilon_upper

    def epsilon_alone(mechanism: Mechanism) -> float:
        """Return the epsilon of a mechanism without sums, seen once for all clients."""
        return (mechanism.privacy(target.adjacency) * target.releases).epsilon(target.delta)

    def on(ball: Ball, choices: Choices) -> Mechanism:
        if honest is not None:
            return calibrated_codes(ball, choices, target, honest, epsilon_of)
        return chosen.calibrated(ball, choices, target, epsilon_of)

    def on_rows(rows_ball: Ball) -> Mechanism:
        return on(rows_ball, evolve(choices, rotated=True))

    if coordinates is None or "coordinates" in chosen.uses:
        calibrated = on(ball, choices)
    else:  # families that do not keep coordinates themselves do so by a wrapper
        projected = project(ball, coordinates, on_rows, honest or 1)
        if rows == SHARED or honest is not None:
            projected = projected.at(0)
        calibrated = projected if samples is None else ProjectedSamples(projected)
    guarantee = guarantee_of(calibrated)
    if honest is None:
        gaussian = _gaussian_error(ball, target, epsilon_of)
    else:
        gaussian = _gaussian_error(ball, target, epsilon_alone) / honest
    return Calibration(
        mechanism=release(calibrated),
        guarantee=guarantee,
        releases=target.releases,
        error=calibrated.error(),
        gaussian_squared_error=gaussian,
        saturated=guarantee.epsilon_upper < target.epsilon * (1 - 1e-4),
    )


def alternatives(
    ball: Ball,
    target: Target,
    *,
    samples: int | None = None,
    coordinates: int | str | None = None,
    account: Priced | None = None,
    report: Callable[[float, str], None] | None = None,
) -> tuple[Alternative, ...]:
    """Calibrate every family to the target, and return one alternative per way to meet it.

    On an L2 ball a family is also calibrated with the fewest coordinates kept that add 1 % to the
    error; with ``coordinates`` given, all keep that many. Mechanisms that are for comparison only
    are left out. ``report(fraction, message)`` is called with the progress.
    """
    ways: list[tuple[str, int | str | None]] = []
    broken = []
    for name in families():
        try:
            candidate = family(name)
        except InvalidParameter as error:  # a family of a package that cannot be imported
            broken.append(Alternative(name, coordinates, None, str(error)))
            continue
        if candidate.baseline:
            continue
        ways.append((name, coordinates))
        by_client_on_l2 = ball.norm is Norm.L2 and samples is None
        if coordinates is None and by_client_on_l2 and "coordinates" not in candidate.uses:
            ways.append((name, "auto"))
    calibrate_way: Callable[..., Alternative] = _alternative
    if account is not None:  # the results of a caller's account are not cached
        calibrate_way = _alternative.__wrapped__
    calibrated = []
    for index, (name, kept) in enumerate(ways):
        if report is not None:
            report(index / len(ways), name)
        calibrated.append(calibrate_way(name, kept, ball, target, samples, account))
    return (*calibrated, *broken)


@lru_cache(maxsize=256)
def _alternative(
    name: str,
    coordinates: int | str | None,
    ball: Ball,
    target: Target,
    samples: int | None,
    account: Priced | None,
) -> Alternative:
    try:
        calibration = calibrate(
            name,
            ball=ball,
            **target.keywords(),
            samples=samples,
            coordinates=coordinates,
            account=account,
        )
    except QuietbitError as error:
        return Alternative(name, coordinates, None, str(error))
    return Alternative(name, coordinates, calibration)


def smallest_of_the_best(errors: Sequence[float], sizes: Sequence[int]) -> int:
    """Return the index of the smallest size whose error is within 5 % of the least.

    Ties go to the smaller error.

    >>> smallest_of_the_best([1.0, 1.02, 1.2], [400, 13, 2])
    1
    """
    acceptable = NEARLY * min(errors)
    indices = [index for index, error in enumerate(errors) if error <= acceptable]
    return min(indices, key=lambda index: (sizes[index], errors[index], index))


def _chosen(ways: Sequence[Alternative], target: Target) -> Calibration:
    """Return what ``auto`` chooses, with its reason: the decoded mean must be an update."""
    names = []
    calibrations = []
    for way in ways:
        calibration = way.calibration
        if calibration is not None and not calibration.mechanism.unitless:
            names.append(way.mechanism)
            calibrations.append(calibration)
    if not calibrations:
        refusals = "; ".join(f"{way.mechanism}: {way.refusal.rstrip('.')}" for way in ways)
        message = f"No mechanism reaches epsilon {target.epsilon:g} here ({refusals})."
        raise InvalidParameter(message, name="epsilon", value=target.epsilon)
    sizes = [calibration.mechanism.layout.size for calibration in calibrations]
    errors = [
        forecast(calibration.mechanism, cohort=1).loudness ** 2 for calibration in calibrations
    ]
    index = smallest_of_the_best(errors, sizes)
    best = calibrations[index]
    ratio = errors[index] / min(errors)
    if ratio <= 1:
        closeness = "the least error of all"
    else:
        closeness = f"an error within {100 * (ratio - 1):.1f} % of the least"
    if math.isfinite(best.gaussian_squared_error):
        closeness += f", {best.relative_error:.3g} times the Gaussian's"
    size = f"with {sizes[index]:,} bytes no more to send than any other as accurate"
    return evolve(best, reason=f"auto took {names[index]}: {closeness}, and {size}.")


def _gaussian_error(ball: Ball, target: Target, epsilon_of: Callable[[Mechanism], float]) -> float:
    """Return the Gaussian's error at the same target; infinite at delta = 0, where none exists."""
    if target.delta == 0:
        return math.inf
    l2_ball = Ball(Norm.L2, ball.dimension)
    return family("gaussian").calibrated(l2_ball, Choices(), target, epsilon_of).error().squared
