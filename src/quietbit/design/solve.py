"""From a spec to a design: shipped with the package, by a formula, or of an installed solver.

Idea     a shipped table and one of a formula have the same numbers on every machine. Any other is
         searched for by the laboratory, whose solver is an entry point, and travels with its
         numbers: nothing that a server or a node does depends on where it was solved.
Source   packages/lab/docs/design.md has the search. The catalogue has every epsilon of Guo et al.
         (ICML 2023), appendix "Choice of Hyperparameters", for 2 and 8 levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import product
from typing import Any, cast

from attrs import evolve

from quietbit.design.certify import certify
from quietbit.design.closed_form import closed_form
from quietbit.design.table import (
    MAX_EPSILON,
    MIN_EPSILON,
    MIN_STEP,
    Bias,
    Design,
    DesignSpec,
    exact_rows,
)
from quietbit.errors import InvalidParameter, MissingDependency, how_to_install, require

__all__ = [
    "catalogue",
    "check_design",
    "closed_design",
    "design_limits",
    "file_name",
    "shipped",
    "solve",
    "specs",
]

EPSILONS = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 20.0)
BITS = (1, 2, 3, 4)
LEVELS = (2, 8)
BIASES: tuple[Bias, ...] = ("exact", 100.0)
SOLVERS = "quietbit.solvers"  # entry points: a function that returns the design of a spec


def solve(spec: DesignSpec) -> Design:
    """Return the design for a spec: the shipped one, that of a formula, or a solver's.

    >>> solve(DesignSpec(2, 1, 1.0)).alphabet.round(4).tolist()
    [-0.582, 1.582]
    """
    require(isinstance(spec, DesignSpec), "spec", type(spec).__name__, "a DesignSpec")
    design = shipped(spec)
    if design is not None:
        return design
    if closed_form(spec) is not None:
        return closed_design(spec)
    for entry in entry_points(group=SOLVERS):
        return check_design(entry.load()(spec))
    raise MissingDependency(
        f"No formula gives the design for {spec}, and it is not shipped. The laboratory solves "
        f"it: {how_to_install('lab')}."
    )


def check_design(value: Any) -> Design:
    """Return the value; refuse it unless it is a design."""
    require(isinstance(value, Design), "design", type(value).__name__, "a Design")
    return cast(Design, value)


def closed_design(spec: DesignSpec) -> Design:
    """Return the closed-form design of a spec; refuse a spec without one.

    Where doubles make a table steeper than its spec, the design's spec states the actual epsilon.
    """
    formula = closed_form(spec)
    if formula is None:
        remedy = "solve the design and pass it; beta is then calibrated"
        raise InvalidParameter.of("levels", "2, or bits 1", spec.input_levels, remedy)
    table, alphabet = formula
    design = Design(spec, exact_rows(table), alphabet)
    measured = certify(design)
    if measured.meets_spec:
        return design
    steeper = evolve(spec, epsilon=measured.epsilon_upper)
    return Design(steeper, design.probabilities, design.alphabet)


def design_limits(levels: int, bits: int) -> tuple[float, float]:
    """Return the least and the largest epsilon that a closed-form design may have."""
    low = max(MIN_EPSILON, MIN_STEP * (levels - 1)) * (1 + 1e-9)
    closed_design(DesignSpec(levels, bits, max(1.0, low)))  # refuses early what has no formula
    return low, MAX_EPSILON


def specs() -> Iterator[DesignSpec]:
    """Return every spec of the catalogue, in order."""
    listed = product(BIASES, LEVELS, BITS, EPSILONS)
    return (
        DesignSpec(levels, bits, epsilon, "metric-l1", bias)
        for bias, levels, bits, epsilon in listed
    )


def file_name(spec: DesignSpec) -> str:
    """Return the name of the file that holds the shipped design for a spec."""
    bias = "exact"
    if spec.bias != "exact":
        bias = f"penalty-{spec.bias:g}"
    size = f"levels-{spec.input_levels}_bits-{spec.output_bits}"
    return f"{spec.privacy}_{size}_eps-{spec.epsilon:g}_{bias}.json"


def shipped(spec: DesignSpec) -> Design | None:
    """Return the shipped design for exactly this spec, or ``None``."""
    source = files("quietbit.design") / "catalogue" / file_name(spec)
    if not source.is_file():
        return None
    design = Design.parse(source.read_text(encoding="ascii"), source.name)
    # A file's name has only six digits of epsilon.
    return design if design.spec == spec else None


def catalogue() -> Iterator[Design]:
    """Return every shipped design."""
    return (design for design in map(shipped, specs()) if design is not None)
