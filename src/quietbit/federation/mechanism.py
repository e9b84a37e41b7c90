"""The mechanism of a plan: which family with which choices, and the strength that meets the budget.

Idea     the mechanism and the cost of one release follow from the plan alone, so they cannot
         disagree. With a strength given, it is built; without one, it is calibrated on the account
         that the run will keep, for the releases of the most frequent client.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters", for the choices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import attrs
import numpy as np

from quietbit.errors import InvalidParameter
from quietbit.federation.parts.adaptive_clip import AdaptiveClipping, most_truthful
from quietbit.federation.parts.samples import Samples
from quietbit.federation.parts.secure_aggregation import OF_SUMS
from quietbit.federation.terms import CENTRAL, Counts, Terms
from quietbit.mechanism.abilities import Batches, Summable
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.batch import site_release
from quietbit.mechanism.calibrate import calibrate
from quietbit.mechanism.family import SHARED, Choices
from quietbit.mechanism.projected import ProjectedSamples, project
from quietbit.mechanism.registry import family
from quietbit.privacy.cost import Cost
from quietbit.target import Target, Trust, Unit

__all__ = ["mechanism_of", "release_cost"]

# Share of epsilon that updates leave to answers of scouts, where rounding leaves them none.
ROOM = 1e-4


def mechanism_of(
    plan: Terms, dimension: int, sizes: Counts | None, releases: int | Counts | None
) -> Mechanism:
    """Return the mechanism for updates of ``dimension`` numbers, as `Plan.mechanism_for` does."""
    if not plan.private:
        raise InvalidParameter.of("mechanism", "private to be built", plan.mechanism.name)
    ball = Ball(plan.mechanism.norm, dimension)
    samples = plan.find(Samples)
    if samples is not None and samples.dataset_size is not None:
        sizes = np.array([samples.dataset_size], dtype=np.int64)
    if samples is not None and sizes is None:
        raise InvalidParameter.of("sizes", "given where samples are protected", None)
    known = np.ones(1, dtype=np.int64)
    if sizes is not None:
        known = np.asarray(sizes, dtype=np.int64)
    if not plan.mechanism.calibrated:
        if samples is None:
            return _given(plan, ball, 1)
        smallest = int(known.min())
        if samples.sampling_rate is None:
            return _given(plan, ball, smallest)
        expected = max(1, int(smallest * samples.sampling_rate))
        return site_release(_given(plan, ball, expected), smallest, **samples.options())
    times = plan.releases
    if releases is not None:
        times = cast(Any, releases)
    if times is None:
        rule = "given to meet a budget"
        raise InvalidParameter.of("releases", rule, None, "say how often a client may take part")
    counts = np.asarray(times, dtype=np.int64)
    aim = plan.update_target
    scouts = plan.find(AdaptiveClipping)
    if scouts is None:
        return _calibrated(plan, aim, ball, known, counts)
    within = _within(plan, known, counts)
    for room in (0.0, ROOM):
        less = attrs.evolve(aim, epsilon=aim.epsilon * (1 - room))
        still = _calibrated(plan, less, ball, known, counts)
        moving = most_truthful(still, cast(int, scouts.every), within)
        if moving is not None:
            return moving
    rule = "large enough that the answer of a scout says something"
    raise InvalidParameter.of("epsilon", rule, plan.epsilon, "set clip to a number")


def release_cost(plan: Terms, mechanism: Mechanism, samples: int | None = None) -> Cost:
    """Return the cost of one release, to a client or to one of its ``samples`` samples."""
    known = plan.find(Samples)
    if known is not None and known.dataset_size is not None:
        samples = Batches.of(mechanism).batch
    if plan.honest is not None:
        return Summable.of(mechanism).sum_privacy(plan.honest, plan.adjacency)
    return mechanism.privacy(plan.adjacency, samples).under(trust=plan.trust)


def _within(plan: Terms, sizes: Counts, counts: Counts) -> Callable[[Mechanism], bool]:
    """Return whether the releases of a mechanism stay within the budget of updates."""
    account = plan.account_of(sizes, counts)
    busiest = max(1, int(counts.max()))

    def within(mechanism: Mechanism) -> bool:
        if account is not None:
            spent = account(mechanism)
        else:
            spent = (release_cost(plan, mechanism) * busiest).guarantee(plan.delta)
        return spent.epsilon_upper <= plan.update_target.epsilon

    return within


def _calibrated(plan: Terms, aim: Target, ball: Ball, sizes: Counts, counts: Counts) -> Mechanism:
    """Return the mechanism calibrated to a budget."""
    chosen = plan.mechanism
    name = chosen.name
    options = chosen.used()
    samples = plan.find(Samples)
    if plan.summed_clients is not None:
        name = OF_SUMS
        options = {"honest": plan.honest, "decoder": chosen.decoder, "rotate": chosen.rotate}
    elif plan.trust is Trust.CENTRAL:
        name = CENTRAL
    elif samples is not None:
        options |= {"samples": int(sizes.min()), **samples.options()}
    calibration = calibrate(
        name,
        ball=ball,
        epsilon=aim.epsilon,
        delta=aim.delta,
        adjacency=plan.adjacency,
        releases=max(1, int(counts.max())),
        account=plan.account_of(sizes, counts),
        coordinates=chosen.coordinates,
        rows=SHARED if plan.shared_rows else chosen.rows,
        **options,
    )
    if samples is not None and calibration.saturated:
        rule = f"above {chosen.beta or 1.0:g} to make use of epsilon {plan.epsilon:g}"
        reason = f"one of {sizes.min()} samples moves an input by little"
        raise InvalidParameter.of("mechanism.beta", rule, chosen.beta, reason)
    return calibration.mechanism


def _given(plan: Terms, ball: Ball, samples: int) -> Mechanism:
    """Build the mechanism with the strength that the plan gives."""
    chosen = plan.mechanism
    kind = family(chosen.name)
    strength = cast(float, getattr(chosen, kind.strength))
    if kind.strength == "noise_multiplier":
        strength = strength / samples
    rows = None
    if chosen.knows_rows:
        rows = SHARED if plan.shared_rows else chosen.rows
    # Families that do not keep coordinates themselves do so by a wrapper.
    wrapped = chosen.coordinates is not None and "coordinates" not in kind.uses
    by_sample = plan.unit is Unit.SAMPLE
    choices = Choices(
        **chosen.used(),
        coordinates=None if wrapped else chosen.coordinates,
        rows=rows,
        rotated=wrapped,
        by_sample=by_sample,
    )
    if not wrapped:
        return kind.given(ball, strength, choices)
    projected = project(
        ball, cast(Any, chosen.coordinates), lambda within: kind.given(within, strength, choices)
    )
    if plan.shared_rows:
        projected = projected.at(0)
    return ProjectedSamples(projected) if by_sample else projected
