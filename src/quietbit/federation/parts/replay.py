"""Replayed rounds: a server sends a node the rounds that it missed in place of the model.

Idea     the server knows of every node which round's model it has, because the node answered a
         request about it. It sends the broadcasts since then, or the full model: to a node that
         has none, where that is smaller, and where the log has lost the rounds between. The node
         replays, compares digests, and hands the app whole arrays. Where it cannot, it says so in a
         constant sentence, before anything is noted, and gets the full model next.
"""

from __future__ import annotations

import importlib
import io
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from functools import partial
from logging import WARNING
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, require
from quietbit.federation.fields import Real, Word, choice
from quietbit.federation.layout import ModelLayout, named_arrays
from quietbit.federation.messages import MODEL, SPEED, Asked, Node
from quietbit.federation.part import (
    Arrival,
    Closed,
    Part,
    Scope,
    Step,
    lifted,
    released_dimension,
)
from quietbit.federation.record import RoundReport
from quietbit.federation.terms import Say, Section, Terms
from quietbit.mechanism.base import Mechanism
from quietbit.node.refusal import NeedsModel
from quietbit.node.request import Request, run_name
from quietbit.wire.downlink import Downlink, Lift, OutOfStep, Replica, ServerStep, replay_all

__all__ = ["Following", "Leader", "Replay", "Replaying"]

LOGGER = logging.getLogger(__name__)
VERSION = 1
KEEPS_FULL = "nodes get the full model in every round, and not rounds to replay: {}."
SERVER = "server"
APP = "app"
FIELDS = {"version", "round", "digest", "broadcasts"}
DIGEST = 32
# Full models that a node lost before the next round: from then on it gets no broadcasts.
FORGETFUL = 2
Arrays: TypeAlias = dict[str, NDArray[Any]]
Store: TypeAlias = MutableMapping[str, bytes] | None


@final
@frozen
class Replay(Section):
    """``[replay]``: clients download the rounds that they missed, not the model.

    All clients of a round keep the same rows. ``start`` says who provides the model of round 0:
    the ``server``, or the ``app`` that nodes run. The server steps on the mean with
    ``learning_rate`` and ``momentum``, unless the engine's strategy defines the step.
    """

    title: ClassVar[str] = "replay"
    columns: ClassVar[tuple[str, ...]] = ("resyncs",)
    shares_rows: ClassVar[bool] = True

    start: str = choice(Word(SERVER, APP), SERVER)
    learning_rate: float = choice(Real(), 1.0)
    momentum: float = choice(Real(at_least=0.0), 0.0)

    def check(self) -> None:
        """Refuse a momentum under which a step never ends."""
        require(self.momentum < 1, "replay.momentum", self.momentum, "at least 0 and below 1")

    def check_plan(self, plan: Terms) -> None:
        """Require a mechanism that keeps few coordinates: a broadcast has those of a round."""
        few = plan.mechanism.keeps_few and not plan.central
        rule = "left out unless few coordinates are kept"
        remedy = "choose vmvu, or set mechanism.coordinates"
        require(few, "replay", True, rule, remedy)

    @property
    def step(self) -> ServerStep:
        """The server's step on the mean."""
        return ServerStep(self.learning_rate, self.momentum)

    def client(self, terms: Terms, asked: str) -> Following | None:
        """Return the client's half, of a turn that makes an update."""
        return None if asked else Following(terms)

    def part(self, plan: Terms, say: Say, resource: Any = None) -> Replaying:
        """Return the part that sends rounds to replay."""
        return Replaying(self, say)

    def note(self, entry: RoundReport) -> str:
        """Return how many nodes could not replay a round."""
        if not entry.resyncs:
            return ""
        return f"{entry.resyncs} resyncs"


@final
class Leader:
    """The server's half: its downlink, and which node has the model of which round."""

    def __init__(
        self,
        layout: ModelLayout,
        arrays: Mapping[str, Any],
        replay: Replay,
        step: ServerStep,
        round: int,
        lift: Lift | None = None,
    ) -> None:
        """Start from the model as it is after ``round``; only float32 models can be replayed."""
        self._layout = layout
        self._downlink = Downlink(layout.flat(arrays), step, round=round, lift=lift)
        self._first = 0 if replay.start == APP else None  # what a node has that never answered
        self._known: dict[Node, int | None] = {}
        self._in_full: set[Node] = set()  # nodes whose last model came in full
        self._lost: Counter[Node] = Counter()
        self._sent: dict[Node, tuple[int, bool]] = {}
        # Of this round, by the round of the model that a node has: equal requests are one value.
        self._records: dict[int | None, tuple[bool, dict[str, Any]]] = {}

    def holds(self, arrays: Mapping[str, Any]) -> bool:
        """Return whether this is the model that the broadcasts lead to."""
        return bool(np.array_equal(self._layout.flat(arrays), self._downlink.replica.weights))

    def records(self, node: Node) -> tuple[bool, dict[str, Any]]:
        """Return whether a node is sent the full model, and the records of the request to it."""
        known = self._known.get(node, self._first)
        if self._lost[node] >= FORGETFUL:
            known = None
        if known not in self._records:
            self._records[known] = self._records_since(known)
        in_full, records = self._records[known]
        self._sent[node] = (self._downlink.replica.round, in_full)
        return in_full, records

    def _records_since(self, known: int | None) -> tuple[bool, dict[str, Any]]:
        """Return what a node gets that has the model of a round, or none."""
        replica = self._downlink.replica
        broadcasts = None if known is None else self._downlink.since(known)
        records: dict[str, Any] = {
            MODEL: {
                "version": VERSION,
                "round": replica.round,
                "digest": replica.digest,
                "broadcasts": broadcasts or [],
            }
        }
        if broadcasts is None and replica.speed is not None:
            records[SPEED] = replica.speed  # the momentum that goes with the full model
        return broadcasts is None, records

    def heard(self, answered: Iterable[Node], needing: Iterable[Node]) -> None:
        """Note at the end of a round which nodes have its model now, and which have none."""
        for node in answered:
            if node in self._sent:
                self._known[node], in_full = self._sent[node]
                self._in_full.discard(node)
                if in_full:
                    self._in_full.add(node)
        for node in needing:
            self._lost[node] += node in self._in_full
            self._known[node] = None
        self._sent.clear()

    def advance(self, kept: Any, mechanism: Mechanism, number: int) -> Arrays:
        """Take a round's step and return the learnt arrays as clients have them; they are views."""
        self._downlink.advance(kept, mechanism, number)
        self._records.clear()
        return self._layout.shaped(self._downlink.replica.weights)


@final
class Replaying(Part):
    """The server's half in a run: which model nodes replay, and who has which round of it."""

    section: ClassVar[str] = "replay"

    def __init__(self, replay: Replay, say: Say) -> None:
        """Start without a model; ``say`` takes a level of logging and a sentence."""
        self._replay = replay
        self._say = say
        self._warned = False
        self._leader: Leader | None = None

    def begin(self, scope: Scope) -> None:
        """Follow the round's model; warn once where nodes cannot replay the engine's step."""
        model = scope.model
        if model is None:
            return
        if model.step is None or not model.layout.single:
            if not self._warned:
                self._warned = True
                reason = model.engine
                if model.step is not None:
                    reason = "not everything that is learnt is float32"
                self._say(WARNING, KEEPS_FULL.format(reason))
        elif self._leader is None or not self._leader.holds(model.arrays):
            before = scope.number - 1
            self._leader = Leader(
                model.layout, model.arrays, self._replay, model.step, before, scope.lift
            )
            self.takes_step = True

    def ask(self, scope: Scope, requests: list[Asked]) -> None:
        """Send each node the rounds that it missed, in the model's place, or what goes with it."""
        if scope.section or self._leader is None:
            return
        for asked in requests:
            if asked.carries_model:
                asked.carries_model, records = self._leader.records(asked.node)
                asked.records.update(records)

    def advance(self, scope: Scope, kept: FloatVector | None) -> Step:
        """Take the step as nodes will take it; without releases the model stays."""
        if kept is None or self._leader is None:
            return Step(None, final=True)
        return Step(self._leader.advance(kept, scope.mechanism, scope.number), final=True)

    def close(self, closed: Closed) -> Mapping[str, Any]:
        """Note which nodes have the round's model now, and which could not replay it."""
        if self._leader is not None:
            rounds = (closed, *closed.side_rounds)
            answered = [node for member in rounds for node in member.answered]
            needing = [node for member in rounds for node in member.needing]
            self._leader.heard(answered, needing)
        return {}


@final
class Following(Part):
    """The client's half: the round's model, which came in full or is replayed from the last."""

    section: ClassVar[str] = "replay"

    def __init__(self, plan: Terms) -> None:
        """Keep the plan, which says what of a model is learnt."""
        self._plan = plan

    def accept(self, request: Request, arrival: Arrival) -> None:
        """Keep a full model for later rounds, or put the replayed one in the rounds' place."""
        record = arrival.records.get(MODEL)
        if record is None:  # a server whose step nodes cannot take sends full models alone
            return
        rounds = _Rounds.read(record)
        if arrival.arrays:
            self._keep(rounds, request, arrival, arrival.store)
        else:
            mechanism = arrival.proposed.mechanism
            self._replay(rounds, request, arrival, mechanism, arrival.store)

    def _keep(self, rounds: _Rounds, request: Request, arrival: Arrival, store: Store) -> None:
        """Keep the full model that came; refuse one that is not the announced one."""
        sent = len(rounds.broadcasts)
        require(not sent, "broadcasts beside the full model", sent, "none")
        if store is None:
            return
        layout = ModelLayout.of(arrival.arrays, self._plan.local_arrays)
        speed = arrival.records.get(SPEED)
        replica = Replica(layout.flat(arrival.arrays), round=rounds.number, speed=speed)
        require(
            replica.digest == rounds.digest,
            "digest of the model",
            replica.digest.hex(),
            f"{rounds.digest.hex()}, the announced one",
        )
        store[f"{request.run}.layout"] = _pack(arrival.kind, layout, arrival.arrays)
        _save(replica, request, store)

    def _replay(
        self,
        rounds: _Rounds,
        request: Request,
        arrival: Arrival,
        mechanism: Mechanism,
        store: Store,
    ) -> None:
        """Replay what was missed, and put the model that this leads to in its place."""
        try:
            replica, table = self._last_model(request, arrival, store)
            before = replica.round
            sent = sum(map(len, rounds.broadcasts))
            most = 8 * replica.weights.size
            rule = f"below {most} bytes, the size of the model"
            require(sent < most, "size of the broadcasts", sent, rule)
            replay_all(replica, rounds.broadcasts, mechanism, run_name(request.run))
            if (replica.round, replica.digest) != (rounds.number, rounds.digest):
                raise NeedsModel
        except OutOfStep as error:
            raise NeedsModel from error
        if replica.round != before:
            _save(replica, request, store)
        arrival.kind, arrays = _unpack(table, replica.weights)
        arrival.arrays = named_arrays(arrays)
        arrival.replayed = True

    def _last_model(
        self, request: Request, arrival: Arrival, store: Store
    ) -> tuple[Replica, bytes]:
        """Return the model of this run and its layout: those of the store, or the app's."""
        lift = partial(lifted, arrival.parts)
        state = None
        table = None
        if store is not None:
            state = store.get(f"{request.run}.state")
            table = store.get(f"{request.run}.layout")
        if state is not None and table is not None:
            dimension = _size_of(table)
            if released_dimension(arrival.parts, dimension) != request.dimension:
                raise NeedsModel
            return Replica.read(io.BytesIO(state), dimension, lift), table
        if arrival.start is None:
            raise NeedsModel
        try:
            kind, arrays = arrival.start()
            layout = ModelLayout.of(arrays, self._plan.local_arrays)
            released = released_dimension(arrival.parts, layout.dimension)
            table = _pack(kind, layout, arrays)
            replica = Replica(layout.flat(arrays), lift=lift)
        except Exception as error:  # its words are the app's, and none of them leave the node
            LOGGER.error("quietbit: the app's model of round 0 cannot be used", exc_info=error)
            raise NeedsModel from error
        if released != request.dimension:
            raise NeedsModel
        if store is not None:
            store[f"{request.run}.layout"] = table
        return replica, table


def _save(replica: Replica, request: Request, store: Store) -> None:
    """Keep a model for the next round; a node without a store is sent the full one again."""
    if store is not None:
        file = io.BytesIO()
        replica.write(file)
        store[f"{request.run}.state"] = file.getvalue()


@final
@frozen
class _Rounds:
    """What a server says of its model: its round, its digest, and broadcasts that lead to it."""

    number: int
    digest: bytes
    broadcasts: list[bytes]

    @classmethod
    def read(cls, record: Any) -> _Rounds:
        """Read a record; refuse anything else."""
        if not isinstance(record, Mapping) or set(record) != FIELDS or record["version"] != VERSION:
            raise InvalidParameter(
                f"The server's message must carry replayed rounds of version {VERSION}, and does "
                "not: install the same quietbit on server and nodes."
            )
        number = check_int(record["round"], "round of the model", 0, 2**32 - 1)
        digest = record["digest"]
        is_digest = isinstance(digest, bytes) and len(digest) == DIGEST
        size = len(digest) if isinstance(digest, bytes) else type(digest).__name__
        require(is_digest, "digest of the model", size, f"{DIGEST} bytes")
        sent = record["broadcasts"]
        is_list = isinstance(sent, list) and all(isinstance(content, bytes) for content in sent)
        rule = "a list whose entries are all bytes"
        require(is_list, "broadcasts", type(sent).__name__, rule)
        return cls(number, digest, sent)


def _cbor() -> Any:
    """Return the package that writes tables; it is imported where a node keeps a model."""
    return importlib.import_module("cbor2")


def _pack(kind: str, layout: ModelLayout, arrays: Mapping[str, Any]) -> bytes:
    """Return the arrays' names in order, with shapes, and values of what is not learnt."""
    entries: dict[str, list[Any]] = {name: [name, list(shape)] for name, shape, _ in layout.learnt}
    for name in layout.kept:
        value = arrays[name].numpy()
        entries[name] = [name, list(value.shape), value.dtype.str, value.tobytes()]
    return bytes(_cbor().dumps([kind, [entries[name] for name in arrays]]))


def _size_of(content: bytes) -> int:
    """Return the numbers that are learnt, by a packed table; a damaged one asks for the model."""
    try:
        _, table = _cbor().loads(content)
        shapes = [tuple(shape) for _, shape, *value in table if not value]
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes)
    except (ValueError, TypeError, _cbor().CBORError) as error:
        raise NeedsModel from error


def _unpack(content: bytes, weights: NDArray[np.float32]) -> tuple[str, Arrays]:
    """Return the model's kind and all arrays, the learnt ones of ``weights``.

    A damaged table asks for the model.
    """
    try:
        kind, table = _cbor().loads(content)
        learnt = [(name, tuple(shape), "float32") for name, shape, *value in table if not value]
        layout = ModelLayout(tuple(learnt), ())
        dimension = layout.dimension
        is_complete = dimension == weights.size
        rule = f"{weights.size}"
        require(is_complete, "number of trainable parameters", dimension, rule)
        arrays = layout.shaped(weights)
        for name, shape, *value in table:
            if value:
                dtype, entries = value
                stored = np.frombuffer(entries, dtype=np.dtype(dtype))
                arrays[name] = stored.reshape(shape).copy()
        return str(kind), {name: arrays[name] for name, *_ in table}
    except (ValueError, TypeError, _cbor().CBORError) as error:
        raise NeedsModel from error
