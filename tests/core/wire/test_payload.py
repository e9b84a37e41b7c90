"""Payloads: one way to write codes, and no other bytes are read; what is refused takes no memory."""

import io
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from path import packed
from quietbit.errors import InvalidParameter, InvalidPayload
from quietbit.kernel.reference import ReferenceKernel
from quietbit.mechanism.base import Layout
from quietbit.wire.payload import Header, Payload, build, read_body
from refusals import refuses

IDENTITY = bytes(range(32))
HEADER = Header(Layout.codes(3, 11), IDENTITY)
SHORT = Header(Layout.opaque(10**6, 24), IDENTITY[:24])
FLOATS = Header(Layout.codes(32, 3), IDENTITY)
every_kind = pytest.mark.parametrize("header", [HEADER, SHORT, FLOATS], ids=repr)


def framed(header, body):
    """A payload with right checksums around any body."""
    return header.seal(zlib.crc32(body)) + body


def good(header):
    return framed(header, bytes(header.layout.size))


@every_kind
def test_parse_reverses_seal(header):
    assert Header.parse(header.seal(7)) == (header, 7)
    assert header.expect(memoryview(header.seal(7))) == 7
    assert header.size == len(good(header)) == header.head + header.layout.size
    assert header.head == (56 if header is SHORT else 64)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Header(Layout.codes(1, 0), IDENTITY), "number of codes"),
        (lambda: Header(Layout.codes(1, 2**60), IDENTITY), "number of codes"),
        (lambda: Header(Layout.codes(1, 5), b"short"), "identity"),
        (lambda: Header(SHORT.layout, IDENTITY), "identity"),
    ],
)
def test_impossible_fields_are_refused(make, name):
    with refuses(name):
        make()


@every_kind
def test_every_flipped_bit_is_refused(header):
    data = good(header)
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(InvalidPayload):
            Payload.from_bytes(bytes(changed))
        with pytest.raises(InvalidPayload):
            read_body(changed, header)


@every_kind
def test_every_other_length_is_refused(header):
    data = good(header)
    for size in range(len(data)):
        # What tells the lengths of headers apart comes in the first bytes.
        least = 56 if size < 56 else header.head
        word = rf"at least {least} bytes, got {size}\." if size < header.head else "truncated"
        with pytest.raises(InvalidPayload, match=word):
            Payload.from_bytes(data[:size])
        with pytest.raises(InvalidPayload, match=word):
            read_body(data[:size], header)
    for tail in (b"\0", bytes(1000), data):
        with pytest.raises(InvalidPayload, match="padded"):
            Payload.from_bytes(data + tail)
        with pytest.raises(InvalidPayload, match="padded"):
            read_body(bytearray(data + tail), header)


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
def test_each_wrong_field_is_named_even_with_a_right_checksum(place, value, name, shown):
    head = HEADER.seal(7)[:60]
    changed = head[:place] + value + head[place + len(value) :]
    with pytest.raises(InvalidPayload, match=rf"^{name} .* {shown!r}\.$"):
        Header.parse(changed + struct.pack("<I", zlib.crc32(changed)))


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (Header(Layout.codes(2, 11), IDENTITY), "^bits .*got 2."),
        (Header(Layout.codes(3, 12), IDENTITY), "^dimension .*got 12."),
        (Header(Layout.codes(3, 11), bytes(32)), "^mechanism identity .*got 000000"),
    ],
)
def test_another_mechanisms_header_is_refused(other, sentence):
    with pytest.raises(InvalidPayload, match=sentence):
        HEADER.expect(other.seal(7))


@pytest.mark.parametrize(("bits", "dimension"), [(1, 9), (1, 15), (3, 11), (5, 1), (9, 3)])
def test_every_padding_bit_must_be_zero(bits, dimension):
    header = Header(Layout.codes(bits, dimension), IDENTITY)
    for place in range(bits * dimension, 8 * header.layout.size):
        body = bytearray(header.layout.size)
        body[place // 8] |= 1 << place % 8
        with pytest.raises(InvalidPayload, match="padding"):
            Payload.from_bytes(framed(header, bytes(body)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_float_that_is_not_finite_is_refused(value):
    body = np.array([1.0, value, 2.0], dtype="<f4").tobytes()
    with pytest.raises(InvalidPayload, match="floats"):
        Payload.from_bytes(framed(FLOATS, body))


@st.composite
def codes(draw):
    bits = draw(st.integers(1, 16))
    values = draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=70))
    return bits, np.array(values, dtype=np.uint16)


@settings(deadline=None, derandomize=True)
@given(given_codes=codes())
def test_codes_come_back_and_bytes_are_canonical(given_codes):
    bits, values = given_codes
    header = Header(Layout.codes(bits, values.size), IDENTITY)
    data = packed(header, values)
    assert data == framed(header, ReferenceKernel().pack(values, bits))
    again = Payload.from_bytes(data)
    assert again.header == header
    assert np.array_equal(again.codes(), values)
    assert not again.body.flags.writeable
    assert build(header, lambda out: np.copyto(out, again.body)) == data


def test_floats_are_little_endian_32_bit_patterns():
    values = np.array([1.0, -2.5, 3e38], dtype=np.float32)
    data = packed(FLOATS, values.view(np.uint32))
    assert data[64:] == values.astype("<f4").tobytes()
    assert np.array_equal(Payload.from_bytes(data).codes().view(np.float32), values)


def test_a_body_without_codes_has_none_to_read():
    with refuses("bits of the payload"):
        Payload.from_bytes(good(SHORT)).codes()


def test_building_keeps_what_was_written_even_if_the_writer_keeps_the_buffer():
    kept = []

    def write(out):
        out[:] = 7
        kept.append(out)

    data = build(Header(Layout.codes(8, 5), IDENTITY), write)
    kept[0][:] = 9
    assert Payload.from_bytes(data).codes().tolist() == [7] * 5


DATA = packed(HEADER, np.arange(11) % 8)
BODY = np.frombuffer(DATA, np.uint8, offset=64)


@pytest.mark.parametrize(
    "wrap", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)]
)
def test_every_kind_of_source_gives_the_same_body(wrap):
    assert np.array_equal(read_body(wrap(DATA), HEADER), BODY)


def test_bytes_are_not_copied_and_a_reused_buffer_cannot_change_what_was_read():
    assert np.shares_memory(read_body(DATA, HEADER), BODY)
    buffer = bytearray(DATA)
    found = read_body(buffer, HEADER), read_body(memoryview(buffer).toreadonly(), HEADER)
    buffer[:] = bytes(len(buffer))
    assert all(np.array_equal(body, BODY) for body in found)


@pytest.mark.parametrize(
    "source", [17, None, [1, 2], 1.5, "text", io.BytesIO(DATA), Path("file"), np.arange(20)[::2]]
)
def test_what_is_no_payload_at_all_is_an_error_of_the_caller(source):
    with pytest.raises(InvalidParameter, match="payload"):
        read_body(source, HEADER)


HUGE = Header(Layout.codes(1, 2**48), IDENTITY).seal(0)


@pytest.mark.parametrize("start", [b"", DATA, HUGE])
def test_refusing_takes_no_memory(start):
    """Refusing two megabytes, or a header that promises 2^45 bytes, takes a few kilobytes."""
    source = bytearray(start + bytes(2_000_000))
    tracemalloc.start()
    with pytest.raises(InvalidPayload):
        read_body(source, HEADER)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
