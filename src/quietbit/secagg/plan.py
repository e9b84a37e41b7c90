"""What all parties of a masked sum agree on before it starts, and the bytes of a masked vector.

Idea     n clients send codes 0 .. c, so sums are at most c n: ceil(log2(c n + 1)) bits per coordinate hold them (c = 1
         for one bit), and masks live modulo that power of two. The threshold says how many must stay to the end.
Symbols  n = clients; t = threshold; d = dimension; b = bits; c = largest_code; k = neighbours, s = share_threshold;
         C: clients that collude with the server. A masked vector is ceil(b (d + g) / 8) bytes after 24 of header; the
         guard, g coordinates of at least 64 bits together, is zero in every vector, so that a sum in which it is not
         is known to be wrong.
Source   Bonawitz et al., "Practical secure aggregation" (CCS 2017); Bell et al., "Secure single-server aggregation with
         (poly)logarithmic overhead" (CCS 2020), whose clients choose their own neighbours in the active model.

Two models of the server. *Honest but curious*: it follows the protocol and looks at all it sees. *Active*: it lies to
whom it likes as it likes; then members must have identities (`quietbit.secagg.identity`), and t > 2n/3.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import final

import numpy as np
from scipy.special import gammaln, logsumexp

from quietbit._typing import FloatVector
from quietbit.errors import QuietbitError, check_int, require
from quietbit.secagg.identity import PUBLIC_SIZE, SIGNATURE_SIZE
from quietbit.secagg.keys import KEY_SIZE, TAG_SIZE, Mask
from quietbit.secagg.shamir import SHARE_SIZE

__all__ = [
    "CHOICE_SIZE", "COMMITMENT_SIZE", "DEALT_SIZE", "MASKED_HEADER_SIZE", "SEALED_SIZE", "ProtocolError", "ServerModel",
    "SumPlan", "bits_for", "guard_for", "masked_size", "neighbours_for",
]  # fmt: skip

MAGIC = b"QBSA"
VERSION = 2
HEADER = struct.Struct("<4sHHQII")  # magic, version, bits, dimension, client, zero
MASKED_HEADER_SIZE = HEADER.size
CHUNK = 1 << 16  # coordinates packed together; a multiple of 8
MOST_CLIENTS = 100_000
MOST_CODE = 255  # of eight bits: sums stay well below 2^32
GUARD_BITS = 64
CHOICE_SIZE = 16  # what a client's neighbours are drawn from
SEED_COMMITMENT_SIZE = 32
COMMITMENT_SIZE = 16  # to a share
SEALED_SIZE = 2 * SHARE_SIZE + TAG_SIZE  # shares of both secrets and the seal
DEALT_SIZE = SEALED_SIZE + 2 * COMMITMENT_SIZE  # what a client deals to another
SLACK = 1e-7  # above every rounding of the logarithm of a chance


class ProtocolError(QuietbitError, RuntimeError):
    """A round that cannot go on without giving up secrecy or exactness; nothing was revealed."""


class ServerModel(Enum):
    """What a sum is secret from, beside fewer colluding clients than its plan allows."""

    HONEST_BUT_CURIOUS = "honest-but-curious"
    ACTIVE = "active"


def bits_for(clients: int, largest_code: int = 1) -> int:
    """The bits of a sum of that many codes, none above ``largest_code``: ceil(log2(clients * largest_code + 1)).

    >>> bits_for(1), bits_for(1000), bits_for(1023), bits_for(1024), bits_for(1000, 3)
    (1, 10, 10, 11, 12)
    """
    count = check_int(clients, "clients", 1, MOST_CLIENTS)
    return (count * check_int(largest_code, "largest_code", 1, MOST_CODE)).bit_length()


def guard_for(clients: int, largest_code: int = 1) -> int:
    """How many coordinates of zeros guard a sum: garbage passes with a chance of at most 2^-64.

    >>> guard_for(1000), guard_for(2)
    (7, 32)
    """
    return -(-GUARD_BITS // bits_for(clients, largest_code))


def masked_size(clients: int, dimension: int, largest_code: int = 1) -> int:
    """Bytes of a masked vector in a sum over that many clients, header and guard included."""
    width = check_int(dimension, "dimension", 1) + guard_for(clients, largest_code)
    return MASKED_HEADER_SIZE + (bits_for(clients, largest_code) * width + 7) // 8


@final
@dataclass(frozen=True, slots=True)
class SumPlan:
    """One masked sum: ``round_name`` is public, of 1 to 64 bytes, and never used twice.

    ``members`` are the Ed25519 public keys of the clients, in the order of their numbers: with them the sum is secret
    from a server that lies, and ``threshold`` must be more than two thirds of ``clients``. Without them the server must
    follow the protocol (honest but curious), and more than half will do. ``threshold`` is how many clients must send
    their masked vector and help to unmask. ``largest_code`` is 1 for one-bit codes, 2^b - 1 for b bits: sums of
    codes say what the mean is only where code j stands for a value that is linear in j.

    ``neighbours`` makes keys and shares cheap for many clients: each draws so many others by itself, which deals it
    masks and shares, and ``share_threshold`` of itself and them recover its secrets; `exposure_upper` says how much is
    left to chance.
    """

    clients: int
    threshold: int
    dimension: int
    round_name: bytes
    largest_code: int = 1
    neighbours: int | None = None
    share_threshold: int | None = None
    members: tuple[bytes, ...] | None = field(default=None, repr=False)
    context: bytes = field(init=False, repr=False, compare=False)  # all public choices, bound into every key

    def __post_init__(self) -> None:
        """Refuse thresholds that cannot protect, members that are not distinct, and names that are none."""
        clients = check_int(self.clients, "clients", 2, MOST_CLIENTS)
        least = clients // 2 + 1 if self.members is None else 2 * clients // 3 + 1
        check_int(self.threshold, f"threshold ({self.server.value} server)", least, clients)
        check_int(self.dimension, "dimension", 1, 2**40)
        check_int(self.largest_code, "largest_code", 1, MOST_CODE)
        given = (self.neighbours is None, self.share_threshold is None)
        require(given[0] == given[1], "neighbours and share_threshold", given, "both given or both left out")
        if self.neighbours is not None:
            near = check_int(self.neighbours, "neighbours", 2, clients - 1)
            check_int(self.share_threshold, "share_threshold", 2, near + 1)
        fine = isinstance(self.round_name, bytes) and 1 <= len(self.round_name) <= 64
        require(fine, "round_name", self.round_name, "1 to 64 bytes")
        if self.members is not None:
            found = tuple(self.members)
            fine = all(isinstance(key, bytes) and len(key) == PUBLIC_SIZE for key in found)
            fine = fine and len(found) == len(set(found)) == clients
            require(fine, "members", f"{len(found)} keys", f"{clients} different public keys, one for each client")
            object.__setattr__(self, "members", found)
        rest = (self.neighbours or 0, self.share_threshold or 0, int(self.members is not None))
        numbers = struct.pack("<IIQIIII", self.clients, self.threshold, self.dimension, self.largest_code, *rest)
        data = numbers + b"".join(self.members or ()) + self.round_name
        object.__setattr__(self, "context", hashlib.sha256(b"quietbit/secure/2/plan" + data).digest())

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
    def guard(self) -> int:
        """Coordinates of zeros behind the codes."""
        return guard_for(self.clients, self.largest_code)

    @property
    def width(self) -> int:
        """Coordinates of a masked vector, the guard's included."""
        return self.dimension + self.guard

    @property
    def payload_size(self) -> int:
        """Bytes of a masked vector."""
        return masked_size(self.clients, self.dimension, self.largest_code)

    @property
    def advertisement_size(self) -> int:
        """Bytes of an advertisement: two keys, a commitment, the choice of neighbours, a signature."""
        choice = 0 if self.neighbours is None else CHOICE_SIZE
        return 2 * KEY_SIZE + SEED_COMMITMENT_SIZE + choice + (SIGNATURE_SIZE if self.active else 0)

    @property
    def uplink_size(self) -> int:
        """Bytes that a client sends in all, where everybody stays; with neighbours the mean over clients.

        The advertisement, what is dealt to others, the masked vector, one share for every secret held, and in the
        active model two more signatures.
        """
        others = self.clients - 1 if self.neighbours is None else self.neighbours
        signatures = 2 * SIGNATURE_SIZE if self.active else 0
        return (
            self.advertisement_size + DEALT_SIZE * others + self.payload_size + SHARE_SIZE * (others + 1) + signatures
        )

    @property
    def shares_needed(self) -> int:
        """How many shares recover a secret."""
        return self.threshold if self.share_threshold is None else self.share_threshold

    def chosen(self, number: int, choice: bytes) -> frozenset[int]:
        """The others that client ``number`` deals with by its own choice: all, or as many as `neighbours` says.

        A choice is drawn by the client when the plan, members included, is fixed, so that nobody else can steer it.
        """
        if self.neighbours is None:
            return frozenset(range(1, self.clients + 1)) - {number}
        found: set[int] = set()
        name = b"quietbit/secure/2/neighbours" + self.context + number.to_bytes(4, "big") + choice
        others, size = self.clients - 1, 64 * self.neighbours
        while len(found) < self.neighbours:
            words = np.frombuffer(hashlib.shake_256(name).digest(size), dtype="<u8")[len(found) :]
            for word in words.tolist():
                if word < 2**64 - 2**64 % others:
                    place = word % others + 1
                    found.add(place + (place >= number))
                if len(found) == self.neighbours:
                    break
            name += b"+"
        return frozenset(found)

    def exposure_upper(self, colluders: int, honest: int) -> float:
        """The chance that a sum over fewer than ``honest`` honest clients can be unmasked, from above.

        Without neighbours it is 0 up to `most_colluders` and t - C honest clients, and 1 beyond. With them see the
        theory page: a set of ``a`` honest clients is exposed only if of everybody's own k choices at least s - 1 are in
        the set or collude, and all are in the set, collude or are gone, whom the server may pick (n - t) when it
        knows the choices. So ``honest`` must stay a little below t - C: one client can always be left out.
        """
        bad, everybody = check_int(colluders, "colluders", 0, self.clients), self.clients
        if bad > self.most_colluders or check_int(honest, "honest", 2, everybody) > self.threshold - bad:
            return 1.0
        if self.neighbours is None:
            return 0.0
        near, needed, gone = self.neighbours, self.shares_needed, everybody - self.threshold
        sizes = np.arange(1, honest, dtype=np.float64)  # honest clients of a sum that is too small
        ways = _log_choose(everybody - bad, sizes)
        held = _log_tail(everybody - 1, sizes - 1 + bad, near, needed - 1)
        apart = np.minimum(sizes - 1 + bad + gone, everybody - 1)
        closed = np.minimum(0.0, _log_choose(apart, near) - _log_choose(everybody - 1, near) + SLACK)
        by_gone = _log_choose(everybody - bad - sizes, gone) + sizes * closed
        total = logsumexp(ways + np.minimum(sizes * held, by_gone) + SLACK)
        return math.exp(min(0.0, float(total) + SLACK))

    @property
    def most_colluders(self) -> int:
        """C: how many clients may collude with the server and learn nothing; with neighbours see `exposure_upper`.

        Of an active server 2 t - n - 1: two sets of t that signed different lists would have more members in common
        than collude, and an honest client signs one list. Of one that follows the protocol t - 1: so many hold too few
        shares. What is left of the sum is of t - C honest clients at least.
        """
        return 2 * self.threshold - self.clients - 1 if self.active else self.threshold - 1

    def bitmap(self, present: Collection[int]) -> bytes:
        """A set of clients, one bit each."""
        marks = np.zeros(self.clients, dtype=np.uint8)
        marks[[number - 1 for number in present]] = 1
        return np.packbits(marks, bitorder="little").tobytes()

    def from_bitmap(self, data: bytes) -> frozenset[int]:
        """The set of a bitmap; one of another length, or with bits beyond the clients, is refused."""
        size = (self.clients + 7) // 8
        require(len(data) == size, "length of the list of clients", len(data), f"{size} bytes")
        marks = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        require(not marks[self.clients :].any(), "list of clients", "others", f"of clients 1 to {self.clients}")
        return frozenset((np.flatnonzero(marks) + 1).tolist())

    def reduce(self, values: Mask) -> Mask:
        """Whole numbers modulo 2^bits; 2^bits divides 2^32, so 32-bit sums may wrap first."""
        return values & np.uint32(2**self.bits - 1)

    def pack(self, client: int, values: Mask) -> bytes:
        """The bytes of a masked vector: coordinate i has bits [i k, (i+1) k), least significant first."""
        head = HEADER.pack(MAGIC, VERSION, self.bits, self.dimension, client, 0)
        shifts = np.arange(self.bits, dtype=np.uint32)
        parts = [head]
        for first in range(0, self.width, CHUNK):
            spread = (values[first : first + CHUNK, None] >> shifts) & np.uint32(1)
            parts.append(np.packbits(spread.astype(np.uint8), axis=None, bitorder="little").tobytes())
        return b"".join(parts)

    def unpack(self, client: int, data: bytes) -> Mask:
        """The masked vector of a client; anything but exactly what `pack` writes is refused."""
        require(len(data) == self.payload_size, "length of the masked vector", len(data), f"{self.payload_size} bytes")
        expected = HEADER.pack(MAGIC, VERSION, self.bits, self.dimension, client, 0)
        require(
            data[:MASKED_HEADER_SIZE] == expected,
            "header of the masked vector",
            data[:MASKED_HEADER_SIZE],
            "this round's",
        )
        body = np.frombuffer(data, dtype=np.uint8, offset=MASKED_HEADER_SIZE)
        used = self.bits * self.width % 8
        require(not used or int(body[-1]) >> used == 0, "padding of the masked vector", int(body[-1]), "zero")
        out = np.zeros(self.width, dtype=np.uint32)
        step = CHUNK * self.bits // 8
        for number, first in enumerate(range(0, self.width, CHUNK)):
            count = min(CHUNK, self.width - first)
            piece = body[number * step : (number + 1) * step]
            spread = np.unpackbits(piece, count=count * self.bits, bitorder="little").reshape(count, self.bits)
            for bit in range(self.bits):
                out[first : first + count] |= spread[:, bit].astype(np.uint32) << np.uint32(bit)
        return out


def neighbours_for(
    clients: int,
    colluders: int,
    gone: int,
    honest: int | None = None,
    *,
    risk: float = 2.0**-40,
    failures: float = 1e-3,
    active: bool = True,
) -> tuple[int, int] | None:
    """The fewest neighbours and their share threshold for which both chances are small; None where all are needed.

    With so many ``colluders`` at most and a threshold of ``clients`` - ``gone``, `SumPlan.exposure_upper` is at most
    ``risk`` for sums of ``honest`` honest clients (unless said, nine tenths of those who must be left), and a round in
    which that many leave at random fails for want of shares, closed, with a chance of at most ``failures``.

    >>> neighbours_for(1000, 50, 50)
    (25, 17)
    """
    count = check_int(clients, "clients", 2, MOST_CLIENTS)
    missing, bad = check_int(gone, "gone", 0, count), check_int(colluders, "colluders", 0, count)
    counted = max(2, 9 * (count - missing - bad) // 10) if honest is None else honest
    members = tuple(number.to_bytes(PUBLIC_SIZE, "big") for number in range(count)) if active else None
    for near in range(2, count // 2):
        for needed in range(2, near + 2):
            # One client alone is the likeliest to be exposed: a quick look before the sum over all sizes.
            if (count - bad) * _tail(count - 1, min(bad, count - 1), near, needed - 1) > risk:
                continue
            # Of a client's near + 1 holders, itself among them, at least ``needed`` must stay; one that has left
            # holds its own share no more, and its pair key is needed all the same.
            stay = (count - missing) * _tail(count - 1, min(missing, count - 1), near, near + 2 - needed)
            left = missing * _tail(count - 1, max(missing - 1, 0), near, near + 1 - needed)
            if stay + left > failures:
                break  # a larger threshold only makes failures likelier
            plan = SumPlan(count, count - missing, 1, b"sizes", 1, near, needed, members)
            if plan.exposure_upper(bad, counted) <= risk:
                return near, needed
    return None


def _tail(others: int, marked: int, drawn: int, least: int) -> Fraction:
    """P(at least ``least`` marked ones among ``drawn`` of ``others``), exactly."""
    ways = sum(math.comb(marked, j) * math.comb(others - marked, drawn - j) for j in range(least, drawn + 1))
    return Fraction(ways, math.comb(others, drawn))


def _log_choose(many: FloatVector | int, few: FloatVector | int) -> FloatVector:
    """The logarithm of C(many, few), -inf where there is no way."""
    n, k = np.broadcast_arrays(np.asarray(many, dtype=np.float64), np.asarray(few, dtype=np.float64))
    fine = (k >= 0) & (k <= n)
    n, k = np.where(fine, n, 0.0), np.where(fine, k, 0.0)
    return np.where(fine, gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), -np.inf)


def _log_tail(others: int, marked: FloatVector, drawn: int, least: int) -> FloatVector:
    """The logarithm of `_tail`, for many numbers of marked ones at once, from above."""
    inside = np.minimum(marked, others)
    terms = [_log_choose(inside, j) + _log_choose(others - inside, drawn - j) for j in range(max(0, least), drawn + 1)]
    if not terms:
        return np.full(inside.shape, -np.inf)
    found = logsumexp(np.stack(terms), axis=0) - _log_choose(others, drawn) + SLACK
    return np.asarray(np.minimum(found, 0.0))
