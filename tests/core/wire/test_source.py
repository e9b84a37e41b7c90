"""Payloads from bytes and buffers; what is refused takes no memory."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from path import packed
from quietbit.errors import InvalidParameter, InvalidPayload
from quietbit.mechanism.base import Layout
from quietbit.wire.payload import Header, read_body

HEADER = Header(Layout.codes(3, 100), bytes(32))
CODES = np.arange(100) % 8
DATA = packed(HEADER, CODES)
BODY = np.frombuffer(DATA, np.uint8, offset=64)


@pytest.mark.parametrize(
    "wrap", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)]
)
def test_every_kind_of_source_gives_the_same_body(wrap: Any) -> None:
    assert np.array_equal(read_body(wrap(DATA), HEADER), BODY)


def test_a_reused_buffer_cannot_change_what_was_read() -> None:
    buffer = bytearray(DATA)
    found = read_body(buffer, HEADER), read_body(memoryview(buffer).toreadonly(), HEADER)
    buffer[:] = bytes(len(buffer))
    assert all(np.array_equal(body, BODY) for body in found)


def test_bytes_are_not_copied() -> None:
    assert np.shares_memory(read_body(DATA, HEADER), BODY)


@pytest.mark.parametrize("wrap", [bytes, bytearray])
@pytest.mark.parametrize("data", [b"", DATA[:10], DATA[:64], DATA[:-1], DATA + b"\0", DATA + DATA])
def test_truncated_and_padded_payloads_are_refused(wrap: Any, data: bytes) -> None:
    with pytest.raises(InvalidPayload, match=r"length|size"):
        read_body(wrap(data), HEADER)


@pytest.mark.parametrize(
    "source", [17, None, [1, 2], 1.5, "text", io.BytesIO(DATA), Path("file"), np.arange(20)[::2]]
)
def test_what_is_no_payload_at_all_is_an_error_of_the_caller(source: Any) -> None:
    with pytest.raises(InvalidParameter, match="payload"):
        read_body(source, HEADER)


def test_refusing_takes_no_memory() -> None:
    """Refusing two megabytes, or a header that promises 2^45 bytes, takes a few kilobytes."""
    huge = Header(Layout.codes(1, 2**48), bytes(32)).seal(0)
    for data in (bytes(2_000_000), DATA + bytes(2_000_000), huge, huge + bytes(2_000_000)):
        source = bytearray(data)
        tracemalloc.start()
        with pytest.raises(InvalidPayload):
            read_body(source, HEADER)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000
