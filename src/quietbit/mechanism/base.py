"""What a mechanism is: everything anybody needs of it, so that nobody asks which one it is.

Idea     the public choices are fields of a frozen class, the private update and the randomness are arguments.
         `write` is the only way in which a release is made: it clips, randomises and fills a payload's body.
         What is wrong with an update is said before a random bit is drawn.
Symbols  d = dimension of the ball; b = bits per code; a body is the part of a payload after its header.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NoReturn, TypeAlias, final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.design.profile import Profile
from quietbit.design.table import Design
from quietbit.errors import InvalidParameter, check_int, require
from quietbit.kernel.base import MAX_DIMENSION, Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.ball import Ball
from quietbit.privacy.cost import Cost
from quietbit.privacy.shuffle import BlanketPair
from quietbit.target import Adjacency, Trust, Unit, as_adjacency

__all__ = [
    "LEFT_OUT", "Accumulator", "Answers", "Batch", "Body", "Error", "Layout", "Mechanism", "Parts", "Reader", "Wrapper",
    "check_mechanism", "only", "passed_on", "summable",
]  # fmt: skip

Body: TypeAlias = NDArray[np.uint8]
Parts: TypeAlias = Sequence[Any]  # arrays that are read one after the other as one flat vector
Reader: TypeAlias = Callable[[int, int], FloatVector]  # values of coordinates start .. stop - 1
FLOAT_BITS = 32
WIDTHS = (*range(1, 17), FLOAT_BITS)
LEFT_OUT = {"left_out": True}  # metadata of a field that identities mention only where it is not the default
_NO_SUM = "an account for sums of codes (imvu has)"
_NO_ROWS = "the same rows for all clients of a round"


@final
@frozen
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
        """Lay out packed codes."""
        require(bits in WIDTHS, "bits", bits, "a whole number from 1 to 16, or 32")
        many = check_int(count, "number of codes", 1, MAX_DIMENSION)
        return cls(int(bits), many, (int(bits) * many + 7) // 8)

    @classmethod
    def opaque(cls, dimension: int, size: int) -> Layout:
        """Lay out ``size`` bytes for an update of this dimension."""
        return cls(0, check_int(dimension, "dimension", 1, MAX_DIMENSION), check_int(size, "bytes of the body", 1))


@final
@frozen
class Error:
    """How far what is decoded is off, for the worst update in the ball, on average over noise and public randomness.

    ``squared``: the squared error of a coordinate, its mean over coordinates, in the units of the update. ``response``:
    the share of the update that comes back at least, of which no mean over clients makes more. ``gain`` is the slope of
    the decoded mean at 0: 1 where decoding is unbiased to first order. Both are what remains after dividing by it, so
    that decoders which differ by a factor are alike. ``bias``: the decoded mean at 0. ``unitless``: decoded values are
    not updates, whatever the gain, until somebody divides by it (`Sign`).
    """

    squared: float
    gain: float = 1.0
    bias: float = 0.0
    unitless: bool = False
    response: float = 1.0


@final
@frozen
class Answers:
    """The share of updates that a clip left alone, estimated without bias (it may leave [0, 1]), and its noise.

    ``deviation`` bounds the standard deviation that randomising and drawing the scouts give the share; it is public.
    """

    share: float
    deviation: float


class Accumulator(ABC):
    """The server's half: bodies in, mean out; ``group`` of them are best added together."""

    __slots__ = ()

    @property
    def group(self) -> int:
        """How many bodies to add at once."""
        return 1

    def check(self, body: Body) -> None:
        """Refuse a body with values that no client could have sent."""
        return

    @abstractmethod
    def add(self, bodies: Sequence[Body]) -> None:
        """Add bodies that have been checked."""

    @abstractmethod
    def reader(self, count: int) -> Reader:
        """Return a reader of the mean over ``count`` payloads by ranges of coordinates."""

    def answers(self, count: int) -> Answers:
        """Return what ``count`` scouts said about a clip that moves."""
        raise InvalidParameter("mechanism must be that of scouts to have answers, and is not.")

    def kept(self, count: int) -> FloatVector:
        """Return the mean among the rows that all clients keep, k numbers, for `Mechanism.unproject`."""
        raise InvalidParameter(f"mechanism must have {_NO_ROWS}, and has not.")


class Batch(ABC):
    """The clipped gradients of a batch as they come, and the release that is made of them."""

    __slots__ = ()

    @abstractmethod
    def add(self, rows: NDArray[Any]) -> None:
        """Clip each row to the ball by itself and add it; one that is not finite counts as zero."""

    def step(self) -> FloatVector | None:
        """Close the batch; return what the model changes by before the release's next batch, None after the last."""
        return None

    @abstractmethod
    def write(self, out: Body) -> None:
        """Write the release."""


class Mechanism(ABC):
    """A randomised map from a ball to payload bodies, with its price, its error and its decoder.

    Six members are a mechanism's own: `ball`, a field, `layout`, `write`, `accumulator`, `cost` and `error`. The
    others have defaults: of a mechanism that decodes without bias, cannot be summed behind masks, takes a client's
    update as a whole and is the same in every round. Prices and moments are asked for by `privacy`, `sum_privacy`,
    `expectation` and `variance`, which check what they are given; a mechanism answers by `cost`, `sample_cost`,
    `sum_cost` and `decoded`. A frozen class (of attrs, or a dataclass) whose fields are numbers, words, designs or such
    classes again has an identity on the wire and a description from which it is rebuilt
    (`quietbit.mechanism.registry`).
    """

    __slots__ = ()
    ball: Ball
    NO_SAMPLE_COST: ClassVar[str] = "nobody has worked out what one sample costs here"  # the reason for a refusal

    @property
    def domain(self) -> Ball:
        """Where updates are clipped to."""
        return self.ball

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """What a body looks like."""

    @abstractmethod
    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Clip the update, randomise it and fill ``out``, which is full of zeros: the client's half."""

    @abstractmethod
    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an empty mean of at most ``max_payloads`` bodies: the server's half."""

    @abstractmethod
    def cost(self, adjacency: Adjacency) -> Cost:
        """Return what one release costs a client, as a bare cost."""

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return what it costs one of a client's ``samples`` samples; refused where no theorem gives a price."""
        raise InvalidParameter(
            "mechanism must be imvu, gaussian, laplace, sign or skellam for sample-level privacy: "
            f"{self.NO_SAMPLE_COST}."
        )

    @final
    def privacy(self, adjacency: Adjacency | str, samples: int | None = None) -> Cost:
        """Return what one release costs a client, or one of its ``samples`` samples where their number is given."""
        which = as_adjacency(adjacency)
        if samples is None:
            return self.cost(which).of(which, Unit.CLIENT, Trust.LOCAL)
        return self.sample_cost(which, samples).of(which, Unit.SAMPLE, Trust.LOCAL, samples)

    @abstractmethod
    def error(self) -> Error:
        """Return how far a decoded coordinate is off."""

    def decoded(self, value: float) -> tuple[float, float]:
        """Return mean and variance of what decoding gives for an update's coordinate of this value."""
        found = self.error()
        return found.gain * value, found.squared * found.gain**2 - found.bias**2

    @final
    def expectation(self, value: float) -> float:
        """Return the mean of what decoding gives for a coordinate of this value, of one in the ball."""
        return self.decoded(self._value(value))[0]

    @final
    def variance(self, value: float) -> float:
        """Return the variance of what decoding gives for a coordinate of this value, of one in the ball."""
        return self.decoded(self._value(value))[1]

    def _value(self, value: float) -> float:
        number, radius = float(value), self.domain.radius
        require(abs(number) <= radius, "value of a coordinate", value, f"at most {radius!r} in magnitude")
        return number

    def response(self, block: int | None) -> float:
        """Return the least share of an update that comes back, of those rotated in blocks of this length, or of all."""
        return 1.0

    @property
    def moment_error(self) -> float:
        """How far mean and variance may be from these, relatively: for an auditor, who sends updates of all kinds."""
        return 0.0

    @property
    def shared_error(self) -> float:
        """The part of the squared error that all clients of a round have in common, so that no mean averages it out."""
        return 0.0

    @property
    def kept(self) -> int:
        """How many coordinates of an update, rotated or not, a release tells about."""
        return self.domain.dimension

    @property
    def prepares(self) -> str:
        """What a client computes before the family's own work, in words; empty for nothing."""
        return ""

    @property
    def core(self) -> Mechanism:
        """The mechanism inside all wrappers."""
        return self

    @property
    def designed(self) -> Design | Profile | None:
        """The design or the profile that it samples with, where it has one: what can be saved."""
        return None

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the mechanism of one round of a run: rows that all its clients keep; else itself.

        A function of public values alone, so that server and nodes come to the same.
        """
        return self

    def is_turn_of(self, run: bytes, number: int, node: int) -> bool:
        """Return whether a node may be asked for it in this round: a function of public values, as `for_round` is."""
        return True

    @property
    def unmasked(self) -> bool:
        """Whether its releases leave by themselves in a run of sums, at the price of one in a sum, which covers it."""
        return False

    @property
    def shared_rows(self) -> int:
        """K where all clients of a round keep the same k rotated coordinates, so that a mean is k numbers; else 0."""
        return 0

    def row_places(self) -> NDArray[np.int64]:
        """Return the places of the shared rows among the rotated coordinates."""
        self._lacks(_NO_ROWS)

    def unproject(self, kept: FloatVector) -> NDArray[Any]:
        """Return the update that k numbers of the shared rows stand for, the same bits on every machine."""
        self._lacks(_NO_ROWS)

    @property
    def clip_moves(self) -> bool:
        """Whether each round may have a clip of its own (`at_clip`)."""
        return False

    def at_clip(self, clip: float) -> Mechanism:
        """Return the mechanism in a round of another clip, at the same price; refused where the clip cannot move."""
        self._lacks("a clip that moves (AdaptiveClip)")

    def scout(self) -> Mechanism:
        """Return what scouts of the round answer with instead, at the same price; refused where nobody scouts."""
        self._lacks("a clip that clients scout for (AdaptiveClip)")

    @property
    def priced_as(self) -> Mechanism:
        """What stands for it in a ledger: mechanisms that differ in public values without a price have one."""
        return self

    def blanket(self, adjacency: Adjacency) -> BlanketPair | None:
        """Return what hides a release among others', where the mechanism knows more than its curve says."""
        return None

    @property
    def takes_samples(self) -> bool:
        """Whether it clips the gradients of a client's samples one by one (`write_samples`), never their mean."""
        return False

    @property
    def each_sample(self) -> Mechanism | None:
        """What projects the gradients of samples, each by itself, before they are clipped again; None for nothing."""
        return None

    @property
    def batch(self) -> int:
        """What the sum over a batch of samples is divided by; 0 where a release is of an update."""
        return 0

    @property
    def steps(self) -> int:
        """How many batches make one release."""
        return 1

    @property
    def reach(self) -> float:
        """How long the update that a release stands for can be."""
        return self.domain.radius

    @property
    def honest_length(self) -> float:
        """What a payload decodes to is longer than this, in the ball's norm, with a chance of at most 2^-40.

        A server refuses longer ones (`mechanism/outliers.py`); infinite where no payload is longer than others.
        """
        return math.inf

    @property
    def sampling_rate(self) -> float:
        """The probability with which each sample of the client is in a batch."""
        return 1.0

    def begin(self, rng: RandomBits, kernel: Kernel) -> Batch:
        """Return an empty batch of samples' gradients; refused where a release is of an update."""
        raise InvalidParameter.of("mechanism", "a PoissonBatch to add up a batch", type(self).__name__)

    def write_samples(self, gradients: Sequence[Parts], rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Fill ``out`` from the gradients of a client's samples, each of which is an update's parts."""
        self._lacks(
            "a way to take gradients one by one (calibrate with samples and keep), or be sent their clipped mean"
        )

    @property
    def summable(self) -> bool:
        """Whether codes may be added behind masks, with an account of the sum."""
        return False

    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return what one secure sum over ``clients`` honest clients costs one of them, as a bare cost."""
        self._lacks(_NO_SUM)

    @final
    def sum_privacy(self, clients: int, adjacency: Adjacency | str) -> Cost:
        """Return what one secure sum over ``clients`` honest clients costs one of them."""
        which = as_adjacency(adjacency)
        return self.sum_cost(clients, which).of(which, Unit.CLIENT, Trust.SECURE_AGGREGATION)

    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the mean of the decoded updates from the sums of their codes."""
        self._lacks(_NO_SUM)

    def kept_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return that mean among the rows that all clients keep, k numbers, for `unproject`."""
        self._lacks(_NO_ROWS)

    def _lacks(self, what: str) -> NoReturn:
        raise InvalidParameter(f"mechanism must have {what}, got {type(self).__name__}.")


def passed_on(path: str) -> Any:
    """Return a member of a class that is the one found by the path, ``inner.domain`` say: a value or a method."""
    return property(attrgetter(path))


class Wrapper(Mechanism):
    """A mechanism around ``inner``, an attrs field of the subclass: what is not said anew, the inner one says.

    Prices are never passed on unseen: `cost`, `sample_cost`, `sum_cost` and `blanket` are the wrapper's own.
    """

    __slots__ = ()
    inner: Mechanism

    domain = passed_on("inner.domain")
    layout = passed_on("inner.layout")
    write = passed_on("inner.write")
    accumulator = passed_on("inner.accumulator")
    error = passed_on("inner.error")
    decoded = passed_on("inner.decoded")
    response = passed_on("inner.response")
    moment_error = passed_on("inner.moment_error")
    shared_error = passed_on("inner.shared_error")
    kept = passed_on("inner.kept")
    shared_rows = passed_on("inner.shared_rows")
    row_places = passed_on("inner.row_places")
    unproject = passed_on("inner.unproject")
    prepares = passed_on("inner.prepares")
    core = passed_on("inner.core")
    designed = passed_on("inner.designed")
    clip_moves = passed_on("inner.clip_moves")
    each_sample = passed_on("inner.each_sample")
    honest_length = passed_on("inner.honest_length")

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the wrapper around the inner mechanism of the round."""
        return self.around(self.inner.for_round(run, number))

    @property
    def priced_as(self) -> Mechanism:
        """The wrapper around what stands for the inner mechanism."""
        return self.around(self.inner.priced_as)

    def around(self, inner: Mechanism) -> Mechanism:
        """Return the same wrapper around another mechanism."""
        return self if inner is self.inner else evolve(self, inner=inner)  # type: ignore[misc]


def summable(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism itself, refused unless sums of its codes have an account."""
    if not mechanism.summable:
        mechanism._lacks(_NO_SUM)
    return mechanism


def only(kind: type, rule: str) -> Callable[[Any, Any, Any], None]:
    """Return a validator of attrs that refuses what is not of this class."""
    return lambda _, attribute, value: require(isinstance(value, kind), attribute.name, value, rule)


def check_mechanism(value: Any, name: str = "mechanism") -> Mechanism:
    """Return the value, refused unless it is a mechanism."""
    if not isinstance(value, Mechanism):
        held = isinstance(getattr(value, "mechanism", None), Mechanism)
        inside = ", which has one: pass found.mechanism" if held else ""
        raise InvalidParameter(f"{name}: expected a Mechanism, got a {type(value).__name__}{inside}.", name=name)
    return value
