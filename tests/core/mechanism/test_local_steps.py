"""Several private steps per release: price, law of what leaves, and apps that stop early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quietbit import (
    Ball,
    Gaussian,
    InvalidPayload,
    Norm,
    calibrate,
    seeded_rng,
)
from quietbit.kernel.select import default_kernel
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.mechanism.registry import family_of
from quietbit.wire.uplink import Uplink
from refusals import refuses

DIMENSION = 300
BALL = Ball(Norm.L2, DIMENSION)
STEP = PoissonBatch(Gaussian(BALL, 0.01), 50, 0.1)


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_what_is_decoded_has_the_mean_of_the_difference(bits: int) -> None:
    """Given the steps, rounding is unbiased in every coordinate: 200 roundings of one
    difference, 8 deviations.
    """
    site = LocalSteps(PoissonBatch(Gaussian(BALL, 1e-6), 50, 0.1), 2, 0.5, bits)
    row = np.zeros((1, DIMENSION))
    row[0, :3] = 0.6, -0.5, 0.2
    uplink, rng, count = Uplink(site), seeded_rng(bits), 200
    payloads = []
    for _ in range(count):
        batch = uplink.batch(rng)
        batch.add(row)
        changed = batch.step()
        np.testing.assert_allclose(changed, 0.5 * row[0] / 50, atol=1e-5)
        batch.add(row)
        assert batch.step() is None
        payloads.append(uplink.send_batch(batch))
    truth = 2 * 0.5 * row[0] / 50
    # No rotated coordinate is longer than the difference.
    deviation = np.linalg.norm(truth) / (2**bits - 1) / count**0.5
    np.testing.assert_allclose(uplink.receive(payloads), truth, atol=8 * deviation + 1e-6)


def test_an_app_that_stops_early_is_not_told_from_one_that_does_not() -> None:
    """Steps that the app did not take are taken for it, of empty batches: their noise is there."""
    site, kernel = LocalSteps(STEP, 9, 1.0, 8), default_kernel()
    means = []
    for taken in (0, 4, 9):
        batch = site.begin(1.0, seeded_rng(taken), kernel)
        for _ in range(taken):
            batch.step()
        uplink = Uplink(site)
        means.append(np.asarray(uplink.receive([uplink.send_batch(batch)])))
    # 300 coordinates of deviation 0.03: their root mean square is within a third of it.
    assert np.sqrt(np.mean(np.square(means), axis=1)) == pytest.approx(0.03, rel=0.33)


def test_no_step_beyond_the_last() -> None:
    batch = LocalSteps(STEP, 2, 1.0).begin(1.0, seeded_rng(1), default_kernel())
    assert batch.step() is not None
    assert batch.step() is None
    with refuses("number of steps", 3):
        batch.step()


def test_any_mechanism_of_batches_takes_steps() -> None:
    one_bit = calibrate(
        "imvu", ball=BALL, epsilon=4.0, delta=1e-5, adjacency="zero-out", samples=50, releases=10
    ).mechanism
    site = LocalSteps(PoissonBatch(one_bit, 50, 0.5), 3, 0.1)
    uplink = Uplink(site)
    assert np.isfinite(uplink.receive([uplink.send_batch(uplink.batch(seeded_rng(3)))])).all()
    assert family_of(site) == "imvu"


def body(site: LocalSteps, scale: float, codes: int = 0) -> Any:
    """A body with this largest coordinate, and this byte everywhere after it."""
    found = np.full(site.layout.size, codes, dtype=np.uint8)
    found[:4] = np.frombuffer(np.float32(scale).tobytes(), dtype=np.uint8)
    return found


SITE = LocalSteps(STEP, 2, 1.0)
ODD = LocalSteps(PoissonBatch(Gaussian(Ball(Norm.L2, 301), 0.01), 50, 0.1), 2, 1.0, 3)
BAD = [
    *(("largest coordinate", SITE, body(SITE, scale)) for scale in (0.0, -1.0, 3e38, 10.0)),
    *(("largest coordinate", SITE, body(SITE, scale)) for scale in (np.inf, np.nan)),
    # No coordinate is too large, and all of them together are.
    ("length of the payload", SITE, body(SITE, 0.9 * SITE._longest, 255)),
    ("padding", ODD, body(ODD, 0.5, 128)),
]


@pytest.mark.parametrize(("reason", "site", "wrong"), BAD)
def test_bad_payloads_are_refused(reason: str, site: LocalSteps, wrong: Any) -> None:
    with pytest.raises(InvalidPayload, match=reason):
        site.accumulator(default_kernel(), 1).check(wrong)


def test_an_update_is_no_batch() -> None:
    with refuses("update", "a mean"):
        Uplink(SITE).send(np.zeros(DIMENSION, dtype=np.float32))
