import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quietbit.privacy.conversion import (
    epsilon_from_linear,
    epsilon_from_rdp,
    gaussian_epsilon_upper,
    gaussian_log_delta,
)


@settings(max_examples=60, deadline=None)
@given(st.floats(-14, 4), st.floats(-36, -1e-3))
def test_closed_form_and_search_agree(log10_slope, log_delta):
    slope, delta = 10**log10_slope, math.exp(log_delta)
    exact = epsilon_from_linear(slope, delta)
    found = epsilon_from_rdp(lambda alpha: slope * alpha, delta)
    assert found == pytest.approx(exact, rel=1e-7, abs=1e-12)
    assert exact >= gaussian_epsilon_upper(slope, delta) * (1 - 1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 4.0, 50.0])
@pytest.mark.parametrize("delta", [0.9, 1e-5, 1e-15])
def test_inverts_over_the_whole_range_of_budgets(epsilon, delta):
    """Every budget is reached by some slope, monotonically: what calibration relies on."""
    low, high = 1e-14, 1e4
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        if epsilon_from_linear(middle, delta) < epsilon:
            low = middle
        else:
            high = middle
    assert epsilon_from_linear(low, delta) <= epsilon * (1 + 1e-9)
    assert epsilon_from_linear(high, delta) == pytest.approx(epsilon, rel=1e-4)


def test_an_infinite_bound_at_high_orders_is_walked_around():
    found = epsilon_from_rdp(lambda alpha: 0.5 * alpha if alpha < 3 else math.inf, 1e-5)
    at_the_end = epsilon_from_rdp(lambda alpha: 0.5 * alpha, 1e-5, orders=[3 - 1e-9])
    assert found == pytest.approx(at_the_end, rel=1e-3)


BY_RENYI = [epsilon_from_linear, lambda slope, delta: epsilon_from_rdp(slope.__mul__, delta)]


@pytest.mark.parametrize("account", [*BY_RENYI, gaussian_epsilon_upper])
def test_delta_zero_proves_nothing_and_no_divergence_proves_all(account):
    assert account(0.1, 0.0) == math.inf
    assert account(0.0, 0.0) == account(0.0, 1e-5) == 0
    assert account(math.inf, 1e-5) == math.inf
    assert account(1e-4, 0.5) == 0


def test_a_delta_near_one_is_no_error():
    assert math.isfinite(epsilon_from_linear(10.0, 1 - 1e-16))


@pytest.mark.parametrize("mu", [1e-3, 0.3, 4.0, 200.0])
def test_delta_falls_as_epsilon_grows(mu):
    places = (-3.0, -1.0, 0.0, 1.0, 8.0, 30.0)
    values = [gaussian_log_delta(mu * t + mu * mu / 2, mu) for t in places]
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
