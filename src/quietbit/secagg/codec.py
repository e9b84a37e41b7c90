"""The messages of a masked sum and their bytes: tables of the plan's clients, and nothing else.

Idea     what the server forwards and what a client answers are tables from clients' numbers to byte
         strings of one length: one bit per client says who is in a table, then the strings follow
         in the order of the numbers. So every value has one encoding, and its length says whether
         it is complete. A list of clients is a table of empty strings.
Symbols  U0, U1, U2 as in `quietbit.secagg.client`.

| step | the server's tables | the answer |
|---|---|---|
| `keys` | active model: the members' places in the directory, four bytes each | an advertisement |
| `shares` | the roster: the advertisements of all U0 | what it deals |
| `vector` | U1, and what was dealt to this client | the masked vector |
| `confirm` | U2 (active model only) | a signature |
| `unmask` | U2; active model: t who confirmed it, the others' signatures of U1 | shares |
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import final

from attrs import frozen

from quietbit.errors import require
from quietbit.secagg.identity import SIGNATURE_SIZE, verified
from quietbit.secagg.keys import KEY_SIZE, SHARE_SIZE, check_public
from quietbit.secagg.plan import (
    DEALT_SIZE,
    SEED_COMMITMENT_SIZE,
    ProtocolError,
    SumPlan,
    digest_of,
)

__all__ = [
    "ADVERTISED",
    "CONFIRMED",
    "MASKED",
    "Advertisement",
    "Unmasking",
    "as_bytes",
    "check_signature",
    "read_dealt",
    "read_evidence",
    "read_inbox",
    "read_places",
    "read_roster",
    "read_tables",
    "roster_digest",
    "write_evidence",
    "write_inbox",
    "write_places",
    "write_roster",
    "write_tables",
]

# What a signature is for.
ADVERTISED = b"advertisement"
MASKED = b"masked"
CONFIRMED = b"lists"


def as_bytes(*numbers: int) -> bytes:
    """Encode clients' numbers, four bytes each."""
    return struct.pack(f">{len(numbers)}I", *numbers)


def check_signature(
    plan: SumPlan, number: int, purpose: bytes, message: bytes, signature: bytes
) -> None:
    """Raise `ProtocolError` unless this member signed the message for this purpose."""
    if plan.members is None or not 1 <= number <= plan.clients:
        raise ProtocolError(f"Client {number} is not a member of this sum.")
    if not verified(plan.members[number - 1], purpose, message, signature):
        raise ProtocolError(
            f"The signature of client {number} ({purpose.decode()}) is not genuine."
        )


def write_tables(plan: SumPlan, *tables: Mapping[int, bytes]) -> bytes:
    """Encode tables of strings, all of one length in each table."""
    parts = []
    for table in tables:
        parts.append(plan.bitmap(table))
        parts += [table[number] for number in sorted(table)]
    return b"".join(parts)


def read_tables(plan: SumPlan, data: bytes, what: str, *sizes: int) -> list[dict[int, bytes]]:
    """Read tables of strings of these sizes; refuse anything that `write_tables` does not write."""
    tables = []
    end = 0
    for size in sizes:
        start = end
        end += len(plan.bitmap(()))
        table = {}
        for number in sorted(plan.from_bitmap(data[start:end])):
            table[number] = data[end : end + size]
            end += size
        tables.append(table)
    require(len(data) == end, f"length of the {what}", len(data), f"{end} bytes")
    return tables


@final
@frozen
class Advertisement:
    """What a client publishes: its keys for sealing and for masks, a commitment to its seed."""

    sealing: bytes
    masking: bytes
    seed: bytes
    signature: bytes = b""  # of the others, in the active model

    def to_bytes(self) -> bytes:
        """Return the concatenation of all fields."""
        return self.sealing + self.masking + self.seed + self.signature

    @classmethod
    def read(cls, plan: SumPlan, data: bytes) -> Advertisement:
        """Read the bytes of `to_bytes`; refuse another length than the plan's."""
        size = plan.advertisement_size
        key = KEY_SIZE
        require(len(data) == size, "length of the advertisement", len(data), f"{size} bytes")
        end = 2 * key + SEED_COMMITMENT_SIZE
        return cls(data[:key], data[key : 2 * key], data[2 * key : end], data[end:])

    def check(self, plan: SumPlan, number: int) -> None:
        """Refuse keys that are not canonical, and a signature that is not client ``number``'s."""
        for key in (self.sealing, self.masking):
            check_public(key)
        if plan.active:
            check_signature(plan, number, ADVERTISED, self.digest(plan, number), self.signature)

    def digest(self, plan: SumPlan, number: int) -> bytes:
        """Return the digest that the client signs."""
        return digest_of(
            ADVERTISED, plan.context, as_bytes(number), self.sealing, self.masking, self.seed
        )


@final
@frozen(repr=False)
class Unmasking:
    """Shares of the pair keys of clients that left, and of the seeds of those that stayed."""

    pair_keys: Mapping[int, bytes]
    seeds: Mapping[int, bytes]

    def __repr__(self) -> str:
        """Show whose shares they are, and not the shares."""
        return f"Unmasking(pair_keys of {sorted(self.pair_keys)}, seeds of {sorted(self.seeds)})"

    def to_bytes(self, plan: SumPlan) -> bytes:
        """Encode both tables."""
        return write_tables(plan, self.pair_keys, self.seeds)

    @classmethod
    def read(cls, plan: SumPlan, data: bytes) -> Unmasking:
        """Read the bytes of `to_bytes`."""
        return cls(*read_tables(plan, data, "answer", SHARE_SIZE, SHARE_SIZE))


def write_roster(plan: SumPlan, roster: Mapping[int, Advertisement]) -> bytes:
    """Encode the advertisements of all clients of a round."""
    return write_tables(plan, {number: roster[number].to_bytes() for number in roster})


def read_roster(plan: SumPlan, data: bytes) -> dict[int, Advertisement]:
    """Read the bytes of `write_roster`."""
    (table,) = read_tables(plan, data, "roster", plan.advertisement_size)
    return {number: Advertisement.read(plan, table[number]) for number in table}


def roster_digest(plan: SumPlan, roster: Mapping[int, Advertisement]) -> bytes:
    """Return the description of the round: a digest of the plan and of all advertisements."""
    numbers = sorted(roster)
    digests = [roster[number].digest(plan, number) for number in numbers]
    return digest_of(b"roster", plan.context, plan.bitmap(numbers), *digests)


def read_dealt(plan: SumPlan, data: bytes) -> dict[int, bytes]:
    """Read what a client deals to the others."""
    (dealt,) = read_tables(plan, data, "shares", DEALT_SIZE)
    return dealt


def write_inbox(plan: SumPlan, u1: Collection[int], dealt: Mapping[int, bytes]) -> bytes:
    """Encode U1 and what was dealt to a client."""
    return write_tables(plan, dict.fromkeys(u1, b""), dealt)


def read_inbox(plan: SumPlan, data: bytes) -> list[dict[int, bytes]]:
    """Read the bytes of `write_inbox`."""
    return read_tables(plan, data, "list and shares", 0, DEALT_SIZE)


def write_evidence(
    plan: SumPlan,
    arrived: Collection[int],
    confirmed: Mapping[int, bytes],
    masked: Mapping[int, bytes],
) -> bytes:
    """Encode U2 and, in the active model, who confirmed it and the signatures of both lists."""
    return write_tables(plan, dict.fromkeys(arrived, b""), confirmed, masked)


def read_evidence(plan: SumPlan, data: bytes) -> list[dict[int, bytes]]:
    """Read the bytes of `write_evidence`."""
    return read_tables(plan, data, "lists and signatures", 0, SIGNATURE_SIZE, SIGNATURE_SIZE)


def write_places(places: Sequence[int]) -> bytes:
    """Encode the members' places in the directory, in the order of the clients' numbers."""
    return struct.pack(f"<{len(places)}I", *places)


def read_places(data: bytes, clients: int) -> tuple[int, ...]:
    """Read the bytes of `write_places`; refuse another number of places than of clients."""
    size = 4 * clients
    require(len(data) == size, "length of the list of members", len(data), f"{size} bytes")
    return struct.unpack(f"<{clients}I", data)
