"""The messages of a masked sum: one record each way, for each of its four steps.

Idea     a record names its step, its round and the size of the sum; tables of numbered byte strings (keys, sealed
         shares, shares) travel as one value: for every entry the client's number in four bytes, little-endian, then
         its bytes, all of one length. Anything but what is written here is refused.
Source   the steps are those of `quietbit.secure.client`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from quietbit._validate import InvalidParameter, require, whole_number
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.privacy.aggregate import MOST_CLIENTS
from quietbit.secure.client import PublicKeys
from quietbit.secure.shamir import SHARE_SIZE

__all__ = [
    "KEYS",
    "SHARES",
    "SUM",
    "UNMASK",
    "VECTOR",
    "Question",
    "answer_of",
    "keys_table",
    "pack",
    "table_keys",
    "unpack",
]

SUM = "quietbit-sum"  # the name of our record in a message, and in a node's state
KEYS, SHARES, VECTOR, UNMASK = STEPS = ("keys", "shares", "vector", "unmask")
VERSION = 1
KEY_SIZE, SEALED_SIZE = 32, 2 * SHARE_SIZE + 16
MOST_ROUNDS = 2**47
FIELDS = {"version", "step", "round", "clients", "threshold", "number", "dimension", "table"}


@final
@dataclass(frozen=True, slots=True)
class Question:
    """What the server asks one client in one step; ``table`` is what it forwards from the others."""

    step: str
    round: int
    clients: int
    threshold: int
    number: int
    dimension: int
    table: bytes = b""

    def to_record(self) -> dict[str, int | str | bytes]:
        """The values of a ConfigRecord."""
        return {
            "version": VERSION,
            "step": self.step,
            "round": self.round,
            "clients": self.clients,
            "threshold": self.threshold,
            "number": self.number,
            "dimension": self.dimension,
            "table": self.table,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Question:
        """Read the server's values; a message without them is not from a masked sum."""
        if record is None or set(record) != FIELDS:
            raise InvalidParameter(
                "The server's message must carry a step of a masked sum, and does not: is its strategy a SecureStrategy?"
            )
        require(record["version"] == VERSION, "version of the server's sums", record["version"], f"{VERSION}")
        require(record["step"] in STEPS, "step", record["step"], "one of " + ", ".join(STEPS))
        require(isinstance(record["table"], bytes), "table of the step", type(record["table"]).__name__, "bytes")
        clients = whole_number(record["clients"], "clients of the sum", 2, MOST_CLIENTS)
        return cls(
            step=record["step"],
            round=whole_number(record["round"], "round", 1, MOST_ROUNDS),
            clients=clients,
            threshold=whole_number(record["threshold"], "threshold", 1, clients),
            number=whole_number(record["number"], "number of the client", 1, clients),
            dimension=whole_number(record["dimension"], "dimension", 1, MAX_DIMENSION),
            table=record["table"],
        )


def answer_of(record: Mapping[str, Any] | None, step: str) -> bytes:
    """The bytes that a client answered a step with."""
    if record is None or set(record) != {"step", "answer"}:
        raise InvalidParameter(
            "it holds no answer to a step of a masked sum (is SecureUplink among the client's mods?)."
        )
    require(record["step"] == step, "step of the answer", record["step"], step)
    answer = record["answer"]
    require(isinstance(answer, bytes), "answer", type(answer).__name__, "bytes")
    return bytes(answer)


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


def keys_table(published: Mapping[int, PublicKeys]) -> bytes:
    """All public keys, for the clients."""
    return pack({number: pair.sealing + pair.masking for number, pair in published.items()})


def table_keys(data: bytes) -> dict[int, PublicKeys]:
    """The public keys of a table."""
    return {
        number: PublicKeys(pair[:KEY_SIZE], pair[KEY_SIZE:])
        for number, pair in unpack(data, 2 * KEY_SIZE, "public keys").items()
    }
