from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
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


@settings(max_examples=200, deadline=None)
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
    assert ball.contains(update, clip) == exact_inside(update, ball, clip)


def test_clipping_is_sharp() -> None:
    rng = np.random.default_rng(0)
    for norm in Norm:
        ball, vector = Ball(norm, 1000), rng.normal(size=1000) * 7
        clipped = ball.clip(vector, 2.0)
        assert np.linalg.norm(clipped, ord=norm.order) == pytest.approx(2.0, rel=1e-13)
        assert np.allclose(clipped / vector, clipped[0] / vector[0], rtol=1e-13)


@pytest.mark.parametrize("norm", Norm)
def test_the_boundary_is_decided_exactly(norm: Norm) -> None:
    assert Ball(norm, 1).contains(np.array([1.0]))
    assert not Ball(norm, 1).contains(np.array([math.nextafter(1.0, 2.0)]))
    # 0.6^2 + 0.8^2 in doubles is not exactly 1: the comparison is with the real numbers.
    point = np.array([0.6, 0.8])
    ball = Ball(Norm.L2, 2)
    assert ball.contains(point) == exact_inside(point, ball)
    quarter = np.full(4, 0.25)
    assert Ball(Norm.L1, 4).contains(quarter)
    assert not Ball(Norm.L1, 5).contains(np.append(quarter, 5e-324))
    assert not Ball(Norm.L2, 2).contains(np.array([1.0, 1e-200]))


def test_zero_vectors_and_vanishing_numbers() -> None:
    for norm in Norm:
        ball = Ball(norm, 3)
        zero = np.zeros(3, dtype=np.float32)
        assert np.array_equal(ball.clip(zero), zero)
        assert ball.contains(np.full(3, 5e-324))
        assert np.array_equal(ball.clip(np.full(3, 5e-324)), np.full(3, 5e-324))
        huge = np.full(3, 1e307)
        assert ball.contains(ball.clip(huge))


def test_clip_returns_a_new_array() -> None:
    ball, vector = Ball(Norm.L2, 2), np.array([0.1, 0.2])
    clipped = ball.clip(vector)
    clipped[0] = 9.0
    assert vector[0] == 0.1


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
        np.array(0.5),
        np.empty(0),
        np.zeros(3),
        np.array([1, 2]),
        np.array([np.nan, 0.0]),
        np.array([0.0, -np.inf]),
        np.array([True, False]),
        "ab",
    ],
)
def test_what_no_ball_takes_is_refused(update: Any) -> None:
    ball = Ball(Norm.L2, 2)
    for method in (ball.clip, ball.contains):
        with pytest.raises(InvalidParameter):
            method(update)


def test_a_single_number_without_axes_is_refused_not_passed_through() -> None:
    with refuses("update", "0-D"):
        Ball(Norm.L2, 1).clip(np.array(5.0))


def test_a_ball_refuses_nonsense() -> None:
    for clip in (0.0, -1.0, math.nan, math.inf, 1e28, 1e-28, True, "1"):
        for act in (Ball(Norm.L2, 3).clip, Ball(Norm.L2, 3).contains):
            with refuses("clip"):
                act(np.ones(3), clip)  # type: ignore[arg-type]
    for dimension in (0, -1, 2.5, True):
        with refuses("dimension"):
            Ball(Norm.L2, dimension)  # type: ignore[arg-type]
    with refuses("norm", "linf"):
        Ball("linf", 3)  # type: ignore[arg-type]
    assert Ball("l1", 3).norm is Norm.L1  # type: ignore[arg-type]
