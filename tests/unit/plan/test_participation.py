import numpy as np
import pytest

import quietbit
from quietbit.plan.participation import Schedule, releases_per_client


def test_each_once_is_fair_to_the_round():
    schedule = Schedule("each-once", 10, 3, seed=1)
    for epoch in range(4):
        seen = np.concatenate([schedule.cohort(3 * epoch + k) for k in range(3)])
        assert np.unique(seen).size == 9
    assert releases_per_client(schedule, 12).max() <= 4


def test_sampled_has_no_client_twice_in_a_round():
    schedule = Schedule("sampled", 10, 6, seed=1)
    for number in range(20):
        assert np.unique(schedule.cohort(number)).size == 6
    counts = releases_per_client(schedule, 20)
    assert counts.sum() == 120
    assert counts.max() > 12  # some take part more often than the average


@pytest.mark.parametrize("kind", ["each-once", "sampled"])
def test_a_schedule_is_a_function_of_its_seed(kind):
    left, right = (Schedule(kind, 50, 5, seed=3) for _ in range(2))
    np.testing.assert_array_equal(left.cohort(17), right.cohort(17))
    assert not np.array_equal(left.cohort(17), Schedule(kind, 50, 5, seed=4).cohort(17))


@pytest.mark.parametrize(("kind", "clients", "size"), [("each-once", 5, 6), ("sampled", 5, 0), ("lottery", 5, 2)])
def test_refusals(kind, clients, size):
    with pytest.raises(quietbit.InvalidParameter):
        Schedule(kind, clients, size, 0)
