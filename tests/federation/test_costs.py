import numpy as np
import pytest

import quietbit
from federation.simulate.makers import mechanisms
from plans import flat_plan
from quietbit.federation.costs import ClientCosts
from quietbit.privacy.cost import ROUNDING
from quietbit.target import Adjacency, Trust, Unit

ZERO, ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def account_of(mechanism, sizes, unit=Unit.CLIENT, trust=Trust.LOCAL, honest=None):
    plan = flat_plan(
        "imvu",
        clip=1.0,
        adjacency=ZERO,
        design_epsilon=1.0,
        samples=unit is Unit.SAMPLE,
        trust=trust,
        cohort=8,
        honest_clients=honest,
    )
    return plan.account(mechanism, np.asarray(sizes, dtype=np.int64))


def test_small_clients_are_the_exposed_ones_at_sample_level():
    mechanism = mechanisms(39)["gaussian"]
    account = account_of(mechanism, [10, 2, 50], Unit.SAMPLE)
    account.record(np.array([0, 1, 2]))
    account.record(np.array([2]))
    answers = [account.cost(c).guarantee(1e-5).epsilon_upper for c in range(3)]
    assert account.worst(1e-5).epsilon_upper == max(answers) == answers[1]
    assert account.worst(1e-5).unit is Unit.SAMPLE


@pytest.mark.parametrize("kind", ["imvu-1", "imvu-3", "imvu-l1", "gaussian", "laplace", "sign"])
def test_one_sample_of_one_is_the_client_and_more_samples_cost_less(kind):
    mechanism = mechanisms(39)[kind]
    costs = [mechanism.privacy(ZERO, n).epsilon(1e-5) for n in (1, 2, 5, 20)]
    assert costs == sorted(costs, reverse=True)
    # One sample is the client: never cheaper than the client's own account between the same two
    # worlds.
    assert costs[0] >= mechanism.privacy(ZERO).epsilon(1e-5) * (1 - 1e-12)
    # Replacing is zeroing at twice the distance.
    twice = mechanism.privacy(ONE, 10).epsilon(1e-5)
    assert twice == pytest.approx(costs[2], rel=1e-9)


def test_gaussian_sample_account_is_the_formula():
    mechanism = mechanisms(39)["gaussian"]
    curve = mechanism.privacy(ZERO, 10)
    moved = 0.1 + ROUNDING
    assert curve.rdp(3.0) == pytest.approx(3.0 * (moved / 2.0) ** 2 / 2, rel=1e-12)
    assert curve.rdp(3.0) >= 3.0 * (moved / 2.0) ** 2 / 2


def test_interpolated_sample_account_is_theorem_two():
    mechanism = mechanisms(39)["imvu-1"]  # epsilon 1: M = 1
    curve = mechanism.privacy(ZERO, 4)
    assert curve.rdp(2.0) == pytest.approx(2.0 * (0.5 / 4) ** 2 / 2, rel=1e-5)


def test_under_secure_aggregation_a_release_is_a_sum():
    mechanism = mechanisms(39)["imvu-1"]
    account = account_of(mechanism, np.ones(8), trust=Trust.SECURE_AGGREGATION, honest=6)
    account.record(np.arange(8))
    account.record(np.array([2]))
    found = account.worst(1e-5)
    assert found.trust is Trust.SECURE_AGGREGATION
    assert found.epsilon_upper == (mechanism.sum_privacy(6, ZERO) * 2).epsilon(1e-5)
    assert found.epsilon_upper < (mechanism.privacy(ZERO) * 2).epsilon(1e-5)
    fewer = account_of(mechanism, np.ones(8), trust=Trust.SECURE_AGGREGATION, honest=3)
    fewer.record(np.array([2]))
    assert fewer.worst(1e-5).epsilon_upper > account.cost(0).guarantee(1e-5).epsilon_upper


@pytest.mark.parametrize("sizes", [[], [3, 0]])
def test_clients_without_samples_are_refused(sizes):
    release = mechanisms(39)["imvu-1"].privacy(ZERO)
    with pytest.raises(quietbit.InvalidParameter, match="sizes"):
        ClientCosts(lambda samples: release, np.asarray(sizes, dtype=np.int64))
