"""Whole releases of the laboratory's mechanisms against the law, mean and variance that they state;
false alarms at 1e-9 per test.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import ive

from core.mechanism.makers import MECHANISMS, WIDTH
from core.statistical import test_mechanism_releases as core
from core.statistical.kit import (
    FALSE_ALARM,
    StatisticalFailure,
    assert_binomial,
    seed,
)
from core.statistical.test_mechanism_releases import TRIALS, releases, vector
from path import decode
from quietbit.kernel.rng import secure_rng, seeded_rng
from quietbit_lab.baseline.skellam_noise import skellam_noise

TABLES = [name for name in MECHANISMS if name.startswith("mvu")]
SIGNS = [name for name in MECHANISMS if name.startswith("sign")]


@pytest.mark.parametrize("name", TABLES)
def test_every_coordinate_follows_the_stated_law(name: str) -> None:
    core.test_every_coordinate_follows_the_stated_law(name)


@pytest.mark.parametrize("name", TABLES + SIGNS)
def test_decoded_means_and_variances_are_the_stated_ones(name: str) -> None:
    core.test_decoded_means_and_variances_are_the_stated_ones(name)


def test_every_float_of_laplace_carries_noise_of_the_stated_law() -> None:
    core.test_every_float_carries_noise_of_the_stated_law("laplace")


def test_skellam_decodes_to_the_stated_mean_and_variance() -> None:
    """Means by Chernoff: sums of Skellam noise are sub-Gaussian here up to 1 %, rounding adds at
    most 1/4.
    """
    name = "skellam 8 bits"
    mechanism = MECHANISMS[name]
    decoded = np.stack([decode(mechanism, row) for row in releases(name)])
    proxy = 1.01 * (mechanism.noise_variance + 0.25) / mechanism.scale**2
    reach = math.sqrt(2 * proxy * math.log(2 * WIDTH / FALSE_ALARM) / TRIALS)
    off = decoded - vector(name)
    assert np.abs(off.mean(axis=0)).max() <= reach
    # and it would see eight standard errors
    assert reach < 7.5 * math.sqrt(mechanism.variance(0.0) / TRIALS)
    # Their spread over all coordinates: 67,000 draws, so 6 % are more than ten standard deviations.
    assert float(np.square(off).mean()) == pytest.approx(mechanism.variance(0.0), rel=0.06)


@pytest.mark.parametrize("variance", [0.3, 7.0, 900.0, 2e7])
@pytest.mark.parametrize("rng", [seeded_rng(seed(77)), secure_rng()], ids=["seeded", "secure"])
def test_skellam_noise_follows_its_law_and_not_one_of_twice_the_variance(
    variance: float, rng: Any
) -> None:
    count = 100_000
    noise = skellam_noise(variance, 3, rng.draw(count), count)
    # scipy's distribution function of Skellam is slow and rough for large means; its mass, a Bessel
    # function, is not.
    reach = int(8 * math.sqrt(variance)) + 30
    cumulative = np.cumsum(ive(np.abs(np.arange(-reach, reach + 1)), variance))
    assert cumulative[-1] == pytest.approx(1.0, abs=1e-9)
    marks = np.unique([round(q * math.sqrt(variance)) for q in (-3, -1, 0, 0.5, 2)])
    expected = cumulative[marks + reach]
    assert_binomial((noise[:, None] <= marks).sum(axis=0), count, expected)
    doubled = skellam_noise(2 * variance, 3, rng.draw(count), count)
    with pytest.raises(StatisticalFailure):
        assert_binomial((doubled[:, None] <= marks).sum(axis=0), count, expected)
