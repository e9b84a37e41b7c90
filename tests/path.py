"""The one path, for tests: codes of what `Uplink.send` writes, and what `Uplink.receive` makes of
codes.

A body without codes is its bytes: eight bits each, as many as there are.
"""

import zlib

import numpy as np

from quietbit import Uplink
from quietbit.kernel.reference import ReferenceKernel
from quietbit.mechanism.base import Layout
from quietbit.wire.payload import Header, Payload

__all__ = ["body", "codes_of", "decode", "encode", "many", "width"]


def encode(mechanism, update, rng, kernel=None):
    """The codes of one release, in the update's shape where there is one per coordinate."""
    codes = codes_of(Uplink(mechanism, kernel=kernel).send(update, rng))
    shape = np.shape(update)
    return codes.reshape(shape) if codes.size == int(np.prod(shape)) else codes


def decode(mechanism, codes):
    """What a server makes of one release with these codes, in their shape where there is one per
    coordinate.
    """
    mean = Uplink(mechanism).receive([_payload(mechanism, codes)])
    return mean.reshape(np.shape(codes)) if mean.size == np.asarray(codes).size else mean


def codes_of(data):
    """The codes of a payload, or the bytes of a body without."""
    payload = Payload.from_bytes(data)
    return payload.codes() if payload.header.layout.bits else payload.body.copy()


def body(mechanism, codes):
    """The body of a payload with these codes."""
    return Payload.from_bytes(_payload(mechanism, codes)).body


def width(mechanism):
    """Bits of a code."""
    return mechanism.layout.bits or 8


def many(mechanism):
    """How many codes there are."""
    return mechanism.layout.count if mechanism.layout.bits else mechanism.layout.size


def packed(header, codes):
    """The payload of these codes, however many; for 32 bits they are the bit patterns of floats."""
    bits, values = header.layout.bits, np.asarray(codes)
    content = values.astype("<u4").tobytes() if bits == 32 else ReferenceKernel().pack(values, bits)
    own = Header(Layout.codes(bits, values.size), header.identity)
    return own.seal(zlib.crc32(content)) + bytes(content)


def _payload(mechanism, codes):
    header = Header.of(mechanism)
    if header.layout.bits:
        return packed(header, codes)
    content = np.asarray(codes).astype(np.uint8).tobytes()
    own = Header(Layout.opaque(header.layout.count, len(content)), header.identity)
    return own.seal(zlib.crc32(content)) + content
