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
    Gaussian,
    InvalidPayload,
    Norm,
    Uplink,
    calibrate,
    seeded_rng,
)
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.transform import rotate, rotate_back
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.base import Wrapper
from quietbit.mechanism.projected import Projected

DIMENSION, KEEP = 900, 64
BALL = Ball(Norm.L2, DIMENSION)
GIVEN: Any = {"epsilon": 8.08, "delta": 1e-5, "adjacency": "zero-out", "releases": 10}


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


def spied(plain: Projected) -> tuple[Any, Any]:
    """A projection, and its inner mechanism, which keeps what it is handed."""
    spy, seen = Spy(plain.inner), Projected.__new__(Projected)
    for name in ("ball", "rotation_seed", "rows"):
        object.__setattr__(seen, name, getattr(plain, name))
    object.__setattr__(seen, "inner", spy)
    return seen, spy


def aligned(rows: int) -> Any:
    """A unit vector whose whole length lies in these rows: projecting lengthens it by
    sqrt(p / k) = 4.
    """
    along = np.zeros(1024)
    along[ReferenceKernel().rows(rows.to_bytes(8, "little"), KEEP, 1024)] = 1.0
    found = rotate_back(along, 0)[:DIMENSION]
    return found / np.linalg.norm(found)


ADVERSARIAL = {
    "aligned": 100 * aligned(5),
    "spiky": 1e6 * np.eye(1, DIMENSION, 7)[0],
    "flat": np.full(DIMENSION, 3.0),
    "zero": np.zeros(DIMENSION),
}


@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("rows", [None, 5])
def test_what_the_inner_mechanism_releases_lies_in_its_ball_whatever_the_update(
    kind: str, rows: int | None
) -> None:
    """A Gaussian with next to no noise shows what was released: never longer than the clip,
    zero for zero.
    """
    quiet = Projected(Gaussian(Ball(Norm.L2, KEEP), 1e-6), BALL, rows=rows)
    payload = Uplink(quiet).send(ADVERSARIAL[kind], seeded_rng(3))
    kept = np.frombuffer(payload[-4 * KEEP :], dtype="<f4").astype(np.float64)
    assert np.linalg.norm(kept) <= (kind != "zero") + 1e-4


def test_rows_kept_are_those_of_the_rotation() -> None:
    seen, spy = spied(projected().at(9))
    update = np.random.default_rng(0).normal(size=DIMENSION) / 40
    out = np.zeros(seen.layout.size, dtype=np.uint8)
    seen.write([update], 1.0, seeded_rng(1), usual_kernel(), out)
    places = ReferenceKernel().rows((9).to_bytes(8, "little"), KEEP, 1024)
    expected = rotate(update, 0)[places] * np.sqrt(1024 / KEEP)
    assert np.allclose(spy.seen[0], expected, atol=1e-6)


def test_shared_rows_are_part_of_the_identity_and_send_no_nonce() -> None:
    found = projected(keep=256)
    update = np.random.default_rng(0).normal(size=DIMENSION) / 40
    assert len(Uplink(found).send(update)) == 96  # a short header, a nonce, 256 bits
    one = Uplink(found.at(1))
    payload = one.send(update)
    assert len(payload) == 64 + 32
    assert one.receive([payload]).shape == (DIMENSION,)
    for other in (found, found.at(2)):
        with pytest.raises(InvalidPayload):
            Uplink(other).receive([payload])


@pytest.mark.parametrize("shared", [False, True])
def test_means_are_those_of_the_updates(shared: bool) -> None:
    """8 standard deviations along the update, and the claimed squared error within a tenth."""
    found = projected(keep=256)
    update = np.random.default_rng(4).normal(size=DIMENSION)
    update /= np.linalg.norm(update)
    count, rng = 300, seeded_rng(11)
    estimates = []
    for number in range(count):
        uplink = Uplink(found.at(number) if shared else found)
        estimates.append(uplink.receive([uplink.send(update, rng)]))
    along = np.array([estimate @ update for estimate in estimates])
    assert abs(along.mean() - 1) < 8 * along.std() / np.sqrt(count)
    squared = float(np.mean((np.array(estimates) - update) ** 2))
    claim = found.inner.error().squared + 1.0 / 256 * (1 - 256 / 1024)
    assert squared == pytest.approx(claim, rel=0.1)


def test_sums_of_kept_coordinates_have_the_account_of_the_sum() -> None:
    given: Any = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "zero-out", "honest": 100}
    found = calibrate("imvu", ball=BALL, **given, coordinates=256)
    assert found.guarantee == calibrate("imvu", ball=Ball(Norm.L2, 256), **given).guarantee
    assert found.error.shared == pytest.approx(1 / 256 * (1 - 256 / 1024))


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


@pytest.mark.parametrize("clip", [1e27, 1e-27])
@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_every_update_at_the_largest_and_smallest_clip_is_sent(clip: float, kind: str) -> None:
    assert len(Uplink(projected(), clip=clip).send(clip * ADVERSARIAL[kind])) == 72
