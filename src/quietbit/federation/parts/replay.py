"""Replayed rounds: a server sends a node the rounds that it missed in place of the model.

Idea     the server knows of every node which round's model it has, because the node answered a
         request about it. It sends the broadcasts since then, or the full model: to a node that
         has none, where that is smaller, and where the log has lost the rounds between. The node
         replays, compares digests, and hands the app whole arrays. Where it cannot, it says so in a
         constant sentence, before anything is noted, and gets the full model next.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Container, Mapping
from functools import partial
from logging import WARNING
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
from attrs import define, evolve, frozen
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, check_int, require
from quietbit.federation.fields import Real, Word, choice
from quietbit.federation.layout import ModelLayout, named_arrays
from quietbit.federation.messages import MODEL, SPEED, Asked, Node
from quietbit.federation.part import (
    Arrival,
    Closed,
    Part,
    Scope,
    lifted,
    released_dimension,
)
from quietbit.federation.record import RoundReport
from quietbit.federation.terms import Say, Section, Terms
from quietbit.mechanism.base import Mechanism
from quietbit.node.refusal import NeedsModel
from quietbit.node.request import Request, run_name
from quietbit.wire.downlink import Downlink, Lift, OutOfStep, Replica, ServerStep

__all__ = ["APP", "Following", "HeldModel", "Leader", "Replay", "Replaying"]

LOGGER = logging.getLogger(__name__)
VERSION = 1
KEEPS_FULL = "nodes get the full model in every round, and not rounds to replay: {}."
SERVER = "server"
APP = "app"
FIELDS = {"version", "round", "digest", "broadcasts"}
DIGEST = 32
# Full models that a node lost before the next round: from then on it gets no broadcasts.
FORGETFUL = 2
# The entries of a kept model: what is it called, the last round that changed it, and its arrays.
KIND = "kind"
ROUND = "round"
MOMENTUM = "momentum"
ARRAY = "array:"
Arrays: TypeAlias = dict[str, NDArray[Any]]


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
@define
class _Follower:
    """What a server knows of a node: the round of its model, None for no model, and how it came."""

    round: int | None
    in_full: bool = False
    lost: int = 0  # full models that were gone before the next round
    sent: tuple[int, bool] | None = None  # in this round


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
        self._downlink = Downlink(Replica(layout.flat(arrays), round=round, lift=lift), step)
        self._first = 0 if replay.start == APP else None  # what a node has that never answered
        self._followers: dict[Node, _Follower] = {}
        # Of this round, by the round of the model that a node has: equal requests are one value.
        self._records: dict[int | None, tuple[bool, dict[str, Any]]] = {}

    def holds(self, arrays: Mapping[str, Any]) -> bool:
        """Return whether this is the model that the broadcasts lead to."""
        return bool(np.array_equal(self._layout.flat(arrays), self._downlink.replica.weights))

    def records(self, node: Node) -> tuple[bool, dict[str, Any]]:
        """Return whether a node is sent the full model, and the records of the request to it."""
        follower = self._followers.setdefault(node, _Follower(self._first))
        known = follower.round if follower.lost < FORGETFUL else None
        if known not in self._records:
            self._records[known] = self._records_since(known)
        in_full, records = self._records[known]
        follower.sent = (self._downlink.replica.round, in_full)
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

    def heard(self, answered: Container[Node], needing: Container[Node]) -> None:
        """Note at the end of a round which nodes have its model now, and which have none."""
        for node, follower in self._followers.items():
            if node in answered and follower.sent is not None:
                follower.round, follower.in_full = follower.sent
            if node in needing:
                follower.lost += follower.in_full
                follower.round = None
            follower.sent = None

    def advance(self, kept: Any, mechanism: Mechanism, number: int) -> Arrays:
        """Take a round's step as clients will; return the learnt arrays, which are views."""
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

    def prepare(self, scope: Scope) -> Scope:
        """Follow the round's model; warn once where nodes cannot replay the engine's step."""
        model = scope.model
        if model is None:
            return scope
        if model.step is None or not model.layout.single:
            if not self._warned:
                self._warned = True
                reason = model.engine
                if model.step is not None:
                    reason = "not everything that is learnt is float32"
                self._say(WARNING, KEEPS_FULL.format(reason))
            return scope
        if self._leader is None or not self._leader.holds(model.arrays):
            before = scope.number - 1
            self._leader = Leader(
                model.layout, model.arrays, self._replay, model.step, before, scope.lift
            )
        return evolve(scope, model=evolve(model, nodes_step=self._leader.advance))

    def ask(self, scope: Scope, requests: list[Asked]) -> None:
        """Send each node the rounds that it missed, in the model's place, or what goes with it."""
        if scope.section or self._leader is None:
            return
        for asked in requests:
            if asked.carries_model:
                asked.carries_model, records = self._leader.records(asked.node)
                asked.records.update(records)

    def close(self, closed: Closed) -> Mapping[str, Any]:
        """Note which nodes have the round's model now, and which could not replay it."""
        if self._leader is not None:
            rounds = (closed, *closed.side_rounds)
            answered = frozenset[Node]().union(*(member.answered for member in rounds))
            needing = frozenset[Node]().union(*(member.needing for member in rounds))
            self._leader.heard(answered, needing)
        return {}


@final
@frozen(eq=False)
class HeldModel:
    """A model as a node has it: the engine's name for its kind, and all arrays in their order.

    The learnt ones are those of the ``replica``, which replays rounds.
    """

    kind: str
    arrays: Mapping[str, Any]
    layout: ModelLayout
    replica: Replica

    @classmethod
    def of(
        cls,
        kind: str,
        arrays: Mapping[str, Any],
        local_arrays: str,
        *,
        round: int = 0,
        speed: Any = None,
        lift: Lift | None = None,
    ) -> HeldModel:
        """Take a model as it is after ``round``; only float32 models can be replayed."""
        layout = ModelLayout.of(arrays, local_arrays)
        replica = Replica(layout.flat(arrays), round=round, speed=speed, lift=lift)
        return cls(kind, arrays, layout, replica)

    def values(self) -> Arrays:
        """Return all arrays, the learnt ones as they are now."""
        learnt = self.layout.shaped(self.replica.weights)
        return {
            name: learnt[name] if name in learnt else array.numpy()
            for name, array in self.arrays.items()
        }

    def to_bytes(self) -> bytes:
        """Return an archive of numpy's, whose arrays are in the model's order."""
        entries: Arrays = {KIND: np.array(self.kind), ROUND: np.array(self.replica.round)}
        if self.replica.speed is not None:
            entries[MOMENTUM] = self.replica.speed
        for name, value in self.values().items():
            entries[f"{ARRAY}{name}"] = value
        file = io.BytesIO()
        np.savez(file, **entries)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes, local_arrays: str, lift: Lift) -> HeldModel:
        """Read the bytes of `to_bytes`; a damaged archive raises whatever numpy makes of it.

        A number that is wrong all the same shows in the digest, or is not learnt.
        """
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            entries = dict(archive)
        values = {}
        for name, value in entries.items():
            if name.startswith(ARRAY):
                values[name.removeprefix(ARRAY)] = value
        return cls.of(
            str(entries[KIND]),
            named_arrays(values),
            local_arrays,
            round=int(entries[ROUND]),
            speed=entries.get(MOMENTUM),
            lift=lift,
        )


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
            self._keep(rounds, request, arrival)
        else:
            self._replay(rounds, request, arrival)

    def _keep(self, rounds: _Rounds, request: Request, arrival: Arrival) -> None:
        """Keep the full model that came; refuse one that is not the announced one."""
        sent = len(rounds.broadcasts)
        require(not sent, "broadcasts beside the full model", sent, "none")
        if arrival.store is None:
            return
        model = HeldModel.of(
            arrival.kind,
            arrival.arrays,
            self._plan.local_arrays,
            round=rounds.number,
            speed=arrival.records.get(SPEED),
        )
        require(
            model.replica.digest == rounds.digest,
            "digest of the model",
            model.replica.digest.hex(),
            f"{rounds.digest.hex()}, the announced one",
        )
        arrival.store[_name(request)] = model.to_bytes()

    def _replay(self, rounds: _Rounds, request: Request, arrival: Arrival) -> None:
        """Replay what was missed, and put the model that this leads to in its place."""
        model = self._last_model(request, arrival)
        replica = model.replica
        before = replica.round
        sent = sum(map(len, rounds.broadcasts))
        most = 8 * replica.weights.size
        rule = f"below {most} bytes, the size of the model"
        require(sent < most, "size of the broadcasts", sent, rule)
        try:
            replica.replay(rounds.broadcasts, arrival.proposed.mechanism, run_name(request.run))
        except OutOfStep as error:
            raise NeedsModel from error
        if (replica.round, replica.digest) != (rounds.number, rounds.digest):
            raise NeedsModel
        if replica.round != before and arrival.store is not None:
            arrival.store[_name(request)] = model.to_bytes()
        arrival.kind = model.kind
        arrival.arrays = named_arrays(model.values())
        arrival.replayed = True

    def _last_model(self, request: Request, arrival: Arrival) -> HeldModel:
        """Return the model of this run that is kept, or that of round 0, which the app has."""
        lift = partial(lifted, arrival.parts)
        local = self._plan.local_arrays
        content = None
        if arrival.store is not None:
            content = arrival.store.get(_name(request))
        try:
            if content is not None:
                model = HeldModel.from_bytes(content, local, lift)
            elif arrival.start is not None:
                kind, arrays = arrival.start()
                model = HeldModel.of(kind, arrays, local, lift=lift)
            else:
                raise NeedsModel
            released = released_dimension(arrival.parts, model.layout.dimension)
        except NeedsModel:
            raise
        except Exception as error:  # of a damaged archive; or the app's words, which do not leave
            LOGGER.error("quietbit: the last model of the run cannot be used", exc_info=error)
            raise NeedsModel from error
        if released != request.dimension:
            raise NeedsModel
        return model


def _name(request: Request) -> str:
    """Return what the model of a run is called in a node's store."""
    return f"{request.run}.model"


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
