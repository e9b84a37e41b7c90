import itertools
import math
from importlib.resources import files

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings

from core.design.catalogue_maker import catalogue_lines, catalogue_targets
from core.design.profile_kit import hockey_stick, largest_gain, profiles, pure_epsilon_upper
from quietbit.design.profile import Profile, shipped_profile
from quietbit.target import Target
from refusals import refuses

PURE = Profile.from_weights([0.4], [1.0, math.e])


def exact_cells(profile, edges=None):
    edges = profile.edges if edges is None else edges
    ends = [-mpmath.inf, *(mpmath.mpf(float(edge)) for edge in edges), mpmath.inf]
    return [mpmath.ncdf(b) - mpmath.ncdf(a) for a, b in itertools.pairwise(ends)]


@settings(max_examples=40, deadline=None)
@given(profiles())
def test_mass_and_gain_are_bracketed_tightly(profile):
    with mpmath.workdps(60):
        mass = np.sum(profile.levels * np.array(exact_cells(profile)))
        # Not by parts: the mean of t over each cell is phi(left) - phi(right).
        ends = [mpmath.npdf(mpmath.mpf(edge)) for edge in profile.edges.tolist()]
        moments = np.array([0, *ends]) - np.array([*ends, 0])
        gain = np.sum(profile.levels * moments) / mass
        assert abs(mpmath.mpf(str(profile._mass)) - mass) <= mpmath.mpf(10) ** -26
        assert profile.gain_lower <= gain <= largest_gain(profile)
    assert largest_gain(profile) - profile.gain_lower <= 2.0**-50 * largest_gain(profile) + 1e-25
    assert abs(profile._mass - 1) <= 2.0**-40


@settings(max_examples=40, deadline=None)
@given(profiles())
def test_the_second_moment_is_that_of_the_density(profile):
    nodes = np.linspace(-12, 12, 100001)
    weights = np.exp(-0.5 * nodes**2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])
    assert profile.second_moment == pytest.approx(
        float(np.sum(nodes**2 * profile(nodes) * weights)), rel=2e-3
    )


def assert_just_below(low, high):
    for below, above in zip(low, high, strict=True):
        assert below <= above <= below * (1 + mpmath.mpf(2) ** -51)


@settings(max_examples=25, deadline=None)
@given(profiles())
def test_pairs_bound_the_true_masses_and_rounding_is_small(profile):
    with mpmath.workdps(60):
        cells = np.array(exact_cells(profile))
        mass = np.sum(profile.levels * cells)
        (p, base_below), (base_above, q) = profile.pairs("zero-out")
        assert_just_below(profile.levels * cells / mass, p)
        assert_just_below(q, profile.levels * cells / mass)
        assert_just_below(base_below, cells)
        assert_just_below(cells, base_above)
        ((higher, lower),) = profile.pairs("replace-one")
        cuts = np.union1d(profile.edges, -profile.edges)
        ends = np.array([-30.0, *cuts, 30.0])
        middle = (ends[1:] + ends[:-1]) / 2
        cells = np.array(exact_cells(profile, cuts))
        assert_just_below(lower, profile(-middle) * cells / mass)
        assert_just_below(profile(middle) * cells / mass, higher)


@settings(max_examples=25, deadline=None)
@given(profiles())
def test_replace_one_is_the_same_both_ways_round(profile):
    ((higher, lower),) = profile.pairs("replace-one")
    for a in (0.1, 0.9, 1.5, 10.0):
        assert hockey_stick(higher, lower, a) == pytest.approx(
            hockey_stick(lower[::-1], higher[::-1], a), abs=1e-14
        )
        swapped = hockey_stick(lower, higher, a)
        assert swapped == pytest.approx(hockey_stick(higher, lower, a), abs=1e-13)


@settings(max_examples=25, deadline=None)
@given(profiles())
def test_the_largest_loss_is_the_pure_epsilon(profile):
    for adjacency in ("replace-one", "zero-out"):
        pairs = profile.pairs(adjacency)
        largest = max(float(np.log(p / q).max()) for p, q in pairs)
        claimed = pure_epsilon_upper(profile, adjacency)
        assert claimed == pytest.approx(largest, abs=1e-13)
    assert (
        pure_epsilon_upper(profile, "replace-one")
        >= math.log(profile.levels[-1] / profile.levels[0]) - 1e-15
    )


def test_a_level_of_zero_has_no_pure_epsilon():
    profile = Profile.from_weights([0.0], [0.0, 1.0])
    assert pure_epsilon_upper(profile, "zero-out") == math.inf
    assert pure_epsilon_upper(profile, "replace-one") == math.inf
    ((p, q),) = profile.pairs("replace-one")
    assert p[1] >= 1
    assert q[1] == 0


@settings(max_examples=25, deadline=None)
@given(profiles())
def test_blur_covers_every_sampler_that_is_off_by_less(profile):
    """A sampler's t is off by a shift of its own at each point: its pair stays below the blurred
    one.
    """
    blur = 1e-4
    if np.diff(profile.edges).min(initial=1.0) < 3 * blur:
        return
    rng = np.random.default_rng(int(profile.identity()[:8], 16))
    near = [edge + np.linspace(-2, 2, 401) * blur for edge in profile.edges]
    t = np.concatenate([np.linspace(-9, 9, 20001), *near])
    t = np.unique(np.concatenate((t, -t)))
    w = np.gradient(t) * np.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
    ups, downs = (w * profile(sign * t + rng.uniform(-blur, blur, t.size)) for sign in (1, -1))
    ((higher, lower),) = profile.pairs("replace-one", blur)
    assert higher.sum() >= 1 >= lower.sum()
    for a in (0.5, 1.0, 2.0, float(np.exp(pure_epsilon_upper(profile, "replace-one")))):
        found = hockey_stick(ups / ups.sum(), downs / downs.sum(), a)
        assert found <= hockey_stick(higher, lower, a) + 1e-3 * np.gradient(t).max()
    for blurred, sharp in zip(
        profile.pairs("zero-out", blur), profile.pairs("zero-out"), strict=True
    ):
        for a in (0.5, 1.0, 2.0):
            assert hockey_stick(*blurred, a) >= hockey_stick(*sharp, a) - 1e-15


def test_an_edge_belongs_to_the_level_at_its_right():
    assert PURE(np.array([0.4]))[0] == PURE.levels[1]
    assert PURE(np.array([np.nextafter(0.4, 0)]))[0] == PURE.levels[0]


def test_profiles_do_not_change():
    with pytest.raises(ValueError, match="read-only"):
        PURE.levels[0] = 0.0
    with pytest.raises(AttributeError):
        PURE.edges = np.zeros(1)


@pytest.mark.parametrize(
    ("edges", "levels", "name"),
    [
        ([], [1.0], "number of edges"),
        ([0.0], [1.0], "number of levels"),
        ([math.nan], [0.5, 1.5], "edges"),
        ([17.0], [1.0, 1.5], "edges"),
        ([0.5, 0.5], [0.5, 1.0, 1.5], "edges"),
        ([[0.0]], [0.5, 1.5], "edges"),
        (["a"], [0.5, 1.5], "edges"),
        ([0.0], [1.5, 0.5], "levels"),
        ([0.0], [-0.5, 2.5], "levels"),
        ([0.0], [math.nan, 1.0], "levels"),
        ([0.0], [0.5, math.inf], "levels"),
        ([0.0], [1.0, 1.0], "levels"),
        ([0.0], [0.5, 1.6], "mean of the levels"),
    ],
)
def test_what_is_not_a_profile_is_refused(edges, levels, name):
    with refuses(name):
        Profile(edges, levels)


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("mean of the weights", lambda: Profile.from_weights([0.0], [0.0, 0.0])),
        ("weights", lambda: Profile.from_weights([0.0], [1.0])),
        ("weights", lambda: Profile.from_weights([0.0], [math.nan, 1.0])),
        ("edges", lambda: Profile.from_weights([2.0, 1.0], [1.0, 2.0, 3.0])),
        ("edges", lambda: Profile.from_weights([99.0], [1.0, 2.0])),
        ("blur", lambda: PURE.pairs("replace-one", -1e-9)),
        ("blur", lambda: PURE.pairs("replace-one", 0.02)),
        ("blur", lambda: PURE.pairs("replace-one", math.nan)),
        ("blur", lambda: Profile.from_weights([15.995], [1.0, 2.0]).pairs("zero-out", 0.01)),
        ("adjacency", lambda: PURE.pairs("add-remove")),
        ("t", lambda: PURE(np.array([math.nan]))),
    ],
)
def test_what_cannot_be_made_of_one_is_refused(name, act):
    with refuses(name):
        act()


def test_every_listed_target_is_shipped_as_it_is_made_and_no_other():
    targets = list(catalogue_targets())
    assert len(targets) == len(set(targets)) == 2 * 6 * (1 + 2 * 7 + 1)
    some = [(target, shipped_profile(target)) for target in targets if target.releases in (1, 50)]
    for adjacency, text in catalogue_lines(iter(some)).items():
        shipped = (files("quietbit.design") / "profiles" / f"{adjacency}.jsonl").read_text()
        assert set(text.splitlines()) < set(shipped.splitlines())
        assert len(shipped.splitlines()) == len(targets) / 2
    assert shipped_profile(Target(1.2345, 1e-5, "zero-out", releases=3)) is None
