"""Costs held against the accountant of another library, `dp_accounting`, where it has an event for
them.

What a Gaussian pair dominates is that Gaussian; another line of divergences is a zCDP event, which
no accountant mistakes for a Gaussian. The adjacency is in the slope already, so that the relation
adds nothing to it.
"""

import math

import dp_accounting
import pytest
from dp_accounting.dp_event import GaussianDpEvent, ZCDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from quietbit.privacy.conversion import epsilon_from_rdp
from quietbit.privacy.cost import Cost

SPECIAL = dp_accounting.NeighboringRelation.REPLACE_SPECIAL


@pytest.mark.parametrize(
    "curve",
    [
        Cost.gaussian(0.02),
        (Cost.gaussian(0.02) * 40),
        Cost.linear(0.3),
        ((Cost.linear(0.01) + Cost.gaussian(0.05)) * 9),
    ],
    ids=["gaussian", "repeated", "linear", "mixed"],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_their_account_of_our_event_is_ours(curve, delta):
    pair = curve.pair_slope
    event = (
        GaussianDpEvent(1 / math.sqrt(2 * pair)) if pair < math.inf else ZCDpEvent(rho=curve.slope)
    )
    accountant = RdpAccountant(neighboring_relation=SPECIAL)
    accountant.compose(event)
    theirs = accountant.get_epsilon(delta)
    ours = epsilon_from_rdp(curve.rdp, delta, orders=DEFAULT_RDP_ORDERS)
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert curve.epsilon(delta) <= theirs * (1 + 1e-9)
