"""A masked sum that is open on the server: what each step asks, who is still there, and the mean in the end.

Idea     keys and shares are asked for while a round is configured, masked vectors are the round's train replies, and
         lists are confirmed and unmasking asked for when they have arrived. Each step asks those who are still there,
         takes in what is whole, and notes who is gone and why. Below the threshold the round fails closed: no further
         step is asked, nothing is unmasked, and there is no mean.
Symbols  U1: clients that dealt shares; U2: those whose vector arrived; t: threshold.
Source   Bonawitz et al. (CCS 2017), Figure 4; `quietbit.secagg.server`.

Every node that was asked for its vector and did not say no is counted as having released, sum or no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast, final

from attrs import define, field
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from quietbit._typing import FloatVector
from quietbit.engine.messages import RECORD, SUM, answer_of, join_pieces, one_line, question_of, request_of, sum_request
from quietbit.engine.report import RoundReport
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.flower.open_round import FlowerRound, Found
from quietbit.flower.wire import WireSizes
from quietbit.mechanism.base import summable
from quietbit.node.question import (
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
from quietbit.plan.evaluation import Evaluation
from quietbit.plan.plan import Plan
from quietbit.secagg.codec import (
    Advertisement,
    Roster,
    Unmasking,
    pack_evidence,
    pack_inbox,
    unpack_dealt,
    write_places,
)
from quietbit.secagg.identity import Directory
from quietbit.secagg.plan import PUBLIC_SIZE, SIGNATURE_SIZE, SumPlan
from quietbit.secagg.server import SumServer

__all__ = ["SecureRound"]


@final
@define(eq=False, kw_only=True)
class SecureRound(FlowerRound):
    """One round from the first question to the unmasked mean; `ask`, `take`, `mean` and `report`, in this order."""

    settings: Plan
    grid: Grid
    directory: Directory | None = None
    evaluation: Evaluation | None = None  # what is asked about the model, where the sum is of answers
    places: dict[int, int] = field(factory=dict)  # of nodes in the directory, as far as they have said
    _numbers: dict[int, int] = field(factory=dict, init=False)  # a node's number in the sum
    _kind: str = field(default=MessageType.TRAIN, init=False)  # the type that the inner strategy trains with
    _left: list[int] = field(factory=list, init=False)  # nodes that are still there
    _done: dict[str, set[int]] = field(factory=lambda: {step: set() for step in STEPS}, init=False)
    _gone: set[int] = field(factory=set, init=False)  # nodes that were asked for something and did not bring it
    _server: SumServer = field(default=None, init=False)
    _plan: SumPlan = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)
    _settings: ConfigRecord = field(factory=ConfigRecord, init=False)  # which mechanism the sum is of

    def __attrs_post_init__(self) -> None:
        """Make no mean of releases: there is one of a sum."""

    def ask(self, messages: Iterable[Message]) -> list[Message]:
        """Collect keys and shares from the nodes of the inner strategy's messages; return those to send to U1."""
        asked = {message.metadata.dst_node_id: message for message in messages}
        self._left = sorted(asked)
        self._kind = next((message.metadata.message_type for message in asked.values()), self._kind)
        request = request_of(self.number, self.mechanism)
        self._settings = ConfigRecord(request)
        try:
            members, table = self._members()
            self._numbers = {node: place + 1 for place, node in enumerate(self._left)}
            count = len(self._left)
            rule = f"at least the threshold, {self.settings.threshold}, with an identity"
            require(count >= 2, "clients of the sum", count, rule)
            # The question as the first client reads it: the plan follows from what all are asked alike.
            records = {RECORD: request, SUM: sum_request(KEYS, count, 1)}
            question = question_of(records, self.settings, self.run, node=0, evaluation=self.evaluation)
            self._plan = plan = sum_plan(question, summable(self.mechanism), members)
            self._server = server = SumServer(plan)
            rosters = server.advertise(self._keys(plan, table))
            inboxes = server.deal(self._shares(server, rosters))
        except QuietbitError as error:
            self._fail(error)
            return []
        sizes, u1 = WireSizes(), server.dealers()
        self._left = [node for node in self._left if self._numbers[node] in inboxes]
        for node in self._left:
            table = pack_inbox(plan, u1, inboxes[self._numbers[node]])
            message, record = asked[node], self._question(VECTOR, node, table)
            self.sent(node, sizes.of(message) + len(record.deflate()))
            message.content = RecordDict({**message.content, SUM: record})
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
        return self._decoded(summable(self.mechanism).mean_from_sum)

    def kept(self) -> FloatVector | None:
        """Return the same among the rows that all nodes kept."""
        return self._decoded(summable(self.mechanism).kept_from_sum)

    def _decoded(self, decode: Callable[[Any, int], FloatVector]) -> FloatVector | None:
        if self._failed:
            return None
        self._gone |= set(self._left) - self._done[VECTOR]
        server, plan, self._left = self._server, self._plan, sorted(self._done[VECTOR])
        try:
            arrived, confirmed = server.arrived(), dict[int, bytes]()
            if plan.active:
                told = dict.fromkeys(self._left, plan.bitmap(arrived))
                confirmed = server.confirm(self._step(CONFIRM, told, self._signature))
            tables = {
                node: pack_evidence(plan, arrived, confirmed, server.masked(self._numbers[node])) for node in self._left
            }
            found = server.finish(self._step(UNMASK, tables, self._unmasking))
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
        steps = tuple(len(self._done[step]) for step in STEPS if step != CONFIRM or self.settings.active)
        clients = len(self._numbers) or len(self._left)
        return replace(super().report(), asked=clients, skipped=self._failed, steps=steps)

    def _members(self) -> tuple[tuple[bytes, ...] | None, bytes]:
        """Return the members' public keys, in order, and their places; none unless the server is active."""
        if not self.settings.active:
            return None, b""
        if self.directory is None:
            raise InvalidParameter("PrivateStrategy must be given the directory of members for an active server.")
        self._numbers = {node: place + 1 for place, node in enumerate(self._left)}
        found: dict[int, int] = {}
        unknown = [node for node in self._left if node not in self.places]
        if unknown:
            everybody, self._left = self._left, unknown
            self._done[IDENTITY] = set()
            self._step(IDENTITY, dict.fromkeys(unknown, b""), self._identity)
            self._left = everybody
        for node in self._left:
            if node in self.places and self.places[node] not in found.values():
                found[node] = self.places[node]
        self._left = sorted(found)
        places = [found[node] for node in self._left]
        return self.directory.keys(places), write_places(places)

    def _identity(self, reply: Message, node: int) -> int:
        """Who a node says it is; whether it is will show in what it signs."""
        key = _answer(reply, IDENTITY)
        require(len(key) == PUBLIC_SIZE, "length of the identity", len(key), f"{PUBLIC_SIZE} bytes")
        place = cast(Directory, self.directory).place(key)
        require(place is not None, "identity", key.hex(), "one of the directory's")
        taken = any(one == place for other, one in self.places.items() if other != node)
        require(not taken, "identity", key.hex(), "one that no other node has named")
        self.places[node] = cast(int, place)
        return self.places[node]

    def _keys(self, plan: SumPlan, table: bytes) -> dict[int, Advertisement]:
        """Step 1; an advertisement that would make all others leave is refused."""

        def read(reply: Message, node: int) -> Advertisement:
            found = Advertisement.read(plan, _answer(reply, KEYS))
            found.check(plan, self._numbers[node])
            return found

        return self._step(KEYS, dict.fromkeys(self._left, table), read)

    def _shares(self, server: SumServer, rosters: Mapping[int, Roster]) -> dict[int, dict[int, bytes]]:
        """Step 2; a client that deals to some of those it chose alone is not taken in."""

        def read(reply: Message, node: int) -> dict[int, bytes]:
            parts = unpack_dealt(_answer(reply, SHARES))
            holders = server.holders(self._numbers[node])
            require(set(parts) == holders, "receivers of its shares", sorted(parts), "all those it chose")
            return parts

        self._left = [node for node in self._left if self._numbers[node] in rosters]
        tables = {node: rosters[self._numbers[node]].to_bytes(self._plan) for node in self._left}
        return self._step(SHARES, tables, read)

    def _vector(self, reply: Message, node: int) -> bool:
        """Step 3: the sum grows by one vector."""
        release = Framed.from_bytes(join_pieces(reply.content.config_records))
        release.expect(self.run, self.number, node)
        self._server.receive(self._numbers[node], bytes(release.payload))
        self._count(node, release.payload)
        self.note_extras(reply)
        return True

    @staticmethod
    def _signature(reply: Message, node: int) -> bytes:
        found = _answer(reply, CONFIRM)
        require(len(found) == SIGNATURE_SIZE, "length of the signature", len(found), f"{SIGNATURE_SIZE} bytes")
        return found

    @staticmethod
    def _unmasking(reply: Message, node: int) -> Unmasking:
        return Unmasking.read(_answer(reply, UNMASK))

    def _question(self, step: str, node: int, table: bytes) -> ConfigRecord:
        return ConfigRecord(dict(sum_request(step, len(self._numbers), self._numbers[node], table)))

    def _step(self, step: str, tables: Mapping[int, bytes], read: Callable[[Message, int], Any]) -> dict[int, Any]:
        """Ask the nodes of ``tables``, wait, and return what was read of each, by number; the others are gone."""
        messages = []
        for node, table in tables.items():
            content = RecordDict({SUM: self._question(step, node, table), RECORD: self._settings})
            messages.append(Message(content, node, self._kind, group_id=str(self.number)))
        self.downlink += sum(WireSizes().of(message) for message in messages)
        found = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.settings.timeout):
            value = self._read(step, reply, read)
            if value is not None:
                found[self._numbers[reply.metadata.src_node_id]] = value
        self._gone |= set(tables) - self._done[step]
        self._left = sorted(self._done[step])
        return found

    def _read(self, step: str, reply: Message, read: Callable[[Message, int], Found]) -> Found | None:
        """Return what a reply says, or None and a reason in the report."""

        def first(reply: Message, node: int) -> Found:
            require(self.waits_for(node, step), "answer", "another", "the first of a node that was asked")
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
            said = f"node {nodes[number]} was found out: {one_line(what)}"
            if said not in self.reasons:
                self.reasons.append(said)


def _answer(reply: Message, step: str) -> bytes:
    return answer_of(reply.content.config_records.get(SUM), step)
