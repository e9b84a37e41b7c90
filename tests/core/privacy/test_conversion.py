import math

import pytest
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from hypothesis import given, settings
from hypothesis import strategies as st

from quietbit.privacy.conversion import (
    epsilon_from_linear,
    epsilon_from_rdp,
    gaussian_epsilon_upper,
    gaussian_log_delta,
)
from refusals import refuses

CASES = [
    (z, n, d)
    for z in (0.5, 2.0, 20.0, 300.0)
    for n in (1, 50, 100_000)
    for d in (0.3, 1e-2, 1e-5, 1e-12)
]


@pytest.mark.parametrize(("noise", "releases", "delta"), CASES)
def test_agrees_with_dp_accounting_on_its_orders_and_beats_it_on_all(noise, releases, delta):
    slope = releases / (2 * noise**2)
    accountant = RdpAccountant().compose(SelfComposedDpEvent(GaussianDpEvent(noise), releases))
    theirs = accountant.get_epsilon(delta)
    ours = epsilon_from_rdp(lambda alpha: slope * alpha, delta, orders=DEFAULT_RDP_ORDERS)
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)
    for best in (
        epsilon_from_linear(slope, delta),
        epsilon_from_rdp(lambda alpha: slope * alpha, delta),
    ):
        assert best <= theirs * (1 + 1e-9)
        assert best >= gaussian_epsilon_upper(slope, delta)


@settings(max_examples=60, deadline=None)
@given(st.floats(-14, 4), st.floats(-36, -1e-3))
def test_closed_form_and_search_agree(log10_slope, log_delta):
    slope, delta = 10**log10_slope, math.exp(log_delta)
    exact, found = (
        epsilon_from_linear(slope, delta),
        epsilon_from_rdp(lambda alpha: slope * alpha, delta),
    )
    assert found == pytest.approx(exact, rel=1e-7, abs=1e-12)
    assert exact >= gaussian_epsilon_upper(slope, delta) * (1 - 1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 4.0, 50.0])
@pytest.mark.parametrize("delta", [0.9, 1e-5, 1e-15])
def test_inverts_over_the_whole_range_of_budgets(epsilon, delta):
    """Every budget is reached by some slope, monotonically: what calibration relies on."""
    low, high = 1e-14, 1e4
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high) if epsilon_from_linear(middle, delta) < epsilon else (low, middle)
        )
    assert epsilon_from_linear(low, delta) <= epsilon * (1 + 1e-9)
    assert epsilon_from_linear(high, delta) == pytest.approx(epsilon, rel=1e-4)


def test_an_infinite_bound_at_high_orders_is_walked_around():
    found = epsilon_from_rdp(lambda alpha: 0.5 * alpha if alpha < 3 else math.inf, 1e-5)
    assert found == pytest.approx(
        epsilon_from_rdp(lambda a: 0.5 * a, 1e-5, orders=[3 - 1e-9]), rel=1e-3
    )


def test_delta_zero_proves_nothing_and_no_divergence_proves_all():
    assert epsilon_from_rdp(lambda alpha: 0.1 * alpha, 0.0) == math.inf
    assert epsilon_from_linear(0.1, 0.0) == math.inf
    assert epsilon_from_rdp(lambda alpha: 0.0, 0.0) == 0
    assert epsilon_from_linear(0.0, 1e-5) == 0
    assert epsilon_from_rdp(lambda alpha: math.inf, 1e-5) == math.inf
    assert epsilon_from_linear(math.inf, 1e-5) == math.inf


def test_a_large_delta_needs_no_epsilon():
    assert epsilon_from_linear(1e-4, 0.5) == 0
    assert epsilon_from_rdp(lambda alpha: 1e-4 * alpha, 0.5) == 0
    assert math.isfinite(epsilon_from_linear(10.0, 1 - 1e-16))


def test_refusals():
    with refuses("orders", [0.5]):
        epsilon_from_rdp(lambda alpha: alpha, 1e-5, orders=[0.5])
    with refuses("slope"):
        epsilon_from_linear(math.nan, 1e-5)
    with refuses("delta", 1.0):
        epsilon_from_linear(1.0, 1.0)


def test_delta_falls_as_epsilon_grows():
    for mu in (1e-3, 0.3, 4.0, 200.0):
        values = [
            gaussian_log_delta(mu * t + mu * mu / 2, mu) for t in (-3.0, -1.0, 0.0, 1.0, 8.0, 30.0)
        ]
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
def test_refusals_of_the_gaussian(slope):
    with refuses("slope"):
        gaussian_epsilon_upper(slope, 1e-5)
