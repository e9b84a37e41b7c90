"""The best alphabet: descent on the value of the inner problem, from several starts.

Idea     The inner optimum at barrier weight mu is a smooth function of the alphabet, and its gradient comes with the
         multipliers (envelope theorem). Following it while mu shrinks steps over the kinks that stop a descent on the
         linear program itself. Large grids inherit the alphabet of a coarse one, so that only a few fine solves remain.
Symbols  a symmetric alphabet is 1/2 - z_k, 1/2 + z_k; z_unit is the smallest outermost z that can be unbiased.
         With nu_i the multiplier of row i's mean, dV/da_j = sum_i P[i,j] (2 (a_j - x_i)/n - nu_i).
Source   Chaudhuri et al. (2022) state the problem; the method is this library's own.
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
from quietbit.design.closed_form import unbiased_half_width
from quietbit.design.interior_point import CentralPath, Infeasible, Optimum
from quietbit.design.spec import DesignSpec

__all__ = ["Progress", "search", "symmetric"]

Progress = Callable[[float, str], None]
Found: TypeAlias = tuple[Optimum, FloatVector]  # a table with its facts, and the shape of its alphabet

DIRECT_LEVELS = 33  # up to this many levels, search on the spec itself,
COARSE_LEVELS = 17  # beyond, first on this many
FIRST_GAP = 0.1  # duality gap of the first descent, in units of the alphabet's squared width
SHRINK = 10.0  # the factor by which each later descent narrows it
EXPLORE = 1e-4  # every start is followed until the gap is this share of the objective,
REFINE = 1e-8  # the best few until it is this share
ACCEPT = 1e-4  # a final gap above this share of the objective makes the search use a wider margin
FINALISTS = 3
RANDOM_STARTS = 4
MARGINS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # factors by which an exactly unbiased alphabet exceeds the smallest width
FLATTEST = 1e-6  # with smaller log-ratios between neighbours Newton's method has no digits left
RETRY = 1e-6  # at larger gaps a failed solve is tried again from a cold start
WALL = 1e6  # cost of an infeasible alphabet in the line search


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


def _widening(spec: DesignSpec, attempt: Callable[[_Descent], Found]) -> tuple[FloatMatrix, FloatVector]:
    """Try wider and wider margins until the attempt is close to optimal.

    The unbiased optimum often has the smallest feasible width, where the private tables have no interior; this stays as
    close to it as rounding allows.
    """
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
    for k, (_, shape) in enumerate(_best_few(found)):
        report(0.5 + 0.2 * k / FINALISTS, f"refining {k + 1} of {FINALISTS}")
        with contextlib.suppress(Infeasible):
            found.append(descent.follow(shape, 1e-3 * FIRST_GAP, REFINE))
    report(0.7, "refined")
    return min(found, key=_objective)


class _Descent:
    """Quasi-Newton descent on the half-widths z of one spec, in units of the smallest unbiased one."""

    def __init__(self, spec: DesignSpec, margin: float) -> None:
        self.unit = unbiased_half_width(spec)
        self.path = CentralPath(spec)
        self.half = spec.outputs // 2
        # A grid that inherits its alphabet from a coarse one only polishes it.
        self.steps = 60 if spec.input_levels <= DIRECT_LEVELS else 10
        outermost = 1 + margin * (1 - 0.5 / self.unit) if spec.bias == "exact" else 1e-3
        self.bounds = [(0.0, None)] * (self.half - 1) + [(outermost, None)]

    def follow(self, shape: FloatVector, gap: float, accuracy: float) -> Found:
        """Descend at shrinking duality gaps, down to ``accuracy`` times the objective, or to rounding."""
        self.path.reset()
        best: Optimum | None = None
        while best is None or (best.gap > accuracy * best.objective and gap > 1e-15):
            found = minimize(
                self._value,
                np.maximum(shape, [low for low, _ in self.bounds]),
                args=(gap,),
                jac=True,
                method="L-BFGS-B",
                bounds=self.bounds,
                options={"maxiter": self.steps, "ftol": max(1e-13, 1e-5 * accuracy), "gtol": 1e-10},
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
        return self._tighten(best, symmetric(shape * self.unit), gap), shape

    def _tighten(self, best: Optimum, alphabet: FloatVector, gap: float) -> Optimum:
        """Close the gap further for the final alphabet, as far as rounding allows."""
        for _ in range(2):
            try:
                found = self.path.solve(alphabet, gap)
            except Infeasible:
                break
            if found.objective < best.objective:
                best = found
            gap /= SHRINK
        return best

    def _value(self, shape: FloatVector, gap: float) -> tuple[float, FloatVector]:
        # A failing step is a wall for the line search, not an answer.
        try:
            found = self._solve(symmetric(shape * self.unit), gap)
        except Infeasible:
            return WALL, np.zeros(self.half)
        gradient = found.alphabet_gradient
        folded = gradient[self.half :] - gradient[: self.half][::-1]
        order = np.argsort(np.argsort(shape))  # ``symmetric`` sorts; the gradient follows each entry home
        return found.barrier_objective / self.unit**2, folded[order] / self.unit

    def _solve(self, alphabet: FloatVector, gap: float) -> Optimum:
        try:
            return self.path.solve(alphabet, gap)
        except Infeasible:
            self.path.reset()
            if gap < RETRY:  # rounding failed, not the start
                raise
        # The warm start was too close to the boundary: once more from the middle.
        try:
            return self.path.solve(alphabet, gap)
        except Infeasible:
            self.path.reset()
            raise


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


def _objective(found: Found) -> float:
    return found[0].objective


def _best_few(found: list[Found]) -> list[Found]:
    """Return the best results, each of a different alphabet."""
    kept: list[Found] = []
    for optimum, shape in sorted(found, key=_objective):
        if all(np.abs(shape - other).max() > 1e-3 for _, other in kept):
            kept.append((optimum, shape))
    return kept[:FINALISTS]
