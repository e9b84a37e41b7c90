"""From a spec to a design: the catalogue, the cache, a formula, or a search.

Idea     Every path to a table ends in the same three steps: make rows sum to one exactly, measure privacy from the
         stored doubles, and refuse if the measurement exceeds the request.
"""

from __future__ import annotations

from typing import Any, cast

from attrs import evolve

from quietbit.design.alphabet import Progress, search
from quietbit.design.catalogue import shipped
from quietbit.design.certify import certify
from quietbit.design.closed_form import closed_form
from quietbit.design.interior_point import Infeasible
from quietbit.design.rounding import exact_rows
from quietbit.design.spec import MAX_EPSILON, MIN_EPSILON, MIN_STEP, DesignSpec
from quietbit.design.store import cached, remember
from quietbit.design.table import Design
from quietbit.errors import InvalidParameter, QuietbitError, require

__all__ = ["check_design", "closed_design", "design_limits", "solve"]


def solve(spec: DesignSpec, progress: Progress | None = None, *, cache: bool = True) -> Design:
    """Return the design for a spec: shipped, cached, or else solved now and cached.

    ``progress(fraction, message)`` is called during long solves. Deterministic: the same spec gives the same
    design on the same kind of machine. ``cache=False`` solves without catalogue and cache.

    >>> solve(DesignSpec(2, 1, 1.0)).alphabet.round(4).tolist()
    [-0.582, 1.582]
    """
    require(isinstance(spec, DesignSpec), "spec", spec, "a DesignSpec")
    if not cache:
        return _solved(spec, progress)
    design = shipped(spec) or cached(Design, spec)
    if design is None or design.spec != spec:
        design = _solved(spec, progress)
        remember(design, spec)
    return design


def _solved(spec: DesignSpec, progress: Progress | None) -> Design:
    formula = closed_form(spec)
    try:
        table, alphabet = formula if formula is not None else search(spec, progress)
    except Infeasible as error:
        raise InvalidParameter(
            f"No design was found for {spec}: with log-ratios of {spec.log_ratio_step:.1e} between neighbouring "
            "levels the spec is infeasible in double precision; use fewer levels or a larger epsilon."
        ) from error
    design = Design(spec, exact_rows(table), alphabet)
    measured = certify(design)
    if not (measured.meets_spec and (spec.bias != "exact" or measured.bias_upper <= 1e-9)):
        raise QuietbitError(
            f"The design solved for {spec} measured epsilon {measured.epsilon_upper!r} and bias "
            f"{measured.bias_upper:.1e}, which the spec does not allow; nothing was kept."
        )
    return design


def check_design(value: Any) -> Design:
    """Return the value; refuse it unless it is a design."""
    require(isinstance(value, Design), "design", value, "a Design")
    return cast(Design, value)


def closed_design(spec: DesignSpec) -> Design:
    """Return the closed-form design of a spec, quick enough for calibration to search over; others are refused.

    Where doubles make a table steeper than asked, its spec states the actual steepness: the account uses the table.
    """
    formula = closed_form(spec)
    if formula is None:
        rule = "2, or bits 1 (for others solve a design and pass it: beta is then calibrated)"
        raise InvalidParameter.of("levels", rule, spec.input_levels)
    made = Design(spec, exact_rows(formula[0]), formula[1])
    measured = certify(made)
    if measured.meets_spec:
        return made
    return Design(evolve(spec, epsilon=measured.epsilon_upper), made.probabilities, made.alphabet)


def design_limits(levels: int, bits: int) -> tuple[float, float]:
    """Return the least and the largest epsilon that a closed-form design may have."""
    low = max(MIN_EPSILON, MIN_STEP * (levels - 1)) * (1 + 1e-9)
    closed_design(DesignSpec(levels, bits, max(1.0, low)))  # refuses early what has no formula
    return low, MAX_EPSILON
