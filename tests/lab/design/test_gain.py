import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import linprog
from scipy.special import ndtr

from core.design.profile_kit import largest_gain, profiles, pure_epsilon_upper
from quietbit.design.profile import Profile
from quietbit.design.profile_search import pure_edge
from quietbit.target import Target
from quietbit_lab.design.gain import gain_upper
from refusals import refuses


def two_levels(epsilon, adjacency):
    ratio = epsilon if adjacency == "replace-one" else 2 * epsilon
    return Profile.from_weights([pure_edge(epsilon, adjacency)], [math.exp(-ratio), 1.0])


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 4.0, 8.0, 20.0])
def test_the_step_attains_the_bound_and_is_private(epsilon, adjacency):
    profile = two_levels(epsilon, adjacency)
    bound = gain_upper(Target(epsilon, 0.0, adjacency))
    assert profile.gain_lower <= bound <= profile.gain_lower * (1 + 1e-9)
    assert pure_epsilon_upper(profile, adjacency) == pytest.approx(epsilon, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(profiles(), st.sampled_from(["replace-one", "zero-out"]))
def test_no_random_profile_beats_the_bound_of_its_own_epsilon(profile, adjacency):
    target = Target(pure_epsilon_upper(profile, adjacency), 0.0, adjacency)
    assert largest_gain(profile) <= gain_upper(target)


def linear_programme(epsilon, delta, adjacency, cap, cells=400):
    """The largest gain of step functions on a grid for one release, by a solver that knows
    nothing of the proof: masses of cells, and two kinds of mass beyond the ratio.
    """
    edges = np.concatenate(([-np.inf], np.linspace(-4.5, 4.5, cells - 1), [np.inf]))
    w = np.minimum(np.diff(ndtr(edges)), np.diff(ndtr(-edges[::-1]))[::-1])
    centres = -np.diff(stats.norm.pdf(edges)) / w
    growth, eye, none = math.exp(epsilon), np.eye(cells), np.zeros((cells, cells))
    if adjacency == "replace-one":
        losses = [[eye - growth * eye[::-1], -eye, none]]
        limits = np.zeros(cells)
    else:
        losses = [[eye, -eye, none], [-growth * eye, none, -eye]]
        limits = np.concatenate((growth * w, -w))
    falls = -np.diff(eye / w, axis=0) * np.maximum(w[1:], w[:-1])[:, None]
    blank, one, zero = np.zeros((cells - 1, cells)), np.ones((1, cells)), np.zeros((1, cells))
    matrix = np.block([*losses, [falls, blank, blank], [zero, one, zero], [zero, zero, one]])
    highest = np.concatenate((cap * w, np.full(2 * cells, np.inf)))
    found = linprog(
        np.concatenate((-centres, np.zeros(2 * cells))),
        matrix,
        np.concatenate((limits, np.zeros(cells - 1), [delta, delta])),
        np.hstack((one, zero, zero)),
        [1.0],
        np.column_stack((np.zeros(3 * cells), highest)),
    )
    assert found.status == 0
    return -found.fun


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1.0, 0.0), (1.0, 1e-5), (1.0, 1e-3), (2.0, 1e-2), (0.2, 1e-2)]
)
def test_a_linear_programme_stays_below_the_bound_and_comes_close(epsilon, delta, adjacency):
    cap = 1000.0
    best = linear_programme(epsilon, delta, adjacency, cap)
    bound = gain_upper(Target(epsilon, delta, adjacency), cap)
    assert best <= bound * (1 + 1e-6)
    assert bound <= best * 1.03  # the grid is coarse, and its top cell starts at 4.5


def test_several_releases_share_a_pure_budget():
    once = gain_upper(Target(0.2, 0.0, "replace-one"))
    assert gain_upper(Target(1.0, 0.0, "replace-one", releases=5)) == pytest.approx(once, rel=1e-12)


def test_without_a_cap_delta_buys_any_gain():
    assert gain_upper(Target(1.0, 1e-5, "replace-one")) == math.inf
    far = Profile.from_weights([15.0], [1.0, 1 + 1e-3 / float(ndtr(-15.0))])
    assert far.gain_lower > 1e-3 * 14  # a mass of one in a thousand, fifteen deviations out


@pytest.mark.parametrize("largest", [1.0, 0.0, math.nan])
def test_a_cap_below_the_mean_is_refused(largest):
    with refuses("largest"):
        gain_upper(Target(1.0, 1e-5, "replace-one"), largest)
