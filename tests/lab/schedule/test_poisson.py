"""Cohorts that a trusted server draws in secret: who is drawn, what everybody is charged, and
what is divided by.
"""

import numpy as np
import pytest

from federation.simulate.makers import chosen, small_problem
from plans import fields
from quietbit import Adjacency, Ball, Gaussian
from quietbit.federation.simulate.loop import simulate
from quietbit.federation.simulate.participation import releases_per_client
from quietbit_lab.schedule import POISSON, ScheduledPlan, SecretDraws
from refusals import refuses

CLIENTS, COHORT, ROUNDS, DIMENSION = 1000, 50, 40, 20
CHOSEN = {
    "mechanism": "gaussian",
    "clip": 1.0,
    "adjacency": "zero-out",
    "trust": "central",
    "cohort": COHORT,
}
SIZES = np.ones(CLIENTS, dtype=np.int64)


def plan(**changes):
    given = {**CHOSEN, "participation": POISSON, "noise_multiplier": 2.0, **changes}
    return ScheduledPlan(**fields(given.pop("mechanism"), given))


def test_everybody_is_drawn_by_itself_and_charged_in_every_round():
    schedule = SecretDraws(CLIENTS, COHORT)
    drawn = np.zeros(CLIENTS)
    sizes = []
    for number in range(400):
        cohort = schedule.cohort(number)
        assert np.array_equal(cohort, schedule.cohort(number))  # of one round there is one
        drawn[cohort] += 1
        sizes.append(cohort.size)
    assert len(set(sizes)) > 10  # the size is random
    # 400,000 coins of 0.05: 8 deviations of 138; of one client 400 coins: 20 expected, at most 72
    # with 1e-15 each
    assert abs(drawn.sum() - 20_000) < 1103
    assert drawn.max() < 72
    assert np.array_equal(releases_per_client(schedule, 7), np.full(CLIENTS, 7))
    assert not np.array_equal(SecretDraws(CLIENTS, COHORT).cohort(0), schedule.cohort(0))


def test_the_account_is_that_of_dp_accounting():
    dp, pld = pytest.importorskip("dp_accounting"), pytest.importorskip("dp_accounting.pld")
    mechanism = Gaussian(Ball("l2", DIMENSION), 2.0)
    account = plan().account(mechanism, SIZES)
    account.counts += ROUNDS
    theirs = pld.PLDAccountant()
    theirs.compose(dp.PoissonSampledDpEvent(COHORT / CLIENTS, dp.GaussianDpEvent(2.0)), ROUNDS)
    found = account.worst(1e-5)
    assert found.epsilon_upper == pytest.approx(theirs.get_epsilon(1e-5), rel=0.01)
    assert found.adjacency is Adjacency.ZERO_OUT
    whole = plan(participation="each-once").account(mechanism, SIZES)
    whole.counts += ROUNDS
    assert found.epsilon_upper < 0.1 * whole.worst(1e-5).epsilon_upper


def test_sums_are_divided_by_the_public_number_also_where_nobody_is_drawn():
    problem = small_problem()
    given = {
        **CHOSEN,
        "participation": POISSON,
        "cohort": 1,
        "epsilon": 4.0,
        "rounds": 12,
        "lr": 0.1,
    }
    run = simulate(problem, *chosen(**given))
    assert run.status == "finished"  # among 12 rounds of an expected one, some are empty
    assert 3.99 < run.guarantee.epsilon_upper <= 4.0
    assert (
        run.points[-1].uplink_bytes == 12 * run.bytes_per_client
    )  # the expected number, not the one drawn


@pytest.mark.parametrize(
    ("name", "value"),
    [("trust", "local"), ("rng", "seeded"), ("cohort", 0)],
)
def test_refusals(name, value):
    with refuses(name, value):
        plan(**{name: value})
