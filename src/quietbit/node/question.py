"""What a server may ask a node, in words of no engine: one release, or one step of a masked sum.

Idea     a question is plain values, checked when it is read, so that the same one can come from Flower's record, over a
         gatekeeper's socket or from a program of one's own. A release goes back in a frame that says for which run,
         round and node it was made: a payload of yesterday is not taken for one of today.
Symbols  n: clients of a sum, numbered from 1; t: threshold; k: honest clients that the run counts on.
         GUARD: coordinates beyond the model's that every client of a sum sends as 0. A sum in which one of them is
         not 0 was unmasked with a share that is not genuine, or holds a vector of another sum: it is thrown away. At
         least two bits each, so that garbage passes with a chance of at most 2^-64.
Source   the steps are those of `quietbit.secagg.client` (Bonawitz et al., CCS 2017, Figure 4).

The frame, all numbers little-endian: magic ``QBRL``, version and a zero (16 bits each), run, round and node (64 bits
each), then the payload. Tables of numbered byte strings (keys, sealed shares, shares) travel as one value: for every
entry the client's number in four bytes, little-endian, then its bytes, all of one length.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, final

from quietbit._validate import InvalidParameter, finite_real, member, refuse_payload, require, whole_number
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.node.filter import Cap
from quietbit.privacy.aggregate import MOST_CLIENTS
from quietbit.privacy.guarantee import Adjacency, Trust, check_delta
from quietbit.secagg.client import PublicKeys, Unmasking
from quietbit.secagg.plan import SumPlan
from quietbit.secagg.shamir import SHARE_SIZE

__all__ = [
    "GUARD", "KEYS", "KEY_SIZE", "SEALED_SIZE", "SHARES", "STEPS", "UNMASK", "VECTOR", "Framed", "Question", "SumPart",
    "pack", "pack_keys", "pack_unmasking", "sum_plan", "unpack", "unpack_keys", "unpack_unmasking",
]  # fmt: skip

KEYS, SHARES, VECTOR, UNMASK = STEPS = ("keys", "shares", "vector", "unmask")
KEY_SIZE, SEALED_SIZE = 32, 2 * SHARE_SIZE + 16
MOST_ROUNDS = 2**47
MOST_ID = 2**64 - 1
GUARD = 32
MAGIC, VERSION, FRAME = b"QBRL", 1, struct.Struct("<4sHHQQQ")


@final
@dataclass(frozen=True, slots=True)
class SumPart:
    """The part of a question that is about a masked sum; ``table`` is what the server forwards from the others."""

    step: str
    clients: int
    number: int
    threshold: int
    honest: int
    table: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what is no step of a sum."""
        require(self.step in STEPS, "step of the sum", self.step, "one of " + ", ".join(STEPS))
        require(isinstance(self.table, bytes), "table of the step", type(self.table).__name__, "bytes")
        put = object.__setattr__
        put(self, "clients", whole_number(self.clients, "clients of the sum", 2, MOST_CLIENTS))
        put(self, "number", whole_number(self.number, "number of the client", 1, self.clients))
        put(self, "threshold", whole_number(self.threshold, "threshold of the sum", 2, MOST_CLIENTS))
        put(self, "honest", whole_number(self.honest, "honest clients of the sum", 2, self.threshold))


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

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        put = object.__setattr__
        put(self, "run", whole_number(self.run, "run", 0, MOST_ID))
        put(self, "round", whole_number(self.round, "round", 1, MOST_ROUNDS))
        put(self, "node", whole_number(self.node, "node", 0, MOST_ID))
        put(self, "dimension", whole_number(self.dimension, "dimension", 1, MAX_DIMENSION))
        require(isinstance(self.mechanism, str), "description of the mechanism", type(self.mechanism).__name__, "text")
        put(self, "epsilon", finite_real(self.epsilon, "epsilon of the run"))
        put(self, "delta", check_delta(self.delta))
        put(self, "adjacency", member(Adjacency, self.adjacency, "adjacency of the run").value)
        if self.client is not None:
            put(self, "client", whole_number(self.client, "partition-id", 0))

    @property
    def trust(self) -> Trust:
        """Who sees the release."""
        return Trust.LOCAL if self.sum is None else Trust.SECURE_AGGREGATION

    @property
    def cap(self) -> Cap:
        """The run's own budget: a node holds it, too."""
        return Cap(self.epsilon, self.delta, Adjacency(self.adjacency), self.trust, "the run")

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


def sum_plan(run: int, number: int, threshold: int, clients: int, dimension: int, bits: int) -> SumPlan:
    """The masked sum of round ``number`` of a run, guard included; one that the threshold does not fit is refused."""
    rule = f"from the threshold, {threshold}, to {2 * threshold - 1}"
    require(threshold <= clients < 2 * threshold, "clients of the sum", clients, rule)
    name = f"quietbit/flower/{run}/{number}".encode()
    return SumPlan(clients, threshold, dimension + GUARD, name, 2**bits - 1)


@final
@dataclass(frozen=True, slots=True)
class Framed:
    """A payload bound to a run, a round and a node."""

    run: int
    round: int
    node: int
    payload: bytes | memoryview

    def to_bytes(self) -> bytes:
        """The frame and the payload."""
        return FRAME.pack(MAGIC, VERSION, 0, self.run, self.round, self.node) + self.payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Framed:
        """Read a release; the payload is left for the aggregator to check."""
        if len(data) < FRAME.size:
            refuse_payload("length of the release", f"at least {FRAME.size} bytes", len(data))
        magic, version, zero, run, number, node = FRAME.unpack_from(data)
        if magic != MAGIC or zero != 0:
            refuse_payload("the first bytes of the release", f"{MAGIC!r}", repr(bytes(data[:8])))
        if version != VERSION:
            refuse_payload("version of the release", f"{VERSION}", version)
        return cls(run, number, node, memoryview(data)[FRAME.size :])

    def expect(self, run: int, number: int, node: int) -> None:
        """Refuse a release that was made for another run or round, or by another node."""
        for name, mine, found in (("run", run, self.run), ("round", number, self.round), ("node", node, self.node)):
            if mine != found:
                refuse_payload(f"{name} of the release", f"{mine}", found)


def pack(table: Mapping[int, bytes]) -> bytes:
    """Numbered byte strings as one."""
    return b"".join(number.to_bytes(4, "little") + table[number] for number in sorted(table))


def unpack(data: bytes, size: int, what: str) -> dict[int, bytes]:
    """The numbered strings of ``size`` bytes each; numbers must increase."""
    step = 4 + size
    require(len(data) % step == 0, f"length of the table of {what}", len(data), f"a multiple of {step}")
    found: dict[int, bytes] = {}
    last = 0
    for start in range(0, len(data), step):
        number = int.from_bytes(data[start : start + 4], "little")
        require(last < number <= MOST_CLIENTS, f"number in the table of {what}", number, "larger than the one before")
        found[number], last = data[start + 4 : start + step], number
    return found


def pack_keys(published: Mapping[int, PublicKeys]) -> bytes:
    """All public keys, for the clients."""
    return pack({number: pair.sealing + pair.masking for number, pair in published.items()})


def unpack_keys(data: bytes) -> dict[int, PublicKeys]:
    """The public keys of a table."""
    table = unpack(data, 2 * KEY_SIZE, "public keys")
    return {number: PublicKeys(pair[:KEY_SIZE], pair[KEY_SIZE:]) for number, pair in table.items()}


def pack_unmasking(found: Unmasking) -> bytes:
    """The shares that a client gives up: the length of the first table in four bytes, then both."""
    first, second = pack(found.pair_keys), pack(found.seeds)
    return len(first).to_bytes(4, "little") + first + second


def unpack_unmasking(data: bytes) -> Unmasking:
    """Read `pack_unmasking`."""
    cut = 4 + int.from_bytes(data[:4], "little")
    require(4 <= cut <= len(data), "length of the answer", len(data), "that of two tables")
    return Unmasking(unpack(data[4:cut], SHARE_SIZE, "shares"), unpack(data[cut:], SHARE_SIZE, "shares"))
