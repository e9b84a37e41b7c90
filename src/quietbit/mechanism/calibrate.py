"""Calibration: the most accurate mechanism of a family that meets a target.

Idea     the family knows how to look; the account is that of the mechanism itself, so the guarantee never exceeds the
         target, whatever the search did. Beside the error stands the Gaussian's at the same target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, final

from quietbit._validate import require
from quietbit.design.table import Design
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Error, Mechanism
from quietbit.mechanism.family import Choices, Target
from quietbit.mechanism.projected import Projected, ProjectedSamples, project
from quietbit.mechanism.registry import family
from quietbit.mechanism.watched import Watched
from quietbit.privacy.guarantee import Adjacency, Guarantee

__all__ = ["Calibration", "calibrate"]

Priced: TypeAlias = Callable[[Mechanism], Guarantee]


@final
@dataclass(frozen=True, slots=True)
class Calibration:
    """A mechanism that meets a target, what it guarantees, and what it costs in accuracy.

    ``squared_error`` is the expected squared error of a decoded coordinate whose true value is 0, after dividing by the
    slope of its mean there (which is 1 but for `Sign`, whose +1 and -1 have no unit, and for the decoder ``alphabet``);
    ``gaussian_squared_error`` is the same for a Gaussian calibrated to the same target on the L2 ball of the same
    radius. ``saturated`` says that the target allows more than this kind of mechanism can be made to reveal with a
    certificate, so that the guarantee is more than 1e-4 below it: one release of I-MVU or MVU at an epsilon of 30 and
    more, where probabilities meet the accuracy of the sampler and of the doubles that hold them.
    """

    mechanism: Mechanism
    guarantee: Guarantee
    releases: int
    error: Error
    gaussian_squared_error: float
    saturated: bool

    @property
    def squared_error(self) -> float:
        """Of a decoded coordinate whose true value is 0."""
        return self.error.squared


def calibrate(
    mechanism: str,
    *,
    ball: Ball,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | str,
    releases: int = 1,
    samples: int | None = None,
    bits: int | None = None,
    levels: int | None = None,
    beta: float | None = None,
    clamp: bool | None = None,
    decoder: str | None = None,
    design: Design | None = None,
    keep: int | str | None = None,
    bit_epsilon: float | None = None,
    account: Priced | None = None,
) -> Calibration:
    """The most accurate mechanism of its kind whose releases together stay within (epsilon, delta).

    Args:
        mechanism: the word of a family: ``imvu`` (solves for the design's epsilon, or for beta where a design is
            given), ``vmvu`` (designs its profile), ``mvu``, ``gaussian``, ``laplace``, ``sign`` (of the noise that
            fits the ball's norm), ``skellam``, or that of another package.
        ball: where updates lie.
        epsilon: the target for all releases of one party together; met to a relative 1e-4 from below.
        delta: in [0, 1); at 0 only pure mechanisms can answer.
        adjacency: what the neighbouring world is.
        releases: how often the same party takes part.
        samples: how many samples a client has, where one of them is to be protected rather than the client. With
            ``keep``, their gradients are then sent by `Uplink.send_samples`.
        bits: per code; 1 by default, 16 for ``skellam``.
        levels: of the design; 2 for ``imvu``, and for ``mvu`` about the root of the dimension.
        beta: of ``imvu`` when its design is solved for.
        clamp: of ``imvu``.
        decoder: of ``imvu``: ``alphabet`` or ``unbiased-at-zero``.
        design: calibrate beta for this design (``imvu``).
        keep: how many rotated coordinates a client keeps, a power of two, or ``auto``: as many as make the projection
            cost at most 1 % of the error. By default ``vmvu`` keeps 1,024 or more, and the others all.
        bit_epsilon: what the bit of a clip that moves costs in every release (`Watched`); the budget is met for
            both together. By default the clip stays where it is, and there is no bit.
        account: the guarantee of the most exposed party, where that is not ``releases`` times the mechanism's own
            (samples of clients of several sizes, say).

    A target too small for the mechanism is refused, and so is a choice that it makes no use of.
    """
    target = Target(epsilon, delta, adjacency, releases)  # type: ignore[arg-type]
    require(isinstance(ball, Ball), "ball", ball, "a Ball")
    chosen = family(mechanism)
    own = keep if "keep" in chosen.uses else None  # others keep coordinates by a wrapper
    choices = Choices(bits, levels, beta, clamp, decoder, design, own)
    choices.check(chosen)

    def whole(found: Mechanism) -> Mechanism:
        return found if bit_epsilon is None else Watched(found, found.domain.radius, bit_epsilon)

    def priced(found: Mechanism) -> Guarantee:
        if account is not None:
            return account(whole(found))
        return whole(found).privacy(target.adjacency, samples).repeat(target.releases).guarantee(target.delta)

    def measured(found: Mechanism) -> float:
        return priced(found).epsilon_upper

    def calibrated(within: Ball) -> Mechanism:
        return chosen.calibrated(within, choices, target, measured)

    def rotated(within: Ball) -> Mechanism:
        return chosen.calibrated(within, replace(choices, rotated=True), target, measured)

    found = calibrated(ball) if keep is None or own is not None else project(ball, keep, rotated)
    if samples is not None and isinstance(found, Projected):
        found = ProjectedSamples(found)
    guarantee = priced(found)
    return Calibration(
        mechanism=whole(found),
        guarantee=guarantee,
        releases=target.releases,
        error=found.error(),
        gaussian_squared_error=_gaussian_error(ball, target, measured),
        saturated=guarantee.epsilon_upper < target.epsilon * (1 - 1e-4),
    )


def _gaussian_error(ball: Ball, target: Target, measured: Callable[[Mechanism], float]) -> float:
    """The Gaussian's error at the same target; infinite at delta = 0, where none exists."""
    if target.delta == 0:
        return math.inf
    round_ball = Ball(Norm.L2, ball.radius, ball.dimension)
    found = family("gaussian").calibrated(round_ball, Choices(), target, measured)
    return found.error().squared
