"""Payloads from bytes, buffers, paths and files; what is refused takes no memory."""

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


class Dripping(io.RawIOBase):
    """A stream that delivers at most seven bytes at a time, as a socket may."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self.inner.read(min(size, 7))


@pytest.mark.parametrize(
    "wrap",
    [
        bytes,
        bytearray,
        memoryview,
        io.BytesIO,
        Dripping,
        lambda data: np.frombuffer(data, np.uint8),
    ],
)
def test_every_kind_of_source_gives_the_same_body(wrap: Any) -> None:
    assert np.array_equal(read_body(wrap(DATA), HEADER), BODY)


def test_paths_and_open_files(tmp_path: Path) -> None:
    path = tmp_path / "one.payload"
    path.write_bytes(DATA)
    assert np.array_equal(read_body(path, HEADER), BODY)
    assert np.array_equal(read_body(str(path), HEADER), BODY)
    with path.open("rb") as file:
        assert np.array_equal(read_body(file, HEADER), BODY)


def test_a_reused_buffer_cannot_change_what_was_read() -> None:
    buffer = bytearray(DATA)
    found = read_body(buffer, HEADER), read_body(memoryview(buffer).toreadonly(), HEADER)
    buffer[:] = bytes(len(buffer))
    assert all(np.array_equal(body, BODY) for body in found)


def test_bytes_are_not_copied() -> None:
    assert np.shares_memory(read_body(DATA, HEADER), BODY)


@pytest.mark.parametrize("wrap", [bytes, bytearray, io.BytesIO, Dripping])
@pytest.mark.parametrize("data", [b"", DATA[:10], DATA[:64], DATA[:-1], DATA + b"\0", DATA + DATA])
def test_truncated_and_padded_payloads_are_refused(wrap: Any, data: bytes) -> None:
    with pytest.raises(InvalidPayload, match=r"length|size"):
        read_body(wrap(data), HEADER)


def test_a_missing_file_is_a_bad_payload(tmp_path: Path) -> None:
    with pytest.raises(InvalidPayload, match="No such file"):
        read_body(tmp_path / "none", HEADER)
    with pytest.raises(InvalidPayload, match="payload file"):
        read_body(tmp_path, HEADER)


@pytest.mark.parametrize("source", [17, None, [1, 2], 1.5, io.StringIO("text"), np.arange(20)[::2]])
def test_what_is_no_payload_at_all_is_an_error_of_the_caller(source: Any) -> None:
    with pytest.raises(InvalidParameter, match="payload"):
        read_body(source, HEADER)


@pytest.mark.parametrize("wrap", [bytearray, io.BytesIO])
def test_refusing_takes_no_memory(wrap: Any) -> None:
    """Refusing two megabytes, or a header that promises 2^45 bytes, takes a few kilobytes."""
    huge = Header(Layout.codes(1, 2**48), bytes(32)).seal(0)
    for data in (bytes(2_000_000), DATA + bytes(2_000_000), huge, huge + bytes(2_000_000)):
        source = wrap(data)
        tracemalloc.start()
        with pytest.raises(InvalidPayload):
            read_body(source, HEADER)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000
