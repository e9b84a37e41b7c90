from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quietbit.errors import InvalidParameter
from quietbit.mechanism.ball import Ball, Norm
from refusals import refuses

KINDS = (np.float16, np.float32, np.float64)


def exact_inside(values: Any, ball: Ball, clip: float = 1.0) -> bool:
    """The oracle: rational arithmetic."""
    terms = [abs(Fraction(float(value))) for value in np.ravel(values)]
    if ball.norm is Norm.L1:
        return sum(terms) <= Fraction(clip)
    return sum(term * term for term in terms) <= Fraction(clip) ** 2


vectors = st.lists(st.floats(-1e4, 1e4, width=16), min_size=1, max_size=40)


def edge(values: list[float], norm: Norm = Norm.L2) -> Any:
    """An example at the unit clip, as doubles."""
    return example(values=values, kind=np.float64, norm=norm, clip=1.0)


@settings(max_examples=200, deadline=None)
@edge([1.0])
@edge([math.nextafter(1.0, 2.0)])
@edge([0.6, 0.8])  # in doubles not exactly 1: the comparison is with the real numbers
@edge([1.0, 1e-200])
@edge([0.25] * 4, Norm.L1)
@edge([0.25] * 4 + [5e-324], Norm.L1)
@edge([5e-324] * 3)
@edge([0.0] * 3)
@edge([1e307] * 3)
@edge([7.0, -9.0] * 500)
@given(
    values=vectors,
    kind=st.sampled_from(KINDS),
    norm=st.sampled_from(Norm),
    clip=st.sampled_from([1e-27, 1e-6, 0.1, 1.0, 3.0, 1e3, 1e27]),
)
def test_a_clipped_vector_is_inside_exactly(
    values: list[float], kind: Any, norm: Norm, clip: float
) -> None:
    update = np.array(values, dtype=kind)
    ball = Ball(norm, update.size)
    clipped = ball.clip(update, clip)
    assert clipped.dtype == update.dtype
    assert clipped.shape == update.shape
    assert ball.contains(clipped, clip)
    assert exact_inside(clipped, ball, clip)
    assert np.all(np.abs(clipped) <= np.abs(update))
    assert np.all(np.sign(clipped) * np.sign(update) >= 0)
    inside = ball.contains(update, clip)
    assert inside == exact_inside(update, ball, clip)
    assert not np.shares_memory(clipped, update)
    if inside:
        assert np.array_equal(clipped, update)
    elif kind is np.float64:
        assert np.linalg.norm(clipped / clip, norm.order) == pytest.approx(1.0, rel=1e-12)


def test_views_and_byte_orders_are_clipped_alike() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(6, 8))
    ball = Ball(Norm.L2, 24)
    view = matrix[::2, ::-1]
    assert np.array_equal(ball.clip(view), ball.clip(view.copy()))
    swapped = ball.clip(view.astype(">f8"))
    assert np.array_equal(swapped, ball.clip(view))


@pytest.mark.parametrize(
    "update",
    [
        np.array(0.5),  # a number without axes, which is not passed through
        np.empty(0),
        np.zeros(3),
        np.array([1, 2]),
        np.array([np.nan, 0.0]),
        np.array([0.0, -np.inf]),
        "ab",
    ],
)
@pytest.mark.parametrize("method", [Ball(Norm.L2, 2).clip, Ball(Norm.L2, 2).contains])
def test_what_no_ball_takes_is_refused(method: Any, update: Any) -> None:
    with pytest.raises(InvalidParameter):
        method(update)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf, 1e28, 1e-28, True, "1"])
def test_what_is_no_clip_is_refused(clip: Any) -> None:
    for act in (Ball(Norm.L2, 3).clip, Ball(Norm.L2, 3).contains):
        with refuses("clip"):
            act(np.ones(3), clip)
