"""Calibration: the most accurate mechanism of a family that meets a target, or of all families.

Idea     the family does the search; the account is that of the mechanism itself, so the guarantee
         never exceeds the target, whatever the search did. The error is reported beside the
         Gaussian's at the same target. ``auto`` asks every family and, of those with nearly the
         smallest error, takes the one that sends fewest bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias, final

from attrs import evolve, frozen

from quietbit.design.table import Design
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.mechanism.abilities import Batches
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Error, Mechanism
from quietbit.mechanism.batch import site_release
from quietbit.mechanism.expectation import expectation
from quietbit.mechanism.family import SHARED, Choices
from quietbit.mechanism.projected import ProjectedSamples, project
from quietbit.mechanism.registry import families, family
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Adjacency, Target

__all__ = [
    "AUTO",
    "AUTO_RULE",
    "Alternative",
    "Calibration",
    "alternatives",
    "calibrate",
    "smallest_of_the_best",
]

AUTO = "auto"  # in place of a family's name: the best of all families
AUTO_RULE = "of the mechanisms within 5 % of the least error, the one that sends the fewest bytes"
NEARLY = 1.05  # factor of error that is acceptable for sending less

Priced: TypeAlias = Callable[[Mechanism], Guarantee]


@final
@frozen
class Calibration:
    """A mechanism that meets a target, with its guarantee and its error (`quietbit.mechanism.Error`).

    ``gaussian_squared_error`` is the error of a Gaussian calibrated to the same target on the L2
    ball of the same radius. ``saturated``: the target allows more than a certified mechanism of
    this kind can reveal in one release (I-MVU and MVU from an epsilon of 30 on, the vector
    mechanism above 18 zero-out or 30 replace-one), so that the guarantee is more than 1e-4 below
    it; several releases of the same update spend more. ``reason`` says why ``auto`` chose this
    mechanism.
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
        """The squared error per decoded coordinate, for the worst update in the ball."""
        return self.error.squared

    @property
    def relative_error(self) -> float:
        """The squared error divided by the Gaussian's."""
        return self.error.squared / self.gaussian_squared_error


@final
@frozen
class Alternative:
    """One way to meet a target, or its ``refusal``; a ``baseline`` is for comparison only and never chosen."""

    mechanism: str
    keep: int | str | None
    calibration: Calibration | None
    refusal: str = ""
    baseline: bool = False


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
    keep: int | str | None = None,
    rows: str | None = None,
    account: Priced | None = None,
) -> Calibration:
    """Return the most accurate mechanism of its kind whose releases together stay within (epsilon, delta).

    Args:
        mechanism: the name of a family: ``imvu``, ``vmvu``, ``mvu``, ``gaussian``, ``laplace``,
            ``sign`` (of the noise that fits the ball's norm), ``skellam``, or another package's;
            ``auto`` for the best: of those within 5 % of the smallest error, the one that sends the
            fewest bytes.
        ball: the ball that updates are clipped to.
        epsilon: the target for all releases of one party together; met to a relative 1e-4 from
            below.
        delta: in [0, 1); 0 needs a pure mechanism.
        adjacency: which two data sets are neighbours.
        releases: how many releases the same party makes.
        samples: how many samples a client has, where the privacy unit is one sample rather than the
            client. With ``keep``, their gradients are then sent by `Uplink.send_samples`.
        sampling_rate: the probability of each of a site's samples (about ``samples``) to be in a
            secret batch.
        local_steps: private steps that a site takes on its batches before it sends the difference
            of models.
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
        keep: how many rotated coordinates a client keeps, a power of two, or ``auto``: as many as
            make the projection cost at most 1 % of the error. By default ``vmvu`` keeps 1,024 or
            more, and the others keep all.
        rows: ``own``, the kept rows are drawn by every release (default), or ``shared`` by all
            clients of a round.
        account: the guarantee of the most exposed party, where that is not ``releases`` times the
            mechanism's cost.

    A target too small for the mechanism is refused, and so is a choice that it does not use.
    """
    target = Target(epsilon, delta, adjacency, releases=releases).limited()
    require(isinstance(ball, Ball), "ball", ball, "a Ball")
    if mechanism == AUTO:
        for name, value in (
            ("sampling_rate", sampling_rate),
            ("local_steps", local_steps),
            ("rows", rows),
        ):
            require(
                value is None,
                name,
                value,
                f"left out for {AUTO}: name the mechanism that it is for",
            )
        unused = Choices(bits, levels, beta, clamp, decoder, design, rotate=rotate)
        rule = "named where bits, levels, beta, clamp, decoder, design or rotate are"
        require(unused == Choices(), "mechanism", AUTO, rule)
        return _chosen(
            alternatives(ball, target, samples=samples, keep=keep, account=account), target
        )
    chosen = family(mechanism)
    own = keep if "keep" in chosen.uses else None  # other families keep coordinates by a wrapper
    whose = rows if "rows" in chosen.uses else None
    named = rows is None or whose is not None or keep is not None
    require(named, "rows", rows, "left out where all coordinates are kept")
    choices = Choices(
        bits,
        levels,
        beta,
        clamp,
        decoder,
        design,
        own,
        rotate,
        whose,
        by_sample=samples is not None,
    )
    choices.check(chosen)

    if sampling_rate is None:
        rule = "left out unless sites draw batches, with a sampling rate"
        require(local_steps is None and local_rate is None, "local_steps", local_steps, rule)
    elif samples is None:
        raise InvalidParameter.of(
            "samples", "given where batches are drawn: about how many a site has"
        )

    def whole(found: Mechanism) -> Mechanism:
        if sampling_rate is not None and samples is not None:
            return site_release(found, samples, sampling_rate, local_steps, local_rate, local_bits)
        return found

    def priced(found: Mechanism) -> Guarantee:
        sent = whole(found)
        if account is not None:
            return account(sent)
        batches = Batches.find(sent)
        many = samples if batches is None else batches.batch
        return (sent.privacy(target.adjacency, many) * target.releases).guarantee(target.delta)

    def measured(found: Mechanism) -> float:
        return priced(found).epsilon_upper

    def rotated(within: Ball) -> Mechanism:
        return chosen.calibrated(within, evolve(choices, rotated=True), target, measured)

    if keep is None or "keep" in chosen.uses:
        found = chosen.calibrated(ball, choices, target, measured)
    else:
        projected = project(ball, keep, rotated)
        if rows == SHARED:
            shown = projected.at(0)
        else:
            shown = projected
        if samples is None:
            found = shown
        else:
            found = ProjectedSamples(shown)
    guarantee = priced(found)
    return Calibration(
        mechanism=whole(found),
        guarantee=guarantee,
        releases=target.releases,
        error=found.error(),
        gaussian_squared_error=_gaussian_error(ball, target, measured),
        saturated=guarantee.epsilon_upper < target.epsilon * (1 - 1e-4),
    )


def alternatives(
    ball: Ball,
    target: Target,
    *,
    samples: int | None = None,
    keep: int | str | None = None,
    account: Priced | None = None,
    baselines: bool = False,
    report: Callable[[float, str], None] | None = None,
) -> tuple[Alternative, ...]:
    """Calibrate every family to the target; on an L2 ball also with the fewest coordinates kept for 1 % more error.

    With ``keep`` given, all keep that many. ``baselines``: include mechanisms that are for
    comparison only. ``report(fraction, message)`` is called with the progress.
    """
    ways: list[tuple[str, int | str | None]] = []
    broken = []
    for word in families():
        try:
            one = family(word)
        except InvalidParameter as error:  # another package's family that cannot be imported
            broken.append(Alternative(word, keep, None, str(error)))
            continue
        if not one.baseline or baselines:
            ways.append((word, keep))
        if (
            keep is None
            and ball.norm is Norm.L2
            and samples is None
            and "keep" not in one.uses
            and not one.baseline
        ):
            ways.append((word, "auto"))
    found = []
    for place, (word, kept) in enumerate(ways):
        if report is not None:
            report(place / len(ways), word)
        look = (
            _looked if account is None else _looked.__wrapped__
        )  # a caller's account is not cached
        found.append(look(word, kept, ball, target, samples, account))
    return (*found, *broken)


@lru_cache(maxsize=256)
def _looked(
    word: str,
    keep: int | str | None,
    ball: Ball,
    target: Target,
    samples: int | None,
    account: Priced | None,
) -> Alternative:
    baseline = family(word).baseline
    try:
        found = calibrate(
            word, ball=ball, **target.keywords(), samples=samples, keep=keep, account=account
        )
    except QuietbitError as error:
        return Alternative(word, keep, None, str(error), baseline)
    return Alternative(word, keep, found, baseline=baseline)


def smallest_of_the_best(errors: Sequence[float], sizes: Sequence[int]) -> int:
    """Return the index of the smallest size whose error is within 5 % of the least; ties go to the smaller error.

    >>> smallest_of_the_best([1.0, 1.02, 1.2], [400, 13, 2])
    1
    """
    enough = NEARLY * min(errors)
    return min(
        (place for place, error in enumerate(errors) if error <= enough),
        key=lambda k: (sizes[k], errors[k], k),
    )


def _chosen(ways: Sequence[Alternative], target: Target) -> Calibration:
    """Return what ``auto`` chooses among mechanisms whose decoded mean is the update, with its reason."""
    reached = [
        (way.mechanism, way.calibration)
        for way in ways
        if way.calibration is not None and not way.baseline
    ]
    known = [(word, found) for word, found in reached if not found.error.unitless]
    if not known:
        said = "; ".join(f"{way.mechanism}: {way.refusal.rstrip('.')}" for way in ways)
        raise InvalidParameter(f"No mechanism reaches epsilon {target.epsilon:g} here ({said}).")
    sizes = [found.mechanism.layout.size for _, found in known]
    errors = [expectation(found.mechanism, cohort=1).loudness ** 2 for _, found in known]
    word, best = known[place := smallest_of_the_best(errors, sizes)]
    if math.isfinite(best.gaussian_squared_error):
        against = f", {best.relative_error:.3g} times the Gaussian's"
    else:
        against = ""
    size = sizes[place]
    least = errors[place] / min(errors)
    if least <= 1:
        close = "the least error of all"
    else:
        close = f"an error within {100 * (least - 1):.1f} % of the least"
    reason = f"auto took {word}: {close}{against}, and with {size:,} bytes no more to send than any other as accurate."
    return evolve(best, reason=reason)


def _gaussian_error(ball: Ball, target: Target, measured: Callable[[Mechanism], float]) -> float:
    """Return the Gaussian's error at the same target; infinite at delta = 0, where none exists."""
    if target.delta == 0:
        return math.inf
    round_ball = Ball(Norm.L2, ball.radius, ball.dimension)
    return family("gaussian").calibrated(round_ball, Choices(), target, measured).error().squared
