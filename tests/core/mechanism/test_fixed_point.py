"""Fixed-point alphabets: exact sums, a stated rounding, no overflow."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quietbit.mechanism.accumulate import FixedPoint
from refusals import refuses


@given(st.lists(st.floats(-900, 900), min_size=1, max_size=8), st.integers(1, 2**40))
def test_sums_fit_and_rounding_is_as_stated(values: list[float], most: int) -> None:
    alphabet = np.array(values)
    if not np.abs(alphabet).max() > 1e-6:
        return
    fixed = FixedPoint.of(alphabet, most)
    assert most * int(np.abs(fixed.table).max()) <= 2**62
    for value, entry in zip(values, fixed.table.tolist(), strict=True):
        unit = Fraction(1, 2**fixed.shift)
        assert abs(Fraction(value) - entry * unit) <= unit / 2


def test_the_mean_of_many_payloads() -> None:
    alphabet = np.array([-0.7, 0.1, 0.4, 1.7])
    codes = np.random.default_rng(0).integers(0, 4, size=(999, 50))
    fixed = FixedPoint.of(alphabet, 1000)
    total = fixed.table[codes].sum(axis=0)
    np.testing.assert_allclose(fixed.mean(total, 999), alphabet[codes].mean(axis=0), atol=2.0**-45)


def test_refusals() -> None:
    with refuses("largest alphabet value"):
        FixedPoint.of(np.array([np.nan, 1.0]), 10)
    with refuses("largest alphabet value", 0.0):
        FixedPoint.of(np.zeros(2), 10)
    with refuses("most payloads", 0):
        FixedPoint.of(np.ones(2), 0)
    with refuses("payloads", 11):
        FixedPoint.of(np.ones(2), 10).mean(np.zeros(3, np.int64), 11)
