"""Poisson batches as a mechanism: prices, clipping row by row, and what is drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from quietbit import (
    Adjacency,
    Ball,
    Gaussian,
    Norm,
    calibrate,
    secure_rng,
    seeded_rng,
)
from quietbit.kernel.select import default_kernel
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.batch import BatchSum, PoissonBatch, draw_batch
from quietbit.privacy.account import ORDERS
from quietbit.wire.uplink import Uplink
from quietbit_lab.baseline.noise import Laplace
from refusals import refuses

BALL = Ball(Norm.L2, 64)
ZERO_OUT, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def one_bit(expected: int, rate: float, keep: int | None = None) -> PoissonBatch:
    return PoissonBatch(
        calibrate(
            "imvu",
            ball=BALL,
            epsilon=2.0,
            delta=1e-5,
            adjacency="zero-out",
            samples=expected,
            coordinates=keep,
            releases=200,
        ).mechanism,
        expected,
        rate,
    )


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_sampling_amplifies_gaussian_noise_and_one_bit_alike(adjacency: Adjacency) -> None:
    for batch in (
        PoissonBatch(Gaussian(BALL, 0.05), 50, 0.1),
        one_bit(10, 0.1),
        one_bit(10, 0.1, keep=16),
    ):
        sampled, whole = (one.privacy(adjacency, batch.batch) for one in (batch, batch.inner))
        assert (sampled * 20).epsilon(1e-5) < 0.4 * (whole * 20).epsilon(1e-5)
        assert sampled.slack == whole.slack
        assert batch.privacy(adjacency).epsilon(1e-5) == batch.inner.privacy(adjacency).epsilon(
            1e-5
        )


@pytest.mark.parametrize(("mu", "rate"), [(0.3, 0.1), (1.0, 0.02), (2.0, 0.5)])
def test_divergences_bound_those_of_brute_force_both_ways_round(mu: float, rate: float) -> None:
    batch = PoissonBatch(Gaussian(BALL, 1 / (mu * 10)), 10, rate)
    removed, replaced = (batch.privacy(which, 10).certified().rdp for which in (ZERO_OUT, REPLACE))
    x = np.linspace(-20, 20 + 10 * mu, 200_001)
    near, moved, other = (norm.logpdf(x, at) for at in (0.0, mu, -mu))
    worlds = {
        "with": np.logaddexp(math.log1p(-rate) + near, math.log(rate) + moved),
        "without": near,
        "other": np.logaddexp(math.log1p(-rate) + near, math.log(rate) + other),
    }

    def divergence(first: str, second: str, alpha: float) -> float:
        whole = np.exp(alpha * worlds[first] + (1 - alpha) * worlds[second]).sum() * (x[1] - x[0])
        return math.log(whole) / (alpha - 1)

    for alpha in (1.25, 2.0, 3.0, 4.5, 8.0):
        there, back = divergence("with", "without", alpha), divergence("without", "with", alpha)
        assert max(there, back) <= removed(alpha) * (1 + 1e-7) + 1e-12
        if alpha == int(alpha):
            assert removed(alpha) == pytest.approx(there, rel=1e-3)
        assert divergence("with", "other", alpha) <= replaced(alpha) * (1 + 1e-7) + 1e-12


@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_divergences_of_one_bit_bound_those_of_brute_force_both_ways_round(rate: float) -> None:
    """Six coordinates, all 64 outcomes, one sample that moves the input from several places in
    several directions.
    """
    ball = Ball(Norm.L2, 6)
    found = calibrate(
        "imvu", ball=ball, epsilon=3.0, delta=1e-5, adjacency="zero-out", rotate=False
    )
    inner = found.mechanism
    batch, rng = PoissonBatch(inner, 2, rate), np.random.default_rng(7)
    bounds = {which: batch.privacy(which, 2).certified().rdp for which in Adjacency}
    codes = np.array(list(np.ndindex(*[2] * 6)))

    def law(x: np.ndarray) -> np.ndarray:
        ones = np.array([inner.distribution(float(value))[1] for value in x])
        return np.prod(np.where(codes == 1, ones, 1 - ones), axis=1)

    for trial in range(12):
        others = rng.normal(size=6) * (trial % 3) / 8
        step = np.eye(6)[0] if trial % 2 else rng.normal(size=6)
        step /= 2 * np.linalg.norm(step)
        without, there, back = law(others), law(others + step), law(others - step)
        mixed, other = (1 - rate) * without + rate * there, (1 - rate) * without + rate * back
        for alpha in (1.3, 2.0, 5.0, 17.5):
            for which, p, q in (
                (ZERO_OUT, mixed, without),
                (ZERO_OUT, without, mixed),
                (REPLACE, mixed, other),
            ):
                found = math.log(np.sum(p**alpha * q ** (1 - alpha))) / (alpha - 1)
                assert found <= bounds[which](alpha)


def test_mechanisms_without_a_gaussian_pair_are_refused_where_batches_are_drawn() -> None:
    skellam = calibrate(
        "skellam", ball=BALL, epsilon=2.0, delta=1e-5, adjacency="zero-out", samples=50
    ).mechanism
    assert PoissonBatch(skellam, 50, 1.0).privacy(ZERO_OUT, 50).epsilon(1e-5) <= 2.0
    with refuses("slope of the cost"):
        PoissonBatch(skellam, 50, 0.1).privacy(ZERO_OUT, 50)
    with refuses("norm of the ball", "l1"):
        PoissonBatch(Laplace(Ball(Norm.L1, 8), 1.0), 50, 0.1)
    with refuses("samples", 5000):
        PoissonBatch(Gaussian(BALL, 0.05), 50, 0.1).privacy(ZERO_OUT, 5000)


def test_a_price_of_the_nodes_is_finite() -> None:
    cost = one_bit(10, 0.1).privacy(REPLACE, 10)
    assert np.isfinite([cost.certified().rdp(order) for order in ORDERS]).all()
    assert cost.lost == 0


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
@pytest.mark.parametrize("keep", [None, 16])
def test_one_sample_that_is_not_finite_takes_nothing_from_the_others(
    spoilt: float, keep: int | None
) -> None:
    batch = one_bit(4, 0.1, keep)
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
    total = BatchSum(one_bit(4, 0.1), 1.0, seeded_rng(5), default_kernel())
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
