"""The interface of a mechanism: everything callers need, so that no caller asks which mechanism it has.

Idea     public choices are fields of a frozen class; the private update and the randomness are arguments.
         `write` is the only way to make a release: it clips, randomises and fills a payload's body.
         A bad update is refused before any random bit is drawn.
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
from quietbit.mechanism.poison import WORK, longest_payload
from quietbit.privacy.cost import Cost
from quietbit.privacy.shuffle import BlanketPair, shuffled_cost
from quietbit.target import Adjacency, Trust, Unit

__all__ = [
    "LEFT_OUT", "Accumulator", "Answers", "Batch", "Body", "Error", "Layout", "Mechanism", "Parts", "Reader", "Wrapper",
    "check_mechanism", "only", "passed_on", "shuffled_privacy", "summable",
]  # fmt: skip

Body: TypeAlias = NDArray[np.uint8]
Parts: TypeAlias = Sequence[Any]  # arrays that together, in order, are one flat vector
Reader: TypeAlias = Callable[[int, int], FloatVector]  # values of coordinates start .. stop - 1
FLOAT_BITS = 32
WIDTHS = (*range(1, 17), FLOAT_BITS)
LEFT_OUT = {"left_out": True}  # metadata of a field that an identity includes only where it differs from the default
_NO_SUM = "an account for sums of codes (imvu has)"
_NO_ROWS = "the same rows for all clients of a round"


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
        return cls(0, check_int(dimension, "dimension", 1, MAX_DIMENSION), check_int(size, "bytes of the body", 1))


@final
@frozen
class Error:
    """The error of a decoded update, for the worst update in the ball, averaged over noise and public randomness.

    ``squared``: the mean squared error per coordinate; ``shared``: the part of it that all clients of a round share, so
    that averaging does not reduce it; ``response``: a lower bound on the share of the update that is decoded; all after
    dividing by ``gain``, the slope of the decoded mean at 0. ``bias``: the decoded mean at 0. ``unitless``: decoded
    values are not updates until they are divided by the gain (`Sign`).
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

    def answers(self, count: int) -> Answers:
        """Return what ``count`` scouts answered about a moving clip."""
        raise InvalidParameter("mechanism must be that of scouts to have answers, and is not.")

    def kept(self, count: int) -> FloatVector:
        """Return the mean on the rows that all clients keep: k numbers, for `Mechanism.unproject`."""
        raise InvalidParameter(f"mechanism must have {_NO_ROWS}, and has not.")


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

    A mechanism defines six members: `ball`, a field, `layout`, `write`, `accumulator`, `cost` and `error`. The defaults
    of the others fit one that decodes without bias, cannot be summed behind masks, takes a client's whole update and is
    the same in every round. Callers use `privacy`, `sum_privacy`, `expectation` and `variance`, which validate their
    arguments; a mechanism implements `cost`, `sample_cost`, `sum_cost` and `decoded`. A frozen class (attrs or
    dataclass) of numbers, strings, designs or further such classes has an identity on the wire (`registry`).
    """

    __slots__ = ()
    ball: Ball
    NO_SAMPLE_COST: ClassVar[str] = "nobody has worked out what one sample costs here"  # the reason for a refusal

    @property
    def domain(self) -> Ball:
        """The ball that updates are clipped to."""
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

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the cost to one of a client's ``samples`` samples; refuse where no theorem gives one."""
        known = "imvu, gaussian, laplace, sign or skellam for sample-level privacy"
        raise InvalidParameter(f"mechanism must be {known}: {self.NO_SAMPLE_COST}.")

    @final
    def privacy(self, adjacency: Adjacency | str, samples: int | None = None) -> Cost:
        """Return the cost of one release to a client, or to one of its ``samples`` samples if their number is given."""
        which = Adjacency(adjacency)
        if samples is None:
            return self.cost(which).of(which, Unit.CLIENT, Trust.LOCAL)
        return self.sample_cost(which, samples).of(which, Unit.SAMPLE, Trust.LOCAL, samples)

    @abstractmethod
    def error(self) -> Error:
        """Return the worst-case error of a decoded update."""

    def decoded(self, value: float) -> tuple[float, float]:
        """Return mean and variance of the decoded value of a coordinate."""
        found = self.error()
        return found.gain * value, found.squared * found.gain**2 - found.bias**2

    @final
    def expectation(self, value: float) -> float:
        """Return the mean of the decoded value of a coordinate; the coordinate must lie in the ball."""
        return self.decoded(self._value(value))[0]

    @final
    def variance(self, value: float) -> float:
        """Return the variance of the decoded value of a coordinate; the coordinate must lie in the ball."""
        return self.decoded(self._value(value))[1]

    def _value(self, value: float) -> float:
        number, radius = float(value), self.domain.radius
        require(abs(number) <= radius, "value of a coordinate", value, f"at most {radius!r} in magnitude")
        return number

    def response(self, block: int | None) -> float:
        """Return a lower bound on the decoded share of an update, rotated in blocks of this length or not (None)."""
        return 1.0

    @property
    def moment_error(self) -> float:
        """A relative bound on the error of `expectation` and `variance`, for an auditor who sends arbitrary updates."""
        return 0.0

    @property
    def kept(self) -> int:
        """The number of coordinates of an update, rotated or not, that a release depends on."""
        return self.domain.dimension

    @property
    def prepares(self) -> str:
        """A phrase naming what a client computes before the family's own work; empty for nothing."""
        return ""

    @property
    def core(self) -> Mechanism:
        """The mechanism inside all wrappers."""
        return self

    @property
    def designed(self) -> Design | Profile | None:
        """The design or profile that the mechanism samples with, or None; this is what can be saved."""
        return None

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the mechanism of one round of a run, from public values alone: with that round's shared rows, say."""
        return self

    def is_turn_of(self, run: bytes, number: int, node: int) -> bool:
        """Return whether a node may be asked for this release, from public values alone (as `for_round`)."""
        return True

    @property
    def unmasked(self) -> bool:
        """Whether a run of sums sends its releases unmasked, at the cost of a release in a sum, which covers it."""
        return False

    @property
    def shared_rows(self) -> int:
        """The number k of rotated coordinates that all clients of a round keep, so that a mean is k numbers; else 0."""
        return 0

    def row_places(self) -> NDArray[np.int64]:
        """Return the indices of the shared rows among the rotated coordinates."""
        self._lacks(_NO_ROWS)

    def unproject(self, kept: FloatVector) -> NDArray[Any]:
        """Return the update that the k numbers on the shared rows stand for, bit for bit the same on every machine."""
        self._lacks(_NO_ROWS)

    @property
    def clip_moves(self) -> bool:
        """Whether the clip may change from round to round (`at_clip`)."""
        return False

    def at_clip(self, clip: float) -> Mechanism:
        """Return the mechanism for a round with another clip, at the same cost; refuse where the clip is fixed."""
        self._lacks("a clip that moves (AdaptiveClip)")

    def scout(self) -> Mechanism:
        """Return the mechanism of the answers of scouts, at the same cost; refuse where nobody scouts."""
        self._lacks("a clip that clients scout for (AdaptiveClip)")

    @property
    def priced_as(self) -> Mechanism:
        """The mechanism that a ledger records: the same for mechanisms that differ only in values without a cost."""
        return self

    def blanket(self, adjacency: Adjacency) -> BlanketPair | None:
        """Return the pair that hides a release among others, where it is sharper than the curve implies; else None."""
        return None

    @property
    def takes_samples(self) -> bool:
        """Whether it clips the gradients of a client's samples one by one (`write_samples`) instead of their mean."""
        return self.batch > 0 or self.each_sample is not None

    @property
    def each_sample(self) -> Mechanism | None:
        """The mechanism that projects each sample's gradient before it is clipped again; None for no projection."""
        return None

    @property
    def batch(self) -> int:
        """The number by which the sum over a batch of samples is divided; 0 where a release is of an update."""
        return 0

    @property
    def steps(self) -> int:
        """The number of batches per release."""
        return 1

    @property
    def longest_update(self) -> float:
        """The largest norm of an update that a release can stand for."""
        return self.domain.radius

    @property
    def honest_length(self) -> float:
        """A bound that an honest decoded payload exceeds with probability at most 2^-40; servers refuse longer ones."""
        return math.inf

    def poisoned(self, work: float = WORK) -> float:
        """Return how far a payload, or the best of 2^``work`` seeds, lies along the attacker's direction, in clips."""
        return longest_payload(self, self.layout.bits, self.layout.count)

    @property
    def sampling_rate(self) -> float:
        """The probability with which each sample of the client is in a batch."""
        return 1.0

    def begin(self, rng: RandomBits, kernel: Kernel) -> Batch:
        """Return an empty batch of sample gradients; refuse where a release is of an update."""
        raise InvalidParameter.of("mechanism", "a PoissonBatch to add up a batch", type(self).__name__)

    def write_samples(self, gradients: Sequence[Parts], rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Fill ``out`` from the gradients of a client's samples; each gradient is given as an update's parts."""
        self._lacks("a way to take gradients one by one (calibrate with samples and keep), or get their clipped mean")

    @property
    def summable(self) -> bool:
        """Whether codes may be added behind masks, with a known cost of the sum."""
        return False

    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the cost of one secure sum over ``clients`` honest clients to one of them, as a bare cost."""
        self._lacks(_NO_SUM)

    @final
    def sum_privacy(self, clients: int, adjacency: Adjacency | str) -> Cost:
        """Return the cost of one secure sum over ``clients`` honest clients to one of them."""
        which = Adjacency(adjacency)
        return self.sum_cost(clients, which).of(which, Unit.CLIENT, Trust.SECURE_AGGREGATION)

    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the mean of the decoded updates from the sums of their codes."""
        self._lacks(_NO_SUM)

    def kept_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return that mean on the rows that all clients keep: k numbers, for `unproject`."""
        self._lacks(_NO_ROWS)

    def _lacks(self, what: str) -> NoReturn:
        raise InvalidParameter(f"mechanism must have {what}, got {type(self).__name__}.")


def shuffled_privacy(mechanism: Mechanism, adjacency: Adjacency, crowd: int) -> Cost:
    """Return the cost of one release to a client, for observers of a shuffle of ``crowd`` clients, one release each.

    A mechanism that is not private at delta = 0 is refused; `quietbit.privacy.shuffle` lists the assumptions.
    """
    which = Adjacency(adjacency)
    far, near = mechanism.privacy(Adjacency.REPLACE_ONE), mechanism.privacy(Adjacency.ZERO_OUT)
    cost = shuffled_cost(which, crowd, replace_one=far, zero_out=near, own=mechanism.blanket(which))
    return cost.of(which, Unit.CLIENT, Trust.SHUFFLED)


def passed_on(path: str) -> Any:
    """Return a class member that delegates to a path such as ``inner.domain``: a value or a method."""
    return property(attrgetter(path))


class Wrapper(Mechanism):
    """A mechanism around ``inner``, an attrs field of the subclass; what it does not override, ``inner`` answers.

    Costs are never delegated: a wrapper defines `cost`, and those of `sample_cost`, `sum_cost` and `blanket` it has.
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
    poisoned = passed_on("inner.poisoned")

    def for_round(self, run: bytes, number: int) -> Mechanism:
        """Return the same wrapper around the inner mechanism of the round."""
        return self.around(self.inner.for_round(run, number))

    @property
    def priced_as(self) -> Mechanism:
        """The same wrapper around the inner mechanism that a ledger records."""
        return self.around(self.inner.priced_as)

    def around(self, inner: Mechanism) -> Mechanism:
        """Return the same wrapper around another mechanism."""
        return self if inner is self.inner else evolve(self, inner=inner)  # type: ignore[misc]


def summable(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism; refuse it unless sums of its codes have a known cost."""
    if not mechanism.summable:
        mechanism._lacks(_NO_SUM)
    return mechanism


def only(kind: type, rule: str) -> Callable[[Any, Any, Any], None]:
    """Return an attrs validator that refuses values of any other class."""
    return lambda _, attribute, value: require(isinstance(value, kind), attribute.name, value, rule)


def check_mechanism(value: Any, name: str = "mechanism") -> Mechanism:
    """Return the value; refuse it unless it is a mechanism."""
    if not isinstance(value, Mechanism):
        held = isinstance(getattr(value, "mechanism", None), Mechanism)
        inside = ", which has one: pass found.mechanism" if held else ""
        raise InvalidParameter(f"{name}: expected a Mechanism, got a {type(value).__name__}{inside}.", name=name)
    return value
