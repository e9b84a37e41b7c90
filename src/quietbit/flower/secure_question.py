"""The messages of a masked sum: what the server asks a node in each of the four steps, and the tables in them.

Idea     a question names its step, its round and the size of the sum; a node takes none of it on trust, for the
         threshold, the run and the mechanism are its own reading of the run config. Tables of numbered byte strings
         (keys, sealed shares, shares) travel as one value: for every entry the client's number in four bytes,
         little-endian, then its bytes, all of one length. Anything but what is written here is refused.
Symbols  n: clients of the sum, numbered from 1; t: threshold.
         GUARD: coordinates beyond the model's that every client sends as 0. A sum in which one of them is not 0 was
         unmasked with a share that is not genuine, or holds a vector of another sum: it is thrown away. At least two
         bits each, so that garbage passes with a chance of at most 2^-64.
Source   the steps are those of `quietbit.secagg.client` (Bonawitz et al., CCS 2017, Figure 4).

All four are messages of the type that the inner strategy trains with, because Flower calls a mod only where the app has
a function of the message's type; the app itself sees the third, which brings the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

from quietbit._validate import InvalidParameter, require, whole_number
from quietbit.flower.settings import RunSettings
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.privacy.aggregate import MOST_CLIENTS
from quietbit.secagg.client import PublicKeys, Unmasking
from quietbit.secagg.plan import SumPlan
from quietbit.secagg.shamir import SHARE_SIZE

__all__ = [
    "GUARD", "KEYS", "KEY_SIZE", "SEALED_SIZE", "SHARES", "STEPS", "SUM", "UNMASK", "VECTOR", "Question", "answer_of",
    "pack", "pack_keys", "pack_unmasking", "sum_plan", "unpack", "unpack_keys", "unpack_unmasking",
]  # fmt: skip

SUM = "quietbit-sum"  # the name of our record in a message, and in a node's state
KEYS, SHARES, VECTOR, UNMASK = STEPS = ("keys", "shares", "vector", "unmask")
VERSION = 1
KEY_SIZE, SEALED_SIZE = 32, 2 * SHARE_SIZE + 16
MOST_ROUNDS = 2**47
GUARD = 32
FIELDS = {"version", "step", "round", "clients", "number", "dimension", "table"}


@final
@dataclass(frozen=True, slots=True)
class Question:
    """What the server asks client ``number`` in one step; ``table`` is what it forwards from the others."""

    step: str
    round: int
    clients: int
    number: int
    dimension: int
    table: bytes = b""

    def to_record(self) -> dict[str, int | str | bytes]:
        """The values of a ConfigRecord."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Question:
        """Read the server's values; a message without them is not from a masked sum."""
        if record is None or set(record) != FIELDS:
            raise InvalidParameter(
                "The server's message must carry a step of a masked sum, and does not: is its strategy a "
                "PrivateStrategy with quietbit.trust = secure-aggregation?"
            )
        require(record["version"] == VERSION, "version of the server's sums", record["version"], f"{VERSION}")
        require(record["step"] in STEPS, "step of the sum", record["step"], "one of " + ", ".join(STEPS))
        require(isinstance(record["table"], bytes), "table of the step", type(record["table"]).__name__, "bytes")
        clients = whole_number(record["clients"], "clients of the sum", 2, MOST_CLIENTS)
        return cls(
            step=record["step"],
            round=whole_number(record["round"], "round", 1, MOST_ROUNDS),
            clients=clients,
            number=whole_number(record["number"], "number of the client", 1, clients),
            dimension=whole_number(record["dimension"], "dimension", 1, MAX_DIMENSION),
            table=record["table"],
        )


def sum_plan(settings: RunSettings, run: int, number: int, clients: int, dimension: int) -> SumPlan:
    """The masked sum of round ``number`` of a run, guard included; one that the threshold does not fit is refused."""
    threshold = whole_number(settings.threshold, "quietbit.threshold", 2)
    rule = f"from the threshold, {threshold}, to {2 * threshold - 1}"
    require(threshold <= clients < 2 * threshold, "clients of the sum", clients, rule)
    name = f"quietbit/flower/{run}/{number}".encode()
    return SumPlan(clients, threshold, dimension + GUARD, name, 2 ** (settings.bits or 1) - 1)


def answer_of(record: Mapping[str, Any] | None, step: str) -> bytes:
    """The bytes that a node answered a step with."""
    if record is None or set(record) != {"step", "answer"}:
        raise InvalidParameter(
            "The reply must hold an answer to a step of a masked sum, and does not (is PrivateUplink among the mods of "
            "the client app?)."
        )
    require(record["step"] == step, "step of the answer", record["step"], step)
    require(isinstance(record["answer"], bytes), "answer", type(record["answer"]).__name__, "bytes")
    return bytes(record["answer"])


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
