"""The table of run-config keys: what is read, what is refused, and one mechanism at both ends."""

import tomllib
from pathlib import Path

import pytest

from quietbit import Plan
from quietbit.errors import InvalidParameter
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.calibrate import calibrate
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.registry import build, describe, family_of, identity_of
from quietbit.plan.plan import KEYS
from quietbit.privacy.account import Account
from quietbit.target import Adjacency, Trust

ROOT = Path(__file__).parents[3]
CONFIG = {
    "quietbit.mechanism": "imvu",
    "quietbit.clip": 1,
    "quietbit.epsilon": 3.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": 10,
    "local-epochs": 2,
}
SUMS = {"trust": "secure-aggregation", "threshold": 5, "server": "active"}


def read(**changes):
    config = CONFIG | {f"quietbit.{key.replace('_', '-')}": value for key, value in changes.items()}
    return Plan.from_run_config({key: value for key, value in config.items() if value is not None})


def test_what_is_left_out_has_the_defaults_of_the_library():
    found = read()
    assert (found.clip, found.delta, found.norm, found.beta, found.mode) == (1, 1e-5, Norm.L2, None, "adaptive")
    assert found.target.adjacency is Adjacency.ZERO_OUT


def test_settings_survive_the_config():
    found = read(local_arrays="a,b.*", bits=2, delta=1e-6, keep=64, participation="secret-order")
    assert Plan.from_run_config(found.to_run_config()) == found


def test_the_page_of_keys_has_every_key():
    text = (ROOT / "docs" / "reference" / "plan.md").read_text(encoding="utf-8")
    for key in KEYS.values():
        assert f"`{key}`" in text, key


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mechanism": None, "clip": None}, "quietbit.mechanism, quietbit.clip must be given"),
        ({"epsilon": None}, "quietbit.epsilon must be given"),
        ({"adjacency": None}, "quietbit.adjacency must be given"),
        ({"clip": None}, "quietbit.clip must be given"),
        ({"mechanism": "none"}, "a private mechanism"),
        ({"mechanism": "rappor"}, "mechanism must be one of"),
        ({"clip": 0.0}, "clip must be"),
        ({"clip": float("nan")}, "clip must be"),
        ({"epsilon": -1.0}, "quietbit.epsilon must be"),
        ({"epsilon": "3"}, "quietbit.epsilon must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"adjacency": "add-remove"}, "quietbit.adjacency must be one of zero-out, replace-one"),
        ({"norm": "l3"}, "norm must be one of"),
        ({"releases": None}, "quietbit.releases must be given"),
        ({"releases": 0}, "releases must be"),
        ({"design_epsilon": 2.0}, "quietbit.releases must be left out where the mechanism's strength is given"),
        ({"noise_multiplier": 2.0, "releases": None}, r"quietbit\.noise-multiplier must be left out for imvu"),
        ({"words": "secure"}, "run-config key must be one of"),
        ({"seed": 1}, "quietbit.seed must be left out of an engine's run"),
        ({"rng": "seeded"}, "quietbit.rng must be left out of an engine's run"),
        ({"cohort": 5}, "quietbit.cohort must be left out of an engine's run"),
        ({"unit": "sample"}, "quietbit.samples must be given where samples are protected"),
        ({"mode": "planned"}, "run-config key must be one"),
        ({"participation": "sampled"}, "quietbit.participation must be left out, or secret-order"),
        ({"epsilom": 3.0}, r"run-config key must be one that exists \(did you mean 'quietbit.epsilon'"),
        ({"Epsilon": 3.0}, "did you mean 'quietbit.epsilon'"),
        ({"honest": 3}, "run-config key must be one of"),
        ({"local_arrays": 3}, "quietbit.local-arrays must be text"),
        ({"trust": "central"}, "quietbit.trust must be local or secure-aggregation"),
        ({"threshold": 5}, "quietbit.threshold must be left out unless"),
        ({"min_honest_clients": 5}, "quietbit.min-honest-clients must be left out unless"),
        ({"timeout": 5.0}, "quietbit.timeout must be left out unless"),
        (SUMS | {"threshold": None}, "quietbit.threshold must be given for sums"),
        (SUMS | {"threshold": 1}, "quietbit.threshold must be"),
        (SUMS | {"server": None}, "quietbit.server must be given"),
        (SUMS | {"server": "nice"}, "quietbit.server must be one of"),
        ({"server": "active"}, "quietbit.server must be left out unless"),
        (SUMS | {"neighbours": 4}, "quietbit.share-threshold must be a whole number"),
        (SUMS | {"share_threshold": 4}, "quietbit.neighbours must be a whole number"),
        (SUMS | {"neighbours": 4, "share-threshold": 6}, "quietbit.share-threshold must be"),
        (SUMS | {"min_honest_clients": 6}, "quietbit.min-honest-clients must be"),
        (SUMS | {"min_honest_clients": 1}, "quietbit.min-honest-clients must be"),
        (
            SUMS | {"timeout": 0.0},
            "quietbit.timeout must be",
        ),
        (
            SUMS | {"mechanism": "gaussian"},
            "imvu under secure-aggregation",
        ),
        (SUMS | {"beta": 2.0}, r"quietbit\.beta must be left out"),
    ],
)
def test_refusals_are_one_sentence(changes, says):
    with pytest.raises(InvalidParameter, match=says) as refusal:
        read(**changes)
    assert "\n" not in str(refusal.value)
    assert "quietbit." in str(refusal.value)  # as it is called in the run config, whoever refused it


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bits": 99}, "quietbit.bits must be a whole number from 1 to 8, got 99"),
        ({"levels": 1}, "quietbit.levels must be"),
        ({"clip": 1e40}, "quietbit.clip must be at least 1e-30 and at most 1e"),
        ({"keep": 3}, "quietbit.keep must be a power of two"),
        ({"decoder": "best"}, "quietbit.decoder must be one of"),
    ],
)
def test_refusals_of_a_calibration_name_the_key(changes, says):
    with pytest.raises(InvalidParameter) as refusal:
        read(**changes).mechanism_for(100)
    assert str(refusal.value).startswith(says)


@pytest.mark.parametrize("key", ["quietbit_epsilon", "quietbit-epsilon", "Quietbit.epsilon", "quietbit", "quietbit."])
def test_a_key_that_begins_like_ours_and_is_none_is_refused(key):
    with pytest.raises(InvalidParameter, match="run-config key must be one"):
        Plan.from_run_config(CONFIG | {key: 1.0})


def fits(found, mechanism, releases):
    return Account(found.target, "adaptive").allows(found.release(mechanism), releases)


@pytest.mark.parametrize("name", ["imvu", "gaussian", "mvu", "skellam"])
def test_nodes_can_answer_as_often_as_the_mechanism_is_calibrated_for_and_not_once_more(name):
    found = read(mechanism=name)
    mechanism = found.mechanism_for(100)
    assert fits(found, mechanism, 10)
    assert not fits(found, mechanism, 11)
    assert (mechanism.privacy(Adjacency.ZERO_OUT) * 10).epsilon(1e-5) <= 3.0
    assert Account(found.target, "adaptive").spend(found.release(mechanism), 10).epsilon() > 3.0 * 0.999
    assert found.mechanism_for(100) is mechanism


def test_under_secure_aggregation_the_sum_over_the_honest_meets_the_budget():
    found = read(**SUMS | {"threshold": 20}, min_honest_clients=15)
    mechanism = found.mechanism_for(100)
    assert fits(found, mechanism, 10)
    assert not fits(found, mechanism, 11)
    assert (mechanism.sum_privacy(15, Adjacency.ZERO_OUT) * 10).epsilon(1e-5) <= 3.0
    assert found.target.trust is Trust.SECURE_AGGREGATION
    assert read(**SUMS | {"threshold": 20}).min_honest_clients == 20
    assert read().target.trust is Trust.LOCAL
    assert Plan.from_run_config(found.to_run_config()) == found


def test_a_strength_given_by_hand_is_used():
    mechanism = read(releases=None, design_epsilon=2.0, beta=3.0, decoder="unbiased-at-zero").mechanism_for(8)
    assert isinstance(mechanism, InterpolatedMVU)
    assert (mechanism.design.spec.epsilon, mechanism.beta, mechanism.decoder) == (2.0, 3.0, "unbiased-at-zero")


@pytest.mark.parametrize(
    ("key", "value"), [("clip", 2.0), ("norm", "l1"), ("releases", 11), ("bits", 2), ("beta", 2.0)]
)
def test_every_choice_changes_the_identity(key, value):
    identities = {identity_of(found.mechanism_for(16)) for found in (read(), read(**{key: value}))}
    assert len(identities) == 2


def test_names_of_local_arrays():
    found = read(local_arrays="head.bias, *.num_batches_tracked,")
    assert found.stays_local("head.bias")
    assert found.stays_local("bn1.num_batches_tracked")
    assert not found.stays_local("head.weight")
    assert not read().stays_local("")


def test_some_coordinates_are_kept_and_a_node_knows_the_family_inside():
    found = read(**{"keep": 64, "epsilon": 8.0, "releases": 5}).mechanism_for(3000)
    assert found.keep == 64
    assert family_of(found) == "imvu"
    assert family_of(build(describe(found))) == "imvu"
    sums = read(**SUMS, **{"keep": 64}).mechanism_for(3000)
    assert (sums.keep, sums.rows) == (64, 0)  # which ones is said anew in every round


def test_auto_becomes_a_mechanism_before_anything_is_priced():
    found = read(mechanism="auto", releases=5)
    mechanism = found.mechanism_for(40)
    assert build(describe(mechanism)).privacy(Adjacency.ZERO_OUT) is not None
    assert Account(found.target, "adaptive").spend(found.release(mechanism), 5).epsilon() <= found.epsilon
    with pytest.raises(InvalidParameter, match="bits must be left out for auto"):
        read(mechanism="auto", bits=2)


@pytest.mark.parametrize(
    ("epsilon", "releases"), [(150.0, 3), *(pytest.param(one, 4, marks=pytest.mark.long) for one in (100.0, 300.0))]
)
def test_engines_take_what_calibrate_saturates_at(epsilon, releases):
    """The search for a lower target once ended at 0 here, and refused a budget that nobody had asked for."""
    found = read(mechanism="vmvu", epsilon=epsilon, releases=releases)
    mechanism = found.mechanism_for(100)
    assert fits(found, mechanism, releases)
    same = calibrate(
        "vmvu", ball=mechanism.domain, epsilon=epsilon, delta=1e-5, adjacency="zero-out", releases=releases
    )
    assert same.saturated
    assert mechanism.error().squared <= 1.1 * same.squared_error


@pytest.mark.parametrize(
    "mechanism", ["imvu", "vmvu", "skellam"]
)  # enough Gaussian noise meets any budget at delta > 0
def test_a_budget_out_of_reach_is_refused_by_the_number_that_was_asked_for(mechanism):
    with pytest.raises(InvalidParameter) as refusal:
        read(mechanism=mechanism, epsilon=1e-9, releases=1000).mechanism_for(100)
    assert (refusal.value.name, refusal.value.value) == ("quietbit.epsilon", 1e-9)


@pytest.mark.parametrize("mechanism", ["imvu", "gaussian", "mvu", "vmvu"])
def test_delta_zero_is_never_a_matter_of_another_epsilon(mechanism):
    """Where a mechanism has no account at delta 0, delta is at fault; where it has one, it is met."""
    found = read(mechanism=mechanism, delta=0.0, epsilon=8.0, releases=1)
    try:
        assert fits(found, found.mechanism_for(100), 1)
    except InvalidParameter as refusal:
        assert refusal.name == "quietbit.delta" or refusal.value == 8.0  # noqa: PT017 - either answer is one


def test_a_plan_is_read_from_a_table_without_a_prefix():
    table = tomllib.loads(
        'mechanism = "gaussian"\nclip = 1.0\nadjacency = "zero-out"\nnoise-multiplier = 2.0\ncohort = 3'
    )
    found = Plan.read(table)
    assert (found.noise_multiplier, found.cohort, found.mode) == (2.0, 3, "planned")
    assert found.target.epsilon == float("inf")
    with pytest.raises(InvalidParameter, match=r"did you mean 'noise-multiplier'\?"):
        Plan.read(table | {"noise-multiplyer": 1.0})
    with pytest.raises(InvalidParameter, match="min-honest-clients must be left out"):
        Plan.read(table | {"min-honest-clients": 3})
    with pytest.raises(InvalidParameter, match="server must be left out of a simulation"):
        Plan.read(table | {"server": "active"})
