"""Abilities: what a mechanism may be able to do besides its six members, one small class each.

Idea     a mechanism that has an ability inherits from its class. A caller that needs it asks once:
         ``Summable.of(mechanism)`` returns the mechanism as one whose codes can be summed, or
         refuses it, with the ability's ``RULE`` as the reason; ``Summable.find(mechanism)`` returns
         None instead. A wrapper may inherit an ability and have it only where its inner mechanism
         has it (`Mechanism.offers`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

from quietbit.errors import InvalidParameter
from quietbit.mechanism.base import Batch, Body, Mechanism, Parts
from quietbit.target import Adjacency, Trust, Unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from quietbit._typing import FloatVector
    from quietbit.kernel.base import Kernel
    from quietbit.kernel.rng import RandomBits
    from quietbit.privacy.cost import Cost

__all__ = [
    "Ability",
    "Batches",
    "SampleGradients",
    "SharedRows",
    "Summable",
    "summable",
]


class Ability(ABC):  # noqa: B024 - its subclasses have the methods
    """Something that some mechanisms can do; ``RULE`` is what a refused mechanism should be."""

    __slots__ = ()
    RULE: ClassVar[str] = "one with this ability"

    @classmethod
    def find(cls, mechanism: Mechanism) -> Self | None:
        """Return the mechanism if it has this ability, else None."""
        candidate: Any = mechanism
        if isinstance(candidate, cls) and mechanism.offers(cls):
            return candidate
        return None

    @classmethod
    def of(cls, mechanism: Mechanism) -> Self:
        """Return the mechanism as one with this ability; refuse it if it has not."""
        able = cls.find(mechanism)
        if able is None:
            raise InvalidParameter.of("mechanism", cls.RULE, type(mechanism).__name__)
        return able


class Summable(Ability):
    """A mechanism whose codes may be added behind masks, with a known cost of the sum."""

    __slots__ = ()
    RULE = "one with an account for sums of codes, such as imvu with the same rows for all clients"

    @abstractmethod
    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the bare cost of one secure sum over ``clients`` honest clients to one of them."""

    @abstractmethod
    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the mean of the decoded updates, in clips, from the sums of their codes."""

    def kept_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the mean on the shared rows, in clips, from the sums of codes: k numbers."""
        raise InvalidParameter.of("mechanism", SharedRows.RULE, type(self).__name__)

    @final
    def sum_privacy(self, clients: int, adjacency: Adjacency | str) -> Cost:
        """Return the cost of one secure sum over ``clients`` honest clients to one of them."""
        neighbours = Adjacency(adjacency)
        mechanism: Any = self
        # A wrapper inherits this method, and may hold a mechanism without sums.
        cost = Summable.of(mechanism).sum_cost(clients, neighbours)
        return cost.of(neighbours, Unit.CLIENT, Trust.SECURE_AGGREGATION)


class SharedRows(Ability):
    """A mechanism that keeps the same k rotated coordinates of all clients of a round.

    A mean is then k numbers.
    """

    __slots__ = ()
    RULE = "one with the same rows for all clients of a round"

    @property
    @abstractmethod
    def shared_rows(self) -> int:
        """The number k of rows."""

    @abstractmethod
    def unproject(self, kept: FloatVector) -> NDArray[Any]:
        """Return the update for k numbers on the rows, with the same bits on every machine."""


class SampleGradients(Ability):
    """A mechanism that clips the gradients of a client's samples one by one, not their mean."""

    __slots__ = ()
    RULE = (
        "one that takes gradients one by one: calibrate with samples and coordinates, "
        "or send their mean"
    )

    @abstractmethod
    def write_samples(
        self, gradients: Sequence[Parts], clip: float, rng: RandomBits, kernel: Kernel, out: Body
    ) -> None:
        """Fill ``out`` from the gradients of a client's samples, each in parts as an update is."""


class Batches(SampleGradients):
    """A mechanism that releases secret batches of a client's samples."""

    __slots__ = ()
    RULE = "a PoissonBatch, or LocalSteps of one, to release batches"

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
        """The largest norm of an update that a release can stand for, in clips."""

    @abstractmethod
    def begin(self, clip: float, rng: RandomBits, kernel: Kernel) -> Batch:
        """Return an empty batch of sample gradients, each clipped to ``clip``."""


def summable(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism; refuse it unless its codes may be added behind masks."""
    Summable.of(mechanism)
    return mechanism
