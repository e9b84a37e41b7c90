"""Designs with a closed form as functions of their epsilon: what calibration searches over.

Idea     a search asks for many designs; only those with a formula are quick enough. Where doubles make a table steeper
         than asked, its spec says how steep it is: the account always sees the table itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.certify import certify
from quietbit.design.closed_form import closed_form
from quietbit.design.rounding import exact_rows
from quietbit.design.spec import MAX_EPSILON, MIN_EPSILON, MIN_STEP, DesignSpec
from quietbit.design.table import Design
from quietbit.errors import require

__all__ = ["check_design", "closed_design", "design_limits"]


def check_design(value: Any) -> Design:
    """Return the value, refused unless it is a design."""
    require(isinstance(value, Design), "design", value, "a Design")
    return cast(Design, value)


def closed_design(spec: DesignSpec) -> Design:
    """The closed-form design of a spec; one without a formula is refused."""
    formula = closed_form(spec)
    rule = "2, or bits 1 (for others solve a design and pass it: beta is then calibrated)"
    require(formula is not None, "levels", spec.input_levels, rule)
    table, alphabet = cast(tuple[FloatMatrix, FloatVector], formula)
    made = Design(spec, exact_rows(table), alphabet)
    measured = certify(made)
    if measured.meets_spec:
        return made
    return Design(replace(spec, epsilon=measured.epsilon_upper), made.probabilities, made.alphabet)


def design_limits(levels: int, bits: int) -> tuple[float, float]:
    """The least and the largest epsilon that such a design may have."""
    low = max(MIN_EPSILON, MIN_STEP * (levels - 1)) * (1 + 1e-9)
    closed_design(DesignSpec(levels, bits, max(1.0, low)))  # refuses what has no formula, at the door
    return low, MAX_EPSILON
