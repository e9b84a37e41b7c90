"""A masked sum as the collector of a round: from the nodes that are asked to their unmasked mean.

Idea     keys and shares are asked for before a round's releases, which are masked vectors; lists
         are confirmed and unmasking asked for when they have arrived. Each step asks those who took
         the last one. Below the threshold the round fails closed: no further step is asked, nothing
         is unmasked, and there is no mean.
Symbols  U1: clients that dealt shares; U2: those whose vector arrived.
Source   Bonawitz et al. (CCS 2017), Figure 4; `quietbit.secagg`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, final

from attrs import define, field

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, InvalidPayload, require
from quietbit.federation.collectors import Collector, Query
from quietbit.federation.messages import SUM, Node, Release, Reply, answer_of, sum_request
from quietbit.mechanism.abilities import Summable
from quietbit.mechanism.base import Mechanism
from quietbit.node.request import STEPS, Step
from quietbit.secagg.codec import write_evidence, write_inbox, write_places, write_roster
from quietbit.secagg.identity import PUBLIC_SIZE, MemberList
from quietbit.secagg.plan import SumPlan
from quietbit.secagg.server import MaskedSum, SumServer
from quietbit.wire.uplink import in_units

__all__ = ["Masked", "Members"]

# The plan of a sum of this many clients, whose members have these keys.
PlanOf: TypeAlias = Callable[[int, tuple[bytes, ...] | None], SumPlan]
# How the server of a sum takes the answer to a step.
TAKES = {
    Step.KEYS: SumServer.take_keys,
    Step.SHARES: SumServer.take_shares,
    Step.VECTOR: SumServer.receive,
    Step.CONFIRM: SumServer.take_confirmation,
    Step.UNMASK: SumServer.take_unmasking,
}


@final
@define(eq=False)
class Members:
    """Who may be in sums that are secret from a server that lies, and which nodes they are."""

    listed: MemberList
    places: dict[Node, int] = field(factory=dict, init=False)  # of nodes that have said

    def keys(self, nodes: list[Node]) -> tuple[bytes, ...]:
        """Return the public keys of nodes that have said who they are."""
        return self.listed.keys([self.places[node] for node in nodes])

    def table(self, nodes: list[Node]) -> bytes:
        """Return the places of nodes in the list, as they are told each other."""
        return write_places([self.places[node] for node in nodes])

    def identify(self, node: Node, key: bytes) -> None:
        """Note who a node says it is; whether it is will show in what it signs."""
        require(len(key) == PUBLIC_SIZE, "length of the identity", len(key), f"{PUBLIC_SIZE} bytes")
        place = self.listed.place(key)
        if place is None:
            raise InvalidParameter.of("identity", "in the list of members", key.hex())
        taken = any(self.places[other] == place for other in self.places if other != node)
        require(not taken, "identity", key.hex(), "used by one node only")
        self.places[node] = place


@final
@define(eq=False)
class Masked(Collector):
    """A masked sum from the first request to the unmasked mean.

    Each query is one step: identities where the server may lie, keys, shares, the masked vectors,
    which are the releases of the round, confirmed lists where the server may lie, and unmasking.
    """

    result: ClassVar[str] = "sum"

    mechanism: Mechanism
    clip: float
    plan_of: PlanOf
    timeout: float  # of a step that needs no app
    members: Members | None = None  # where the server may lie
    _queries: Iterator[Query] = field(init=False)
    _numbers: dict[Node, int] = field(factory=dict, init=False)  # a node's number in the sum
    _left: list[Any] = field(factory=list, init=False)  # nodes that are still there
    _done: dict[Step, set[Node]] = field(init=False)  # nodes that took a step, by step
    _step: Step = field(default=Step.IDENTITY, init=False)
    _server: SumServer | None = field(default=None, init=False)
    _sum: MaskedSum | None = field(default=None, init=False)

    @_done.default
    def _none(self) -> dict[Step, set[Node]]:
        return {step: set() for step in (Step.IDENTITY, *STEPS)}

    def start(self, nodes: Sequence[Node]) -> None:
        """Begin with the nodes of a round."""
        self._left = sorted(nodes, key=_order)
        self._queries = self._steps()

    def next(self) -> Query | None:
        """Return the next step, of those who took the last one; raise below the threshold."""
        return next(self._queries, None)

    def side_request(self, requests: int) -> Mapping[str, Any]:
        """Return what is asked beside the sum: the server sees the release."""
        return {SUM: sum_request(Step.ALONE, requests, 1)}

    def answer(self, node: Node, reply: Reply) -> None:
        """Read the answer to a step."""
        self._take(node, answer_of(reply.records.get(SUM), self._step))

    def decode(self, payload: Any) -> FloatVector:
        """Refuse: nothing is seen of one vector."""
        raise InvalidPayload("A masked vector says nothing by itself.")

    def add(self, release: Release) -> None:
        """Add a node's vector to the sum."""
        self._take(release.node, bytes(release.payload))

    def _take(self, node: Node, data: bytes) -> None:
        """Take the answer to the step that was asked for last."""
        if self.members is not None and self._step is Step.IDENTITY:
            self.members.identify(node, data)
        elif self._server is not None:
            TAKES[self._step](self._server, self._numbers[node], data)
        self._done[self._step].add(node)

    def mean(self) -> FloatVector | None:
        """Decode the unmasked sum; None where there is none."""
        if self._sum is None:
            return None
        count = len(self._sum.clients)
        mean = Summable.of(self.mechanism).mean_from_sum(self._sum.total, count)
        return in_units(mean, self.mechanism, self.clip)

    def kept(self) -> FloatVector | None:
        """Return the mean on the rows that all nodes keep; None where there is no sum."""
        if self._sum is None:
            return None
        count = len(self._sum.clients)
        kept = Summable.of(self.mechanism).kept_from_sum(self._sum.total, count)
        return in_units(kept, self.mechanism, self.clip)

    def columns(self) -> Mapping[str, Any]:
        """Return how many clients the sum was to be of, and how many took each step."""
        steps = []
        for step in STEPS:
            if step != Step.CONFIRM or self.members is not None:
                steps.append(len(self._done[step]))
        return {"asked": len(self._numbers) or len(self._left), "steps": tuple(steps)}

    def liars(self) -> Mapping[Node, str]:
        """Return the nodes that broke the protocol, with what they did."""
        nodes = {number: node for node, number in self._numbers.items()}
        liars = {} if self._server is None else self._server.liars
        return {nodes[number]: lie for number, lie in liars.items()}

    def _steps(self) -> Iterator[Query]:
        """Ask for step after step, and hand what comes to the server of the sum."""
        keys_of_members: tuple[bytes, ...] | None = None
        table = b""
        if self.members is not None:
            yield from self._identities(self.members)
            keys_of_members = self.members.keys(self._left)
            table = self.members.table(self._left)
        self._numbers = _numbered(self._left)
        plan = self.plan_of(len(self._left), keys_of_members)
        server = SumServer(plan)
        self._server = server
        yield self._query(Step.KEYS, dict.fromkeys(self._left, table))
        roster = write_roster(plan, server.roster())
        yield self._query(Step.SHARES, dict.fromkeys(self._there(), roster))
        inboxes = server.inboxes()
        tables = {}
        for node in self._there():
            tables[node] = write_inbox(plan, inboxes, inboxes[self._numbers[node]])
        yield self._query(Step.VECTOR, tables, releases=True)
        arrived = server.arrived()
        confirmed: dict[int, bytes] = {}
        if plan.active:
            lists = dict.fromkeys(self._there(), plan.bitmap(arrived))
            yield self._query(Step.CONFIRM, lists)
            confirmed = server.confirmed()
        tables = {}
        for node in self._there():
            masked = server.masked(self._numbers[node])
            tables[node] = write_evidence(plan, arrived, confirmed, masked)
        yield self._query(Step.UNMASK, tables)
        self._sum = server.finish()

    def _identities(self, members: Members) -> Iterator[Query]:
        """Ask nodes who they are, unless they have said so; leave one node per member."""
        nodes = self._left
        places = members.places
        self._numbers = _numbered(nodes)
        strangers = [node for node in nodes if node not in places]
        if strangers:
            yield self._query(Step.IDENTITY, dict.fromkeys(strangers, b""))
        by_place = {places[node]: node for node in reversed(nodes) if node in places}
        self._left = sorted(by_place.values(), key=_order)

    def _query(self, step: Step, tables: Mapping[Node, bytes], *, releases: bool = False) -> Query:
        """Return the query of a step, with a table for each node."""
        self._step = step
        records = {}
        for node, table in tables.items():
            request = sum_request(step, len(self._numbers), self._numbers[node], table)
            records[node] = {SUM: request}
        timeout = None if releases else self.timeout
        return Query(tuple(tables), records, step, releases, timeout)

    def _there(self) -> list[Any]:
        """Return the nodes that took the last step."""
        self._left = sorted(self._done[self._step], key=_order)
        return self._left


def _order(node: Node) -> tuple[bool, Node]:
    return isinstance(node, str), node


def _numbered(nodes: Iterable[Node]) -> dict[Node, int]:
    return {node: place for place, node in enumerate(nodes, 1)}
