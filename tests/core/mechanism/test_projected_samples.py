"""Samples on a few rotated coordinates: each is clipped among the kept, so that one moves the
mean by its share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.mechanism.makers import CountingWords
from core.mechanism.test_projected import aligned, spied
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
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.batch import BatchSum, PoissonBatch
from quietbit.mechanism.projected import Projected, ProjectedSamples
from quietbit.privacy.cost import sample_share
from quietbit.target import Unit
from refusals import refuses

DIMENSION, KEEP, RADIUS, ROWS = 900, 64, 2.0, 5
BALL = Ball(Norm.L2, DIMENSION)
GIVEN: Any = {"ball": BALL, "epsilon": 2.0, "delta": 1e-5, "adjacency": "zero-out", "releases": 3}


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
    found = calibrate(name, **GIVEN, coordinates=KEEP, samples=20)
    dense = calibrate(name, **{**GIVEN, "ball": Ball(Norm.L2, KEEP)}, samples=20)
    mechanism: Any = found.mechanism
    assert isinstance(mechanism, ProjectedSamples)
    assert found.guarantee == dense.guarantee
    assert found.guarantee.unit is Unit.SAMPLE
    assert mechanism.error().squared > dense.error.squared


def test_gradients_come_one_by_one_and_means_are_refused() -> None:
    uplink = Uplink(calibrate("gaussian", **GIVEN, coordinates=KEEP, samples=2).mechanism)
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
        Uplink(calibrate("gaussian", **GIVEN, coordinates=KEEP).mechanism).send_samples([ALIGNED])
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


def test_a_problem_that_shows_no_samples_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small_problem(samples=4)
    monkeypatch.delattr(type(problem), "gradients")
    with refuses("problem", "clusters"):
        simulate(problem, flat_plan("gaussian", **RUN, noise_multiplier=2.0), Training(0.5, 1))
