"""The sampler's tables, and the sampling error against the law in 60 digits."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

from core.kernel.makers import make_design, make_sampler
from quietbit.design.table import Design, DesignSpec, exact_row
from quietbit.kernel.reference import thresholds
from quietbit.kernel.sampler import SAMPLING_ERROR, Gain, Sampler, level_knots
from refusals import refuses


def exact_law(design: Design, sampler: Sampler, value: float, factor: float) -> list[Any]:
    """Probabilities by interpolating logarithms of the design, straight from the paper's
    definition.
    """
    n, symbols = design.probabilities.shape
    t = mpmath.mpf(sampler.scale) * mpmath.mpf(factor) * mpmath.mpf(value)
    t = min(max(t, mpmath.mpf(sampler.low) - 0.5), mpmath.mpf(sampler.high) - 0.5)
    place = (t + mpmath.mpf(1) / 2) * (n - 1)
    i = int(min(max(mpmath.floor(place), 0), n - 2))
    logs = [
        mpmath.log(mpmath.mpf(float(design.probabilities[i, j]))) * (i + 1 - place)
        + mpmath.log(mpmath.mpf(float(design.probabilities[i + 1, j]))) * (place - i)
        for j in range(symbols)
    ]
    weights = [mpmath.exp(value - max(logs)) for value in logs]
    return [weight / sum(weights) for weight in weights]


def steep_design() -> Design:
    """Neighbouring rows that have nothing in common: slopes in the ten thousands."""
    rng = np.random.default_rng(4)
    one = 1 / (1 + np.exp(15 * rng.normal(size=1000)))
    one = np.clip(
        one, 1e-15, 1 - 1e-15
    )  # smaller ones cannot sum to exactly one with their partner
    return Design(
        DesignSpec(1000, 1, 40.0),
        np.stack([exact_row(row) for row in np.stack([1 - one, one], axis=1)]),
        np.array([0.0, 1.0]),
    )


@pytest.mark.parametrize(
    ("design", "low", "high"),
    [
        (make_design(2, 1, 1.0), 0.0, 1.0),
        (make_design(2, 1, 30.0), 0.0, 1.0),
        (make_design(2, 4, 5.0), -0.75, 1.75),
        (make_design(8, 3, 5.0), 0.0, 1.0),
        (make_design(33, 3, 20.0), -0.25, 1.25),
        (make_design(2, 8, 10.0), 0.0, 1.0),
        (steep_design(), 0.0, 1.0),
    ],
)
def test_probabilities_are_within_the_sampling_error(
    design: Design, low: float, high: float
) -> None:
    sampler = Sampler.from_design(design, 0.7, low, high)
    rng = np.random.default_rng(1)
    n = sampler.levels
    few = design.alphabet.size > 16  # 256 symbols take sixty digits each
    at_levels = (rng.integers(0, n, 2 if few else 10) / (n - 1) - 0.5) / 0.7
    anywhere = rng.uniform(-2, 2, 2 if few else 25)
    values = np.concatenate([anywhere, [0.0, 5e-324, 1e-9, 1.0, -1.0, 1e300], at_levels])
    upper, lower = thresholds(sampler, values, Gain.of(0.99, sampler.scale))
    worst = mpmath.mpf(0)
    with mpmath.workdps(60):
        for row, value in enumerate(values.tolist()):
            edges = [int(u) * 2**48 + int(v) for u, v in zip(upper[row], lower[row], strict=True)]
            assert edges == sorted(edges)
            sampled = np.diff([0, *edges, 2**64])
            for count, exact in zip(
                sampled.tolist(), exact_law(design, sampler, value, 0.99), strict=True
            ):
                worst = max(worst, abs(mpmath.mpf(count) / 2**64 - exact))
    assert worst < SAMPLING_ERROR
    assert worst < 2.0**-50  # the proof allows 21 units; what is reached is a few


def test_one_bit_two_levels_is_the_logistic_law() -> None:
    epsilon = 1.5
    p = 1 / (1 + np.exp(epsilon))
    design = Design(
        DesignSpec(2, 1, epsilon),
        np.stack([exact_row(np.array([1 - p, p])), exact_row(np.array([p, 1 - p]))]),
        np.array([-0.4, 1.4]),
    )
    sampler = Sampler.from_design(design, 0.5, 0.0, 1.0)
    np.testing.assert_allclose(sampler.slope, [[0.0, 2 * epsilon]], rtol=1e-14)
    np.testing.assert_allclose(sampler.base, [[0.0, 0.0]], atol=1e-15)


def test_tables_are_pairs_and_read_only() -> None:
    sampler = make_sampler(5, 3, 4.0)
    assert sampler.base.shape == sampler.slope_tail.shape == (4, 8)
    assert np.all(np.abs(sampler.base_tail) <= 2.0**-53 * np.abs(sampler.base))
    for table in (sampler.base, sampler.slope, sampler.base_tail, sampler.slope_tail):
        assert not table.flags.writeable
        assert not table[:, 0].any()
    assert sampler.symbols == 8
    assert sampler.t_range == (-0.5, 0.5)


def test_neighbouring_segments_meet_at_the_levels() -> None:
    sampler = make_sampler(9, 2, 3.0)
    knots, _ = level_knots(9)
    for i in range(1, 8):
        left = sampler.base[i - 1] + sampler.slope[i - 1] * knots[i]
        right = sampler.base[i] + sampler.slope[i] * knots[i]
        np.testing.assert_allclose(left, right, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scale", 0.0),
        ("scale", np.nan),
        ("scale", np.inf),
        ("low", np.nan),
        ("low", 2.0),
        ("high", 1e9),
        ("low", -np.inf),
    ],
)
def test_hypotheses_are_checked(name: str, value: float) -> None:
    arguments = {"scale": 0.5, "low": 0.0, "high": 1.0} | {name: value}
    with refuses(name):
        Sampler.from_design(make_design(2, 1, 1.0), **arguments)


def test_tables_are_checked() -> None:
    good = make_sampler(3, 1, 1.0)
    fields = {
        name: getattr(good, name)
        for name in (
            "bits",
            "levels",
            "scale",
            "low",
            "high",
            "base",
            "slope",
            "base_tail",
            "slope_tail",
        )
    }
    Sampler(**fields)
    with refuses("column 0 of base", 1.0):
        Sampler(**(fields | {"base": np.ones((2, 2))}))
    with refuses("shape of slope", (2, 3)):
        Sampler(**(fields | {"slope": np.zeros((2, 3))}))
    with refuses("largest entry of slope"):
        Sampler(**(fields | {"slope": np.array([[0, np.nan]] * 2)}))
    with refuses("bits"):
        Sampler(**(fields | {"bits": 9}))
