"""A design: its spec, the probability table that clients sample with, and the decoded values.

Idea     a spec is four numbers and a kind of privacy; a table meets it. Rows sum to one exactly, as
         rational numbers: sorted by size, the partial sums of a row are rounded to the spacing of
         the next larger entry, so that every partial sum is a double, and with it the last entry,
         one minus the rest.
Symbols  n = B_in input levels x_i = (i-1) h, h = 1/(n-1); B = B_out = 2**output_bits symbols; P[i,
         j]: probability of symbol j at level x_i; a_j: the value it decodes to.
Source   Guo et al. (ICML 2023), section "MVU mechanism"; Chaudhuri et al. (2022).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Literal, TypeAlias, final, get_args

import numpy as np
from attrs import asdict, field, frozen

from quietbit._typing import FloatMatrix, FloatVector
from quietbit.design.store import Stored, frozen_array
from quietbit.errors import check_int, check_real, require

__all__ = [
    "MAX_BITS",
    "MAX_LEVELS",
    "Bias",
    "Design",
    "DesignSpec",
    "Privacy",
    "exact_row",
    "exact_rows",
]

Privacy: TypeAlias = Literal["metric-l1", "metric-l2", "strict"]
Bias: TypeAlias = float | Literal["exact"]

MAX_BITS = 8
MAX_LEVELS = 4096
MAX_CELLS = 2**17  # levels x symbols: beyond, a solve takes hours and gains nothing
MAX_EPSILON = 40.0  # the rarest symbol has probability about e^-40, which doubles still resolve
MIN_EPSILON = 1e-6
MIN_STEP = 1e-8  # smaller log-ratios are lost to the rounding of doubles


@final
@frozen
class DesignSpec:
    """The properties of a design that `solve` computes.

    ``privacy`` bounds the ratio of two rows' probabilities of any one symbol: by ``e^(epsilon
    |x-x'|)`` for ``metric-l1``, ``e^(epsilon (x-x')^2)`` for ``metric-l2`` and ``e^epsilon`` for
    ``strict``. ``bias`` is ``"exact"`` (the mean of every row is its level) or a penalty lambda:
    then the objective is the mean squared error plus lambda times the mean squared bias.

    >>> DesignSpec(8, 3, 5.0).outputs
    8
    """

    input_levels: int
    output_bits: int
    epsilon: float
    privacy: Privacy = "metric-l1"
    bias: Bias = "exact"

    def __attrs_post_init__(self) -> None:
        bias = self.bias
        if isinstance(bias, str):
            require(bias == "exact", "bias", bias, "'exact' or a positive penalty")
        else:
            bias = check_real(bias, "bias", at_most=1e9)
        levels = check_int(self.input_levels, "input_levels", 2, MAX_LEVELS)
        bits = check_int(self.output_bits, "output_bits", 1, MAX_BITS)
        epsilon = check_real(self.epsilon, "epsilon", at_least=MIN_EPSILON, at_most=MAX_EPSILON)
        object.__setattr__(self, "input_levels", levels)
        object.__setattr__(self, "output_bits", bits)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "bias", bias)
        cells = levels * self.outputs
        require(cells <= MAX_CELLS, "input_levels x 2^output_bits", cells, f"at most {MAX_CELLS}")
        choices = get_args(Privacy)
        known = isinstance(self.privacy, str) and self.privacy in choices
        require(known, "privacy", self.privacy, "one of " + ", ".join(choices))
        require(
            self.log_ratio_step >= MIN_STEP,
            "epsilon between neighbouring levels",
            self.log_ratio_step,
            f"at least {MIN_STEP:g}, which double precision resolves",
            "use fewer levels or a larger epsilon",
        )

    @property
    def outputs(self) -> int:
        """B, the number of output symbols."""
        return 1 << self.output_bits

    @property
    def spacing(self) -> float:
        """h, the distance between neighbouring levels."""
        return 1.0 / (self.input_levels - 1)

    @property
    def levels(self) -> FloatVector:
        """The input grid x_1 = 0, ..., x_n = 1."""
        return np.linspace(0.0, 1.0, self.input_levels)

    @property
    def log_ratio_step(self) -> float:
        """The log-ratio allowed between neighbouring rows; with strict privacy, between any two."""
        power = {"metric-l1": 1, "metric-l2": 2, "strict": 0}[self.privacy]
        return self.epsilon * self.spacing**power

    @property
    def penalty(self) -> float:
        """Lambda of the bias penalty; infinite when the bias must be zero."""
        if self.bias == "exact":
            return math.inf
        return float(self.bias)


@final
@frozen(eq=False)
class Design(Stored):
    """A finite table of probabilities and output values, equal to others of equal ``identity()``.

    ``probabilities`` has a row per input level and a column per symbol. Every row sums to exactly
    one in rational arithmetic, no probability is zero, and the alphabet does not decrease; anything
    else is refused, because samplers normalise rows while accounts use them as stored. Arrays are
    read-only copies.
    """

    WORD: ClassVar[str] = "design"
    SUFFIX: ClassVar[str] = "json"
    MOST_BYTES: ClassVar[int] = 64 * 2**20
    spec: DesignSpec
    probabilities: FloatMatrix = field(converter=frozen_array)
    alphabet: FloatVector = field(converter=frozen_array)
    _identity: str = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        shape = (self.spec.input_levels, self.spec.outputs)
        table = self.probabilities
        alphabet = self.alphabet
        require(table.shape == shape, "shape of the probabilities", table.shape, f"{shape}")
        size = shape[1:]
        require(alphabet.shape == size, "shape of the alphabet", alphabet.shape, f"{size}")
        finite = bool(np.all(np.isfinite(alphabet)))
        require(finite, "alphabet", alphabet.tolist(), "finite")
        inside = bool(np.all((table > 0) & (table < 1)))
        extremes = (float(table.min()), float(table.max()))
        require(inside, "probabilities", extremes, "strictly between 0 and 1")
        ascending = bool(np.all(np.diff(alphabet) >= 0))
        require(ascending, "alphabet", alphabet.tolist(), "non-decreasing")
        for level, row in enumerate(table.tolist()):
            # Rounded once, so it is zero only where the rational sum is.
            excess = math.fsum([*row, -1.0])
            name = f"sum of the probabilities of level {level}"
            rule = "1 exactly, as rational numbers"
            require(excess == 0, name, 1 + excess, rule, "use `design.table.exact_row`")
        self._seal()

    def _values(self) -> dict[str, Any]:
        arrays = {"alphabet": self.alphabet.tolist(), "probabilities": self.probabilities.tolist()}
        return {**arrays, "spec": asdict(self.spec)}

    @classmethod
    def _of_values(cls, values: Mapping[str, Any]) -> Design:
        return cls(DesignSpec(**values["spec"]), values["probabilities"], values["alphabet"])


def exact_rows(table: FloatMatrix) -> FloatMatrix:
    """Make the table mirror-symmetric, with rows that sum to one exactly.

    Symmetry loses nothing, because the design problem is convex.
    """
    mirrored = (table + table[::-1, ::-1]) / 2
    levels, symbols = table.shape
    half = levels // 2
    upper = [exact_row(row) for row in mirrored[:half]]
    middle = []
    if levels % 2:
        side = exact_row(mirrored[half][: symbols // 2]) / 2
        middle.append(np.concatenate([side, side[::-1]]))
    lower = [row[::-1] for row in reversed(upper)]
    return np.stack(upper + middle + lower)


def exact_row(row: FloatVector) -> FloatVector:
    """Return positive weights as probabilities whose rational sum is exactly one.

    Each moves by about one unit in the last place.
    """
    order = np.argsort(row, kind="stable")
    ascending = [Fraction(value) for value in row[order].tolist()]
    total = sum(ascending)
    result: FloatVector = np.empty(len(row))
    before = 0.0
    exact = Fraction(0)
    for k, value in enumerate(ascending[:-1]):
        # Round the exact partial sum, not the rounded one plus the next entry, so that errors do
        # not add up.
        exact += value
        partial = float(exact / total)
        # Twice the neighbour: it may itself move past a power of two and must stay on this grid.
        neighbour = 2 * float(ascending[k + 1] / total)
        grid = np.spacing(max(neighbour, partial))
        rounded = float(np.round(partial / grid) * grid)
        result[order[k]] = rounded - before
        before = rounded
    result[order[-1]] = 1.0 - before
    return result
