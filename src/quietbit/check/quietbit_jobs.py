"""quietbit's own jobs: the budget that their gate keeps, whatever the server asks.

Idea     a plan names epsilon, delta, adjacency and unit of all releases of one client together. The
         mechanism is calibrated to it, and the ledger stops a run before it exceeds it, so the
         number is proved whatever the number of rounds.
Source   docs/reference/plan.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from attrs import frozen

from quietbit.check.law import Claim, Release, Run, law
from quietbit.check.values import MissingValue, Unknown, Use, Value
from quietbit.federation.plan import Plan
from quietbit.federation.terms import PREFIX
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency, Target

__all__ = ["GATES", "budgeted"]

# Classes that let nothing out beside the release; `LocalPrivacy` holds its own task alone.
GATES = ("PrivateReceiver", "add_privacy", "PrivateClientApp")
GATE = "the node's own policy and ledger, which hold the job to this budget"


@final
@frozen
class Budget:
    """A target that a gate keeps; nothing is known of a stronger adjacency."""

    target: Target
    lost: float

    def cost(self, adjacency: Adjacency) -> Cost | None:
        """Return epsilon, which holds but for a probability of delta."""
        covered = self.target.adjacency in (adjacency, Adjacency.REPLACE_ONE)
        return Cost.pure(self.target.epsilon) if covered else None

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return nothing: the mechanism is calibrated when the job runs."""
        return 0.0


def budgeted(use: Use, settings: Mapping[str, Value]) -> list[Release]:
    """Return the release of a job with these settings of a plan."""
    for value in settings.values():
        if isinstance(value, Unknown):
            raise MissingValue((value,))
    plan = Plan.from_run_config(settings)
    target = plan.target
    claim = Claim(target.epsilon, target.delta, per_round=False)
    noise = Budget(target, target.delta)
    return [
        Release(
            "update",
            use.name,
            use.place,
            noise,
            unit=target.unit,
            trust=target.trust,
            claim=claim,
            needs=(GATE,),
        )
    ]


@law("PrivateUplink")
def uplink(use: Use, run: Run) -> list[Release]:
    """Say nothing: the settings stand with the receiver."""
    return []


@law("PrivateReceiver", "settings")
@law("add_privacy", "recipe settings")
def receiver(use: Use, run: Run) -> list[Release]:
    """Read the settings of an NVFlare job, a table or flat keys."""
    settings = use.value("settings")
    return budgeted(use, settings if isinstance(settings, dict) else {})


@law("LocalPrivacy", "epsilon delta clip releases adjacency mechanism")
@law("PrivateClientApp", "epsilon delta clip releases adjacency mechanism")
def client_alone(use: Use, run: Run) -> list[Release]:
    """Read the budget of a client that needs no server of ours, or else the app's run config."""
    names = ("epsilon", "delta", "clip", "releases", "adjacency", "mechanism")
    settings = {f"{PREFIX}{name}": use.arguments[name] for name in names if name in use.arguments}
    if not settings:
        return budgeted(use, run.program.config)
    return budgeted(use, {f"{PREFIX}mechanism": "gaussian", **settings})
