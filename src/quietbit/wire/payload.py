"""A payload: header, body and checksums, in one canonical form, and its frame: run, round, node.

Idea     every field of the header is fixed before an update is seen, so a server compares it with
         its own before it reads anything else. Equal codes give equal bytes and different bytes
         mean different codes: lengths are exact, padding bits are zero, floats are finite. The body
         is written in place, without a copy. Sources of the wrong size are refused before memory is
         allocated for them. A payload names its mechanism alone; before it stands a frame that
         binds it to one request, so that a server takes no release of another run or round, and
         none of another node's.
Symbols  b = bits per code; d = number of codes, the dimension of the update (Skellam pads it to a
         power of two); the body has ceil(b d / 8) bytes: version 1. A body without codes has b = 0
         and a length given by its mechanism, and a shorter header: version 2.
Source   docs/reference/wire_format.md has every byte, and what checksums detect.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any, final

import numpy as np
from attrs import field, frozen

from quietbit._typing import Codes
from quietbit.errors import InvalidParameter, refuse_payload, require
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.base import FLOAT_BITS, WIDTHS, Body, Layout, Mechanism, check_padding
from quietbit.mechanism.registry import identity_of

__all__ = [
    "FLOAT_BITS",
    "HEADER_SIZE",
    "MAGIC",
    "SHORT_SIZE",
    "VERSIONS",
    "Body",
    "Framed",
    "Header",
    "Payload",
    "build",
    "read_body",
]

MAGIC = b"QBIT"
CODES = 1  # version of a body of packed codes
OPAQUE = 2  # version of a body that only its mechanism reads
VERSIONS = (CODES, OPAQUE)
START = struct.Struct("<4sHHQQ")  # magic, version, bits, dimension, length; then the identity
SEALS = struct.Struct("<II")  # checksum of the body, checksum of all header bytes before this one
IDENTITY_SIZES = {CODES: 32, OPAQUE: 24}
HEADER_SIZE = START.size + IDENTITY_SIZES[CODES] + SEALS.size
SHORT_SIZE = START.size + IDENTITY_SIZES[OPAQUE] + SEALS.size
LONGEST_OPAQUE = 2**40
CHUNK = 1 << 18  # floats checked at once


def _version(layout: Layout) -> int:
    return CODES if layout.bits else OPAQUE


@final
@frozen
class Header:
    """The header that all payloads of one mechanism at one clip share, checksums apart.

    ``identity`` names both: 32 bytes, or 24 for a body without codes.

    >>> Header(Layout.codes(3, 11), identity=bytes(32)).size
    69
    """

    layout: Layout
    identity: bytes = field()
    fields: bytes = field(init=False, repr=False, eq=False)  # all bytes before the checksums
    head: int = field(init=False, repr=False, eq=False)  # bytes of the header itself
    size: int = field(init=False, repr=False, eq=False)  # bytes of a payload

    @fields.default
    def _fields(self) -> bytes:
        layout = self.layout
        version = _version(layout)
        length = IDENTITY_SIZES[version]
        fits = isinstance(self.identity, bytes) and len(self.identity) == length
        require(fits, "identity", self.identity, f"{length} bytes")
        return START.pack(MAGIC, version, layout.bits, layout.count, layout.size) + self.identity

    @head.default
    def _head(self) -> int:
        return len(self.fields) + SEALS.size

    @size.default
    def _size(self) -> int:
        return self.head + self.layout.size

    @classmethod
    def of(cls, mechanism: Mechanism, clip: float = 1.0) -> Header:
        """Return the header of a mechanism's payloads at a clip."""
        layout = mechanism.layout
        return cls(layout, identity_of(mechanism, clip)[: IDENTITY_SIZES[_version(layout)]])

    def seal(self, body_checksum: int) -> bytes:
        """Return the whole header for a body with this checksum."""
        partial = self.fields + struct.pack("<I", body_checksum)
        return partial + struct.pack("<I", zlib.crc32(partial))

    @classmethod
    def parse(cls, data: bytes | memoryview) -> tuple[Header, int]:
        """Return the header and the body's checksum from the first bytes of a payload.

        Refused: too few bytes, a wrong magic or version, a header that fails its checksum, and
        fields that contradict each other.
        """
        if len(data) < SHORT_SIZE:
            refuse_payload("length of the payload", f"at least {SHORT_SIZE} bytes", len(data))
        magic, version, bits, count, length = START.unpack_from(data)
        if magic != MAGIC:
            refuse_payload("the first four bytes of the payload", f"{MAGIC!r}", repr(magic))
        if version not in VERSIONS:
            refuse_payload("version of the payload", f"{CODES} or {OPAQUE}", version)
        end = START.size + IDENTITY_SIZES[version]
        if len(data) < end + SEALS.size:
            refuse_payload("length of the payload", f"at least {end + SEALS.size} bytes", len(data))
        body_checksum, header_checksum = SEALS.unpack_from(data, end)
        if zlib.crc32(memoryview(data)[: end + 4]) != header_checksum:
            rule = "that of the bytes before it"
            refuse_payload("checksum of the header", rule, f"{header_checksum:#010x}")
        if not 1 <= count <= MAX_DIMENSION:
            refuse_payload("dimension of the payload", f"from 1 to {MAX_DIMENSION}", count)
        if version == CODES:
            layout = _codes(bits, count, length)
        else:
            layout = _opaque(bits, count, length)
        return cls(layout, bytes(data[START.size : end])), body_checksum

    def expect(self, head: bytes | memoryview) -> int:
        """Return the body's checksum; refuse anything but a header of this mechanism."""
        end = len(self.fields)
        if len(head) >= end + SEALS.size and head[:end] == self.fields:
            body_checksum, header_checksum = SEALS.unpack_from(head, end)
            if zlib.crc32(head[: end + 4]) == header_checksum:
                return int(body_checksum)
        # The header is wrong: find the field to name.
        header, body_checksum = Header.parse(head)
        expected = self.layout
        layout = header.layout
        hint = ""
        if header.identity != self.identity:
            hint = " (it is a payload of another mechanism or clip)"
        for name, rule, value in (
            ("bits of the payload", expected.bits, layout.bits),
            ("dimension of the payload", expected.count, layout.count),
            ("length written in the payload", expected.size, layout.size),
        ):
            if rule != value:
                refuse_payload(name, f"{rule}", f"{value}{hint}")
        if hint:
            wanted = f"{self.identity.hex()[:16]}..."
            actual = f"{header.identity.hex()[:16]}...{hint}"
            refuse_payload("mechanism identity of the payload", wanted, actual)
        return body_checksum


def _codes(bits: int, count: int, length: int) -> Layout:
    """Return the layout of packed codes; refuse a width or a length that it cannot have."""
    if bits not in WIDTHS:
        refuse_payload("bits of the payload", "1 to 16, or 32", bits)
    layout = Layout.codes(bits, count)
    if length != layout.size:
        refuse_payload("length written in the payload", f"{layout.size} bytes", length)
    return layout


def _opaque(bits: int, count: int, length: int) -> Layout:
    """Return the layout of a body without codes; refuse a width or a length that it cannot have."""
    if bits != 0:
        refuse_payload("bits of the payload", "0", bits)
    if not 1 <= length <= LONGEST_OPAQUE:
        refuse_payload("length written in the payload", f"from 1 to {LONGEST_OPAQUE} bytes", length)
    return Layout.opaque(count, length)


@final
@frozen(eq=False)
class Payload:
    """A header with its body, which is read-only; two payloads are compared by their bytes."""

    header: Header
    body: Body

    @classmethod
    def from_bytes(cls, data: bytes) -> Payload:
        """Read a payload of any mechanism; refuse anything but exactly what `build` writes."""
        header, expected = Header.parse(memoryview(data))
        body = np.frombuffer(memoryview(data).toreadonly(), dtype=np.uint8, offset=header.head)
        _check_length(header, body.size)
        _check_body(header, body, expected)
        return cls(header, body)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        return build(self.header, lambda out: np.copyto(out, self.body))

    def codes(self) -> Codes:
        """Return the codes, flat: uint8, uint16, or uint32 holding the bit patterns of floats."""
        layout = self.header.layout
        require(layout.bits > 0, "bits of the payload", layout.bits, "above 0 to read codes")
        if layout.bits == FLOAT_BITS:
            return np.array(self.body.view("<u4"), dtype=np.uint32)
        return usual_kernel().unpack(self.body, layout.bits, layout.count)


def build(header: Header, write: Callable[[Body], object]) -> bytes:
    """Return a payload whose body, all zeros at first, ``write`` fills in place."""
    # A BytesIO gives its buffer away as bytes without copying once nothing else refers to it.
    stream = BytesIO()
    stream.seek(header.size - 1)
    stream.write(b"\0")
    payload = np.frombuffer(stream.getbuffer(), dtype=np.uint8)
    write(payload[header.head :])
    seal = header.seal(zlib.crc32(payload.data[header.head :]))
    payload[: header.head] = np.frombuffer(seal, dtype=np.uint8)
    del payload
    return stream.getvalue()


def read_body(source: Any, header: Header) -> Body:
    """Return the checked body of one payload of the mechanism that ``header`` names.

    ``source`` is bytes, or any buffer of bytes. A bad payload raises `InvalidPayload`; any other
    type raises `InvalidParameter`.
    """
    try:
        view = memoryview(source).cast("B")
    except TypeError:
        kind = type(source).__name__
        raise InvalidParameter.of("payload", "bytes or a buffer of bytes", kind) from None
    # Long enough for either version, so that a payload of a different mechanism is named.
    expected = header.expect(view[:HEADER_SIZE])
    body = view[header.head :]
    _check_length(header, len(body))
    if not isinstance(view.obj, bytes):
        body = memoryview(bytes(body))  # a private copy
    array = np.frombuffer(body, dtype=np.uint8)
    _check_body(header, array, expected)
    return array


def _check_length(header: Header, length: int) -> None:
    size = header.layout.size
    if length != size:
        problem = "truncated" if length < size else "padded"
        value = f"{length} (the payload is {problem})"
        refuse_payload("length of the body", f"{size} bytes", value)


def _check_body(header: Header, body: Body, expected: int) -> None:
    """Refuse a body with a wrong checksum, set padding bits, or a float not finite."""
    layout = header.layout
    checksum = zlib.crc32(body.data)
    if checksum != expected:
        refuse_payload("checksum of the body", f"{expected:#010x}", f"{checksum:#010x}")
    check_padding(body, layout.bits * layout.count)
    if layout.bits == FLOAT_BITS:
        floats = body.view("<f4")
        for start in range(0, floats.size, CHUNK):
            if not np.isfinite(floats[start : start + CHUNK]).all():
                refuse_payload("floats of the payload", "finite", "a NaN or an infinity")


FRAME_MAGIC = b"QBR"  # then version, round, run and node, little-endian, and the payload
FRAME_VERSION = 2
FRAME = struct.Struct("<3sBIQQ")


@final
@frozen
class Framed:
    """A payload bound to a run, a round and a node."""

    run: int
    round: int
    node: int
    payload: bytes | memoryview

    def to_bytes(self) -> bytes:
        """Return the frame followed by the payload."""
        return (
            FRAME.pack(FRAME_MAGIC, FRAME_VERSION, self.round, self.run, self.node) + self.payload
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Framed:
        """Read a release; the aggregator checks its payload."""
        if len(data) < FRAME.size:
            refuse_payload("length of the release", f"at least {FRAME.size} bytes", len(data))
        magic, version, number, run, node = FRAME.unpack_from(data)
        if (magic, version) != (FRAME_MAGIC, FRAME_VERSION):
            refuse_payload(
                "magic and version of the release",
                f"{FRAME_MAGIC!r} and {FRAME_VERSION}",
                f"{magic!r} and {version}",
            )
        return cls(run, number, node, memoryview(data)[FRAME.size :])

    def expect(self, run: int, number: int, node: int) -> None:
        """Refuse a release that was made for another run or round, or by another node."""
        for name, expected, value in (
            ("run", run, self.run),
            ("round", number, self.round),
            ("node", node, self.node),
        ):
            if expected != value:
                refuse_payload(f"{name} of the release", f"{expected}", value)
