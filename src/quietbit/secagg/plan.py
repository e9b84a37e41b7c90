"""What all parties of a masked sum agree on before it starts, and the bytes of a masked vector.

Idea     n clients send codes 0 .. c, so sums are at most c n: ceil(log2(c n + 1)) bits per coordinate hold them (c = 1
         for one bit), and masks live modulo that power of two. The threshold says how many must stay to the end.
Symbols  n = clients; t = threshold; d = dimension; k = bits; c = largest_code; a masked vector is
         ceil(k d / 8) bytes after 24 of header.
         With neighbours, client i shares masks and secrets only with i +- 1 .. i +- neighbours/2, in a circle.
Source   Bonawitz et al., "Practical secure aggregation" (CCS 2017); Bell et al., "Secure single-server aggregation with
         (poly)logarithmic overhead" (CCS 2020) for the circle, whose places must be given out at random.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from quietbit._validate import QuietbitError, require, whole_number
from quietbit.secagg.keys import KEYS_SIZE, SEALED_SIZE, Mask
from quietbit.secagg.shamir import SHARE_SIZE

__all__ = ["MASKED_HEADER_SIZE", "ProtocolError", "SumPlan", "bits_for", "masked_size", "neighbours_for"]

MAGIC = b"QBSA"
VERSION = 1
HEADER = struct.Struct("<4sHHQII")  # magic, version, bits, dimension, client, zero
MASKED_HEADER_SIZE = HEADER.size
CHUNK = 1 << 16  # coordinates packed together; a multiple of 8
MOST_CLIENTS = 100_000
MOST_CODE = 255  # of eight bits: sums stay well below 2^32


class ProtocolError(QuietbitError, RuntimeError):
    """A round that cannot go on without giving up secrecy or exactness; nothing was revealed."""


def bits_for(clients: int, largest_code: int = 1) -> int:
    """The bits of a sum of that many codes, none above ``largest_code``: ceil(log2(clients * largest_code + 1)).

    >>> bits_for(1), bits_for(1000), bits_for(1023), bits_for(1024), bits_for(1000, 3)
    (1, 10, 10, 11, 12)
    """
    count = whole_number(clients, "clients", 1, MOST_CLIENTS)
    return (count * whole_number(largest_code, "largest_code", 1, MOST_CODE)).bit_length()


def masked_size(clients: int, dimension: int, largest_code: int = 1) -> int:
    """Bytes of a masked vector in a sum over that many clients, header included."""
    return MASKED_HEADER_SIZE + (bits_for(clients, largest_code) * whole_number(dimension, "dimension", 1) + 7) // 8


@final
@dataclass(frozen=True, slots=True)
class SumPlan:
    """One masked sum: ``round_name`` is public, of 1 to 64 bytes, and never used twice.

    ``threshold`` is how many clients must send their masked vector and help to unmask, more than half of ``clients``:
    then no set of clients that each answer once can give up both secrets of one client, as long as fewer than
    2 threshold - clients collude with the server. ``largest_code`` is 1 for one-bit codes, 2^b - 1 for b bits: sums of
    codes say what the mean is only where code j stands for a value that is linear in j.

    ``neighbours``, an even number, makes keys and shares cheap for many clients: each deals with so many others, and
    ``share_threshold`` of itself and them recover its secrets. Numbers must then be given out at random, not by the
    clients' choice, and the server must be honest, if curious; `exposure_upper` says how much is left to chance.
    """

    clients: int
    threshold: int
    dimension: int
    round_name: bytes
    largest_code: int = 1
    neighbours: int | None = None
    share_threshold: int | None = None

    def __post_init__(self) -> None:
        """Refuse thresholds that cannot protect and names that are none."""
        clients = whole_number(self.clients, "clients", 2, MOST_CLIENTS)
        whole_number(self.threshold, "threshold", clients // 2 + 1, clients)
        whole_number(self.dimension, "dimension", 1, 2**40)
        whole_number(self.largest_code, "largest_code", 1, MOST_CODE)
        given = (self.neighbours is None, self.share_threshold is None)
        require(given[0] == given[1], "neighbours and share_threshold", given, "both given or both left out")
        if self.neighbours is not None:
            near = whole_number(self.neighbours, "neighbours", 2, clients - 1)
            require(near % 2 == 0, "neighbours", near, "an even number")
            whole_number(self.share_threshold, "share_threshold", near // 2 + 1, near + 1)
        fine = isinstance(self.round_name, bytes) and 1 <= len(self.round_name) <= 64
        require(fine, "round_name", self.round_name, "1 to 64 bytes")

    @property
    def bits(self) -> int:
        """Bits per coordinate on the wire."""
        return bits_for(self.clients, self.largest_code)

    @property
    def payload_size(self) -> int:
        """Bytes of a masked vector."""
        return masked_size(self.clients, self.dimension, self.largest_code)

    @property
    def uplink_size(self) -> int:
        """Bytes that a client sends in all: two keys, sealed shares, the masked vector, shares to unmask."""
        others = self.clients - 1 if self.neighbours is None else self.neighbours
        return KEYS_SIZE + SEALED_SIZE * others + self.payload_size + SHARE_SIZE * (others + 1)

    @property
    def shares_needed(self) -> int:
        """How many shares recover a secret."""
        return self.threshold if self.share_threshold is None else self.share_threshold

    def holders(self, number: int, present: Collection[int]) -> list[int]:
        """Who holds shares of a client's secrets, itself included: those present, or its neighbours among them."""
        if self.neighbours is None:
            return sorted(present)
        half, size = self.neighbours // 2, self.clients
        near = {(number - 1 + step) % size + 1 for step in range(-half, half + 1)}
        return sorted(near & set(present))

    def exposure_upper(self, colluders: int, gone: int) -> float:
        """The chance that a random numbering leaves some client exposed, from above.

        ``colluders`` clients share what they know with the honest but curious server; ``gone`` others leave. Without
        neighbours it is 0 below the threshold. With them, either a client's colluding neighbours alone could recover
        its secrets (hypergeometric, for any of n clients), or the honest ones that stay fall apart, and the sum with
        them: that takes two gaps of neighbours/2 places each, n (n - 1)/2 ways, all colluders' or empty.
        """
        bad, left = whole_number(colluders, "colluders", 0, self.clients), whole_number(gone, "gone", 0, self.clients)
        if self.neighbours is None:
            return 0.0 if bad < self.threshold else 1.0
        near, everybody = self.neighbours, self.clients
        overrun = _tail(everybody - 1, min(bad, everybody - 1), near, self.shares_needed)
        removed = math.comb(min(bad + left, everybody), near)
        apart = math.comb(everybody, 2) * Fraction(removed, math.comb(everybody, near))
        return min(1.0, float(everybody * overrun + apart) * (1 + 1e-12))

    @property
    def most_colluders(self) -> int:
        """How many clients may collude with a server that follows the protocol without voiding secrecy.

        Without neighbours; with them see `exposure_upper`. A server that tells clients different lists of who is left
        is not covered, whatever the number: it can have both secrets of one client recovered.
        """
        return 2 * self.threshold - self.clients - 1

    @property
    def context(self) -> bytes:
        """All public choices, bound into every key."""
        near = (self.neighbours or 0, self.share_threshold or 0)
        numbers = struct.pack("<IIQIII", self.clients, self.threshold, self.dimension, self.largest_code, *near)
        return numbers + self.round_name

    def reduce(self, values: Mask) -> Mask:
        """Whole numbers modulo 2^bits; 2^bits divides 2^32, so 32-bit sums may wrap first."""
        return values & np.uint32(2**self.bits - 1)

    def pack(self, client: int, values: Mask) -> bytes:
        """The bytes of a masked vector: coordinate i has bits [i k, (i+1) k), least significant first."""
        head = HEADER.pack(MAGIC, VERSION, self.bits, self.dimension, client, 0)
        shifts = np.arange(self.bits, dtype=np.uint32)
        parts = [head]
        for first in range(0, self.dimension, CHUNK):
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
        used = self.bits * self.dimension % 8
        require(not used or int(body[-1]) >> used == 0, "padding of the masked vector", int(body[-1]), "zero")
        out = np.zeros(self.dimension, dtype=np.uint32)
        step = CHUNK * self.bits // 8
        for number, first in enumerate(range(0, self.dimension, CHUNK)):
            count = min(CHUNK, self.dimension - first)
            piece = body[number * step : (number + 1) * step]
            spread = np.unpackbits(piece, count=count * self.bits, bitorder="little").reshape(count, self.bits)
            for bit in range(self.bits):
                out[first : first + count] |= spread[:, bit].astype(np.uint32) << np.uint32(bit)
        return out


def neighbours_for(
    clients: int, colluders: int, gone: int, *, risk: float = 2.0**-40, failures: float = 1e-3
) -> tuple[int, int] | None:
    """The fewest neighbours and their share threshold for which both chances are small; None where all are needed.

    With so many ``colluders`` and ``gone`` at most, `SumPlan.exposure_upper` is at most ``risk``, and a round fails for
    want of shares, closed, with a chance of at most ``failures``.

    >>> neighbours_for(1000, 50, 50)
    (22, 15)
    """
    count = whole_number(clients, "clients", 2, MOST_CLIENTS)
    missing = whole_number(gone, "gone", 0, count)
    for near in range(2, count - 1, 2):
        for needed in range(near // 2 + 1, near + 2):
            plan = SumPlan(count, count // 2 + 1, 1, b"sizes", 1, near, needed)
            if plan.exposure_upper(colluders, missing) <= risk:
                # Of a client's near + 1 holders, itself among them, at least ``needed`` must stay; one that has left
                # holds its own share no more, and its pair key is needed all the same.
                stay = (count - missing) * _tail(count - 1, min(missing, count - 1), near, near + 2 - needed)
                left = missing * _tail(count - 1, max(missing - 1, 0), near, near + 1 - needed)
                if stay + left <= failures:
                    return near, needed
                break  # a larger threshold only makes failures likelier
    return None


def _tail(others: int, marked: int, drawn: int, least: int) -> Fraction:
    """P(at least ``least`` marked ones among ``drawn`` of ``others``), exactly."""
    ways = sum(math.comb(marked, j) * math.comb(others - marked, drawn - j) for j in range(least, drawn + 1))
    return Fraction(ways, math.comb(others, drawn))
