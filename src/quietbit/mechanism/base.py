"""What a mechanism is: everything anybody needs of it, so that nobody asks which one it is.

Idea     the public choices are fields of a frozen dataclass, the private update and the randomness are arguments.
         `write` is the only way in which a release is made: it clips, randomises and fills a payload's body.
         What is wrong with an update is said before a random bit is drawn.
Symbols  d = dimension of the ball; b = bits per code; a body is the part of a payload after its header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, member, require
from quietbit.kernel.base import MAX_DIMENSION, Kernel
from quietbit.kernel.rng import RandomBits, check_rng
from quietbit.mechanism.ball import Ball
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.release import Release

__all__ = [
    "Accumulator",
    "Body",
    "Error",
    "Layout",
    "Mechanism",
    "Parts",
    "Reader",
    "SampleWise",
    "Summable",
    "check_adjacency",
    "check_rng",
    "check_value",
    "refuse_samples",
    "summable",
]

Body: TypeAlias = NDArray[np.uint8]
Parts: TypeAlias = Sequence[Any]  # arrays that are read one after the other as one flat vector
Reader: TypeAlias = Callable[[int, int], FloatVector]  # values of coordinates start .. stop - 1
FLOAT_BITS = 32
WIDTHS = (*range(1, 17), FLOAT_BITS)


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """How a body is laid out: ``count`` codes of ``bits`` bits, or ``size`` bytes that only the mechanism reads.

    Codes have 1 to 16 bits, or 32 for floats; ``bits`` is 0 for a body without codes, and ``count`` is then the
    dimension of the update.

    >>> Layout.codes(3, 11).size
    5
    """

    bits: int
    count: int
    size: int

    @classmethod
    def codes(cls, bits: int, count: int) -> Layout:
        """A body of packed codes."""
        require(bits in WIDTHS, "bits", bits, "a whole number from 1 to 16, or 32")
        many = check_int(count, "number of codes", 1, MAX_DIMENSION)
        return cls(int(bits), many, (int(bits) * many + 7) // 8)

    @classmethod
    def opaque(cls, dimension: int, size: int) -> Layout:
        """A body of ``size`` bytes for an update of this dimension."""
        return cls(0, check_int(dimension, "dimension", 1, MAX_DIMENSION), check_int(size, "bytes of the body", 1))


@final
@dataclass(frozen=True, slots=True)
class Error:
    """How far a decoded coordinate is off: ``squared`` at a true value of 0, in the units of the update.

    ``gain`` is the slope of the decoded mean at 0: 1 where decoding is unbiased to first order. ``squared`` is what
    remains after dividing by it, so that decoders which differ by a factor are alike. ``bias``: the decoded mean at 0.
    ``unitless``: decoded values are no updates, whatever the gain, until somebody divides by it (`Sign`).
    """

    squared: float
    gain: float = 1.0
    bias: float = 0.0
    unitless: bool = False


class Accumulator(Protocol):
    """The server's half: bodies in, mean out; ``group`` of them are best added together."""

    @property
    def group(self) -> int:
        """How many bodies to add at once."""
        ...

    def check(self, body: Body) -> None:
        """Refuse a body with values that no client could have sent."""
        ...

    def add(self, bodies: Sequence[Body]) -> None:
        """Add bodies that have been checked."""
        ...

    def reader(self, count: int) -> Reader:
        """The mean over ``count`` payloads, read by ranges of coordinates."""
        ...


@runtime_checkable
class Mechanism(Protocol):
    """A randomised map from a ball to payload bodies, with its price, its error and its decoder.

    A frozen dataclass whose fields are numbers, words, designs or dataclasses of these has an identity on the wire
    and a description from which it is rebuilt (`quietbit.mechanism.registry`).
    """

    @property
    def domain(self) -> Ball:
        """Where updates are clipped to."""
        ...

    @property
    def layout(self) -> Layout:
        """What a body looks like."""
        ...

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Client: clip the update, randomise it and fill ``out``, which is full of zeros."""
        ...

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Server: an empty mean of at most so many bodies."""
        ...

    def privacy(self, adjacency: Adjacency, samples: int | None = None) -> Release:
        """What one release costs a client, or one of its ``samples`` samples where their number is given."""
        ...

    def error(self) -> Error:
        """How far a decoded coordinate is off."""
        ...

    def expectation(self, value: float) -> float:
        """The mean of what decoding gives for an update's coordinate of this value."""
        ...

    def variance(self, value: float) -> float:
        """Its variance."""
        ...


@runtime_checkable
class Summable(Mechanism, Protocol):
    """A mechanism whose codes may be added behind masks, with an account of the sum."""

    @property
    def bits(self) -> int:
        """Bits per code."""
        ...

    def sum_privacy(self, clients: int, adjacency: Adjacency) -> Release:
        """What one secure sum over ``clients`` honest clients costs one of them."""
        ...

    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """The mean of the decoded updates from the sums of their codes."""
        ...


@runtime_checkable
class SampleWise(Mechanism, Protocol):
    """A mechanism that clips the gradients of a client's samples one by one, and releases their mean."""

    def write_samples(self, gradients: Sequence[Parts], rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Client: fill ``out`` from the gradients, each of which is an update's parts."""
        ...


def summable(mechanism: Mechanism) -> Summable:
    """The mechanism itself, refused unless sums of its codes have an account."""
    if not isinstance(mechanism, Summable):
        raise InvalidParameter(
            f"mechanism must have an account for sums of codes (imvu has), got {type(mechanism).__name__}."
        )
    return mechanism


def refuse_samples(samples: int | None, why: str) -> None:
    """Refuse a price per sample where no theorem gives one."""
    if samples is not None:
        raise InvalidParameter(
            f"mechanism must be imvu, gaussian, laplace, sign or skellam for sample-level privacy: {why}."
        )


def check_adjacency(adjacency: Any) -> Adjacency:
    """The adjacency, which is never left implicit; its word will do."""
    return member(Adjacency, adjacency, "adjacency")


def check_value(ball: Ball, value: float) -> float:
    """A coordinate's value: finite, and at most the radius in magnitude."""
    number = float(value)
    require(abs(number) <= ball.radius, "value of a coordinate", value, f"at most {ball.radius!r} in magnitude")
    return number
