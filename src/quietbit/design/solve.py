"""From a spec to a design: the catalogue, the cache, a formula, or a search for the best alphabet.

Idea     Every path to a table ends in the same three steps: make rows sum to one exactly, measure
         privacy from the stored doubles, and refuse if the measurement exceeds the request. The
         search descends, from several starts, on the inner optimum at barrier weight mu, whose
         gradient in the alphabet comes with the multipliers; following it while mu shrinks steps
         over the kinks of the linear program. Large grids inherit a coarse one's alphabet.
Symbols  a symmetric alphabet is 1/2 - z_k, 1/2 + z_k; a shape is z in units of the smallest
         unbiased outermost z.
Source   Chaudhuri et al. (2022) state the problem; docs/explanation/numerical-design.md has the
         method. The catalogue has every epsilon of Guo et al. (ICML 2023), appendix "Choice of
         Hyperparameters", for 2 and 8 levels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import product
from typing import Any, TypeAlias, cast

import numpy as np
from attrs import evolve
from scipy.optimize import minimize

from quietbit._threads import one_thread
from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.certify import certify
from quietbit.design.closed_form import closed_form, unbiased_half_width
from quietbit.design.interior_point import CentralPath, Infeasible, Optimum
from quietbit.design.store import cached, remember
from quietbit.design.table import (
    MAX_EPSILON,
    MIN_EPSILON,
    MIN_STEP,
    Bias,
    Design,
    DesignSpec,
    exact_rows,
)
from quietbit.errors import InvalidParameter, QuietbitError, require

__all__ = [
    "catalogue",
    "check_design",
    "closed_design",
    "design_limits",
    "file_name",
    "search",
    "shipped",
    "solve",
    "specs",
]

EPSILONS = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 20.0)
BITS = (1, 2, 3, 4)
LEVELS = (2, 8)
BIASES: tuple[Bias, ...] = ("exact", 100.0)
Progress = Callable[[float, str], None]
Found: TypeAlias = tuple[
    Optimum, FloatVector
]  # a table with its facts, and the shape of its alphabet

DIRECT_LEVELS = 33  # up to this many levels, search on the spec itself,
COARSE_LEVELS = 17  # beyond, first on this many
FIRST_GAP = 0.1  # duality gap of the first descent, in units of the alphabet's squared width
SHRINK = 10.0  # the factor by which each later descent narrows it
EXPLORE = 1e-4  # every start is followed until the gap is this share of the objective,
REFINE = 1e-8  # the best few until it is this share
ACCEPT = 1e-4  # a final gap above this share of the objective makes the search use a wider margin
FINALISTS = 3
RANDOM_STARTS = 4
MARGINS = (
    1e-6,
    1e-5,
    1e-4,
    1e-3,
    1e-2,
)  # factors by which an exactly unbiased alphabet exceeds the smallest width
FLATTEST = 1e-6  # with smaller log-ratios between neighbours Newton's method has no digits left
RETRY = 1e-6  # at larger gaps a failed solve is tried again from a cold start
WALL = 1e6  # cost of an infeasible alphabet in the line search


def solve(spec: DesignSpec, progress: Progress | None = None, *, cache: bool = True) -> Design:
    """Return the design for a spec: shipped, cached, or else solved now and cached.

    ``progress(fraction, message)`` is called during long solves. Deterministic: the same spec gives
    the same design on the same kind of machine. ``cache=False`` solves without catalogue and cache.

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
        if formula is not None:
            table, alphabet = formula
        else:
            table, alphabet = search(spec, progress)
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

    Where doubles make a table steeper than asked, its spec states the actual steepness: the account
    uses the table.
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


def specs() -> Iterator[DesignSpec]:
    """Return every spec of the catalogue, in the order it is listed."""
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
    return f"{spec.privacy}_levels-{spec.input_levels}_bits-{spec.output_bits}_eps-{spec.epsilon:g}_{bias}.json"


def shipped(spec: DesignSpec) -> Design | None:
    """Return the shipped design for exactly this spec, or ``None``."""
    source = files("quietbit.design") / "catalogue" / file_name(spec)
    if not source.is_file():
        return None
    design = Design.parse(source.read_text(encoding="ascii"), source.name)
    return design if design.spec == spec else None  # a file's name has six digits of epsilon


def catalogue() -> Iterator[Design]:
    """Return every shipped design."""
    return (design for design in map(shipped, specs()) if design is not None)


def symmetric(z: FloatVector) -> FloatVector:
    """Return the increasing alphabet 1/2 -+ z, mirrored exactly: a_j = 1 - a_{B+1-j} holds for the doubles."""
    upper = 0.5 + np.sort(np.abs(z))
    return np.concatenate([1.0 - upper[::-1], upper])


@one_thread()
def search(spec: DesignSpec, progress: Progress | None = None) -> tuple[FloatMatrix, FloatVector]:
    """Return the best table and alphabet found; deterministic for a given spec."""
    report = progress or (lambda _fraction, _message: None)
    if spec.log_ratio_step < FLATTEST:
        raise Infeasible("the table is too flat for Newton steps in double precision")
    if spec.input_levels <= DIRECT_LEVELS:
        return _widening(spec, lambda descent: _explore(descent, EXPLORE, report))
    # A coarse grid finds the alphabet, which all levels then polish.
    coarse = evolve(spec, input_levels=COARSE_LEVELS)
    _, alphabet = _widening(coarse, lambda descent: _explore(descent, 10 * EXPLORE, report))
    shape = (alphabet[spec.outputs // 2 :] - 0.5) / unbiased_half_width(coarse)
    report(0.7, f"all {spec.input_levels} levels")
    found = _widening(spec, lambda descent: descent.follow(shape, 1e-3 * FIRST_GAP, REFINE))
    report(1.0, "done")
    return found


def _widening(
    spec: DesignSpec, attempt: Callable[[_Descent], Found]
) -> tuple[FloatMatrix, FloatVector]:
    """Try wider and wider margins until an attempt is close to optimal: at the least width tables have no interior."""
    fallback: Found | None = None
    for margin in MARGINS:
        descent = _Descent(spec, margin)
        try:
            found, shape = attempt(descent)
        except Infeasible:
            continue
        alphabet = symmetric(shape * descent.unit)
        if found.gap <= ACCEPT * found.objective:
            return found.table, alphabet
        if fallback is None or found.objective < fallback[0].objective:
            fallback = found, alphabet
    if fallback is None or fallback[0].gap > 0.05 * fallback[0].objective:
        raise Infeasible("no alphabet led to a table close to optimal")
    return fallback[0].table, fallback[1]


def _explore(descent: _Descent, accuracy: float, report: Progress) -> Found:
    """Follow every start a little way, and the best few to the end."""
    starts = list(_starts(descent.half))
    found: list[Found] = []
    for k, start in enumerate(starts):
        report(0.5 * k / len(starts), f"start {k + 1} of {len(starts)}")
        with contextlib.suppress(Infeasible):
            found.append(descent.follow(start, FIRST_GAP, accuracy))
    if not found:
        raise Infeasible("no start led to a table")
    best: list[FloatVector] = []  # shapes of different alphabets
    for _, shape in sorted(found, key=lambda one: one[0].objective):
        if all(np.abs(shape - other).max() > 1e-3 for other in best):
            best.append(shape)
    for k, shape in enumerate(best[:FINALISTS]):
        report(0.5 + 0.2 * k / FINALISTS, f"refining {k + 1} of {FINALISTS}")
        with contextlib.suppress(Infeasible):
            found.append(descent.follow(shape, 1e-3 * FIRST_GAP, REFINE))
    report(0.7, "refined")
    return min(found, key=lambda one: one[0].objective)


class _Descent:
    """Quasi-Newton descent on the half-widths z of one spec, in units of the smallest unbiased one."""

    def __init__(self, spec: DesignSpec, margin: float) -> None:
        self.unit = unbiased_half_width(spec)
        self.path = CentralPath(spec)
        self.half = spec.outputs // 2
        # A grid that inherits its alphabet from a coarse one only polishes it.
        self.steps = 60 if spec.input_levels <= DIRECT_LEVELS else 10
        if spec.bias == "exact":
            outermost = 1 + margin * (1 - 0.5 / self.unit)
        else:
            outermost = 1e-3
        self.bounds = [(0.0, None)] * (self.half - 1) + [(outermost, None)]

    def follow(self, shape: FloatVector, gap: float, accuracy: float) -> Found:
        """Descend at shrinking duality gaps, down to ``accuracy`` times the objective, or to rounding."""
        self.path.reset()
        options = {"maxiter": self.steps, "ftol": max(1e-13, 1e-5 * accuracy), "gtol": 1e-10}
        best: Optimum | None = None
        while best is None or (best.gap > accuracy * best.objective and gap > 1e-15):
            start = np.maximum(shape, [low for low, _ in self.bounds])
            found = minimize(
                self._value, start, gap, "L-BFGS-B", jac=True, bounds=self.bounds, options=options
            )
            candidate = np.sort(found.x)
            try:
                best = self._solve(symmetric(candidate * self.unit), gap)
            except Infeasible:  # rounding ends the path here: keep the last gap's answer
                break
            shape = candidate
            gap /= SHRINK
        if best is None:
            raise Infeasible("no table was found from this start")
        with contextlib.suppress(
            Infeasible
        ):  # close the gap further for the final alphabet, as far as rounding allows
            for _ in range(2):
                finer = self.path.solve(symmetric(shape * self.unit), gap)
                best = finer if finer.objective < best.objective else best
                gap = gap / SHRINK
        return best, shape

    def _value(self, shape: FloatVector, gap: float) -> tuple[float, FloatVector]:
        # A failing step is a wall for the line search, not an answer.
        try:
            found = self._solve(symmetric(shape * self.unit), gap)
        except Infeasible:
            return WALL, np.zeros(self.half)
        gradient = found.alphabet_gradient
        folded = gradient[self.half :] - gradient[: self.half][::-1]
        order = np.argsort(
            np.argsort(shape)
        )  # ``symmetric`` sorts; the gradient follows each entry home
        return found.barrier_objective / self.unit**2, folded[order] / self.unit

    def _solve(self, alphabet: FloatVector, gap: float, again: bool = True) -> Optimum:
        try:
            return self.path.solve(alphabet, gap)
        except Infeasible:
            self.path.reset()
            if gap < RETRY or not again:  # rounding failed, not the start
                raise
        return self._solve(
            alphabet, gap, again=False
        )  # the warm start was too close to the boundary


def _starts(half: int) -> Iterator[FloatVector]:
    """Yield the shapes that optima are known to take: spread out, crowded at the ends, and a few at random."""
    even = np.arange(1, half + 1) / half
    yield 1.1 * even
    if half == 1:
        return
    for power in (2.0, 0.5):
        yield 1.1 * even**power
    crowd = np.linspace(0.8, 1.25, half)
    yield crowd
    yield np.append(0.0, crowd[1:])
    rng = np.random.default_rng(half)
    for _ in range(RANDOM_STARTS):
        yield np.append(np.sort(rng.uniform(0.0, 1.2, half - 1)), 1.0 + 0.5 * rng.uniform())
