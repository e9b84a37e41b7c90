import numpy as np
import pytest
from scipy import stats

import quietbit
from quietbit.federation.simulate.participation import releases_per_client
from quietbit_lab.schedule import Sampled, ScheduledPlan, Uneven
from refusals import refuses


def test_sampled_has_no_client_twice_in_a_round():
    schedule = Sampled(10, 6, seed=1)
    for number in range(20):
        assert np.unique(schedule.cohort(number)).size == 6
    counts = releases_per_client(schedule, 20)
    assert counts.sum() == 120
    assert counts.max() > 12  # some take part more often than the average


def test_a_schedule_is_a_function_of_its_seed():
    left, right = (Sampled(50, 5, seed=3) for _ in range(2))
    np.testing.assert_array_equal(left.cohort(17), right.cohort(17))
    assert not np.array_equal(left.cohort(17), Sampled(50, 5, seed=4).cohort(17))


def test_an_unknown_participation_is_refused():
    with refuses("participation", "lottery"):
        ScheduledPlan("imvu", clip=1.0, adjacency="zero-out", participation="lottery")


def test_zipf_lets_some_come_often_and_nobody_more_often_than_allowed():
    """The first client is waited for least: in a round of 50 it comes nearly always, until it
    has come five times.
    """
    schedule, rounds = Uneven(2000, 50, seed=3, most=5), 60
    seen = [schedule.cohort(number) for number in range(rounds)]
    assert all(np.unique(one).size == 50 for one in seen)
    counts = np.bincount(np.concatenate(seen), minlength=2000)
    assert counts.max() == 5
    again = releases_per_client(Uneven(2000, 50, seed=3, most=5), rounds)
    np.testing.assert_array_equal(counts, again)
    np.testing.assert_array_equal(schedule.cohort(7), seen[7])  # asked again, and out of turn
    np.testing.assert_array_equal(schedule.charged(59), seen[59])


def test_zipf_frequencies_are_those_of_one_over_the_rank():
    """One client per round: P(r) = 1 / (r H), held against a binomial law at 1e-10 for each of
    the first five.
    """
    schedule, rounds = Uneven(100, 1, seed=9), 4000
    counts, total = releases_per_client(schedule, rounds), sum(1 / r for r in range(1, 101))
    for rank in range(1, 6):
        law = stats.binom(rounds, 1 / (rank * total))
        assert law.ppf(1e-10) <= counts[rank - 1] <= law.isf(1e-10)
    assert counts[0] > stats.binom(rounds, 1 / 100).isf(1e-10)  # not that of everybody alike


def test_zipf_ends_where_too_few_may_still_release():
    schedule = Uneven(10, 4, seed=1, most=2)
    with pytest.raises(quietbit.InvalidParameter, match="may still release in round"):
        releases_per_client(schedule, 6)
