"""The checksum is CRC-32, whoever computes it and in how many pieces."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quietbit.wire import payload as module
from quietbit.wire.payload import checksum, joined


@settings(deadline=None, derandomize=True)
@given(first=st.binary(max_size=200), second=st.binary(max_size=200))
def test_joining_two_checksums_is_the_checksum_of_both(first: bytes, second: bytes) -> None:
    assert joined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [0, 1, 40_000, 100_003])
def test_threads_change_nothing(threads: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTHWHILE", 10_000)
    data = np.random.default_rng(size).bytes(size)
    assert checksum(data, threads) == checksum(memoryview(data), 1) == zlib.crc32(data)
