"""Crowds of a run on an engine: nobody twice in an epoch, and only what arrived counts."""

import pytest

import quietbit
from quietbit import Adjacency, Ball, Guarantee, Norm, Trust, Unit, calibrate
from quietbit.mechanism.base import shuffled_privacy
from quietbit.run.crowd import Crowds, level

REPLACE = Adjacency.REPLACE_ONE
SERVER = Guarantee(3.0, 1e-5, Unit.CLIENT, REPLACE, Trust.LOCAL)
MECHANISM = calibrate(
    "vmvu", ball=Ball(Norm.L2, 1.0, 100), epsilon=1.0, delta=0.0, adjacency=REPLACE
).mechanism


def test_nobody_is_asked_twice_in_an_epoch():
    crowds, nodes = Crowds(secret=True), list(range(100, 110))
    for _ in range(20):
        epoch = [crowds.cohort(nodes, 3) for _ in range(3)]
        assert len({node for cohort in epoch for node in cohort}) == 9


def test_nodes_that_join_wait_for_the_next_epoch():
    crowds = Crowds(secret=True)
    first = crowds.cohort([1, 2, 3, 4], 2)
    assert set(crowds.cohort([1, 2, 3, 4, 5, 6, 7, 8], 2)) == {1, 2, 3, 4} - set(first)
    assert len(set(crowds.cohort(range(1, 9), 8))) == 8
    with pytest.raises(quietbit.InvalidParameter, match="at least 9"):
        crowds.cohort(range(1, 9), 9)
    with pytest.raises(quietbit.InvalidParameter):
        Crowds().cohort([1, 2], 1)


def expected(parts, count, levels):
    """The account of so many shuffles that was fixed before the first, at its share of delta."""
    share = 1e-5 / (count * (count + 1))
    for place in levels:
        share /= (place + 1) * (place + 2)
    first, *others = [shuffled_privacy(MECHANISM, REPLACE, crowd) * times for crowd, times in parts]
    for other in others:
        first = first + other
    return first.epsilon(share)


def test_an_epoch_is_one_shuffle_of_what_arrived():
    crowds = Crowds(secret=True)
    for arrived in (50, 40, 0, 38, 50):
        cohort = crowds.cohort(range(200), 50)
        crowds.record(50, cohort[:arrived])
    found = crowds.observers(SERVER, MECHANISM, releases=2)
    assert (found.crowd, found.shuffles, found.secret_order, found.leavers) == (50, 2, True, 0)
    assert level(200, 128) == (3, 118)
    assert level(200, 50) == (8, 50)
    assert found.result is not None
    assert found.result.epsilon_upper == pytest.approx(
        expected([(118, 1), (50, 1)], 2, (3, 8)), rel=1e-9
    )


def test_in_open_order_the_smallest_rounds_count():
    crowds = Crowds()
    for arrived in (64, 32, 0, 128, 32):
        crowds.record(128, range(arrived))
    found = crowds.observers(SERVER, MECHANISM, releases=3)
    assert (found.crowd, found.shuffles, found.secret_order) == (32, 3, False)
    assert found.result is not None
    assert found.result.epsilon_upper == pytest.approx(
        expected([(32, 2), (64, 1)], 3, (8, 4)), rel=1e-9
    )


def test_a_client_that_leaves_during_an_epoch_has_the_crowd_it_has():
    """Claimed 0.14 for a crowd of 60,000; whoever knows that it left after the first round knows
    where to look.
    """
    strong = calibrate(
        "vmvu", ball=Ball(Norm.L2, 1.0, 1000), epsilon=4.0, delta=0.0, adjacency=REPLACE
    ).mechanism
    server, found = Guarantee(4.0, 1e-6, Unit.CLIENT, REPLACE, Trust.LOCAL), {}
    for leaves in (False, True):
        crowds, nodes = Crowds(secret=True), set(range(60_000))
        for number in range(100):
            cohort = crowds.cohort(nodes, 600)
            crowds.record(600, cohort)
            if leaves and number == 0:
                nodes.remove(cohort[0])
        found[leaves] = crowds.observers(server, strong, 1)
    assert (found[False].crowd, found[False].leavers) == (60_000, 0)
    assert 0.1387 < found[False].result.epsilon_upper < 0.16
    assert (found[True].crowd, found[True].leavers) == (600, 1)
    assert found[True].result.epsilon_upper > 2.01
    assert "1 that were away for a part of an epoch" in found[True].second()


def test_a_node_that_is_away_for_a_while_is_not_hidden_among_the_rounds_it_missed():
    crowds, away = Crowds(secret=True), None
    for number in range(10):
        there = set(range(100)) - ({away} if number in (3, 4) else set())
        cohort = crowds.cohort(there, 10)
        away = cohort[0] if number == 2 else away
        crowds.record(10, cohort)
    assert crowds.observers(SERVER, MECHANISM, 1).crowd == 80


def test_levels_are_fixed_by_the_first_crowd_and_shares_add_up_to_one():
    for crowd in (1, 7, 16, 17, 599, 600, 60_000):
        place, size = level(600, crowd)
        assert size <= crowd
        assert place == 0 or level(600, crowd)[1] * 2**0.25 + 1 > min(crowd, 600)
    assert sum(1 / ((place + 1) * (place + 2)) for place in range(10**6)) < 1


def test_no_second_guarantee_says_why():
    assert "no release" in Crowds().observers(SERVER, MECHANISM, 1).reason
    summed = Guarantee(3.0, 1e-5, Unit.CLIENT, REPLACE, Trust.SECURE_AGGREGATION)
    assert "local trust" in Crowds().observers(summed, MECHANISM, 1).reason
    crowds = Crowds()
    crowds.record(10, range(10))
    gaussian = calibrate(
        "gaussian", ball=Ball(Norm.L2, 1.0, 10), epsilon=1.0, delta=1e-5, adjacency=REPLACE
    ).mechanism
    assert "delta = 0" in crowds.observers(SERVER, gaussian, 1).reason
