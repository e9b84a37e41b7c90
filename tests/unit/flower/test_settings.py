"""The table of run-config keys: what is read, what is refused, and one mechanism at both ends."""

import ast
import inspect
from dataclasses import fields

import pytest

from quietbit._validate import InvalidParameter
from quietbit.flower import settings
from quietbit.flower.budget import node_budget
from quietbit.flower.settings import RunSettings
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.registry import identity_of
from quietbit.privacy.guarantee import Adjacency, Trust

CONFIG = {
    "quietbit.mechanism": "imvu",
    "quietbit.clip": 1,
    "quietbit.epsilon": 3.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": 10,
    "local-epochs": 2,
}


def read(**changes):
    config = CONFIG | {f"quietbit.{key.replace('_', '-')}": value for key, value in changes.items()}
    return RunSettings.from_run_config({key: value for key, value in config.items() if value is not None})


def test_what_is_left_out_has_the_defaults_of_the_library():
    found = read()
    assert (found.clip, found.delta, found.norm, found.words, found.beta) == (1, 1e-5, "l2", "secure", 1.0)
    assert found.budget.adjacency is Adjacency.ZERO_OUT


def test_settings_survive_the_config():
    found = read(keep="a,b.*", bits=2, delta=1e-6)
    assert RunSettings.from_run_config(found.to_run_config()) == found


def test_the_table_in_the_docstring_has_every_key():
    text = ast.get_docstring(ast.parse(inspect.getsource(settings)))
    for field in fields(RunSettings):
        name = field.name.replace("_", "-")
        assert f"`quietbit.{name}`" in text or f"`{name}`" in text, name


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mechanism": None}, "run config must have the key quietbit.mechanism"),
        ({"epsilon": None}, "quietbit.epsilon, which is missing"),
        ({"adjacency": None}, "quietbit.adjacency, which is missing"),
        ({"clip": None}, "quietbit.clip, which is missing"),
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
        ({"releases": 0}, "quietbit.releases must be"),
        ({"design_epsilon": 2.0}, "left out when the strength is given by hand"),
        ({"noise": 2.0, "releases": None}, "noise must be left out for imvu"),
        ({"words": "lucky"}, "words must be one of secure, seeded"),
        ({"seed": -1}, "seed must be"),
        ({"epsilonn": 3.0}, "run-config key must be one of"),
        ({"trust": "central"}, "quietbit.trust must be one of local, secure-aggregation"),
        ({"threshold": 5}, "quietbit.threshold must be left out unless"),
        ({"honest": 5}, "quietbit.honest must be left out unless"),
        ({"timeout": 5.0}, "quietbit.timeout must be left out unless"),
        ({"trust": "secure-aggregation"}, "quietbit.threshold must be given for secure aggregation"),
        ({"trust": "secure-aggregation", "threshold": 1}, "quietbit.threshold must be"),
        ({"trust": "secure-aggregation", "threshold": 5, "honest": 6}, "quietbit.honest must be"),
        ({"trust": "secure-aggregation", "threshold": 5, "honest": 1}, "quietbit.honest must be"),
        ({"trust": "secure-aggregation", "threshold": 5, "timeout": 0.0}, "quietbit.timeout must be"),
        ({"trust": "secure-aggregation", "threshold": 5, "mechanism": "gaussian"}, "imvu under secure-aggregation"),
        ({"trust": "secure-aggregation", "threshold": 5, "beta": 2.0}, "beta and clamp"),
    ],
)
def test_refusals_are_one_sentence(changes, says):
    with pytest.raises(InvalidParameter, match=says) as refusal:
        read(**changes)
    assert "\n" not in str(refusal.value)


def test_the_calibrated_mechanism_meets_the_budget_with_its_releases_and_not_with_one_more():
    found = read()
    mechanism = found.mechanism_for(100)
    curve = mechanism.privacy(found.privacy_adjacency)
    assert curve.repeat(10).epsilon_upper(1e-5) <= 3.0 < curve.repeat(11).epsilon_upper(1e-5)
    assert found.mechanism_for(100) is mechanism


def test_under_secure_aggregation_the_sum_over_the_honest_meets_the_budget():
    found = read(trust="secure-aggregation", threshold=20, honest=15)
    curve = found.mechanism_for(100).sum_privacy(15, found.privacy_adjacency)
    assert curve.repeat(10).epsilon_upper(1e-5) <= 3.0 < curve.repeat(11).epsilon_upper(1e-5)
    assert found.curve(found.mechanism_for(100)).epsilon_upper(1e-5) == curve.epsilon_upper(1e-5)
    assert found.budget.trust is Trust.SECURE_AGGREGATION
    assert read(trust="secure-aggregation", threshold=20).honest == 20
    assert read().budget.trust is Trust.LOCAL
    assert RunSettings.from_run_config(found.to_run_config()) == found


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


def test_names_of_kept_arrays():
    found = read(keep="head.bias, *.num_batches_tracked,")
    assert found.keeps("head.bias")
    assert found.keeps("bn1.num_batches_tracked")
    assert not found.keeps("head.weight")
    assert not read().keeps("")


def test_the_node_names_its_cap_in_full_and_with_a_file():
    cap = {"quietbit.epsilon": 1.0, "quietbit.delta": 1e-6, "quietbit.adjacency": "replace-one"}
    assert node_budget({"partition-id": 3}) is None
    assert node_budget(cap | {"quietbit.ledger": "x"}).epsilon == 1.0
    assert node_budget(cap | {"quietbit.ledger": "x"}).trust is Trust.LOCAL
    sums = {"quietbit.ledger": "x", "quietbit.trust": "secure-aggregation"}
    assert node_budget(cap | sums).trust is Trust.SECURE_AGGREGATION
    with pytest.raises(InvalidParameter, match=r"quietbit\.trust of the node must be one of"):
        node_budget(cap | sums | {"quietbit.trust": "blind"})
    with pytest.raises(InvalidParameter, match=r"quietbit\.ledger beside quietbit\.epsilon"):
        node_budget(cap)
    with pytest.raises(InvalidParameter, match=r"quietbit\.delta beside quietbit\.epsilon"):
        node_budget({"quietbit.epsilon": 1.0})
