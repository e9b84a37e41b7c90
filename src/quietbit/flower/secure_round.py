"""A masked sum that is open on the server: what each step asks, who is still there, and the mean in the end.

Idea     keys and shares are asked for while a round is configured, masked vectors are the round's train replies, and
         unmasking is asked for when they have arrived. Each step asks those who are still there, takes in what is
         whole, and notes who is gone and why. Below the threshold the round fails closed: no further step is asked,
         nothing is unmasked, and there is no mean.
Symbols  U1: clients whose shares went round; U2: those whose vector arrived; t: threshold.
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
from quietbit._validate import QuietbitError, require, whole_number
from quietbit.flower.plaintext import DECLINED, note_metrics
from quietbit.flower.wire import WireSizes
from quietbit.mechanism.base import Mechanism, summable
from quietbit.node.layout import Layout
from quietbit.node.messages import RECORD, SUM, Request, SumRequest, answer_of, join_pieces, one_line
from quietbit.node.question import (
    KEY_SIZE,
    KEYS,
    SEALED_SIZE,
    SHARES,
    STEPS,
    UNMASK,
    VECTOR,
    Framed,
    pack,
    pack_keys,
    sum_plan,
    unpack,
    unpack_unmasking,
)
from quietbit.node.report import Account, RoundReport
from quietbit.node.settings import RunSettings
from quietbit.secagg import keys
from quietbit.secagg.client import PublicKeys
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
    account: Account
    settings: RunSettings
    grid: Grid
    downlink: int = 0
    uplink: int = 0
    payloads: int = 0
    reasons: list[str] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)  # a node's number in the sum
    _kind: str = MessageType.TRAIN  # the type that the inner strategy trains with
    _left: list[int] = field(default_factory=list)  # nodes that are still there
    _done: dict[str, set[int]] = field(default_factory=lambda: {step: set() for step in STEPS})
    _gone: set[int] = field(default_factory=set)  # nodes that were asked for something and did not bring it
    _declined: set[int] = field(default_factory=set)
    _spoilt: set[int] = field(default_factory=set)  # nodes of which an answer was refused
    _refused: int = 0
    _server: SumServer | None = None
    _failed: bool = False
    _metrics: dict[str, list[float]] = field(default_factory=dict)
    _settings: ConfigRecord = field(default_factory=ConfigRecord)  # which mechanism the sum is of

    def ask(self, messages: Iterable[Message]) -> list[Message]:
        """Collect keys and shares from the nodes of the inner strategy's messages; return those to send to U1."""
        asked = {message.metadata.dst_node_id: message for message in messages}
        self._left = sorted(asked)
        self._kind = next((message.metadata.message_type for message in asked.values()), self._kind)
        self._numbers = {node: place + 1 for place, node in enumerate(self._left)}
        try:
            threshold = whole_number(self.settings.threshold, "quietbit.threshold", 2)
            size = len(asked), self.layout.dimension, summable(self.mechanism).bits
            plan = sum_plan(self.run, self.number, threshold, *size)
            self._settings = ConfigRecord(dict(Request.of(self.number, self.mechanism).to_record()))
            self._server = server = SumServer(plan)
            table = pack_keys(server.keys(self._keys()))
            inboxes = server.shares_for(self._shares(table))
        except QuietbitError as error:
            self._fail(error)
            return []
        sizes = WireSizes()
        for node in self._left:
            message, record = asked[node], self._question(VECTOR, node, pack(inboxes[self._numbers[node]]))
            self.downlink += sizes.of(message) + len(record.deflate())
            self.account.node(node).asked += 1
            message.content = RecordDict({**message.content, SUM: record})
        return [asked[node] for node in self._left]

    def take(self, reply: Message) -> None:
        """Take one masked vector in, or note why not."""
        self._read(VECTOR, reply, self._vector)

    def mean(self) -> FloatVector | None:
        """Unmask the sum over U2 and decode it; None where there is no sum."""
        if self._failed or self._server is None:
            return None
        self._gone |= set(self._left) - self._done[VECTOR]
        server, self._left = self._server, sorted(self._done[VECTOR])
        try:
            table = pack(dict.fromkeys(server.arrived(), b""))
            found = server.finish(self._step(UNMASK, dict.fromkeys(self._left, table), self._unmasking))
            total, guard = found.total[: self.layout.dimension], found.total[self.layout.dimension :]
            require(not guard.any(), "guard of the sum", "others", "zeros (a share or a vector is not genuine)")
            return summable(self.mechanism).mean_from_sum(total, len(found.clients))
        except QuietbitError as error:
            self._fail(error)
            return None

    def metrics(self) -> dict[str, float]:
        """The plain mean of every number that nodes let through, over the nodes that did."""
        return {name: sum(values) / len(values) for name, values in sorted(self._metrics.items())}

    def failed(self) -> set[int]:
        """Nodes that fell silent before their vector was here: dead, late or lost on the way."""
        return self._gone - self._done[VECTOR] - self._declined - self._spoilt

    def report(self) -> RoundReport:
        """The counts; ``answered`` are the clients in the sum."""
        return RoundReport(
            round=self.number,
            asked=len(self._numbers),
            answered=len(self._done[VECTOR]),
            declined=len(self._declined),
            failed=len(self.failed()),
            refused=self._refused,
            skipped=self._failed,
            uplink_payload=self.payloads,
            uplink=self.uplink,
            downlink=self.downlink,
            reasons=tuple(self.reasons),
            steps=tuple(len(self._done[step]) for step in STEPS),
        )

    def _keys(self) -> dict[int, PublicKeys]:
        """Step 1; a key that no one could agree with, or that someone else has sent, would make all others leave."""
        probe, seen = keys.new_private_key(), set[bytes]()

        def read(reply: Message, node: int) -> PublicKeys:
            data = answer_of(reply.content.config_records.get(SUM), KEYS)
            require(len(data) == 2 * KEY_SIZE, "length of the public keys", len(data), f"{2 * KEY_SIZE} bytes")
            pair = PublicKeys(data[:KEY_SIZE], data[KEY_SIZE:])
            for key in (pair.sealing, pair.masking):
                keys.agree(probe, key)
                require(key not in seen, "public key", "one that was sent before", "this client's own")
                seen.add(key)
            return pair

        return self._step(KEYS, dict.fromkeys(self._left, b""), read)

    def _shares(self, table: bytes) -> dict[int, dict[int, bytes]]:
        """Step 2; a client that shares with some of the others alone is not taken in."""
        known = {self._numbers[node] for node in self._left}

        def read(reply: Message, node: int) -> dict[int, bytes]:
            data = answer_of(reply.content.config_records.get(SUM), SHARES)
            parts = unpack(data, SEALED_SIZE, "sealed shares")
            rule = "all the others with keys"
            require(set(parts) == known - {self._numbers[node]}, "receivers of its shares", sorted(parts), rule)
            return parts

        return self._step(SHARES, dict.fromkeys(self._left, table), read)

    def _vector(self, reply: Message, node: int) -> None:
        """Step 3: the sum grows by one vector."""
        release = Framed.from_bytes(join_pieces(reply.content.config_records))
        release.expect(self.run, self.number, node)
        cast(SumServer, self._server).receive(self._numbers[node], bytes(release.payload))
        self.account.node(node).answered += 1
        self.payloads += len(release.payload)
        note_metrics(reply.content, self._metrics)

    @staticmethod
    def _unmasking(reply: Message, node: int) -> Any:
        return unpack_unmasking(answer_of(reply.content.config_records.get(SUM), UNMASK))

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
            if step == VECTOR:  # only a node's own word means that nothing was released
                self.account.node(node).declined += 1

    def _fail(self, error: QuietbitError) -> None:
        self._failed = True
        self.reasons.append(f"there is no sum: {error}")
