"""The policy's file: read as it was written, with known keys and valid values only."""

import math
import os
import warnings

import attrs
import pytest

from federation.node.makers import forbids, policy, write_policy
from quietbit.errors import InvalidParameter
from quietbit.kernel.client_rng import seeded_client_rng
from quietbit.node.policy import Policy, PolicyError, SeededRngWarning, Simulation
from quietbit.node.refusal import BudgetSpent
from quietbit.target import Adjacency, Trust
from refusals import refuses

SUMS = {"trust": ["local", "secure-aggregation"], "min_honest_clients": 5, "local_epsilon": 30.0}


def test_it_reads_what_it_writes(tmp_path):
    for number, changes in enumerate(
        (
            {},
            SUMS,
            {"seed": 3, "metrics": ["loss"], "runs": ["7", "8"], "smallest_clip": 0.25},
            {"unit": "sample", "data_set": "ward 7", "largest_sampling_rate": 0.05},
        )
    ):
        folder = tmp_path / f'{number} "quoted" \\ and more'
        folder.mkdir()
        assert Policy.load(write_policy(folder, **changes)) == policy(folder, **changes)


def test_every_key_has_a_rule_and_a_word_on_it_in_the_file(tmp_path):
    text = policy(
        tmp_path, **SUMS, seed=3, models=str(tmp_path), unit="sample", data_set="ward 3", samples=5
    ).text()
    for one in attrs.fields(Policy):
        if one.name not in ("directory", "operator", "own_key"):
            assert f"  # {one.metadata['about']}\n" in text, one.name


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": "8"},
        {"delta": 1.0},
        {"adjacency": "add-remove"},
        {"mechanisms": []},
        {"mechanisms": "imvu"},
        {"mechanisms": [3]},
        {"largest_clip": math.inf},
        {"smallest_clip": 2.5},
        {"smallest_clip": -1.0},
        {"smallest_clip": math.nan},
        {"smallest_clip": True},
        {"unit": "sample", "data_set": ""},
        {"evaluate": 8.0},
        SUMS | {"local_epsilon": 6.0, "evaluate": 7.0},
        {"releases": 0},
        {"releases": 10**7},
        {"releases_per_day": 0.5},
        {"least_epsilon": -1.0},
        {"least_epsilon": True},
        {"runs": "*"},
        {"trust": ["central"]},
        {"trust": ["shuffled"]},
        {"trust": []},
        {"trust": "local"},
        {"metrics": [""]},
        {"seed": -1},
        {"ledger": "ledger"},
        {"counter": 3},
        {"local_epsilon": 3.0},
        {"min_honest_clients": 3},
        SUMS | {"min_honest_clients": None},
        SUMS | {"local_epsilon": None},
        SUMS | {"min_honest_clients": 1},
        SUMS | {"local_epsilon": math.nan},
    ],
)
def test_what_has_no_meaning_is_refused(tmp_path, changes):
    with pytest.raises(InvalidParameter) as refusal:
        policy(tmp_path, **changes)
    assert "\n" not in str(refusal.value)


def test_unknown_and_missing_keys_are_refused(tmp_path):
    path = write_policy(tmp_path)
    text = (tmp_path / "policy.toml").read_text()
    for change, says in (
        (text + "epsilom = 1.0\n", "did you mean 'epsilon'"),
        (text.replace("largest-clip", "largest_clip"), "did you mean 'largest-clip'"),
        (
            "\n".join(line for line in text.splitlines() if not line.startswith("delta")),
            "delta must be given",
        ),
        ("epsilon = ", "is not TOML"),
        ("\udcff", "is not TOML"),
    ):
        with open(path, "wb") as file:
            file.write(change.encode("utf-8", "surrogateescape"))
        with pytest.raises(PolicyError, match=says):
            Policy.load(path)


def test_a_file_that_others_may_write_is_no_policy(tmp_path):
    path = write_policy(tmp_path)
    os.chmod(path, 0o620)
    with pytest.raises(PolicyError, match="Other users may write the policy"):
        Policy.load(path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(PolicyError, match="a regular file"):
        Policy.load(tmp_path / "fifo")
    for place in ("policy.toml", tmp_path / "none"):
        with pytest.raises(PolicyError):
            Policy.load(place)


def test_what_it_allows(tmp_path):
    own = policy(tmp_path, runs=["7"], releases=3, releases_per_day=2)
    own.check("imvu", 2.0)
    own.check_request("7", own.largest_dimension)
    own.check_counts(3, 2)
    for family, clip, rule in (
        ("mvu", 1.0, "mechanisms"),
        ("imvu", 2.0000001, "largest-clip"),
        ("imvu", math.nan, "largest-clip"),
        ("", 1.0, "mechanisms"),
    ):
        with forbids(rule):
            own.check(family, clip)
    for run, dimension, rule in (
        ("8", 1, "runs"),
        ("7", own.largest_dimension + 1, "largest-dimension"),
    ):
        with forbids(rule):
            own.check_request(run, dimension)
    for counts in ((4, 1), (2, 3)):
        with pytest.raises(BudgetSpent):
            own.check_counts(*counts)


def test_sums_are_priced_at_the_nodes_own_number_whatever_the_run_says(tmp_path):
    local = policy(tmp_path)
    assert local.honest_for(Trust.LOCAL, None, None) == 0
    with forbids("trust"):
        local.honest_for(Trust.SECURE_AGGREGATION, 100, 90)
    sums = policy(tmp_path, **SUMS)
    for honest in (2, 5, 99):
        assert sums.honest_for(Trust.SECURE_AGGREGATION, 100, honest) == 5
    for threshold in (4, None):
        with forbids("min-honest-clients"):
            sums.honest_for(Trust.SECURE_AGGREGATION, threshold, 2)
    only = policy(tmp_path, **SUMS | {"trust": ["secure-aggregation"]})
    with forbids("trust"):
        only.honest_for(Trust.LOCAL, None, None)


def test_there_is_a_second_cap_where_there_are_sums(tmp_path):
    (cap,) = policy(tmp_path).caps
    assert (cap.epsilon, cap.trust, cap.adjacency) == (8.0, Trust.LOCAL, Adjacency.REPLACE_ONE)
    both = policy(tmp_path, **SUMS).caps
    assert [(cap.epsilon, cap.trust) for cap in both] == [
        (8.0, Trust.SECURE_AGGREGATION),
        (30.0, Trust.LOCAL),
    ]


def test_randomness_is_the_systems_unless_the_owner_says_otherwise(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert repr(policy(tmp_path).rng(1, None)) == "secure_rng()"
        assert repr(Simulation().rng(1, None)) == "secure_rng()"
    for rules in (policy(tmp_path, seed=5), Simulation(seed=5)):
        with pytest.warns(SeededRngWarning, match="protect nobody"):
            found = rules.rng(4, 3)
        assert (
            found.draw(9).primary(0, 9).tolist()
            == seeded_client_rng(5)(3, 3).draw(9).primary(0, 9).tolist()
        )
        with pytest.warns(SeededRngWarning), refuses("partition-id", None):
            rules.rng(4, None)


def test_a_simulation_follows_the_run():
    rules = Simulation()
    assert rules.honest_for(Trust.SECURE_AGGREGATION, 7, 6) == 6
    assert Simulation(min_honest_clients=3).honest_for(Trust.SECURE_AGGREGATION, 7, 6) == 3
    with pytest.raises(InvalidParameter):
        Simulation(metrics="loss")
