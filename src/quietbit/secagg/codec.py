"""What travels in a masked sum, and its bytes: canonical CBOR, refused unless it is exactly what would be written.

Idea     what the server forwards and what a client answers are maps from clients' numbers to byte
         strings of one length, beside bitmaps of n bits. What was read is written again and
         compared: there is one form of everything.
Symbols  U0, U1, U2 as in `quietbit.secagg.client`.
Source   RFC 8949 (CBOR), section 4.2.1 (deterministic encoding).

| step | the server's table | the answer |
|---|---|---|
| `keys` | places of the members in the directory, four bytes each, where the server may lie | an advertisement |
| `shares` | U0, everybody's choice, and the advertisements of those near this client | what is dealt to each |
| `vector` | U1, and what was dealt to this client | the masked vector |
| `confirm` | U2 | a signature; only where the server may lie |
| `unmask` | U2; where the server may lie who confirmed it, t signatures, and signatures of U1 | shares |
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

from attrs import frozen

from quietbit.errors import InvalidParameter, require
from quietbit.secagg.identity import SIGNATURE_SIZE, verified
from quietbit.secagg.keys import KEY_SIZE, SHARE_SIZE, check_public
from quietbit.secagg.plan import (
    CHOICE_SIZE,
    DEALT_SIZE,
    SEED_COMMITMENT_SIZE,
    ProtocolError,
    SumPlan,
    digest_of,
)
from quietbit.target import MOST_CLIENTS

__all__ = [
    "ADVERTISED",
    "CONFIRMED",
    "MASKED",
    "Advertisement",
    "Roster",
    "Unmasking",
    "as_bytes",
    "check_signature",
    "decode",
    "encode",
    "numbered",
    "pack_evidence",
    "pack_inbox",
    "read_places",
    "unpack_dealt",
    "unpack_evidence",
    "unpack_inbox",
    "write_places",
]

ADVERTISED = b"advertisement"  # what is signed
MASKED = b"masked"
CONFIRMED = b"lists"


def as_bytes(*numbers: int) -> bytes:
    """Write clients' numbers, four bytes each."""
    return struct.pack(f">{len(numbers)}I", *numbers)


def check_signature(
    plan: SumPlan, number: int, purpose: bytes, message: bytes, signature: bytes
) -> None:
    """Refuse what the member of this number has not signed for this purpose."""
    if plan.members is None or not 1 <= number <= plan.clients:
        raise ProtocolError(f"Client {number} is not a member of this sum.")
    if not verified(plan.members[number - 1], purpose, message, signature):
        raise ProtocolError(
            f"The signature of client {number} ({purpose.decode()}) is not genuine."
        )


@final
@frozen
class Advertisement:
    """What a client publishes: a key to seal shares for it, one for masks, a commitment to its seed; a signature."""

    sealing: bytes
    masking: bytes
    seed: bytes
    signature: bytes = b""  # in the active model

    def to_bytes(self) -> bytes:
        """Write all of it, one after the other."""
        return self.sealing + self.masking + self.seed + self.signature

    @classmethod
    def read(cls, plan: SumPlan, data: bytes) -> Advertisement:
        """Read `to_bytes`; another length than the plan's is refused."""
        size = plan.advertisement_size
        key = KEY_SIZE
        require(len(data) == size, "length of the advertisement", len(data), f"{size} bytes")
        end = 2 * key + SEED_COMMITMENT_SIZE
        return cls(data[:key], data[key : 2 * key], data[2 * key : end], data[end:])

    def check(self, plan: SumPlan, number: int) -> None:
        """Refuse one that is not client ``number``'s own for this plan, or whose keys are not canonical."""
        for key in (self.sealing, self.masking):
            check_public(key)
        sizes = (len(self.seed), len(self.signature))
        expected = (SEED_COMMITMENT_SIZE, SIGNATURE_SIZE * plan.active)
        require(
            sizes == expected,
            "length of the advertisement",
            sizes,
            "that of a commitment and a signature",
        )
        if plan.active:
            check_signature(plan, number, ADVERTISED, self.digest(plan, number), self.signature)

    def digest(self, plan: SumPlan, number: int) -> bytes:
        """Return what its signature is of."""
        return digest_of(
            ADVERTISED, plan.context, as_bytes(number), self.sealing, self.masking, self.seed
        )

    def choice(self, plan: SumPlan, number: int) -> bytes:
        """Return what stands for it in the roster, and what the client's neighbours follow from."""
        return self.digest(plan, number)[:CHOICE_SIZE]


@final
@frozen
class Roster:
    """What a client is told of U0: everybody's choice, and the advertisements of those it deals with."""

    choices: Mapping[int, bytes]
    near: Mapping[int, Advertisement]

    def to_bytes(self, plan: SumPlan) -> bytes:
        """Write it; choices in the order of the numbers."""
        near = {number: one.to_bytes() for number, one in self.near.items()}
        return encode([plan.bitmap(self.choices), _join(self.choices), near])

    @classmethod
    def read(cls, plan: SumPlan, data: bytes) -> Roster:
        """Read `to_bytes`."""
        listed, choices, near = _parts(data, 3, "roster")
        table = numbered(near, plan.advertisement_size, "advertisements")
        return cls(
            _cut(choices, plan.from_bitmap(listed), CHOICE_SIZE, "choices"),
            {number: Advertisement.read(plan, one) for number, one in table.items()},
        )


@final
@frozen(repr=False)
class Unmasking:
    """Shares given up at the end: of pair keys of clients that left, of seeds of clients that stayed."""

    pair_keys: Mapping[int, bytes]
    seeds: Mapping[int, bytes]

    def __repr__(self) -> str:
        """Say whose, and not what."""
        return f"Unmasking(pair_keys of {sorted(self.pair_keys)}, seeds of {sorted(self.seeds)})"

    def to_bytes(self) -> bytes:
        """Write both tables."""
        return encode([dict(self.pair_keys), dict(self.seeds)])

    @classmethod
    def read(cls, data: bytes) -> Unmasking:
        """Read `to_bytes`."""
        return cls(*(numbered(one, SHARE_SIZE, "shares") for one in _parts(data, 2, "answer")))


def unpack_dealt(data: bytes) -> dict[int, bytes]:
    """Read what a client deals to others."""
    return numbered(decode(data, "shares"), DEALT_SIZE, "shares")


def pack_inbox(plan: SumPlan, u1: Collection[int], dealt: Mapping[int, bytes]) -> bytes:
    """Write U1 and what a client was dealt."""
    return encode([plan.bitmap(u1), dict(dealt)])


def unpack_inbox(plan: SumPlan, data: bytes) -> tuple[frozenset[int], dict[int, bytes]]:
    """Read `pack_inbox`."""
    listed, dealt = _parts(data, 2, "list and shares")
    return plan.from_bitmap(listed), numbered(dealt, DEALT_SIZE, "shares")


def pack_evidence(
    plan: SumPlan,
    arrived: Collection[int],
    confirmed: Mapping[int, bytes],
    masked: Mapping[int, bytes],
) -> bytes:
    """Write U2, and in the active model who confirmed it, their signatures, and a table of signatures of U1."""
    return encode([plan.bitmap(arrived), plan.bitmap(confirmed), _join(confirmed), dict(masked)])


def unpack_evidence(
    plan: SumPlan, data: bytes
) -> tuple[frozenset[int], dict[int, bytes], dict[int, bytes]]:
    """Read `pack_evidence`."""
    arrived, confirmed, signatures, masked = _parts(data, 4, "lists and signatures")
    found = _cut(signatures, plan.from_bitmap(confirmed), SIGNATURE_SIZE, "signatures")
    return plan.from_bitmap(arrived), found, numbered(masked, SIGNATURE_SIZE, "signatures")


def write_places(places: Sequence[int]) -> bytes:
    """Write places of members in the directory, in the order of the clients' numbers."""
    return struct.pack(f"<{len(places)}I", *places)


def read_places(data: bytes, clients: int) -> tuple[int, ...]:
    """Read `write_places`; another number of places than of clients is refused."""
    require(
        len(data) == 4 * clients, "length of the list of members", len(data), f"{4 * clients} bytes"
    )
    return struct.unpack(f"<{clients}I", data)


def encode(value: Any) -> bytes:
    """Write numbers, byte strings, lists and maps of them."""
    import cbor2

    return bytes(cbor2.dumps(value, canonical=True))


def decode(data: bytes, what: str) -> Any:
    """Read what `encode` wrote; anything else is refused."""
    import cbor2

    try:
        found = cbor2.loads(data)
        fine = _plain(found) and encode(found) == data
    except (
        Exception
    ) as error:  # whatever the library says of bytes that it cannot read, or not write again
        raise InvalidParameter(
            f"The {what} must be readable, and cannot be read ({type(error).__name__})."
        ) from error
    require(fine, what, "another form", "in canonical form")
    return found


def numbered(value: Any, size: int, what: str) -> dict[int, bytes]:
    """Check a map from clients' numbers to strings of ``size`` bytes."""
    fine = isinstance(value, dict) and all(1 <= one <= MOST_CLIENTS for one in value)
    fine = fine and all(isinstance(one, bytes) and len(one) == size for one in value.values())
    require(fine, f"table of {what}", "another", f"clients' numbers and {size} bytes for each")
    return dict(value)


def _plain(value: Any) -> bool:
    """Whether there is nothing in a value but numbers, byte strings, lists and maps."""
    if type(value) is dict:
        return all(type(key) is int and _plain(one) for key, one in value.items())
    if type(value) is list:
        return all(map(_plain, value))
    return type(value) in (int, bytes)


def _parts(data: bytes, count: int, what: str) -> list[Any]:
    found = decode(data, what)
    require(isinstance(found, list) and len(found) == count, what, "another", f"a list of {count}")
    return list(found)


def _cut(data: Any, who: Collection[int], size: int, what: str) -> dict[int, bytes]:
    """Cut a byte string into ``size`` bytes for each client, in the order of their numbers."""
    fine = isinstance(data, bytes) and len(data) == size * len(who)
    require(fine, f"length of the {what}", "another", f"{size} bytes for each of {len(who)}")
    return {
        number: data[size * place : size * (place + 1)] for place, number in enumerate(sorted(who))
    }


def _join(table: Mapping[int, bytes]) -> bytes:
    return b"".join(table[number] for number in sorted(table))
