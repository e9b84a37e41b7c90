"""Norms and the clip factor, against exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quietbit.errors import InvalidParameter
from quietbit.kernel.norm import LOOK_ERROR, NORM_ERROR, Clip, Flat, clip_factor
from quietbit.kernel.reference import ReferenceKernel
from refusals import refuses

KERNEL = ReferenceKernel()


def within(computed, values, order):
    """|N' - N| <= NORM_ERROR N in exact arithmetic (squares compared for L2)."""
    total = sum(abs(Fraction(v)) ** order for v in values.tolist())
    slack = Fraction(NORM_ERROR)
    return (
        total * (1 - slack) ** order <= Fraction(computed) ** order <= total * (1 + slack) ** order
    )


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("magnitude", [1.0, 1e-170, 1e170, 1e300, 1e-290])
def test_the_error_bound(order, magnitude):
    rng = np.random.default_rng(3)
    for size in (1, 2, 255, 4096, 4097, 9000):
        values = rng.standard_t(2, size=size) * magnitude
        assert within(KERNEL.norm(values, order), values, order)


def test_round_numbers():
    assert KERNEL.norm(np.array([3.0, -4.0]), 2) == 5.0
    assert KERNEL.norm(np.array([3.0, -4.0], np.float16), 1) == 7.0
    assert KERNEL.norm(np.zeros(10), 2) == 0.0
    assert KERNEL.norm([], 2) == 0.0
    assert KERNEL.norm(np.float32(-2.0), 2) == 2.0
    assert KERNEL.norm(np.full(4, 5e-324), 2) == 2.0**-1020


def test_a_norm_beyond_doubles_is_refused():
    with refuses("norm of the update"):
        KERNEL.norm(np.full(2, 1.7e308), 2)


@given(st.floats(0.0, 1e300), st.floats(1e-300, 1e300))
def test_the_factor_keeps_the_true_norm_inside(norm, radius):
    factor = clip_factor(norm, radius)
    largest = Fraction(norm) / (1 - Fraction(NORM_ERROR))
    assert 0.0 <= factor <= 1.0
    assert Fraction(factor) * largest <= Fraction(radius)
    if 0 < factor < 1 and factor > 1e-290:
        assert Fraction(math.nextafter(math.nextafter(factor, 2.0), 2.0)) * largest > Fraction(
            radius
        )


@pytest.mark.parametrize(
    ("norm", "radius"), [(math.nan, 1.0), (math.inf, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, math.nan)]
)
def test_nonsense_is_refused(norm, radius):
    with pytest.raises(InvalidParameter):
        clip_factor(norm, radius)


@pytest.mark.parametrize("order", [1, 2])
def test_a_second_look_passes_what_did_not_change_and_bounds_what_did(order):
    """With exact fractions: a sum within LOOK_ERROR of the truth passes, and one at the limit is
    inside the ball.
    """
    rng = np.random.default_rng(order)
    for _ in range(300):
        norm, radius = (float(10.0 ** rng.uniform(-40, 40)) for _ in range(2))
        if rng.random() < 0.5:
            norm = radius * float(rng.choice([1.0, 1 - 1e-15, 1 + 1e-15, 1 - 1e-12, 0.999, 1.001]))
        clip = Clip.of(norm, radius, order)
        assert clip.limit is not None
        highest = Fraction(norm) / (1 - Fraction(NORM_ERROR))  # the exact norm is at most this
        assert highest**order * (1 + Fraction(LOOK_ERROR)) <= Fraction(clip.limit)
        reached = Fraction(clip.limit) / (
            1 - Fraction(LOOK_ERROR)
        )  # an exact sum that could have been computed so
        assert Fraction(clip.factor) ** order * reached <= Fraction(radius) ** order
        clip.check(clip.limit)
        for bad in (math.nextafter(clip.limit, math.inf), math.inf, math.nan):
            with refuses("update"):
                clip.check(bad)


def test_no_second_look_where_squares_leave_the_range():
    assert Clip.of(1e300, 1.0, 2).limit is None
    assert Clip.of(1e-300, 1e-301, 2).limit is None
    assert Clip.of(1e308, 1e-308, 2).factor == 0.0
    assert Clip.of(0.0, 1.0, 2).limit is not None


def test_tensors_are_read_where_they_are():
    torch = pytest.importorskip("torch")
    values = torch.tensor([1.5, -2.0, 0.25, 7.0], requires_grad=True)
    flat = Flat.of(values)
    with torch.no_grad():
        values[0] = 3.0
    np.testing.assert_array_equal(flat.piece(0, 4), [3.0, -2.0, 0.25, 7.0])  # no copy was made
    half = Flat.of([values.bfloat16(), values.half().reshape(2, 2).T])
    np.testing.assert_array_equal(half.piece(0, 8), [3.0, -2.0, 0.25, 7.0, 3.0, 0.25, -2.0, 7.0])
    assert Flat.of(values.reshape(2, 2)).shape == (2, 2)
    for kind in (torch.int32, torch.complex64):
        with refuses("type of update"):
            Flat.of(values.to(kind))
    with refuses("layout of update"):
        Flat.of(values.to_sparse())
