"""Payloads: one way to write codes, and no other bytes are read."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from path import packed
from quietbit.errors import InvalidPayload
from quietbit.kernel.reference import ReferenceKernel
from quietbit.mechanism.base import Layout
from quietbit.wire.payload import Header, Payload, build

IDENTITY = bytes(32)


def framed(header: Header, body: bytes) -> bytes:
    """A payload with right checksums around any body."""
    return header.seal(zlib.crc32(body)) + body


@st.composite
def codes(draw: st.DrawFn) -> tuple[int, Any]:
    bits = draw(st.integers(1, 16))
    values = draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=70))
    return bits, np.array(values, dtype=np.uint16)


@settings(deadline=None, derandomize=True)
@given(given_codes=codes())
def test_codes_come_back_and_bytes_are_canonical(given_codes: tuple[int, Any]) -> None:
    bits, values = given_codes
    header = Header(Layout.codes(bits, values.size), IDENTITY)
    data = packed(header, values)
    assert len(data) == -(-bits * values.size // 8) + 64
    assert data[64:] == ReferenceKernel().pack(values, bits)
    again = Payload.from_bytes(data)
    assert again.header == header
    assert np.array_equal(again.codes(), values)
    assert build(header, lambda out: np.copyto(out, again.body)) == data


def test_floats_are_little_endian_32_bit_patterns() -> None:
    values = np.array([1.0, -2.5, 0.0, 3e38], dtype=np.float32)
    data = packed(Header(Layout.codes(32, 4), IDENTITY), values.view(np.uint32))
    assert data[64:] == values.astype("<f4").tobytes()
    assert np.array_equal(Payload.from_bytes(data).codes().view(np.float32), values)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_float_that_is_not_finite_is_refused(value: float) -> None:
    header = Header(Layout.codes(32, 3), IDENTITY)
    body = np.array([1.0, value, 2.0], dtype="<f4").tobytes()
    with pytest.raises(InvalidPayload, match="floats"):
        Payload.from_bytes(framed(header, body))


def test_the_body_is_read_only() -> None:
    payload = Payload.from_bytes(
        packed(Header(Layout.codes(1, 9), IDENTITY), np.ones(9, dtype=np.uint8))
    )
    assert not payload.body.flags.writeable


@pytest.mark.parametrize(("bits", "dimension"), [(1, 9), (1, 15), (3, 11), (5, 1), (9, 3)])
def test_every_padding_bit_must_be_zero(bits: int, dimension: int) -> None:
    header = Header(Layout.codes(bits, dimension), IDENTITY)
    for place in range(bits * dimension, 8 * header.layout.size):
        body = bytearray(header.layout.size)
        body[place // 8] |= 1 << place % 8
        with pytest.raises(InvalidPayload, match="padding"):
            Payload.from_bytes(framed(header, bytes(body)))


@pytest.mark.parametrize(
    ("change", "word"), [(-1, "truncated"), (1, "padded"), (-5, "truncated"), (1000, "padded")]
)
def test_a_body_of_another_length_is_refused(change: int, word: str) -> None:
    header = Header(Layout.codes(3, 16), IDENTITY)
    with pytest.raises(InvalidPayload, match=word):
        Payload.from_bytes(framed(header, bytes(header.layout.size + change)))


def test_every_flipped_bit_of_a_payload_is_refused() -> None:
    data = packed(Header(Layout.codes(2, 37), IDENTITY), np.arange(37) % 4)
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(InvalidPayload):
            Payload.from_bytes(bytes(changed))


def test_building_keeps_what_was_written_even_if_the_writer_keeps_the_buffer() -> None:
    kept: list[Any] = []

    def write(out: Any) -> None:
        out[:] = 7
        kept.append(out)

    data = build(Header(Layout.codes(8, 5), IDENTITY), write)
    kept[0][:] = 9
    assert data[64:] == bytes([7] * 5)
    assert Payload.from_bytes(data).codes().tolist() == [7] * 5
