"""Crowds of a run on an engine: nobody twice in an epoch, and only what arrived counts."""

import pytest

import quietbit
from quietbit import Adjacency, Ball, Guarantee, Norm, Trust, Unit, calibrate
from quietbit.mechanism.shuffled import shuffled_privacy
from quietbit.node.crowd import Crowds, rounded_down

REPLACE = Adjacency.REPLACE_ONE
SERVER = Guarantee(3.0, 1e-5, Unit.CLIENT, REPLACE, Trust.LOCAL)
MECHANISM = calibrate("vmvu", ball=Ball(Norm.L2, 1.0, 100), epsilon=1.0, delta=0.0, adjacency=REPLACE).mechanism


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


def test_an_epoch_is_one_shuffle_of_what_arrived():
    crowds = Crowds(secret=True)
    for arrived in (50, 40, 0, 38, 50):
        crowds.cohort(range(200), 50)
        crowds.record(arrived)
    found = crowds.observers(SERVER, MECHANISM, releases=2)
    assert (found.crowd, found.shuffles, found.secret_order) == (50, 2, True)
    expected = shuffled_privacy(MECHANISM, REPLACE, 128) + shuffled_privacy(MECHANISM, REPLACE, 48)
    assert found.result is not None
    assert found.result.epsilon_upper == pytest.approx(expected.epsilon(1e-5), rel=1e-9)


def test_in_open_order_the_smallest_rounds_count():
    crowds = Crowds()
    for arrived in (64, 32, 0, 128, 32):
        crowds.record(arrived)
    found = crowds.observers(SERVER, MECHANISM, releases=3)
    assert (found.crowd, found.shuffles, found.secret_order) == (32, 3, False)
    smaller = (shuffled_privacy(MECHANISM, REPLACE, 32) * 2) + shuffled_privacy(MECHANISM, REPLACE, 64)
    assert found.result is not None
    assert found.result.epsilon_upper == pytest.approx(smaller.epsilon(1e-5), rel=1e-9)


def test_no_second_guarantee_says_why():
    assert "no release" in Crowds().observers(SERVER, MECHANISM, 1).reason
    summed = Guarantee(3.0, 1e-5, Unit.CLIENT, REPLACE, Trust.SECURE_AGGREGATION)
    assert "local trust" in Crowds().observers(summed, MECHANISM, 1).reason
    crowds = Crowds()
    crowds.record(10)
    gaussian = calibrate("gaussian", ball=Ball(Norm.L2, 1.0, 10), epsilon=1.0, delta=1e-5, adjacency=REPLACE).mechanism
    assert "delta = 0" in crowds.observers(SERVER, gaussian, 1).reason


def test_crowds_are_rounded_down():
    for crowd in (1, 7, 16, 17, 999, 60_000, 10**6 + 1):
        assert crowd / (1 + 1 / 8) <= rounded_down(crowd) <= crowd
