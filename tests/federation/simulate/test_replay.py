"""Replayed rounds in the simulator: the same training, and bytes that follow from who missed
what.
"""

import pytest

from federation.simulate.makers import small_problem
from plans import fields, flat_plan
from quietbit.federation.simulate import Training, simulate
from quietbit.wire.downlink import HEAD
from quietbit_lab.schedule import ScheduledPlan
from refusals import refuses

GIVEN = {
    "clip": 1.0,
    "adjacency": "zero-out",
    "design_epsilon": 2.0,
    "cohort": 20,
    "rng": "seeded",
    "seed": 3,
    "coordinates": 8,
}
TRAINING = Training(lr=0.1, rounds=6, momentum=0.5)


def run(**more):
    return simulate(small_problem(), ScheduledPlan(**fields("vmvu", GIVEN | more)), TRAINING)


def test_bytes_down_are_what_each_client_missed(monkeypatch):
    found, size = run(replay=True, participation="sampled"), HEAD.size + 8 * 4
    schedule, has, expected = found.plan.schedule(small_problem().sizes.size), {}, 0
    for number in range(6):
        model = (
            4 * found.parameters.size * (2 if number else 1)
        )  # with momentum, after the first step
        for client in schedule.cohort(number).tolist():
            rounds = size * (number - has[client]) if client in has else model
            expected += min(rounds, model)
            has[client] = number
    assert found.downlink_bytes == expected


@pytest.mark.parametrize(
    ("mechanism", "given", "name"),
    [("imvu", {}, "replay"), ("auto", {"design_epsilon": None, "epsilon": 3.0}, "replay")],
)
def test_what_cannot_be_replayed_is_refused(mechanism, given, name):
    with refuses(name):
        flat_plan(mechanism, **{**GIVEN, "coordinates": None, **given}, replay=True)


def test_a_replayed_run_that_diverges_says_so():
    plan = flat_plan("vmvu", **GIVEN | {"clip": 1e3}, replay=True)
    with pytest.warns(RuntimeWarning):
        found = simulate(small_problem(), plan, Training(lr=3.4e38, rounds=6))
    assert found.status == "diverged"
