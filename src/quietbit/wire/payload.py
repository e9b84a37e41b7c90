"""A payload: header and body, one way to write it, everything checked when it is read.

Idea     equal codes give equal bytes and no two byte strings mean the same codes: lengths are exact, padding
         bits are zero, floats are finite. The body is written where it will stay, without a copy.
Symbols  b, d as in `header.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import Codes
from quietbit._validate import refuse_payload, require
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.base import Body
from quietbit.wire.checksum import checksum
from quietbit.wire.header import FLOAT_BITS, Header

__all__ = ["Body", "Payload", "build", "check_body", "pack_codes"]

CHUNK = 1 << 18  # floats looked at together


@final
@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """A header with its packed codes; the body is read-only. Compare two by their bytes."""

    header: Header
    body: Body

    @classmethod
    def from_codes(cls, header: Header, codes: Codes) -> Payload:
        """Pack codes, in any shape; one out of range or a wrong number of them is refused."""
        require(header.layout.bits > 0, "header", "one without codes", "that of a mechanism with codes")
        size = int(np.asarray(codes).size)
        require(size == header.layout.count, "number of codes", size, f"{header.layout.count}")
        return cls.from_bytes(build(header, lambda out: pack_codes(codes, header.layout.bits, out)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Payload:
        """Read a payload of any mechanism; anything but exactly what `to_bytes` writes is refused."""
        header, expected = Header.parse(memoryview(data))
        body = np.frombuffer(memoryview(data).toreadonly(), dtype=np.uint8, offset=header.head)
        check_body(header, body, expected)
        return cls(header, body)

    def to_bytes(self, threads: int = 1) -> bytes:
        """The canonical bytes."""
        return build(self.header, lambda out: np.copyto(out, self.body), threads)

    def codes(self) -> Codes:
        """The codes, flat: uint8, uint16, or uint32 holding the bit patterns of floats."""
        require(self.header.layout.bits > 0, "payload", "one without codes", "that of a mechanism with codes")
        if self.header.layout.bits == FLOAT_BITS:
            return np.array(self.body.view("<u4"), dtype=np.uint32)
        return usual_kernel().unpack(self.body, self.header.layout.bits, self.header.layout.count)


def build(header: Header, write: Callable[[Body], object], threads: int = 1) -> bytes:
    """A payload whose body ``write`` fills in place; the body is handed to it full of zeros."""
    # A BytesIO gives its buffer away as bytes without copying once nobody else holds it.
    stream = BytesIO()
    stream.seek(header.size - 1)
    stream.write(b"\0")
    whole = np.frombuffer(stream.getbuffer(), dtype=np.uint8)
    write(whole[header.head :])
    seal = header.seal(checksum(whole.data[header.head :], threads))
    whole[: header.head] = np.frombuffer(seal, dtype=np.uint8)
    del whole
    return stream.getvalue()


def pack_codes(codes: Codes, bits: int, out: Body) -> None:
    """Codes packed into ``out``; for 32 bits they are the bit patterns of floats."""
    if bits == FLOAT_BITS:
        out[:] = np.ascontiguousarray(codes, dtype="<u4").reshape(-1).view(np.uint8)
    else:
        out[:] = np.frombuffer(usual_kernel().pack(codes, bits), dtype=np.uint8)


def check_body(header: Header, body: Body, expected: int, threads: int = 1) -> None:
    """Refuse a body of another length or checksum, with padding bits set, or with a float not finite."""
    if body.size != header.length:
        what = "truncated" if body.size < header.length else "padded"
        refuse_payload("length of the body", f"{header.length} bytes", f"{body.size} (the payload is {what})")
    found = checksum(body.data, threads)
    if found != expected:
        refuse_payload("checksum of the body", f"{expected:#010x}", f"{found:#010x}")
    used = header.layout.bits * header.layout.count % 8
    if used and int(body[-1]) >> used:
        refuse_payload("padding bits of the payload", "zero", int(body[-1]) >> used)
    if header.layout.bits == FLOAT_BITS:
        _check_finite(body.view("<f4"))


def _check_finite(values: NDArray[Any]) -> None:
    for start in range(0, values.size, CHUNK):
        if not np.isfinite(values[start : start + CHUNK]).all():
            refuse_payload("floats of the payload", "finite", "a NaN or an infinity")
