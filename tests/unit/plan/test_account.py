import numpy as np
import pytest
from quietbit.plan.sample_level import ROUNDING, sample_curve

import quietbit
from quietbit.plan.account import Account
from quietbit.privacy.guarantee import Adjacency, Trust, Unit
from quietbit.privacy.ledger import Ledger
from quietbit.privacy.release import Release
from unit.simulate.makers import mechanisms

ZERO, ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def test_the_worst_client_is_the_busiest():
    mechanism = mechanisms(39)["imvu-1"]
    account = Account(mechanism, np.ones(4, dtype=np.int64), Unit.CLIENT, ZERO)
    assert account.worst(1e-5).epsilon_upper == 0
    for clients in ([0, 1], [1, 2], [1, 3]):
        account.record(np.array(clients))
    release = Release(mechanism.privacy(ZERO), ZERO, Unit.CLIENT, Trust.LOCAL)
    by_hand = Ledger(Unit.CLIENT, ZERO, Trust.LOCAL).record(release, times=3)
    assert account.worst(1e-5) == by_hand.guarantee(1e-5, adaptive=False)
    assert account.ledger(1).guarantee(1e-5) == by_hand.guarantee(1e-5)
    assert account.ledger(0).guarantee(1e-5).epsilon_upper < by_hand.guarantee(1e-5).epsilon_upper
    later = account.worst(1e-5, after=np.array([1]))
    assert later.epsilon_upper > account.worst(1e-5).epsilon_upper
    assert account.counts.tolist() == [1, 3, 1, 1]


def test_small_clients_are_the_exposed_ones_at_sample_level():
    mechanism = mechanisms(39)["gaussian"]
    account = Account(mechanism, np.array([10, 2, 50]), Unit.SAMPLE, ZERO)
    account.record(np.array([0, 1, 2]))
    account.record(np.array([2]))
    answers = [account.ledger(c).guarantee(1e-5, adaptive=False).epsilon_upper for c in range(3)]
    assert account.worst(1e-5).epsilon_upper == max(answers) == answers[1]
    assert account.worst(1e-5).unit is Unit.SAMPLE


@pytest.mark.parametrize("kind", ["imvu-1", "imvu-3", "imvu-l1", "gaussian", "laplace", "sign"])
def test_one_sample_of_one_is_the_client_and_more_samples_cost_less(kind):
    mechanism = mechanisms(39)[kind]
    costs = [sample_curve(mechanism, n, ZERO).epsilon_upper(1e-5) for n in (1, 2, 5, 20)]
    assert costs == sorted(costs, reverse=True)
    # One sample is the client: never cheaper than the client's own account between the same two worlds.
    assert costs[0] >= mechanism.privacy(ZERO).epsilon_upper(1e-5) * (1 - 1e-12)
    # Replacing is zeroing at twice the distance.
    twice = sample_curve(mechanism, 10, ONE).epsilon_upper(1e-5)
    assert twice == pytest.approx(costs[2], rel=1e-9)


def test_gaussian_sample_account_is_the_formula():
    mechanism = mechanisms(39)["gaussian"]
    curve = sample_curve(mechanism, 10, ZERO)
    moved = 0.1 + ROUNDING
    assert curve.rdp(3.0) == pytest.approx(3.0 * (moved / 2.0) ** 2 / 2, rel=1e-12)
    assert curve.rdp(3.0) >= 3.0 * (moved / 2.0) ** 2 / 2


def test_interpolated_sample_account_is_theorem_two():
    mechanism = mechanisms(39)["imvu-1"]  # epsilon 1: M = 1
    curve = sample_curve(mechanism, 4, ZERO)
    assert curve.rdp(2.0) == pytest.approx(2.0 * (0.5 / 4) ** 2 / 2, rel=1e-5)


@pytest.mark.parametrize("kind", ["mvu", "skellam"])
def test_random_rounding_has_no_sample_account(kind):
    with pytest.raises(quietbit.InvalidParameter, match="sample-level"):
        Account(mechanisms(39)[kind], np.array([5]), Unit.SAMPLE, ZERO)


def test_under_secure_aggregation_a_release_is_a_sum():
    mechanism = mechanisms(39)["imvu-1"]
    account = Account(mechanism, np.ones(8, dtype=np.int64), Unit.CLIENT, ZERO, Trust.SECURE_AGGREGATION, 6)
    account.record(np.arange(8))
    account.record(np.array([2]))
    found = account.worst(1e-5)
    assert found.trust is Trust.SECURE_AGGREGATION
    assert found.epsilon_upper == mechanism.sum_privacy(6, ZERO).repeat(2).epsilon_upper(1e-5)
    assert found.epsilon_upper < mechanism.privacy(ZERO).repeat(2).epsilon_upper(1e-5)
    fewer = Account(mechanism, np.ones(8, dtype=np.int64), Unit.CLIENT, ZERO, Trust.SECURE_AGGREGATION, 3)
    fewer.record(np.array([2]))
    assert fewer.worst(1e-5).epsilon_upper > account.ledger(0).guarantee(1e-5).epsilon_upper


@pytest.mark.parametrize(
    ("kind", "unit", "trust", "honest", "mention"),
    [
        ("imvu-1", Unit.CLIENT, Trust.SECURE_AGGREGATION, None, "honest"),
        ("imvu-1", Unit.CLIENT, Trust.LOCAL, 5, "honest"),
        ("imvu-1", Unit.SAMPLE, Trust.SECURE_AGGREGATION, 5, "unit"),
        ("gaussian", Unit.CLIENT, Trust.SECURE_AGGREGATION, 5, "mechanism"),
        ("imvu-3", Unit.CLIENT, Trust.SECURE_AGGREGATION, 5, "evenly spaced"),
    ],
)
def test_sums_without_an_account_are_refused(kind, unit, trust, honest, mention):
    with pytest.raises(quietbit.InvalidParameter, match=mention):
        Account(mechanisms(39)[kind], np.ones(8, dtype=np.int64), unit, ZERO, trust, honest)
