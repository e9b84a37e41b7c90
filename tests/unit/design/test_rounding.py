from fractions import Fraction

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quietbit.design.rounding import exact_rows


@settings(max_examples=200, deadline=None)
@example(levels=3, bits=6, spread=1 / 3, seed=98969)  # errors once added up along a row
@given(
    levels=st.integers(2, 7),
    bits=st.integers(1, 6),
    spread=st.floats(0.0, 20.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_sum_to_one_in_rational_arithmetic(levels, bits, spread, seed):
    raw = np.exp(spread * np.random.default_rng(seed).uniform(-1, 0, (levels, 2**bits)))
    raw += raw[::-1, ::-1]
    raw /= raw.sum(axis=1, keepdims=True)
    table = exact_rows(raw)
    assert all(sum(map(Fraction, row), Fraction(0)) == 1 for row in table.tolist())
    assert np.array_equal(table, table[::-1, ::-1])
    assert np.all(np.abs(table - raw) <= 2.0**-50)  # a few units in the last place of one


def test_tiny_entries_keep_their_ratio():
    raw = np.array([[1 / (1 + np.exp(20)), 1 / (1 + np.exp(-20))], [1 / (1 + np.exp(-20)), 1 / (1 + np.exp(20))]])
    table = exact_rows(raw)
    assert abs(np.log(table[0, 1] / table[0, 0]) - 20) < 1e-6
