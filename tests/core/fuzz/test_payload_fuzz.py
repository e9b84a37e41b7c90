"""Hostile bytes: refused with one sentence, or they are exactly a payload; the mean never
notices.
"""

import struct
import zlib
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.mechanism.makers import MECHANISMS, update
from quietbit.errors import InvalidPayload
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.base import Layout
from quietbit.wire.payload import HEADER_SIZE, Header, Payload
from quietbit.wire.uplink import Uplink

NAMES = (
    "imvu one bit l2",
    "imvu three bits five levels",
    "gaussian",
    "skellam 8 bits",
    "vmvu seed",
)
UPLINKS = {name: Uplink(MECHANISMS[name]) for name in NAMES}
FIELDS = [(0, 4), (4, 2), (6, 2), (8, 8), (16, 8), (24, 32), (56, 4), (60, 4)]
NUMBERS = [0, 1, 2, 2**16 - 1, 2**31, 2**60, 2**63, 2**64 - 1]
names = st.sampled_from(NAMES)
quietly = settings(deadline=None, derandomize=True, max_examples=150)


@cache
def good(name):
    """Three payloads."""
    uplink = UPLINKS[name]
    return [uplink.send(update(uplink.mechanism.ball, seed), seeded_rng(seed)) for seed in range(3)]


def sentence(error):
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 250


def judge(data):
    """Read bytes as anyone's payload: a sentence, or what writes back as the same bytes."""
    try:
        payload = Payload.from_bytes(data)
    except InvalidPayload as error:
        sentence(error)
        return None
    assert payload.to_bytes() == data
    return payload


def check(name, data):
    """Anyone reads the bytes, and a server meets them between good payloads."""
    payload = judge(data)
    uplink = UPLINKS[name]
    found = uplink.collect([good(name)[0], data, good(name)[1]], on_error="skip")
    assert found.count + found.refused == 3
    if found.refused:
        assert np.array_equal(found.mean, uplink.receive(good(name)[:2]))
        with pytest.raises(InvalidPayload) as caught:
            uplink.receive([data])
        sentence(caught.value.__cause__)
    else:
        assert payload is not None
        assert payload.header == uplink.header


def resealed(data):
    """Make both checksums right, as an attacker would."""
    partial = data[:56] + struct.pack("<I", zlib.crc32(data[HEADER_SIZE:]))
    return partial + struct.pack("<I", zlib.crc32(partial)) + data[HEADER_SIZE:]


@quietly
@given(data=st.binary(max_size=200))
@example(data=b"QBIT")
@example(data=b"QBIT\x01\x00" + bytes(58))
def test_any_bytes(data):
    assert judge(data) is None
    check(NAMES[0], data)


@quietly
@given(
    name=names,
    field=st.sampled_from(FIELDS),
    value=st.binary(min_size=32, max_size=32),
    number=st.sampled_from([None, *NUMBERS]),
)
def test_any_header_field_with_right_checksums(name, field, value, number):
    start, size = field
    new = value[:size] if number is None else (number % 256**size).to_bytes(size, "little")
    real = good(name)[2]
    changed = resealed(real[:start] + new + real[start + size :])
    check(name, changed)
    if start < 56 and changed[:56] != real[:56]:
        with pytest.raises(InvalidPayload):
            UPLINKS[name].receive([changed])


@quietly
@given(name=names, cut=st.integers(0, 10**6), tail=st.binary(max_size=20), seal=st.booleans())
def test_truncated_and_padded_payloads_are_refused(name, cut, tail, seal):
    real = good(name)[2]
    changed = real[: cut % len(real)] + tail
    if seal and len(changed) >= HEADER_SIZE:
        changed = resealed(changed)
    check(name, changed)


@quietly
@given(name=names, body=st.binary(min_size=300, max_size=300))
def test_any_body_with_right_checksums_is_codes_or_refused(name, body):
    header = UPLINKS[name].header
    check(name, resealed(header.seal(0) + body[: header.layout.size]))


@quietly
@given(
    bits=st.sampled_from([*range(1, 17), 32]),
    dimension=st.integers(1, 40),
    body=st.binary(max_size=170),
)
def test_a_header_of_any_kind_before_any_body(bits, dimension, body):
    header = Header(Layout.codes(bits, dimension), bytes(32))
    exact = (body + bytes(header.layout.size))[: header.layout.size]
    for candidate in (body, exact):
        judge(resealed(header.seal(0) + candidate))
