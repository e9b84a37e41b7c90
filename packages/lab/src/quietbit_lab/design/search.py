"""The search for the best alphabet of a spec; the core finds it by its entry point.

Idea     every path to a table ends in the same three steps: make rows sum to one exactly, measure
         privacy from the stored doubles, and refuse a table that exceeds its spec. The search
         descends, from several starts, on the inner optimum at barrier weight mu, whose gradient in
         the alphabet comes with the multipliers; following it while mu shrinks steps over the kinks
         of the linear program. Large grids start from a coarse grid's alphabet.
Symbols  a symmetric alphabet is 1/2 - z_k, 1/2 + z_k; a shape is z in units of the smallest
         unbiased outermost z.
Source   Chaudhuri et al. (2022) state the problem; packages/lab/docs/design.md has the
         method.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from attrs import evolve
from scipy.optimize import minimize

from quietbit._threads import one_thread
from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.certify import certify
from quietbit.design.closed_form import closed_form, unbiased_half_width
from quietbit.design.solve import closed_design, shipped
from quietbit.design.store import cached, remember
from quietbit.design.table import Design, DesignSpec, exact_rows
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit_lab.design.interior_point import CentralPath, Infeasible, Optimum

__all__ = ["search", "solve"]

Progress = Callable[[float, str], None]
Candidate: TypeAlias = tuple[Optimum, FloatVector]  # an optimum and the shape of its alphabet

DIRECT_LEVELS = 33  # up to this many levels the search runs on the spec itself
COARSE_LEVELS = 17  # beyond, it first runs on this many
FIRST_GAP = 0.1  # duality gap of the first descent, in units of the alphabet's squared width
SHRINK = 10.0  # the factor by which each later descent narrows it
EXPLORE = 1e-4  # every start is followed until the gap is this share of the objective
REFINE = 1e-8  # the best few are followed until it is this share
ACCEPT = 1e-4  # a final gap above this share of the objective makes the search use a wider margin
FINALISTS = 3
RANDOM_STARTS = 4
# Shares by which an exactly unbiased alphabet exceeds the smallest width.
MARGINS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
FLATTEST = 1e-6  # with smaller log-ratios between neighbours Newton's method has no digits left
RETRY = 1e-6  # at larger gaps a failed solve is tried again from a cold start
WALL = 1e6  # cost of an infeasible alphabet in the line search


def solve(spec: DesignSpec, progress: Progress | None = None, *, cache: bool = True) -> Design:
    """Return the design for a spec: shipped, cached, by a formula, or else solved now and cached.

    The same spec gives the same design on the same kind of machine.

    Args:
        spec: the design's properties.
        progress: called during long solves, with a fraction and a message.
        cache: False solves without catalogue and cache.

    >>> solve(DesignSpec(2, 1, 1.0)).alphabet.round(4).tolist()
    [-0.582, 1.582]
    """
    require(isinstance(spec, DesignSpec), "spec", type(spec).__name__, "a DesignSpec")
    if not cache:
        return _solved(spec, progress)
    design = shipped(spec) or cached(Design, spec)
    if design is None or design.spec != spec:
        design = _solved(spec, progress)
        remember(design, spec)
    return design


def _solved(spec: DesignSpec, progress: Progress | None) -> Design:
    if closed_form(spec) is not None:
        return closed_design(spec)
    try:
        table, alphabet = search(spec, progress)
    except Infeasible as error:
        raise InvalidParameter(
            f"No design was found for {spec}: double precision cannot resolve log-ratios of "
            f"{spec.log_ratio_step:.1e} between neighbouring levels; use fewer levels or a larger "
            "epsilon."
        ) from error
    design = Design(spec, exact_rows(table), alphabet)
    measured = certify(design)
    unbiased = spec.bias != "exact" or measured.bias_upper <= 1e-9
    if not (measured.meets_spec and unbiased):
        raise QuietbitError(
            f"The design solved for {spec} measured epsilon {measured.epsilon_upper!r} and bias "
            f"{measured.bias_upper:.1e}, which the spec does not allow; it was discarded."
        )
    return design


def symmetric(z: FloatVector) -> FloatVector:
    """Return the increasing alphabet 1/2 -+ z; a_j = 1 - a_{B+1-j} holds exactly in doubles."""
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
    # A coarse grid gives the alphabet, which is then refined on all levels.
    coarse = evolve(spec, input_levels=COARSE_LEVELS)
    _, alphabet = _widening(coarse, lambda descent: _explore(descent, 10 * EXPLORE, report))
    shape = (alphabet[spec.outputs // 2 :] - 0.5) / unbiased_half_width(coarse)
    report(0.7, f"all {spec.input_levels} levels")
    design = _widening(spec, lambda descent: descent.follow(shape, 1e-3 * FIRST_GAP, REFINE))
    report(1.0, "done")
    return design


def _widening(
    spec: DesignSpec, attempt: Callable[[_Descent], Candidate]
) -> tuple[FloatMatrix, FloatVector]:
    """Try wider and wider margins until an attempt is close to optimal.

    At the smallest width the set of tables has no interior.
    """
    best: Candidate | None = None
    for margin in MARGINS:
        descent = _Descent(spec, margin)
        try:
            optimum, shape = attempt(descent)
        except Infeasible:
            continue
        alphabet = symmetric(shape * descent.unit)
        if optimum.gap <= ACCEPT * optimum.objective:
            return optimum.table, alphabet
        if best is None or optimum.objective < best[0].objective:
            best = (optimum, alphabet)
    if best is None or best[0].gap > 0.05 * best[0].objective:
        raise Infeasible("no alphabet led to a table close to optimal")
    optimum, alphabet = best
    return optimum.table, alphabet


def _explore(descent: _Descent, accuracy: float, report: Progress) -> Candidate:
    """Follow every start to a low accuracy, and the best few to the end."""
    starts = list(_starts(descent.half))
    candidates: list[Candidate] = []
    for k, start in enumerate(starts):
        report(0.5 * k / len(starts), f"start {k + 1} of {len(starts)}")
        with contextlib.suppress(Infeasible):
            candidates.append(descent.follow(start, FIRST_GAP, accuracy))
    if not candidates:
        raise Infeasible("no start led to a table")
    best: list[FloatVector] = []  # shapes of different alphabets
    for _, shape in sorted(candidates, key=_objective):
        if all(np.abs(shape - other).max() > 1e-3 for other in best):
            best.append(shape)
    for k, shape in enumerate(best[:FINALISTS]):
        report(0.5 + 0.2 * k / FINALISTS, f"refining {k + 1} of {FINALISTS}")
        with contextlib.suppress(Infeasible):
            candidates.append(descent.follow(shape, 1e-3 * FIRST_GAP, REFINE))
    report(0.7, "refined")
    return min(candidates, key=_objective)


def _objective(candidate: Candidate) -> float:
    optimum, _ = candidate
    return optimum.objective


class _Descent:
    """Quasi-Newton descent on the half-widths z, in units of the smallest unbiased one."""

    def __init__(self, spec: DesignSpec, margin: float) -> None:
        self.unit = unbiased_half_width(spec)
        self.path = CentralPath(spec)
        self.half = spec.outputs // 2
        # A grid that starts from a coarse grid's alphabet only refines it.
        self.steps = 60 if spec.input_levels <= DIRECT_LEVELS else 10
        if spec.bias == "exact":
            outermost = 1 + margin * (1 - 0.5 / self.unit)
        else:
            outermost = 1e-3
        self.bounds = [(0.0, None)] * (self.half - 1) + [(outermost, None)]

    def follow(self, shape: FloatVector, gap: float, accuracy: float) -> Candidate:
        """Descend at shrinking duality gaps, to ``accuracy`` times the objective or to rounding."""
        self.path.reset()
        options = {"maxiter": self.steps, "ftol": max(1e-13, 1e-5 * accuracy), "gtol": 1e-10}
        best: Optimum | None = None
        while best is None or (best.gap > accuracy * best.objective and gap > 1e-15):
            start = np.maximum(shape, [low for low, _ in self.bounds])
            result = minimize(
                self._value, start, gap, "L-BFGS-B", jac=True, bounds=self.bounds, options=options
            )
            candidate = np.sort(result.x)
            try:
                best = self._solve(symmetric(candidate * self.unit), gap)
            except Infeasible:  # rounding ends the path here: use the result of the last gap
                break
            shape = candidate
            gap /= SHRINK
        if best is None:
            raise Infeasible("no table was found from this start")
        # Close the gap further for the final alphabet, as far as rounding allows.
        with contextlib.suppress(Infeasible):
            for _ in range(2):
                finer = self.path.solve(symmetric(shape * self.unit), gap)
                if finer.objective < best.objective:
                    best = finer
                gap = gap / SHRINK
        return best, shape

    def _value(self, shape: FloatVector, gap: float) -> tuple[float, FloatVector]:
        """Return the objective and its gradient in the shape; a wall where there is no table."""
        try:
            optimum = self._solve(symmetric(shape * self.unit), gap)
        except Infeasible:
            return WALL, np.zeros(self.half)
        gradient = optimum.alphabet_gradient
        folded = gradient[self.half :] - gradient[: self.half][::-1]
        # ``symmetric`` sorts the entries; the gradient is put back into their order.
        order = np.argsort(np.argsort(shape))
        return optimum.barrier_objective / self.unit**2, folded[order] / self.unit

    def _solve(self, alphabet: FloatVector, gap: float, again: bool = True) -> Optimum:
        try:
            return self.path.solve(alphabet, gap)
        except Infeasible:
            self.path.reset()
            if gap < RETRY or not again:  # rounding failed, not the start
                raise
        # The warm start was too close to the boundary.
        return self._solve(alphabet, gap, again=False)


def _starts(half: int) -> Iterator[FloatVector]:
    """Yield shapes like those of known optima: spread out, crowded at the ends, and random ones."""
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
        inner = np.sort(rng.uniform(0.0, 1.2, half - 1))
        yield np.append(inner, 1.0 + 0.5 * rng.uniform())
