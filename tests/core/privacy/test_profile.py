import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.design.profile_kit import largest_gain, profiles, pure_epsilon_upper
from quietbit.design.profile import Profile
from quietbit.privacy.profile import certify_profile, profile_cost, profile_losses
from quietbit.target import Adjacency
from refusals import refuses

PROFILE = Profile.from_weights([-0.6, 0.1, 0.9], np.exp([0.0, 0.15, 0.35, 0.5]))


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("releases", [1, 4, 30])
def test_agrees_with_dp_accounting(adjacency, releases):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    epsilons = []
    for p, q in PROFILE.pairs(adjacency.value):
        p, q = p / p.sum(), q / q.sum()
        laws = [dict(enumerate(np.log(law).tolist())) for law in (q, p)]
        one = pld.from_two_probability_mass_functions(
            *laws, value_discretization_interval=1e-4, symmetric=False
        )
        epsilons.append(one.self_compose(releases).get_epsilon_for_delta(1e-5))
    ours = certify_profile(PROFILE, adjacency, releases, 1e-5).epsilon_upper
    assert (
        max(epsilons) - releases * 1e-4 <= ours <= max(epsilons) + 1e-9
    )  # theirs rounds every loss up to the grid


@settings(max_examples=20, deadline=None)
@given(profiles(most=4, spread=2.0), st.sampled_from(list(Adjacency)), st.integers(1, 3))
def test_never_below_an_enumeration_of_all_outcomes(profile, adjacency, releases):
    epsilon = 0.7 * releases * pure_epsilon_upper(profile, adjacency.value)
    for loss, (p, q) in zip(
        profile_losses(profile, adjacency, 0.0), profile.pairs(adjacency.value), strict=True
    ):
        both = np.ones(1), np.ones(1)
        for _ in range(releases):
            both = np.outer(both[0], p).ravel(), np.outer(both[1], q).ravel()
        exact = float(np.maximum(both[0] - math.exp(epsilon) * both[1], 0.0).sum())
        found = loss.repeat(releases).delta_upper(epsilon)
        assert exact * (1 - 1e-9) - 1e-15 <= found <= exact * (1 + 1e-3) + 1e-12


def test_what_is_certified_is_what_is_stored():
    found = certify_profile(PROFILE, Adjacency.REPLACE_ONE, 2)
    assert found.epsilon_upper == found.pure_epsilon_upper == pytest.approx(1.0, rel=1e-8)
    assert found.squared_error_upper >= largest_gain(PROFILE) ** -2
    assert found.squared_error_upper == pytest.approx(PROFILE.gain_lower**-2, rel=1e-14)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_curve_gives_the_certified_account(adjacency):
    curve = profile_cost(PROFILE, adjacency)
    found = certify_profile(PROFILE, adjacency, 6, 1e-5)
    assert (curve * 6).epsilon(1e-5) == pytest.approx(found.epsilon_upper, rel=1e-9)
    assert curve.pure_epsilon() == pytest.approx(
        pure_epsilon_upper(PROFILE, adjacency.value), rel=1e-8
    )
    largest = 0.0
    for p, q in PROFILE.pairs(adjacency.value):  # the Rényi divergence is a sum over the cells
        largest = max(largest, math.log(float(np.sum(p**3.0 / q**2.0))) / 2)
    assert curve.rdp(3.0) == pytest.approx(largest, rel=1e-6)
    assert curve.rdp(3.0) >= largest * (1 - 1e-12)


def test_more_blur_never_costs_less():
    for adjacency in Adjacency:
        epsilons = [
            (profile_cost(PROFILE, adjacency, blur) * 5).epsilon(1e-5) for blur in (0.0, 1e-9, 1e-8)
        ]
        assert epsilons == sorted(epsilons)
        assert epsilons[0] < epsilons[2] < epsilons[0] * (1 + 1e-6)


def test_replace_one_costs_more_than_zero_out():
    costs = {
        adjacency: certify_profile(PROFILE, adjacency, 10, 1e-5).epsilon_upper
        for adjacency in Adjacency
    }
    assert costs[Adjacency.REPLACE_ONE] > 1.5 * costs[Adjacency.ZERO_OUT]


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan])
def test_refusals(delta):
    with refuses("delta"):
        certify_profile(PROFILE, Adjacency.ZERO_OUT, 1, delta)
    with refuses("adjacency", "nearby"):
        certify_profile(PROFILE, "nearby", 1, 1e-5)
    with refuses("releases", 0):
        certify_profile(PROFILE, Adjacency.ZERO_OUT, 0, 1e-5)
    with refuses("blur", 1e-3):
        profile_cost(PROFILE, Adjacency.ZERO_OUT, 1e-3)
    with refuses("profile"):
        certify_profile("profile", Adjacency.ZERO_OUT, 1, 1e-5)
