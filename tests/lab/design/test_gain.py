import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
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


def test_known_errors_of_the_pure_step():
    """PrivUnitG's optimum, replace-one; three digits as known before this library had it."""
    known = {1.0: 6.33, 2.0: 1.617, 3.0: 0.743, 4.0: 0.435, 8.0: 0.133}
    for epsilon, error in known.items():
        assert pure_edge(epsilon, "replace-one") ** -2 == pytest.approx(
            error, abs=6e-4 if error < 2 else 6e-3
        )


@settings(max_examples=40, deadline=None)
@given(profiles(), st.sampled_from(["replace-one", "zero-out"]))
def test_no_random_profile_beats_the_bound_of_its_own_epsilon(profile, adjacency):
    target = Target(pure_epsilon_upper(profile, adjacency), 0.0, adjacency)
    assert largest_gain(profile) <= gain_upper(target)


def linear_programme(epsilon, delta, adjacency, cap, cells=400):
    """The largest gain of step functions on a grid for one release, by a solver that knows
    nothing of the proof.
    """
    edges = np.concatenate(([-np.inf], np.linspace(-4.5, 4.5, cells - 1), [np.inf]))
    left, right = edges[:-1], edges[1:]
    w = np.where(left + right < 0, ndtr(right) - ndtr(left), ndtr(-left) - ndtr(-right))
    phi = np.where(np.isinf(edges), 0.0, np.exp(-0.5 * np.clip(edges, -40, 40) ** 2)) / math.sqrt(
        2 * math.pi
    )
    mean, eye, none = (
        (phi[:-1] - phi[1:]) / w,
        sparse.identity(cells, format="csr"),
        np.zeros(cells),
    )
    one, small = np.ones(cells), math.exp(-epsilon)
    top = np.maximum(w[1:], w[:-1])
    order = sparse.diags([w[1:] / top, -w[:-1] / top], [0, 1], shape=(cells - 1, cells))
    blank = sparse.csr_matrix((cells - 1, 2 * cells))
    if adjacency == "replace-one":  # P - e^eps Q <= s, divided by e^eps; variables are masses
        losses = sparse.hstack([small * eye - eye[::-1], -eye, 0 * eye])
        limits, budgets = none, [delta * small, delta]
    else:
        over, under = sparse.hstack([eye, -eye, 0 * eye]), sparse.hstack([-eye, 0 * eye, -eye])
        losses = sparse.vstack([over, under])
        limits, budgets = (
            np.concatenate((math.exp(epsilon) * w, -small * w)),
            [delta, delta * small],
        )
    sums = sparse.csr_matrix(
        np.array([np.concatenate((none, one, none)), np.concatenate((none, none, one))])
    )
    matrix = sparse.vstack([losses, sparse.hstack([order, blank]), sums])
    right_side = np.concatenate((limits, np.zeros(cells - 1), budgets))
    bounds = np.vstack(
        (
            np.column_stack((none, cap * w)),
            np.column_stack((np.zeros(2 * cells), np.full(2 * cells, np.inf))),
        )
    )
    found = linprog(
        -np.concatenate((mean, none, none)),
        matrix,
        right_side,
        sparse.csr_matrix(np.concatenate((one, none, none))[None]),
        [1.0],
        bounds,
        method="highs",
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
