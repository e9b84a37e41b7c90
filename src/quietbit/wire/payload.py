"""A payload: header, body and checksums, with one canonical form and every field checked on reading.

Idea     every field of the header is fixed before an update is seen, so a server compares it with
         its own before it reads anything else. Equal codes give equal bytes and different bytes
         mean different codes: lengths are exact, padding bits are zero, floats are finite. The body
         is written in place, without a copy. Bytes, buffers, paths and open files of another size
         than the mechanism's are refused before memory is allocated for them.
Symbols  b = bits per code; d = number of codes, the dimension of the update (Skellam pads it to a
         power of two); the body has ceil(b d / 8) bytes: version 1. A body without codes has b = 0
         and a length given by its mechanism, and a shorter header: version 2. P = the polynomial
         0xEDB88320 (bit-reflected); crc(A B) = crc(A) x^(8 |B|) + crc(B) modulo P.
Source   docs/reference/wire_format.md has every byte, and what checksums detect; ISO 3309 for the
         polynomial.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, final

import numpy as np
from attrs import field, frozen

from quietbit._typing import Codes
from quietbit.errors import InvalidParameter, InvalidPayload, refuse_payload, require
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.base import FLOAT_BITS, WIDTHS, Body, Layout, Mechanism
from quietbit.mechanism.registry import identity_of

__all__ = [
    "FLOAT_BITS",
    "HEADER_SIZE",
    "MAGIC",
    "SHORT_SIZE",
    "VERSIONS",
    "Body",
    "Header",
    "Payload",
    "build",
    "check_body",
    "checksum",
    "joined",
    "read_body",
]

MAGIC = b"QBIT"
CODES = 1  # versions: a body of packed codes, a body that only its mechanism reads
OPAQUE = 2
VERSIONS = (CODES, OPAQUE)
START = struct.Struct("<4sHHQQ")  # magic, version, bits, dimension, length; then the identity
SEALS = struct.Struct("<II")  # checksum of the body, checksum of all header bytes before this one
NAMES = {CODES: 32, OPAQUE: 24}  # bytes of the identity
HEADER_SIZE, SHORT_SIZE = (START.size + NAMES[version] + SEALS.size for version in VERSIONS)
LONGEST_OPAQUE = 2**40
POLYNOMIAL = 0xEDB88320
ONE = 1 << 31  # the polynomial 1: the highest bit is the constant term
WORTHWHILE = 1 << 21  # bytes per thread below which starting a thread does not pay
CHUNK = 1 << 18  # floats checked at once


def _version(layout: Layout) -> int:
    return CODES if layout.bits else OPAQUE


@final
@frozen
class Header:
    """The fields that all payloads of one mechanism share; ``identity`` names the mechanism, in 32 bytes or in 24.

    >>> Header(Layout.codes(3, 11), identity=bytes(32)).size
    69
    """

    layout: Layout
    identity: bytes = field()
    fields: bytes = field(
        init=False, repr=False, eq=False
    )  # before the checksums, the same for every payload
    head: int = field(init=False, repr=False, eq=False)  # bytes of the header itself
    size: int = field(init=False, repr=False, eq=False)  # bytes of a payload

    @fields.default
    def _fields(self) -> bytes:
        layout = self.layout
        version = _version(self.layout)
        fine = isinstance(self.identity, bytes) and len(self.identity) == NAMES[version]
        require(fine, "identity", self.identity, f"{NAMES[version]} bytes")
        return START.pack(MAGIC, version, layout.bits, layout.count, layout.size) + self.identity

    @head.default
    def _head(self) -> int:
        return len(self.fields) + SEALS.size

    @size.default
    def _whole(self) -> int:
        return self.head + self.layout.size

    @classmethod
    def of(cls, mechanism: Mechanism) -> Header:
        """Return the header of a mechanism's payloads."""
        layout = mechanism.layout
        return cls(layout, identity_of(mechanism)[: NAMES[_version(layout)]])

    def seal(self, body_checksum: int) -> bytes:
        """Return the whole header for a body with this checksum."""
        partial = self.fields + struct.pack("<I", body_checksum)
        return partial + struct.pack("<I", zlib.crc32(partial))

    @classmethod
    def parse(cls, data: bytes | memoryview) -> tuple[Header, int]:
        """Return the header and the body's checksum from the first bytes of a payload.

        Refused: too few bytes, another magic or version, a header that fails its checksum, and
        fields that contradict each other.
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
            refuse_payload(
                "checksum of the header", "that of the bytes before it", f"{header_checksum:#010x}"
            )
        if version == CODES:
            widths = WIDTHS
        else:
            widths = (0,)
        if bits not in widths:
            refuse_payload(
                "bits of the payload", "1 to 16, or 32" if version == CODES else "0", bits
            )
        if not 1 <= count <= MAX_DIMENSION:
            refuse_payload("dimension of the payload", f"from 1 to {MAX_DIMENSION}", count)
        if version == OPAQUE and not 1 <= length <= LONGEST_OPAQUE:
            refuse_payload(
                "length written in the payload", f"from 1 to {LONGEST_OPAQUE} bytes", length
            )
        if version == CODES:
            layout = Layout.codes(bits, count)
        else:
            layout = Layout.opaque(count, length)
        if length != layout.size:
            refuse_payload("length written in the payload", f"{layout.size} bytes", length)
        return cls(layout, name), body_checksum

    def expect(self, head: bytes | memoryview) -> int:
        """Return the body's checksum; refuse anything but a header of this mechanism."""
        end = len(self.fields)
        if len(head) >= end + SEALS.size and head[:end] == self.fields:
            body_checksum, header_checksum = SEALS.unpack_from(head, end)
            if zlib.crc32(head[: end + 4]) == header_checksum:
                return int(body_checksum)
        # The header is wrong: find out why.
        found, body_checksum = Header.parse(head)
        mine = self.layout
        theirs = found.layout
        other = " (it is a payload of another mechanism)" if found.identity != self.identity else ""
        for what, wanted, got in (
            ("bits of the payload", mine.bits, theirs.bits),
            ("dimension of the payload", mine.count, theirs.count),
            ("length written in the payload", mine.size, theirs.size),
        ):
            if wanted != got:
                refuse_payload(what, f"{wanted}", f"{got}{other}")
        if other:
            names = f"{self.identity.hex()[:16]}...", f"{found.identity.hex()[:16]}...{other}"
            refuse_payload("mechanism identity of the payload", *names)
        return body_checksum


@final
@frozen(eq=False)
class Payload:
    """A header with its packed codes; the body is read-only. Compare two payloads by their bytes."""

    header: Header
    body: Body

    @classmethod
    def from_bytes(cls, data: bytes) -> Payload:
        """Read a payload of any mechanism; refuse anything but exactly what `build` writes."""
        header, expected = Header.parse(memoryview(data))
        body = np.frombuffer(memoryview(data).toreadonly(), dtype=np.uint8, offset=header.head)
        check_body(header, body, expected)
        return cls(header, body)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        return build(self.header, lambda out: np.copyto(out, self.body))

    def codes(self) -> Codes:
        """Return the codes, flat: uint8, uint16, or uint32 holding the bit patterns of floats."""
        require(
            self.header.layout.bits > 0,
            "payload",
            "one without codes",
            "that of a mechanism with codes",
        )
        if self.header.layout.bits == FLOAT_BITS:
            return np.array(self.body.view("<u4"), dtype=np.uint32)
        return usual_kernel().unpack(self.body, self.header.layout.bits, self.header.layout.count)


def build(header: Header, write: Callable[[Body], object], threads: int = 1) -> bytes:
    """Return a payload whose body, all zeros at first, ``write`` fills in place."""
    # A BytesIO gives its buffer away as bytes without copying once nothing else refers to it.
    stream = BytesIO()
    stream.seek(header.size - 1)
    stream.write(b"\0")
    whole = np.frombuffer(stream.getbuffer(), dtype=np.uint8)
    write(whole[header.head :])
    body = whole.data[header.head :]
    seal = header.seal(zlib.crc32(body) if threads == 1 else checksum(body, threads))
    whole[: header.head] = np.frombuffer(seal, dtype=np.uint8)
    del whole, body
    return stream.getvalue()


def check_body(header: Header, body: Body, expected: int, threads: int = 1) -> None:
    """Refuse a body of another length or checksum, with padding bits set, or with a float that is not finite."""
    length = header.layout.size
    if body.size != length:
        what = "truncated" if body.size < length else "padded"
        refuse_payload(
            "length of the body", f"{length} bytes", f"{body.size} (the payload is {what})"
        )
    found = checksum(body.data, threads)
    if found != expected:
        refuse_payload("checksum of the body", f"{expected:#010x}", f"{found:#010x}")
    used = header.layout.bits * header.layout.count % 8
    if used and int(body[-1]) >> used:
        refuse_payload("padding bits of the payload", "zero", int(body[-1]) >> used)
    if header.layout.bits == FLOAT_BITS:
        floats = body.view("<f4")
    else:
        floats = body[:0]
    for start in range(0, floats.size, CHUNK):
        if not np.isfinite(floats[start : start + CHUNK]).all():
            refuse_payload("floats of the payload", "finite", "a NaN or an infinity")


def read_body(source: Any, header: Header, threads: int = 1) -> Body:
    """Return the checked body of one payload of the mechanism that ``header`` names.

    ``source`` is bytes, any buffer of bytes, a path, or a file open for reading bytes that holds
    exactly one payload. A bad payload, and a file that cannot be read, raises `InvalidPayload`; any
    other type raises `InvalidParameter`.
    """
    if isinstance(source, str | os.PathLike):
        try:
            with open(source, "rb") as file:
                return read_body(file, header, threads)
        except OSError as error:
            raise InvalidPayload(
                f"payload file must be readable, got {error.strerror or 'an error'} for {os.fspath(source)!r}."
            ) from error
    if hasattr(source, "read"):
        expected = header.expect(_read(source, header.head))
        body: bytes | memoryview = _read(source, header.layout.size + 1)
    else:
        try:
            view = memoryview(source).cast("B")
        except TypeError:
            raise InvalidParameter(
                f"payload must be bytes, a buffer, a path or an open file, got a {type(source).__name__}."
            ) from None
        expected = header.expect(
            view[:HEADER_SIZE]
        )  # of either version, to name what another mechanism sent
        body = view[header.head :]
    if len(body) != header.layout.size:
        if len(body) > header.layout.size:
            found = "more"
        else:
            found = f"{header.head + len(body)} (it is truncated)"
        refuse_payload("size of the payload", f"{header.size} bytes", found)
    own = isinstance(body, bytes) or isinstance(body.obj, bytes)
    kept = np.frombuffer(
        body if own else bytes(body), dtype=np.uint8
    )  # immutable, or a private copy
    check_body(header, kept, expected, threads)
    return kept


def _read(file: Any, size: int) -> bytes:
    """Read up to ``size`` bytes; a pipe or a socket may deliver them in pieces."""
    data: bytes | str | None = file.read(size)
    if isinstance(data, str):
        raise InvalidParameter(
            "payload file must be open for reading bytes, got one open for text."
        )
    if data is None or len(data) in (0, size):
        return data or b""
    pieces = [data]
    while (missing := size - sum(map(len, pieces))) and (more := file.read(missing)):
        pieces.append(more)
    return b"".join(pieces)


def checksum(data: memoryview | bytes, threads: int = 1) -> int:
    """Return the CRC-32 of the bytes.

    >>> checksum(b"123456789") == 0xCBF43926
    True
    """
    workers = max(1, min(threads, len(data) // WORTHWHILE))
    if workers == 1:
        return zlib.crc32(data)
    width = -(-len(data) // workers)
    view = memoryview(data)
    pieces = [view[start : start + width] for start in range(0, len(data), width)]
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(zlib.crc32, pieces))
    total = found[0]
    for crc, piece in zip(found[1:], pieces[1:], strict=True):
        total = joined(total, crc, len(piece))
    return total


def joined(first: int, second: int, length: int) -> int:
    """Return the checksum of two consecutive pieces; ``length`` is that of the second, in bytes.

    >>> joined(zlib.crc32(b"quiet"), zlib.crc32(b"bit"), 3) == zlib.crc32(b"quietbit")
    True
    """
    power = ONE
    base = ONE >> 1
    exponent = 8 * length
    while exponent:
        if exponent & 1:
            power = _product(power, base)
        base = _product(base, base)
        exponent = exponent >> 1
    return _product(first, power) ^ second


def _product(a: int, b: int) -> int:
    """Multiply modulo P."""
    result = 0
    for place in range(31, -1, -1):
        if a >> place & 1:
            result ^= b
        b = (b >> 1) ^ (POLYNOMIAL if b & 1 else 0)  # b times x
    return result
