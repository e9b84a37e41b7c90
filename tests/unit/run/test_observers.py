"""The two guarantees of a plan: crowds are what is really random, and the order stays out of the
account.
"""

import numpy as np
import pytest

import quietbit
from plans import flat_plan
from quietbit import Adjacency, Trust
from quietbit.mechanism.base import shuffled_privacy
from quietbit.run.costs import observers
from quietbit.run.participation import Schedule, releases_per_client, secret_order
from quietbit.run.terms import SECRET
from refusals import refuses

CLIENTS, COHORT = 400, 50


def plan(**changes):
    given = {
        "clip": 1.0,
        "adjacency": "replace-one",
        "design_epsilon": 1.0,
        "cohort": COHORT,
        "delta": 1e-5,
    }
    return flat_plan(**{"mechanism": "vmvu", **given, **changes})


def pair(rounds, **changes):
    chosen = plan(**changes)
    mechanism = chosen.mechanism_for(300)
    account = chosen.account(mechanism, np.ones(CLIENTS, dtype=np.int64))
    schedule = chosen.schedule(CLIENTS)
    for number in range(rounds):
        account.record(schedule.charged(number))
    return observers(chosen, mechanism, account), mechanism


def test_a_secret_order_hides_among_all():
    found, mechanism = pair(16, participation="secret-order")
    assert (found.crowd, found.shuffles, found.secret_order) == (CLIENTS, 2, True)
    assert found.result is not None
    assert found.result.epsilon_upper == (
        shuffled_privacy(mechanism, Adjacency.REPLACE_ONE, CLIENTS) * 2
    ).epsilon(1e-5)
    assert found.result.epsilon_upper < found.server.epsilon_upper
    assert (found.server.trust, found.result.trust) == (Trust.LOCAL, Trust.SHUFFLED)


@pytest.mark.parametrize("participation", ["each-once", "sampled"])
def test_a_public_order_hides_among_the_round(participation):
    """A server that chooses the cohort, or a seed that anybody knows, leaves the cohort itself
    to hide among.
    """
    found, _ = pair(8, participation=participation)
    assert (found.crowd, found.secret_order) == (COHORT, False)
    secret, _ = pair(8, participation="secret-order")
    assert found.result is not None
    assert secret.result is not None
    assert secret.result.epsilon_upper < found.result.epsilon_upper


def test_an_unfinished_epoch_costs_as_much_as_a_whole_one():
    one, _ = pair(1, participation="secret-order")
    whole, _ = pair(8, participation="secret-order")
    assert one == whole


def test_a_seed_is_no_secret():
    with refuses("rng", "seeded"):
        plan(participation="secret-order", rng="seeded")


def test_shuffled_is_no_trust_of_a_plan():
    with pytest.raises(quietbit.InvalidParameter, match="trust must be local"):
        plan(trust="shuffled")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mechanism": "gaussian", "design_epsilon": None, "noise_multiplier": 3.0}, "delta = 0"),
        (
            {
                "mechanism": "gaussian",
                "design_epsilon": None,
                "noise_multiplier": 3.0,
                "trust": "central",
            },
            "local trust",
        ),
    ],
)
def test_no_second_guarantee_says_why(changes, reason):
    found, _ = pair(2, **changes)
    assert found.result is None
    assert reason in found.reason


def test_everybody_is_charged_when_an_epoch_begins():
    schedule = Schedule(SECRET, 10, 3)
    assert [schedule.charged(number).size for number in range(7)] == [10, 0, 0, 10, 0, 0, 10]
    assert releases_per_client(schedule, 7).tolist() == [3] * 10
    for epoch in range(3):
        seen = np.concatenate([schedule.cohort(3 * epoch + k) for k in range(3)])
        assert np.unique(seen).size == 9
        np.testing.assert_array_equal(schedule.cohort(3 * epoch), seen[:3])  # asked again, the same


def test_the_secret_order_is_uniform():
    """All 24 orders of 4, 24,000 draws: a chi-square of 23 degrees exceeds 90 with probability
    below 1e-9.
    """
    counts = np.zeros(4**4, dtype=int)
    for _ in range(24_000):
        counts[int(secret_order(4) @ np.array([1, 4, 16, 64]))] += 1
    seen = counts[counts > 0]
    assert seen.size == 24
    assert float(((seen - 1000) ** 2 / 1000).sum()) < 95
    assert (
        float(((np.array([2000, 0] + [1000] * 22) - 1000) ** 2 / 1000).sum()) > 95
    )  # one order never, one twice


def test_two_secret_orders_differ():
    assert not np.array_equal(secret_order(1000), secret_order(1000))
    assert (
        Schedule(SECRET, 1000, 10).cohort(0).tolist()
        != Schedule(SECRET, 1000, 10).cohort(0).tolist()
    )
