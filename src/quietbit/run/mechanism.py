"""The mechanism of a plan: which family with which choices, and the strength that meets the budget.

Idea     the mechanism and the cost of one release follow from the plan alone, so they cannot
         disagree. With a strength given, it is built; without one, it is calibrated on the account
         that the run will keep, for the releases of the most frequent client.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters", for the choices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast, final

import attrs
import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, check_known, require
from quietbit.mechanism.abilities import Batches, Summable
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.batch import site_release
from quietbit.mechanism.calibrate import AUTO, calibrate
from quietbit.mechanism.central_sum import calibrate_sum
from quietbit.mechanism.family import OWN, SHARED, Choices
from quietbit.mechanism.interpolated import UNBIASED
from quietbit.mechanism.projected import ProjectedSamples, project
from quietbit.mechanism.registry import families, family
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.privacy.subsampling import poisson_cost
from quietbit.run.costs import ClientCosts
from quietbit.run.participation import POISSON
from quietbit.run.parts.scouts import most_truthful
from quietbit.run.section import Flag, Real, Section, Word, choice
from quietbit.target import Adjacency, Target, Trust, Unit

if TYPE_CHECKING:
    from quietbit.run.plan import Plan

__all__ = ["CENTRAL", "PUBLIC", "MechanismChoice", "account_of_run", "mechanism_of", "release_cost"]

PUBLIC = "none"  # in place of a mechanism: clipped updates without noise or privacy
CENTRAL = "gaussian"  # its noise is added once, to the sum, by a trusted server
STRENGTHS = ("design_epsilon", "noise_multiplier")
# Choices at the paper's values: harmless where a mechanism does not use them.
PAPER = {
    "bits": None,
    "levels": None,
    "beta": 1.0,
    "clamp": False,
    "decoder": "alphabet",
    "rotate": False,
}
# Share of epsilon that updates leave to answers of scouts, where rounding leaves them none.
ROOM = 1e-4

Counts: TypeAlias = NDArray[np.int64]
Priced: TypeAlias = Callable[[Mechanism], Guarantee]


@final
@frozen
class MechanismChoice(Section):
    """``[mechanism]``, or its bare name: a family, ``auto`` for the best one, or ``none``.

    The strength is ``design_epsilon`` or ``noise_multiplier``, depending on the family; without one
    it is calibrated. The other choices are those of `quietbit.calibrate`; None leaves a choice to
    the family.
    """

    title: ClassVar[str] = "mechanism"
    main: ClassVar[str] = "name"

    name: str
    norm: Norm = field(default=Norm.L2, converter=Norm)
    design_epsilon: float | None = choice(Real())
    noise_multiplier: float | None = choice(Real())
    bits: int | None = None
    levels: int | None = None
    beta: float | None = None
    clamp: bool | None = choice(Flag())
    decoder: str | None = None
    rotate: bool | None = choice(Flag())
    keep: int | str | None = None
    rows: str | None = choice(Word(OWN, SHARED))

    def check(self) -> None:
        """Refuse an unknown family, and choices that the family does not use."""
        check_known(self.name, [*families(), AUTO, PUBLIC], "mechanism")
        used: tuple[str, ...] = ()
        strength = ""
        if self.known:
            used = family(self.name).uses
            strength = family(self.name).strength
        for name, paper in PAPER.items():
            value = getattr(self, name)
            harmless = name in used or value in (None, paper)
            rule = f"left out for {self.name}, which makes no use of it"
            require(harmless, f"mechanism.{name}", value, rule)
        for name in STRENGTHS:
            value = getattr(self, name)
            rule = f"left out for {self.name}"
            if strength:
                rule = f"{rule}, whose strength is its {strength.replace('_', ' ')}"
            require(name == strength or value is None, f"mechanism.{name}", value, rule)
        rule = f"left out for {PUBLIC}"
        require(self.private or self.keep is None, "mechanism.keep", self.keep, rule)

    def check_plan(self, plan: Plan) -> None:
        """Refuse rows where all coordinates are kept, and those of each client for sums."""
        few = self.keeps_few and not plan.central
        rule = "left out unless few coordinates are kept"
        remedy = "choose vmvu, or set mechanism.keep"
        require(self.rows is None or few, "mechanism.rows", self.rows, rule, remedy)
        together = plan.replay is not None or plan.masks is not None
        rule = "shared, or left out, for sums and replayed rounds"
        require(self.rows != OWN or not together, "mechanism.rows", self.rows, rule)

    @property
    def known(self) -> bool:
        """Whether it names a family."""
        return self.name not in (AUTO, PUBLIC)

    @property
    def private(self) -> bool:
        """Whether there is a mechanism."""
        return self.name != PUBLIC

    @property
    def calibrated(self) -> bool:
        """Whether the strength is derived from the budget."""
        return self.private and self.design_epsilon is None and self.noise_multiplier is None

    @property
    def keeps_few(self) -> bool:
        """Whether few coordinates are kept, by the family or by a wrapper around it."""
        return self.known and (self.keep is not None or self.knows_rows)

    @property
    def knows_rows(self) -> bool:
        """Whether the family itself, without a wrapper, keeps few coordinates."""
        return self.known and "rows" in family(self.name).uses

    def used(self) -> dict[str, Any]:
        """Return the choices that the family uses."""
        if not self.known:
            return {}
        return {name: getattr(self, name) for name in family(self.name).uses if name in PAPER}


def mechanism_of(
    plan: Plan, dimension: int, sizes: Counts | None, releases: int | Counts | None
) -> Mechanism:
    """Return the mechanism for updates of ``dimension`` numbers, as `Plan.mechanism_for` does."""
    if not plan.private:
        raise InvalidParameter.of("mechanism", "private to be built", plan.mechanism.name)
    ball = Ball(plan.mechanism.norm, plan.clip, dimension)
    by_sample = plan.unit is Unit.SAMPLE
    samples = plan.samples
    if samples is not None and samples.count is not None:
        sizes = np.array([samples.count], dtype=np.int64)
    if by_sample and sizes is None:
        raise InvalidParameter.of("sizes", "given where samples are protected", None)
    known = np.ones(1, dtype=np.int64)
    if sizes is not None:
        known = np.asarray(sizes, dtype=np.int64)
    if not plan.mechanism.calibrated:
        if samples is not None and samples.count is not None:
            expected = max(1, int(samples.count * cast(float, samples.sampling_rate)))
            return site_release(_given(plan, ball, expected), samples.count, **samples.options())
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
    if plan.scouts is None:
        return _calibrated(plan, aim, ball, known, counts)
    busiest = max(1, int(counts.max()))
    for room in (0.0, ROOM):
        less = attrs.evolve(aim, epsilon=aim.epsilon * (1 - room))
        still = _calibrated(plan, less, ball, known, counts)
        moving = most_truthful(
            still, plan.clip, cast(int, plan.scouts.every), _within(plan, busiest)
        )
        if moving is not None:
            return moving
    rule = "large enough that the answer of a scout says something"
    raise InvalidParameter.of("epsilon", rule, plan.epsilon, "set clip to a number")


def release_cost(plan: Plan, mechanism: Mechanism, samples: int | None = None) -> Cost:
    """Return the cost of one release, to a client or to one of its ``samples`` samples."""
    if plan.samples is not None and plan.samples.count is not None:
        samples = Batches.of(mechanism).batch
    if plan.masks is not None:
        return Summable.of(mechanism).sum_privacy(cast(int, plan.masks.honest), plan.adjacency)
    return mechanism.privacy(plan.adjacency, samples).under(trust=plan.trust)


def account_of_run(plan: Plan, mechanism: Mechanism, sizes: Counts) -> ClientCosts:
    """Return the account of a run with clients of these sizes; refuse a mechanism without one."""
    rate = 1.0
    if plan.participation == POISSON:
        rate = plan.schedule(sizes.size).rate

    @cache
    def price(samples: int | None) -> Cost:
        cost = release_cost(plan, mechanism, samples)
        if rate == 1.0:
            return cost
        return poisson_cost(mechanism.privacy(Adjacency.ZERO_OUT), cost, rate)

    return ClientCosts(price, sizes, plan.unit is Unit.SAMPLE)


def _enforced(plan: Plan, releases: int) -> Priced | None:
    """Return the account that nodes keep; None where the mechanism's own account applies."""
    if plan.mode == "planned":
        return None
    account = Account(plan.update_target, "adaptive")
    evaluation = plan.evaluation
    answers = () if evaluation is None else evaluation.shared()

    def enforced(mechanism: Mechanism) -> Guarantee:
        spent = account.spend(release_cost(plan, mechanism.priced_as), releases)
        for cost, times in answers:
            spent = spent.spend(cost, times)
        return spent.guarantee()

    return enforced


def _within(plan: Plan, releases: int) -> Callable[[Mechanism], bool]:
    """Return whether ``releases`` releases of a mechanism stay within the budget of updates."""
    enforced = _enforced(plan, releases)

    def within(mechanism: Mechanism) -> bool:
        if enforced is not None:
            spent = enforced(mechanism)
        else:
            spent = (release_cost(plan, mechanism) * releases).guarantee(plan.delta)
        return spent.epsilon_upper <= plan.update_target.epsilon

    return within


def _calibrated(plan: Plan, aim: Target, ball: Ball, sizes: Counts, counts: Counts) -> Mechanism:
    """Return the mechanism calibrated to a budget."""
    busiest = max(1, int(counts.max()))
    chosen = plan.mechanism
    if plan.masks is not None:
        return calibrate_sum(
            ball=ball,
            epsilon=aim.epsilon,
            delta=aim.delta,
            adjacency=plan.adjacency,
            clients=plan.summed_clients,
            min_honest_clients=plan.masks.honest,
            releases=busiest,
            decoder=cast(Any, chosen.decoder or UNBIASED),
            rotate=chosen.rotate,
            keep=chosen.keep,
            account=_enforced(plan, busiest),
        ).mechanism
    samples = plan.samples

    def worst(mechanism: Mechanism) -> Guarantee:
        """Return the guarantee of the most exposed client, by the account the run will keep."""
        account = account_of_run(plan, mechanism, sizes)
        account.counts = counts
        return account.worst(plan.delta)

    simulated_samples = samples is not None and samples.count is None
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
        keep=chosen.keep,
        rows=SHARED if plan.shared_rows else chosen.rows,
        **({} if samples is None or samples.count is None else samples.options()),
        **chosen.used(),
    )
    if samples is not None and calibration.saturated:
        rule = f"above {chosen.beta or 1.0:g} to make use of epsilon {plan.epsilon:g}"
        reason = f"one of {sizes.min()} samples moves an input by little"
        raise InvalidParameter.of("mechanism.beta", rule, chosen.beta, reason)
    return calibration.mechanism


def _given(plan: Plan, ball: Ball, samples: int) -> Mechanism:
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
    wrapped = chosen.keep is not None and "keep" not in kind.uses
    by_sample = plan.unit is Unit.SAMPLE
    choices = Choices(
        **chosen.used(),
        keep=None if wrapped else chosen.keep,
        rows=rows,
        rotated=wrapped,
        by_sample=by_sample,
    )
    if not wrapped:
        return kind.given(ball, strength, choices)
    projected = project(
        ball, cast(Any, chosen.keep), lambda within: kind.given(within, strength, choices)
    )
    if plan.shared_rows:
        projected = projected.at(0)
    return ProjectedSamples(projected) if by_sample else projected
