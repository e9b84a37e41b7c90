"""The 64 bytes before the codes: what they are, how many, for which mechanism, and whether they are whole.

Idea     every field is fixed before an update is seen, so a server compares 56 bytes with its own and has
         read nothing yet; the checksums catch accidents. Sizes are compared as numbers, never allocated.
Symbols  b = bits per code; d = number of codes, the dimension of the update (Skellam pads it to a power of
         two); the body has ceil(b d / 8) bytes. All numbers are little-endian.
Source   docs/reference/wire_format.md has every byte.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import NoReturn, final

from quietbit._validate import QuietbitError, require, whole_number
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.description import mechanism_identity

__all__ = ["FLOAT_BITS", "HEADER_SIZE", "MAGIC", "VERSION", "Header", "InvalidPayload", "refuse"]

MAGIC = b"QBIT"
VERSION = 1
FIELDS = struct.Struct("<4sHHQQ32s")  # magic, version, bits, dimension, length, identity
SEALS = struct.Struct("<II")  # checksum of the body, checksum of the 60 bytes before this one
HEADER_SIZE = FIELDS.size + SEALS.size
FLOAT_BITS = 32
WIDTHS = (*range(1, 17), FLOAT_BITS)


class InvalidPayload(QuietbitError, ValueError):
    """Bytes that are not a payload of the mechanism they are read for; nothing of them was used."""


def refuse(name: str, rule: str, found: object) -> NoReturn:
    """Raise the one sentence for a payload that is not accepted."""
    raise InvalidPayload(f"{name} must be {rule}, got {found}.")


@final
@dataclass(frozen=True, slots=True)
class Header:
    """What all payloads of one mechanism have in common.

    ``bits`` is 1 to 16, or 32 for floats; ``identity`` is 32 bytes that name the mechanism.

    >>> Header(bits=3, dimension=11, identity=bytes(32)).size
    69
    """

    bits: int
    dimension: int
    identity: bytes

    def __post_init__(self) -> None:
        """Refuse widths that are never sent, and numbers of codes that are none."""
        require(self.bits in WIDTHS, "bits", self.bits, "a whole number from 1 to 16, or 32")
        object.__setattr__(self, "bits", int(self.bits))
        object.__setattr__(self, "dimension", whole_number(self.dimension, "dimension", 1, MAX_DIMENSION))
        fine = isinstance(self.identity, bytes) and len(self.identity) == 32
        require(fine, "identity", self.identity, "32 bytes")

    @classmethod
    def of(cls, mechanism: Mechanism) -> Header:
        """The header of a mechanism's payloads."""
        return cls(mechanism.bits, mechanism.code_count, mechanism_identity(mechanism))

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return (self.bits * self.dimension + 7) // 8

    @property
    def size(self) -> int:
        """Bytes of a payload."""
        return HEADER_SIZE + self.length

    def fields(self) -> bytes:
        """The first 56 bytes, the same for every payload."""
        return FIELDS.pack(MAGIC, VERSION, self.bits, self.dimension, self.length, self.identity)

    def seal(self, body_checksum: int) -> bytes:
        """All 64 bytes for a body with this checksum."""
        partial = self.fields() + struct.pack("<I", body_checksum)
        return partial + struct.pack("<I", zlib.crc32(partial))

    @classmethod
    def parse(cls, head: bytes | memoryview) -> tuple[Header, int]:
        """The header and the body's checksum from the first bytes of a payload.

        Refused: fewer than 64 bytes, another magic or version, a header that fails its checksum, and fields
        that contradict each other.
        """
        if len(head) < HEADER_SIZE:
            refuse("length of the payload", f"at least {HEADER_SIZE} bytes", len(head))
        magic, version, bits, dimension, length, identity = FIELDS.unpack_from(head)
        body_checksum, header_checksum = SEALS.unpack_from(head, FIELDS.size)
        if magic != MAGIC:
            refuse("the first four bytes of the payload", f"{MAGIC!r}", repr(magic))
        if version != VERSION:
            refuse("version of the payload", f"{VERSION}", version)
        if zlib.crc32(memoryview(head)[: HEADER_SIZE - 4]) != header_checksum:
            refuse("checksum of the header", "that of the bytes before it", f"{header_checksum:#010x}")
        if bits not in WIDTHS:
            refuse("bits of the payload", "1 to 16, or 32", bits)
        if not 1 <= dimension <= MAX_DIMENSION:
            refuse("dimension of the payload", f"from 1 to {MAX_DIMENSION}", dimension)
        header = cls(bits, dimension, identity)
        if length != header.length:
            refuse("length written in the payload", f"{header.length} bytes", length)
        return header, body_checksum

    def expect(self, head: bytes | memoryview) -> int:
        """The body's checksum, after refusing everything that is not a header of this mechanism."""
        found, body_checksum = Header.parse(head)
        if found.bits != self.bits:
            refuse("bits of the payload", f"{self.bits}", found.bits)
        if found.dimension != self.dimension:
            refuse("dimension of the payload", f"{self.dimension}", found.dimension)
        if found.identity != self.identity:
            names = f"{self.identity.hex()[:16]}...", f"{found.identity.hex()[:16]}..."
            refuse("mechanism identity of the payload", *names)
        return body_checksum
