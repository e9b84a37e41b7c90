"""Rounds in Flower's messages: one of which the server sees every release, and a masked sum.

Idea     of a masked sum, keys and shares are asked for while a round is configured, masked vectors
         are the round's train replies, and lists are confirmed and unmasking asked for when they
         have arrived. Each step asks those who are still there, takes in what is whole, and notes
         who is gone and why. Below the threshold the round fails closed: no further step is asked,
         nothing is unmasked, and there is no mean.
Symbols  U1: clients that dealt shares; U2: those whose vector arrived; t: threshold.
Source   Bonawitz et al. (CCS 2017), Figure 4; `quietbit.secagg.server`.

Every node that was asked for its vector and did not say no is counted as having released, sum or no
sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar, cast, final

from attrs import define, field
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.mechanism.abilities import Summable, SummableRows
from quietbit.mechanism.base import summable
from quietbit.node.request import (
    CONFIRM,
    IDENTITY,
    KEYS,
    SHARES,
    STEPS,
    UNMASK,
    VECTOR,
    Framed,
    sum_plan,
)
from quietbit.run import messages
from quietbit.run.client import NodeName, Subject, read_request
from quietbit.run.layout import ModelLayout
from quietbit.run.messages import RECORD, SUM, numbers_of
from quietbit.run.parts.evaluation import Evaluation
from quietbit.run.parts.masks import Masks
from quietbit.run.plan import Plan
from quietbit.run.report import RoundReport
from quietbit.run.server import Round
from quietbit.secagg.codec import (
    Advertisement,
    Unmasking,
    pack_evidence,
    pack_inbox,
    unpack_dealt,
    write_places,
)
from quietbit.secagg.identity import PUBLIC_SIZE, SIGNATURE_SIZE, Directory
from quietbit.secagg.plan import SumPlan
from quietbit.secagg.server import SumServer
from quietbit.wire.uplink import EXAMPLES

__all__ = ["FlowerRound", "OpenRound", "SecureRound", "metrics_of", "wire_sizes"]

Found = TypeVar("Found")


def wire_sizes(messages: list[Message]) -> list[int]:
    """Return the bytes of every object that Flower pushes for each message, before HTTP adds its heads.

    Messages with the same content differ by a few digits, and are measured once.
    """
    known: dict[int, int] = {}
    found = []
    for message in messages:
        key = id(message.content if message.has_content() else message)
        if key not in known:
            parts = (
                get_all_nested_objects(_apart(message)).values()
                if message.has_content()
                else [message]
            )
            known[key] = sum(len(part.deflate()) for part in parts)
        found.append(known[key])
    return found


def _apart(message: Message) -> Message:
    """Return the same bytes in new records: a measured array remembers its chunks, and would travel twice in ray."""
    twin, content = copy(message), RecordDict()
    for name, record in message.content.items():
        content[name] = ArrayRecord(dict(record)) if isinstance(record, ArrayRecord) else record
    twin.content = content
    return twin


def metrics_of(content: RecordDict) -> dict[str, float]:
    """Return the finite numbers that a node let through."""
    return {
        name: value
        for record in content.metric_records.values()
        for name, value in numbers_of(record).items()
    }


@define(eq=False, kw_only=True)
class FlowerRound(Round):
    """One round with the model that was sent."""

    arrays: dict[str, Array]
    layout: ModelLayout
    _told: dict[str, list[float]] = field(
        factory=dict, init=False
    )  # numbers that nodes let through

    def read(
        self, reply: Message, read: Callable[[Message, int], Found], step: str = ""
    ) -> Found | None:
        """Return what ``read`` makes of a node's reply; None, and a reason in the report, where there is none."""
        node = reply.metadata.src_node_id
        self.arrived(node, sum(wire_sizes([reply])))
        if reply.has_error():
            reason = reply.error.reason or f"error {reply.error.code}"
            # An engine's error may hide a release, and a node that has answered before (`ANSWERED`)
            # has made one.
            note = self.decline if reason.startswith(messages.DECLINED) else self.silent
            note(node, reason.removeprefix(messages.DECLINED), step)
            return None
        try:
            return read(reply, node)
        except QuietbitError as error:
            self.refuse(node, error, step)
            return None

    def note_extras(self, content: RecordDict) -> None:
        """Note the numbers that a node let through beside its release, and of a simulated one why its app crashed."""
        for name, value in metrics_of(content).items():
            self._told.setdefault(name, []).append(value)
        crash = content.config_records.get(messages.CRASHED)
        self.crashed(None if crash is None else crash.get("traceback"))

    def metrics(self) -> dict[str, float]:
        """Return the plain mean of every number that nodes let through, over the nodes that did."""
        return {name: sum(values) / len(values) for name, values in sorted(self._told.items())}


@final
@define(eq=False, kw_only=True)
class OpenRound(FlowerRound):
    """One round of which the server sees every release."""

    def ask(self, requests: list[Message]) -> list[Message]:
        """Note the requests before they are sent."""
        for message, size in zip(requests, wire_sizes(requests), strict=True):
            self.sent(message.metadata.dst_node_id, size)
        return requests

    def take(self, reply: Message) -> None:
        """Take one reply in, or note why not."""
        self.read(reply, self._release)

    def _release(self, reply: Message, node: int) -> None:
        release, examples = (
            messages.join_pieces(reply.content.config_records),
            metrics_of(reply.content).get(EXAMPLES),
        )
        self.add(node, node, release, examples)
        self.note_extras(reply.content)


@final
@define(eq=False, kw_only=True)
class SecureRound(FlowerRound):
    """A masked sum from the first request to the unmasked mean; `ask`, `take`, `mean` and `report`, in this order."""

    settings: Plan
    grid: Grid
    directory: Directory | None = None
    evaluation: Evaluation | None = (
        None  # what is asked about the model, where the sum is of answers
    )
    places: dict[int, int] = field(
        factory=dict
    )  # of nodes in the directory, as far as they have said
    _numbers: dict[int, int] = field(factory=dict, init=False)  # a node's number in the sum
    _kind: str = field(
        default=MessageType.TRAIN, init=False
    )  # the type that the inner strategy trains with
    _left: list[int] = field(factory=list, init=False)  # nodes that are still there
    _done: dict[str, set[int]] = field(
        factory=lambda: {step: set() for step in (IDENTITY, *STEPS)}, init=False
    )
    _gone: set[int] = field(
        factory=set, init=False
    )  # nodes that were asked for something and did not bring it
    _server: SumServer = field(default=None, init=False)
    _plan: SumPlan = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)
    _settings: ConfigRecord = field(
        factory=ConfigRecord, init=False
    )  # which mechanism the sum is of

    def __attrs_post_init__(self) -> None:
        """Make no mean of releases: there is one of a sum."""

    def ask(self, requests: list[Message]) -> list[Message]:
        """Collect keys and shares from the nodes of the inner strategy's requests; return those to send to U1."""
        asked = {message.metadata.dst_node_id: message for message in requests}
        self._left = sorted(asked)
        self._kind = next((message.metadata.message_type for message in requests), self._kind)
        self._settings = ConfigRecord(messages.request_record(self.number, self.mechanism))
        try:
            members, table = self._members()
            self._numbers = _numbered(self._left)
            count = len(self._left)
            rule = f"at least the threshold, {cast(Masks, self.settings.masks).threshold}, with an identity"
            require(count >= 2, "clients of the sum", count, rule)
            # The request as the first client reads it: the plan follows from what all are asked
            # alike.
            records = {RECORD: self._settings, SUM: messages.sum_request(KEYS, count, 1)}
            subject = Subject.UPDATE if self.evaluation is None else Subject.EVALUATION
            parts = subject.parts(self.settings)
            request = read_request(records, self.settings, parts, NodeName(self.run, 0))
            self._plan = plan = sum_plan(request, summable(self.mechanism), members)
            self._server = server = SumServer(plan)
            rosters = server.advertise(
                self._step(KEYS, dict.fromkeys(self._left, table), self._keys)
            )
            self._left = [node for node in self._left if self._numbers[node] in rosters]
            told = {node: rosters[self._numbers[node]].to_bytes(plan) for node in self._left}
            inboxes = server.deal(self._step(SHARES, told, self._shares))
        except QuietbitError as error:
            self._fail(error)
            return []
        u1 = server.dealers()
        self._left = [node for node in self._left if self._numbers[node] in inboxes]
        sizes = wire_sizes([asked[node] for node in self._left])
        for node, size in zip(self._left, sizes, strict=True):
            record = self._request(VECTOR, node, pack_inbox(plan, u1, inboxes[self._numbers[node]]))
            self.sent(node, size + len(record.deflate()))
            asked[node].content = RecordDict({**asked[node].content, SUM: record})
        return [asked[node] for node in self._left]

    def asked(self, node: Any) -> bool:
        """Return whether a node is still there."""
        return node in self._left

    def waits_for(self, node: Any, step: str = "") -> bool:
        """Return whether a node was asked for a step and has said nothing yet."""
        return self.asked(node) and node not in self._done[step] and node not in self._declined

    def take(self, reply: Message) -> None:
        """Take one masked vector in, or note why not."""
        self._read(VECTOR, reply, self._vector)

    def mean(self) -> FloatVector | None:
        """Unmask the sum over U2 and decode it; None where there is no sum."""
        return self._decoded(Summable.of(self.mechanism).mean_from_sum)

    def kept(self) -> FloatVector | None:
        """Return the same among the rows that all nodes kept."""
        return self._decoded(SummableRows.of(self.mechanism).kept_from_sum)

    def _decoded(self, decode: Callable[[Any, int], FloatVector]) -> FloatVector | None:
        if self._failed:
            return None
        self._gone |= set(self._left) - self._done[VECTOR]
        server, plan, self._left = self._server, self._plan, sorted(self._done[VECTOR])
        try:
            arrived, confirmed = server.arrived(), dict[int, bytes]()
            if plan.active:
                told = dict.fromkeys(self._left, plan.bitmap(arrived))
                confirmed = server.confirm(self._step(CONFIRM, told, _signature))
            tables = {
                node: pack_evidence(plan, arrived, confirmed, server.masked(self._numbers[node]))
                for node in self._left
            }
            found = server.finish(
                self._step(UNMASK, tables, lambda data, node: Unmasking.read(data))
            )
            return decode(found.total, len(found.clients))
        except QuietbitError as error:
            self._fail(error)
            return None
        finally:
            self._name_liars()

    def failed(self) -> set[int]:
        """Return the nodes that fell silent before their vector was here: dead, late or lost on the way."""
        return self._gone - self._done[VECTOR] - self._declined - self._spoilt

    def report(self) -> RoundReport:
        """Return the counts; ``answered`` are the clients in the sum."""
        steps = tuple(
            len(self._done[step])
            for step in STEPS
            if step != CONFIRM or cast(Masks, self.settings.masks).active
        )
        clients = len(self._numbers) or len(self._left)
        return replace(super().report(), asked=clients, skipped=self._failed, steps=steps)

    def _members(self) -> tuple[tuple[bytes, ...] | None, bytes]:
        """Return the members' public keys, in order, and their places; none unless the server is active."""
        if not cast(Masks, self.settings.masks).active:
            return None, b""
        if self.directory is None:
            raise InvalidParameter(
                "PrivateStrategy must be given the directory of members for an active server."
            )
        everybody, self._numbers = self._left, _numbered(self._left)
        self._left = [node for node in everybody if node not in self.places]
        if self._left:
            self._step(IDENTITY, dict.fromkeys(self._left, b""), self._identity)
        found = {self.places[node]: node for node in reversed(everybody) if node in self.places}
        self._left = sorted(found.values())
        places = [self.places[node] for node in self._left]
        return self.directory.keys(places), write_places(places)

    def _identity(self, key: bytes, node: int) -> int:
        """Who a node says it is; whether it is will show in what it signs."""
        require(len(key) == PUBLIC_SIZE, "length of the identity", len(key), f"{PUBLIC_SIZE} bytes")
        place = cast(Directory, self.directory).place(key)
        require(place is not None, "identity", key.hex(), "one of the directory's")
        taken = any(one == place for other, one in self.places.items() if other != node)
        require(not taken, "identity", key.hex(), "one that no other node has named")
        self.places[node] = cast(int, place)
        return self.places[node]

    def _keys(self, data: bytes, node: int) -> Advertisement:
        """Step 1; an advertisement that would make all others leave is refused."""
        found = Advertisement.read(self._plan, data)
        found.check(self._plan, self._numbers[node])
        return found

    def _shares(self, data: bytes, node: int) -> dict[int, bytes]:
        """Step 2; a client that deals to some of those it chose alone is not taken in."""
        parts, holders = unpack_dealt(data), self._server.holders(self._numbers[node])
        require(
            set(parts) == holders, "receivers of its shares", sorted(parts), "all those it chose"
        )
        return parts

    def _vector(self, reply: Message, node: int) -> bool:
        """Step 3: the sum grows by one vector."""
        release = Framed.from_bytes(messages.join_pieces(reply.content.config_records))
        release.expect(self.run, self.number, node)
        self._server.receive(self._numbers[node], bytes(release.payload))
        self._count(node, release.payload)
        self.note_extras(reply.content)
        return True

    def _request(self, step: str, node: int, table: bytes) -> ConfigRecord:
        return ConfigRecord(
            dict(messages.sum_request(step, len(self._numbers), self._numbers[node], table))
        )

    def _step(
        self, step: str, tables: Mapping[int, bytes], read: Callable[[bytes, int], Any]
    ) -> dict[int, Any]:
        """Ask the nodes of ``tables``, wait, and return what was read of each, by number; the others are gone."""
        requests = []
        for node, table in tables.items():
            content = RecordDict({SUM: self._request(step, node, table), RECORD: self._settings})
            requests.append(Message(content, node, self._kind, group_id=str(self.number)))
        self.downlink += sum(wire_sizes(requests))
        found = {}

        def answer(reply: Message, node: int) -> Any:
            return read(messages.answer_of(reply.content.config_records.get(SUM), step), node)

        for reply in self.grid.send_and_receive(
            requests, timeout=cast(Masks, self.settings.masks).timeout
        ):
            value = self._read(step, reply, answer)
            if value is not None:
                found[self._numbers[reply.metadata.src_node_id]] = value
        self._gone |= set(tables) - self._done[step]
        self._left = sorted(self._done[step])
        return found

    def _read(
        self, step: str, reply: Message, read: Callable[[Message, int], Found]
    ) -> Found | None:
        """Return what a reply says, or None and a reason in the report."""

        def first(reply: Message, node: int) -> Found:
            require(
                self.waits_for(node, step),
                "answer",
                "another",
                "the first of a node that was asked",
            )
            found = read(reply, node)
            self._done[step].add(node)
            return found

        return self.read(reply, first, step)

    def _fail(self, error: QuietbitError) -> None:
        self._failed = True
        self._name_liars()
        self.reasons.append(f"there is no sum: {error}")

    def _name_liars(self) -> None:
        """Say in the report which nodes were found out, each once."""
        nodes = {number: node for node, number in self._numbers.items()}
        for number, what in self._server.liars.items() if self._server else ():
            said = f"node {nodes[number]} was found out: {messages.one_line(what)}"
            if said not in self.reasons:
                self.reasons.append(said)


def _numbered(nodes: Iterable[int]) -> dict[int, int]:
    return {node: place for place, node in enumerate(nodes, 1)}


def _signature(data: bytes, node: int) -> bytes:
    require(
        len(data) == SIGNATURE_SIZE, "length of the signature", len(data), f"{SIGNATURE_SIZE} bytes"
    )
    return data
