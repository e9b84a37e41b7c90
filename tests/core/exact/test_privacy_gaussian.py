"""The analytic Gaussian against a 60-digit inversion, and the Rényi account on its safe side."""

import math

import mpmath as mp
import pytest

from quietbit.privacy.cost import Cost


def delta_of(epsilon: float, slope: float) -> mp.mpf:
    """Balle and Wang (2018), Theorem 8, to 60 digits."""
    with mp.workdps(60):
        mu, eps = mp.sqrt(2 * mp.mpf(slope)), mp.mpf(epsilon)
        return mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize(
    "slope", [1e-18, 1e-13, 1e-10, 1e-6, 1e-3, 0.02, 0.5, 8.0, 60.0, 900.0, 5e4]
)
@pytest.mark.parametrize("delta", [0.5, 0.01, 1e-5, 1e-9, 1e-15, 1e-40])
def test_gaussian_epsilon_is_private_and_tight(slope, delta):
    epsilon = Cost.gaussian(slope).epsilon(delta)
    assert delta_of(epsilon, slope) <= delta
    if epsilon > 0:
        assert delta_of(epsilon * (1 - 1e-6), slope) > delta
    assert epsilon <= Cost.linear(slope).epsilon(delta)


def test_no_noise_no_cost_and_no_delta_no_guarantee():
    assert Cost.gaussian(0.0).epsilon(1e-5) == 0
    assert Cost.gaussian(0.0).epsilon(0.0) == 0
    assert Cost.gaussian(0.1).epsilon(0.0) == math.inf
