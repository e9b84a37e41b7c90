"""Sizes and checks shared by all kernels."""

from __future__ import annotations

import numpy as np
import pytest

from quietbit.errors import InvalidParameter
from quietbit.kernel.base import packed_size
from quietbit.kernel.select import select
from refusals import refuses


def test_sizes() -> None:
    assert [packed_size(1, d) for d in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert packed_size(16, 10**9) == 2 * 10**9
    for bits, dimension in ((0, 1), (17, 1), (1, -1), (1, 2**60), (True, 3)):
        with pytest.raises(InvalidParameter):
            packed_size(bits, dimension)


def test_a_huge_dimension_costs_nothing() -> None:
    with refuses("length of the packed codes"):
        select("reference").unpack(b"abc", 1, 2**47)


def test_codes_are_whole_numbers() -> None:
    assert select("reference").pack(np.array([[1, 2], [3, 0]], np.int64), 2) == bytes([0b00111001])
    with refuses("type of the codes"):
        select("reference").pack(np.array([0.5]), 1)  # type: ignore[arg-type]
