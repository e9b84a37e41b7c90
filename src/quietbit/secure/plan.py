"""What all parties of a masked sum agree on before it starts, and the bytes of a masked vector.

Idea     n clients send bits, so sums are at most n: ceil(log2(n + 1)) bits per coordinate hold them, and masks live
         modulo that power of two. The threshold says how many must stay to the end.
Symbols  n = clients; t = threshold; d = dimension; k = bits; a masked vector is ceil(k d / 8) bytes after 24 of header.
Source   Bonawitz et al., "Practical secure aggregation" (CCS 2017).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import final

import numpy as np

from quietbit._validate import QuietbitError, require, whole_number
from quietbit.secure.keys import Mask

__all__ = ["MASKED_HEADER_SIZE", "ProtocolError", "SumPlan", "bits_for"]

MAGIC = b"QBSA"
VERSION = 1
HEADER = struct.Struct("<4sHHQII")  # magic, version, bits, dimension, client, zero
MASKED_HEADER_SIZE = HEADER.size
CHUNK = 1 << 16  # coordinates packed together; a multiple of 8
MOST_CLIENTS = 100_000


class ProtocolError(QuietbitError, RuntimeError):
    """A round that cannot go on without giving up secrecy or exactness; nothing was revealed."""


def bits_for(clients: int) -> int:
    """The bits of a sum of that many ones: ceil(log2(clients + 1)).

    >>> bits_for(1), bits_for(1000), bits_for(1023), bits_for(1024)
    (1, 10, 10, 11)
    """
    return whole_number(clients, "clients", 1, MOST_CLIENTS).bit_length()


@final
@dataclass(frozen=True, slots=True)
class SumPlan:
    """One masked sum: ``round_name`` is public, of 1 to 64 bytes, and never used twice.

    ``threshold`` is how many clients must send their masked vector and help to unmask, more than half of ``clients``:
    then no set of clients that each answer once can give up both secrets of one client, as long as fewer than
    2 threshold - clients collude with the server.
    """

    clients: int
    threshold: int
    dimension: int
    round_name: bytes

    def __post_init__(self) -> None:
        """Refuse thresholds that cannot protect and names that are none."""
        clients = whole_number(self.clients, "clients", 2, MOST_CLIENTS)
        whole_number(self.threshold, "threshold", clients // 2 + 1, clients)
        whole_number(self.dimension, "dimension", 1, 2**40)
        fine = isinstance(self.round_name, bytes) and 1 <= len(self.round_name) <= 64
        require(fine, "round_name", self.round_name, "1 to 64 bytes")

    @property
    def bits(self) -> int:
        """Bits per coordinate on the wire."""
        return bits_for(self.clients)

    @property
    def payload_size(self) -> int:
        """Bytes of a masked vector."""
        return MASKED_HEADER_SIZE + (self.bits * self.dimension + 7) // 8

    @property
    def most_colluders(self) -> int:
        """How many clients may collude with the server without voiding secrecy."""
        return 2 * self.threshold - self.clients - 1

    @property
    def context(self) -> bytes:
        """All public choices, bound into every key."""
        numbers = struct.pack("<IIQ", self.clients, self.threshold, self.dimension)
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
