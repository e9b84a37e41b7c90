import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quietbit.design.table import Design, DesignSpec, exact_rows
from refusals import refuses

GOOD = {"input_levels": 8, "output_bits": 3, "epsilon": 5.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_levels", 1),
        ("input_levels", 2.5),
        ("input_levels", True),
        ("input_levels", "8"),
        ("output_bits", 0),
        ("output_bits", 20),
        ("epsilon", 0),
        ("epsilon", -1.0),
        ("epsilon", math.inf),
        ("epsilon", None),
        ("epsilon", 1e-9),
        ("privacy", "local"),
        ("privacy", None),
        ("bias", "none"),
        ("bias", 0),
        ("bias", math.nan),
        ("epsilon", math.nan),
    ],
)
def test_bad_values_are_named(name, value):
    with refuses(name):
        DesignSpec(**{**GOOD, name: value})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ((4096, 8, 1.0), "input_levels x 2^output_bits"),
        ((4096, 1, 0.01, "metric-l2"), "epsilon between neighbouring levels"),
    ],
)
def test_specs_that_cannot_be_solved_are_refused(given, name):
    with refuses(name):
        DesignSpec(*given)


def test_numbers_become_plain_python():
    spec = DesignSpec(np.int64(8), np.uint8(3), np.float32(5), bias=np.float64(100))
    assert spec == DesignSpec(8, 3, 5.0, bias=100.0)
    assert {type(value) for value in (spec.input_levels, spec.output_bits)} == {int}
    assert {type(value) for value in (spec.epsilon, spec.bias)} == {float}


def test_step_between_neighbours():
    assert DesignSpec(5, 1, 2.0).log_ratio_step == 0.5
    assert DesignSpec(5, 1, 2.0, "metric-l2").log_ratio_step == 0.125
    assert DesignSpec(5, 1, 2.0, "strict").log_ratio_step == 2.0


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
    tiny = 1 / (1 + np.exp(20))
    table = exact_rows(np.array([[tiny, 1 - tiny], [1 - tiny, tiny]]))
    assert abs(np.log(table[0, 1] / table[0, 0]) - 20) < 1e-6


TABLE = [[0.75, 0.25], [0.25, 0.75]]


@pytest.mark.parametrize(
    ("table", "alphabet", "name"),
    [
        (TABLE[:1], [0.0, 1.0], "shape of the probabilities"),
        (TABLE, [0.0], "shape of the alphabet"),
        (TABLE, [0.0, math.inf], "alphabet"),
        (TABLE, [1.0, 0.0], "alphabet"),
        ([[1.0, 0.0], [0.0, 1.0]], [0.0, 1.0], "probabilities"),
        ([[0.75, 0.25], [0.3, 0.75]], [0.0, 1.0], "sum of the probabilities of level 1"),
    ],
)
def test_what_is_not_a_design_is_refused(table, alphabet, name):
    with refuses(name):
        Design(DesignSpec(2, 1, 2.0), table, alphabet)
