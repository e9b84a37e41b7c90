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

__all__ = ["Basis", "Coordinates", "InSubspace"]

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

    def client(self, terms: Terms, asked: str) -> Coordinates | None:
        """Return the part of a turn that makes an update; it has no directions yet."""
        return None if asked else Coordinates(terms, self)

    def part(self, plan: Terms, say: Say, resource: Any = None) -> Coordinates:
        """Return the part that lifts means; ``resource`` has the directions."""
        return Coordinates(plan, self, read_basis(resource))

    def note(self, entry: RoundReport) -> str:
        """Return how many directions a round had, and the bytes of those that were sent."""
        record = entry.records.get(self.title)
        if record is None:
            return ""
        sizes = f"{record['directions']} directions of {record['numbers']:,} numbers"
        return f"{sizes}, {record['basis_bytes']:,} bytes of directions sent"


@final
class Coordinates(Part):
    """Both halves: a client takes the coordinates of an update, a server lifts their mean.

    The server has the directions, and sends them to nodes that have not got them. A client's part
    is made for one request, and gets them with it, or from the node's store.
    """

    section: ClassVar[str] = TITLE

    def __init__(self, plan: Terms, section: InSubspace, space: Subspace | None = None) -> None:
        """Start with the directions on a server, and without on a client."""
        self._directions = section.directions
        self._least = PADDED if plan.summed else 1
        self._space = space
        self._has: set[Node] = set()  # nodes that the directions were sent to
        self._lost: Counter[Node] = Counter()
        self._sent = 0  # bytes of directions, in this round

    @property
    def space(self) -> Subspace:
        """The directions; a client that has none asks for them."""
        if self._space is None:
            raise NeedsModel
        return self._space

    def dimension(self, dimension: int) -> int:
        """Return k, or the padded numbers of a masked sum; refuse directions of another model."""
        count = self._directions
        rule = f"at most {dimension}, the numbers of the model"
        require(count <= dimension, "subspace.directions", count, rule)
        if self._space is not None:
            size = self._space.size
            require(size == count, "number of directions", size, f"{count}")
            length = self._space.dimension
            rule = f"{dimension}, the numbers of the model"
            require(length == dimension, "length of a direction", length, rule)
        return max(count, self._least)

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

    def ask(self, scope: Scope, requests: list[Asked]) -> None:
        """Send the directions to nodes that have not got them yet, or that cannot keep them."""
        if scope.section:
            return
        enclosed = {TITLE: self.space.directions}
        for asked in requests:
            if asked.node not in self._has or self._lost[asked.node] >= FORGETFUL:
                self._has.add(asked.node)
                self._sent += self.space.bytes_once
                asked.records[ENCLOSED] = enclosed

    def close(self, closed: Closed) -> Mapping[str, Any]:
        """Report k, d and the bytes of directions that were sent; note who has lost them."""
        for node in closed.needing:
            if node in self._has:
                self._has.discard(node)
                self._lost[node] += 1
        record = {
            "directions": self.space.size,
            "numbers": self.space.dimension,
            "digest": self.space.digest,
            "basis_bytes": self._sent,
        }
        self._sent = 0
        return record

    def accept(self, request: Request, arrival: Arrival) -> None:
        """Take the directions that came and keep them for the run, or those that were kept."""
        store = arrival.store
        name = f"{request.run}.{TITLE}"
        sent = arrival.records.get(ENCLOSED, {}).get(TITLE)
        if sent is not None:
            self._space = Subspace(_bounded(sent, self._directions))
            if store is not None:
                store[name] = self._space.directions.astype("<f4").tobytes()
            return
        content = None if store is None else store.get(name)
        if content is None:
            raise NeedsModel
        try:
            rows = np.frombuffer(content, dtype="<f4").reshape(self._directions, -1)
            self._space = Subspace(rows)
        except (ValueError, QuietbitError) as error:  # a damaged file: it is sent again
            raise NeedsModel from error

    def answer(self, app: AppAnswer, update: Any) -> FloatVector:
        """Return the coordinates of the update."""
        return self.project(np.concatenate(update))


def read_basis(basis: Basis | None) -> Subspace:
    """Return the directions, which may be in an .npy file; refuse a run without them."""
    if isinstance(basis, Subspace):
        return basis
    known = isinstance(basis, str | os.PathLike)
    require(known, "basis", type(basis).__name__, "a Subspace, or the path of an .npy file")
    return Subspace(np.load(Path(cast(str, basis)), allow_pickle=False))


def _bounded(rows: Any, directions: int) -> NDArray[Any]:
    """Return rows as they came; refuse another number of them before they are looked at."""
    values = np.asarray(rows)
    shaped = values.ndim == 2 and values.shape[0] == directions
    rule = f"{directions} rows of float32"
    require(shaped and values.dtype == np.float32, "directions", values.shape, rule)
    return values
