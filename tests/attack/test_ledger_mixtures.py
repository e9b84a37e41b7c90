"""Ledgers that were made to add what must not be added, each with the number it used to report
and the true one.
"""

import math

import pytest

from quietbit import Ball, DesignSpec, InterpolatedMVU, Norm, solve
from quietbit.errors import InvalidParameter
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency, Target, Trust, Unit

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
BALL = Ball(Norm.L2, 1000)


def one_bit(beta=1.0):
    return InterpolatedMVU(solve(DesignSpec(2, 1, 1.0)), BALL, beta)


def account(adjacency, unit, trust):
    return Account(Target(math.inf, 1e-5, adjacency, unit=unit, trust=trust))


def test_zero_out_releases_do_not_enter_a_replace_one_ledger():
    """25 of each read "6.979, replace-one"; 50 replace-one releases, which it has to be, read
    9.234 then (Rényi).
    """
    near, far = (one_bit(0.25).privacy(which) for which in (ZERO, REPLACE))
    held = account(REPLACE, Unit.CLIENT, Trust.LOCAL).spend(far, 25)
    with pytest.raises(InvalidParameter, match="does not cover replacing"):
        held.spend(near, 25)
    with pytest.raises(InvalidParameter, match="do not add up"):
        ((near * 25) + (far * 25))
    wrong = ((near * 25).bare() + (far * 25).bare()).epsilon(1e-5)
    true = (far * 50).epsilon(1e-5)
    assert (wrong, true) == (pytest.approx(6.979, abs=2e-3), pytest.approx(9.234, abs=2e-3))
    assert held.spend(far, 25).epsilon() == pytest.approx(true, rel=1e-12)


def test_replace_one_releases_enter_a_zero_out_ledger_at_their_own_price():
    near, far = (
        Cost.linear(slope).of(which, Unit.CLIENT, Trust.LOCAL)
        for slope, which in ((0.01, ZERO), (0.04, REPLACE))
    )
    held = account(ZERO, Unit.CLIENT, Trust.LOCAL).spend(near, 5).spend(far, 5)
    assert held.total().rdp(2.0) == pytest.approx(0.5)
    assert held.guarantee().adjacency is ZERO


def test_the_curve_of_a_sum_is_not_local():
    """The curve of a sum over 1000 clients read "local, 0.096" where a payload alone costs 4.1."""
    mechanism = one_bit()
    summed = mechanism.sum_privacy(1000, REPLACE)
    alone = mechanism.privacy(REPLACE)
    assert summed.epsilon(1e-5) < 0.05 * alone.epsilon(1e-5)
    with pytest.raises(InvalidParameter, match="trust must be"):
        account(REPLACE, Unit.CLIENT, Trust.LOCAL).spend(summed)
    with pytest.raises(InvalidParameter, match="trust must be"):
        account(REPLACE, Unit.CLIENT, Trust.SECURE_AGGREGATION).spend(
            Cost.gaussian(0.01).of(REPLACE, Unit.CLIENT, Trust.CENTRAL)
        )
    both = account(REPLACE, Unit.CLIENT, Trust.SECURE_AGGREGATION).spend(summed).spend(alone)
    assert both.epsilon() > alone.epsilon(1e-5)


def test_a_label_does_not_make_a_sample_level():
    """The curve of a client's update labelled "sample" read 1.434 where a client of two samples
    pays 1.814.
    """
    client = Cost.gaussian(0.05).of(ZERO, Unit.CLIENT, Trust.LOCAL)
    with pytest.raises(InvalidParameter, match="unit of the cost"):
        account(ZERO, Unit.SAMPLE, Trust.LOCAL).spend(client)
    with pytest.raises(InvalidParameter, match="samples"):
        Cost.gaussian(0.05).of(ZERO, Unit.SAMPLE, Trust.LOCAL)
    sample = Cost.gaussian(0.05).of(ZERO, Unit.SAMPLE, Trust.LOCAL, samples=2)
    with pytest.raises(InvalidParameter, match="unit of the cost"):
        account(ZERO, Unit.CLIENT, Trust.LOCAL).spend(sample)


def test_a_bare_curve_is_refused():
    for nothing in (Cost.gaussian(0.05), 0.5, None):
        with pytest.raises(InvalidParameter, match=r"adjacency|must be a Cost"):
            account(ZERO, Unit.CLIENT, Trust.LOCAL).spend(nothing)
