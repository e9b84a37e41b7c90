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
from dataclasses import dataclass, field
from typing import Any, cast, final

from flwr.app import Array, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from quietbit._typing import FloatVector
from quietbit.engine.layout import Layout
from quietbit.engine.messages import RECORD, SUM, Request, SumRequest, answer_of, join_pieces, one_line, question_of
from quietbit.engine.replay import NEEDS
from quietbit.engine.report import NodeCounts, RoundReport
from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.flower.plaintext import DECLINED, crash_of, note_metrics
from quietbit.flower.wire import WireSizes
from quietbit.mechanism.base import Mechanism, summable
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
@dataclass(slots=True, eq=False)
class SecureRound:
    """One round from the first question to the unmasked mean; `ask`, `take`, `mean` and `report`, in this order."""

    run: int
    number: int
    arrays: dict[str, Array]
    layout: Layout
    mechanism: Mechanism
    account: NodeCounts
    settings: Plan
    grid: Grid
    directory: Directory | None = None
    places: dict[int, int] = field(default_factory=dict)  # of nodes in the directory, as far as they have said
    downlink: int = 0
    uplink: int = 0
    payloads: int = 0
    reasons: list[str] = field(default_factory=list)
    needing: set[int] = field(default_factory=set)  # nodes that could not replay what they were sent
    crashes: list[str] = field(default_factory=list)  # tracebacks, of simulated nodes
    _numbers: dict[int, int] = field(default_factory=dict)  # a node's number in the sum
    _kind: str = MessageType.TRAIN  # the type that the inner strategy trains with
    _left: list[int] = field(default_factory=list)  # nodes that are still there
    _done: dict[str, set[int]] = field(default_factory=lambda: {step: set() for step in STEPS})
    _gone: set[int] = field(default_factory=set)  # nodes that were asked for something and did not bring it
    _declined: set[int] = field(default_factory=set)
    _spoilt: set[int] = field(default_factory=set)  # nodes of which an answer was refused
    _refused: int = 0
    _server: SumServer | None = None
    _plan: SumPlan | None = None
    _failed: bool = False
    _metrics: dict[str, list[float]] = field(default_factory=dict)
    _settings: ConfigRecord = field(default_factory=ConfigRecord)  # which mechanism the sum is of

    def ask(self, messages: Iterable[Message]) -> list[Message]:
        """Collect keys and shares from the nodes of the inner strategy's messages; return those to send to U1."""
        asked = {message.metadata.dst_node_id: message for message in messages}
        self._left = sorted(asked)
        self._kind = next((message.metadata.message_type for message in asked.values()), self._kind)
        request = Request.of(self.number, self.mechanism)
        self._settings = ConfigRecord(dict(request.to_record()))
        try:
            members, table = self._members()
            self._numbers = {node: place + 1 for place, node in enumerate(self._left)}
            count = len(self._left)
            rule = f"at least the threshold, {self.settings.threshold}, with an identity"
            require(count >= 2, "clients of the sum", count, rule)
            # The question as the first client reads it: the plan follows from what all are asked alike.
            records = {RECORD: request.to_record(), SUM: SumRequest(KEYS, count, 1).to_record()}
            question = question_of(records, self.settings, self.run, node=0)
            layout = summable(self.mechanism).layout
            self._plan = plan = sum_plan(question, layout.count, layout.bits, members)
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
            self.downlink += sizes.of(message) + len(record.deflate())
            self.account.node(node).asked += 1
            message.content = RecordDict({**message.content, SUM: record})
        return [asked[node] for node in self._left]

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
        if self._failed or self._server is None:
            return None
        self._gone |= set(self._left) - self._done[VECTOR]
        server, plan, self._left = self._server, cast(SumPlan, self._plan), sorted(self._done[VECTOR])
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

    def metrics(self) -> dict[str, float]:
        """The plain mean of every number that nodes let through, over the nodes that did."""
        return {name: sum(values) / len(values) for name, values in sorted(self._metrics.items())}

    def answers(self) -> None:
        """Say nothing about the clip, which does not move in sums."""

    def answered(self) -> set[int]:
        """Nodes whose vector is in the sum."""
        return self._done[VECTOR]

    def failed(self) -> set[int]:
        """Nodes that fell silent before their vector was here: dead, late or lost on the way."""
        return self._gone - self._done[VECTOR] - self._declined - self._spoilt

    def report(self) -> RoundReport:
        """The counts; ``answered`` are the clients in the sum."""
        return RoundReport(
            round=self.number,
            asked=len(self._numbers) or len(self._left),
            answered=len(self._done[VECTOR]),
            declined=len(self._declined),
            failed=len(self.failed()),
            refused=self._refused,
            skipped=self._failed,
            uplink_payload=self.payloads,
            uplink=self.uplink,
            downlink=self.downlink,
            reasons=tuple(self.reasons),
            resyncs=len(self.needing),
            crashed=len(self.crashes),
            steps=tuple(len(self._done[step]) for step in STEPS if step != CONFIRM or self.settings.active),
        )

    def _members(self) -> tuple[tuple[bytes, ...] | None, bytes]:
        """The public keys of the nodes that are members, in order, and their places; none where no server lies."""
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
        key = answer_of(reply.content.config_records.get(SUM), IDENTITY)
        require(len(key) == PUBLIC_SIZE, "length of the identity", len(key), f"{PUBLIC_SIZE} bytes")
        place = cast(Directory, self.directory).place(key)
        require(place is not None, "identity", key.hex(), "one of the directory's")
        taken = any(one == place for other, one in self.places.items() if other != node)
        require(not taken, "identity", key.hex(), "one that no other node has named")
        self.places[node] = cast(int, place)
        return self.places[node]

    def _keys(self, plan: SumPlan, table: bytes) -> dict[int, Advertisement]:
        """Step 1; an advertisement that would make all others leave is refused."""
        server = cast(SumServer, self._server)

        def read(reply: Message, node: int) -> Advertisement:
            found = Advertisement.read(plan, answer_of(reply.content.config_records.get(SUM), KEYS))
            server.check_advertisement(self._numbers[node], found)
            return found

        return self._step(KEYS, dict.fromkeys(self._left, table), read)

    def _shares(self, server: SumServer, rosters: Mapping[int, Roster]) -> dict[int, dict[int, bytes]]:
        """Step 2; a client that deals to some of those it chose alone is not taken in."""

        def read(reply: Message, node: int) -> dict[int, bytes]:
            parts = unpack_dealt(answer_of(reply.content.config_records.get(SUM), SHARES))
            holders = server.holders(self._numbers[node])
            require(set(parts) == holders, "receivers of its shares", sorted(parts), "all those it chose")
            return parts

        plan = cast(SumPlan, self._plan)
        self._left = [node for node in self._left if self._numbers[node] in rosters]
        return self._step(SHARES, {node: rosters[self._numbers[node]].to_bytes(plan) for node in self._left}, read)

    def _vector(self, reply: Message, node: int) -> None:
        """Step 3: the sum grows by one vector."""
        release = Framed.from_bytes(join_pieces(reply.content.config_records))
        release.expect(self.run, self.number, node)
        cast(SumServer, self._server).receive(self._numbers[node], bytes(release.payload))
        self.account.node(node).answered += 1
        self.payloads += len(release.payload)
        note_metrics(reply.content, self._metrics)
        self.crashes += [] if (shown := crash_of(reply.content)) is None else [shown]

    @staticmethod
    def _signature(reply: Message, node: int) -> bytes:
        found = answer_of(reply.content.config_records.get(SUM), CONFIRM)
        require(len(found) == SIGNATURE_SIZE, "length of the signature", len(found), f"{SIGNATURE_SIZE} bytes")
        return found

    @staticmethod
    def _unmasking(reply: Message, node: int) -> Any:
        return Unmasking.read(answer_of(reply.content.config_records.get(SUM), UNMASK))

    def _question(self, step: str, node: int, table: bytes) -> ConfigRecord:
        return ConfigRecord(dict(SumRequest(step, len(self._numbers), self._numbers[node], table).to_record()))

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

    def _read(self, step: str, reply: Message, read: Callable[[Message, int], Any]) -> Any:
        """What a reply says, or None and a reason in the report."""
        node = reply.metadata.src_node_id
        self.uplink += WireSizes().of(reply)
        if reply.has_error():
            self._note_error(step, node, one_line(reply.error.reason or f"error {reply.error.code}"))
            return None
        try:
            fresh = node in self._left and node not in self._done[step] and node not in self._declined
            require(fresh, "answer", "another", "the first of a node that was asked")
            value = read(reply, node)
        except QuietbitError as error:
            self._refused += 1
            self._spoilt |= {node} & set(self._left)
            if step == VECTOR and node in self._left:
                self.account.node(node).refused += 1
            self.reasons.append(f"node {node} was refused ({step}): {one_line(str(error))}")
            return None
        self._done[step].add(node)
        return value

    def _note_error(self, step: str, node: int, reason: str) -> None:
        said = "declined" if reason.startswith(DECLINED) else "did not answer"
        self.reasons.append(f"node {node} {said} ({step}): {reason.removeprefix(DECLINED)}")
        fresh = node in self._left and node not in self._done[step] and node not in self._declined
        if reason.startswith(DECLINED) and fresh:
            self._declined.add(node)
            self.needing |= {node} if reason == DECLINED + NEEDS else set()
            if step == VECTOR:  # only a node's own word means that nothing was released
                self.account.node(node).declined += 1

    def _fail(self, error: QuietbitError) -> None:
        self._failed = True
        self._name_liars()
        self.reasons.append(f"there is no sum: {error}")

    def _name_liars(self) -> None:
        """Say in the report which nodes were found out, each once."""
        nodes = {number: node for node, number in self._numbers.items()}
        for number, what in self._server.liars.items() if self._server is not None else ():
            said = f"node {nodes[number]} was found out: {one_line(what)}"
            if said not in self.reasons:
                self.reasons.append(said)
