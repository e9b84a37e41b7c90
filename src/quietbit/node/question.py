"""What a server may ask a node, in words of no engine: one release, or one step of a masked sum.

Idea     a question is plain values, checked when it is read, so that the same one can come from Flower's record, over a
         gatekeeper's socket or from a program of one's own. A release goes back in a frame that says for which run,
         round and node it was made: a payload of yesterday is not taken for one of today.
Symbols  n: clients of a sum, numbered from 1; t: threshold; k: honest clients that the run counts on.
Source   the steps are those of `quietbit.secagg.client` (Bonawitz et al., CCS 2017, Figure 4).

The frame, 24 bytes, all numbers little-endian: magic ``QBR``, version (8 bits), round (32 bits), run and node (64 bits
each), then the payload. What the tables of the steps hold is in `quietbit.secagg.codec`; before the first, where the
server may lie, `identity` asks once in a run for the node's public signing key.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, final

from quietbit.errors import InvalidParameter, check_int, check_real, refuse_payload, require
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.registry import family_of
from quietbit.node.policy import ANSWERING
from quietbit.secagg.exposure import SPARSE_FROM
from quietbit.secagg.plan import ServerModel, SumPlan
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust, Unit, check_delta

__all__ = [
    "ALONE", "CONFIRM", "IDENTITY", "KEYS", "SHARES", "STEPS", "UNMASK", "VECTOR", "Framed", "Question", "SumPart",
    "noted_run", "run_name", "sum_plan",
]  # fmt: skip

IDENTITY = "identity"
ALONE = "alone"  # no step of the sum: a release beside it, which the server sees
KEYS, SHARES, VECTOR, CONFIRM, UNMASK = STEPS = ("keys", "shares", "vector", "confirm", "unmask")
MOST_ROUNDS = 2**32 - 1
MOST_ID = 2**64 - 1
SAME = ("run", "node", "client", "dimension", "epsilon", "delta", "adjacency", "unit")  # in all rounds of a node's run
MAGIC, VERSION, FRAME = b"QBR", 2, struct.Struct("<3sBIQQ")


@final
@dataclass(frozen=True, slots=True)
class SumPart:
    """The part of a question that is about a masked sum; ``table`` is what the server forwards from the others.

    A release beside the sum (`ALONE`) is asked for within the same account, and has no other part in it.
    """

    step: str
    clients: int
    number: int
    threshold: int
    honest: int
    server: str
    neighbours: int | None = None
    share_threshold: int | None = None
    table: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what is not a step of a sum."""
        active = ServerModel(self.server) is ServerModel.ACTIVE
        known = [step for step in (*STEPS, ALONE) if active or step != CONFIRM] + ([IDENTITY] if active else [])
        require(self.step in known, "step of the sum", self.step, "one of " + ", ".join(known))
        require(isinstance(self.table, bytes), "table of the step", type(self.table).__name__, "bytes")
        put = object.__setattr__
        put(self, "clients", check_int(self.clients, "clients of the sum", 2, MOST_CLIENTS))
        put(self, "number", check_int(self.number, "number of the client", 1, self.clients))
        put(self, "threshold", check_int(self.threshold, "threshold of the sum", 2, MOST_CLIENTS))
        put(self, "honest", check_int(self.honest, "honest clients of the sum", 2, self.threshold))

    @property
    def active(self) -> bool:
        """Whether the server may lie."""
        return self.server == ServerModel.ACTIVE.value


@final
@dataclass(frozen=True, slots=True)
class Question:
    """One release that is asked for: of which mechanism, for which run and round, within which budget of the run.

    ``client`` is the node's number among simulated ones, for seeded randomness alone; ``sum`` is there if the release
    goes into a masked sum.
    """

    run: int
    round: int
    node: int
    dimension: int
    mechanism: str
    epsilon: float
    delta: float
    adjacency: str
    client: int | None = None
    sum: SumPart | None = None
    unit: str = Unit.CLIENT.value

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        put = object.__setattr__
        put(self, "round", check_int(self.round, "round", 1, MOST_ROUNDS))
        if not isinstance(self.mechanism, str):
            raise InvalidParameter.of("description of the mechanism", "text", type(self.mechanism).__name__)
        said = tuple(getattr(self, name) for name in SAME)
        try:
            terms = _terms(*said)
        except TypeError:  # values that cannot be remembered, and that no question has
            terms = _terms.__wrapped__(*said)
        for name, value in zip(SAME, terms, strict=True):
            put(self, name, value)

    @property
    def trust(self) -> Trust:
        """Who sees the release."""
        return Trust.LOCAL if self.sum is None else Trust.SECURE_AGGREGATION

    @property
    def cap(self) -> Target:
        """The run's own budget: a node holds it, too."""
        return _cap(self.epsilon, self.delta, self.adjacency, self.unit, self.trust)

    @property
    def terms(self) -> bytes:
        """Everything in it that all clients of a sum must have been asked alike: all but who is asked, and the step."""
        values = {name: value for name, value in asdict(self).items() if name not in ("node", "client")}
        part = values["sum"] or {}
        values["sum"] = {name: value for name, value in part.items() if name not in ("step", "number", "table")}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        values = asdict(self)
        if self.sum is not None:
            values["sum"]["table"] = self.sum.table.hex()
        return values

    @classmethod
    def from_json(cls, values: Any) -> Question:
        """Read plain values; any others are refused."""
        known = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or set(values) != known:
            raise InvalidParameter("The question must have exactly the fields of a question.")
        part = values["sum"]
        if part is not None:
            if not isinstance(part, Mapping) or set(part) != {field.name for field in fields(SumPart)}:
                raise InvalidParameter("The part of the question about a sum must have exactly its fields.")
            try:
                table = bytes.fromhex(part["table"])
            except (TypeError, ValueError) as error:
                raise InvalidParameter("table of the step must be hexadecimal.") from error
            part = SumPart(**{**part, "table": table})
        return cls(**{**values, "sum": part})


@lru_cache(maxsize=64, typed=True)  # the same in all rounds of a run
def _terms(
    run: Any, node: Any, client: Any, dimension: Any, epsilon: Any, delta: Any, adjacency: Any, unit: Any
) -> tuple[Any, ...]:
    return (
        check_int(run, "run", 0, MOST_ID), check_int(node, "node", 0, MOST_ID),
        None if client is None else check_int(client, "partition-id", 0),
        check_int(dimension, "dimension", 1, MAX_DIMENSION), check_real(epsilon, "epsilon of the run"),
        check_delta(delta), Adjacency(adjacency).value,
        Unit(unit).value,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _cap(epsilon: float, delta: float, adjacency: str, unit: str, trust: Trust) -> Target:
    return Target(epsilon, delta, adjacency, unit=unit, trust=trust)


def noted_run(run: int, family: str) -> str:
    """Return what ledgers and sums call a run: an evaluation and an update of one round are two releases."""
    return f"{run}/evaluations" if family in ANSWERING else str(run)


def sum_plan(question: Question, mechanism: Mechanism, members: tuple[bytes, ...] | None) -> SumPlan:
    """Return the masked sum that is asked for, of a mechanism's codes; refuse one that the threshold does not fit."""
    part = question.sum
    if part is None:
        raise InvalidParameter("The question must be about a masked sum, and is not.")
    threshold, clients = part.threshold, part.clients
    most = (3 * threshold - 1) // 2 if part.active else 2 * threshold - 1
    rule = f"from the threshold, {threshold}, to {most}"
    require(threshold <= clients <= most, "clients of the sum", clients, rule)
    name = f"quietbit/{noted_run(question.run, family_of(mechanism))}/{question.round}".encode()
    near = part.neighbours, part.share_threshold
    if part.neighbours is not None and clients < max(SPARSE_FROM, part.neighbours + 1):
        near = None, None  # a cohort so small deals with everybody
    codes = mechanism.layout
    return SumPlan(clients, threshold, codes.count, name, 2**codes.bits - 1, *near, members, question.terms)


def run_name(run: int) -> bytes:
    """Return the name of a run from which rows that all clients of a round keep are derived (`Mechanism.for_round`)."""
    return str(run).encode()


@final
@dataclass(frozen=True, slots=True)
class Framed:
    """A payload bound to a run, a round and a node."""

    run: int
    round: int
    node: int
    payload: bytes | memoryview

    def to_bytes(self) -> bytes:
        """Return the frame followed by the payload."""
        return FRAME.pack(MAGIC, VERSION, self.round, self.run, self.node) + self.payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Framed:
        """Read a release; the payload is left for the aggregator to check."""
        if len(data) < FRAME.size:
            refuse_payload("length of the release", f"at least {FRAME.size} bytes", len(data))
        magic, version, number, run, node = FRAME.unpack_from(data)
        if magic != MAGIC:
            refuse_payload("the first bytes of the release", f"{MAGIC!r}", repr(bytes(data[:3])))
        if version != VERSION:
            refuse_payload("version of the release", f"{VERSION}", version)
        return cls(run, number, node, memoryview(data)[FRAME.size :])

    def expect(self, run: int, number: int, node: int) -> None:
        """Refuse a release that was made for another run or round, or by another node."""
        for name, mine, found in (("run", run, self.run), ("round", number, self.round), ("node", node, self.node)):
            if mine != found:
                refuse_payload(f"{name} of the release", f"{mine}", found)
