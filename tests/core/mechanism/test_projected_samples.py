"""Samples on a few rotated coordinates: each is clipped among the kept, so that one moves the
mean by its share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.mechanism.makers import CountingWords
from core.mechanism.test_projected import Spy
from federation.simulate.makers import small_problem
from plans import flat_plan
from quietbit import (
    Adjacency,
    Ball,
    Gaussian,
    InvalidParameter,
    Norm,
    Uplink,
    calibrate,
    seeded_rng,
)
from quietbit.federation.simulate import Training, simulate
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.transform import rotate_back
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.batch import BatchSum, PoissonBatch
from quietbit.mechanism.projected import Projected, ProjectedSamples
from quietbit.mechanism.registry import build, describe, family_of, identity_of
from quietbit.privacy.cost import sample_share
from quietbit.target import Unit
from refusals import refuses

DIMENSION, KEEP, RADIUS, ROWS = 900, 64, 2.0, 5
BALL = Ball(Norm.L2, DIMENSION)
GIVEN: Any = {"ball": BALL, "epsilon": 2.0, "delta": 1e-5, "adjacency": "zero-out", "releases": 3}


def spied() -> tuple[Any, Any]:
    """A projection on known rows, and the inner mechanism, which keeps what it is handed."""
    plain = Projected(Gaussian(Ball(Norm.L2, KEEP), 1.0), BALL, rows=ROWS)
    spy, seen = Spy(plain.inner), Projected.__new__(Projected)
    for name in ("ball", "rotation_seed", "rows"):
        object.__setattr__(seen, name, getattr(plain, name))
    object.__setattr__(seen, "inner", spy)
    return seen, spy


def aligned() -> Any:
    """An update whose whole length lies in the kept rows: projecting lengthens it by sqrt(p / k)
    = 4.
    """
    along = np.zeros(1024)
    along[ReferenceKernel().rows(ROWS.to_bytes(8, "little"), KEEP, 1024)] = 1.0
    found = rotate_back(along, 0)[:DIMENSION]
    return found * (RADIUS / np.linalg.norm(found))


@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_one_sample_moves_what_is_released_by_its_share_and_no_more(
    size: int, adjacency: Adjacency
) -> None:
    """The worst sample there is; the same samples averaged first would move it four times as
    far.
    """
    seen, spy = spied()
    out, kernel = np.zeros(seen.layout.size, dtype=np.uint8), usual_kernel()
    others = [np.random.default_rng(k).normal(size=DIMENSION) for k in range(size - 1)]
    pair = (1e6 * aligned(), 0 * aligned() if adjacency is Adjacency.ZERO_OUT else -1e6 * aligned())
    for one in pair:
        ProjectedSamples(seen).write_samples(
            [[one], *([other] for other in others)], RADIUS, seeded_rng(1), kernel, out
        )
    moved = float(np.linalg.norm(spy.seen[0] - spy.seen[1]))
    share = RADIUS * sample_share(adjacency, size)
    assert 0.9 * share < moved <= share
    small = aligned() / 8  # short enough that the second clip of a mean cuts nothing
    for sign in (1.0, 0.0):
        mean = sign * small if size == 1 else sign * small / size
        seen.write([mean], RADIUS, seeded_rng(1), kernel, out)
    first = float(np.linalg.norm(spy.seen[2] - spy.seen[3]))
    assert first > 3 * np.linalg.norm(small) / size  # what `Projected` refuses a price for


def test_a_row_of_a_batch_is_clipped_among_the_kept_coordinates() -> None:
    """The same sample, in a batch that a gate adds up: it adds the clip, not four times that."""
    inner = Projected(Gaussian(Ball(Norm.L2, KEEP), 1.0), BALL, rows=ROWS)
    poisson = PoissonBatch(ProjectedSamples(inner), 10, 0.5)
    batch = BatchSum(poisson, RADIUS, seeded_rng(1), usual_kernel())
    batch.add(1e6 * aligned()[None])
    assert 0.9 * RADIUS < np.linalg.norm(batch._total) <= RADIUS


@pytest.mark.parametrize("name", ["imvu", "gaussian", "sign"])
def test_the_price_is_that_of_the_inner_mechanism_on_its_ball(name: str) -> None:
    found = calibrate(name, **GIVEN, coordinates=KEEP, samples=20)
    dense = calibrate(name, **{**GIVEN, "ball": Ball(Norm.L2, KEEP)}, samples=20)
    mechanism: Any = found.mechanism
    assert isinstance(mechanism, ProjectedSamples)
    assert found.guarantee == dense.guarantee
    assert found.guarantee.unit is Unit.SAMPLE
    assert identity_of(build(describe(mechanism))) == identity_of(mechanism)
    assert family_of(mechanism) == name
    assert mechanism.error().squared > dense.error.squared


def test_gradients_come_one_by_one_and_means_are_refused() -> None:
    uplink = Uplink(calibrate("gaussian", **GIVEN, coordinates=KEEP, samples=2).mechanism)
    words = CountingWords()
    with refuses("update", "their mean"):
        uplink.send(aligned(), words)
    for wrong in (
        [],
        [aligned(), np.full(DIMENSION, np.nan)],
        [aligned()[:-1]],
        [aligned(), np.zeros(3)],
    ):
        with pytest.raises(InvalidParameter):
            uplink.send_samples(wrong, words)
    assert words.draws == 0
    with refuses("mechanism", "Projected"):
        Uplink(calibrate("gaussian", **GIVEN, coordinates=KEEP).mechanism).send_samples([aligned()])
    with refuses("mechanism", "DitheredMVU"):
        calibrate("mvu", **GIVEN, coordinates=KEEP, samples=2)


def test_the_mean_of_gradients_is_received() -> None:
    """Eight standard deviations of the noise along the mean."""
    uplink = Uplink(
        calibrate("gaussian", **{**GIVEN, "epsilon": 1e4}, coordinates=256, samples=3).mechanism
    )
    draw, rng = np.random.default_rng(3), seeded_rng(5)
    gradients = draw.normal(size=(3, DIMENSION)) / 40  # of norm 0.75, inside the ball
    wanted = gradients.mean(axis=0)
    found = uplink.receive([uplink.send_samples(gradients, rng) for _ in range(300)])
    scale = float(wanted @ wanted)
    along = float(found @ wanted) / scale
    spread = np.sqrt(uplink.mechanism.error().squared / 300 / scale)
    assert abs(along - 1) < 8 * spread < 0.5


def test_a_run_protects_samples_on_kept_coordinates() -> None:
    problem = small_problem(samples=4)
    plan = flat_plan(
        "gaussian",
        clip=1.0,
        adjacency=Adjacency.ZERO_OUT,
        epsilon=8.0,
        samples=True,
        cohort=5,
        coordinates=16,
        rng="seeded",
    )
    run = simulate(problem, plan, Training(0.5, 6))
    assert run.status == "finished", run.reason
    assert isinstance(run.mechanism, ProjectedSamples)
    assert run.guarantee is not None
    assert run.guarantee.unit is Unit.SAMPLE
    assert run.guarantee.epsilon_upper <= 8.0
    assert run.bytes_per_client == 56 + 8 + 4 * 16
    by_hand = flat_plan(
        "gaussian",
        clip=1.0,
        adjacency=Adjacency.ZERO_OUT,
        noise_multiplier=2.0,
        samples=True,
        coordinates=16,
    ).mechanism_for(39, problem.sizes)
    assert isinstance(by_hand, ProjectedSamples)


def test_a_problem_that_shows_no_samples_is_refused() -> None:
    class Closed:
        """The same without `gradients`."""

        def __init__(self, problem: Any) -> None:
            for name in ("name", "dimension", "sizes", "initial", "updates", "evaluate"):
                setattr(self, name, getattr(problem, name))

    plan = flat_plan(
        "gaussian",
        clip=1.0,
        adjacency=Adjacency.ZERO_OUT,
        noise_multiplier=2.0,
        samples=True,
        coordinates=16,
    )
    with refuses("problem", "clusters"):
        simulate(Closed(small_problem(samples=4)), plan, Training(0.5, 1))
