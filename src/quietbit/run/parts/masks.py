"""Masked sums: the server sees the sum of all clients' codes, and no client's.

Idea     keys and shares are asked for before a round is sent, masked vectors are the round's
         replies, and lists are confirmed and unmasking asked for when they have arrived. Each step
         asks those who are still there, takes in what is complete, and notes who is gone and why.
         Below the threshold the round fails closed: no further step is asked, nothing is unmasked,
         and there is no mean. How messages travel is the adapter's (`quietbit.run.part.Transport`).
Symbols  t: threshold, the fewest clients of a sum; k: honest clients that a sum is priced at; U1:
         clients that dealt shares; U2: those whose vector arrived.
Source   Bonawitz et al. (CCS 2017), Figure 4; `quietbit.secagg`.

Every node that was asked for its vector and did not decline is counted as having released, sum or
no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, cast, final

from attrs import define, field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, QuietbitError, check_int, one_line, require
from quietbit.mechanism.abilities import Summable, SummableRows
from quietbit.mechanism.base import summable
from quietbit.mechanism.calibrate import AUTO
from quietbit.node.gatekeeper import Gate
from quietbit.node.request import (
    ALONE,
    CONFIRM,
    IDENTITY,
    KEYS,
    SHARES,
    STEPS,
    UNMASK,
    VECTOR,
    Framed,
    Request,
    SumPart,
    sum_plan,
)
from quietbit.run.fields import Real, Whole, Word, choice
from quietbit.run.messages import (
    RECORD,
    SUM,
    Asked,
    Node,
    NodeName,
    Reply,
    answer_of,
    join_pieces,
    read_fields,
    sum_request,
)
from quietbit.run.part import Part, Transport
from quietbit.run.record import Note, Outcome, RoundReport
from quietbit.run.request import read_request
from quietbit.run.round import Round
from quietbit.run.terms import Outlook, Say, Section, Terms, given
from quietbit.secagg.codec import (
    Advertisement,
    Unmasking,
    pack_evidence,
    pack_inbox,
    pack_roster,
    unpack_dealt,
    write_places,
)
from quietbit.secagg.identity import PUBLIC_SIZE, SIGNATURE_SIZE, Directory
from quietbit.secagg.plan import ServerModel, SumPlan
from quietbit.secagg.server import SumServer
from quietbit.target import MOST_CLIENTS

__all__ = ["MaskedRound", "MaskedSums", "Masking", "Masks"]

TIMEOUT = 600.0
OF_SUMS = "imvu"  # the family that is calibrated for sums
Result = TypeVar("Result")
_clients = Whole(2, MOST_CLIENTS)


@final
@frozen
class Masks(Section):
    """``[masks]``: releases are summed behind masks, at the cost for ``honest`` honest clients.

    A sum needs at least ``threshold`` clients. ``server`` says what the server may do: ``active``,
    lie (nodes have identities); ``honest-but-curious``, follow the protocol. A simulation sums
    its cohort, and needs no field.
    """

    title: ClassVar[str] = "masks"
    needs: ClassVar[str] = "directory"
    shares_rows: ClassVar[bool] = True
    of_engine: ClassVar[tuple[str, ...]] = (
        "threshold",
        "server",
        "timeout",
    )

    threshold: int | None = choice(_clients)
    server: str | None = choice(Word(*(model.value for model in ServerModel)))
    honest: int | None = choice(_clients)
    timeout: float = choice(Real(), TIMEOUT)

    def check(self) -> None:
        """Refuse more honest clients than a sum has."""
        if self.threshold is not None and self.honest is not None:
            rule = f"at most {self.threshold}, the threshold"
            require(self.honest <= self.threshold, "masks.honest", self.honest, rule)

    def check_plan(self, plan: Terms) -> None:
        """Refuse sums of too few or too many clients, and mechanisms without an account of sums."""
        if plan.mode == "planned":
            rule = f"from 2 to {MOST_CLIENTS} for sums"
            require(2 <= plan.cohort <= MOST_CLIENTS, "cohort", plan.cohort, rule)
        else:
            given(plan, "masks.threshold", " for sums: the fewest clients that a sum is made of")
            rule = " for sums: active (the server may lie) or honest-but-curious"
            given(plan, "masks.server", rule)
        most = self.clients(plan)
        fits = self.honest is not None and self.honest <= most
        require(fits, "masks.honest", self.honest, f"a whole number from 2 to {most}")
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

    def honest_clients(self) -> int | None:
        """Return how many honest clients every sum counts on."""
        return self.honest

    @property
    def active(self) -> bool:
        """Whether sums are secret from a malicious server."""
        return self.server == ServerModel.ACTIVE.value

    def part(self, plan: Terms, say: Say, resource: Any = None) -> MaskedSums:
        """Return the part that sums releases; ``resource`` is its directory."""
        fits = isinstance(resource, Directory) if self.active else resource is None
        rule = "left out unless quietbit.masks.server is active"
        if self.active:
            rule = "a Directory where quietbit.masks.server is active"
        require(fits, "directory", type(resource).__name__, rule)
        return MaskedSums(plan, self, resource)

    def outlook(self, outlook: Outlook) -> str | None:
        """Return a warning where the nodes of a round are too few or too many for a sum."""
        least = self.threshold
        if least is None or least <= outlook.asked <= 2 * least - 1:
            return None
        needs = f"a sum needs from {least} to {2 * least - 1}, so there will be none"
        asks = f"a round asks {outlook.asked} nodes"
        return f"quietbit.masks.threshold is {least}, and {asks}: {needs}."

    def note(self, entry: RoundReport) -> str:
        """Return how many nodes took each step of a round's sum."""
        return " > ".join(map(str, entry.steps))

    def assumes(self) -> str:
        """Return how many honest clients the guarantee counts on."""
        return f"It counts on {self.honest} honest clients in every sum."


@final
class Masking(Part):
    """The client's half: what the server asks in one step of a sum; most need no app."""

    section: ClassVar[str] = "masks"

    def __init__(self, plan: Terms) -> None:
        """Keep the sum's terms, to which a node holds the server."""
        self._masks = plan.find(Masks) or Masks()

    def read(self, records: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the step of the sum that is asked for; refuse a message without one."""
        masks = self._masks
        step = read_fields(
            records.get(SUM),
            {"version", "step", "clients", "number", "table"},
            "The server's message must carry a step of a masked sum, and does not: make its "
            "strategy a PrivateStrategy with quietbit.masks.",
        )
        part = SumPart(
            step=step["step"],
            clients=step["clients"],
            number=step["number"],
            threshold=check_int(masks.threshold, "quietbit.masks.threshold", 2),
            honest=check_int(masks.honest, "quietbit.masks.honest", 2),
            server=str(masks.server),
            table=step["table"],
        )
        return {"sum": part}

    def step(self, request: Request, gate: Gate) -> bytes | None:
        """Answer a step that needs no app; vectors and releases beside the sum need it."""
        if request.part.step in (VECTOR, ALONE):
            return None
        return gate.step(request)


@final
class MaskedSums(Part):
    """The server's half: rounds are masked sums, of updates or of answers about the model."""

    section: ClassVar[str] = "masks"
    in_columns: ClassVar[bool] = True

    def __init__(self, plan: Terms, masks: Masks, directory: Directory | None) -> None:
        """Start without nodes that have said who they are; a directory lists the members."""
        self.plan = plan
        self.masks = masks
        self.directory = directory
        self.places: dict[Node, int] = {}  # of nodes in the directory, as far as they have said

    def open(self, **fields: Any) -> MaskedRound:
        """Return a round that is a masked sum."""
        return MaskedRound(sums=self, **fields)

    def ask(self, round: Any, requests: list[Asked], transport: Transport | None) -> None:
        """Collect keys and shares, and complete the requests to those who dealt them."""
        alone = sum_request(ALONE, len(requests), 1)  # beside the sum: the server sees the release
        members = [asked for asked in requests if asked.round is round]
        others = [asked for asked in requests if asked.round is not round]
        for asked in others:
            asked.records[SUM] = alone
        requests[:] = [*round.begin(members, cast(Transport, transport)), *others]

    def close(self, round: Any) -> Mapping[str, Any]:
        """Report how many nodes took each step."""
        return {"steps": round.steps()}

    def members(self, nodes: list[Node]) -> tuple[tuple[bytes, ...], bytes]:
        """Return the public keys of nodes that have said who they are, and their places."""
        places = [self.places[node] for node in nodes]
        return cast(Directory, self.directory).keys(places), write_places(places)

    def identify(self, key: bytes, node: Node) -> int:
        """Note who a node says it is; whether it is will show in what it signs."""
        require(len(key) == PUBLIC_SIZE, "length of the identity", len(key), f"{PUBLIC_SIZE} bytes")
        place = cast(Directory, self.directory).place(key)
        if place is None:
            raise InvalidParameter.of("identity", "in the directory of identities", key.hex())
        taken = any(self.places[other] == place for other in self.places if other != node)
        require(not taken, "identity", key.hex(), "used by one node only")
        self.places[node] = place
        return place


@final
@define(eq=False, kw_only=True)
class MaskedRound(Round):
    """A masked sum from the first request to the unmasked mean."""

    sums: MaskedSums
    _transport: Transport = field(default=None, init=False)
    _numbers: dict[Node, int] = field(factory=dict, init=False)  # a node's number in the sum
    _left: list[Any] = field(factory=list, init=False)  # nodes that are still there
    _done: dict[str, set[Node]] = field(init=False)  # nodes that took a step, by step
    _gone: set[Node] = field(factory=set, init=False)  # nodes that did not bring what was asked
    _server: SumServer = field(default=None, init=False)
    _plan: SumPlan = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Start no mean of releases: there is one of their sum."""
        self._done = {step: set() for step in (IDENTITY, *STEPS)}

    def reusable(self) -> dict[str, Any]:
        """Return the fields that later rounds of the same mechanism need not make again."""
        return {"request": self.request}

    def begin(self, requests: list[Asked], transport: Transport) -> list[Asked]:
        """Collect keys and shares from nodes; return the requests to those who dealt (U1)."""
        self._transport = transport
        self._left = sorted(asked.node for asked in requests)
        try:
            inboxes = self._collect()
        except QuietbitError as error:
            self._fail(error)
            return []
        dealers = self._server.dealers()
        self._left = [node for node in self._left if self._numbers[node] in inboxes]
        by_node = {asked.node: asked for asked in requests}
        for node in self._left:
            table = pack_inbox(self._plan, dealers, inboxes[self._numbers[node]])
            by_node[node].own_records[SUM] = self._request(VECTOR, node, table)
        return [by_node[node] for node in self._left]

    def asked(self, node: Node) -> bool:
        """Return whether a node is still there."""
        return node in self._left

    def waits_for(self, node: Node, step: str = "") -> bool:
        """Return whether a node was asked for a step and has said nothing yet."""
        return self.asked(node) and node not in self._done[step] and node not in self._declined

    def take(self, reply: Reply) -> bool:
        """Add one masked vector to the sum; return False, with a note, where there is none."""
        for side in self.beside:
            if side.asked(reply.node):
                return side.take(reply)
        return self._read(VECTOR, reply, self._vector) is not None

    def mean(self) -> FloatVector | None:
        """Unmask the sum over U2 and decode it; None where there is no sum."""
        return self._decoded(Summable.of(self.mechanism).mean_from_sum)

    def kept(self) -> FloatVector | None:
        """Return the mean on the rows that all nodes keep; None where there is no sum."""
        return self._decoded(SummableRows.of(self.mechanism).kept_from_sum)

    def failed(self) -> set[Any]:
        """Return the nodes that fell silent before their vector was here: dead, late or lost."""
        return self._gone - self._done[VECTOR] - self._declined - self._spoilt

    def steps(self) -> tuple[int, ...]:
        """Return how many nodes took each step."""
        active = self.sums.masks.active
        return tuple(len(self._done[step]) for step in STEPS if active or step != CONFIRM)

    def report(self) -> RoundReport:
        """Return the counts; ``answered`` are the clients in the sum."""
        clients = len(self._numbers) or len(self._left)
        return replace(super().report(), asked=clients, skipped=self._failed)

    def _collect(self) -> dict[int, Any]:
        """Ask for identities where the server may lie, keys and shares; return the inboxes."""
        members: tuple[bytes, ...] | None = None
        table = b""
        if self.sums.masks.active:
            members, table = self._members()
        self._numbers = _numbered(self._left)
        count = len(self._left)
        rule = f"at least {self.sums.masks.threshold}, the threshold"
        require(count >= 2, "number of clients in the sum", count, rule)
        # The request as the first client reads it: the plan follows from what all are asked alike.
        records = {RECORD: self.request, SUM: sum_request(KEYS, count, 1)}
        plan = self.sums.plan
        request = read_request(records, plan, [Masking(plan)], NodeName(self.run, 0))
        self._plan = sum_plan(request, summable(self.mechanism), members)
        self._server = SumServer(self._plan)
        keys = self._step(KEYS, dict.fromkeys(self._left, table), self._keys)
        roster = self._server.advertise(keys)
        self._left = [node for node in self._left if self._numbers[node] in roster]
        tables = dict.fromkeys(self._left, pack_roster(roster))
        return self._server.deal(self._step(SHARES, tables, self._shares))

    def _members(self) -> tuple[tuple[bytes, ...], bytes]:
        """Ask nodes who they are; return the public keys of those who said so, and their places."""
        nodes = self._left
        places = self.sums.places
        self._numbers = _numbered(nodes)
        self._left = [node for node in nodes if node not in places]
        if self._left:
            self._step(IDENTITY, dict.fromkeys(self._left, b""), self.sums.identify)
        by_place = {places[node]: node for node in reversed(nodes) if node in places}
        self._left = sorted(by_place.values())
        return self.sums.members(self._left)

    def _decoded(self, decode: Callable[[Any, int], FloatVector]) -> FloatVector | None:
        """Have lists confirmed and the sum unmasked, and decode it; None where that fails."""
        if self._failed:
            return None
        self._gone |= set(self._left) - self._done[VECTOR]
        self._left = sorted(self._done[VECTOR])
        server = self._server
        plan = self._plan
        try:
            arrived = server.arrived()
            confirmed: dict[int, bytes] = {}
            if plan.active:
                lists = dict.fromkeys(self._left, plan.bitmap(arrived))
                confirmed = server.confirm(self._step(CONFIRM, lists, _signature))
            tables = {}
            for node in self._left:
                masked = server.masked(self._numbers[node])
                tables[node] = pack_evidence(plan, arrived, confirmed, masked)
            masked_sum = server.finish(self._step(UNMASK, tables, _unmasking))
            return decode(masked_sum.total, len(masked_sum.clients))
        except QuietbitError as error:
            self._fail(error)
            return None
        finally:
            self._name_liars()

    def _keys(self, data: bytes, node: Node) -> Advertisement:
        """Read a node's keys; refuse those that would make all others leave."""
        advertisement = Advertisement.read(self._plan, data)
        advertisement.check(self._plan, self._numbers[node])
        return advertisement

    def _shares(self, data: bytes, node: Node) -> dict[int, bytes]:
        """Read a node's shares; refuse a node that deals to some of the others alone."""
        shares = unpack_dealt(data)
        holders = self._server.holders(self._numbers[node])
        rule = "exactly the others of the roster"
        require(set(shares) == holders, "receivers of its shares", sorted(shares), rule)
        return shares

    def _vector(self, reply: Reply) -> bool:
        """Add a node's vector to the sum."""
        node = reply.node
        release = Framed.from_bytes(join_pieces(reply.records))
        release.expect(self.run, self.number, self.name_of(node))
        self._server.receive(self._numbers[node], bytes(release.payload))
        self.count(node, release.payload)
        self.note_extras(reply)
        return True

    def _request(self, step: str, node: Node, table: bytes) -> dict[str, Any]:
        return sum_request(step, len(self._numbers), self._numbers[node], table)

    def _step(
        self, step: str, tables: Mapping[Any, bytes], read: Callable[[bytes, Any], Result]
    ) -> dict[int, Result]:
        """Ask the nodes of ``tables`` and wait; return what was read of each, by its number."""
        requests = []
        for node, table in tables.items():
            records = {SUM: self._request(step, node, table), RECORD: self.request}
            requests.append(Asked(node, self, records=records, carries_model=False))
        replies = self._transport.exchange(requests, self.sums.masks.timeout)
        for asked in requests:
            self.downlink += asked.size
            for part in self.parts:
                part.sent(self, asked)
        results = {}

        def answer(reply: Reply) -> Result:
            return read(answer_of(reply.records.get(SUM), step), reply.node)

        for reply in replies:
            value = self._read(step, reply, answer)
            if value is not None:
                results[self._numbers[reply.node]] = value
        self._gone |= set(tables) - self._done[step]
        self._left = sorted(self._done[step])
        return results

    def _read(self, step: str, reply: Reply, read: Callable[[Reply], Result]) -> Result | None:
        """Return what the first reply of a node to a step says; None, with a note, for others."""

        def first(reply: Reply) -> Result:
            if not self.waits_for(reply.node, step):
                raise InvalidParameter("this node was not asked, or has already answered.")
            result = read(reply)
            self._done[step].add(reply.node)
            return result

        return self.read(reply, first, step)

    def _fail(self, error: QuietbitError) -> None:
        self._failed = True
        self._name_liars()
        self.notes.append(Note(f"there is no sum: {error}"))

    def _name_liars(self) -> None:
        """Note which nodes were found out, each once."""
        nodes = {number: node for node, number in self._numbers.items()}
        liars = self._server.liars if self._server else {}
        for number, lie in liars.items():
            note = Note(one_line(lie), nodes[number], Outcome.EXPOSED)
            if note not in self.notes:
                self.notes.append(note)


def _numbered(nodes: Iterable[Node]) -> dict[Node, int]:
    return {node: place for place, node in enumerate(nodes, 1)}


def _signature(data: bytes, node: Node) -> bytes:
    rule = f"{SIGNATURE_SIZE} bytes"
    require(len(data) == SIGNATURE_SIZE, "length of the signature", len(data), rule)
    return data


def _unmasking(data: bytes, node: Node) -> Unmasking:
    return Unmasking.read(data)
