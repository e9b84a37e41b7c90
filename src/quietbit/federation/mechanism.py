"""The mechanism of a plan: which family with which choices, and the strength that meets the budget.

Idea     the mechanism and the cost of one release follow from the plan alone, so they cannot
         disagree. With a strength given, it is built; without one, it is calibrated on the account
         that the run will keep, for the releases of the most frequent client.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters", for the choices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter
from quietbit.federation.costs import ClientCosts
from quietbit.federation.participation import Schedule
from quietbit.federation.parts.adaptive_clip import AdaptiveClipping, most_truthful
from quietbit.federation.parts.samples import Samples
from quietbit.federation.parts.secure_aggregation import SecureAggregation
from quietbit.federation.terms import CENTRAL, POISSON, Terms
from quietbit.mechanism.abilities import Batches, Summable
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.batch import site_release
from quietbit.mechanism.calibrate import calibrate
from quietbit.mechanism.central_sum import calibrate_sum
from quietbit.mechanism.family import SHARED, Choices
from quietbit.mechanism.interpolated import UNBIASED
from quietbit.mechanism.projected import ProjectedSamples, project
from quietbit.mechanism.registry import family
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.privacy.subsampling import poisson_cost
from quietbit.target import Adjacency, Target, Trust, Unit

__all__ = ["account_of_run", "mechanism_of", "release_cost"]

# Share of epsilon that updates leave to answers of scouts, where rounding leaves them none.
ROOM = 1e-4

Counts: TypeAlias = NDArray[np.int64]
Priced: TypeAlias = Callable[[Mechanism], Guarantee]


def mechanism_of(
    plan: Terms, dimension: int, sizes: Counts | None, releases: int | Counts | None
) -> Mechanism:
    """Return the mechanism for updates of ``dimension`` numbers, as `Plan.mechanism_for` does."""
    if not plan.private:
        raise InvalidParameter.of("mechanism", "private to be built", plan.mechanism.name)
    ball = Ball(plan.mechanism.norm, plan.clip, dimension)
    by_sample = plan.unit is Unit.SAMPLE
    samples = plan.find(Samples)
    if samples is not None and samples.dataset_size is not None:
        sizes = np.array([samples.dataset_size], dtype=np.int64)
    if by_sample and sizes is None:
        raise InvalidParameter.of("sizes", "given where samples are protected", None)
    known = np.ones(1, dtype=np.int64)
    if sizes is not None:
        known = np.asarray(sizes, dtype=np.int64)
    if not plan.mechanism.calibrated:
        if samples is not None and samples.dataset_size is not None:
            expected = max(1, int(samples.dataset_size * cast(float, samples.sampling_rate)))
            return site_release(
                _given(plan, ball, expected), samples.dataset_size, **samples.options()
            )
        smallest = 1
        if by_sample:
            smallest = int(known.min())
        return _given(plan, ball, smallest)
    times = plan.releases
    if releases is not None:
        times = cast(Any, releases)
    if times is None:
        rule = "given to meet a budget"
        raise InvalidParameter.of("releases", rule, None, "say how often a client may take part")
    counts = np.asarray(times, dtype=np.int64)
    if by_sample or plan.participation == POISSON:
        counts = np.broadcast_to(counts, known.shape)
    aim = plan.update_target
    scouts = plan.find(AdaptiveClipping)
    if scouts is None:
        return _calibrated(plan, aim, ball, known, counts)
    busiest = max(1, int(counts.max()))
    for room in (0.0, ROOM):
        less = attrs.evolve(aim, epsilon=aim.epsilon * (1 - room))
        still = _calibrated(plan, less, ball, known, counts)
        moving = most_truthful(still, plan.clip, cast(int, scouts.every), _within(plan, busiest))
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


def account_of_run(plan: Terms, mechanism: Mechanism, sizes: Counts) -> ClientCosts:
    """Return the account of a run with clients of these sizes; refuse a mechanism without one."""
    rate = 1.0
    if plan.participation == POISSON:
        rate = Schedule(plan.participation, sizes.size, plan.cohort).rate

    @cache
    def price(samples: int | None) -> Cost:
        cost = release_cost(plan, mechanism, samples)
        if rate == 1.0:
            return cost
        return poisson_cost(mechanism.privacy(Adjacency.ZERO_OUT), cost, rate)

    return ClientCosts(price, sizes, plan.unit is Unit.SAMPLE)


def _enforced(plan: Terms, releases: int) -> Priced | None:
    """Return the account that nodes keep; None where the mechanism's own account applies."""
    if plan.mode == "planned":
        return None
    account = Account(plan.update_target, "adaptive")

    def enforced(mechanism: Mechanism) -> Guarantee:
        return account.spend(release_cost(plan, mechanism.priced_as), releases).guarantee()

    return enforced


def _within(plan: Terms, releases: int) -> Callable[[Mechanism], bool]:
    """Return whether ``releases`` releases of a mechanism stay within the budget of updates."""
    enforced = _enforced(plan, releases)

    def within(mechanism: Mechanism) -> bool:
        if enforced is not None:
            spent = enforced(mechanism)
        else:
            spent = (release_cost(plan, mechanism) * releases).guarantee(plan.delta)
        return spent.epsilon_upper <= plan.update_target.epsilon

    return within


def _calibrated(plan: Terms, aim: Target, ball: Ball, sizes: Counts, counts: Counts) -> Mechanism:
    """Return the mechanism calibrated to a budget."""
    busiest = max(1, int(counts.max()))
    chosen = plan.mechanism
    masks = plan.find(SecureAggregation)
    if masks is not None:
        return calibrate_sum(
            ball=ball,
            epsilon=aim.epsilon,
            delta=aim.delta,
            adjacency=plan.adjacency,
            clients=masks.clients(plan),
            min_honest_clients=masks.honest_clients,
            releases=busiest,
            decoder=cast(Any, chosen.decoder or UNBIASED),
            rotate=chosen.rotate,
            coordinates=chosen.coordinates,
            account=_enforced(plan, busiest),
        ).mechanism
    samples = plan.find(Samples)

    def worst(mechanism: Mechanism) -> Guarantee:
        """Return the guarantee of the most exposed client, by the account the run will keep."""
        account = account_of_run(plan, mechanism, sizes)
        account.counts = counts
        return account.worst(plan.delta)

    simulated_samples = samples is not None and samples.dataset_size is None
    account = _enforced(plan, busiest)
    if simulated_samples or plan.participation == POISSON:
        account = worst
    calibration = calibrate(
        CENTRAL if plan.trust is Trust.CENTRAL else chosen.name,
        ball=ball,
        epsilon=aim.epsilon,
        delta=aim.delta,
        adjacency=plan.adjacency,
        releases=busiest,
        account=account,
        samples=None if samples is None else int(sizes.min()),
        coordinates=chosen.coordinates,
        rows=SHARED if plan.shared_rows else chosen.rows,
        **({} if samples is None or samples.dataset_size is None else samples.options()),
        **chosen.used(),
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
