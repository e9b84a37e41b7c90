"""Families of mechanisms: their choices, and the search for the strength that meets a target.

Idea     a family turns a ball, some choices and one number, the strength, into a mechanism. The
         mechanism's epsilon is non-decreasing in a loss (the strength, or one over it), so a
         bracket is narrowed until its private end is within 2e-5 of the target. The private end is
         returned, whatever the search did.
Symbols  loss: the search variable: a design's epsilon, beta, or one over a noise multiplier.
Source   the paper tunes by grid; ending on the private side is dp_accounting's rule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias, final

from attrs import Attribute, field, fields, frozen

from quietbit.design.table import Design
from quietbit.errors import InvalidParameter, QuietbitError, check_int, check_real, require
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Mechanism
from quietbit.target import Target

__all__ = [
    "FEWER",
    "MAX_MULTIPLIER",
    "MIN_MULTIPLIER",
    "OWN",
    "SHARED",
    "Choices",
    "EpsilonOf",
    "Family",
    "SearchedFamily",
    "check_multiplier",
    "largest_private",
]

ACCURACY = 2e-5
FEWER = "fewer releases or another mechanism would help"

OWN = "own"  # who chooses the kept rows: every release, or all clients of a round together
SHARED = "shared"
FACTS = ("rotated", "by_sample")  # fields of `Choices` that are known, not chosen

MIN_MULTIPLIER = 1e-6  # of noise, in units of the radius
MAX_MULTIPLIER = 1e7

EpsilonOf: TypeAlias = Callable[
    [Mechanism], float
]  # the epsilon of a mechanism for the most exposed party


def check_multiplier(value: Any, name: str = "noise_multiplier") -> float:
    """Return a noise multiplier, in units of the radius; refuse it outside 1e-6 to 1e7."""
    return check_real(value, name, at_least=MIN_MULTIPLIER, at_most=MAX_MULTIPLIER)


@final
@frozen
class Choices:
    """The choices of a mechanism beside its strength; None leaves a choice to the family.

    Two are facts: ``rotated``, no coordinate is large; ``by_sample``, the privacy unit is one
    sample of a client.
    """

    bits: int | None = field(default=None)
    levels: int | None = field(default=None)
    beta: float | None = None
    clamp: bool | None = None
    decoder: str | None = None
    design: Design | None = None
    keep: int | str | None = None
    rotate: bool | None = None
    rows: str | None = field(default=None)
    rotated: bool = False
    by_sample: bool = False

    @bits.validator
    @levels.validator
    def _check_counts(self, attribute: Attribute[int | None], value: int | None) -> None:
        if value is not None:
            check_int(value, attribute.name, 1)

    @rows.validator
    def _check_rows(self, attribute: object, value: str | None) -> None:
        require(value in (None, OWN, SHARED), "rows", value, f"{OWN} or {SHARED}")

    def check(self, family: Family) -> None:
        """Refuse a choice that the family does not use."""
        for one in fields(Choices):
            value = getattr(self, one.name)
            if value is one.default or one.name in family.uses or one.name in FACTS:
                continue
            shown = "a design" if isinstance(value, Design) else value
            require(False, one.name, shown, f"left out for {family.name}, which makes no use of it")


class Family(ABC):
    """All mechanisms of one name; a subclass is frozen and has these fields.

    ``uses``: the `Choices` that matter; ``strength``: the name of its strength, ``design_epsilon``
    or ``noise_multiplier``.
    """

    __slots__ = ()
    name: str
    uses: tuple[str, ...]
    strength: str
    work: str = ""  # a phrase naming what a client computes
    baseline: bool = False  # for comparison only: never chosen unless asked for by name
    summable: bool = False  # whether its codes may be added behind masks

    @abstractmethod
    def given(self, ball: Ball, strength: float, choices: Choices) -> Mechanism:
        """Return the mechanism of the given strength."""

    @abstractmethod
    def calibrated(
        self, ball: Ball, choices: Choices, target: Target, account: EpsilonOf
    ) -> Mechanism:
        """Return the most accurate mechanism whose account meets the target."""


@final
@frozen
class SearchedFamily(Family):
    """A family whose strength is found by search; ``build`` makes the mechanism of a loss.

    ``limits`` gives the smallest and the largest loss; ``inverse``: the strength is one over the
    loss, as for noise; ``remedy`` names what would allow a smaller target; ``direct`` makes the
    mechanism of a strength where that is not the loss searched for; ``prepare`` fills in choices
    before a search.
    """

    name: str
    uses: tuple[str, ...]
    strength: str
    build: Callable[[Ball, float, Choices], Mechanism]
    limits: Callable[[Ball, Choices], tuple[float, float]]
    inverse: bool = False
    work: str = ""
    remedy: str = FEWER
    baseline: bool = False
    summable: bool = False
    direct: Callable[[Ball, float, Choices], Mechanism] | None = None
    prepare: Callable[[Ball, Choices], Choices] = lambda _, choices: choices

    def given(self, ball: Ball, strength: float, choices: Choices) -> Mechanism:
        """Return the mechanism of the given strength."""
        value = check_real(strength, self.strength)
        if self.direct is not None:
            return self.direct(ball, value, choices)
        return self.build(ball, 1 / value if self.inverse else value, choices)

    def calibrated(
        self, ball: Ball, choices: Choices, target: Target, account: EpsilonOf
    ) -> Mechanism:
        """Return the mechanism with the largest loss that still meets the target."""
        chosen = self.prepare(ball, choices)
        low, high = self.limits(ball, chosen)

        def measured(loss: float) -> float:
            return account(self.build(ball, loss, chosen))

        return self.build(
            ball,
            largest_private(measured, low, high, target.epsilon, self.name, self.remedy),
            chosen,
        )


def largest_private(
    account: Callable[[float], float],
    low: float,
    high: float,
    target: float,
    name: str,
    remedy: str = FEWER,
    *,
    start: float | None = None,
    accuracy: float = ACCURACY,
) -> float:
    """Find the largest loss with account(loss) <= target, to a relative ``accuracy``, from below; ``start``: guess."""

    def safe(loss: float) -> float:
        try:
            return account(loss)
        except QuietbitError:  # what cannot be built or certified counts as infinite
            return math.inf

    if start is None:
        private = low
        stride = 4.0
    else:
        private = min(max(low, start), high)
        stride = 1.05
    value = account(private)
    revealing = high
    above = math.inf
    while value > target and private > low:
        revealing = private
        above = value
        private = max(low, private / stride)
        value = account(private)
        stride = 2 * stride
    if math.isinf(value):
        rule = f"large enough for {name} to have a finite epsilon with this ball"
        raise InvalidParameter.of("delta", rule, remedy="use a larger delta")
    require(
        value <= target,
        "epsilon",
        target,
        f"at least {value:.4g}, the least that {name} reaches here ({remedy})",
    )
    if above == math.inf:
        revealing, above = _first_above(safe, private, high, target, stride)
    if above <= target:
        return revealing
    for step in range(200):
        if value >= target * (1 - accuracy) or revealing <= private * (1 + 1e-13):
            break
        middle = _between(private, value, revealing, above, target * (1 - accuracy / 2), step)
        there = safe(middle)
        if there <= target:
            private = middle
            value = there
        else:
            revealing = middle
            above = there
    return private


def _first_above(
    account: Callable[[float], float], loss: float, high: float, target: float, stride: float
) -> tuple[float, float]:
    """Find a loss whose account exceeds the target, in growing strides; if there is none, return the range's end."""
    while loss < high:
        loss = min(loss * stride, high)
        value = account(loss)
        if value > target:
            return loss, value
        stride = min(stride * 2, 64.0)
    return high, account(high)


def _between(
    private: float, value: float, revealing: float, above: float, aim: float, step: int
) -> float:
    """Return a loss inside the bracket: by log-log interpolation, and by bisection at every third step."""
    left = math.log(private)
    right = math.log(revealing)
    share = 0.5
    if value > 0 and above < math.inf and step % 3 < 2:
        share = math.log(aim / value) / math.log(above / value)
    edge = 0.02
    return math.exp(left + min(max(share, edge), 1 - edge) * (right - left))
