from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from path import decode, encode
from quietbit.design.solve import closed_design, solve
from quietbit.design.table import DesignSpec
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.calibrate import calibrate
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.target import Adjacency, Trust
from refusals import refuses

BALL = Ball(Norm.L2, 5000)


@pytest.mark.parametrize(
    "adjacency",
    [Adjacency.ZERO_OUT, pytest.param(Adjacency.REPLACE_ONE, marks=pytest.mark.long)],
)
def test_meets_the_target_from_below(adjacency: Adjacency) -> None:
    found = calibrate(
        "imvu", ball=BALL, epsilon=1.0, delta=1e-5, adjacency=adjacency, honest=100, releases=20
    )
    assert 0.999 <= found.guarantee.epsilon_upper <= 1.0
    assert found.guarantee.trust is Trust.SECURE_AGGREGATION
    assert "secure-aggregation trust" in found.guarantee.sentence()
    codes: Any = found.mechanism
    again = (codes.sum_privacy(100, adjacency) * 20).epsilon(1e-5)
    assert again == found.guarantee.epsilon_upper
    assert codes.clamp
    assert not found.saturated
    assert 1.0 < found.relative_error < 1.3  # of ideal Gaussian noise, shared out


def test_fewer_honest_clients_cost_accuracy() -> None:
    given: Any = {
        "ball": BALL,
        "epsilon": 1.0,
        "delta": 1e-5,
        "adjacency": Adjacency.ZERO_OUT,
    }
    all_of_them = calibrate("imvu", **given, honest=300)
    half: Any = calibrate("imvu", **given, honest=150)
    assert 1.8 < half.squared_error / all_of_them.squared_error < 2.2
    again = half.mechanism.sum_privacy(150, Adjacency.ZERO_OUT).epsilon(1e-5)
    assert again == half.guarantee.epsilon_upper


@pytest.mark.long
def test_a_low_dimension_does_not_end_in_bare_signs() -> None:
    small = Ball(Norm.L2, 30)
    found: Any = calibrate(
        "imvu", ball=small, epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT, honest=100
    )
    assert found.mechanism.beta <= math.sqrt(30) / 2
    assert found.guarantee.epsilon_upper <= 1.0


def test_a_sum_of_codes_gives_the_mean_of_what_they_stand_for() -> None:
    ball = Ball(Norm.L2, 50)
    design = closed_design(DesignSpec(2, 1, 2.0))
    mechanism = InterpolatedMVU(design, ball, 2.0, True, "unbiased-at-zero")
    codes = [encode(mechanism, ball.clip(np.linspace(-1, 1, 50)), seeded_rng(k)) for k in range(7)]
    found = mechanism.mean_from_sum(np.sum([code.astype(np.int64) for code in codes], axis=0), 7)
    np.testing.assert_allclose(
        found, np.mean([decode(mechanism, code) for code in codes], axis=0), rtol=1e-9, atol=1e-12
    )
    with refuses("sums of codes"):
        mechanism.mean_from_sum(np.full(50, 8), 7)


def test_refusals() -> None:
    given: Any = {"ball": BALL, "adjacency": Adjacency.ZERO_OUT, "honest": 10}
    target: Any = {"epsilon": 1.0, "delta": 1e-5}
    with refuses("delta", 0.0):
        calibrate("imvu", epsilon=1.0, delta=0.0, **given)
    with refuses("epsilon", 0.0):
        calibrate("imvu", epsilon=0.0, delta=1e-5, **given)
    with refuses("honest", 1):
        calibrate("imvu", **target, **given | {"honest": 1})
    for name in ("gaussian", "vmvu"):
        with refuses("mechanism", name):
            calibrate(name, **target, **given)
    with refuses("honest", 10):
        calibrate("auto", **target, **given)
    with refuses("samples", 100):
        calibrate("imvu", samples=100, **target, **given)
    with refuses("bits, levels, beta, clamp or design"):
        calibrate("imvu", bits=2, **target, **given)
    with refuses("rows", "own"):
        calibrate("imvu", coordinates=64, rows="own", **target, **given)
    wider = InterpolatedMVU(solve(DesignSpec(8, 3, 5.0)), BALL)
    with refuses("bits", 3):
        wider.mean_from_sum(np.zeros(5000), 2)
    with refuses("output bits of the design", 3):
        wider.sum_privacy(10, Adjacency.ZERO_OUT)
