"""The dominating pair of the vector mechanism against brute force over correlations, norms and
mixtures.

Two neighbouring updates are r u and r' u'; what they release depends on (<u, z>, <u', z>), a
bivariate normal of correlation rho = <u, u'>. The oracle integrates the hockey-stick divergence
over it: Gauss-Legendre nodes inside every cell of the first variable, normal tails of the second
given the first. Nothing of it is shared with the library.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from core.design.profile_kit import hockey_stick, profiles
from quietbit.design.profile import Profile

NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
CORRELATIONS = (-0.999, -0.9, -0.5, 0.0, 0.3, 0.8, 0.99)
RATIOS = np.exp(np.array([-4.0, -1.0, -0.2, 0.0, 0.2, 0.5, 1.0, 2.0, 4.0]))
REACH = 9.0


def brute_force(edges, levels, rho, a, first=1.0, second=1.0):
    """E[(p - a q)_+] with p = 1 - r + r h(t) and q = 1 - r' + r' h(t'), for a step function h of
    any kind.
    """
    pieces = np.unique(
        np.concatenate(([-REACH, REACH], edges, -np.asarray(edges), np.linspace(-REACH, REACH, 37)))
    )
    half = np.diff(pieces)[:, None] / 2
    t = (pieces[:-1, None] + half * (1 + NODES)).ravel()
    w = (half * WEIGHTS).ravel() * np.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
    p = 1 - first + first * levels[np.searchsorted(edges, t, side="right")]
    if abs(rho) == 1:
        q = 1 - second + second * levels[np.searchsorted(edges, rho * t, side="right")]
        return float(np.sum(w * np.maximum(p - a * q, 0.0)))
    q = 1 - second + second * levels
    spread = math.sqrt(1 - rho * rho)
    tails = np.concatenate(
        (np.zeros((t.size, 1)), ndtr((edges - rho * t[:, None]) / spread), np.ones((t.size, 1))),
        axis=1,
    )
    return float(
        np.sum(w * np.sum(np.diff(tails, axis=1) * np.maximum(p[:, None] - a * q, 0.0), axis=1))
    )


@settings(max_examples=15, deadline=None)
@given(profiles(most=5, spread=5.0))
def test_opposite_directions_are_the_worst_and_worse_the_farther(profile):
    ((p, q),) = profile.pairs("replace-one")
    for a in RATIOS:
        worst = hockey_stick(p, q, a)
        assert worst == pytest.approx(brute_force(profile.edges, profile.levels, -1.0, a), abs=1e-9)
        found = [
            brute_force(profile.edges, profile.levels, rho, a) for rho in (-1.0, *CORRELATIONS, 1.0)
        ]
        assert np.all(
            np.diff(found) <= 1e-7
        )  # quadrature: the tails bend sharply where rho is near -1 or 1
        assert found[0] <= worst + 1e-9


@settings(max_examples=15, deadline=None)
@given(profiles(most=5, spread=5.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_shorter_updates_are_covered(profile, first, second):
    ((p, q),) = profile.pairs("replace-one")
    for a in RATIOS:
        bound = hockey_stick(p, q, a)
        for rho in (-1.0, -0.7, 0.0, 0.7, 1.0):
            assert brute_force(profile.edges, profile.levels, rho, a, first, second) <= bound + 1e-9


@settings(max_examples=15, deadline=None)
@given(profiles(most=5, spread=5.0), st.floats(0.0, 1.0))
def test_zero_out_is_covered_both_ways_round(profile, norm):
    (p, base), (noise, q) = profile.pairs("zero-out")
    for a in RATIOS:
        given_update = brute_force(profile.edges, profile.levels, 1.0, a, norm, 0.0)
        given_nothing = brute_force(profile.edges, profile.levels, 1.0, a, 0.0, norm)
        assert given_update <= hockey_stick(p, base, a) + 1e-9
        assert given_nothing <= hockey_stick(noise, q, a) + 1e-9
    whole = brute_force(profile.edges, profile.levels, 1.0, 1.0, 1.0, 0.0)
    assert whole == pytest.approx(
        hockey_stick(p, base, 1.0), abs=1e-9
    )  # a full-length update attains the bound


@settings(max_examples=15, deadline=None)
@given(profiles(most=5, spread=5.0))
def test_noise_costs_less_than_the_opposite(profile):
    """Zero-out pairs lie below the replace-one pair: an account for replace-one covers zero-out."""
    ((p, q),) = profile.pairs("replace-one")
    for upper, lower in profile.pairs("zero-out"):
        for a in RATIOS:
            assert hockey_stick(upper, lower, a) <= hockey_stick(p, q, a) + 1e-12


def test_without_monotonicity_the_opposite_is_not_the_worst():
    """The hypothesis matters, and this oracle notices: an even bump looks the same from -u, but
    not from the side.
    """
    edges, levels = np.array([-1.0, 1.0]), np.array([0.5, 1.0, 0.5])
    levels = levels / (levels @ np.diff(ndtr(np.array([-np.inf, -1.0, 1.0, np.inf]))))
    assert brute_force(edges, levels, -1.0, 1.0) == pytest.approx(0.0, abs=1e-12)
    assert brute_force(edges, levels, 0.0, 1.0) > 0.05


def test_a_profile_a_tenth_too_steep_is_noticed():
    honest = Profile.from_weights([0.3975], [1.0, math.e])
    steep = Profile.from_weights([0.3975], [1.0, math.e**1.1])
    ((p, q),) = honest.pairs("replace-one")
    a = math.exp(1.0)
    assert hockey_stick(p, q, a) <= 1e-15
    assert brute_force(steep.edges, steep.levels, -1.0, a) > 0.01
