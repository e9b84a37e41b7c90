import math

import pytest
from attrs import evolve
from scipy.optimize import brentq

from core.design.catalogue_maker import catalogue_targets
from quietbit.design.profile import Profile, shipped_profile
from quietbit.design.profile_search import propose
from quietbit.design.store import remember
from quietbit.errors import QuietbitError
from quietbit.mechanism import solve_profile as module
from quietbit.mechanism.solve_profile import meets, solve_profile, solve_profile_anew
from quietbit.privacy.conversion import gaussian_log_delta
from quietbit.privacy.profile import certify_profile
from quietbit.target import Adjacency, Target
from quietbit_lab.design.gain import gain_upper
from refusals import refuses


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIETBIT_CACHE", str(tmp_path))


def gaussian_error(epsilon, delta, releases, adjacency):
    """Squared error of Gaussian noise with its exact account (Balle and Wang 2018)."""
    mu = math.exp(
        brentq(
            lambda x: gaussian_log_delta(epsilon, math.exp(x)) - math.log(delta), -12, 4, xtol=1e-13
        )
    )
    return releases * ((2.0 if adjacency == "replace-one" else 1.0) / mu) ** 2


@pytest.mark.parametrize("epsilon", sorted({target.epsilon for target in catalogue_targets()}))
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_every_shipped_profile_is_certified_for_its_target(adjacency, epsilon, step):
    """On every change each seventh; the files change with the catalogue alone."""
    targets = [
        target
        for target in catalogue_targets()
        if (target.adjacency.value, target.epsilon) == (adjacency, epsilon)
    ]
    for target in targets[::step]:
        profile = shipped_profile(target)
        assert profile is not None
        found = certify_profile(profile, Adjacency(adjacency), target.releases, target.delta)
        assert 0.998 * epsilon <= found.epsilon_upper <= epsilon, target
        if target.delta > 0:
            error = profile.gain_lower**-2
            assert error < gaussian_error(epsilon, target.delta, target.releases, adjacency), target


@pytest.mark.parametrize(
    ("epsilon", "known"), [(1.0, 6.33), (2.0, 1.617), (3.0, 0.743), (4.0, 0.435), (8.0, 0.133)]
)
def test_pure_profiles_reach_the_optimum(epsilon, known):
    profile = solve_profile(epsilon, 0.0, 1, Adjacency.REPLACE_ONE)
    assert profile.gain_lower**-2 <= 1.001 * known
    bound = gain_upper(Target(epsilon, 0.0, "replace-one"))
    assert bound * (1 - 1e-6) <= profile.gain_lower <= bound


@pytest.mark.parametrize(
    ("adjacency", "releases"), [(Adjacency.REPLACE_ONE, 1), (Adjacency.ZERO_OUT, 8)]
)
def test_a_new_target_is_solved_certified_and_kept(adjacency, releases, monkeypatch):
    profile = solve_profile(1.7, 1e-4, releases, adjacency)
    found = certify_profile(profile, adjacency, releases, 1e-4)
    assert 1.7 * (1 - 5e-3) < found.epsilon_upper <= 1.7
    assert profile.gain_lower**-2 < gaussian_error(1.7, 1e-4, releases, adjacency.value)
    module._solved.cache_clear()
    monkeypatch.setattr(
        module, "solve_profile_anew", lambda target: pytest.fail("it was solved again")
    )
    assert solve_profile(1.7, 1e-4, releases, adjacency).identity() == profile.identity()


def test_a_cached_profile_that_is_not_private_enough_is_solved_again():
    target = Target(1.1, 0.0, "zero-out", releases=2)
    remember(Profile.from_weights([0.5], [1.0, 9.0]), target)
    module._solved.cache_clear()
    assert meets(solve_profile(1.1, 0.0, 2, Adjacency.ZERO_OUT), target)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_the_search_s_own_account_is_the_certified_one(adjacency):
    """Lattice convolutions and the certified account are different code; they agree before
    anything is adjusted.
    """
    target = Target(2.0, 1e-6, adjacency, releases=12)
    proposal = propose(target)
    profile = Profile.from_weights(proposal.edges, proposal.weights())
    assert profile.gain_lower == pytest.approx(proposal.gain, rel=1e-12)
    found = certify_profile(profile, Adjacency(adjacency), 12, 1e-6).epsilon_upper
    assert found == pytest.approx(2.0, rel=1e-4)


@pytest.mark.long
def test_thousands_of_releases_are_a_gaussian_within_its_steps():
    profile = solve_profile_anew(Target(1.0, 1e-5, "zero-out", releases=3000))
    assert profile.gain_lower**-2 <= (1 + 2e-5) * gaussian_error(1.0, 1e-5, 3000, "zero-out")


@pytest.mark.parametrize(
    ("epsilon", "delta", "releases", "adjacency"),
    [
        pytest.param(20.0, 1e-5, 3, "zero-out", marks=pytest.mark.long),
        (60.0, 0.0, 1, "replace-one"),
        (60.0, 0.0, 1, "zero-out"),
        (1e-3, 0.0, 7, "zero-out"),
        (0.1, 1e-2, 1, "replace-one"),
    ],
)
def test_far_off_targets_are_met_too(epsilon, delta, releases, adjacency):
    target = Target(epsilon, delta, adjacency, releases=releases)
    profile = solve_profile_anew(target)
    assert meets(profile, target)
    if delta > 0:
        assert profile.gain_lower**-2 < gaussian_error(epsilon, delta, releases, adjacency)


def test_a_proposal_that_cannot_be_certified_is_refused(monkeypatch):
    certificate = certify_profile(Profile.from_weights([0.5], [1.0, 2.0]), Adjacency.ZERO_OUT)
    steep = evolve(certificate, epsilon_upper=math.inf)
    monkeypatch.setattr(module, "certify_profile", lambda *arguments: steep)
    with pytest.raises(QuietbitError, match="No profile was certified"):
        solve_profile_anew(Target(1.0, 0.0, "zero-out"))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": 61.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -1e-9}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"delta": True}, "delta"),
        ({"releases": 0}, "releases"),
        ({"releases": 1.5}, "releases"),
        ({"adjacency": "zero-out"}, "adjacency"),
    ],
)
def test_targets_that_make_no_sense_are_refused(changed, name):
    usual = {"epsilon": 1.0, "delta": 0.0, "releases": 1, "adjacency": Adjacency.ZERO_OUT}
    with refuses(name):
        solve_profile(**usual | changed)
