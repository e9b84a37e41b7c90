"""A design: what was asked for, the probability table that clients sample with, and what its symbols decode to.

Idea     a spec is four numbers and a kind of privacy; a table answers it. Rows sum to one exactly,
         as rational numbers: sorted by size, the partial sums of a row are snapped to the spacing
         of the next larger entry, so that every partial sum, and so the last entry, one minus the
         rest, is a double.
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
MAX_EPSILON = (
    40.0  # the rarest symbol then has probability about e^-40: doubles still hold the ratios
)
MIN_EPSILON = 1e-6
MIN_STEP = 1e-8  # smaller ratios are lost to the rounding of doubles


@final
@frozen
class DesignSpec:
    """The request that `solve` answers.

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
        exact = isinstance(self.bias, str)
        require(
            not exact or self.bias == "exact", "bias", self.bias, "'exact' or a positive penalty"
        )
        converted = {
            "input_levels": check_int(self.input_levels, "input_levels", 2, MAX_LEVELS),
            "output_bits": check_int(self.output_bits, "output_bits", 1, MAX_BITS),
            "epsilon": check_real(
                self.epsilon, "epsilon", at_least=MIN_EPSILON, at_most=MAX_EPSILON
            ),
            "bias": self.bias if exact else check_real(self.bias, "bias", at_most=1e9),
        }
        for name, value in converted.items():
            object.__setattr__(self, name, value)
        cells = self.input_levels * self.outputs
        require(cells <= MAX_CELLS, "input_levels x 2^output_bits", cells, f"at most {MAX_CELLS}")
        choices = get_args(Privacy)
        known = isinstance(self.privacy, str) and self.privacy in choices
        require(known, "privacy", self.privacy, "one of " + ", ".join(choices))
        rule = f"at least {MIN_STEP:g} (fewer levels or a larger epsilon make the spec feasible in double precision)"
        require(
            self.log_ratio_step >= MIN_STEP,
            "epsilon between neighbouring levels",
            self.log_ratio_step,
            rule,
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
        """The log-ratio allowed between neighbouring rows; for strict privacy, between any two."""
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
    """A finite table of probabilities and output values; designs with equal ``identity()`` are equal.

    ``probabilities`` has a row per input level and a column per symbol. Every row sums to exactly
    one in rational arithmetic, no probability is zero, and the alphabet does not decrease; anything
    else is refused, because samplers normalise rows while accounts take them as stored. Arrays are
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
        require(
            alphabet.shape == shape[1:], "shape of the alphabet", alphabet.shape, f"{shape[1:]}"
        )
        require(bool(np.all(np.isfinite(alphabet))), "alphabet", alphabet.tolist(), "finite")
        inside = bool(np.all((table > 0) & (table < 1)))
        require(
            inside,
            "probabilities",
            (float(table.min()), float(table.max())),
            "strictly between 0 and 1",
        )
        require(
            bool(np.all(np.diff(alphabet) >= 0)), "alphabet", alphabet.tolist(), "non-decreasing"
        )
        for level, row in enumerate(table.tolist()):
            # Rounded once, so it is zero only where the rational sum is.
            excess = math.fsum([*row, -1.0])
            rule = "1 exactly, as rational numbers (`quietbit.design.table.exact_row` makes it so)"
            require(excess == 0, f"sum of the probabilities of level {level}", 1 + excess, rule)
        self._seal()

    def _values(self) -> dict[str, Any]:
        arrays = {"alphabet": self.alphabet.tolist(), "probabilities": self.probabilities.tolist()}
        return {**arrays, "spec": asdict(self.spec)}

    @classmethod
    def _of_values(cls, values: Mapping[str, Any]) -> Design:
        return cls(DesignSpec(**values["spec"]), values["probabilities"], values["alphabet"])


def exact_rows(table: FloatMatrix) -> FloatMatrix:
    """Make the table mirror-symmetric, which loses nothing by convexity, with rows that sum to one exactly."""
    mirrored = (table + table[::-1, ::-1]) / 2
    levels, symbols = table.shape
    rows = [exact_row(row) for row in mirrored[: levels // 2]]
    sides = [
        exact_row(row[: symbols // 2]) / 2 for row in mirrored[levels // 2 :][: levels % 2]
    ]  # of a middle level
    middle = [np.concatenate([side, side[::-1]]) for side in sides]
    return np.stack(rows + middle + [row[::-1] for row in reversed(rows)])


def exact_row(row: FloatVector) -> FloatVector:
    """Return positive weights as probabilities whose rational sum is exactly one; each moves by an ulp or so."""
    order = np.argsort(row, kind="stable")
    ascending = [Fraction(value) for value in row[order].tolist()]
    whole = sum(ascending)
    result: FloatVector = np.empty(len(row))
    before = 0.0
    exact = Fraction(0)
    for k, value in enumerate(ascending[:-1]):
        # Snap the exact partial sum, not the snapped one plus the next entry: errors do not add up.
        exact += value
        partial = float(exact / whole)
        # Twice the neighbour: it may itself move past a power of two and must stay on this grid.
        grid = np.spacing(max(2 * float(ascending[k + 1] / whole), partial))
        snapped = float(np.round(partial / grid) * grid)
        result[order[k]] = snapped - before
        before = snapped
    result[order[-1]] = 1.0 - before
    return result
