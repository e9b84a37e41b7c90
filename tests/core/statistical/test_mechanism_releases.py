"""Whole releases against the law, mean and variance that mechanisms state; false alarms at 1e-9
per test.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

from core.mechanism.makers import MECHANISMS, WIDTH, update
from core.statistical.kit import (
    FALSE_ALARM,
    StatisticalFailure,
    assert_binomial,
    assert_frequencies,
    assert_mean,
    seed,
)
from path import decode, encode
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.select import select
from quietbit.mechanism.rotation import ROOM

TRIALS = 600
TABLES = [name for name in MECHANISMS if name.startswith("imvu")]
VECTORS = [name for name in MECHANISMS if name.startswith("vmvu")]


def vector(name: str) -> Any:
    """A short update for MVU: its rejections (which the stated law leaves out) are then below
    1e-6.
    """
    return update(MECHANISMS[name].ball, share=0.2 if name.startswith("mvu") else 0.9)


@cache
def releases(name: str) -> Any:
    """Codes of many releases of one update, one call of ``encode`` each."""
    mechanism, rng = MECHANISMS[name], seeded_rng(seed(1000 + len(name)))
    given = vector(name)
    return np.stack([encode(mechanism, given, rng) for _ in range(TRIALS)])


def turned(name: str, given: Any) -> Any:
    """A vector as its coordinates are sampled: rotated where the mechanism does that, and 2^-20
    shorter if exactly.

    By the reference kernel, where the releases are another's. A rotation is orthonormal and public:
    decoded releases have the stated moments exactly where what they are before they are rotated
    back has.
    """
    rotation = getattr(MECHANISMS[name], "rotation", None)
    if rotation is None:
        return given
    kernel = select("reference")
    found = kernel.rotate([np.asarray(given)], rotation.seed, rotation.block, kind=np.float64)
    return found * (1 - ROOM) if rotation.exact else found


@pytest.mark.parametrize("name", TABLES)
def test_every_coordinate_follows_the_stated_law(name: str) -> None:
    mechanism, codes = MECHANISMS[name], releases(name).copy()
    law = np.stack([mechanism.distribution(float(value)) for value in turned(name, vector(name))])
    assert_frequencies(codes, law)
    codes[:, -1] = 0
    with pytest.raises(StatisticalFailure):
        assert_frequencies(codes, law)


@pytest.mark.parametrize("name", ["imvu rotated"])
def test_codes_of_coordinates_that_are_not_rotated_are_found_out(name: str) -> None:
    """Its codes are far from the law of the update as it was given."""
    law = np.stack([MECHANISMS[name].distribution(float(value)) for value in vector(name)])
    with pytest.raises(StatisticalFailure):
        assert_frequencies(releases(name), law)


def stated(name: str, given: Any) -> tuple[Any, Any]:
    """Mean and variance of every coordinate.

    Of rotated coordinates there is the law: what is stated of decoded ones is to first order.
    """
    mechanism, coordinates = MECHANISMS[name], given.tolist()
    if getattr(mechanism, "rotation", None) is None:
        means = [mechanism.expectation(value) for value in coordinates]
        return np.array(means), np.array([mechanism.variance(value) for value in coordinates])
    law = np.stack([mechanism.distribution(value) for value in coordinates])
    means = law @ mechanism.values
    return means, law @ mechanism.values**2 - means**2


@pytest.mark.parametrize("name", TABLES)
def test_decoded_means_and_variances_are_the_stated_ones(name: str) -> None:
    mechanism = MECHANISMS[name]
    decoded = np.stack([turned(name, decode(mechanism, row)) for row in releases(name)])
    means, variances = stated(name, turned(name, vector(name)))
    # A mean is read in fixed point, off by up to 2^-36 of the largest value.
    values = getattr(mechanism, "values", np.array([-1.0, 1.0])) * (1 + 2.0**-30)
    low, high = float(values.min()), float(values.max())
    assert_mean(decoded, means, low, high)
    largest = max(np.square(low - means).max(), np.square(high - means).max())
    assert_mean(np.square(decoded - means), variances, 0.0, float(largest))
    with pytest.raises(StatisticalFailure):
        assert_mean(decoded, means + 0.4 * np.ptp(decoded), low, high)


@pytest.mark.parametrize("name", ["gaussian"])
def test_every_float_carries_noise_of_the_stated_law(name: str) -> None:
    mechanism = MECHANISMS[name]
    decoded = np.stack([decode(mechanism, row) for row in releases(name)]).astype(np.float64)
    deviation = math.sqrt(mechanism.variance(0.0))
    law = stats.norm(scale=deviation)
    if name == "laplace":
        law = stats.laplace(scale=deviation / math.sqrt(2))
    noise = decoded - vector(name)
    for probability in (0.001, 0.1, 0.5, 0.8, 0.99):
        counts = (noise <= law.ppf(probability)).sum(axis=0)
        assert_binomial(counts, TRIALS, probability, FALSE_ALARM / 5)
    noise[:, -1] = 0.0
    with pytest.raises(StatisticalFailure):
        assert_binomial((noise <= law.ppf(0.1)).sum(axis=0), TRIALS, 0.1)
    with pytest.raises(StatisticalFailure):  # twice the variance would be seen
        assert_binomial((np.sqrt(2) * noise <= law.ppf(0.1)).sum(), noise.size, 0.1)


@pytest.mark.parametrize("name", VECTORS)
def test_every_byte_of_a_vector_payload_is_random(name: str) -> None:
    """Bits of nonce and seed are even coins whatever the update, but for the tilt."""
    mechanism, rng = MECHANISMS[name], seeded_rng(seed(33))
    bodies = np.stack([encode(mechanism, np.zeros(WIDTH), rng) for _ in range(TRIALS)])
    bits = np.unpackbits(bodies, axis=1, bitorder="little")
    assert_binomial(bits[:, : 24 * 8].sum(axis=0, dtype=int), TRIALS, 0.5)
    bits[:, 7] = 0
    with pytest.raises(StatisticalFailure):
        assert_binomial(bits[:, :64].sum(axis=0, dtype=int), TRIALS, 0.5)
