"""What a mechanism may be able to do besides its six members, one small class each.

Idea     a mechanism that can do more says so by a further base class. A caller that needs it asks
         once: ``Summable.of(mechanism)`` returns the mechanism as one whose codes can be summed, or
         refuses it in the one sentence that there is about it; ``Summable.find(mechanism)`` returns
         None instead. A wrapper has what its inner mechanism has, where it says so
         (`Mechanism.offers`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

from quietbit.errors import InvalidParameter
from quietbit.target import Adjacency, Trust, Unit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quietbit._typing import FloatVector
    from quietbit.design.profile import Profile
    from quietbit.design.table import Design
    from quietbit.kernel.base import Kernel
    from quietbit.kernel.rng import RandomBits
    from quietbit.mechanism.base import Batch, Body, Mechanism, Parts
    from quietbit.mechanism.projected import Projected
    from quietbit.privacy.blanket import BlanketPair
    from quietbit.privacy.cost import Cost

__all__ = [
    "Ability",
    "Batches",
    "Blanketed",
    "ClipMoves",
    "Designed",
    "EachSample",
    "Keeping",
    "LengthBounded",
    "PoisonBounded",
    "Rotating",
    "RoughMoments",
    "SampleGradients",
    "SamplePriced",
    "Scouted",
    "SharedRows",
    "Shortening",
    "Summable",
    "SummableRows",
    "Wrapping",
    "is_turn_of",
    "is_unmasked",
    "kept_coordinates",
    "sampling_rate_of",
    "steps_of",
]


class Ability(ABC):  # noqa: B024 - its subclasses have the methods
    """Something that some mechanisms can do."""

    __slots__ = ()
    RULE: ClassVar[str] = (
        "one that can do this"  # what a mechanism must be, in the refusal of others
    )

    @classmethod
    def find(cls, mechanism: Mechanism) -> Self | None:
        """Return the mechanism if it can do this, else None."""
        candidate: Any = mechanism
        if isinstance(candidate, cls) and mechanism.offers(cls):
            return candidate
        return None

    @classmethod
    def nearest(cls, mechanism: Mechanism) -> Self | None:
        """Return the outermost of a mechanism and those inside its wrappers that can do this; None if none can."""
        able = cls.find(mechanism)
        while able is None and isinstance(mechanism, Wrapping):
            mechanism = mechanism.inner
            able = cls.find(mechanism)
        return able

    @classmethod
    def of(cls, mechanism: Mechanism) -> Self:
        """Return the mechanism as one that can do this; refuse any other."""
        able = cls.find(mechanism)
        if able is None:
            raise InvalidParameter.of("mechanism", cls.RULE, type(mechanism).__name__)
        return able


class Wrapping(Ability):
    """A mechanism around another one."""

    __slots__ = ()
    inner: Mechanism


class SamplePriced(Ability):
    """A mechanism whose release has a known cost to one of a client's samples."""

    __slots__ = ()
    RULE = "imvu or gaussian for sample-level privacy: others have no known cost to one sample"

    @abstractmethod
    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the cost to one of a client's ``samples`` samples, as a bare cost."""


class Summable(Ability):
    """A mechanism whose codes may be added behind masks, with a known cost of the sum."""

    __slots__ = ()
    RULE = "one with an account for sums of codes (imvu has, with the same rows for all clients)"

    @abstractmethod
    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the cost of one secure sum over ``clients`` honest clients to one of them, as a bare cost."""

    @abstractmethod
    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the mean of the decoded updates from the sums of their codes."""

    @final
    def sum_privacy(self, clients: int, adjacency: Adjacency | str) -> Cost:
        """Return the cost of one secure sum over ``clients`` honest clients to one of them."""
        which = Adjacency(adjacency)
        mechanism: Any = self
        able = Summable.of(mechanism)  # a wrapper may hold one without sums, or rows of its own
        return able.sum_cost(clients, which).of(which, Unit.CLIENT, Trust.SECURE_AGGREGATION)


class SharedRows(Ability):
    """A mechanism that keeps the same k rotated coordinates of all clients of a round, so that a mean is k numbers."""

    __slots__ = ()
    RULE = "one with the same rows for all clients of a round"

    @property
    @abstractmethod
    def shared_rows(self) -> int:
        """The number k of rows."""

    @abstractmethod
    def row_places(self) -> NDArray[np.int64]:
        """Return the indices of the rows among the rotated coordinates."""

    @abstractmethod
    def unproject(self, kept: FloatVector) -> NDArray[Any]:
        """Return the update that the k numbers on the rows stand for, bit for bit the same on every machine."""


class SummableRows(Summable, SharedRows):
    """A mechanism with both: a sum of its codes is k numbers."""

    __slots__ = ()
    RULE = "one with an account for sums of codes, and the same rows for all clients of a round"

    @abstractmethod
    def kept_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the mean on the rows from the sums of codes: k numbers, for `unproject`."""


class SampleGradients(Ability):
    """A mechanism that clips the gradients of a client's samples one by one instead of their mean."""

    __slots__ = ()
    RULE = "one that takes gradients one by one (calibrate with samples and keep), or get their clipped mean"

    @abstractmethod
    def write_samples(
        self, gradients: Sequence[Parts], rng: RandomBits, kernel: Kernel, out: Body
    ) -> None:
        """Fill ``out`` from the gradients of a client's samples; each gradient is given as an update's parts."""


class EachSample(SampleGradients):
    """A mechanism that projects each sample's gradient before it is clipped again."""

    __slots__ = ()

    @property
    @abstractmethod
    def each_sample(self) -> Projected:
        """The projection."""


class Keeping(Ability):
    """A mechanism that keeps some of an update's rotated coordinates."""

    __slots__ = ()

    @property
    @abstractmethod
    def kept(self) -> int:
        """The number of coordinates that a release depends on."""


class Batches(SampleGradients):
    """A mechanism that releases secret batches of a client's samples."""

    __slots__ = ()
    RULE = "a PoissonBatch to add up a batch"

    @property
    @abstractmethod
    def batch(self) -> int:
        """The number by which the sum over a batch of samples is divided."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """The number of batches per release."""

    @property
    @abstractmethod
    def sampling_rate(self) -> float:
        """The probability with which each sample of the client is in a batch."""

    @property
    @abstractmethod
    def longest_update(self) -> float:
        """The largest norm of an update that a release can stand for."""

    @abstractmethod
    def begin(self, rng: RandomBits, kernel: Kernel) -> Batch:
        """Return an empty batch of sample gradients."""


class ClipMoves(Ability):
    """A mechanism whose clip may change from round to round, at the same cost."""

    __slots__ = ()
    RULE = "one with a clip that moves (AdaptiveClip)"

    @abstractmethod
    def at_clip(self, clip: float) -> Mechanism:
        """Return the mechanism for a round with another clip, at the same cost."""

    @abstractmethod
    def is_turn_of(self, run: bytes, number: int, node: int) -> bool:
        """Return whether a node may be asked for this release, from public values alone."""

    @property
    @abstractmethod
    def unmasked(self) -> bool:
        """Whether a run of sums sends its releases unmasked, at the cost of a release in a sum, which covers it."""


class Scouted(ClipMoves):
    """A moving clip that one client in ``every`` scouts for, truly with probability ``truth``."""

    __slots__ = ()
    clip: float
    every: int | None
    truth: float | None
    RULE = "one with a clip that clients scout for (AdaptiveClip)"

    @abstractmethod
    def scout(self) -> Mechanism:
        """Return the mechanism of the answers of scouts, at the same cost."""


class Blanketed(Ability):
    """A mechanism with a pair that hides a release among others, sharper than the curve implies."""

    __slots__ = ()

    @abstractmethod
    def blanket(self, adjacency: Adjacency) -> BlanketPair | None:
        """Return the pair; None where it would not be sharper."""


class Designed(Ability):
    """A mechanism that samples with a design or a profile, which can be saved."""

    __slots__ = ()

    @property
    @abstractmethod
    def designed(self) -> Design | Profile:
        """The design or the profile."""


class Rotating(Ability):
    """A mechanism before whose own work a client computes something."""

    __slots__ = ()

    @property
    @abstractmethod
    def prepares(self) -> str:
        """A phrase that names what; empty for nothing."""


class RoughMoments(Ability):
    """A mechanism whose `expectation` and `variance` are approximate."""

    __slots__ = ()

    @property
    @abstractmethod
    def moment_error(self) -> float:
        """A relative bound on their error, for an auditor who sends arbitrary updates."""


class Shortening(Ability):
    """A mechanism whose decoded updates may come out too short."""

    __slots__ = ()

    @abstractmethod
    def response(self, block: int | None) -> float:
        """Return a lower bound on the decoded share of an update, rotated in blocks of this length or not (None)."""


class LengthBounded(Ability):
    """A mechanism whose honest payloads have a length that servers can hold others to."""

    __slots__ = ()

    @property
    @abstractmethod
    def honest_length(self) -> float:
        """A bound that an honest decoded payload exceeds with probability at most 2^-40; servers refuse longer ones."""


class PoisonBounded(Ability):
    """A mechanism that knows how far an attacker's payload reaches."""

    __slots__ = ()

    @abstractmethod
    def poisoned(self, work: float) -> float:
        """Return how far a payload, or the best of 2^``work`` seeds, lies along its direction, in clips."""


def is_turn_of(mechanism: Mechanism, run: bytes, number: int, node: int) -> bool:
    """Return whether a node may be asked for this release, from public values alone; any may where no clip moves."""
    moving = ClipMoves.find(mechanism)
    return moving is None or moving.is_turn_of(run, number, node)


def steps_of(mechanism: Mechanism) -> int:
    """Return the number of batches per release; one where a release is of an update."""
    batches = Batches.find(mechanism)
    return 1 if batches is None else batches.steps


def sampling_rate_of(mechanism: Mechanism) -> float:
    """Return the probability with which a sample is in a batch; one where a release is of an update."""
    batches = Batches.find(mechanism)
    return 1.0 if batches is None else batches.sampling_rate


def kept_coordinates(mechanism: Mechanism) -> int:
    """Return the number of coordinates of an update, rotated or not, that a release depends on."""
    keeping = Keeping.nearest(mechanism)
    return mechanism.ball.dimension if keeping is None else keeping.kept


def is_unmasked(mechanism: Mechanism) -> bool:
    """Return whether a run of sums sends these releases unmasked: the answers of scouts."""
    moving = ClipMoves.find(mechanism)
    return moving is not None and moving.unmasked
