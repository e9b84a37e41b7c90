"""A rotated update comes back at its size, whatever it looks like; the account is the unrotated
one's.

What a mechanism says of its error is held against the exact mean of what is decoded, R^T f(R x),
without sampling noise: f by enumeration, averaged over seeds of the rotation.
"""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from core.statistical.kit import seed as fresh
from quietbit import (
    Adjacency,
    Ball,
    Gaussian,
    InterpolatedMVU,
    InvalidParameter,
    Norm,
    Uplink,
    VectorMVU,
    calibrate,
    seeded_rng,
)
from quietbit.design.profile import Profile
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.registry import build, describe, identity_of
from quietbit.mechanism.rotation import Rotation
from quietbit_lab.baseline.noise import Sign
from refusals import refuses

SEEDS = range(24)
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


def gains(mechanism: Any, update: Any, seeds: Any = SEEDS) -> Any:
    """<x, mean of what is decoded> / |x|^2, for rotations of these seeds."""
    unit = mechanism.ball.clip(np.asarray(update) * (1 / np.linalg.norm(update)))
    length, found = float(unit @ unit), []
    for seed in seeds:
        y = usual_kernel().rotate([unit], seed, mechanism.rotation.block, kind=np.float64)
        pieces = np.array_split(y, 1 + y.size // 2**20)
        found.append(
            sum(float(piece @ mechanism._moments(piece)[0]) for piece in pieces)
            / (mechanism.gain * length)
        )
    return np.array(found)


@pytest.mark.parametrize("kind", UPDATES)
@pytest.mark.parametrize("size", [4096, 5000, 20_001])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_every_update_comes_back_at_its_size(kind: str, size: int, epsilon: float) -> None:
    """Gain within 1 %, and on average over rotations not below what the mechanism says of the
    worst update.
    """
    mechanism = rotated(size, epsilon)
    update = UPDATES[kind](size, np.random.default_rng(size))
    found, said = gains(mechanism, update), mechanism.error()
    assert abs(found - 1).max() < 0.01
    assert found.mean() >= said.response
    assert said.response > 0.999
    assert mechanism.layout.size == -(-size // 8)  # one bit per parameter, nothing padded


@pytest.mark.parametrize("kind", UPDATES)
@pytest.mark.parametrize("size", [16, 67, 128, 1000, 2047])
def test_small_dimensions_say_what_they_lose(kind: str, size: int) -> None:
    mechanism = rotated(size, 8.0)
    update = UPDATES[kind](size, np.random.default_rng(size))
    many = gains(mechanism, update, range(100))
    # The mean of 100 seeds is itself uncertain: six standard errors.
    assert many.mean() >= mechanism.error().response - 6 * many.std() / np.sqrt(many.size)


def test_the_paper_s_own_way_says_what_it_loses() -> None:
    """Without a rotation one coordinate alone comes back at a tenth of its size, and the error
    says so.
    """
    ball = Ball(Norm.L2, 100_000)
    plain: Any = calibrate("imvu", ball=ball, epsilon=8.0, rotate=False, **TARGET)
    assert plain.mechanism.rotation is None
    assert plain.mechanism.expectation(1.0) == pytest.approx(plain.error.response, rel=1e-12)
    assert 0.09 < plain.error.response < 0.11
    update = heavy(ball.dimension, np.random.default_rng(1))
    lost = float(update @ plain.mechanism._moments(update)[0])
    assert lost < 0.6, "what the rotation is there for"
    turned: Any = calibrate("imvu", ball=ball, epsilon=8.0, **TARGET)
    assert gains(turned.mechanism, update).min() > 0.99
    assert turned.squared_error == pytest.approx(plain.squared_error, rel=1e-3)
    assert turned.relative_error < 1.02


def shared(name: str) -> Path:
    """The folder of data sets, where it has this one."""
    folder = Path(os.environ.get("QUIETBIT_DATA") or Path(__file__).parents[4] / "shared" / "data")
    if not (folder / name).is_dir():
        pytest.skip(f"the shared data sets are not in {folder}")
    return folder


@pytest.mark.needs_shared
def test_real_gradients_come_back_at_their_size() -> None:
    """Gradients of softmax regression of single MNIST images: a tenth of the pixels hold
    everything.
    """
    shared_data = shared("mnist")
    with gzip.open(shared_data / "mnist" / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(16 + 784 * 40), np.uint8, offset=16).reshape(40, 784) / 255
    with gzip.open(shared_data / "mnist" / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(8 + 40), np.uint8, offset=8)
    size = 7850
    mechanism: Any = calibrate("imvu", ball=Ball(Norm.L2, size), epsilon=8.0, **TARGET).mechanism
    for image, label in zip(images, labels, strict=True):
        errors = np.full(10, 0.1) - np.eye(10)[label]
        gradient = np.outer(errors, np.append(image, 1.0)).reshape(-1)
        assert abs(gains(mechanism, gradient, range(2)) - 1).max() < 0.01


@pytest.mark.parametrize("count", [3_000, pytest.param(12_000, marks=pytest.mark.long)])
def test_payloads_of_a_concentrated_update_have_its_mean(count: int) -> None:
    """Through `Uplink`: one coordinate among 4,097, estimated to a deviation of 0.005 or 0.0025;
    false alarm 1e-9.
    """
    size = 4097
    mechanism: Any = calibrate("imvu", ball=Ball(Norm.L2, size), epsilon=20.0, **TARGET).mechanism
    uplink, update, rng = (
        Uplink(mechanism),
        np.eye(1, size, 4090)[0].astype(np.float32),
        seeded_rng(fresh(3)),
    )
    mean = uplink.receive(uplink.send(update, rng) for _ in range(count))
    deviation = np.sqrt(mechanism.error().squared / count)
    assert deviation < 0.3 / np.sqrt(count) * 1.1
    assert abs(mean[4090] - 1) < 6.2 * deviation + (1 - mechanism.error().response)
    others = np.delete(mean, 4090)
    assert np.mean(others**2) == pytest.approx(deviation**2, rel=0.2)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_account_does_not_know_of_the_rotation(adjacency: Adjacency) -> None:
    mechanism: Any = calibrate("imvu", ball=Ball(Norm.L2, 5000), epsilon=2.0, **TARGET).mechanism
    for other in (None, Rotation(64), Rotation(4096, seed=9), Rotation(4096, exact=True)):
        same = evolve(mechanism, rotation=other)
        for times in (1, 10):
            assert (same.privacy(adjacency) * times).epsilon(1e-5) == (
                mechanism.privacy(adjacency) * times
            ).epsilon(1e-5)
    alone = evolve(mechanism, rotation=None)
    for order in (1.5, 8.0):
        assert mechanism.sum_privacy(50, adjacency).rdp(order) == alone.sum_privacy(
            50, adjacency
        ).rdp(order)


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
    mechanism: Any = calibrate("imvu", ball=Ball(Norm.L2, 8192), epsilon=8.0, **TARGET).mechanism
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
    sums = 500 * np.ones(20_000)
    assert codes.mean_from_sum(sums, 1000) == pytest.approx(
        codes.rotation.back(np.full(20_000, codes.values.mean()))
    )
    plain = calibrate(
        "imvu",
        ball=Ball(Norm.L2, 20_000),
        epsilon=1.0,
        honest=1000,
        releases=10,
        rotate=False,
        **TARGET,
    )
    assert plain.error.response < 0.2


def test_rows_and_signs_say_what_they_lose_too() -> None:
    ball = Ball(Norm.L2, 10_000)
    vector = VectorMVU(Profile.from_weights([0.5], [1.0, 4.0]), ball, keep=1024)
    assert (
        0.985 < vector.error().response < 0.991
    )  # 0.9 % is what a spread-out update that fills the ball loses
    assert (
        VectorMVU(Profile.from_weights([0.5], [1.0, 4.0]), ball, keep=16_384).error().response == 1
    )
    kept = calibrate("imvu", ball=ball, epsilon=8.0, coordinates=4096, **TARGET)
    assert 0.98 < kept.error.response < 1
    for noise, low, high in ((5.0, 0.98, 1.0), (0.5, 0.5, 0.7)):
        sign = Sign(Gaussian(ball, noise))
        assert low < sign.error().response < high
        assert sign.error().response == pytest.approx(
            sign.expectation(1.0) / sign.slope_at_zero, rel=1e-12
        )


def test_what_cannot_be_rotated_is_refused() -> None:
    design = calibrate("imvu", ball=Ball(Norm.L2, 64), epsilon=1.0, **TARGET).mechanism.design  # type: ignore[attr-defined]
    for ball in (Ball(Norm.L1, 64), Ball(Norm.L2, 63)):
        with pytest.raises(InvalidParameter):
            InterpolatedMVU(design, ball, rotation=Rotation(64))
    with refuses("block", 48):
        Rotation(48)
    with refuses("rotate", True):
        calibrate(
            "imvu",
            ball=Ball(Norm.L1, 64),
            epsilon=1.0,
            delta=0.0,
            adjacency="zero-out",
            rotate=True,
        )
    with refuses("rotate", True):
        calibrate("gaussian", ball=Ball(Norm.L2, 64), epsilon=1.0, rotate=True, **TARGET)
