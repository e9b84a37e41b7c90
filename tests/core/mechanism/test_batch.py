"""Poisson batches and private steps as mechanisms: prices, clipping row by row, what is drawn and
what leaves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from quietbit import (
    Adjacency,
    Ball,
    Gaussian,
    InvalidPayload,
    Norm,
    calibrate,
    secure_rng,
    seeded_rng,
)
from quietbit.kernel.select import default_kernel
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.batch import BatchSum, LocalSteps, PoissonBatch, draw_batch
from quietbit.mechanism.registry import family_of
from quietbit.privacy.account import ORDERS
from quietbit.wire.uplink import Uplink
from refusals import refuses

BALL = Ball(Norm.L2, 64)
ZERO_OUT, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


GIVEN: dict[str, Any] = {"ball": BALL, "epsilon": 2.0, "delta": 1e-5, "adjacency": "zero-out"}
ONE_BIT, KEPT = (
    PoissonBatch(calibrate("imvu", **GIVEN, **more, samples=10, releases=200).mechanism, 10, 0.1)
    for more in ({}, {"coordinates": 16})
)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("batch", [PoissonBatch(Gaussian(BALL, 0.05), 50, 0.1), ONE_BIT, KEPT])
def test_sampling_amplifies_floats_and_bits_alike(batch: Any, adjacency: Adjacency) -> None:
    sampled, whole = (one.privacy(adjacency, batch.batch) for one in (batch, batch.inner))
    assert (sampled * 20).epsilon(1e-5) < 0.4 * (whole * 20).epsilon(1e-5)
    assert sampled.slack == whole.slack
    assert np.isfinite([sampled.certified().rdp(order) for order in ORDERS]).all()
    assert sampled.lost == 0


def divergence(first: Any, second: Any, alpha: float) -> float:
    """D_alpha of two vectors of masses."""
    terms = alpha * np.log(first) + (1 - alpha) * np.log(second)
    return float(np.logaddexp.reduce(terms)) / (alpha - 1)


def worlds(rate: float, without: Any, there: Any, back: Any) -> list[tuple[Adjacency, Any, Any]]:
    """Pairs of laws with and without a sample, and with another one in its place."""
    mixed, other = ((1 - rate) * without + rate * found for found in (there, back))
    return [(ZERO_OUT, mixed, without), (ZERO_OUT, without, mixed), (REPLACE, mixed, other)]


@pytest.mark.parametrize(("mu", "rate"), [(0.3, 0.1), (1.0, 0.02), (2.0, 0.5)])
def test_divergences_bound_those_of_brute_force_both_ways_round(mu: float, rate: float) -> None:
    batch = PoissonBatch(Gaussian(BALL, 1 / (mu * 10)), 10, rate)
    bounds = {which: batch.privacy(which, 10).certified().rdp for which in Adjacency}
    x, step = np.linspace(-12, 10 + 9 * mu, 20_001, retstep=True)
    laws = (norm.pdf(x, at) * step for at in (0.0, mu, -mu))
    pairs = worlds(rate, *laws)
    for alpha in (1.25, 2.0, 3.0, 4.5, 8.0):
        for which, first, second in pairs:
            assert divergence(first, second, alpha) <= bounds[which](alpha) * (1 + 1e-7) + 1e-12
        if alpha == int(alpha):
            _, first, second = pairs[0]
            assert bounds[ZERO_OUT](alpha) == pytest.approx(
                divergence(first, second, alpha), rel=1e-3
            )


@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_divergences_of_one_bit_bound_those_of_brute_force_both_ways_round(rate: float) -> None:
    """Six coordinates, all 64 outcomes, one sample that moves the input from several places in
    several directions.
    """
    inner: Any = calibrate("imvu", **{**GIVEN, "ball": Ball(Norm.L2, 6)}, rotate=False).mechanism
    batch, rng = PoissonBatch(inner, 2, rate), np.random.default_rng(7)
    bounds = {which: batch.privacy(which, 2).certified().rdp for which in Adjacency}
    codes = np.array(list(np.ndindex(*[2] * 6)))

    def law(x: Any) -> Any:
        ones = np.array([inner.distribution(float(value))[1] for value in x])
        return np.prod(np.where(codes == 1, ones, 1 - ones), axis=1)

    for trial in range(12):
        others = rng.normal(size=6) * (trial % 3) / 8
        step = np.eye(6)[0] if trial % 2 else rng.normal(size=6)
        step /= 2 * np.linalg.norm(step)
        for which, p, q in worlds(rate, law(others), law(others + step), law(others - step)):
            for alpha in (1.3, 2.0, 5.0, 17.5):
                assert divergence(p, q, alpha) <= bounds[which](alpha)


def test_mechanisms_without_a_gaussian_pair_are_refused_where_batches_are_drawn() -> None:
    skellam = calibrate("skellam", **GIVEN, samples=50).mechanism
    assert PoissonBatch(skellam, 50, 1.0).privacy(ZERO_OUT, 50).epsilon(1e-5) <= 2.0
    with refuses("slope of the cost"):
        PoissonBatch(skellam, 50, 0.1).privacy(ZERO_OUT, 50)
    with refuses("samples", 5000):
        PoissonBatch(Gaussian(BALL, 0.05), 50, 0.1).privacy(ZERO_OUT, 5000)


def exact(mechanism: Mechanism, rows: np.ndarray) -> np.ndarray:
    """What is released, with noise too small to be seen."""
    uplink = Uplink(mechanism)
    return np.asarray(uplink.receive([uplink.send_samples(list(rows), seeded_rng(1))]))


def test_each_row_is_clipped_and_the_sum_is_over_the_expected_number() -> None:
    batch = PoissonBatch(Gaussian(BALL, 1e-6), 4, 0.1)
    rows = np.zeros((3, 64))
    rows[0, 0], rows[1, 1], rows[2, 2] = 100.0, 0.5, -1e300
    expected = np.zeros(64)
    expected[:3] = 0.25, 0.125, -0.25
    np.testing.assert_allclose(exact(batch, rows), expected, atol=1e-5)
    assert np.abs(exact(batch, rows[:0])).max() < 1e-5  # an empty batch is a release of zero
    assert np.linalg.norm(exact(batch, np.repeat(rows[:1], 400, axis=0))) <= 1 + 1e-4


@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("batch", [ONE_BIT, KEPT])
def test_one_sample_that_is_not_finite_takes_nothing_from_the_others(
    spoilt: float, batch: Any
) -> None:
    good = np.random.default_rng(3).normal(size=(5, 64))
    bad = np.insert(good, 2, spoilt, axis=0)
    sums = []
    for rows in (good, bad):
        total = BatchSum(batch, 1.0, seeded_rng(5), default_kernel())
        total.add(rows)
        sums.append(total._total)
    np.testing.assert_array_equal(*sums)


def test_a_sum_of_far_more_rows_than_expected_is_not_rounded_apart() -> None:
    total = BatchSum(
        PoissonBatch(Gaussian(Ball(Norm.L2, 2), 1e-3), 1, 0.5), 1.0, seeded_rng(1), default_kernel()
    )
    rows = np.concatenate([[[1.0, 0.0]], np.full((5000, 2), 2.0**-54), [[-1.0, 0.0]]])
    total.add(rows)
    assert (total._total + total._rounding).tolist() == [
        math.fsum(rows[:, 0]),
        math.fsum(rows[:, 1]),
    ]


def test_rows_of_another_length_are_refused() -> None:
    total = BatchSum(ONE_BIT, 1.0, seeded_rng(5), default_kernel())
    for rows in (np.zeros((2, 63)), np.zeros(64)):
        with refuses("gradients"):
            total.add(rows)


def test_batches_are_drawn_with_the_rate_and_independently() -> None:
    drawn = np.array(
        [np.bincount(draw_batch(secure_rng(), 0.25, 40), minlength=40) for _ in range(4000)]
    )
    assert abs(drawn.mean() - 0.25) < 0.006  # five deviations
    assert (
        abs(drawn.sum(axis=1).var() - 7.5) < 1.0
    )  # a binomial's, not that of a batch of fixed size
    assert draw_batch(secure_rng(), 1.0, 7).tolist() == list(range(7))
    assert draw_batch(secure_rng(), 0.5, 0).size == 0


DIMENSION = 300
WIDE = Ball(Norm.L2, DIMENSION)
STEP = PoissonBatch(Gaussian(WIDE, 0.01), 50, 0.1)


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_what_is_decoded_has_the_mean_of_the_difference(bits: int) -> None:
    """Given the steps, rounding is unbiased in every coordinate: 200 roundings of one
    difference, 8 deviations.
    """
    site = LocalSteps(PoissonBatch(Gaussian(WIDE, 1e-6), 50, 0.1), 2, 0.5, bits)
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
    site = LocalSteps(ONE_BIT, 3, 0.1)
    uplink = Uplink(site)
    assert np.isfinite(uplink.receive([uplink.send_batch(uplink.batch(seeded_rng(3)))])).all()
    assert family_of(site) == "imvu"


def body_of(site: LocalSteps, scale: float, codes: int = 0) -> Any:
    """A body_of with this largest coordinate, and this byte everywhere after it."""
    found = np.full(site.layout.size, codes, dtype=np.uint8)
    found[:4] = np.frombuffer(np.float32(scale).tobytes(), dtype=np.uint8)
    return found


SITE = LocalSteps(STEP, 2, 1.0)
ODD = LocalSteps(PoissonBatch(Gaussian(Ball(Norm.L2, 301), 0.01), 50, 0.1), 2, 1.0, 3)
BAD = [
    *(("largest coordinate", SITE, body_of(SITE, scale)) for scale in (0.0, -1.0, 3e38, 10.0)),
    *(("largest coordinate", SITE, body_of(SITE, scale)) for scale in (np.inf, np.nan)),
    # No coordinate is too large, and all of them together are.
    ("length of the payload", SITE, body_of(SITE, 0.9 * SITE._longest, 255)),
    ("padding", ODD, body_of(ODD, 0.5, 128)),
]


@pytest.mark.parametrize(("reason", "site", "wrong"), BAD)
def test_bad_payloads_are_refused(reason: str, site: LocalSteps, wrong: Any) -> None:
    with pytest.raises(InvalidPayload, match=reason):
        site.accumulator(default_kernel(), 1).check(wrong)


def test_an_update_is_no_batch() -> None:
    with refuses("update", "a mean"):
        Uplink(SITE).send(np.zeros(DIMENSION, dtype=np.float32))
