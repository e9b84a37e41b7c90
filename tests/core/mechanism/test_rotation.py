"""A rotated update comes back at its size, whatever it looks like; the account is the unrotated
one's.

What a mechanism says of its error is held against the exact mean of what is decoded, R^T f(R x),
without sampling noise: f by enumeration, averaged over seeds of the rotation.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from quietbit import (
    Ball,
    Gaussian,
    Norm,
    VectorMVU,
    calibrate,
)
from quietbit.design.profile import Profile
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.registry import build, describe, identity_of
from quietbit.mechanism.rotation import Rotation
from quietbit_lab.baseline.noise import Sign
from refusals import refuses

TARGET: dict[str, Any] = {"delta": 1e-5, "adjacency": "zero-out"}


def heavy(size: int, rng: Any) -> Any:
    """The share of the squared length that few coordinates of a real update hold: 22 of them
    have 79 %.
    """
    rest, few = rng.standard_normal(size), np.zeros(size)
    few[rng.choice(size, min(22, size), replace=False)] = rng.standard_normal(min(22, size))
    return np.sqrt(0.21) * rest / np.linalg.norm(rest) + np.sqrt(0.79) * few / np.linalg.norm(few)


UPDATES = {
    "one coordinate": lambda size, rng: np.eye(1, size, size // 3)[0],
    "the last coordinate": lambda size, rng: np.eye(1, size, size - 1)[0],
    "two coordinates": lambda size, rng: np.eye(1, size, 1)[0] - np.eye(1, size, size // 2)[0],
    "concentrated": heavy,
    "sparse": lambda size, rng: np.where(rng.random(size) < 0.01, 1.0, 0.0) + np.eye(1, size)[0],
    "constant": lambda size, rng: np.ones(size),
    "alternating": lambda size, rng: np.where(np.arange(size) % 2, -1.0, 1.0),
    "heavy-tailed": lambda size, rng: rng.standard_cauchy(size),
    "normal": lambda size, rng: rng.standard_normal(size),
    "a column of the Hadamard matrix": lambda size, rng: np.where(
        np.arange(size) // 4 % 2, -1.0, 1.0
    ),
}


@cache
def rotated(size: int, epsilon: float) -> Any:
    return calibrate("imvu", ball=Ball(Norm.L2, size), epsilon=epsilon, **TARGET).mechanism


def gains(mechanism: Any, update: Any, seeds: Any) -> Any:
    """<x, mean of what is decoded> / |x|^2, for rotations of these seeds."""
    unit = mechanism.ball.clip(np.asarray(update) * (1 / np.linalg.norm(update)))
    found = []
    for seed in seeds:
        y = usual_kernel().rotate([unit], seed, mechanism.rotation.block, kind=np.float64)
        means, _ = mechanism._moments(y)
        found.append(float(y @ means) / (mechanism.gain * float(unit @ unit)))
    return np.array(found)


@pytest.mark.parametrize("kind", UPDATES)
@pytest.mark.parametrize(
    ("size", "epsilon", "seeds"),
    [(16, 8.0, 100), (67, 8.0, 100), (1000, 8.0, 60), (4096, 0.5, 24), (20_001, 8.0, 12)],
)
def test_every_update_comes_back_at_its_size(
    kind: str, size: int, epsilon: float, seeds: int
) -> None:
    """On average over rotations not below what the mechanism says of the worst update, up to six
    standard errors; in blocks of 4,096 within 1 % whatever the rotation.
    """
    mechanism = rotated(size, epsilon)
    update = UPDATES[kind](size, np.random.default_rng(size))
    found, response = gains(mechanism, update, range(seeds)), mechanism.error().response
    assert found.mean() >= response - 6 * found.std() / np.sqrt(seeds)
    if size >= 4096:
        assert abs(found - 1).max() < 0.01
        assert response > 0.999
    assert mechanism.layout.size == -(-size // 8)  # one bit per parameter, nothing padded


def test_the_paper_s_own_way_says_what_it_loses() -> None:
    """Without a rotation one coordinate alone comes back at a tenth of its size, and the error
    says so.
    """
    ball = Ball(Norm.L2, 20_000)
    plain: Any = calibrate("imvu", ball=ball, epsilon=8.0, rotate=False, **TARGET)
    assert plain.mechanism.rotation is None
    assert plain.mechanism.expectation(1.0) == pytest.approx(plain.error.response, rel=1e-12)
    assert 0.09 < plain.error.response < 0.11
    update = heavy(ball.dimension, np.random.default_rng(1))
    lost = float(update @ plain.mechanism._moments(update)[0])
    assert lost < 0.6, "what the rotation is there for"
    turned: Any = calibrate("imvu", ball=ball, epsilon=8.0, **TARGET)
    assert gains(turned.mechanism, update, range(6)).min() > 0.99
    assert turned.squared_error == pytest.approx(plain.squared_error, rel=1e-3)
    assert turned.relative_error < 1.02


def test_samples_need_an_exact_rotation() -> None:
    found: Any = calibrate(
        "imvu",
        ball=Ball(Norm.L2, 300),
        epsilon=2.0,
        delta=1e-5,
        adjacency="replace-one",
        samples=20,
    ).mechanism
    assert found.rotation == Rotation(256, exact=True)
    with refuses("rotation"):
        evolve(found, rotation=Rotation(256)).privacy("replace-one", 20)
    # Whatever two close updates are, they stay as close: seen before the clip, in doubles.
    rng = np.random.default_rng(4)
    for _ in range(50):
        first = rng.standard_normal(300)
        first /= np.linalg.norm(first) * 1.0001
        step = rng.standard_normal(300)
        step *= 2.0**-21 / np.linalg.norm(step)  # no share is smaller
        both = [found.rotation.exactly([one], 1.0, usual_kernel()) for one in (first, first + step)]
        assert np.linalg.norm(both[0] - both[1]) <= np.linalg.norm(step)


def test_an_update_prepared_for_one_rotation_is_lost_on_another() -> None:
    """A public seed lets one choose an update that is one coordinate after the rotation; a run's
    own seed does not.
    """
    mechanism = rotated(8192, 8.0)
    prepared = mechanism.rotation.back(np.eye(1, 8192)[0])
    assert gains(mechanism, prepared, [0])[0] < 0.11
    run: Any = evolve(mechanism, rotation=evolve(mechanism.rotation, seed=17))
    assert gains(run, prepared, [17])[0] > 0.99
    assert identity_of(run) != identity_of(mechanism)
    assert identity_of(build(describe(run))) == identity_of(run)


def test_sums_of_codes_come_back_at_their_size() -> None:
    found = calibrate(
        "imvu", ball=Ball(Norm.L2, 20_000), epsilon=1.0, honest=1000, releases=10, **TARGET
    )
    codes: Any = found.mechanism
    assert codes.rotation == Rotation(16_384)
    assert found.error.response > 0.99
    for kind in ("one coordinate", "concentrated", "constant"):
        update = UPDATES[kind](20_000, np.random.default_rng(2))
        assert abs(gains(codes, update, range(3)) - 1).max() < 0.01


def test_rows_and_signs_say_what_they_lose_too() -> None:
    ball = Ball(Norm.L2, 10_000)
    vector = VectorMVU(Profile.from_weights([0.5], [1.0, 4.0]), ball, keep=1024)
    # 0.9 % is what a spread-out update that fills the ball loses
    assert 0.985 < vector.error().response < 0.991
    assert evolve(vector, keep=16_384).error().response == 1
    kept = calibrate("imvu", ball=ball, epsilon=8.0, coordinates=4096, **TARGET)
    assert 0.98 < kept.error.response < 1
    for noise, low, high in ((5.0, 0.98, 1.0), (0.5, 0.5, 0.7)):
        sign = Sign(Gaussian(ball, noise))
        assert low < sign.error().response < high
        assert sign.error().response == pytest.approx(
            sign.expectation(1.0) / sign.slope_at_zero, rel=1e-12
        )
