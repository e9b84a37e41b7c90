"""The interface of a mechanism: all that callers need, so that none asks which mechanism it has.

Idea     public choices are fields of a frozen class; the private update, its clip and the
         randomness are arguments. `write` is the only way to make a release: it clips, randomises
         and fills a payload's body. A bad update is refused before any random bit is drawn. A
         mechanism has no clip of its own: what it decodes is in clips.
Symbols  d = dimension of the ball; b = bits per code; a body is the part of a payload after its
         header.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, refuse_payload, require
from quietbit.kernel.base import MAX_DIMENSION, Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.ball import Ball
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency, Trust, Unit

if TYPE_CHECKING:
    from quietbit.design.profile import Profile
    from quietbit.design.table import Design

__all__ = [
    "LEFT_OUT",
    "PRICED_BY_SAMPLE",
    "Accumulator",
    "Answers",
    "Batch",
    "Body",
    "Error",
    "Layout",
    "Mechanism",
    "Parts",
    "Reader",
    "Samples",
    "Wrapper",
    "array_reader",
    "check_mechanism",
    "check_padding",
    "check_sums",
    "only",
    "passed_on",
]

Body: TypeAlias = NDArray[np.uint8]
Parts: TypeAlias = Sequence[Any]  # arrays that together, in order, are one flat vector
Reader: TypeAlias = Callable[[int, int], FloatVector]  # values of coordinates start .. stop - 1
PRICED_BY_SAMPLE = "imvu or gaussian for sample-level privacy, which have a cost to one sample"
FLOAT_BITS = 32
WIDTHS = (*range(1, 17), FLOAT_BITS)
# Metadata of a field that an identity includes only where it differs from the default.
LEFT_OUT = {"left_out": True}


@final
@frozen
class Layout:
    """The layout of a body: ``count`` codes of ``bits`` bits each, ``size`` bytes in all.

    Floats have 32 bits. In a body without codes ``bits`` is 0 and ``count`` the update's dimension.

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
        number = check_int(count, "number of codes", 1, MAX_DIMENSION)
        return cls(int(bits), number, (int(bits) * number + 7) // 8)

    @classmethod
    def opaque(cls, dimension: int, size: int) -> Layout:
        """Lay out ``size`` bytes for an update of this dimension."""
        count = check_int(dimension, "dimension", 1, MAX_DIMENSION)
        return cls(0, count, check_int(size, "bytes of the body", 1))


@final
@frozen
class Error:
    """The error of a decoded update, in clips, for the worst update in the ball.

    It is averaged over noise and public randomness, after dividing by ``gain``.

    Attributes:
        squared: the mean squared error per coordinate.
        gain: the slope of the decoded mean at 0.
        bias: the decoded mean at 0, before dividing by the gain.
        response: a lower bound on the share of the update that is decoded.
        shared: the part of ``squared`` that all clients of a round have in common, so that a mean
            over clients does not reduce it.
    """

    squared: float
    gain: float = 1.0
    bias: float = 0.0
    response: float = 1.0
    shared: float = 0.0

    def of_mean(self, clients: int) -> float:
        """Return the mean squared error per coordinate of the mean of so many clients."""
        return (self.squared - self.shared) / clients + self.shared


@final
@frozen
class Answers:
    """An unbiased estimate of the share of updates that a clip left unchanged.

    ``deviation`` is a bound on its standard deviation.
    """

    share: float
    deviation: float


class Accumulator(ABC):
    """The server's half of a mechanism: it adds bodies and returns their mean."""

    __slots__ = ()

    group: ClassVar[int] = 1  # the number of bodies that are fastest to add at once

    def check(self, body: Body) -> None:
        """Refuse a body with values that no honest client could have sent."""
        return

    @abstractmethod
    def add(self, bodies: Sequence[Body]) -> None:
        """Add bodies that have been checked."""

    @abstractmethod
    def reader(self, count: int) -> Reader:
        """Return a reader of the mean over ``count`` payloads, in clips, by coordinates."""

    def kept(self, count: int) -> FloatVector:
        """Return the mean on shared rows, in clips: k numbers, for `SharedRows.unproject`."""
        raise InvalidParameter.of("accumulator", "one of shared rows", type(self).__name__)

    def answers(self, count: int) -> Answers:
        """Return what ``count`` scouts answered about a moving clip."""
        raise InvalidParameter.of("accumulator", "one of scouts", type(self).__name__)


def array_reader(mean: NDArray[Any]) -> Reader:
    """Return a reader of a mean that is in memory."""
    return lambda start, stop: mean[start:stop]


def check_sums(total: NDArray[Any], largest: int) -> FloatVector:
    """Return sums of codes as floats; refuse them unless all are from 0 to ``largest``."""
    sums = np.asarray(total, dtype=np.float64)
    inside = bool(np.all((sums >= 0) & (sums <= largest)))
    ends = (float(sums.min()), float(sums.max()))
    require(inside, "sums of codes", ends, f"from 0 to {largest}")
    return sums


def check_padding(body: Body, used_bits: int) -> None:
    """Refuse a body whose bits after the first ``used_bits`` are not zero."""
    used = used_bits % 8
    if used and int(body[-1]) >> used:
        refuse_payload("padding bits of the payload", "zero", int(body[-1]) >> used)


class Batch(ABC):
    """A batch of gradients that are clipped as they arrive, and the release made of them."""

    __slots__ = ()

    @abstractmethod
    def add(self, rows: NDArray[Any]) -> None:
        """Clip each row and add it; a row that is not finite counts as zero."""

    def step(self) -> FloatVector | None:
        """Close the batch; return the model's change before the next, or None after the last."""
        return None

    @abstractmethod
    def write(self, out: Body) -> None:
        """Write the release."""


@frozen(eq=False)
class Samples:
    """One release of a mean of gradients, each clipped alone on the way."""

    mechanism: Mechanism
    rng: RandomBits
    kernel: Kernel

    @property
    def ball(self) -> Ball:
        """The ball in which gradients are summed."""
        return self.mechanism.ball

    def clipped(self, gradient: FloatVector, clip: float) -> FloatVector:
        """Return what is summed for a gradient; refuse one that is not finite."""
        return np.asarray(self.ball.clip(gradient, clip), dtype=np.float64)

    def write(self, mean: FloatVector, clip: float, out: Body) -> None:
        """Randomise the mean and fill ``out``."""
        self.mechanism.write([mean], clip, self.rng, self.kernel, out)


class Mechanism(ABC):
    """A randomised map from a ball to payload bodies, with its cost, its error and its decoder.

    To write one, define six members in a frozen class (attrs or dataclass): the field `ball`, and
    `layout`, `write`, `accumulator`, `cost` and `error`. The other members have defaults. Further
    abilities are further base classes (`quietbit.mechanism.abilities`). Fields that are numbers,
    strings, designs or frozen classes of these give it an identity on the wire (`registry`).

    Callers use `privacy`, `expectation` and `variance`, which validate their arguments.
    """

    __slots__ = ()
    ball: Ball  # the unit ball of updates, in clips
    unmasked: ClassVar[bool] = False  # whether runs of secure sums send these releases unmasked
    # Whether decoded values, as signs, are no updates until they are divided by the gain.
    unitless: ClassVar[bool] = False
    scouting: ClassVar[bool] = False  # whether clients take turns at updates and scouts' answers

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The layout of a body."""

    @abstractmethod
    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Clip the update to ``clip``, randomise it in clips, and fill ``out``: the client's half.

        ``out`` is given as zeros.
        """

    @abstractmethod
    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an empty accumulator of up to ``max_payloads`` bodies: the server's half."""

    @abstractmethod
    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the bare cost of one release to a client; `privacy` adds unit and trust."""

    @abstractmethod
    def error(self) -> Error:
        """Return the worst-case error of a decoded update."""

    @final
    def privacy(self, adjacency: Adjacency | str, samples: int | None = None) -> Cost:
        """Return the cost of one release to a client, or to one of its ``samples`` samples."""
        neighbours = Adjacency(adjacency)
        if samples is None:
            return self.cost(neighbours).of(neighbours, Unit.CLIENT, Trust.LOCAL)
        cost = self.sample_cost(neighbours, samples)
        return cost.of(neighbours, Unit.SAMPLE, Trust.LOCAL, samples)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the bare cost of one release to one of a client's ``samples`` samples."""
        raise InvalidParameter.of("mechanism", PRICED_BY_SAMPLE, type(self).__name__)

    def decoded(self, value: float) -> tuple[float, float]:
        """Return mean and variance of a coordinate's decoded value, all in clips.

        The default assumes no bias.
        """
        error = self.error()
        return error.gain * value, error.squared * error.gain**2 - error.bias**2

    @final
    def expectation(self, value: float) -> float:
        """Return the mean of the decoded value of a coordinate in the ball."""
        mean, _ = self.decoded(self.ball.check_coordinate(value))
        return mean

    @final
    def variance(self, value: float) -> float:
        """Return the variance of the decoded value of a coordinate in the ball."""
        _, variance = self.decoded(self.ball.check_coordinate(value))
        return variance

    @property
    def kept(self) -> int:
        """The number of coordinates of an update, rotated or not, that a release depends on."""
        return self.ball.dimension

    @property
    def honest_length(self) -> float:
        """A length in clips that honest payloads exceed with probability at most 2^-40.

        Servers refuse longer ones; infinity where no length is refused.
        """
        return math.inf

    @property
    def moment_error(self) -> float:
        """A bound on the relative error of `expectation` and `variance`, for any update."""
        return 0.0

    def response(self, block: int | None) -> float:
        """Return a lower bound on the decoded share of an update.

        ``block`` is the length of the blocks in which the update was rotated; None for no rotation.
        """
        return 1.0

    @property
    def designed(self) -> Design | Profile | None:
        """The design or the profile that it samples with, which can be saved; None without one."""
        return None

    @property
    def core(self) -> Mechanism:
        """The mechanism inside all wrappers: itself unless it is one."""
        return self

    def samples(self, rng: RandomBits, kernel: Kernel) -> Samples:
        """Return a release of a mean of gradients."""
        return Samples(self, rng, kernel)

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the mechanism of one round of a run, for example with that round's shared rows."""
        return self

    @property
    def priced_as(self) -> Mechanism:
        """The mechanism that a ledger records; it leaves out what does not change the cost."""
        return self

    def is_turn_of(self, run: bytes, number: int, node: int) -> bool:
        """Return whether a node may be asked for this release, from public values alone."""
        return True

    def offers(self, ability: Any) -> bool:
        """Return whether it has an ability of its class; a wrapper's depend on what it holds."""
        return True


def passed_on(path: str) -> Any:
    """Return a property that reads a path such as ``inner.ball``: a value, or a method to call."""
    return property(attrgetter(path))


class Wrapper(Mechanism):
    """A mechanism around ``inner``, an attrs field of the subclass; members default to inner's.

    Costs are never delegated: a subclass defines `cost`, and `sample_cost` or `sum_cost` if it has
    them. It inherits from every ability that it passes on, and has it where ``inner`` has it.
    """

    __slots__ = ()
    inner: Mechanism

    ball = passed_on("inner.ball")
    layout = passed_on("inner.layout")
    write = passed_on("inner.write")
    accumulator = passed_on("inner.accumulator")
    error = passed_on("inner.error")
    decoded = passed_on("inner.decoded")
    unitless = passed_on("inner.unitless")
    kept = passed_on("inner.kept")
    honest_length = passed_on("inner.honest_length")
    moment_error = passed_on("inner.moment_error")
    response = passed_on("inner.response")
    designed = passed_on("inner.designed")
    core = passed_on("inner.core")

    def offers(self, ability: Any) -> bool:
        """Return whether the inner mechanism has the ability."""
        return ability.find(self.inner) is not None

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the same wrapper around the inner mechanism of the round."""
        return self.around(self.inner.for_round(run, number))

    @property
    def priced_as(self) -> Mechanism:
        """The same wrapper around the inner mechanism that a ledger records."""
        return self.around(self.inner.priced_as)

    def around(self, inner: Mechanism) -> Mechanism:
        """Return the same wrapper around this mechanism."""
        if inner is self.inner:
            return self
        return evolve(self, inner=inner)  # type: ignore[misc]


def only(kind: type, rule: str) -> Callable[[Any, Any, Any], None]:
    """Return an attrs validator that refuses a value unless it is of this class."""

    def validate(_: Any, attribute: Any, value: Any) -> None:
        require(isinstance(value, kind), attribute.name, type(value).__name__, rule)

    return validate


def check_mechanism(value: Any, name: str = "mechanism") -> Mechanism:
    """Return the value; refuse it unless it is a mechanism."""
    if isinstance(value, Mechanism):
        return value
    kind = type(value).__name__
    sentence = f"{name}: expected a Mechanism, got a {kind}"
    if isinstance(getattr(value, "mechanism", None), Mechanism):
        sentence += ": pass its `mechanism`"
    raise InvalidParameter(f"{sentence}.", name=name, rule="a Mechanism", value=kind)
