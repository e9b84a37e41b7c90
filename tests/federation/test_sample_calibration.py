"""A target at sample level: met by the account that the run keeps, for every mechanism that has
one.
"""

import attrs
import numpy as np
import pytest

import quietbit
from federation.simulate.makers import chosen
from quietbit.federation.simulate.participation import releases_per_client
from quietbit.target import Adjacency
from quietbit_lab.baseline.skellam import IndependentSkellam, Skellam

SIZES = np.array([30, 12, 12, 90, 45, 17], dtype=np.int64)
KINDS = [
    {"mechanism": "gaussian"},
    {"mechanism": "sign"},
    {"mechanism": "laplace", "norm": "l1", "delta": 0.0},
    {"mechanism": "imvu", "bits": 1, "beta": 16.0, "clamp": True},
    {"mechanism": "imvu", "bits": 3, "beta": 16.0, "clamp": True},
    {"mechanism": "imvu", "bits": 1, "beta": 4.0, "norm": "l1", "delta": 0.0},
    {"mechanism": "skellam"},
]


def planned(**given):
    usual = {"lr": 0.1, "rounds": 30, "cohort": 2, "clip": 0.5, "unit": "sample", "epsilon": 4.0}
    return chosen(**{**usual, **given})


@pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: f"{kind['mechanism']}-{kind.get('norm', 'l2')}"
)
@pytest.mark.parametrize("schedule", ["each-once", "sampled"])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_target_is_met_from_below_by_the_worst_client(kind, schedule, adjacency):
    plan, _ = planned(**kind, participation=schedule, adjacency=adjacency.value)
    counts = releases_per_client(attrs.evolve(plan, seed=7).schedule(SIZES.size), 30)
    account = plan.account(plan.mechanism_for(39, SIZES, counts), SIZES)
    account.counts = counts
    answers = [
        account.cost(client).guarantee(plan.delta).epsilon_upper for client in range(SIZES.size)
    ]
    assert 4.0 * (1 - 1e-4) <= max(answers) == account.worst(plan.delta).epsilon_upper <= 4.0


@pytest.mark.parametrize(
    ("given", "samples", "releases", "says"),
    [
        ({"mechanism": "mvu"}, SIZES, 3, "sample-level"),  # rounded within bounds
        ({"mechanism": "imvu", "epsilon": 20.0}, SIZES * 100, 1, "beta must be above 1 "),
    ],
)
def test_what_cannot_meet_the_target_is_refused(given, samples, releases, says):
    with pytest.raises(quietbit.InvalidParameter, match=says):
        planned(**given)[0].mechanism_for(39, samples, releases)


def test_where_samples_are_protected_skellam_rounds_each_coordinate_on_its_own():
    calibrated = planned(mechanism="skellam")[0].mechanism_for(39, SIZES, 3)
    given = planned(mechanism="skellam", noise_multiplier=2.4)[0].mechanism_for(39, SIZES)
    assert isinstance(calibrated, IndependentSkellam)
    assert isinstance(given, IndependentSkellam)
    assert given.inner.noise_multiplier == pytest.approx(2.4 / 12)
    assert isinstance(
        planned(mechanism="skellam", unit="client")[0].mechanism_for(39, releases=3), Skellam
    )
