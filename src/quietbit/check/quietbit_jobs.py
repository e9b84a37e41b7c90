"""quietbit's own jobs: the epsilon that the node's ledger reaches after all releases of the plan.

Idea     a plan names epsilon, delta, adjacency and unit of all releases of one client together. The
         mechanism is calibrated to it, and the ledger adds up its exact cost, adaptively, and stops
         a run before it exceeds the plan.
Source   docs/reference/plan.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

from attrs import frozen

from quietbit.check.law import CLIENTS, Claim, Reason, Release, Run, law, nothing
from quietbit.check.values import MissingValue, Unknown, Use, Value
from quietbit.federation.own_round import DELTA, GAUSSIAN
from quietbit.federation.plan import Plan
from quietbit.privacy.account import Account
from quietbit.target import Adjacency, Target

__all__ = ["GATES"]

# What lets nothing out beside the release; `LocalPrivacy` holds its own tasks alone.
GATES = ("PrivateUplink", "add_privacy", "PrivateClientApp")
GATE = "the node's own policy and ledger, which hold the job to this budget"
LINE = ("epsilon", "delta", "clip", "releases", "adjacency", "mechanism", "samples")
USUAL = {"mechanism": GAUSSIAN, "delta": DELTA}
DIMENSION = 1000  # of a mechanism whose cost depends on it, where nobody names one


@final
@frozen
class Ledger:
    """An epsilon that a ledger keeps; nothing is known of a stronger adjacency."""

    target: Target
    epsilon: float

    def proven(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return epsilon, at the target's delta or more."""
        covered = self.target.adjacency in (adjacency, Adjacency.REPLACE_ONE)
        return self.epsilon if covered and delta >= self.target.delta else math.inf

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return nothing: the mechanism is calibrated when the job runs."""
        return 0.0


def _kept(use: Use, run: Run, plan: Plan) -> list[Release]:
    """Return what the ledger holds after the last release of a plan."""
    target = plan.target
    epsilon = target.epsilon  # the ledger stops here, however many releases that takes
    if plan.releases is not None and plan.update_target == target:
        mechanism = plan.mechanism_for(int(run.given.find("dimension") or DIMENSION))
        cost = plan.release(mechanism.priced_as)
        account = Account(target, "adaptive").spend(cost, plan.releases)
        epsilon = account.guarantee().epsilon_upper
    noise = Ledger(target, epsilon)
    claim = Claim(target.epsilon, target.delta, per_round=False)
    release = Release(
        "update",
        use.name,
        use.place,
        noise,
        plan.releases or 1,
        unit=target.unit,
        trust=target.trust,
        claim=claim,
        needs=(GATE,),
        way=CLIENTS,
        chain=repr(use.place),
    )
    return [release]


def _known(settings: Value) -> Mapping[str, Any]:
    """Return settings of which none is computed when the job runs."""
    if not isinstance(settings, Mapping):
        return {}
    missing = tuple(value for value in settings.values() if isinstance(value, Unknown))
    if missing:
        raise MissingValue(missing)
    return settings


@law("PrivateUplink")
def uplink(use: Use, run: Run) -> list[Release]:
    """Read the settings that the server sends to a site's filter."""
    parts = [part for part in run.parts if part.name == "PrivateReceiver"]
    settings = [_known(part.value("settings")) for part in parts]
    if not settings or any(one != settings[0] for one in settings):
        return [nothing(use, Reason.NOT_APPLIED, detail="no PrivateReceiver of one plan")]
    return _kept(use, run, Plan.from_run_config(settings[0]))


@law("add_privacy", "recipe settings")
def recipe(use: Use, run: Run) -> list[Release]:
    """Read the settings of a recipe, a table or flat keys."""
    return _kept(use, run, Plan.from_run_config(_known(use.value("settings"))))


@law("LocalPrivacy", "epsilon clip releases adjacency delta mechanism samples spent stream")
@law("PrivateClientApp", "client_fn mods")
def client_alone(use: Use, run: Run) -> list[Release]:
    """Read the budget of a client that needs no server of ours, or else the app's run config."""
    found = {name: use.value(name, None) for name in LINE}
    line = {name: value for name, value in found.items() if value is not None}
    if not line:
        return _kept(use, run, Plan.from_run_config(_known(run.program.config)))
    return _kept(use, run, Plan.read({**USUAL, **line}))
