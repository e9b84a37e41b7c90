"""The table of run-config keys: what is read, what is refused, and one mechanism at both ends."""

import tomllib
from pathlib import Path

import pytest

from quietbit import Plan
from quietbit.errors import InvalidParameter
from quietbit.federation.plan import KEYS
from quietbit.federation.simulate import SimulatedPlan
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.calibrate import calibrate
from quietbit.mechanism.registry import build, describe, family_of
from quietbit.privacy.account import Account
from quietbit.target import Adjacency
from refusals import refuses

ROOT = Path(__file__).parents[2]
CONFIG = {
    "quietbit.mechanism": "imvu",
    "quietbit.clip": 1,
    "quietbit.epsilon": 3.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": 10,
    "local-epochs": 2,
}
SUMS = {"secure-aggregation.threshold": 5, "secure-aggregation.adversary": "active"}


def read(**changes):
    config = CONFIG | {f"quietbit.{key.replace('_', '-')}": value for key, value in changes.items()}
    return Plan.from_run_config({key: value for key, value in config.items() if value is not None})


def test_what_is_left_out_has_the_defaults_of_the_library():
    found = read()
    assert (found.clip, found.delta, found.mechanism.norm) == (1, 1e-5, Norm.L2)
    assert found.target.adjacency is Adjacency.ZERO_OUT


@pytest.mark.parametrize(
    "changes",
    [
        {"local-arrays": "a,b.*", "delta": 1e-6, "mechanism.bits": 2},
        {"evaluate.epsilon": 0.5, "evaluate.metric": "loss", "evaluate.releases": 2},
        SUMS | {"secure-aggregation.honest-clients": 3},
    ],
)
def test_settings_survive_the_config(changes):
    found = read(**changes)
    assert Plan.from_run_config(found.to_run_config()) == found


def test_the_page_of_keys_has_every_key():
    text = (ROOT / "docs" / "reference" / "plan.md").read_text(encoding="utf-8")
    for key in KEYS:
        assert f"`{key}`" in text, key


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"mechanism": None, "clip": None}, "mechanism"),
        ({"epsilon": None}, "epsilon"),
        ({"adjacency": None}, "adjacency"),
        ({"clip": None}, "clip"),
        ({"mechanism": "none"}, "mechanism"),
        ({"releases": None}, "releases"),
        ({"mechanism.design_epsilon": 2.0}, "releases"),
        ({"mechanism.noise_multiplier": 2.0, "releases": None}, "mechanism.noise-multiplier"),
        ({"samples": True}, "samples.dataset-size"),
        ({"samples.dataset-size": 5, "mechanism.norm": "l1"}, "mechanism.norm"),
        ({"local_arrays": 3}, "local-arrays"),
        ({"trust": "central"}, "trust"),
        ({"secure-aggregation.adversary": "active"}, "secure-aggregation.threshold"),
        ({"secure-aggregation.threshold": 5}, "secure-aggregation.adversary"),
        ({"secure-aggregation": True}, "secure-aggregation.threshold"),
        (SUMS | {"secure-aggregation.honest-clients": 6}, "secure-aggregation.honest-clients"),
        ({"evaluate.epsilon": 5.0}, "epsilon"),
        ({"evaluate.metric": "loss"}, "evaluate.epsilon"),
    ],
)
def test_a_refusal_names_the_key_as_the_config_spells_it(changes, name):
    with pytest.raises(InvalidParameter) as refusal:
        read(**changes)
    assert refusal.value.name == f"quietbit.{name}"
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "nearest"),
    [
        ({"epsilom": 3.0}, "quietbit.epsilon"),
        ({"Epsilon": 3.0}, "quietbit.epsilon"),
        ({"secure-aggregation.treshold": 3}, "quietbit.secure-aggregation.threshold"),
        ({"words": "secure"}, ""),
        ({"secure-aggregation.words": 3}, ""),
        ({"epsilon.secure-aggregation": 3}, ""),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(changes, nearest):
    with pytest.raises(InvalidParameter) as refusal:
        read(**changes)
    assert refusal.value.name == "run-config key"
    assert nearest in refusal.value.rule


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"mechanism.bits": 99}, "mechanism.bits"),
        ({"mechanism.levels": 1}, "mechanism.levels"),
        ({"clip": 1e40}, "clip"),
        ({"mechanism.coordinates": 3}, "mechanism.coordinates"),
        ({"mechanism.decoder": "best"}, "mechanism.decoder"),
    ],
)
def test_refusals_of_a_calibration_name_the_key(changes, name):
    with refuses(f"quietbit.{name}"):
        read(**changes).mechanism_for(100)


def test_tables_and_dotted_keys_are_the_same_plan():
    text = """
    mechanism = {name = "imvu", coordinates = 64}
    clip = 1.0
    epsilon = 3.0
    adjacency = "zero-out"
    releases = 10
    [secure-aggregation]
    threshold = 5
    adversary = "active"
    """
    nested = Plan.read(tomllib.loads(text))
    flat = read(**SUMS, **{"mechanism.coordinates": 64})
    assert nested == flat
    assert flat.secure_aggregation.honest_clients == 5
    assert read(**{"secure-aggregation": False}).secure_aggregation is None


@pytest.mark.parametrize("key", ["quietbit_epsilon", "quietbit-epsilon", "quietbit", "quietbit."])
def test_a_key_that_begins_like_ours_and_is_none_is_refused(key):
    with refuses("run-config key", key):
        Plan.from_run_config(CONFIG | {key: 1.0})


@pytest.mark.parametrize("table", ["quitebit", "Quietbit", "quiet-bit"])
def test_a_table_whose_name_is_nearly_ours_is_named(table):
    """A misspelt section beside ours was ignored."""
    with pytest.raises(InvalidParameter, match=f"'{table}': did you mean 'quietbit'"):
        Plan.from_run_config(CONFIG | {f"{table}.secure-aggregation.threshold": 5})
    assert Plan.from_run_config(CONFIG | {"quiet.epochs": 5, "bit.rate": 3}).epsilon == 3.0


@pytest.mark.parametrize("key", ["epsilon", "clip", "releases"])
def test_a_number_in_quotes_is_refused_with_the_remedy(key):
    with pytest.raises(InvalidParameter) as error:
        read(**{key: "8"})
    assert error.value.name == f"quietbit.{key}"
    assert error.value.remedy == "write 8 without quotes"
    with pytest.raises(InvalidParameter) as error:
        read(**{key: "8,0"})
    assert error.value.remedy == ""


def test_a_mechanism_without_a_cost_to_samples_is_named_as_the_plan_names_it():
    found = read(**{"mechanism": "vmvu", "samples.dataset-size": 100, "samples.sampling-rate": 0.1})
    with refuses("quietbit.mechanism", "vmvu"):
        found.mechanism_for(100)


SAMPLES = {
    "mechanism": "gaussian",
    "samples.dataset-size": 280,
    "samples.sampling-rate": 0.25,
}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"samples.dataset-size": None}, "samples.dataset-size"),
        ({"samples.sampling-rate": 1.5}, "samples.sampling-rate"),
        ({"mechanism.norm": "l1"}, "mechanism.norm"),
        ({"trust": "secure-aggregation"}, "samples"),
        ({"samples.steps": 3}, "samples.learning-rate"),
        ({"samples.learning-rate": 1.0}, "samples.learning-rate"),
        ({"samples.bits": 2}, "samples.bits"),
        ({"samples.steps": 2, "samples.learning-rate": 1.0, "samples.bits": 9}, "samples.bits"),
    ],
)
def test_plans_of_samples_are_complete_or_refused(change, name):
    assert read(**SAMPLES).mechanism_for(650).batch == 70
    with refuses(f"quietbit.{name}"):
        read(**SAMPLES | change).mechanism_for(650)


def fits(found, mechanism, releases):
    return Account(found.target, "adaptive").allows(found.release(mechanism), releases)


@pytest.mark.parametrize("name", ["imvu", "gaussian", "mvu", "skellam"])
def test_nodes_can_answer_as_often_as_the_mechanism_is_calibrated_for_and_not_once_more(name):
    found = read(mechanism=name)
    mechanism = found.mechanism_for(100)
    assert fits(found, mechanism, 10)
    assert not fits(found, mechanism, 11)
    assert (mechanism.privacy(Adjacency.ZERO_OUT) * 10).epsilon(1e-5) <= 3.0
    assert (
        Account(found.target, "adaptive").spend(found.release(mechanism), 10).epsilon()
        > 3.0 * 0.999
    )
    assert found.mechanism_for(100) is mechanism


def test_some_coordinates_are_kept_and_a_node_knows_the_family_inside():
    found = read(**{"mechanism.coordinates": 64, "epsilon": 8.0, "releases": 5}).mechanism_for(3000)
    assert found.keep == 64
    assert family_of(found) == "imvu"
    assert family_of(build(describe(found))) == "imvu"
    sums = read(**SUMS, **{"mechanism.coordinates": 64}).mechanism_for(3000)
    assert (sums.keep, sums.rows) == (64, 0)  # which ones is said anew in every round


@pytest.mark.parametrize(
    ("epsilon", "releases"),
    [(150.0, 3), *(pytest.param(one, 4, marks=pytest.mark.long) for one in (100.0, 300.0))],
)
def test_engines_take_what_calibrate_saturates_at(epsilon, releases):
    """The search for a lower target once ended at 0 here, and refused a budget that nobody had
    asked for.
    """
    found = read(mechanism="vmvu", epsilon=epsilon, releases=releases)
    mechanism = found.mechanism_for(100)
    assert fits(found, mechanism, releases)
    same = calibrate(
        "vmvu",
        ball=mechanism.ball,
        epsilon=epsilon,
        delta=1e-5,
        adjacency="zero-out",
        releases=releases,
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
    """Where a mechanism has no account at delta 0, delta is at fault; where it has one, it is
    met.
    """
    found = read(mechanism=mechanism, delta=0.0, epsilon=8.0, releases=1)
    try:
        assert fits(found, found.mechanism_for(100), 1)
    except InvalidParameter as refusal:
        assert refusal.name == "quietbit.delta" or refusal.value == 8.0  # noqa: PT017 - either answer is one


def test_a_plan_is_read_from_a_table_without_a_prefix():
    table = {
        "mechanism": {"name": "gaussian", "noise-multiplier": 2.0},
        "clip": 1.0,
        "adjacency": "zero-out",
        "cohort": 3,
    }
    found = SimulatedPlan.read(table)
    assert (found.mechanism.noise_multiplier, found.cohort) == (2.0, 3)
    assert found.target.epsilon == float("inf")
    with refuses("secure-aggregation.adversary"):
        SimulatedPlan.read(table | {"secure-aggregation": {"adversary": "active"}})
