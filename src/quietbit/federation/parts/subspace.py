"""A subspace: clients send the coordinates of their update in k public directions alone.

Idea     before the mechanism sees an update of d numbers, the client takes its k coordinates in a
         public basis; after the mechanism, the server lifts the mean back to d numbers. The
         mechanism, its noise, its cost and what the ledger notes are those of k numbers. Masked
         sums get zeros behind the coordinates, up to `PADDED` numbers, because one bit per number
         says little of few numbers.
Symbols  d: numbers of the model; k: directions; B: k x d, orthonormal rows.

The hypothesis that privacy needs: none about B. What leaves is a mechanism's release of k numbers
that the mechanism clips itself, whatever map made them of the update; a basis that is chosen badly
or in malice, differs between nodes or changes between rounds costs accuracy and no epsilon. The
node enforces it: its policy and its ledger price the request's mechanism, of dimension k, and its
gate clips. What a basis was made from it shows without noise: make it of public data, before the
run.

The server has B and sends it with the first request to a node, which keeps it for the run (k x d
floats, once). Its numbers travel, and not how they were made: two machines that factorise the same
gradients do not get the same bits.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import QuietbitError, require
from quietbit.federation.fields import Whole, needed
from quietbit.federation.messages import ENCLOSED, Asked, Node
from quietbit.federation.part import AppAnswer, Arrival, Closed, Part, Scope
from quietbit.federation.record import RoundReport
from quietbit.federation.terms import Say, Section, Terms
from quietbit.gradients.subspace import Subspace
from quietbit.node.refusal import NeedsModel
from quietbit.node.request import Request

__all__ = ["Basis", "ClientCoordinates", "InSubspace", "ServerCoordinates"]

TITLE = "subspace"
PADDED = 1024  # numbers of a masked sum
FORGETFUL = 2  # times that a node lost the basis: from then on it gets it with every request
Basis: TypeAlias = Subspace | str | os.PathLike[str]


@final
@frozen
class InSubspace(Section):
    """``[subspace]``: clients send their update's coordinates in ``directions`` public directions.

    The server has the directions and sends them to every node once.
    """

    title: ClassVar[str] = TITLE
    main: ClassVar[str] = "directions"
    needs: ClassVar[str] = "basis"

    directions: int = needed(Whole(1))

    def client(self, terms: Terms, asked: str) -> ClientCoordinates | None:
        """Return the client's half, of a turn that makes an update."""
        return None if asked else ClientCoordinates(terms, self)

    def part(self, plan: Terms, say: Say, resource: Any = None) -> ServerCoordinates:
        """Return the part that lifts means; ``resource`` has the directions."""
        return ServerCoordinates(plan, self, resource)

    def note(self, entry: RoundReport) -> str:
        """Return how many directions a round had, and the bytes of those that were sent."""
        record = entry.records.get(self.title)
        if record is None:
            return ""
        sizes = f"{record['directions']} directions of {record['numbers']:,} numbers"
        return f"{sizes}, {record['basis_bytes']:,} bytes of directions sent"


class _Coordinates(Part, ABC):
    """What both halves do alike: the numbers of a release, and the way back to the model's."""

    section: ClassVar[str] = TITLE

    def __init__(self, plan: Terms, section: InSubspace) -> None:
        self._directions = section.directions
        self._least = PADDED if plan.summed else 1

    @property
    @abstractmethod
    def space(self) -> Subspace:
        """The directions."""

    def check(self, dimension: int) -> None:
        """Refuse directions of another model, and another number of them."""
        space = self.space
        count = self._directions
        require(space.size == count, "number of directions", space.size, f"{count}")
        rule = f"{dimension}, the numbers of the model"
        require(space.dimension == dimension, "length of a direction", space.dimension, rule)

    def dimension(self, dimension: int) -> int:
        """Return k, or the padded numbers of a masked sum; refuse more directions than numbers."""
        rule = f"at most {dimension}, the numbers of the model"
        require(self._directions <= dimension, "subspace.directions", self._directions, rule)
        return max(self._directions, self._least)

    def project(self, update: FloatVector) -> FloatVector:
        """Return the coordinates of an update, or of every row; of a masked sum, with zeros."""
        values = np.asarray(update, dtype=np.float64)
        with np.errstate(all="ignore"):  # what is not finite is dealt with where it is sent
            coordinates = self.space.coordinates(values)
        missing = self._least - coordinates.shape[-1]
        if missing > 0:
            behind = [(0, 0)] * (coordinates.ndim - 1) + [(0, missing)]
            coordinates = np.pad(coordinates, behind)
        return coordinates

    def lift(self, mean: FloatVector) -> FloatVector:
        """Return the mean of d numbers that has these coordinates, without padded zeros."""
        return self.space.lift(np.asarray(mean)[: self.space.size])


@final
class ServerCoordinates(_Coordinates):
    """The server's half: it has the directions, sends them where it must, and lifts means."""

    def __init__(self, plan: Terms, section: InSubspace, basis: Basis | None) -> None:
        """Read the directions; refuse a run without them."""
        super().__init__(plan, section)
        known = isinstance(basis, Subspace | str | os.PathLike)
        require(known, "basis", type(basis).__name__, "a Subspace, or the path of an .npy file")
        self._space = read_basis(cast(Basis, basis))
        self._has: set[Node] = set()
        self._lost: Counter[Node] = Counter()
        self._sent = 0

    @property
    def space(self) -> Subspace:
        """The directions that were given."""
        return self._space

    def dimension(self, dimension: int) -> int:
        """Return k likewise; directions of another model are refused before anybody is asked."""
        size = super().dimension(dimension)
        self.check(dimension)
        return size

    def ask(self, scope: Scope, requests: list[Asked]) -> None:
        """Send the directions to nodes that have not got them yet, or that cannot keep them."""
        if scope.section:
            return
        enclosed = {TITLE: self._space.directions}
        for asked in requests:
            if asked.node not in self._has or self._lost[asked.node] >= FORGETFUL:
                self._has.add(asked.node)
                self._sent += self._space.bytes_once
                asked.records[ENCLOSED] = enclosed

    def close(self, closed: Closed) -> Mapping[str, Any]:
        """Report k, d and the bytes of directions that were sent; note who has lost them."""
        for node in closed.needing:
            if node in self._has:
                self._has.discard(node)
                self._lost[node] += 1
        record = {
            "directions": self._space.size,
            "numbers": self._space.dimension,
            "digest": self._space.digest,
            "basis_bytes": self._sent,
        }
        self._sent = 0
        return record


@final
class ClientCoordinates(_Coordinates):
    """The client's half, made for one request: it takes the coordinates of an update."""

    def __init__(self, plan: Terms, section: InSubspace) -> None:
        """Start without directions."""
        super().__init__(plan, section)
        self._received: Subspace | None = None

    @property
    def space(self) -> Subspace:
        """The directions that the server sent, or that were kept."""
        if self._received is None:
            raise NeedsModel
        return self._received

    def dimension(self, dimension: int) -> int:
        """Return k likewise; directions that the server sent for another model are refused."""
        size = super().dimension(dimension)
        if self._received is not None:
            self.check(dimension)
        return size

    def accept(self, request: Request, arrival: Arrival) -> None:
        """Take the directions that came and keep them for the run, or those that were kept."""
        store = arrival.store
        name = f"{request.run}.{TITLE}"
        sent = arrival.records.get(ENCLOSED, {}).get(TITLE)
        if sent is not None:
            self._received = Subspace(_bounded(sent, self._directions))
            if store is not None:
                store[name] = self._received.directions.astype("<f4").tobytes()
            return
        content = None if store is None else store.get(name)
        if content is None:
            raise NeedsModel
        try:
            rows = np.frombuffer(content, dtype="<f4").reshape(self._directions, -1)
            self._received = Subspace(rows)
        except (ValueError, QuietbitError) as error:  # a damaged file: it is sent again
            raise NeedsModel from error

    def answer(self, app: AppAnswer, update: Any) -> FloatVector:
        """Return the coordinates of the update."""
        return self.project(np.concatenate(update))


def read_basis(basis: Basis) -> Subspace:
    """Return the directions, which may be in an .npy file."""
    if isinstance(basis, Subspace):
        return basis
    return Subspace(np.load(Path(basis), allow_pickle=False))


def _bounded(rows: Any, directions: int) -> NDArray[Any]:
    """Return rows as they came; refuse another number of them before they are looked at."""
    values = np.asarray(rows)
    shaped = values.ndim == 2 and values.shape[0] == directions
    rule = f"{directions} rows of float32"
    require(shaped and values.dtype == np.float32, "directions", values.shape, rule)
    return values
