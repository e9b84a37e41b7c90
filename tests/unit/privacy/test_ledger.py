import pytest

from quietbit.errors import InvalidParameter
from quietbit.privacy import Adjacency, Cost, Ledger, Trust, Unit, filter_epsilon_upper

EMPTY = Ledger(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL)


def release(curve):
    return curve.of(Adjacency.ZERO_OUT, Unit.CLIENT, Trust.LOCAL)


def test_an_empty_ledger_reveals_nothing():
    assert EMPTY.guarantee(0.0).epsilon_upper == EMPTY.guarantee(1e-5).epsilon_upper == 0
    assert EMPTY.guarantee(1e-5, adaptive=False).epsilon_upper == 0


def test_recording_returns_a_new_ledger_and_adds_up():
    ledger = EMPTY.record(release(Cost.gaussian(0.01)), times=3).record(release(Cost.gaussian(0.02)))
    assert EMPTY.entries == ()
    assert ledger.total().rdp(2.0) == pytest.approx(0.1)
    guarantee = ledger.guarantee(1e-5, adaptive=False)
    assert guarantee.epsilon_upper == ledger.total().epsilon(1e-5)
    assert (guarantee.unit, guarantee.adjacency, guarantee.trust) == (
        Unit.CLIENT,
        Adjacency.ZERO_OUT,
        Trust.LOCAL,
    )


def test_it_takes_choice_for_granted_unless_told_otherwise():
    pair = Cost.from_masses([0.6, 0.4], [0.4, 0.6])
    ledger = EMPTY.record(release(pair), 30).record(release(Cost.gaussian(0.02)), 4)
    assert ledger.guarantee(1e-5).epsilon_upper == filter_epsilon_upper(ledger.total(), 1e-5)
    assert ledger.guarantee(1e-5).epsilon_upper > ledger.guarantee(1e-5, adaptive=False).epsilon_upper
    one = ledger.guarantee(1e-5, orders=[6.0])
    assert one.epsilon_upper == filter_epsilon_upper(ledger.total(), 1e-5, [6.0])


def test_ledgers_of_other_words_do_not_join():
    for other in (
        Ledger(Unit.SAMPLE, Adjacency.ZERO_OUT, Trust.LOCAL),
        Ledger(Unit.CLIENT, Adjacency.REPLACE_ONE, Trust.LOCAL),
        Ledger(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.CENTRAL),
    ):
        with pytest.raises(InvalidParameter, match="of the other ledger"):
            EMPTY.join(other)


def test_joining_adds_the_entries():
    joined = EMPTY.record(release(Cost.linear(0.1))).join(EMPTY.record(release(Cost.linear(0.2)), times=2))
    assert joined.total().rdp(3.0) == pytest.approx(1.5)


@pytest.mark.parametrize("bad", [-1, 0.5, "2"])
def test_refuses_times_that_are_no_count(bad):
    with pytest.raises(InvalidParameter, match="times"):
        EMPTY.record(release(Cost.pure(1.0)), times=bad)


def test_refuses_words_that_are_none():
    with pytest.raises(InvalidParameter, match="adjacency"):
        Ledger(Unit.CLIENT, "zero-out", Trust.LOCAL)
