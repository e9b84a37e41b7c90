import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quietbit.design.table import DesignSpec, exact_rows
from quietbit.errors import InvalidParameter

GOOD = {"input_levels": 8, "output_bits": 3, "epsilon": 5.0}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"input_levels": 1}, "input_levels must be a whole number from 2 to 4096, got 1"),
        ({"input_levels": 2.5}, "got 2.5"),
        ({"input_levels": True}, "got True"),
        ({"input_levels": "8"}, "got '8'"),
        ({"output_bits": 0}, "output_bits must be a whole number from 1 to 8, got 0"),
        ({"output_bits": 20}, "got 20"),
        ({"input_levels": 4096, "output_bits": 8}, "at most 131072, got 1048576"),
        ({"epsilon": 0}, "epsilon must be at least 1e-06 and at most 40, got 0"),
        ({"epsilon": -1.0}, "got -1.0"),
        ({"epsilon": math.nan}, "got nan"),
        ({"epsilon": math.inf}, "got inf"),
        ({"epsilon": None}, "got None"),
        ({"epsilon": 1e-9}, "at least 1e-06 and at most 40, got 1e-09"),
        ({"privacy": "local"}, "one of metric-l1, metric-l2, strict, got 'local'"),
        ({"privacy": None}, "got None"),
        ({"bias": "none"}, "'exact' or a positive penalty, got 'none'"),
        ({"bias": 0}, "bias must be above 0"),
        ({"bias": math.nan}, "got nan"),
        (
            {"input_levels": 4096, "output_bits": 1, "epsilon": 0.01, "privacy": "metric-l2"},
            "at least 1e-08",
        ),
    ],
)
def test_bad_values_are_named_in_one_sentence(changes, named):
    with pytest.raises(InvalidParameter) as refusal:
        DesignSpec(**{**GOOD, **changes})
    message = str(refusal.value)
    assert named in message
    assert message.endswith(".")
    assert "\n" not in message


def test_numbers_become_plain_python():
    import numpy as np

    spec = DesignSpec(np.int64(8), np.uint8(3), np.float32(5), bias=np.float64(100))
    assert spec == DesignSpec(8, 3, 5.0, bias=100.0)
    assert [type(v) for v in (spec.input_levels, spec.output_bits, spec.epsilon, spec.bias)] == [
        int,
        int,
        float,
        float,
    ]


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
    raw = np.array(
        [
            [1 / (1 + np.exp(20)), 1 / (1 + np.exp(-20))],
            [1 / (1 + np.exp(-20)), 1 / (1 + np.exp(20))],
        ]
    )
    table = exact_rows(raw)
    assert abs(np.log(table[0, 1] / table[0, 0]) - 20) < 1e-6
