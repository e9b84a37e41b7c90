"""The interface of a mechanism: everything callers need, so that no caller asks which mechanism it has.

Idea     public choices are fields of a frozen class; the private update and the randomness are
         arguments. `write` is the only way to make a release: it clips, randomises and fills a
         payload's body. A bad update is refused before any random bit is drawn.
Symbols  d = dimension of the ball; b = bits per code; a body is the part of a payload after its
         header.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, require
from quietbit.kernel.base import MAX_DIMENSION, Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.abilities import (
    Ability,
    Blanketed,
    SamplePriced,
    SharedRows,
    Summable,
    Wrapping,
)
from quietbit.mechanism.ball import Ball
from quietbit.privacy.cost import Cost
from quietbit.privacy.shuffle import shuffled_cost
from quietbit.target import Adjacency, Trust, Unit

__all__ = [
    "LEFT_OUT",
    "Accumulator",
    "Answers",
    "AnswersAccumulator",
    "Batch",
    "Body",
    "Error",
    "Layout",
    "Mechanism",
    "Parts",
    "Reader",
    "RowsAccumulator",
    "Wrapper",
    "answers_accumulator",
    "check_mechanism",
    "core_of",
    "only",
    "passed_on",
    "rows_accumulator",
    "shuffled_privacy",
    "summable",
]

Body: TypeAlias = NDArray[np.uint8]
Parts: TypeAlias = Sequence[Any]  # arrays that together, in order, are one flat vector
Reader: TypeAlias = Callable[[int, int], FloatVector]  # values of coordinates start .. stop - 1
FLOAT_BITS = 32
WIDTHS = (*range(1, 17), FLOAT_BITS)
LEFT_OUT = {
    "left_out": True
}  # metadata of a field that an identity includes only where it differs from the default


@final
@frozen
class Layout:
    """The layout of a body: ``count`` codes of ``bits`` bits (32 for floats), or ``size`` bytes without codes.

    ``bits`` is 0 for a body without codes, and ``count`` is then the dimension of the update.

    >>> Layout.codes(3, 11).size
    5
    """

    bits: int
    count: int
    size: int

    @classmethod
    def codes(cls, bits: int, count: int) -> Layout:
        """Lay out packed codes."""
        require(bits in WIDTHS, "bits", bits, "a whole number from 1 to 16, or 32")
        many = check_int(count, "number of codes", 1, MAX_DIMENSION)
        return cls(int(bits), many, (int(bits) * many + 7) // 8)

    @classmethod
    def opaque(cls, dimension: int, size: int) -> Layout:
        """Lay out ``size`` bytes for an update of this dimension."""
        return cls(
            0,
            check_int(dimension, "dimension", 1, MAX_DIMENSION),
            check_int(size, "bytes of the body", 1),
        )


@final
@frozen
class Error:
    """The error of a decoded update, for the worst update in the ball, averaged over noise and public randomness.

    ``squared``: the mean squared error per coordinate; ``shared``: the part of it that all clients
    of a round share, so that averaging does not reduce it; ``response``: a lower bound on the share
    of the update that is decoded; all after dividing by ``gain``, the slope of the decoded mean at
    0. ``bias``: the decoded mean at 0. ``unitless``: decoded values are not updates until they are
    divided by the gain (`Sign`).
    """

    squared: float
    gain: float = 1.0
    bias: float = 0.0
    unitless: bool = False
    response: float = 1.0
    shared: float = 0.0


@final
@frozen
class Answers:
    """An unbiased estimate of the share of updates that a clip left unchanged, and a bound on its deviation."""

    share: float
    deviation: float


class Accumulator(ABC):
    """The server's half of a mechanism: adds bodies and returns their mean; adding ``group`` at once is fastest."""

    __slots__ = ()

    group: ClassVar[int] = 1  # the number of bodies to add at once

    def check(self, body: Body) -> None:
        """Refuse a body with values that no honest client could have sent."""
        return

    @abstractmethod
    def add(self, bodies: Sequence[Body]) -> None:
        """Add bodies that have been checked."""

    @abstractmethod
    def reader(self, count: int) -> Reader:
        """Return a reader of the mean over ``count`` payloads by ranges of coordinates."""


class RowsAccumulator(Accumulator):
    """The server's half of a mechanism with shared rows."""

    __slots__ = ()

    @abstractmethod
    def kept(self, count: int) -> FloatVector:
        """Return the mean on the rows that all clients keep: k numbers, for `SharedRows.unproject`."""


def rows_accumulator(accumulator: Accumulator) -> RowsAccumulator:
    """Return the accumulator; refuse it unless it is one of shared rows."""
    if not isinstance(accumulator, RowsAccumulator):
        raise InvalidParameter.of("mechanism", SharedRows.RULE, "another")
    return accumulator


class AnswersAccumulator(Accumulator):
    """The server's half of the answers of scouts."""

    __slots__ = ()

    @abstractmethod
    def answers(self, count: int) -> Answers:
        """Return what ``count`` scouts answered about a moving clip."""


def answers_accumulator(accumulator: Accumulator) -> AnswersAccumulator:
    """Return the accumulator; refuse it unless it is one of the answers of scouts."""
    if not isinstance(accumulator, AnswersAccumulator):
        raise InvalidParameter.of("mechanism", "that of scouts to have answers", "another")
    return accumulator


class Batch(ABC):
    """A batch of gradients, clipped as they arrive, and the release made of them."""

    __slots__ = ()

    @abstractmethod
    def add(self, rows: NDArray[Any]) -> None:
        """Clip each row to the ball and add it; a row that is not finite counts as zero."""

    def step(self) -> FloatVector | None:
        """Close the batch; return the model's change before this release's next batch, or None after the last."""
        return None

    @abstractmethod
    def write(self, out: Body) -> None:
        """Write the release."""


class Mechanism(ABC):
    """A randomised map from a ball to payload bodies, with its cost, its error and its decoder.

    A mechanism defines six members: `ball`, a field, `layout`, `write`, `accumulator`, `cost` and
    `error`. What it can do besides is a further base class (`quietbit.mechanism.abilities`).
    Callers use `privacy`, `expectation` and `variance`, which validate their arguments. A frozen
    class (attrs or dataclass) of numbers, strings, designs or further such classes has an identity
    on the wire (`registry`).
    """

    __slots__ = ()
    ball: Ball  # that updates are clipped to

    @property
    def domain(self) -> Ball:
        """The ball."""
        return self.ball

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The layout of a body."""

    @abstractmethod
    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Clip and randomise the update and fill ``out``, which starts as zeros: the client's half."""

    @abstractmethod
    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an empty accumulator for at most ``max_payloads`` bodies: the server's half."""

    @abstractmethod
    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of one release to a client, as a bare cost."""

    @abstractmethod
    def error(self) -> Error:
        """Return the worst-case error of a decoded update."""

    @final
    def privacy(self, adjacency: Adjacency | str, samples: int | None = None) -> Cost:
        """Return the cost of one release to a client, or to one of its ``samples`` samples if their number is given."""
        which = Adjacency(adjacency)
        if samples is None:
            return self.cost(which).of(which, Unit.CLIENT, Trust.LOCAL)
        cost = SamplePriced.of(self).sample_cost(which, samples)
        return cost.of(which, Unit.SAMPLE, Trust.LOCAL, samples)

    def decoded(self, value: float) -> tuple[float, float]:
        """Return mean and variance of the decoded value of a coordinate; by default from the error, without bias."""
        error = self.error()
        return error.gain * value, error.squared * error.gain**2 - error.bias**2

    @final
    def expectation(self, value: float) -> float:
        """Return the mean of the decoded value of a coordinate; the coordinate must lie in the ball."""
        mean, _ = self.decoded(self.ball.check_coordinate(value))
        return mean

    @final
    def variance(self, value: float) -> float:
        """Return the variance of the decoded value of a coordinate; the coordinate must lie in the ball."""
        _, variance = self.decoded(self.ball.check_coordinate(value))
        return variance

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the mechanism of one round of a run, from public values alone: with that round's shared rows, say."""
        return self

    @property
    def priced_as(self) -> Mechanism:
        """The mechanism that a ledger records: the same for mechanisms that differ only in values without a cost."""
        return self

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether it has an ability that its class is a subclass of: a wrapper may depend on what it holds."""
        return True


def shuffled_privacy(mechanism: Mechanism, adjacency: Adjacency, crowd: int) -> Cost:
    """Return the cost of one release to a client, for observers of a shuffle of ``crowd`` clients, one release each.

    A mechanism that is not private at delta = 0 is refused; `quietbit.privacy.shuffle` lists the
    assumptions.
    """
    which = Adjacency(adjacency)
    far = mechanism.privacy(Adjacency.REPLACE_ONE)
    near = mechanism.privacy(Adjacency.ZERO_OUT)
    blanketed = Blanketed.find(mechanism)
    if blanketed is None:
        blanket = None
    else:
        blanket = blanketed.blanket(which)
    cost = shuffled_cost(which, crowd, replace_one=far, zero_out=near, own=blanket)
    return cost.of(which, Unit.CLIENT, Trust.SHUFFLED)


def passed_on(path: str) -> Any:
    """Return a class member that delegates to a path such as ``inner.ball``: a value or a method."""
    return property(attrgetter(path))


class Wrapper(Mechanism, Wrapping):
    """A mechanism around ``inner``, an attrs field of the subclass; what it does not override, ``inner`` answers.

    Costs are never delegated: a wrapper defines `cost`, and those of `sample_cost` and `sum_cost`
    it has. An ability that it passes on is a further base class, and there where ``inner`` has it.
    """

    __slots__ = ()
    inner: Mechanism

    ball = passed_on("inner.ball")
    layout = passed_on("inner.layout")
    write = passed_on("inner.write")
    accumulator = passed_on("inner.accumulator")
    error = passed_on("inner.error")
    decoded = passed_on("inner.decoded")

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether the inner mechanism has it."""
        return ability.find(self.inner) is not None

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the same wrapper around the inner mechanism of the round."""
        return self.around(self.inner.for_round(run, number))

    @property
    def priced_as(self) -> Mechanism:
        """The same wrapper around the inner mechanism that a ledger records."""
        return self.around(self.inner.priced_as)

    def around(self, inner: Mechanism) -> Mechanism:
        """Return the same wrapper around another mechanism."""
        if inner is self.inner:
            return self
        return evolve(self, inner=inner)  # type: ignore[misc]


def core_of(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism inside all wrappers."""
    while isinstance(mechanism, Wrapping):
        mechanism = mechanism.inner
    return mechanism


def summable(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism; refuse it unless sums of its codes have a known cost."""
    Summable.of(mechanism)
    return mechanism


def only(kind: type, rule: str) -> Callable[[Any, Any, Any], None]:
    """Return an attrs validator that refuses values of any other class."""
    return lambda _, attribute, value: require(isinstance(value, kind), attribute.name, value, rule)


def check_mechanism(value: Any, name: str = "mechanism") -> Mechanism:
    """Return the value; refuse it unless it is a mechanism."""
    if isinstance(value, Mechanism):
        return value
    kind = type(value).__name__
    sentence = f"{name}: expected a Mechanism, got a {kind}"
    if isinstance(getattr(value, "mechanism", None), Mechanism):
        sentence += ": pass its `mechanism`"
    raise InvalidParameter(f"{sentence}.", name=name, rule="a Mechanism", value=kind)
