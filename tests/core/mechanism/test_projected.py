"""Mechanisms on a few rotated coordinates, for clients and for samples: the account is the inner
one's, whatever the update, on the real path.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.mechanism.makers import CountingWords
from federation.simulate.makers import small_problem
from plans import flat_plan
from quietbit import (
    Adjacency,
    Ball,
    Gaussian,
    InvalidParameter,
    InvalidPayload,
    Norm,
    Uplink,
    calibrate,
    seeded_rng,
)
from quietbit.federation.simulate import Training, simulate
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.transform import rotate, rotate_back
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.base import Wrapper
from quietbit.mechanism.batch import BatchSum, PoissonBatch
from quietbit.mechanism.projected import Projected, ProjectedSamples
from quietbit.privacy.cost import sample_share
from quietbit.target import Unit
from refusals import refuses

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
    assert quiet.honest_length == 4 * quiet.inner.honest_length  # sqrt(p / k)


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
    projection = 1 / 256 * (1 - 256 / 1024)
    claim = found.inner.error().squared + projection
    assert found.variance(1.0) == pytest.approx(found.inner.variance(0.0) + projection)
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


RADIUS, ROWS = 2.0, 5
BY_SAMPLE: Any = {
    "ball": BALL,
    "epsilon": 2.0,
    "delta": 1e-5,
    "adjacency": "zero-out",
    "releases": 3,
}


PROJECTED = Projected(Gaussian(Ball(Norm.L2, KEEP), 1.0), BALL, rows=ROWS)
ALIGNED = RADIUS * aligned(ROWS)


@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_one_sample_moves_what_is_released_by_its_share_and_no_more(
    size: int, adjacency: Adjacency
) -> None:
    """The worst sample there is; the same samples averaged first would move it four times as
    far.
    """
    seen, spy = spied(PROJECTED)
    out, kernel = np.zeros(seen.layout.size, dtype=np.uint8), usual_kernel()
    others = [np.random.default_rng(k).normal(size=DIMENSION) for k in range(size - 1)]
    other_sample = 0 * ALIGNED if adjacency is Adjacency.ZERO_OUT else -1e6 * ALIGNED
    for one in (1e6 * ALIGNED, other_sample):
        ProjectedSamples(seen).write_samples(
            [[one], *([other] for other in others)], RADIUS, seeded_rng(1), kernel, out
        )
    moved = float(np.linalg.norm(spy.seen[0] - spy.seen[1]))
    share = RADIUS * sample_share(adjacency, size)
    assert 0.9 * share < moved <= share
    small = ALIGNED / 8  # short enough that the second clip of a mean cuts nothing
    for sign in (1.0, 0.0):
        seen.write([sign * small / size], RADIUS, seeded_rng(1), kernel, out)
    first = float(np.linalg.norm(spy.seen[2] - spy.seen[3]))
    assert first > 3 * np.linalg.norm(small) / size  # what `Projected` refuses a price for


def test_a_row_of_a_batch_is_clipped_among_the_kept_coordinates() -> None:
    """The same sample, in a batch that a gate adds up: it adds the clip, not four times that."""
    poisson = PoissonBatch(ProjectedSamples(PROJECTED), 10, 0.5)
    batch = BatchSum(poisson, RADIUS, seeded_rng(1), usual_kernel())
    batch.add(1e6 * ALIGNED[None])
    assert 0.9 * RADIUS < np.linalg.norm(batch._total) <= RADIUS


@pytest.mark.parametrize("name", ["imvu", "gaussian", "sign"])
def test_the_price_is_that_of_the_inner_mechanism_on_its_ball(name: str) -> None:
    found = calibrate(name, **BY_SAMPLE, coordinates=KEEP, samples=20)
    dense = calibrate(name, **{**BY_SAMPLE, "ball": Ball(Norm.L2, KEEP)}, samples=20)
    mechanism: Any = found.mechanism
    assert isinstance(mechanism, ProjectedSamples)
    assert found.guarantee == dense.guarantee
    assert found.guarantee.unit is Unit.SAMPLE
    assert mechanism.error().squared > dense.error.squared


def test_gradients_come_one_by_one_and_means_are_refused() -> None:
    uplink = Uplink(calibrate("gaussian", **BY_SAMPLE, coordinates=KEEP, samples=2).mechanism)
    words = CountingWords()
    with refuses("update", "their mean"):
        uplink.send(ALIGNED, words)
    for wrong in (
        [],
        [ALIGNED, np.full(DIMENSION, np.nan)],
        [ALIGNED[:-1]],
        [ALIGNED, np.zeros(3)],
    ):
        with pytest.raises(InvalidParameter):
            uplink.send_samples(wrong, words)
    assert words.draws == 0
    with refuses("mechanism", "Projected"):
        Uplink(calibrate("gaussian", **BY_SAMPLE, coordinates=KEEP).mechanism).send_samples(
            [ALIGNED]
        )
    with refuses("mechanism", "DitheredMVU"):
        calibrate("mvu", **BY_SAMPLE, coordinates=KEEP, samples=2)


def test_the_mean_of_gradients_is_received() -> None:
    """Eight standard deviations of the noise along the mean."""
    uplink = Uplink(
        calibrate("gaussian", **{**BY_SAMPLE, "epsilon": 1e4}, coordinates=256, samples=3).mechanism
    )
    draw, rng = np.random.default_rng(3), seeded_rng(5)
    gradients = draw.normal(size=(3, DIMENSION)) / 40  # of norm 0.75, inside the ball
    wanted = gradients.mean(axis=0)
    found = uplink.receive([uplink.send_samples(gradients, rng) for _ in range(300)])
    scale = float(wanted @ wanted)
    along = float(found @ wanted) / scale
    spread = np.sqrt(uplink.mechanism.error().squared / 300 / scale)
    assert abs(along - 1) < 8 * spread < 0.5


RUN: Any = {"clip": 1.0, "adjacency": "zero-out", "samples": True, "coordinates": 16}


def test_a_run_protects_samples_on_kept_coordinates() -> None:
    problem = small_problem(samples=4)
    plan = flat_plan("gaussian", **RUN, epsilon=8.0, cohort=5, rng="seeded")
    run = simulate(problem, plan, Training(0.5, 6))
    assert run.status == "finished", run.reason
    assert isinstance(run.mechanism, ProjectedSamples)
    assert run.guarantee is not None
    assert run.guarantee.unit is Unit.SAMPLE
    assert run.guarantee.epsilon_upper <= 8.0
    assert run.bytes_per_client == 56 + 8 + 4 * 16


class Closed:
    """A problem without `gradients`."""

    def __init__(self, problem: Any) -> None:
        for name in ("name", "dimension", "sizes", "initial", "updates", "evaluate"):
            setattr(self, name, getattr(problem, name))


def test_a_problem_that_shows_no_samples_is_refused() -> None:
    problem = Closed(small_problem(samples=4))
    with refuses("problem", "clusters"):
        simulate(problem, flat_plan("gaussian", **RUN, noise_multiplier=2.0), Training(0.5, 1))
