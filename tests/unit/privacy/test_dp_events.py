import math

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from quietbit.errors import InvalidParameter
from quietbit.privacy import (
    Adjacency,
    GaussianCurve,
    GaussianPairCurve,
    Ledger,
    LinearCurve,
    PureCurve,
    Release,
    Trust,
    Unit,
    dp_event,
    epsilon_from_rdp,
    skellam_curve,
    with_slack,
)

SPECIAL = dp_accounting.NeighboringRelation.REPLACE_SPECIAL


@pytest.mark.parametrize(
    "curve",
    [
        GaussianCurve(0.02),
        GaussianCurve(0.02).repeat(40),
        LinearCurve(0.3),
        LinearCurve(0.01).compose(GaussianCurve(0.05)).repeat(9),
    ],
    ids=["gaussian", "repeated", "linear", "mixed"],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_their_account_of_our_event_is_ours(curve, delta):
    accountant = RdpAccountant(neighboring_relation=SPECIAL)
    accountant.compose(dp_event(curve))
    theirs = accountant.get_epsilon(delta)
    ours = epsilon_from_rdp(curve.rdp, delta, orders=DEFAULT_RDP_ORDERS)
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert curve.epsilon_upper(delta) <= theirs * (1 + 1e-9)


def test_a_gaussian_is_the_gaussian_of_its_noise_multiplier():
    assert dp_event(GaussianCurve(1 / (2 * 3.0**2))).noise_multiplier == pytest.approx(3.0)


def test_what_a_gaussian_pair_dominates_is_that_gaussian():
    assert dp_event(GaussianPairCurve(0.01, 1 / (2 * 3.0**2))).noise_multiplier == pytest.approx(3.0)
    assert dp_event(GaussianPairCurve(0.01, math.inf)).rho == 0.01


def test_a_ledger_exports_its_total():
    ledger = Ledger(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL).record(
        Release(GaussianCurve(0.01), Adjacency.ZERO_OUT, Unit.CLIENT, Trust.LOCAL), times=7
    )
    assert dp_event(ledger) == dp_event(ledger.total())
    assert dp_event(Ledger(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL)) == dp_event(GaussianCurve(0.0))


def test_what_has_no_event_is_refused():
    with pytest.raises(InvalidParameter, match="no event for this one"):
        dp_event(skellam_curve(4.0, 2.0, 10.0))
    with pytest.raises(InvalidParameter, match="no event for this one"):
        dp_event(PureCurve(0.4).repeat(3))
    slack = with_slack(GaussianCurve(0.1), 1e-9)
    with pytest.raises(InvalidParameter, match="without_slack"):
        dp_event(slack)
    assert dp_event(slack, without_slack=True) == dp_event(GaussianCurve(0.1))
