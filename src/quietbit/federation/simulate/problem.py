"""What a simulation asks of a problem, and how a run learns; what it releases is in its plan.

Idea     the simulator knows vectors only. A task writes the clipped updates of a few clients into
         rows that the simulator owns, so memory is a chunk of rows however many clients a cohort
         has.
Symbols  d = number of parameters; n_c = samples of client c; C = clip.
Source   Guo et al. (ICML 2023), section "Experiments": client-level and sample-level privacy.

Rows are float32, and clipping a float32 vector rounds every entry. Rows are therefore brought
within C (1 - MARGIN): the roundings of the scaled entries (2^-24 each, twice for outer products)
and of the norms (float64, below d 2^-52) stay inside the margin, so every row lies in the ball as
real numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require
from quietbit.federation.part import Part, released_dimension
from quietbit.federation.simulate.plan import SimulatedPlan
from quietbit.mechanism.ball import Norm
from quietbit.target import Unit

__all__ = [
    "LocalPlan",
    "PartsProblem",
    "Problem",
    "SampleProblem",
    "Score",
    "Training",
    "clip_factors",
    "clip_outside",
    "clip_rows",
]

Rows = NDArray[np.float32]
MARGIN = 2.0**-20
# More than the roundings of a norm of 2^20 float64 terms, and far less than the margin.
INSIDE = 2.0**-32
CHUNK_COORDINATES = 1 << 21
# Far from the ends of float32, where its roundings are relative.
MIN_CLIP = 1e-20
MAX_CLIP = 1e20


@final
@dataclass(frozen=True, slots=True)
class LocalPlan:
    """What a client does with its data before anything is randomised.

    With the client as ``unit`` the whole update is clipped to ``clip``; with the sample, every
    sample's gradient is, and the update is their mean: one sample then moves it by at most clip /
    n_c. Several ``steps`` of size ``rate`` give the update (start - end) / rate, which for one step
    is the gradient.
    """

    norm: Norm
    clip: float
    unit: Unit = Unit.CLIENT
    steps: int = 1
    rate: float = 0.1

    def __post_init__(self) -> None:
        """Refuse numbers that make no step, and several steps under sample-level privacy."""
        put = object.__setattr__
        put(self, "norm", Norm(self.norm))
        put(self, "unit", Unit(self.unit))
        put(self, "clip", check_real(self.clip, "clip", at_least=MIN_CLIP, at_most=MAX_CLIP))
        put(self, "steps", check_int(self.steps, "local steps", 1))
        put(self, "rate", check_real(self.rate, "local rate"))
        rule = "1 for sample-level privacy (a sample would move every later step too)"
        require(self.steps == 1 or self.unit is Unit.CLIENT, "local steps", self.steps, rule)


@final
@dataclass(frozen=True, slots=True)
class Training:
    """``lr`` is the server's step on the mean of the decoded updates, after momentum.

    Where the clip moves, the step is in units of the clip of the round, so that a start far off
    does not throw the model away. Clients take ``local_steps`` steps of size ``local_rate``. The
    model is scored at the end, every ``evaluate_every`` rounds (0: never), and after the rounds of
    ``evaluate_at``.
    """

    lr: float
    rounds: int
    momentum: float = 0.5
    local_steps: int = 1
    local_rate: float = 0.1
    evaluate_every: int = 0
    evaluate_at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers without a meaning."""
        put = object.__setattr__
        put(self, "lr", check_real(self.lr, "lr"))
        put(self, "rounds", check_int(self.rounds, "rounds", 1))
        put(self, "evaluate_every", check_int(self.evaluate_every, "evaluate_every", 0))
        scored = [check_int(number, "evaluate_at", 1, self.rounds) for number in self.evaluate_at]
        put(self, "evaluate_at", tuple(scored))
        momentum = check_real(self.momentum, "momentum", at_least=0.0)
        require(momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        put(self, "local_steps", check_int(self.local_steps, "local steps", 1))
        check_real(self.local_rate, "local rate")

    def local(self, plan: SimulatedPlan) -> LocalPlan:
        """Return what clients do with their data before anything is randomised."""
        # A clip that moves is the mechanism's own to apply, which must see how long the update was.
        clip = plan.clip if plan.adaptive_clip is None else MAX_CLIP
        return LocalPlan(plan.mechanism.norm, clip, plan.unit, self.local_steps, self.local_rate)

    def evaluated(self, number: int) -> bool:
        """Return whether the model is scored after ``number`` rounds."""
        if number == self.rounds or number in self.evaluate_at:
            return True
        return self.evaluate_every > 0 and number % self.evaluate_every == 0


@final
@dataclass(frozen=True, slots=True)
class Score:
    """How a model does on test data: the share it gets right, and its mean loss."""

    accuracy: float
    loss: float


@runtime_checkable
class Problem(Protocol):
    """Private data behind four requests; see `quietbit_lab.task` for the ones that are shipped."""

    @property
    def name(self) -> str:
        """What it is called in records."""
        ...

    @property
    def dimension(self) -> int:
        """Parameters of the model."""
        ...

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of every client; their number is public, as in the paper."""
        ...

    def initial(self, seed: int) -> Rows:
        """Return the starting parameters, flat."""
        ...

    def updates(
        self, parameters: Rows, clients: NDArray[np.int64], plan: LocalPlan, out: Rows
    ) -> None:
        """Write the clipped update of ``clients[k]`` into row k of ``out``; thread-safe."""
        ...

    def evaluate(self, parameters: Rows) -> Score:
        """Return the score on test data."""
        ...


@runtime_checkable
class SampleProblem(Problem, Protocol):
    """A problem that shows its samples one by one: needed to keep few rows of protected samples."""

    def gradients(self, parameters: Rows, client: int) -> Rows:
        """Return the unclipped gradient of every sample of a client, one row each."""
        ...


@final
class PartsProblem:
    """A problem whose updates go through the parts of a run before they are clipped and sent."""

    def __init__(self, problem: Problem, parts: tuple[Part, ...]) -> None:
        """Note the numbers that a release has."""
        self.name = problem.name
        self.sizes = problem.sizes
        self.initial = problem.initial
        self.evaluate = problem.evaluate
        self.dimension = released_dimension(parts, problem.dimension)
        self._problem = problem
        self._parts = parts

    def updates(
        self, parameters: Rows, clients: NDArray[np.int64], plan: LocalPlan, out: Rows
    ) -> None:
        """Write what the parts make of ``clients[k]``'s update, clipped, into row k of ``out``."""
        unclipped = replace(plan, clip=MAX_CLIP)  # parts get updates as they are
        size = self._problem.dimension
        count = max(1, CHUNK_COORDINATES // size)
        for start in range(0, clients.size, count):
            chunk = slice(start, start + count)
            rows = np.zeros((clients[chunk].size, size), dtype=np.float32)
            self._problem.updates(parameters, clients[chunk], unclipped, rows)
            projected: Any = rows
            for part in self._parts:
                projected = part.project(projected)
            out[chunk] = projected
        clip_outside(out, plan.norm, plan.clip)


def clip_factors(norms: Any, clip: float) -> FloatVector:
    """Return the factor, at most 1, for each norm; refuse a norm that is not finite."""
    lengths = np.asarray(norms, dtype=np.float64)
    longest = float(np.abs(lengths).max(initial=0.0))
    require(math.isfinite(longest), "gradient", longest, "finite", "try a smaller step size")
    bound = clip * (1 - MARGIN)
    return np.asarray(np.minimum(1.0, bound / np.maximum(lengths, bound)))


def clip_rows(rows: Rows, norm: Norm, clip: float) -> None:
    """Scale, in place, every row that is longer than the clip; refuse NaN and infinite entries."""
    for row in rows:
        values = row.astype(np.float64)
        factor = float(clip_factors(_length(values, norm), clip))
        if factor < 1.0:
            np.multiply(values, factor, out=row, casting="same_kind")


def clip_outside(rows: Rows, norm: Norm, clip: float) -> None:
    """Clip, in place, the rows that are not certain to lie in the ball; leave the others."""
    for row in rows:
        if not _length(row.astype(np.float64), norm) <= clip * (1 - INSIDE):
            clip_rows(row[None], norm, clip)


def _length(row: FloatVector, norm: Norm) -> float:
    if norm is Norm.L1:
        return float(np.abs(row).sum())
    return float(np.sqrt(row @ row))
