import math

import pytest

from exact.privacy_kit import flat, rough, sigmoid_bit
from quietbit._validate import InvalidParameter
from quietbit.privacy.divergence import (
    lipschitz_upper,
    max_divergence,
    paper_constant_upper,
    smallest_probability_lower,
    zero_out_constant_upper,
)

CONSTANTS = (lipschitz_upper, paper_constant_upper, zero_out_constant_upper, smallest_probability_lower)


@pytest.mark.parametrize("constant", CONSTANTS)
@pytest.mark.parametrize("bad", [(1.0, 0.0), (0.5, 0.5), (math.nan, 1.0), (0.0, math.inf)])
def test_refuses_ranges_that_are_none(constant, bad):
    with pytest.raises(InvalidParameter, match="input range must be"):
        constant(rough(3, 2, 2.0, 0), *bad)


def test_zero_out_needs_the_centre():
    with pytest.raises(InvalidParameter, match="around 1/2"):
        zero_out_constant_upper(rough(3, 2, 2.0, 0), 0.6, 1.0)
    assert zero_out_constant_upper(rough(3, 2, 2.0, 0), 0.5, 1.0) > 0


def test_a_constant_table_reveals_nothing():
    assert lipschitz_upper(flat(4, 2)) <= 1e-12
    assert zero_out_constant_upper(flat(4, 2)) <= 1e-12
    assert smallest_probability_lower(flat(4, 2)) == pytest.approx(0.25)


def test_max_divergence_of_one_bit():
    design = sigmoid_bit(2.0)
    exact = (
        abs(math.log(1 / (1 + math.exp(-2.0))) - math.log(0.5)),
        abs(math.log(1 / (1 + math.exp(2.0))) - math.log(0.5)),
    )
    assert max_divergence(design, 1.0, 0.5) == pytest.approx(max(exact))
    assert max_divergence(design, 0.3, 0.3) == 0


@pytest.mark.parametrize("levels", [99, 2048])
def test_many_levels(levels):
    design = rough(levels, 2, 4.0, 1)
    assert 0 < zero_out_constant_upper(design) <= lipschitz_upper(design) <= paper_constant_upper(design)
