"""What clients and server of a masked sum agree on before it starts, and a masked vector's bytes.

Idea     n clients send one-bit codes, so sums are at most n: ceil(log2(n + 1)) bits per
         coordinate hold them, and masks are modulo that power of two. The
         threshold is the number of clients that must stay to the end. All choices enter one digest
         (`SumPlan.context`), and everything that clients derive or sign depends on it.
Symbols  n = clients; t = threshold; d = dimension; b = bits; C: clients that
         collude with the server. A masked vector is a header of 24 bytes and ceil(b (d + g) / 8)
         bytes. The guard, g coordinates of at least 64 bits together, is zero in every vector; a
         sum whose guard is not zero is wrong.
Source   Bonawitz et al., "Practical secure aggregation" (CCS 2017).
         docs/theory/secure-aggregation.md, "Masks", has both server models and the proofs.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any, final

import numpy as np
from attrs import field, frozen

from quietbit.errors import CheckedEnum, QuietbitError, check_int, require
from quietbit.secagg.identity import PUBLIC_SIZE, SIGNATURE_SIZE
from quietbit.secagg.keys import KEY_SIZE, SHARE_SIZE, Mask
from quietbit.target import MOST_CLIENTS

__all__ = [
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
    "plan_of_round",
]

MAGIC = b"QBSA"
VERSION = 4
HEADER = struct.Struct("<4sHHQII")  # magic, version, bits, dimension, client, zero
MASKED_HEADER_SIZE = HEADER.size
CHUNK = 1 << 16  # coordinates packed together; a multiple of 8
GUARD_BITS = 64
SEED_COMMITMENT_SIZE = 32
TAG_SIZE = 16  # of a seal
COMMITMENT_SIZE = 16  # to a share
SEALED_SIZE = 2 * SHARE_SIZE + TAG_SIZE  # shares of both secrets, sealed
DEALT_SIZE = SEALED_SIZE + 2 * COMMITMENT_SIZE  # what a client deals to another


class ProtocolError(QuietbitError, RuntimeError):
    """A round that cannot continue with secrecy and exactness; nothing was revealed."""


class ServerModel(CheckedEnum):
    """The server that a sum is secret from: one that follows the protocol, or one that may lie."""

    HONEST_BUT_CURIOUS = "honest-but-curious"
    ACTIVE = "active"


def bits_for(clients: int) -> int:
    """Return the bits per coordinate of a sum of one-bit codes: ceil(log2(clients + 1)).

    >>> bits_for(1), bits_for(1000), bits_for(1023), bits_for(1024)
    (1, 10, 10, 11)
    """
    return check_int(clients, "clients", 1, MOST_CLIENTS).bit_length()


def masked_size(clients: int, dimension: int) -> int:
    """Return the bytes of a masked vector in a sum of ``clients``, with header and guard."""
    bits = bits_for(clients)
    width = check_int(dimension, "dimension", 1) + -(-GUARD_BITS // bits)
    return MASKED_HEADER_SIZE + (bits * width + 7) // 8


def check_enough(count: int, needed: int, what: str, more: str = "") -> None:
    """Raise `ProtocolError` where a count is below the threshold that it needs."""
    if count < needed:
        raise ProtocolError(f"Only {count} {what}; the threshold is {needed}.{more}")


def digest_of(purpose: bytes, *parts: bytes) -> bytes:
    """Return the digest of byte strings for one purpose; it depends on their lengths, too."""
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in (purpose, *parts))
    return hashlib.sha256(b"quietbit/secure/4/" + framed).digest()


def _members(keys: Iterable[bytes] | None) -> tuple[bytes, ...] | None:
    if keys is None:
        return None
    return tuple(keys)


@final
@frozen
class SumPlan:
    """The public choices of one masked sum.

    ``round_name`` has 1 to 64 bytes and must never be used twice. ``threshold`` clients must send
    their masked vector and help to unmask.

    ``members`` are the Ed25519 public keys of the clients, in the order of their numbers. With them
    the sum is secret from a server that lies (active), and ``threshold`` must be more than two
    thirds of ``clients``. Without them the server must follow the protocol (honest but curious),
    and more than half is enough. ``terms`` describe what is summed; they are required with
    ``members``, because a lying server could give some clients a mechanism without noise.
    """

    clients: int
    threshold: int
    dimension: int
    round_name: bytes
    members: tuple[bytes, ...] | None = field(default=None, repr=False, converter=_members)
    terms: bytes = field(default=b"", repr=False)

    def __attrs_post_init__(self) -> None:
        """Refuse thresholds that protect nothing, equal members, and missing names or terms."""
        clients = check_int(self.clients, "clients", 2, MOST_CLIENTS)
        least = clients // 2 + 1
        if self.active:
            least = 2 * clients // 3 + 1
        threshold = check_int(self.threshold, "threshold", 2, clients)
        rule = f"at least {least} of {clients} clients ({self.server.value} server)"
        require(threshold >= least, "threshold", threshold, rule)
        check_int(self.dimension, "dimension", 1, 2**40)
        is_name = isinstance(self.round_name, bytes) and 1 <= len(self.round_name) <= 64
        require(is_name, "round_name", self.round_name, "1 to 64 bytes")
        require(isinstance(self.terms, bytes), "terms", type(self.terms).__name__, "bytes")
        if self.members is not None:
            self._check_members(self.members)

    def _check_members(self, members: tuple[bytes, ...]) -> None:
        are_keys = all(isinstance(key, bytes) and len(key) == PUBLIC_SIZE for key in members)
        are_distinct = are_keys and len(set(members)) == len(members) == self.clients
        rule = f"{self.clients} different public keys, one for each client"
        require(are_distinct, "members", f"{len(members)} keys", rule)
        remedy = "give a description of the mechanism, at least"
        require(self.terms, "terms", self.terms, "given with members", remedy)

    @cached_property
    def context(self) -> bytes:
        """The digest of all public choices; all that clients derive or sign depends on it."""
        numbers = struct.pack(
            "<5Q",
            self.clients,
            self.threshold,
            self.dimension,
            1,  # the largest code
            int(self.active),
        )
        members = b"".join(self.members or ())
        return digest_of(b"plan", numbers, members, self.round_name, self.terms)

    @property
    def server(self) -> ServerModel:
        """The model of the server."""
        return ServerModel.HONEST_BUT_CURIOUS if self.members is None else ServerModel.ACTIVE

    @property
    def active(self) -> bool:
        """Whether the server may lie."""
        return self.members is not None

    @property
    def bits(self) -> int:
        """Bits per coordinate on the wire."""
        return bits_for(self.clients)

    @property
    def width(self) -> int:
        """Coordinates of a masked vector with its guard, which garbage passes with chance 2^-64."""
        return self.dimension + -(-GUARD_BITS // self.bits)

    @property
    def payload_size(self) -> int:
        """Bytes of a masked vector."""
        return masked_size(self.clients, self.dimension)

    @property
    def advertisement_size(self) -> int:
        """Bytes of an advertisement: two keys, a commitment, a signature."""
        return 2 * KEY_SIZE + SEED_COMMITMENT_SIZE + SIGNATURE_SIZE * self.active

    @property
    def uplink_size(self) -> int:
        """Bytes that a client sends in all if every client stays."""
        dealt = DEALT_SIZE * (self.clients - 1)
        unmasking = SHARE_SIZE * self.clients
        signatures = 2 * SIGNATURE_SIZE * self.active
        return self.advertisement_size + dealt + self.payload_size + signatures + unmasking

    @property
    def most_colluders(self) -> int:
        """C: the most clients that may collude with the server and learn nothing.

        In the active model, two sets of t clients that signed different lists have more than C
        members in common, and an honest client signs one list. With an honest-but-curious server,
        t - 1 clients hold too few shares.
        """
        if self.active:
            return 2 * self.threshold - self.clients - 1
        return self.threshold - 1

    def protects(self, colluders: int, honest: int) -> bool:
        """Return whether no client, and no sum of fewer than ``honest`` honest ones, is exposed."""
        check_int(colluders, "colluders", 0, self.clients)
        check_int(honest, "honest", 2, self.clients)
        return colluders <= self.most_colluders and honest <= self.threshold - colluders

    def bitmap(self, present: Collection[int]) -> bytes:
        """Return a set of clients as one bit per client."""
        marks = np.zeros(self.clients, dtype=np.uint8)
        marks[[number - 1 for number in present]] = 1
        return np.packbits(marks, bitorder="little").tobytes()

    def from_bitmap(self, data: bytes) -> frozenset[int]:
        """Return the set of a bitmap; refuse another length, and bits beyond the clients."""
        size = (self.clients + 7) // 8
        require(isinstance(data, bytes), "list of clients", type(data).__name__, "bytes")
        require(len(data) == size, "length of the list of clients", len(data), f"{size} bytes")
        marks = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        numbers = (np.flatnonzero(marks) + 1).tolist()
        are_clients = not numbers or numbers[-1] <= self.clients
        require(are_clients, "list of clients", numbers[-1:], f"of clients 1 to {self.clients}")
        return frozenset(numbers)

    def reduce(self, values: Mask) -> Mask:
        """Reduce modulo 2^bits, which divides 2^32: 32-bit sums may wrap before."""
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
        """Read the masked vector of a client; refuse anything that `pack` does not write."""
        size = self.payload_size
        require(len(data) == size, "length of the masked vector", len(data), f"{size} bytes")
        head = data[:MASKED_HEADER_SIZE]
        expected = self._header(client)
        rule = f"{expected.hex()}, that of client {client}"
        require(head == expected, "header of the masked vector", head.hex(), rule)
        body = np.frombuffer(data, dtype=np.uint8, offset=MASKED_HEADER_SIZE)
        used = self.bits * self.width % 8
        if used:
            padding = int(body[-1]) >> used
            require(padding == 0, "padding of the masked vector", padding, "zero")
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


def plan_of_round(
    *,
    run: int,
    round: int,
    codes: int,
    members: tuple[bytes, ...] | None,
    clients: int,
    threshold: int,
    honest: int,
    server: str,
    **asked: Any,
) -> SumPlan:
    """Return the plan of the sum of a run's round; server and clients make it of the same values.

    ``codes`` is how many codes a client sends, and ``asked`` what else all clients are asked
    alike: dimension, mechanism, clip, unit, adjacency, epsilon and delta. It becomes the terms.
    """
    sizes = {"clients": clients, "threshold": threshold, "honest": honest, "server": server}
    terms = {"run": run, "round": round, "sum": sizes, **asked}
    text = json.dumps(terms, sort_keys=True, separators=(",", ":"), allow_nan=False)
    name = f"quietbit/{run}/{round}".encode()
    return SumPlan(clients, threshold, codes, name, members, text.encode("ascii"))
