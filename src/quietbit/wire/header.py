"""The 64 bytes before the body: what it is, how long, for which mechanism, and whether it is whole.

Idea     every field is fixed before an update is seen, so a server compares 56 bytes with its own and has
         read nothing yet; the checksums catch accidents. Sizes are compared as numbers, never allocated.
Symbols  b = bits per code; d = number of codes, the dimension of the update (Skellam pads it to a power of
         two); the body has ceil(b d / 8) bytes. A body without codes has b = 0 and a length of its own, and is
         version 2. All numbers are little-endian.
Source   docs/reference/wire_format.md has every byte.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import final

from quietbit._validate import refuse_payload, require
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.mechanism.base import FLOAT_BITS, WIDTHS, Layout, Mechanism
from quietbit.mechanism.registry import identity_of

__all__ = ["FLOAT_BITS", "HEADER_SIZE", "MAGIC", "VERSIONS", "Header"]

MAGIC = b"QBIT"
CODES, OPAQUE = 1, 2  # versions: a body of packed codes, a body that its mechanism reads
VERSIONS = (CODES, OPAQUE)
FIELDS = struct.Struct("<4sHHQQ32s")  # magic, version, bits, dimension, length, identity
SEALS = struct.Struct("<II")  # checksum of the body, checksum of the 60 bytes before this one
HEADER_SIZE = FIELDS.size + SEALS.size
LONGEST_OPAQUE = 2**40


@final
@dataclass(frozen=True, slots=True)
class Header:
    """What all payloads of one mechanism have in common; ``identity`` is 32 bytes that name the mechanism.

    >>> Header(Layout.codes(3, 11), identity=bytes(32)).size
    69
    """

    layout: Layout
    identity: bytes
    _fields: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse an identity of another length."""
        fine = isinstance(self.identity, bytes) and len(self.identity) == 32
        require(fine, "identity", self.identity, "32 bytes")
        layout = self.layout
        given = (MAGIC, self.version, layout.bits, layout.count, layout.size, self.identity)
        object.__setattr__(self, "_fields", FIELDS.pack(*given))

    @classmethod
    def of(cls, mechanism: Mechanism) -> Header:
        """The header of a mechanism's payloads."""
        return cls(mechanism.layout, identity_of(mechanism))

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return self.layout.size

    @property
    def size(self) -> int:
        """Bytes of a payload."""
        return HEADER_SIZE + self.length

    @property
    def version(self) -> int:
        """1 for codes, 2 for a body that only its mechanism reads."""
        return CODES if self.layout.bits else OPAQUE

    def fields(self) -> bytes:
        """The first 56 bytes, the same for every payload."""
        return self._fields

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
            refuse_payload("length of the payload", f"at least {HEADER_SIZE} bytes", len(head))
        magic, version, bits, count, length, name = FIELDS.unpack_from(head)
        body_checksum, header_checksum = SEALS.unpack_from(head, FIELDS.size)
        if magic != MAGIC:
            refuse_payload("the first four bytes of the payload", f"{MAGIC!r}", repr(magic))
        if version not in VERSIONS:
            refuse_payload("version of the payload", " or ".join(map(str, VERSIONS)), version)
        if zlib.crc32(memoryview(head)[: HEADER_SIZE - 4]) != header_checksum:
            refuse_payload("checksum of the header", "that of the bytes before it", f"{header_checksum:#010x}")
        widths = WIDTHS if version == CODES else (0,)
        if bits not in widths:
            refuse_payload("bits of the payload", "1 to 16, or 32" if version == CODES else "0", bits)
        if not 1 <= count <= MAX_DIMENSION:
            refuse_payload("dimension of the payload", f"from 1 to {MAX_DIMENSION}", count)
        if version == OPAQUE and not 1 <= length <= LONGEST_OPAQUE:
            refuse_payload("length written in the payload", f"from 1 to {LONGEST_OPAQUE} bytes", length)
        layout = Layout.codes(bits, count) if version == CODES else Layout.opaque(count, length)
        if length != layout.size:
            refuse_payload("length written in the payload", f"{layout.size} bytes", length)
        return cls(layout, name), body_checksum

    def expect(self, head: bytes | memoryview) -> int:
        """The body's checksum, after refusing everything that is not a header of this mechanism."""
        if len(head) == HEADER_SIZE and head[: FIELDS.size] == self._fields:
            body_checksum, header_checksum = SEALS.unpack_from(head, FIELDS.size)
            if zlib.crc32(head[: HEADER_SIZE - 4]) == header_checksum:
                return int(body_checksum)
        # Something is wrong with it: find out what.
        found, body_checksum = Header.parse(head)
        mine, theirs = self.layout, found.layout
        for what, wanted, got in (
            ("bits of the payload", mine.bits, theirs.bits),
            ("dimension of the payload", mine.count, theirs.count),
            ("length written in the payload", mine.size, theirs.size),
        ):
            if wanted != got:
                refuse_payload(what, f"{wanted}", got)
        if found.identity != self.identity:
            names = f"{self.identity.hex()[:16]}...", f"{found.identity.hex()[:16]}..."
            refuse_payload("mechanism identity of the payload", *names)
        return body_checksum
