"""The bytes before the body: what it is, how long, for which mechanism, and whether it is whole.

Idea     every field is fixed before an update is seen, so a server compares them with its own and has read nothing
         yet; the checksums catch accidents. Sizes are compared as numbers, never allocated.
Symbols  b = bits per code; d = number of codes, the dimension of the update (Skellam pads it to a power of
         two); the body has ceil(b d / 8) bytes: version 1, 64 bytes of header. A body without codes has b = 0 and a
         length of its own: version 2, in which every byte counts, and 24 of the identity's 32 bytes make a header of
         56. All numbers are little-endian.
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

__all__ = ["FLOAT_BITS", "HEADER_SIZE", "MAGIC", "SHORT_SIZE", "VERSIONS", "Header"]

MAGIC = b"QBIT"
CODES, OPAQUE = 1, 2  # versions: a body of packed codes, a body that its mechanism reads
VERSIONS = (CODES, OPAQUE)
START = struct.Struct("<4sHHQQ")  # magic, version, bits, dimension, length; then the identity
SEALS = struct.Struct("<II")  # checksum of the body, checksum of all header bytes before this one
NAMES = {CODES: 32, OPAQUE: 24}  # bytes of the identity
HEADER_SIZE, SHORT_SIZE = (START.size + NAMES[version] + SEALS.size for version in VERSIONS)
LONGEST_OPAQUE = 2**40


@final
@dataclass(frozen=True, slots=True)
class Header:
    """What all payloads of one mechanism have in common; ``identity`` names the mechanism, in 32 bytes or in 24.

    >>> Header(Layout.codes(3, 11), identity=bytes(32)).size
    69
    """

    layout: Layout
    identity: bytes
    _fields: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse an identity of another length."""
        layout, length = self.layout, NAMES[self.version]
        fine = isinstance(self.identity, bytes) and len(self.identity) == length
        require(fine, "identity", self.identity, f"{length} bytes")
        start = START.pack(MAGIC, self.version, layout.bits, layout.count, layout.size)
        object.__setattr__(self, "_fields", start + self.identity)

    @classmethod
    def of(cls, mechanism: Mechanism) -> Header:
        """The header of a mechanism's payloads."""
        layout = mechanism.layout
        return cls(layout, identity_of(mechanism)[: NAMES[CODES if layout.bits else OPAQUE]])

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return self.layout.size

    @property
    def head(self) -> int:
        """Bytes of the header itself."""
        return len(self._fields) + SEALS.size

    @property
    def size(self) -> int:
        """Bytes of a payload."""
        return self.head + self.length

    @property
    def version(self) -> int:
        """1 for codes, 2 for a body that only its mechanism reads."""
        return CODES if self.layout.bits else OPAQUE

    def fields(self) -> bytes:
        """The bytes before the checksums, the same for every payload."""
        return self._fields

    def seal(self, body_checksum: int) -> bytes:
        """The whole header for a body with this checksum."""
        partial = self.fields() + struct.pack("<I", body_checksum)
        return partial + struct.pack("<I", zlib.crc32(partial))

    @classmethod
    def parse(cls, data: bytes | memoryview) -> tuple[Header, int]:
        """The header and the body's checksum from the first bytes of a payload.

        Refused: too few bytes, another magic or version, a header that fails its checksum, and fields that contradict
        each other.
        """
        if len(data) < SHORT_SIZE:
            refuse_payload("length of the payload", f"at least {SHORT_SIZE} bytes", len(data))
        magic, version, bits, count, length = START.unpack_from(data)
        if magic != MAGIC:
            refuse_payload("the first four bytes of the payload", f"{MAGIC!r}", repr(magic))
        if version not in VERSIONS:
            refuse_payload("version of the payload", " or ".join(map(str, VERSIONS)), version)
        end = START.size + NAMES[version]
        if len(data) < end + SEALS.size:
            refuse_payload("length of the payload", f"at least {end + SEALS.size} bytes", len(data))
        name = bytes(data[START.size : end])
        body_checksum, header_checksum = SEALS.unpack_from(data, end)
        if zlib.crc32(memoryview(data)[: end + 4]) != header_checksum:
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
        end = len(self._fields)
        if len(head) == end + SEALS.size and head[:end] == self._fields:
            body_checksum, header_checksum = SEALS.unpack_from(head, end)
            if zlib.crc32(head[: end + 4]) == header_checksum:
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
