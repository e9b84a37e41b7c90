"""Masked sums: the server sees the sum of all clients' codes, and no client's.

Idea     a sum is a collector (`Masked`): keys and shares are asked for before a round's releases,
         which are masked vectors, and lists are confirmed and unmasking asked for when they have
         arrived. Each step asks those who took the last one. Below the threshold the round fails
         closed: no further step is asked, nothing is unmasked, and there is no mean.
Symbols  t: threshold, the fewest clients of a sum; k: honest clients that a sum is priced at; U1:
         clients that dealt shares; U2: those whose vector arrived.
Source   Bonawitz et al. (CCS 2017), Figure 4; `quietbit.secagg`.

Every node that was asked for its vector and did not decline is counted as having released, sum or
no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast, final

from attrs import define, field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, InvalidPayload, check_int, require
from quietbit.federation.collectors import Collector, Query
from quietbit.federation.fields import Real, Whole, Word, choice
from quietbit.federation.messages import (
    SUM,
    Node,
    NodeName,
    Release,
    Reply,
    answer_of,
    read_fields,
    sum_request,
)
from quietbit.federation.part import Part, Scope
from quietbit.federation.record import RoundReport
from quietbit.federation.request import request_of
from quietbit.federation.terms import RunForecast, Say, Section, Terms, given
from quietbit.mechanism.abilities import Summable, SummableRows
from quietbit.mechanism.base import Mechanism, summable
from quietbit.mechanism.registry import AUTO
from quietbit.node.request import (
    ALONE,
    CONFIRM,
    IDENTITY,
    KEYS,
    SHARES,
    STEPS,
    UNMASK,
    VECTOR,
    SumPart,
    sum_plan,
)
from quietbit.secagg.codec import (
    Advertisement,
    Unmasking,
    pack_evidence,
    pack_inbox,
    pack_roster,
    unpack_dealt,
    write_places,
)
from quietbit.secagg.identity import PUBLIC_SIZE, SIGNATURE_SIZE, MemberList
from quietbit.secagg.plan import ServerModel, SumPlan
from quietbit.secagg.server import MaskedSum, SumServer
from quietbit.target import MOST_CLIENTS

__all__ = ["Masked", "MaskedSums", "Masking", "SecureAggregation"]

TIMEOUT = 600.0
OF_SUMS = "imvu"  # the family that is calibrated for sums
_clients = Whole(2, MOST_CLIENTS)


@final
@frozen
class SecureAggregation(Section):
    """``[secure-aggregation]``: releases are summed behind masks.

    A sum needs at least ``threshold`` clients, and costs what ``honest_clients`` of them hide.
    ``adversary`` is the server that sums are
    secret from: ``active``, one that lies (nodes have identities), or ``honest-but-curious``, one
    that follows the protocol. A simulation sums
    its cohort, and needs no field.
    """

    title: ClassVar[str] = "secure_aggregation"
    needs: ClassVar[str] = "members"
    shares_rows: ClassVar[bool] = True
    of_engine: ClassVar[tuple[str, ...]] = (
        "threshold",
        "adversary",
        "timeout",
    )

    threshold: int | None = choice(_clients)
    adversary: str | None = choice(Word(*(model.value for model in ServerModel)))
    honest_clients: int | None = choice(_clients)
    timeout: float = choice(Real(), TIMEOUT)

    def check(self) -> None:
        """Refuse more honest clients than a sum has."""
        if self.threshold is not None and self.honest_clients is not None:
            rule = f"at most {self.threshold}, the threshold"
            require(
                self.honest_clients <= self.threshold,
                "secure_aggregation.honest_clients",
                self.honest_clients,
                rule,
            )

    def check_plan(self, plan: Terms) -> None:
        """Refuse sums of too few or too many clients, and mechanisms without an account of sums."""
        if plan.mode == "planned":
            rule = f"from 2 to {MOST_CLIENTS} for sums"
            require(2 <= plan.cohort <= MOST_CLIENTS, "cohort", plan.cohort, rule)
        else:
            given(
                plan,
                "secure_aggregation.threshold",
                " for sums: the fewest clients that a sum is made of",
            )
            rule = " for sums: active (the server may lie) or honest-but-curious"
            given(plan, "secure_aggregation.adversary", rule)
        most = self.clients(plan)
        fits = self.honest_clients is not None and self.honest_clients <= most
        require(
            fits,
            "secure_aggregation.honest_clients",
            self.honest_clients,
            f"a whole number from 2 to {most}",
        )
        chosen = plan.mechanism
        require(chosen.bits in (None, 1), "mechanism.bits", chosen.bits, "1 or left out for sums")
        if chosen.calibrated:
            rule = "left out under secure aggregation, where it follows from the budget"
            require(chosen.beta in (None, 1.0), "mechanism.beta", chosen.beta, rule)
            require(not chosen.clamp, "mechanism.clamp", chosen.clamp, rule)
            rule = f"{OF_SUMS} to meet a budget by sums"
            require(chosen.name in (OF_SUMS, AUTO), "mechanism", chosen.name, rule)

    def clients(self, terms: Terms) -> int:
        """Return the number of clients in a sum; in an engine, the smallest possible one."""
        return terms.updates if self.threshold is None else self.threshold

    def step(self, step: str, clients: int, number: int, table: bytes = b"") -> SumPart:
        """Return what client ``number`` is asked in one step of a sum."""
        return SumPart(
            step=step,
            clients=clients,
            number=number,
            threshold=check_int(self.threshold, "quietbit.secure-aggregation.threshold", 2),
            honest=check_int(self.honest_clients, "quietbit.secure-aggregation.honest-clients", 2),
            server=str(self.adversary),
            table=table,
        )

    @property
    def active(self) -> bool:
        """Whether sums are secret from a malicious server."""
        return self.adversary == ServerModel.ACTIVE.value

    def client(self, terms: Terms, asked: str) -> Masking | None:
        """Return the client's half, of a turn that sends an update: answers are not summed."""
        return None if asked else Masking(terms)

    def part(self, plan: Terms, say: Say, resource: Any = None) -> MaskedSums:
        """Return the part that sums releases; ``resource`` is its list of members."""
        fits = isinstance(resource, MemberList) if self.active else resource is None
        rule = "left out unless quietbit.secure-aggregation.adversary is active"
        if self.active:
            rule = "a MemberList where quietbit.secure-aggregation.adversary is active"
        require(fits, "members", type(resource).__name__, rule)
        return MaskedSums(plan, self, resource)

    def forecast(self, run: RunForecast) -> str | None:
        """Return a warning where the nodes of a round are too few or too many for a sum."""
        least = self.threshold
        if least is None or least <= run.asked <= 2 * least - 1:
            return None
        needs = f"a sum needs from {least} to {2 * least - 1}, so there will be none"
        asks = f"a round asks {run.asked} nodes"
        return f"quietbit.secure-aggregation.threshold is {least}, and {asks}: {needs}."

    def note(self, entry: RoundReport) -> str:
        """Return how many nodes took each step of a round's sum."""
        return " > ".join(map(str, entry.steps))

    def assumption(self) -> str:
        """Return how many honest clients the guarantee counts on."""
        return f"It counts on {self.honest_clients} honest clients in every sum."


@final
class Masking(Part):
    """The client's half: what the server asks in one step of a sum; most need no app."""

    section: ClassVar[str] = "secure_aggregation"

    def __init__(self, plan: Terms) -> None:
        """Keep the sum's terms, to which a node holds the server."""
        self._masks = plan.find(SecureAggregation) or SecureAggregation()

    def read(self, records: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the step of the sum that is asked for; refuse a message without one."""
        step = read_fields(
            records.get(SUM),
            {"version", "step", "clients", "number", "table"},
            "The server's message must carry a step of a masked sum, and does not: make its "
            "strategy a PrivateStrategy with quietbit.secure-aggregation.",
        )
        part = self._masks.step(step["step"], step["clients"], step["number"], step["table"])
        return {"sum": part}


@final
class MaskedSums(Part):
    """The server's half: it knows the members of sums, and makes the collector of a round."""

    section: ClassVar[str] = "secure_aggregation"

    def __init__(self, plan: Terms, masks: SecureAggregation, members: MemberList | None) -> None:
        """Start without nodes that have said who they are; ``members`` lists all."""
        self.plan = plan
        self.masks = masks
        self.listed = members
        self.places: dict[Node, int] = {}  # of nodes in the list, as far as they have said

    def collector(self, scope: Scope, asked: Mapping[str, Any]) -> Masked:
        """Return the collector of a round, in which all nodes are ``asked`` alike."""
        return Masked(self, scope.mechanism, NodeName(scope.run, 0), asked)

    def sum_plan(
        self,
        name: NodeName,
        asked: Mapping[str, Any],
        clients: int,
        mechanism: Mechanism,
        members: tuple[bytes, ...] | None,
    ) -> SumPlan:
        """Return the plan of a sum, which follows from what all its clients are asked alike."""
        request = request_of(asked, self.plan, name, sum=self.masks.step(KEYS, clients, 1))
        return sum_plan(request, summable(mechanism), members)

    def members(self, nodes: list[Node]) -> tuple[tuple[bytes, ...], bytes]:
        """Return the public keys of nodes that have said who they are, and their places."""
        places = [self.places[node] for node in nodes]
        return cast(MemberList, self.listed).keys(places), write_places(places)

    def identify(self, key: bytes, node: Node) -> int:
        """Note who a node says it is; whether it is will show in what it signs."""
        require(len(key) == PUBLIC_SIZE, "length of the identity", len(key), f"{PUBLIC_SIZE} bytes")
        place = cast(MemberList, self.listed).place(key)
        if place is None:
            raise InvalidParameter.of("identity", "in the list of members", key.hex())
        taken = any(self.places[other] == place for other in self.places if other != node)
        require(not taken, "identity", key.hex(), "used by one node only")
        self.places[node] = place
        return place


@final
@define(eq=False)
class Masked(Collector):
    """A masked sum from the first request to the unmasked mean.

    Each query is one step: identities where the server may lie, keys, shares, the masked vectors,
    which are the releases of the round, confirmed lists where the server may lie, and unmasking.
    """

    result: ClassVar[str] = "sum"

    sums: MaskedSums
    mechanism: Mechanism
    name: NodeName
    asked: Mapping[str, Any]
    _queries: Iterator[Query] = field(init=False)
    _numbers: dict[Node, int] = field(factory=dict, init=False)  # a node's number in the sum
    _left: list[Any] = field(factory=list, init=False)  # nodes that are still there
    _done: dict[str, set[Node]] = field(init=False)  # nodes that took a step, by step
    _step: str = field(default="", init=False)
    _read: Callable[[bytes, Node], Any] = field(init=False)  # the answer to that step
    _values: dict[int, Any] = field(factory=dict, init=False)  # what was read, by number
    _server: SumServer | None = field(default=None, init=False)
    _sum: MaskedSum | None = field(default=None, init=False)

    @_done.default
    def _none(self) -> dict[str, set[Node]]:
        return {step: set() for step in (IDENTITY, *STEPS)}

    def start(self, nodes: Sequence[Node]) -> None:
        """Begin with the nodes of a round."""
        self._left = sorted(nodes, key=_order)
        self._queries = self._steps()

    def next(self) -> Query | None:
        """Return the next step, of those who took the last one; raise below the threshold."""
        return next(self._queries, None)

    def side_request(self, requests: int) -> Mapping[str, Any]:
        """Return what is asked beside the sum: the server sees the release."""
        return {SUM: sum_request(ALONE, requests, 1)}

    def answer(self, node: Node, reply: Reply) -> None:
        """Read the answer to a step."""
        data = answer_of(reply.records.get(SUM), self._step)
        self._values[self._numbers[node]] = self._read(data, node)
        self._done[self._step].add(node)

    def decode(self, payload: Any) -> FloatVector:
        """Refuse: nothing is seen of one vector."""
        raise InvalidPayload("A masked vector says nothing by itself.")

    def add(self, release: Release) -> None:
        """Add a node's vector to the sum."""
        if self._server is None:
            raise InvalidPayload("No vector was asked for.")
        self._server.receive(self._numbers[release.node], bytes(release.payload))
        self._done[VECTOR].add(release.node)

    def mean(self) -> FloatVector | None:
        """Decode the unmasked sum; None where there is none."""
        if self._sum is None:
            return None
        count = len(self._sum.clients)
        return Summable.of(self.mechanism).mean_from_sum(self._sum.total, count)

    def kept(self) -> FloatVector | None:
        """Return the mean on the rows that all nodes keep; None where there is no sum."""
        if self._sum is None:
            return None
        count = len(self._sum.clients)
        return SummableRows.of(self.mechanism).kept_from_sum(self._sum.total, count)

    def columns(self) -> Mapping[str, Any]:
        """Return how many nodes took each step."""
        active = self.sums.masks.active
        steps = [len(self._done[step]) for step in STEPS if active or step != CONFIRM]
        return {"steps": tuple(steps)}

    @property
    def size(self) -> int:
        """How many clients the sum was to be of."""
        return len(self._numbers) or len(self._left)

    def liars(self) -> Mapping[Node, str]:
        """Return the nodes that broke the protocol, with what they did."""
        nodes = {number: node for node, number in self._numbers.items()}
        liars = {} if self._server is None else self._server.liars
        return {nodes[number]: lie for number, lie in liars.items()}

    def _steps(self) -> Iterator[Query]:
        """Ask for step after step, and hand what comes to the server of the sum."""
        members: tuple[bytes, ...] | None = None
        table = b""
        if self.sums.masks.active:
            yield from self._identities()
            members, table = self.sums.members(self._left)
        self._numbers = _numbered(self._left)
        count = len(self._left)
        rule = f"at least {self.sums.masks.threshold}, the threshold"
        require(count >= 2, "number of clients in the sum", count, rule)
        plan = self.sums.sum_plan(self.name, self.asked, count, self.mechanism, members)
        server = SumServer(plan)
        self._server = server

        def keys(data: bytes, node: Node) -> Advertisement:
            """Read a node's keys; refuse those that would make all others leave."""
            advertisement = Advertisement.read(plan, data)
            advertisement.check(plan, self._numbers[node])
            return advertisement

        def shares(data: bytes, node: Node) -> dict[int, bytes]:
            """Read a node's shares; refuse a node that deals to some of the others alone."""
            dealt = unpack_dealt(data)
            holders = server.holders(self._numbers[node])
            rule = "exactly the others of the roster"
            require(set(dealt) == holders, "receivers of its shares", sorted(dealt), rule)
            return dealt

        yield self._query(KEYS, dict.fromkeys(self._left, table), keys)
        roster = server.advertise(self._values)
        tables = dict.fromkeys(self._there(KEYS, roster), pack_roster(roster))
        yield self._query(SHARES, tables, shares)
        inboxes = server.deal(self._values)
        dealers = server.dealers()
        tables = {}
        for node in self._there(SHARES, inboxes):
            tables[node] = pack_inbox(plan, dealers, inboxes[self._numbers[node]])
        yield self._query(VECTOR, tables, releases=True)
        arrived = server.arrived()
        confirmed: dict[int, bytes] = {}
        if plan.active:
            lists = dict.fromkeys(self._there(VECTOR), plan.bitmap(arrived))
            yield self._query(CONFIRM, lists, _signature)
            confirmed = server.confirm(self._values)
        tables = {}
        for node in self._there(CONFIRM if plan.active else VECTOR):
            masked = server.masked(self._numbers[node])
            tables[node] = pack_evidence(plan, arrived, confirmed, masked)
        yield self._query(UNMASK, tables, _unmasking)
        self._sum = server.finish(self._values)

    def _identities(self) -> Iterator[Query]:
        """Ask nodes who they are, unless they have said so; leave one node per member."""
        nodes = self._left
        places = self.sums.places
        self._numbers = _numbered(nodes)
        strangers = [node for node in nodes if node not in places]
        if strangers:
            yield self._query(IDENTITY, dict.fromkeys(strangers, b""), self.sums.identify)
        by_place = {places[node]: node for node in reversed(nodes) if node in places}
        self._left = sorted(by_place.values(), key=_order)

    def _query(
        self,
        step: str,
        tables: Mapping[Node, bytes],
        read: Callable[[bytes, Node], Any] | None = None,
        *,
        releases: bool = False,
    ) -> Query:
        """Return the query of a step, with a table for each node."""
        self._step = step
        self._values = {}
        if read is not None:
            self._read = read
        records = {}
        for node, table in tables.items():
            request = sum_request(step, len(self._numbers), self._numbers[node], table)
            records[node] = {SUM: request}
        timeout = None if releases else self.sums.masks.timeout
        return Query(tuple(tables), records, step, releases, timeout)

    def _there(self, step: str, numbers: Container[int] | None = None) -> list[Any]:
        """Return the nodes that took a step, those with these ``numbers`` where they are given."""
        taken = self._done[step]
        if numbers is not None:
            taken = {node for node in taken if self._numbers[node] in numbers}
        self._left = sorted(taken, key=_order)
        return self._left


def _order(node: Node) -> tuple[bool, Node]:
    return isinstance(node, str), node


def _numbered(nodes: Iterable[Node]) -> dict[Node, int]:
    return {node: place for place, node in enumerate(nodes, 1)}


def _signature(data: bytes, node: Node) -> bytes:
    rule = f"{SIGNATURE_SIZE} bytes"
    require(len(data) == SIGNATURE_SIZE, "length of the signature", len(data), rule)
    return data


def _unmasking(data: bytes, node: Node) -> Unmasking:
    return Unmasking.read(data)
