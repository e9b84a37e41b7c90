from __future__ import annotations

import numpy as np
import pytest

from core.mechanism.makers import MECHANISMS
from quietbit import Gaussian, InvalidParameter
from quietbit.mechanism.abilities import Summable, summable
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Layout
from refusals import refuses


@pytest.mark.parametrize(("bits", "count", "size"), [(1, 9, 2), (3, 11, 5), (16, 3, 6), (32, 2, 8)])
def test_a_layout_of_codes_has_whole_bytes(bits: int, count: int, size: int) -> None:
    assert Layout.codes(bits, count) == Layout(bits, count, size)


@pytest.mark.parametrize(
    ("bits", "count"), [(0, 3), (17, 3), (33, 3), (1, 0), (1, 2.5), (True, 1.5)]
)
def test_layouts_that_are_none_are_refused(bits: int, count: int) -> None:
    with pytest.raises(InvalidParameter):
        Layout.codes(bits, count)


def test_sums_are_for_mechanisms_with_an_account_of_sums() -> None:
    one = MECHANISMS["imvu one bit l2"]
    assert summable(one) is one
    with refuses("mechanism", "InterpolatedMVU"):
        Summable.of(one).kept_from_sum(np.zeros(3), 2)
    with refuses("mechanism", "Gaussian"):
        summable(Gaussian(Ball("l2", 3), 1.0))
