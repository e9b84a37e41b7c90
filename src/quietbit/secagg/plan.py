"""What all parties of a masked sum agree on before it starts, and the bytes of a masked vector.

Idea     n clients send codes 0 .. c, so sums are at most c n: ceil(log2(c n + 1)) bits per
         coordinate hold them (c = 1 for one bit), and masks live modulo that power of two. The
         threshold says how many must stay to the end. All of it is in one digest
         (`SumPlan.context`), on which everything that clients derive or sign depends.
Symbols  n = clients; t = threshold; d = dimension; b = bits; c = largest_code; k = neighbours, s =
         share_threshold; C: clients that collude with the server. A masked vector is ceil(b (d + g)
         / 8) bytes after 24 of header; the guard, g coordinates of at least 64 bits together, is
         zero in every vector: else a sum is known to be wrong.
Source   Bonawitz et al., "Practical secure aggregation" (CCS 2017); Bell et al., "Secure
         single-server aggregation with (poly)logarithmic overhead" (CCS 2020), whose clients choose
         their own neighbours in the active model. docs/theory/masked-sums.md has both models of the
         server, and the proofs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import final

import numpy as np
from attrs import field, frozen

from quietbit.errors import CheckedEnum, QuietbitError, check_int, require
from quietbit.secagg.exposure import SPARSE_FROM, exposure_upper, least_share_threshold
from quietbit.secagg.identity import PUBLIC_SIZE, SIGNATURE_SIZE
from quietbit.secagg.keys import KEY_SIZE, SHARE_SIZE, Mask
from quietbit.target import MOST_CLIENTS

__all__ = [
    "CHOICE_SIZE",
    "COMMITMENT_SIZE",
    "DEALT_SIZE",
    "MASKED_HEADER_SIZE",
    "SEALED_SIZE",
    "ProtocolError",
    "ServerModel",
    "SumPlan",
    "bits_for",
    "check_enough",
    "digest_of",
    "masked_size",
]

MAGIC = b"QBSA"
VERSION = 3
HEADER = struct.Struct("<4sHHQII")  # magic, version, bits, dimension, client, zero
MASKED_HEADER_SIZE = HEADER.size
CHUNK = 1 << 16  # coordinates packed together; a multiple of 8
MOST_CODE = 255  # of eight bits: sums stay well below 2^32
GUARD_BITS = 64
CHOICE_SIZE = 16  # of an advertisement's digest: what a client's neighbours follow from
SEED_COMMITMENT_SIZE = 32
TAG_SIZE = 16  # what sealing adds
COMMITMENT_SIZE = 16  # to a share
SEALED_SIZE = 2 * SHARE_SIZE + TAG_SIZE  # shares of both secrets and the seal
DEALT_SIZE = SEALED_SIZE + 2 * COMMITMENT_SIZE  # what a client deals to another


class ProtocolError(QuietbitError, RuntimeError):
    """A round that cannot go on without giving up secrecy or exactness; nothing was revealed."""


class ServerModel(CheckedEnum):
    """What a sum is secret from, beside fewer colluding clients than its plan allows."""

    HONEST_BUT_CURIOUS = "honest-but-curious"
    ACTIVE = "active"


def bits_for(clients: int, largest_code: int = 1) -> int:
    """Return the bits of a sum of codes, none above ``largest_code``: ceil(log2(clients * largest_code + 1)).

    >>> bits_for(1), bits_for(1000), bits_for(1023), bits_for(1024), bits_for(1000, 3)
    (1, 10, 10, 11, 12)
    """
    count = check_int(clients, "clients", 1, MOST_CLIENTS)
    return (count * check_int(largest_code, "largest_code", 1, MOST_CODE)).bit_length()


def masked_size(clients: int, dimension: int, largest_code: int = 1) -> int:
    """Return the bytes of a masked vector in a sum over that many clients, header and guard included."""
    bits = bits_for(clients, largest_code)
    width = check_int(dimension, "dimension", 1) + -(-GUARD_BITS // bits)
    return MASKED_HEADER_SIZE + (bits * width + 7) // 8


def check_enough(count: int, needed: int, what: str, more: str = "") -> None:
    """Refuse to go on below a threshold."""
    if count < needed:
        raise ProtocolError(f"Only {count} {what}; the threshold is {needed}.{more}")


def digest_of(purpose: bytes, *parts: bytes) -> bytes:
    """Hash byte strings for one purpose; their lengths are part of it, so that no two lists have one digest."""
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in (purpose, *parts))
    return hashlib.sha256(b"quietbit/secure/3/" + framed).digest()


def _members(found: Iterable[bytes] | None) -> tuple[bytes, ...] | None:
    if found is None:
        return None
    return tuple(found)


@final
@frozen
class SumPlan:
    """One masked sum: ``round_name`` is public, of 1 to 64 bytes, and never used twice.

    ``members`` are the Ed25519 public keys of the clients, in the order of their numbers: with them
    the sum is secret from a server that lies (active), and ``threshold`` must be more than two
    thirds of ``clients``. Without them the server must follow the protocol (honest but curious),
    and more than half will do. ``threshold`` clients must send their masked vector and help to
    unmask. ``terms`` say what is summed: a server that may lie could give others a mechanism
    without noise, so they are required beside ``members``. ``neighbours`` makes keys and shares
    cheap for 100 clients and more: each draws as many others, which deals it masks and shares, and
    ``share_threshold`` of itself and them recover its secrets; `exposure_upper` says how much is
    left to chance.
    """

    clients: int
    threshold: int
    dimension: int
    round_name: bytes
    largest_code: int = 1
    neighbours: int | None = None
    share_threshold: int | None = None
    members: tuple[bytes, ...] | None = field(default=None, repr=False, converter=_members)
    terms: bytes = field(default=b"", repr=False)

    def __attrs_post_init__(self) -> None:
        """Refuse thresholds that cannot protect, members that are not distinct, and names that are none."""
        clients = check_int(self.clients, "clients", 2, MOST_CLIENTS)
        least = clients // 2 + 1
        if self.active:
            least = 2 * clients // 3 + 1
        threshold = check_int(self.threshold, "threshold", 2, clients)
        rule = f"at least {least} of {clients} clients ({self.server.value} server)"
        require(threshold >= least, "threshold", threshold, rule)
        check_int(self.dimension, "dimension", 1, 2**40)
        check_int(self.largest_code, "largest_code", 1, MOST_CODE)
        given = (self.neighbours is None, self.share_threshold is None)
        require(
            given[0] == given[1],
            "neighbours and share_threshold",
            given,
            "both given or both left out",
        )
        if self.neighbours is not None:
            rule = f"left out below {SPARSE_FROM} clients, who all deal with each other"
            require(clients >= SPARSE_FROM, "neighbours", self.neighbours, rule)
            near = check_int(self.neighbours, "neighbours", 2, clients - 1)
            check_int(
                self.share_threshold, "share_threshold", least_share_threshold(near), near + 1
            )
        fine = isinstance(self.round_name, bytes) and 1 <= len(self.round_name) <= 64
        require(fine, "round_name", self.round_name, "1 to 64 bytes")
        require(isinstance(self.terms, bytes), "terms", type(self.terms).__name__, "bytes")
        if self.members is not None:
            found = self.members
            fine = all(isinstance(key, bytes) and len(key) == PUBLIC_SIZE for key in found)
            fine = fine and len(found) == len(set(found)) == clients
            require(
                fine,
                "members",
                f"{len(found)} keys",
                f"{clients} different public keys, one for each client",
            )
            require(
                self.terms,
                "terms",
                "none",
                "given beside members: a description of the mechanism at least",
            )

    @cached_property
    def context(self) -> bytes:
        """The digest of all public choices, bound into everything that clients derive or sign."""
        rest = self.neighbours or 0, self.share_threshold or 0, int(self.active)
        numbers = struct.pack(
            "<7Q", self.clients, self.threshold, self.dimension, self.largest_code, *rest
        )
        return digest_of(
            b"plan", numbers, b"".join(self.members or ()), self.round_name, self.terms
        )

    @property
    def server(self) -> ServerModel:
        """What the server may be."""
        return ServerModel.HONEST_BUT_CURIOUS if self.members is None else ServerModel.ACTIVE

    @property
    def active(self) -> bool:
        """Whether the server may lie."""
        return self.members is not None

    @property
    def bits(self) -> int:
        """Bits per coordinate on the wire."""
        return bits_for(self.clients, self.largest_code)

    @property
    def width(self) -> int:
        """Coordinates of a masked vector, the guard's included: garbage passes it with a chance of at most 2^-64."""
        return self.dimension + -(-GUARD_BITS // self.bits)

    @property
    def payload_size(self) -> int:
        """Bytes of a masked vector."""
        return masked_size(self.clients, self.dimension, self.largest_code)

    @property
    def advertisement_size(self) -> int:
        """Bytes of an advertisement: two keys, a commitment, a signature."""
        return 2 * KEY_SIZE + SEED_COMMITMENT_SIZE + SIGNATURE_SIZE * self.active

    @property
    def uplink_size(self) -> int:
        """Bytes that a client sends in all, where everybody stays; with neighbours the mean over clients."""
        if self.neighbours is None:
            others = self.clients - 1
        else:
            others = self.neighbours
        shares = DEALT_SIZE * others + SHARE_SIZE * (
            others + 1
        )  # that are dealt, and given up in the end
        return (
            self.advertisement_size + shares + self.payload_size + 2 * SIGNATURE_SIZE * self.active
        )

    @property
    def shares_needed(self) -> int:
        """How many shares recover a secret."""
        return self.threshold if self.share_threshold is None else self.share_threshold

    @property
    def most_colluders(self) -> int:
        """C: how many clients may collude with the server and learn nothing; with neighbours see `exposure_upper`.

        Two sets of t that signed different lists have more members in common, and an honest client
        signs one list; of a server that follows the protocol t - 1 hold too few shares.
        """
        if self.active:
            return 2 * self.threshold - self.clients - 1
        return self.threshold - 1

    def exposure_upper(self, colluders: int, honest: int) -> float:
        """Bound from above the chance that both secrets of a client, or a sum of fewer honest clients, are exposed.

        Without neighbours it is 0 up to `most_colluders` and t - C honest clients, and 1 beyond.
        """
        bad = check_int(colluders, "colluders", 0, self.clients)
        good = check_int(honest, "honest", 2, self.clients)
        if bad > self.most_colluders or good > self.threshold - bad:
            return 1.0
        if self.neighbours is None:
            return 0.0
        return exposure_upper(
            self.clients, self.threshold, self.neighbours, self.shares_needed, bad, good
        )

    def chosen(self, number: int, choice: bytes) -> frozenset[int]:
        """Return the others that hold client ``number``'s shares: all, or `neighbours` that follow from its choice."""
        if self.neighbours is None:
            return frozenset(range(1, self.clients + 1)) - {number}
        return _chosen(self.context, self.clients, self.neighbours, number, choice)

    def near(
        self, number: int, roster: Mapping[int, bytes]
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Return whom client ``number`` chose of a roster of choices, and who of it chose this client."""
        if self.neighbours is None:
            return (others := frozenset(roster) - {number}), others
        mine = self.chosen(number, roster[number]) & set(roster)
        return mine, frozenset(
            i for i, choice in roster.items() if i != number and number in self.chosen(i, choice)
        )

    def roster_digest(self, roster: Mapping[int, bytes]) -> bytes:
        """Return the digest of the plan and of what everybody advertised: the description of the round."""
        choices = b"".join(roster[number] for number in sorted(roster))
        return digest_of(b"roster", self.context, self.bitmap(roster), choices)

    def bitmap(self, present: Collection[int]) -> bytes:
        """Return a set of clients as bits, one each."""
        marks = np.zeros(self.clients, dtype=np.uint8)
        marks[[number - 1 for number in present]] = 1
        return np.packbits(marks, bitorder="little").tobytes()

    def from_bitmap(self, data: bytes) -> frozenset[int]:
        """Return the set of a bitmap; one of another length, or with bits beyond the clients, is refused."""
        size = (self.clients + 7) // 8
        fine = isinstance(data, bytes) and len(data) == size
        require(
            fine,
            "length of the list of clients",
            len(data) if isinstance(data, bytes) else None,
            f"{size} bytes",
        )
        marks = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        require(
            not marks[self.clients :].any(),
            "list of clients",
            "others",
            f"of clients 1 to {self.clients}",
        )
        return frozenset((np.flatnonzero(marks) + 1).tolist())

    def reduce(self, values: Mask) -> Mask:
        """Reduce whole numbers modulo 2^bits, which divides 2^32, so that 32-bit sums may wrap first."""
        return values & np.uint32(2**self.bits - 1)

    def pack(self, client: int, values: Mask) -> bytes:
        """Write a masked vector: coordinate i has bits [i b, (i+1) b), least significant first."""
        parts = [self._header(client)]
        words = values.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4)
        for first in range(0, self.width, CHUNK):
            spread = np.unpackbits(
                words[first : first + CHUNK], axis=1, count=self.bits, bitorder="little"
            )
            parts.append(np.packbits(spread, bitorder="little").tobytes())
        return b"".join(parts)

    def unpack(self, client: int, data: bytes) -> Mask:
        """Read the masked vector of a client; anything but exactly what `pack` writes is refused."""
        require(
            len(data) == self.payload_size,
            "length of the masked vector",
            len(data),
            f"{self.payload_size} bytes",
        )
        head = data[:MASKED_HEADER_SIZE]
        require(head == self._header(client), "header of the masked vector", head, "this round's")
        body = np.frombuffer(data, dtype=np.uint8, offset=MASKED_HEADER_SIZE)
        used = self.bits * self.width % 8
        require(
            not used or int(body[-1]) >> used == 0,
            "padding of the masked vector",
            int(body[-1]),
            "zero",
        )
        out = np.zeros(self.width, dtype=np.uint32)
        for first in range(0, self.width, CHUNK):
            count = min(CHUNK, self.width - first)
            start = first * self.bits // 8
            spread = np.unpackbits(
                body[start:], count=count * self.bits, bitorder="little"
            ).reshape(count, self.bits)
            for bit in range(self.bits):
                out[first : first + count] |= spread[:, bit].astype(np.uint32) << np.uint32(bit)
        return out

    def _header(self, client: int) -> bytes:
        return HEADER.pack(MAGIC, VERSION, self.bits, self.dimension, client, 0)


@lru_cache(maxsize=1 << 14)
def _chosen(
    context: bytes, clients: int, neighbours: int, number: int, choice: bytes
) -> frozenset[int]:
    """Draw without replacement from words of SHAKE-256; words that would favour some are passed over."""
    name = digest_of(b"neighbours", context, number.to_bytes(4, "big"), choice)
    others = clients - 1
    found = set[int]()
    block = 0
    top = 2**64 - 2**64 % others
    while len(found) < neighbours:
        words = hashlib.shake_256(name + block.to_bytes(4, "big")).digest(16 * neighbours)
        for word in np.frombuffer(words, dtype="<u8").tolist():
            if word < top and len(found) < neighbours:
                place = word % others + 1
                found.add(place + (place >= number))
        block += 1
    return frozenset(found)
