import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.design.profile_kit import largest_gain, profiles, pure_epsilon_upper
from core.exact.privacy_kit import exact_delta
from quietbit.design.profile import Profile
from quietbit.privacy.profile import certify_profile, profile_cost, profile_losses
from quietbit.target import Adjacency

PROFILE = Profile.from_weights([-0.6, 0.1, 0.9], np.exp([0.0, 0.15, 0.35, 0.5]))


@settings(max_examples=20, deadline=None)
@given(profiles(most=4, spread=2.0), st.sampled_from(list(Adjacency)), st.integers(1, 3))
def test_never_below_an_enumeration_of_all_outcomes(profile, adjacency, releases):
    epsilon = 0.7 * releases * pure_epsilon_upper(profile, adjacency.value)
    pairs = profile.pairs(adjacency.value)
    for loss, pair in zip(profile_losses(profile, adjacency, 0.0), pairs, strict=True):
        exact = float(exact_delta((*pair, releases))(epsilon))
        found = loss.repeat(releases).delta_upper(epsilon)
        assert exact * (1 - 1e-9) - 1e-15 <= found <= exact * (1 + 1e-3) + 1e-12


def test_what_is_certified_is_what_is_stored():
    found = certify_profile(PROFILE, Adjacency.REPLACE_ONE, 2)
    assert found.epsilon_upper == found.pure_epsilon_upper == pytest.approx(1.0, rel=1e-8)
    assert found.squared_error_upper >= largest_gain(PROFILE) ** -2
    assert found.squared_error_upper == pytest.approx(PROFILE.gain_lower**-2, rel=1e-14)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_curve_gives_the_certified_account(adjacency):
    curve = profile_cost(PROFILE, adjacency)
    found = certify_profile(PROFILE, adjacency, 6, 1e-5)
    assert (curve * 6).epsilon(1e-5) == pytest.approx(found.epsilon_upper, rel=1e-9)
    pure = pure_epsilon_upper(PROFILE, adjacency.value)
    assert curve.pure_epsilon() == pytest.approx(pure, rel=1e-8)
    # The Rényi divergence is a sum over the cells.
    sums = [float(np.sum(p**3.0 / q**2.0)) for p, q in PROFILE.pairs(adjacency.value)]
    largest = math.log(max(sums)) / 2
    assert largest * (1 - 1e-12) <= curve.rdp(3.0) <= largest * (1 + 1e-6)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_more_blur_never_costs_less(adjacency):
    costs = [profile_cost(PROFILE, adjacency, blur) * 5 for blur in (0.0, 1e-9, 1e-8)]
    epsilons = [cost.epsilon(1e-5) for cost in costs]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < epsilons[2] < epsilons[0] * (1 + 1e-6)
