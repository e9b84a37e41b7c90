"""Plans for tests, by flat keywords: each is put into the section that it belongs to."""

from __future__ import annotations

from typing import Any

import attrs

from quietbit import Plan
from quietbit.federation.terms import MechanismChoice

__all__ = ["flat_plan"]

SECTIONS = {
    field.name: "mechanism" for field in attrs.fields(MechanismChoice) if field.name != "name"
}
SECTIONS |= dict.fromkeys(
    ("threshold", "adversary", "honest_clients", "timeout"), "secure_aggregation"
)
SECTIONS |= {"every": "adaptive_clip", "quantile": "adaptive_clip", "most_examples": "weights"}


def flat_plan(mechanism: str = "imvu", **given: Any) -> Plan:
    """Return a plan; ``bits=2`` is a choice of the mechanism, ``threshold=3`` one of sums; None
    is left out.
    """
    fields: dict[str, Any] = {"mechanism": {"name": mechanism}}
    for name, value in given.items():
        section = SECTIONS.get(name)
        if section is None:
            fields[name] = value
        elif value is not None:
            fields.setdefault(section, {})[name] = value
    return Plan(**fields)
