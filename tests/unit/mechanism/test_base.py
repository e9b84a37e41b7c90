from __future__ import annotations

import numpy as np
import pytest

from quietbit._validate import InvalidParameter
from quietbit.mechanism.base import check_codes, check_inside, check_value, code_type
from quietbit.mechanism.clipping import Ball, Norm


def test_code_types_are_the_narrowest() -> None:
    assert [code_type(bits) for bits in (1, 8, 9, 16, 17, 32)] == [
        np.uint8, np.uint8, np.uint16, np.uint16, np.uint32, np.uint32,
    ]  # fmt: skip


def test_codes_keep_their_shape() -> None:
    codes = check_codes(np.ones((2, 3), dtype=np.int16), 1, 6)
    assert codes.shape == (2, 3)
    assert codes.dtype == np.uint8


def test_the_refusal_does_not_show_the_private_norm() -> None:
    with pytest.raises(InvalidParameter) as refusal:
        check_inside(Ball(Norm.L2, 1.0, 2), np.array([1234.5, 0.0]))
    assert "1234" not in str(refusal.value)
    assert "clip it first" in str(refusal.value)


def test_a_value_is_within_the_radius() -> None:
    assert check_value(Ball(Norm.L1, 1.0, 2), -1.0) == -1.0
    with pytest.raises(InvalidParameter):
        check_value(Ball(Norm.L1, 1.0, 2), 1.1)
