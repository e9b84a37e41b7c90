import math

import pytest

from quietbit.errors import InvalidParameter
from quietbit.privacy.gaussian import gaussian_epsilon_upper, gaussian_log_delta


def test_delta_falls_as_epsilon_grows():
    for mu in (1e-3, 0.3, 4.0, 200.0):
        values = [gaussian_log_delta(mu * t + mu * mu / 2, mu) for t in (-3.0, -1.0, 0.0, 1.0, 8.0, 30.0)]
        assert values == sorted(values, reverse=True)


def test_epsilon_is_zero_from_the_total_variation_on():
    mu = 0.5
    variation = math.erf(mu / 2 / math.sqrt(2))
    assert gaussian_epsilon_upper(mu**2 / 2, variation * (1 + 1e-6)) == 0
    assert gaussian_epsilon_upper(mu**2 / 2, variation * (1 - 1e-6)) > 0


@pytest.mark.parametrize("slope", [1e16, 1e20, 1e30])
def test_hardly_any_noise_costs_the_slope_and_a_little(slope):
    """Where the two terms of delta agree to all digits, the first alone bounds it."""
    assert slope < gaussian_epsilon_upper(slope, 1e-5) < slope * (1 + 1e-7)


@pytest.mark.parametrize("slope", [-1.0, math.nan])
def test_refusals(slope):
    with pytest.raises(InvalidParameter, match="slope"):
        gaussian_epsilon_upper(slope, 1e-5)
