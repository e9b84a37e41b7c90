"""The dominating pair of the vector mechanism against brute force over correlations, norms and
mixtures.

Two neighbouring updates are r u and r' u'; what they release depends on (<u, z>, <u', z>), a
bivariate normal of correlation rho = <u, u'>. The oracle integrates the hockey-stick divergence
over it; nothing of it is shared with the library.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from core.design.profile_kit import correlated_hockey_stick, hockey_stick, profiles
from quietbit.design.profile import Profile

CORRELATIONS = (-1.0, -0.999, -0.9, -0.5, 0.0, 0.3, 0.8, 0.99, 1.0)
RATIOS = np.exp(np.array([-4.0, -1.0, -0.2, 0.0, 0.2, 0.5, 1.0, 2.0, 4.0]))
NORMS = st.floats(0.0, 1.0)


def brute_force(profile, rho, first=1.0, second=1.0):
    """E[(p - a q)_+] at all ratios, with p = 1 - r + r h(t) and q = 1 - r' + r' h(t')."""
    p, q = (1 - norm + norm * profile.levels for norm in (first, second))
    return correlated_hockey_stick(profile.edges, p, q, rho, RATIOS)


def exact(pair):
    return np.array([hockey_stick(*pair, a) for a in RATIOS])


@settings(max_examples=15, deadline=None)
@given(profiles(most=5, spread=5.0))
def test_opposite_directions_are_the_worst_and_worse_the_farther(profile):
    (opposite,) = profile.pairs("replace-one")
    found = [brute_force(profile, rho) for rho in CORRELATIONS]
    np.testing.assert_allclose(found[0], exact(opposite), rtol=0, atol=1e-9)
    # Quadrature: the tails bend sharply where rho is near -1 or 1.
    assert np.all(np.diff(found, axis=0) <= 1e-7)


@settings(max_examples=15, deadline=None)
@given(profiles(most=5, spread=5.0), NORMS, NORMS)
def test_shorter_updates_are_covered(profile, first, second):
    (opposite,) = profile.pairs("replace-one")
    for rho in (-1.0, -0.7, 0.0, 0.7, 1.0):
        assert np.all(brute_force(profile, rho, first, second) <= exact(opposite) + 1e-9)


@settings(max_examples=15, deadline=None)
@given(profiles(most=5, spread=5.0), NORMS)
def test_zero_out_is_covered_both_ways_round(profile, norm):
    """And by the replace-one pair: an account for replace-one covers zero-out."""
    (opposite,) = profile.pairs("replace-one")
    update, nothing = map(exact, profile.pairs("zero-out"))
    assert np.all(brute_force(profile, 1.0, norm, 0.0) <= update + 1e-9)
    assert np.all(brute_force(profile, 1.0, 0.0, norm) <= nothing + 1e-9)
    assert np.all(np.maximum(update, nothing) <= exact(opposite) + 1e-12)
    # A full-length update attains the bound.
    np.testing.assert_allclose(brute_force(profile, 1.0, 1.0, 0.0), update, rtol=0, atol=1e-9)


def test_without_monotonicity_the_opposite_is_not_the_worst():
    """The hypothesis matters, and this oracle notices: an even bump looks the same from -u, but
    not from the side.
    """
    edges, levels = np.array([-1.0, 1.0]), np.array([0.5, 1.0, 0.5])
    levels /= levels @ np.diff(ndtr([-np.inf, -1.0, 1.0, np.inf]))
    opposite, beside = (
        correlated_hockey_stick(edges, levels, levels, rho, [1.0]) for rho in (-1.0, 0.0)
    )
    assert opposite == pytest.approx(0.0, abs=1e-12)
    assert beside > 0.05


def test_a_profile_a_tenth_too_steep_is_noticed():
    honest, steep = (Profile.from_weights([0.3975], [1.0, math.e**rise]) for rise in (1.0, 1.1))
    ((p, q),) = honest.pairs("replace-one")
    assert hockey_stick(p, q, math.e) <= 1e-15
    assert correlated_hockey_stick(steep.edges, steep.levels, steep.levels, -1.0, [math.e]) > 0.01
