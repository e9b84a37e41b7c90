"""Skellam noise after independent rounding: the bound against sums at 40 digits."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from lab.exact.release_kit import renyi_of_logs
from quietbit import InvalidParameter
from quietbit_lab.baseline.skellam_cost import (
    curvature_upper,
    rounded_skellam_cost,
    rounded_skellam_rdp_upper,
)

DIGITS = 40
EDGE = 50  # no law is moved further; values of the tables that would leave them are not looked at


@cache
def log_law(variance: float) -> Any:
    """log S(z) from Bessel functions at 40 digits, far into both tails."""
    with mp.workdps(DIGITS):
        v = mp.mpf(variance)
        reach = 60 + int(45 * math.sqrt(variance))
        half = [float(mp.log(mp.besseli(z, v)) - v) for z in range(reach + 1)]
    return np.array([*half[:0:-1], *half])


def mixture(variance: float, y: float) -> Any:
    """The logarithm of the law at y, as it is: rounded up with the chance y - floor(y)."""
    logs = log_law(variance)
    low = math.floor(y)
    with np.errstate(divide="ignore"):
        down, up = np.log(np.array([1 - (y - low), y - low]))
    inside = np.arange(EDGE, len(logs) - EDGE)
    return np.logaddexp(down + logs[inside - low], up + logs[inside - low - 1])


@pytest.mark.parametrize("variance", [0.25, 1.0, 3.99, 4.0, 4.01, 30.0, 1e3, 1e5])
def test_the_curvature_is_that_of_the_mode(variance: float) -> None:
    with mp.workdps(DIGITS):
        v = mp.mpf(variance)
        exact = 2 * mp.log(mp.besseli(0, v) / mp.besseli(1, v))
        upper = curvature_upper(variance)
        assert exact <= upper <= exact * (1 + mp.mpf(0.3) / v**2 + 1e-9)
        others = sorted([1, 2, 7, int(math.sqrt(variance)) + 8, int(variance) // 50 + 9])
        found = [
            mp.log(mp.besseli(z, v) ** 2 / (mp.besseli(z - 1, v) * mp.besseli(z + 1, v)))
            for z in others
        ]
        assert all(one < exact for one in found)
        assert found == sorted(found, reverse=True)


DISTANCES = (0.003, 0.02, 0.1, 0.3, 0.5, 0.7, 0.95, 1.0, 1.33, 1.9, 2.0, 2.5, 6.5, 11.25)
PLACES = (0.0, 0.01, 0.5, 0.66, 0.999)


def worst(variance: float, alpha: float) -> float:
    """The largest share of the claim that any pair takes, both ways round, cell edges first."""
    shares = []
    for distance in DISTANCES:
        claim = rounded_skellam_rdp_upper(alpha, distance, variance)
        for place in (*PLACES, 1 - math.fmod(distance, 1)):
            p, q = mixture(variance, place + distance), mixture(variance, place)
            found = max(renyi_of_logs(p, q, alpha), renyi_of_logs(q, p, alpha))
            if found > 1e-7:  # smaller ones are lost in the rounding of this test's sums
                shares.append(found / claim)
    return max(shares)


@pytest.mark.parametrize(
    ("variance", "tight"), [(4.0, 0.6), (25.0, 0.85), (100.0, 0.95)], ids=["little", "some", "much"]
)
def test_no_pair_exceeds_the_bound_and_the_worst_comes_near(variance: float, tight: float) -> None:
    for alpha in (1.05, 1.6, 2.0, 2.5, 3.0, 4.7, 8.0):
        most = worst(variance, alpha)
        assert most <= 1 + 1e-6
        if alpha in (2.0, 3.0, 8.0) and (variance > 4 or alpha == 2.0):
            assert most >= tight


def test_noise_of_nine_tenths_of_the_variance_is_caught() -> None:
    claim = rounded_skellam_rdp_upper(3.0, 0.5, 100.0)
    assert (
        renyi_of_logs(mixture(90.0, 0.5), mixture(90.0, 0.0), 3.0)
        > claim
        > renyi_of_logs(mixture(100.0, 0.5), mixture(100.0, 0.0), 3.0)
    )


@pytest.mark.parametrize(
    ("alpha", "close"),
    [(2.0, 1e-6), (3.0, 1e-6), (20.0, 1e-4), (130.3, 0.003), (700.0, 0.003), (4096.0, 1e-3)],
)
def test_far_more_noise_than_a_step_costs_what_gaussian_noise_does(
    alpha: float, close: float
) -> None:
    gaussian = alpha * 1000.0**2 / 2e7
    assert 1 <= rounded_skellam_rdp_upper(alpha, 1000.0, 1e7) / gaussian <= 1 + close


def test_nothing_is_claimed_where_noise_is_too_little_or_orders_are_too_large() -> None:
    assert rounded_skellam_rdp_upper(40.0, 1.0, 4.0) == math.inf
    assert rounded_skellam_rdp_upper(4097.0, 1.0, 1e9) == math.inf
    assert rounded_skellam_cost(1.0, 0.3).epsilon(1e-5) == math.inf
    refused = [(math.nan, 1.0), (1.0, math.nan), (0.0, 1.0), (1.0, 0.0), (math.inf, 1.0)]
    for distance, variance in refused:
        with pytest.raises(InvalidParameter):
            rounded_skellam_cost(distance, variance)
    with pytest.raises(InvalidParameter):
        rounded_skellam_rdp_upper(math.nan, 1.0, 4.0)
