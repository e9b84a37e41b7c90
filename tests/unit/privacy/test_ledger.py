import pytest

from quietbit._validate import InvalidParameter
from quietbit.privacy import Adjacency, GaussianCurve, Ledger, LinearCurve, PureCurve, Trust, Unit

EMPTY = Ledger(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL)


def test_an_empty_ledger_reveals_nothing():
    assert EMPTY.guarantee(0.0).epsilon_upper == 0


def test_recording_returns_a_new_ledger_and_adds_up():
    ledger = EMPTY.record(GaussianCurve(0.01), times=3).record(GaussianCurve(0.02))
    assert EMPTY.entries == ()
    assert ledger.total().rdp(2.0) == pytest.approx(0.1)
    guarantee = ledger.guarantee(1e-5)
    assert guarantee.epsilon_upper == ledger.total().epsilon_upper(1e-5)
    assert (guarantee.unit, guarantee.adjacency, guarantee.trust) == (
        Unit.CLIENT,
        Adjacency.ZERO_OUT,
        Trust.LOCAL,
    )


def test_adjacencies_do_not_mix():
    EMPTY.record(PureCurve(1.0), adjacency=Adjacency.ZERO_OUT)
    with pytest.raises(InvalidParameter, match="do not add up"):
        EMPTY.record(PureCurve(1.0), adjacency=Adjacency.REPLACE_ONE)
    for other in (
        Ledger(Unit.SAMPLE, Adjacency.ZERO_OUT, Trust.LOCAL),
        Ledger(Unit.CLIENT, Adjacency.REPLACE_ONE, Trust.LOCAL),
        Ledger(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.CENTRAL),
    ):
        with pytest.raises(InvalidParameter, match="of the other ledger"):
            EMPTY.join(other)


def test_joining_adds_the_entries():
    joined = EMPTY.record(LinearCurve(0.1)).join(EMPTY.record(LinearCurve(0.2), times=2))
    assert joined.total().rdp(3.0) == pytest.approx(1.5)


@pytest.mark.parametrize("bad", [-1, 0.5, "2"])
def test_refuses_times_that_are_no_count(bad):
    with pytest.raises(InvalidParameter, match="times"):
        EMPTY.record(PureCurve(1.0), times=bad)


def test_refuses_words_and_curves_that_are_none():
    with pytest.raises(InvalidParameter, match="curve"):
        EMPTY.record(1.0)
    with pytest.raises(InvalidParameter, match="adjacency"):
        Ledger(Unit.CLIENT, "zero-out", Trust.LOCAL)
