"""Plans for tests, by flat keywords: each is put into the section that it belongs to."""

import attrs

from quietbit import Plan
from quietbit.federation.simulate import SimulatedPlan
from quietbit.federation.terms import MechanismChoice

__all__ = ["engine_plan", "fields", "flat_plan"]

SECTIONS = {
    field.name: "mechanism" for field in attrs.fields(MechanismChoice) if field.name != "name"
}
SECTIONS |= dict.fromkeys(
    ("threshold", "adversary", "honest_clients", "timeout"), "secure_aggregation"
)
SECTIONS |= {"every": "adaptive_clip", "quantile": "adaptive_clip", "most_examples": "weights"}


def flat_plan(mechanism="imvu", **given):
    """Return the plan of a simulation; ``bits=2`` is a choice of the mechanism, ``threshold=3`` one
    of sums; None is left out.
    """
    return SimulatedPlan(**fields(mechanism, given))


def engine_plan(mechanism="imvu", **given):
    """Return the plan of a run on an engine likewise."""
    return Plan(**fields(mechanism, given))


def fields(mechanism, given):
    """Return the fields of a plan of any kind."""
    found = {"mechanism": {"name": mechanism}}
    for name, value in given.items():
        section = SECTIONS.get(name)
        if section is None:
            found[name] = value
        elif value is not None:
            found.setdefault(section, {})[name] = value
    return found
