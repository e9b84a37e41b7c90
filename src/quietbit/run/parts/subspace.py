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

A basis of the start of a training holds what its first steps need. Where `subspace.renewed` is set
it is made again every round, by a function of the round's model, which is public.

Where B comes from, by `subspace.basis`: the ``server`` sends it with the first request to a node,
which keeps it for the run (k x d floats, once); the ``app`` on the node has it (no bytes); or it
follows from `subspace.seed` (no bytes, and no knowledge of the data). An app is asked for its basis
only after a request was accepted and noted, so that whether a node declines does not depend on what
the app makes of its data; a basis of an app that does not fit makes the release one of zero.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.node.refusal import NeedsModel
from quietbit.run.layout import ModelLayout
from quietbit.run.messages import ENCLOSED
from quietbit.run.part import AppAnswer, Arrival, Asked, Node, Part, Transport
from quietbit.run.section import Flag, Say, Section, Whole, Word, choice, needed
from quietbit.subspace import Subspace

if TYPE_CHECKING:
    from quietbit.node.gatekeeper import Gate
    from quietbit.node.request import Request
    from quietbit.run.plan import Plan
    from quietbit.run.report import RoundReport

__all__ = ["APP", "Basis", "ClientCoordinates", "InSubspace", "ServerCoordinates"]

SERVER = "server"
APP = "app"
TITLE = "subspace"
RENEWS = "a function of the model, where subspace.renewed is set"
PADDED = 1024  # numbers of a masked sum
FORGETFUL = 2  # times that a node lost the basis: from then on it gets it with every request
Basis: TypeAlias = Subspace | Callable[..., Any] | str | os.PathLike[str]


@final
@frozen
class InSubspace(Section):
    """``[subspace]``: clients send their update's coordinates in ``directions`` public directions.

    ``basis`` says who brings the directions: the ``server``, which sends them once, or the ``app``
    on both sides. With a ``seed`` they are random, follow from it, and nobody brings them. Where
    they are ``renewed``, a function makes them of every round's model.
    """

    title: ClassVar[str] = TITLE
    main: ClassVar[str] = "directions"
    needs: ClassVar[str] = "basis"

    directions: int = needed(Whole(1))
    basis: str = choice(Word(SERVER, APP), SERVER)
    seed: int | None = choice(Whole(0))
    renewed: bool = choice(Flag(), False)

    def check(self) -> None:
        """Refuse a seed beside somebody who brings the directions, or renews them."""
        fixed = self.seed is None or not self.renewed
        require(fixed, "subspace.renewed", self.renewed, "left out beside subspace.seed")
        rule = "left out beside subspace.seed, from which the directions follow"
        require(self.seed is None or self.basis == SERVER, "subspace.basis", self.basis, rule)

    def part(self, plan: Plan, say: Say, resource: Any = None) -> ServerCoordinates:
        """Return the part that lifts means; ``resource`` has the directions, without a seed."""
        return ServerCoordinates(plan, self, resource)

    def note(self, entry: RoundReport) -> str:
        """Return how many directions a round had, and the bytes of those that were sent."""
        record = entry.records.get(self.title)
        if record is None:
            return ""
        sizes = f"{record['directions']} directions of {record['numbers']:,} numbers"
        return f"{sizes}, {record['basis_bytes']:,} bytes of directions sent"

    @property
    def brought(self) -> bool:
        """Whether somebody brings the directions."""
        return self.seed is None


class _Coordinates(Part, ABC):
    """What both halves do alike: the numbers of a release, and the way back to the model's."""

    section: ClassVar[str] = TITLE

    def __init__(self, plan: Plan, section: InSubspace) -> None:
        self._section = section
        self._least = 1 if plan.masks is None else PADDED

    def dimension(self, dimension: int) -> int:
        """Return k, or the padded numbers of a masked sum; refuse more directions than numbers."""
        directions = self._section.directions
        rule = f"at most {dimension}, the numbers of the model"
        require(directions <= dimension, "subspace.directions", directions, rule)
        return max(directions, self._least)

    @abstractmethod
    def space(self, dimension: int | None = None) -> Subspace:
        """Return the directions; those of a seed need the ``dimension`` of the model."""

    def fitting(self, dimension: int | None = None) -> Subspace:
        """Return the directions; refuse those of another model, and another number of them."""
        directions = self._section.directions
        space = self.space(dimension)
        require(space.size == directions, "number of directions", space.size, f"{directions}")
        if dimension is not None:
            rule = f"{dimension}, the numbers of the model"
            require(space.dimension == dimension, "length of a direction", space.dimension, rule)
        return space

    def project(self, update: FloatVector) -> FloatVector:
        """Return the coordinates of an update, or of every row; of a masked sum, with zeros."""
        values = np.asarray(update, dtype=np.float64)
        with np.errstate(all="ignore"):  # what is not finite is dealt with where it is sent
            coordinates = self.fitting(values.shape[-1]).coordinates(values)
        missing = self._least - coordinates.shape[-1]
        if missing > 0:
            behind = [(0, 0)] * (coordinates.ndim - 1) + [(0, missing)]
            coordinates = np.pad(coordinates, behind)
        return coordinates

    def lift(self, mean: FloatVector) -> FloatVector:
        """Return the mean of d numbers that has these coordinates, without padded zeros."""
        space = self.fitting()
        return space.lift(np.asarray(mean)[: space.size])


@final
class ServerCoordinates(_Coordinates):
    """The server's half: it has the directions, sends them where it must, and lifts means."""

    def __init__(self, plan: Plan, section: InSubspace, basis: Basis | None) -> None:
        """Read the directions; refuse them beside a seed, and a run without either."""
        super().__init__(plan, section)
        rule = "given where subspace.seed is left out, and left out beside it"
        require((basis is not None) == section.brought, "basis", type(basis).__name__, rule)
        self._basis = basis
        self._space: Subspace | None = None
        if section.renewed:
            require(callable(basis), "basis", type(basis).__name__, RENEWS)
        elif basis is not None:
            self._space = read_basis(basis)
        self._has: set[Node] = set()
        self._lost: Counter[Node] = Counter()
        self._sent = 0

    def follow(self, number: int, weights: Callable[[], FloatVector]) -> None:
        """Make the directions of a round where they are renewed; nobody has them then."""
        if self._section.renewed:
            self._space = renewed_basis(self._basis, weights())
            self._has.clear()

    def dimension(self, dimension: int) -> int:
        """Return k likewise; directions of another model are refused before anybody is asked."""
        size = super().dimension(dimension)
        if self._space is not None or not self._section.renewed:
            self.fitting(dimension)
        return size

    def space(self, dimension: int | None = None) -> Subspace:
        """Return the directions that were brought, or those of the seed."""
        if self._space is None:
            require(not self._section.renewed, "directions", "none", "made when a round begins")
            self._space = _seeded(self._section, dimension)
        return self._space

    def ask(self, round: Any, requests: list[Asked], transport: Transport | None) -> None:
        """Send the directions to nodes that have not got them yet, or that cannot keep them."""
        sends = self._section.brought and self._section.basis == SERVER
        if not sends or round.section:
            return
        space = self.fitting()
        enclosed = {TITLE: space.directions}
        for asked in requests:
            if asked.node not in self._has or self._lost[asked.node] >= FORGETFUL:
                self._has.add(asked.node)
                self._sent += space.bytes_once
                asked.records[ENCLOSED] = enclosed

    def close(self, round: Any) -> Mapping[str, Any]:
        """Report k, d and the bytes of directions that were sent; note who has lost them."""
        for node in getattr(round, "needing", ()):
            if node in self._has:
                self._has.discard(node)
                self._lost[node] += 1
        space = self.fitting()
        record = {
            "directions": space.size,
            "numbers": space.dimension,
            "basis": "seed" if not self._section.brought else self._section.basis,
            "digest": space.digest,
            "basis_bytes": self._sent,
        }
        self._sent = 0
        return record


@final
class ClientCoordinates(_Coordinates):
    """The client's half, made for one request: it takes the coordinates of an update."""

    def __init__(self, plan: Plan) -> None:
        """Start without directions."""
        super().__init__(plan, cast(InSubspace, plan.subspace))
        self._basis: Basis | None = None
        self._received: Subspace | None = None
        self._dimension: int | None = None
        self._plan = plan
        self._model = np.zeros(0)

    def dimension(self, dimension: int) -> int:
        """Return k likewise; directions that the server sent for another model are refused."""
        size = super().dimension(dimension)
        self._dimension = dimension
        if self._received is not None:
            self.fitting(dimension)
        return size

    def space(self, dimension: int | None = None) -> Subspace:
        """Return the directions of the seed, of the server or of the app."""
        section = self._section
        if not section.brought:
            return _seeded(section, self._dimension if dimension is None else dimension)
        if section.basis == SERVER:
            if self._received is None:
                raise NeedsModel
            return self._received
        if self._basis is None:
            raise InvalidParameter.of("basis", "given to the app's PrivateUplink", "none")
        if section.renewed:
            return renewed_basis(self._basis, self._model)
        return read_basis(self._basis)

    def accept(self, request: Request, arrival: Arrival, gate: Gate) -> None:
        """Take the directions that came and keep them for the run, or those that were kept.

        What the app brings is noted, and read after the request was accepted.
        """
        self._basis = arrival.basis
        if self._plan.app_basis and self._section.renewed:
            layout = ModelLayout.of(arrival.arrays, self._plan)
            self._model = np.concatenate(layout.values(arrival.arrays))
        if not self._section.brought or self._section.basis != SERVER:
            return
        store: MutableMapping[str, bytes] | None = gate.models
        name = f"{request.run}.{TITLE}"
        sent = arrival.records.get(ENCLOSED, {}).get(TITLE)
        if sent is not None:
            self._received = Subspace(_bounded(sent, self._section.directions))
            if store is not None:
                store[name] = self._received.directions.astype("<f4").tobytes()
            return
        content = None if store is None else store.get(name)
        if content is None:
            raise NeedsModel
        try:
            rows = np.frombuffer(content, dtype="<f4").reshape(self._section.directions, -1)
            self._received = Subspace(rows)
        except (ValueError, QuietbitError) as error:  # a damaged file: it is sent again
            raise NeedsModel from error

    def answer(self, app: AppAnswer, update: Any) -> FloatVector:
        """Return the coordinates of the update."""
        return self.project(np.concatenate(update))


def renewed_basis(basis: Any, weights: FloatVector) -> Subspace:
    """Return the directions that a function makes of a model, one vector."""
    require(callable(basis), "basis", type(basis).__name__, RENEWS)
    directions = basis(weights)
    return directions if isinstance(directions, Subspace) else Subspace(directions)


def read_basis(basis: Basis) -> Subspace:
    """Return the directions that a function without arguments or the path of an .npy file has."""
    if isinstance(basis, Subspace):
        return basis
    known = callable(basis) or isinstance(basis, str | os.PathLike)
    require(known, "basis", type(basis).__name__, "a Subspace, a function or a path")
    return _read(cast(Hashable, basis))


@lru_cache(maxsize=4)
def _read(basis: Any) -> Subspace:
    """Call or load what an app names, once in a process."""
    content = basis() if callable(basis) else np.load(Path(basis), allow_pickle=False)
    return content if isinstance(content, Subspace) else Subspace(content)


def _seeded(section: InSubspace, dimension: int | None) -> Subspace:
    if section.seed is None or dimension is None:
        raise InvalidParameter.of("numbers of the model", "known before means are lifted", None)
    return _of_seed(section.seed, section.directions, dimension)


@lru_cache(maxsize=4)
def _of_seed(seed: int, directions: int, dimension: int) -> Subspace:
    return Subspace.of_seed(seed, directions, dimension)


def _bounded(rows: Any, directions: int) -> NDArray[Any]:
    """Return rows as they came; refuse another number of them before they are looked at."""
    values = np.asarray(rows)
    shaped = values.ndim == 2 and values.shape[0] == directions
    rule = f"{directions} rows of float32"
    require(shaped and values.dtype == np.float32, "directions", values.shape, rule)
    return values
