"""The specification of a design: four numbers and a kind of privacy.

Symbols  n = B_in input levels x_i = (i-1) h, h = 1/(n-1); B = B_out = 2**output_bits symbols.
Source   Guo et al. (ICML 2023), section "MVU mechanism"; Chaudhuri et al. (2022).
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, cast, final, get_args

import numpy as np
from attrs import field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real, require

__all__ = ["MAX_BITS", "MAX_LEVELS", "Bias", "DesignSpec", "Privacy"]

Privacy: TypeAlias = Literal["metric-l1", "metric-l2", "strict"]
Bias: TypeAlias = float | Literal["exact"]

MAX_BITS = 8
MAX_LEVELS = 4096
MAX_CELLS = 2**17  # levels x symbols: beyond, a solve takes hours and gains nothing
MAX_EPSILON = 40.0  # the rarest symbol then has probability about e^-40: doubles still hold the ratios
MIN_EPSILON = 1e-6
MIN_STEP = 1e-8  # smaller ratios are lost to the rounding of doubles


def _levels(value: Any) -> int:
    return check_int(value, "input_levels", 2, MAX_LEVELS)


def _bits(value: Any) -> int:
    return check_int(value, "output_bits", 1, MAX_BITS)


def _epsilon(value: Any) -> float:
    return check_real(value, "epsilon", at_least=MIN_EPSILON, at_most=MAX_EPSILON)


def _bias(value: Any) -> Bias:
    if isinstance(value, str):
        require(value == "exact", "bias", value, "'exact' or a positive penalty")
        return "exact"
    return cast(Bias, check_real(value, "bias", at_most=1e9))


@final
@frozen
class DesignSpec:
    """The request that `solve` answers.

    ``privacy`` bounds the ratio of two rows' probabilities of any one symbol: by ``e^(epsilon |x-x'|)``
    for ``metric-l1``, ``e^(epsilon (x-x')^2)`` for ``metric-l2`` and ``e^epsilon`` for ``strict``.
    ``bias`` is ``"exact"`` (the mean of every row is its level) or a penalty lambda: then the objective is
    the mean squared error plus lambda times the mean squared bias.

    >>> DesignSpec(8, 3, 5.0).outputs
    8
    """

    input_levels: int = field(converter=_levels)
    output_bits: int = field(converter=_bits)
    epsilon: float = field(converter=_epsilon)
    privacy: Privacy = "metric-l1"
    bias: Bias = field(default="exact", converter=_bias)

    def __attrs_post_init__(self) -> None:
        """Refuse a request that no design can meet."""
        cells = self.input_levels * self.outputs
        require(cells <= MAX_CELLS, "input_levels x 2^output_bits", cells, f"at most {MAX_CELLS}")
        choices = get_args(Privacy)
        known = isinstance(self.privacy, str) and self.privacy in choices
        require(known, "privacy", self.privacy, "one of " + ", ".join(choices))
        rule = f"at least {MIN_STEP:g} (fewer levels or a larger epsilon make the spec feasible in double precision)"
        require(self.log_ratio_step >= MIN_STEP, "epsilon between neighbouring levels", self.log_ratio_step, rule)

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
        return math.inf if self.bias == "exact" else float(self.bias)
