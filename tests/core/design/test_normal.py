from decimal import Decimal

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quietbit.design.normal import (
    ERROR,
    cell_masses,
    density,
    distribution,
    float_lower,
    float_upper,
)
from refusals import refuses

WITHIN = st.floats(-16.0, 16.0, allow_nan=False)


def exact(value: Decimal) -> mpmath.mpf:
    return mpmath.mpf(str(value))


@settings(max_examples=60, deadline=None)
@example(0.0)
@example(-16.0)
@example(16.0)
@example(5e-324)
@given(WITHIN)
def test_both_functions_agree_with_mpmath_to_ninety_digits(x):
    with mpmath.workdps(160):
        assert abs(exact(distribution(x)) - mpmath.ncdf(mpmath.mpf(x))) <= exact(ERROR)
        assert abs(exact(density(x)) - mpmath.npdf(mpmath.mpf(x))) <= exact(ERROR)


def test_masses_of_far_cells_keep_their_digits():
    masses = cell_masses([-16.0, -15.0, 15.0, 16.0])
    with mpmath.workdps(160):
        for mass, (a, b) in zip(masses[:2], [(-mpmath.inf, -16), (-16, -15)], strict=True):
            true = mpmath.ncdf(b) - (mpmath.ncdf(a) if a > -mpmath.inf else 0)
            assert abs(exact(mass) / true - 1) < mpmath.mpf(10) ** -30
    assert masses[0] == masses[-1]


@settings(max_examples=100, deadline=None)
@given(WITHIN)
def test_rounding_is_outwards_and_tight(x):
    value = distribution(x)
    low, high = float_lower(value), float_upper(value)
    assert Decimal(low) < value < Decimal(high)
    assert high - low <= 2.0**-52


@pytest.mark.parametrize("x", [16.5, -17.0, float("nan"), float("inf")])
def test_what_the_digits_do_not_cover_is_refused(x):
    with refuses("x"):
        distribution(x)
    with refuses("x"):
        density(x)
