"""Mechanisms on a few rotated coordinates: the account is the inner one's, whatever the update,
on the real path.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quietbit import (
    Adjacency,
    Ball,
    InvalidPayload,
    Norm,
    Uplink,
    calibrate,
    seeded_rng,
)
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.transform import rotate
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.base import Wrapper
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.registry import build, describe, identity_of
from quietbit.mechanism.rotation import fewest_kept
from refusals import refuses

DIMENSION, KEEP = 900, 64
BALL = Ball(Norm.L2, DIMENSION)
GIVEN: Any = {"epsilon": 8.08, "delta": 1e-5, "adjacency": "zero-out", "releases": 10}
NAMES = ("imvu", "gaussian", "sign", "skellam", "mvu")


def projected(name: str = "imvu", keep: int | str = KEEP) -> Any:
    return calibrate(name, ball=BALL, coordinates=keep, **GIVEN).mechanism


class Spy(Wrapper):
    """An inner mechanism that keeps what it is handed."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.seen = inner, []

    def cost(self, adjacency: Any) -> Any:
        return self.inner.cost(adjacency)

    def write(self, update: Any, clip: float, rng: Any, kernel: Any, out: Any) -> None:
        self.seen.append(np.concatenate([np.asarray(part).reshape(-1) for part in update]))
        self.inner.write(update, clip, rng, kernel, out)


@pytest.mark.parametrize("name", NAMES)
def test_the_account_is_that_of_the_inner_mechanism(name: str) -> None:
    found = projected(name)
    inner = calibrate(name, ball=Ball(Norm.L2, KEEP), **GIVEN).mechanism
    for adjacency in Adjacency:
        ours, theirs = (found.privacy(adjacency) * 10), (inner.privacy(adjacency) * 10)
        assert all(ours.rdp(alpha) == theirs.rdp(alpha) for alpha in (1.5, 2.0, 30.0))
        assert ours.guarantee(1e-5) == theirs.guarantee(1e-5)
    assert identity_of(build(describe(found))) == identity_of(found)


def adversarial() -> dict[str, Any]:
    """Updates that put all of their length into rows that are kept, one coordinate, or nothing."""
    aligned = np.zeros(1024)
    aligned[ReferenceKernel().rows((5).to_bytes(8, "little"), KEEP, 1024)] = 1.0
    from quietbit.kernel.transform import rotate_back

    along = rotate_back(aligned, 0)[:DIMENSION]
    spike = np.zeros(DIMENSION)
    spike[7] = 1e6
    return {
        "aligned": along * 100,
        "spiky": spike,
        "flat": np.full(DIMENSION, 3.0),
        "zero": np.zeros(DIMENSION),
    }


@pytest.mark.parametrize("kind", ["aligned", "spiky", "flat", "zero"])
def test_what_the_inner_mechanism_releases_lies_in_its_ball_whatever_the_update(kind: str) -> None:
    """A Gaussian with next to no noise shows what was released: never longer than the clip,
    zero for zero.
    """
    update = adversarial()[kind]
    quiet = Projected(
        calibrate(
            "gaussian", ball=Ball(Norm.L2, KEEP), epsilon=1e6, delta=0.5, adjacency="zero-out"
        ).mechanism,
        BALL,
    )
    noise = quiet.inner.unit
    for rows_of in (None, 5):
        chosen = quiet if rows_of is None else quiet.at(rows_of)
        payload = Uplink(chosen).send(update, seeded_rng(3))
        kept = np.frombuffer(payload[-4 * KEEP :], dtype="<f4").astype(np.float64)
        assert np.linalg.norm(kept) <= 1.0 + 10 * noise * np.sqrt(KEEP)
        if kind == "zero":
            assert np.linalg.norm(kept) <= 10 * noise * np.sqrt(KEEP)


def test_a_sample_s_price_is_refused_with_the_reason() -> None:
    with refuses("mechanism", "Projected"):
        projected().privacy(Adjacency.ZERO_OUT, 10)


def test_rows_kept_are_those_of_the_rotation() -> None:
    found = projected().at(9)
    spy: Any = Spy(found.inner)
    seen = Projected.__new__(Projected)
    for name in ("ball", "rotation_seed", "rows"):
        object.__setattr__(seen, name, getattr(found, name))
    object.__setattr__(seen, "inner", spy)
    update = np.random.default_rng(0).normal(size=DIMENSION) / 40
    out = np.zeros(found.layout.size, dtype=np.uint8)
    seen.write([update], 1.0, seeded_rng(1), usual_kernel(), out)
    places = ReferenceKernel().rows((9).to_bytes(8, "little"), KEEP, 1024)
    expected = rotate(update, 0)[places] * np.sqrt(1024 / KEEP)
    assert np.allclose(spy.seen[0], expected, atol=1e-6)


def test_shared_rows_are_part_of_the_identity_and_send_no_nonce() -> None:
    found = projected(keep=256)
    update = np.random.default_rng(0).normal(size=DIMENSION) / 40
    assert len(Uplink(found).send(update)) == 96  # a short header, a nonce, 256 bits
    one, other = Uplink(found.at(1)), Uplink(found.at(2))
    payload = one.send(update)
    assert len(payload) == 64 + 32
    assert one.receive([payload]).shape == (DIMENSION,)
    with pytest.raises(InvalidPayload, match="mechanism identity"):
        other.receive([payload])
    with pytest.raises(InvalidPayload):
        Uplink(found).receive([payload])


@pytest.mark.parametrize("shared", [False, True])
def test_means_are_those_of_the_updates(shared: bool) -> None:
    """8 standard deviations along the update, and the claimed squared error within a tenth."""
    found = projected(keep=256)
    update = np.random.default_rng(4).normal(size=DIMENSION)
    update /= np.linalg.norm(update)
    count, rng = 800, seeded_rng(11)
    if shared:
        estimates = [
            Uplink(found.at(k)).receive([Uplink(found.at(k)).send(update, rng)])
            for k in range(count)
        ]
    else:
        uplink = Uplink(found)
        estimates = [uplink.receive([uplink.send(update, rng)]) for _ in range(count)]
    along = np.array([estimate @ update for estimate in estimates])
    assert abs(along.mean() - 1) < 8 * along.std() / np.sqrt(count)
    squared = float(np.mean((np.array(estimates) - update) ** 2))
    claim = found.inner.error().squared + 1.0 / 256 * (1 - 256 / 1024)
    assert squared == pytest.approx(claim, rel=0.1)


def test_sums_of_kept_coordinates_have_the_account_of_the_sum_and_decode_to_the_mean() -> None:
    given: Any = {
        "ball": BALL,
        "epsilon": 1.0,
        "delta": 1e-5,
        "adjacency": "zero-out",
        "honest": 100,
    }
    found = calibrate("imvu", **given, coordinates=256)
    dense = calibrate("imvu", **given | {"ball": Ball(Norm.L2, 256)})
    assert found.guarantee == dense.guarantee
    assert found.error.shared == pytest.approx(1 / 256 * (1 - 256 / 1024))
    projected_sums: Any = found.mechanism
    mechanism: Any = projected_sums.at(3)
    with refuses("mechanism", "Projected"):
        Projected(mechanism.inner, BALL).sum_privacy(100, Adjacency.ZERO_OUT)
    zeros = mechanism.mean_from_sum(np.full(256, 50), 100)
    assert np.allclose(zeros, 0, atol=1e-9)


def test_the_squared_error_of_sums_is_that_of_sums() -> None:
    """Of a hundred clients with one and the same update: never above the claim, and within a
    tenth below it.
    """
    given: Any = {
        "ball": BALL,
        "epsilon": 1.0,
        "delta": 1e-5,
        "adjacency": "zero-out",
        "honest": 100,
    }
    found = calibrate("imvu", **given, coordinates=256)
    mechanism: Any = found.mechanism
    rng, errors = np.random.default_rng(8), []
    for number in range(80):
        update = rng.normal(size=DIMENSION)
        update /= np.linalg.norm(update)
        here = mechanism.at(number)
        kept = here.inner.ball.clip(
            here.project([update], 1.0, number.to_bytes(8, "little"), usual_kernel())
        )
        ups = np.array([here.inner.distribution(float(value))[1] for value in kept])
        errors.append(np.mean((here.mean_from_sum(rng.binomial(100, ups), 100) - update) ** 2))
    # Each is about a mean of 256 squares of normals: all together are within 4 % of what is
    # expected.
    assert 0.9 * found.error.of_mean(100) < np.mean(errors) < 1.04 * found.error.of_mean(100)


@pytest.mark.parametrize("keep", [0, 3, 2048, "few", 1.5])
def test_numbers_that_cannot_be_kept_are_refused(keep: Any) -> None:
    with refuses("coordinates"):
        projected(keep=keep)
    with refuses("norm of the ball", "l1"):
        calibrate(
            "laplace",
            ball=Ball(Norm.L1, 100),
            epsilon=1.0,
            delta=0.0,
            adjacency="zero-out",
            coordinates=16,
        )


@pytest.mark.parametrize(("keep", "most"), [(256, 1.07), (1024, 1.025), (64, 1.14)])
def test_rotated_coordinates_are_cut_where_that_sharpens_the_account(
    keep: int, most: float
) -> None:
    """Beside the Gaussian's error; the account is the inner mechanism's own, of inputs that are
    cut.
    """
    found = calibrate("imvu", ball=BALL, coordinates=keep, **GIVEN)
    mechanism: Any = found.mechanism
    assert mechanism.inner.error().squared < most * found.gaussian_squared_error
    assert mechanism.inner.clamp == (keep > 64)
    assert 8.07 < (mechanism.inner.privacy(Adjacency.ZERO_OUT) * 10).epsilon(1e-5) <= 8.08


def test_auto_keeps_the_fewest_that_cost_one_percent() -> None:
    assert fewest_kept(2.0, 10**6) == 64
    assert projected(keep="auto").keep == 64


@pytest.mark.parametrize("clip", [1e30, 1e-30, 2.0**91])
def test_a_clip_at_which_only_some_updates_could_be_rotated_is_refused_whole(clip: float) -> None:
    """Single precision ends at 2^96: refusing one update and sending another would tell which it
    was.
    """
    with refuses("clip"):
        Uplink(projected(), clip=clip)


@pytest.mark.parametrize("clip", [1e27, 1e-27])
def test_every_update_at_the_largest_and_smallest_clip_is_sent(clip: float) -> None:
    found = calibrate("imvu", ball=Ball(Norm.L2, DIMENSION), coordinates=KEEP, **GIVEN)
    uplink = Uplink(found.mechanism, clip=clip)
    spike, flat = np.zeros(DIMENSION), np.full(DIMENSION, clip)
    spike[3] = clip
    assert {len(uplink.send(update)) for update in (spike, flat, -spike, 1e3 * flat, 0 * flat)} == {
        72
    }
