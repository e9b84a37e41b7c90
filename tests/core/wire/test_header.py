"""The header: 64 bytes at fixed places, and a sentence for each that is wrong."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from quietbit.errors import InvalidPayload
from quietbit.mechanism.base import Layout
from quietbit.wire.payload import HEADER_SIZE, SHORT_SIZE, Header
from refusals import refuses

IDENTITY = bytes(range(32))
HEADER = Header(Layout.codes(3, 11), IDENTITY)


def resealed(head: bytes) -> bytes:
    """The header with its own checksum made right again."""
    return head[:60] + struct.pack("<I", zlib.crc32(head[:60]))


def test_every_byte_is_where_the_documentation_says() -> None:
    head = HEADER.seal(0xDEADBEEF)
    assert len(head) == HEADER_SIZE == 64
    assert head[0:4] == b"QBIT"
    assert head[4:6] == b"\x01\x00"
    assert head[6:8] == b"\x03\x00"
    assert head[8:16] == (11).to_bytes(8, "little")
    assert head[16:24] == (5).to_bytes(8, "little")
    assert head[24:56] == IDENTITY
    assert head[56:60] == (0xDEADBEEF).to_bytes(4, "little")
    assert head[60:64] == zlib.crc32(head[:60]).to_bytes(4, "little")


def test_parse_reverses_seal() -> None:
    assert Header.parse(HEADER.seal(7)) == (HEADER, 7)
    assert HEADER.expect(memoryview(HEADER.seal(7))) == 7


@pytest.mark.parametrize(
    ("dimension", "identity", "name"),
    [
        (0, IDENTITY, "number of codes"),
        (2**60, IDENTITY, "number of codes"),
        (5, b"short", "identity"),
    ],
)
def test_impossible_fields_are_refused(dimension: int, identity: bytes, name: str) -> None:
    with refuses(name):
        Header(Layout.codes(1, dimension), identity)


def test_a_truncated_header_is_refused() -> None:
    for size in range(64):
        least = 56 if size < 56 else 64
        with pytest.raises(InvalidPayload, match=rf"length .*{least}.* {size}\."):
            Header.parse(HEADER.seal(7)[:size])


SHORT = Header(Layout.opaque(10**6, 24), bytes(range(24)))


def test_a_body_without_codes_has_a_short_header() -> None:
    head = SHORT.seal(7)
    assert len(head) == SHORT.head == SHORT_SIZE == 56
    assert SHORT.size == 80
    assert Header.parse(head) == (SHORT, 7)
    assert SHORT.expect(head) == 7
    for place in range(56):
        changed = bytearray(head)
        changed[place] ^= 16
        with pytest.raises(InvalidPayload):
            Header.parse(bytes(changed))
        with pytest.raises(InvalidPayload):
            SHORT.expect(bytes(changed))
    with pytest.raises(InvalidPayload, match=r"length .*56.* 55\."):
        Header.parse(head[:55])
    with refuses("identity", bytes(32)):
        Header(SHORT.layout, bytes(32))


@pytest.mark.parametrize(
    ("place", "value", "name", "shown"),
    [
        (0, b"QBIX", "the first four bytes", b"QBIX"),
        (4, b"\x03\x00", "version", 3),
        (6, b"\x11\x00", "bits", 17),
        (6, b"\x00\x00", "bits", 0),
        (6, b"\x04\x00", "length written in", 5),
        (8, (2**60).to_bytes(8, "little"), "dimension", 2**60),
        (8, bytes(8), "dimension", 0),
        (16, (2**60).to_bytes(8, "little"), "length written in", 2**60),
    ],
)
def test_each_wrong_field_is_named_even_with_a_right_checksum(
    place: int, value: bytes, name: str, shown: Any
) -> None:
    head = HEADER.seal(7)
    changed = resealed(head[:place] + value + head[place + len(value) :])
    with pytest.raises(InvalidPayload) as caught:
        Header.parse(changed)
    assert str(caught.value).startswith(name)
    assert str(caught.value).endswith(f" {shown!r}.")


@pytest.mark.parametrize(
    ("other", "name", "shown"),
    [
        (Header(Layout.codes(2, 11), IDENTITY), "bits", "2."),
        (Header(Layout.codes(3, 12), IDENTITY), "dimension", "12."),
        (Header(Layout.codes(3, 11), bytes(32)), "mechanism identity", "000000"),
    ],
)
def test_another_mechanisms_header_is_refused(other: Header, name: str, shown: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        HEADER.expect(other.seal(7))
    assert str(caught.value).startswith(name)
    assert f"got {shown}" in str(caught.value)
