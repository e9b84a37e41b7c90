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
FINER = 16  # steps of a loss within the accuracy; far above the digits in which machines differ
FEWER = "take fewer releases or another mechanism"

OWN = "own"  # every release draws the rows that it keeps
SHARED = "shared"  # all clients of a round keep the same rows
FACTS = ("rotated", "by_sample")  # fields of `Choices` that are known, not chosen

MIN_MULTIPLIER = 1e-6  # of noise, in clips
MAX_MULTIPLIER = 1e7

EpsilonOf: TypeAlias = Callable[[Mechanism], float]  # the epsilon of the most exposed client


def check_multiplier(value: Any, name: str = "noise_multiplier") -> float:
    """Return a noise multiplier, in clips; refuse it outside 1e-6 to 1e7."""
    return check_real(value, name, at_least=MIN_MULTIPLIER, at_most=MAX_MULTIPLIER)


@final
@frozen
class Choices:
    """The choices of a mechanism besides its strength; None leaves a choice to the family.

    Two are facts: ``rotated``, updates arrive rotated, so that no coordinate is large;
    ``by_sample``, the privacy unit is one sample of a client.
    """

    bits: int | None = field(default=None)
    levels: int | None = field(default=None)
    beta: float | None = None
    clamp: bool | None = None
    decoder: str | None = None
    design: Design | None = None
    coordinates: int | str | None = None
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
        for choice in fields(Choices):
            value = getattr(self, choice.name)
            if value is choice.default or choice.name in family.uses or choice.name in FACTS:
                continue
            if isinstance(value, Design):
                value = value.identity()[:16]
            rule = f"left out for {family.name}, which does not use it"
            raise InvalidParameter.of(choice.name, rule, value)


class Family(ABC):
    """All mechanisms of one name; a subclass is frozen and has these fields.

    ``uses``: the `Choices` that it uses; ``strength``: the name of its strength, ``design_epsilon``
    or ``noise_multiplier``.
    """

    __slots__ = ()
    name: str
    uses: tuple[str, ...]
    strength: str
    baseline: bool = False  # for comparison only: chosen only by name
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
    """A family whose strength is found by a search over a loss.

    Attributes:
        build: makes the mechanism of a ball, a loss and choices.
        limits: returns the smallest and the largest loss.
        remedy: what to do where the target is too small.
        direct: makes the mechanism of a strength, where the loss searched for is not the strength,
            as for noise, where it is one over it.
        prepare: fills in choices before a search.
    """

    name: str
    uses: tuple[str, ...]
    strength: str
    build: Callable[[Ball, float, Choices], Mechanism]
    limits: Callable[[Ball, Choices], tuple[float, float]]
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
        return self.build(ball, value, choices)

    def calibrated(
        self, ball: Ball, choices: Choices, target: Target, account: EpsilonOf
    ) -> Mechanism:
        """Return the mechanism with the largest loss that still meets the target."""
        prepared = self.prepare(ball, choices)
        low, high = self.limits(ball, prepared)

        def epsilon_of(loss: float) -> float:
            return account(self.build(ball, loss, prepared))

        loss = largest_private(epsilon_of, low, high, target.epsilon, self.name, self.remedy)
        return self.build(ball, loss, prepared)


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
    """Return the largest loss with account(loss) <= target, from below, to a relative ``accuracy``.

    Losses have few digits, so that the last digits of an account, in which machines differ, choose
    none of them: every machine ends at the same. ``start`` is a guess; ``name`` and ``remedy`` are
    for the refusal of a target that is too small.
    """
    digits = round(math.log2(FINER / accuracy))

    def safe(loss: float) -> float:
        try:
            return account(loss)
        except QuietbitError:  # what cannot be built or certified counts as infinite
            return math.inf

    if start is None:
        private = low
        stride = 4.0
    else:
        private = min(max(low, few_digits(start, digits)), high)
        stride = 1.05
    value = account(private)
    revealing = high
    above = math.inf
    while value > target and private > low:
        revealing = private
        above = value
        private = max(low, few_digits(private / stride, digits))
        value = account(private)
        stride = 2 * stride
    if math.isinf(value):
        rule = f"larger: with this ball no strength of {name} has a finite epsilon"
        raise InvalidParameter.of("delta", rule)
    rule = f"at least {value:.4g}, the least that {name} reaches here"
    require(value <= target, "epsilon", target, rule, remedy)
    if above == math.inf:
        revealing, above = _first_above(safe, private, high, target, stride, digits)
    if above <= target:
        return revealing
    for step in range(200):
        if value >= target * (1 - accuracy):
            break
        aim = target * (1 - accuracy / 2)
        middle = few_digits(_between(private, value, revealing, above, aim, step), digits)
        if not private < middle < revealing:
            middle = few_digits((private + revealing) / 2, digits)
        if not private < middle < revealing:
            break
        there = safe(middle)
        if there <= target:
            private = middle
            value = there
        else:
            revealing = middle
            above = there
    return private


def few_digits(loss: float, digits: int) -> float:
    """Return a positive number rounded to so many binary digits.

    >>> few_digits(1 / 3, 20) == few_digits(1 / 3 + 1e-12, 20)
    True
    """
    fraction, exponent = math.frexp(loss)
    return math.ldexp(round(math.ldexp(fraction, digits)), exponent - digits)


def _first_above(
    account: Callable[[float], float],
    loss: float,
    high: float,
    target: float,
    stride: float,
    digits: int,
) -> tuple[float, float]:
    """Return a loss whose account exceeds the target, and its account; else the range's end."""
    while loss < high:
        loss = min(few_digits(loss * stride, digits), high)
        value = account(loss)
        if value > target:
            return loss, value
        stride = min(stride * 2, 64.0)
    return high, account(high)


def _between(
    private: float, value: float, revealing: float, above: float, aim: float, step: int
) -> float:
    """Return a loss inside the bracket: interpolated, or its middle at every third step."""
    left = math.log(private)
    right = math.log(revealing)
    share = 0.5
    if value > 0 and above < math.inf and step % 3 < 2:
        share = math.log(aim / value) / math.log(above / value)
    edge = 0.02
    return math.exp(left + min(max(share, edge), 1 - edge) * (right - left))
