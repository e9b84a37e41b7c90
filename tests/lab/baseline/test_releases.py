"""Whole releases of the laboratory's mechanisms against the law, mean and variance that they state;
false alarms at 1e-9 per test.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from core.mechanism.makers import MECHANISMS, WIDTH
from core.statistical import test_mechanism_releases as core
from core.statistical.kit import (
    FALSE_ALARM,
    StatisticalFailure,
    assert_binomial,
    assert_frequencies,
    seed,
)
from core.statistical.test_mechanism_releases import TRIALS, releases, vector
from path import decode, encode
from quietbit.kernel.rng import secure_rng, seeded_rng
from quietbit.kernel.transform import rotate
from quietbit_lab.baseline.skellam_noise import skellam_noise

TABLES = [name for name in MECHANISMS if name.startswith("mvu")]
SIGNS = [name for name in MECHANISMS if name.startswith("sign")]
SKELLAMS = [name for name in MECHANISMS if name.startswith("skellam")]


@pytest.mark.parametrize("name", TABLES)
def test_every_coordinate_follows_the_stated_law(name: str) -> None:
    core.test_every_coordinate_follows_the_stated_law(name)


@pytest.mark.parametrize("name", TABLES + SIGNS)
def test_decoded_means_and_variances_are_the_stated_ones(name: str) -> None:
    core.test_decoded_means_and_variances_are_the_stated_ones(name)


def test_every_float_of_laplace_carries_noise_of_the_stated_law() -> None:
    core.test_every_float_carries_noise_of_the_stated_law("laplace")


@pytest.mark.parametrize("name", SIGNS)
def test_every_sign_is_random_with_the_stated_mean(name: str) -> None:
    mechanism, codes = MECHANISMS[name], releases(name).copy()
    ups = np.array([(1 + mechanism.expectation(float(value))) / 2 for value in vector(name)])
    assert_binomial(codes.sum(axis=0, dtype=int), TRIALS, ups)
    codes[:, -1] = 1
    with pytest.raises(StatisticalFailure):
        assert_binomial(codes.sum(axis=0, dtype=int), TRIALS, ups)


@pytest.mark.parametrize("name", SKELLAMS)
def test_every_skellam_code_is_random(name: str) -> None:
    """A zero update: a code is below 2^(b-1) exactly when the noise is not negative, wrapping
    aside.
    """
    mechanism, rng = MECHANISMS[name], seeded_rng(seed(31))
    codes = np.stack([encode(mechanism, np.zeros(WIDTH), rng) for _ in range(TRIALS)])
    mean = mechanism.noise_variance / 2
    below = float(stats.skellam.sf(-1, mean, mean))
    counts = (codes < 2 ** (mechanism.bits - 1)).sum(axis=0)
    assert_binomial(counts, TRIALS, below)
    codes[:, -1] = 0
    with pytest.raises(StatisticalFailure):
        assert_binomial((codes < 2 ** (mechanism.bits - 1)).sum(axis=0), TRIALS, below)


@pytest.mark.parametrize("name", SKELLAMS)
def test_skellam_decodes_to_the_stated_mean_and_variance(name: str) -> None:
    """Means by Chernoff: sums of Skellam noise are sub-Gaussian here up to 1 %, rounding adds at
    most 1/4.
    """
    mechanism = MECHANISMS[name]
    decoded = np.stack([decode(mechanism, row) for row in releases(name)])
    proxy = 1.01 * (mechanism.noise_variance + 0.25) / mechanism.scale**2
    reach = math.sqrt(2 * proxy * math.log(2 * WIDTH / FALSE_ALARM) / TRIALS)
    off = decoded.mean(axis=0) - vector(name)
    assert np.abs(off).max() <= reach
    assert reach < 7.5 * math.sqrt(
        mechanism.variance(0.0) / TRIALS
    )  # and would see eight standard errors
    # Their spread over all coordinates: 67,000 draws, so 6 % are more than ten standard deviations.
    spread = float(np.square(decoded - vector(name)).mean())
    assert spread == pytest.approx(mechanism.variance(0.0), rel=0.06)


@pytest.mark.parametrize("variance", [0.3, 7.0, 900.0, 2e7])
@pytest.mark.parametrize("rng", [seeded_rng(seed(77)), secure_rng()], ids=["seeded", "secure"])
def test_skellam_noise_follows_its_law_and_not_one_of_twice_the_variance(
    variance: float, rng: Any
) -> None:
    count, mean = 100_000, variance / 2
    noise = skellam_noise(variance, 3, rng.draw(count), count)
    # scipy's distribution function of Skellam is slow and rough for large means; normal quantiles
    # are not, so there the exact one is summed from its mass (a Bessel function) near the centre.
    reach = int(8 * math.sqrt(variance)) + 30
    mass = np.exp(_log_mass(np.arange(-reach, reach + 1), mean))
    cumulative = np.cumsum(mass)
    assert cumulative[-1] == pytest.approx(1.0, abs=1e-9)
    marks = np.unique([round(q * math.sqrt(variance)) for q in (-3, -1, 0, 0.5, 2)])
    expected = cumulative[marks + reach]
    assert_binomial((noise[:, None] <= marks).sum(axis=0), count, expected)
    doubled = skellam_noise(2 * variance, 3, rng.draw(count), count)
    with pytest.raises(StatisticalFailure):
        assert_binomial((doubled[:, None] <= marks).sum(axis=0), count, expected)


def _log_mass(values: Any, mean: float) -> Any:
    """log P(noise = value) from scipy's scaled Bessel function, or for large means its normal
    expansion.
    """
    from scipy.special import ive

    if mean < 1e5:
        with np.errstate(divide="ignore"):
            return np.log(ive(np.abs(values), 2 * mean))
    variance = 2 * mean
    # Edgeworth: skewness 0, excess kurtosis 1/variance: right to 1e-9 here.
    z = values / math.sqrt(variance)
    correction = (z**4 - 6 * z**2 + 3) / (24 * variance)
    return -0.5 * z**2 - 0.5 * math.log(2 * math.pi * variance) + np.log1p(correction)


def test_rounded_on_its_own_every_skellam_code_follows_the_law_that_is_accounted_for() -> None:
    """The mixture of two neighbours' noise modulo 2^b, at every coordinate of the rotated
    update.
    """
    mechanism, codes = MECHANISMS["independent skellam"], releases("independent skellam").copy()
    inner = mechanism.inner
    place = rotate(vector("independent skellam"), inner.rotation_seed) * inner.scale
    low, size, mean = np.floor(place), 2**inner.bits, inner.noise_variance / 2
    far = np.arange(-20 * size, 20 * size)
    noise = stats.skellam.pmf(far, mean, mean)
    law = np.zeros((place.size, size))
    for row, (k, p) in enumerate(zip(low.astype(int), place - low, strict=True)):
        np.add.at(law[row], (far + k) % size, (1 - p) * noise)
        np.add.at(law[row], (far + k + 1) % size, p * noise)
    assert_frequencies(codes, law)
    codes[:, -1] = 0
    with pytest.raises(StatisticalFailure):
        assert_frequencies(codes, law)
    # Means too, by Chernoff as above: rounding to the nearest point would be seen, and so would any
    # other bias.
    centred = (releases("independent skellam").astype(int) + size // 2) % size - size // 2
    off = centred.mean(axis=0) - place
    reach = math.sqrt(
        2 * 1.01 * (inner.noise_variance + 0.25) * math.log(2 * place.size / FALSE_ALARM) / TRIALS
    )
    assert np.abs(off).max() <= reach < np.abs(off + np.round(place) - place).max()
