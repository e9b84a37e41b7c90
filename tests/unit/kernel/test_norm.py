"""Norms and the clip factor, against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quietbit._validate import InvalidParameter
from quietbit.kernel.norm import NORM_ERROR, clip_factor
from quietbit.kernel.reference import ReferenceKernel

KERNEL = ReferenceKernel()


def within(computed: float, values: Any, order: int) -> bool:
    """|N' - N| <= NORM_ERROR N in exact arithmetic (squares compared for L2)."""
    total = sum(abs(Fraction(v)) ** order for v in values.tolist())
    slack = Fraction(NORM_ERROR)
    return total * (1 - slack) ** order <= Fraction(computed) ** order <= total * (1 + slack) ** order


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("magnitude", [1.0, 1e-170, 1e170, 1e300, 1e-290])
def test_the_error_bound(order: Any, magnitude: float) -> None:
    rng = np.random.default_rng(3)
    for size in (1, 2, 255, 4096, 4097, 9000):
        values = rng.standard_t(2, size=size) * magnitude
        assert within(KERNEL.norm(values, order), values, order)


def test_round_numbers() -> None:
    assert KERNEL.norm(np.array([3.0, -4.0]), 2) == 5.0
    assert KERNEL.norm(np.array([3.0, -4.0], np.float16), 1) == 7.0
    assert KERNEL.norm(np.zeros(10), 2) == 0.0
    assert KERNEL.norm([], 2) == 0.0
    assert KERNEL.norm(np.float32(-2.0), 2) == 2.0
    assert KERNEL.norm(np.full(4, 5e-324), 2) == 2.0**-1020


def test_a_norm_beyond_doubles_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="norm of the update"):
        KERNEL.norm(np.full(2, 1.7e308), 2)


@given(st.floats(0.0, 1e300), st.floats(1e-300, 1e300))
def test_the_factor_keeps_the_true_norm_inside(norm: float, radius: float) -> None:
    factor = clip_factor(norm, radius)
    largest = Fraction(norm) / (1 - Fraction(NORM_ERROR))
    assert 0.0 <= factor <= 1.0
    assert Fraction(factor) * largest <= Fraction(radius)
    if 0 < factor < 1 and factor > 1e-290:
        assert Fraction(math.nextafter(math.nextafter(factor, 2.0), 2.0)) * largest > Fraction(radius)


def test_a_clipped_vector_is_inside_in_exact_arithmetic() -> None:
    rng = np.random.default_rng(8)
    for size in (1, 10, 5000):
        values = (5 * rng.normal(size=size)).astype(np.float32)
        factor = Fraction(clip_factor(KERNEL.norm(values, 2), 0.3))
        assert sum((factor * Fraction(float(v))) ** 2 for v in values) <= Fraction(0.3) ** 2


@pytest.mark.parametrize(
    ("norm", "radius"), [(math.nan, 1.0), (math.inf, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, math.nan)]
)
def test_nonsense_is_refused(norm: float, radius: float) -> None:
    with pytest.raises(InvalidParameter):
        clip_factor(norm, radius)
