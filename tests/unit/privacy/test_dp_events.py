import math

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from quietbit.errors import InvalidParameter
from quietbit.privacy import Cost, dp_event, epsilon_from_rdp, skellam_cost

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
    accountant = RdpAccountant(neighboring_relation=SPECIAL)
    accountant.compose(dp_event(curve))
    theirs = accountant.get_epsilon(delta)
    ours = epsilon_from_rdp(curve.rdp, delta, orders=DEFAULT_RDP_ORDERS)
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert curve.epsilon(delta) <= theirs * (1 + 1e-9)


def test_a_gaussian_is_the_gaussian_of_its_noise_multiplier():
    assert dp_event(Cost.gaussian(1 / (2 * 3.0**2))).noise_multiplier == pytest.approx(3.0)


def test_what_a_gaussian_pair_dominates_is_that_gaussian():
    assert dp_event(Cost.gaussian(1 / (2 * 3.0**2), 0.01)).noise_multiplier == pytest.approx(3.0)
    assert dp_event(Cost.gaussian(math.inf, 0.01)).rho == 0.01


def test_what_has_no_event_is_refused():
    with pytest.raises(InvalidParameter, match="no event for this one"):
        dp_event(skellam_cost(4.0, 2.0, 10.0))
    with pytest.raises(InvalidParameter, match="no event for this one"):
        dp_event(Cost.pure(0.4) * 3)
    slack = Cost.gaussian(0.1).with_slack(1e-9)
    with pytest.raises(InvalidParameter, match="without_slack"):
        dp_event(slack)
    assert dp_event(slack, without_slack=True) == dp_event(Cost.gaussian(0.1))
