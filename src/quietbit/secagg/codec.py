"""The messages of a masked sum and their bytes: canonical CBOR, and nothing else is accepted.

Idea     what the server forwards and what a client answers are maps from clients' numbers to byte
         strings of one length, and bitmaps of n bits. Whatever is read is encoded again and
         compared, so every value has one encoding.
Symbols  U0, U1, U2 as in `quietbit.secagg.client`.
Source   RFC 8949 (CBOR), section 4.2.1 (deterministic encoding).

| step | the server's table | the answer |
|---|---|---|
| `keys` | active model: the members' places in the directory, four bytes each | an advertisement |
| `shares` | the roster: the advertisements of all U0 | what it deals |
| `vector` | U1, and what was dealt to this client | the masked vector |
| `confirm` | U2 (active model only) | a signature |
| `unmask` | U2; active model: who confirmed it, t signatures, signatures of U1 | shares |
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
    "Unmasking",
    "as_bytes",
    "check_signature",
    "decode",
    "encode",
    "numbered",
    "pack_evidence",
    "pack_inbox",
    "pack_roster",
    "read_places",
    "roster_digest",
    "unpack_dealt",
    "unpack_evidence",
    "unpack_inbox",
    "unpack_roster",
    "write_places",
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
        size = len(self.to_bytes())
        expected = plan.advertisement_size
        has_size = size == expected and len(self.seed) == SEED_COMMITMENT_SIZE
        require(has_size, "length of the advertisement", size, f"{expected} bytes")
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

    def to_bytes(self) -> bytes:
        """Encode both tables."""
        return encode([dict(self.pair_keys), dict(self.seeds)])

    @classmethod
    def read(cls, data: bytes) -> Unmasking:
        """Read the bytes of `to_bytes`."""
        pair_keys, seeds = _parts(data, 2, "answer")
        return cls(numbered(pair_keys, SHARE_SIZE, "shares"), numbered(seeds, SHARE_SIZE, "shares"))


def pack_roster(roster: Mapping[int, Advertisement]) -> bytes:
    """Encode the advertisements of all clients of a round, by their numbers."""
    return encode({number: advertised.to_bytes() for number, advertised in roster.items()})


def unpack_roster(plan: SumPlan, data: bytes) -> dict[int, Advertisement]:
    """Read the bytes of `pack_roster`."""
    table = numbered(decode(data, "roster"), plan.advertisement_size, "advertisements")
    return {number: Advertisement.read(plan, advertised) for number, advertised in table.items()}


def roster_digest(plan: SumPlan, roster: Mapping[int, Advertisement]) -> bytes:
    """Return the description of the round: a digest of the plan and of all advertisements."""
    numbers = sorted(roster)
    digests = [roster[number].digest(plan, number) for number in numbers]
    return digest_of(b"roster", plan.context, plan.bitmap(numbers), *digests)


def unpack_dealt(data: bytes) -> dict[int, bytes]:
    """Read what a client deals to the others."""
    return numbered(decode(data, "shares"), DEALT_SIZE, "shares")


def pack_inbox(plan: SumPlan, u1: Collection[int], dealt: Mapping[int, bytes]) -> bytes:
    """Encode U1 and what was dealt to a client."""
    return encode([plan.bitmap(u1), dict(dealt)])


def unpack_inbox(plan: SumPlan, data: bytes) -> tuple[frozenset[int], dict[int, bytes]]:
    """Read the bytes of `pack_inbox`."""
    listed, dealt = _parts(data, 2, "list and shares")
    return plan.from_bitmap(listed), numbered(dealt, DEALT_SIZE, "shares")


def pack_evidence(
    plan: SumPlan,
    arrived: Collection[int],
    confirmed: Mapping[int, bytes],
    masked: Mapping[int, bytes],
) -> bytes:
    """Encode U2 and, in the active model, who confirmed it and the signatures of both lists."""
    return encode([plan.bitmap(arrived), plan.bitmap(confirmed), _join(confirmed), dict(masked)])


def unpack_evidence(
    plan: SumPlan, data: bytes
) -> tuple[frozenset[int], dict[int, bytes], dict[int, bytes]]:
    """Read the bytes of `pack_evidence`."""
    arrived, signers, signatures, masked = _parts(data, 4, "lists and signatures")
    confirmed = _cut(signatures, plan.from_bitmap(signers), SIGNATURE_SIZE, "signatures")
    return plan.from_bitmap(arrived), confirmed, numbered(masked, SIGNATURE_SIZE, "signatures")


def write_places(places: Sequence[int]) -> bytes:
    """Encode the members' places in the directory, in the order of the clients' numbers."""
    return struct.pack(f"<{len(places)}I", *places)


def read_places(data: bytes, clients: int) -> tuple[int, ...]:
    """Read the bytes of `write_places`; refuse another number of places than of clients."""
    size = 4 * clients
    require(len(data) == size, "length of the list of members", len(data), f"{size} bytes")
    return struct.unpack(f"<{clients}I", data)


def encode(value: Any) -> bytes:
    """Encode numbers, byte strings, lists and maps of them as canonical CBOR."""
    import cbor2

    return bytes(cbor2.dumps(value, canonical=True))


def decode(data: bytes, what: str) -> Any:
    """Read the bytes of `encode`; refuse anything else. ``what`` names them in the refusal."""
    import cbor2

    try:
        value = cbor2.loads(data)
        is_canonical = _is_plain(value) and encode(value) == data
    except Exception as error:  # the library has no common error for bytes that it cannot read
        raise InvalidParameter(
            f"The {what} cannot be read ({type(error).__name__}).", name=what
        ) from error
    require(is_canonical, what, f"{len(data)} bytes of another form", "canonical CBOR")
    return value


def numbered(value: Any, size: int, what: str) -> dict[int, bytes]:
    """Return a map from clients' numbers to strings of ``size`` bytes; refuse anything else."""
    name = f"table of {what}"
    require(isinstance(value, dict), name, type(value).__name__, "a map from clients' numbers")
    for number, data in value.items():
        if not 1 <= number <= MOST_CLIENTS:
            raise InvalidParameter.of(name, f"of clients 1 to {MOST_CLIENTS}", number)
        if not isinstance(data, bytes) or len(data) != size:
            rule = f"{size} bytes for each client"
            length = len(data) if isinstance(data, bytes) else type(data).__name__
            raise InvalidParameter.of(name, rule, f"{length} for client {number}")
    return dict(value)


def _is_plain(value: Any) -> bool:
    """Return whether a value has only numbers, byte strings, lists and maps in it."""
    if type(value) is dict:
        return all(type(key) is int and _is_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    return type(value) in (int, bytes)


def _parts(data: bytes, count: int, what: str) -> list[Any]:
    """Decode a list of ``count`` values; refuse anything else."""
    value = decode(data, what)
    rule = f"a list of {count} values"
    require(isinstance(value, list), what, type(value).__name__, rule)
    require(len(value) == count, what, len(value), rule)
    return list(value)


def _cut(data: Any, clients: Collection[int], size: int, what: str) -> dict[int, bytes]:
    """Cut a byte string into ``size`` bytes for each client, in the order of their numbers."""
    require(isinstance(data, bytes), what, type(data).__name__, "bytes")
    rule = f"{size} bytes for each of {len(clients)} clients"
    require(len(data) == size * len(clients), f"length of the {what}", len(data), rule)
    return {
        number: data[size * place : size * (place + 1)]
        for place, number in enumerate(sorted(clients))
    }


def _join(table: Mapping[int, bytes]) -> bytes:
    return b"".join(table[number] for number in sorted(table))
