"""The part of a plan that protects samples on an engine: batches that sites draw, and the mechanism for their sums.

Idea     ``samples`` is about how many a site has, ``sampling_rate`` the probability of each to be in a round's batch.
         Their product is what sums are divided by (`quietbit.mechanism.batch`): a public number, whatever a site has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.batch import PoissonBatch
from quietbit.mechanism.calibrate import Calibration, calibrate
from quietbit.mechanism.local_steps import LocalSteps
from quietbit.mechanism.projected import MOST_SAMPLES
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Unit

if TYPE_CHECKING:
    from quietbit.plan.plan import Plan

__all__ = ["OF_BATCHES", "batches", "check_batches", "used_up"]

OF_STEPS = ("local_rate", "local_bits")
OF_BATCHES = ("samples", "sampling_rate", "local_steps", *OF_STEPS)


def check_batches(plan: Plan) -> dict[str, Any]:
    """Return the fields of an engine's plan as they are used; refused where they play no part, or one is missing."""
    if plan.unit is Unit.CLIENT:
        plan.unused(OF_BATCHES, "unless the unit is a sample")
        return {}
    if plan.samples is None:
        raise InvalidParameter.of("samples", "given where samples are protected: about how many a site has")
    require(plan.norm is Norm.L2, "norm", plan.norm.value, "l2 where samples are protected")
    rule = "left out where samples are protected: it hides clients"
    require(not plan.secret_order, "participation", plan.participation, rule)
    rate = 1.0 if plan.sampling_rate is None else plan.sampling_rate
    if plan.local_steps is None:
        plan.unused(OF_STEPS, "unless sites take local steps")
    elif plan.local_rate is None:
        raise InvalidParameter.of("local_rate", "given where sites take local steps: the learning rate of each")
    return {
        "samples": check_int(plan.samples, "samples", 1, MOST_SAMPLES),
        "sampling_rate": check_real(rate, "sampling_rate", at_most=1.0),
    }


def batches(
    plan: Plan,
    ball: Ball,
    given: Callable[[Ball, int], Mechanism],
    account: Callable[[Mechanism], Guarantee] | None,
    choices: dict[str, Any],
) -> Mechanism:
    """Return the mechanism of a plan's batches, built as told or calibrated on the account that nodes keep."""
    rate = plan.sampling_rate or 1.0
    expected = max(1, int((plan.samples or 1) * rate))
    if account is None:
        return _steps(plan, PoissonBatch(given(ball, expected), expected, rate))
    found = calibrate(
        plan.mechanism, ball=ball, **plan.target.keywords(), samples=expected, keep=plan.keep, rows=plan.rows,
        account=lambda one: account(_steps(plan, PoissonBatch(one, expected, rate))), **choices,
    )  # fmt: skip
    return _steps(plan, PoissonBatch(used_up(plan, found, expected), expected, rate))


def _steps(plan: Plan, batch: PoissonBatch) -> Mechanism:
    """Return the mechanism of a release: one batch, or as many as the site takes steps between rounds."""
    if plan.local_steps is None:
        return batch
    return LocalSteps(batch, plan.local_steps, cast(float, plan.local_rate), plan.local_bits or 4)


def used_up(plan: Plan, found: Calibration, samples: int) -> Mechanism:
    """Return the mechanism, refused where it cannot make use of the budget."""
    if found.saturated:
        raise InvalidParameter.of(
            "beta",
            f"above {plan.beta or 1.0:g} to make use of epsilon {plan.epsilon:g}: one of {samples} samples moves an "
            f"input by little, and {plan.mechanism} can reveal no more of it",
        )
    return found.mechanism
