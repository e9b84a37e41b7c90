"""Filters against a server that chooses: an adaptive process is enumerated, and the account of fixed lists breaks."""

import itertools
import math

import mpmath
import pytest

from quietbit.errors import InvalidParameter
from quietbit.privacy import Cost, filter_epsilon_upper
from quietbit.privacy.filter import LOST_SHARE, ORDERS
from quietbit.privacy.gaussian import gaussian_epsilon_upper

DELTA = 1e-3
OFTEN = ([0.6, 0.4], [0.4, 0.6])  # a little lost at every release
SELDOM = ([0.9995 * DELTA, 1 - 0.9995 * DELTA], [DELTA * math.exp(-14), 1 - DELTA * math.exp(-14)])  # much, seldom
MANY = 12


def adaptive_delta(epsilon):
    """Exact delta of this server: one release of the first kind; if its output was the first, eleven more of that kind,
    otherwise one of the second kind."""
    with mpmath.workdps(30):
        factor, whole = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(0)
        for outputs in itertools.product((0, 1), repeat=MANY - 1):
            first = mpmath.fprod(mpmath.mpf(OFTEN[0][output]) for output in (0, *outputs))
            second = mpmath.fprod(mpmath.mpf(OFTEN[1][output]) for output in (0, *outputs))
            whole += max(0, first - factor * second)
        for output in (0, 1):
            first = mpmath.mpf(OFTEN[0][1]) * mpmath.mpf(SELDOM[0][output])
            second = mpmath.mpf(OFTEN[1][1]) * mpmath.mpf(SELDOM[1][output])
            whole += max(0, first - factor * second)
        return whole


def test_a_choosing_server_breaks_the_account_of_fixed_lists_and_not_the_filter():
    """Both lists of mechanisms that can occur cost epsilon at 1e-3; a process that chooses between them costs more."""
    often, seldom = Cost.from_masses(*OFTEN), Cost.from_masses(*SELDOM)
    paths = [(often * MANY), (often + seldom)]
    fixed = max(path.epsilon(DELTA) for path in paths)
    assert adaptive_delta(fixed) > 1.2 * DELTA
    filtered = max(filter_epsilon_upper(path, DELTA) for path in paths)
    assert adaptive_delta(filtered) <= DELTA
    assert filtered > fixed


def test_each_account_gets_its_share():
    share = 1e-5 * (1 - LOST_SHARE) / (len(ORDERS) + 1)
    curve = Cost.renyi(lambda alpha: 0.02 * alpha + 0.1, "made up")
    by_hand = min(0.02 * a + 0.1 + math.log(1 - 1 / a) - (math.log(share) + math.log(a)) / (a - 1) for a in ORDERS)
    assert filter_epsilon_upper(curve, 1e-5) == pytest.approx(by_hand, rel=1e-9)
    assert filter_epsilon_upper(curve, 1e-5) >= by_hand
    assert filter_epsilon_upper(Cost.gaussian(0.02), 1e-5) == pytest.approx(
        gaussian_epsilon_upper(0.02, share), rel=1e-9
    )
    assert filter_epsilon_upper((Cost.pure(0.1) * 3), 0.0) >= 0.3
    assert filter_epsilon_upper((Cost.pure(0.1) * 3), 1e-5) <= 0.3 * (1 + 1e-15)  # a pure account costs no delta


@pytest.mark.parametrize("slope", [1e-4, 0.02, 0.5, 4.0])
def test_choosing_costs_and_not_too_much(slope):
    for curve in (Cost.gaussian(slope), Cost.linear(slope)):
        free = curve.epsilon(1e-5)
        assert free <= filter_epsilon_upper(curve, 1e-5)
        if slope >= 0.02:
            assert filter_epsilon_upper(curve, 1e-5) <= 1.25 * free


def test_fewer_orders_cost_less_delta():
    curve = Cost.linear(0.05)
    best = min(ORDERS, key=lambda order: filter_epsilon_upper(curve, 1e-5, [order]))
    assert filter_epsilon_upper(curve, 1e-5, [best]) < filter_epsilon_upper(curve, 1e-5)


def test_a_mixture_with_pairs_is_accounted_by_renyi():
    pair = Cost.from_masses(*OFTEN) * 30
    as_renyi = Cost.renyi(pair.rdp, "the same, by its divergences")
    assert filter_epsilon_upper(pair, 1e-5) == pytest.approx(filter_epsilon_upper(as_renyi, 1e-5))


def test_slack_and_lost_mass():
    plain, slackened = Cost.linear(0.05), Cost.linear(0.05).with_slack(1e-4)
    assert filter_epsilon_upper(slackened, 1e-5) > filter_epsilon_upper(plain, 1e-5)
    lossy = Cost.gaussian(0.05).with_lost(1e-7)
    assert filter_epsilon_upper(lossy, 1e-5) == filter_epsilon_upper(Cost.gaussian(0.05), 1e-5)
    assert filter_epsilon_upper((lossy * 7), 1e-5) == math.inf  # more than a sixteenth of delta
    # Slack depends on the path, so a Gaussian with slack is not accounted exactly.
    assert filter_epsilon_upper(Cost.gaussian(0.05).with_slack(1e-12), 1e-5) > filter_epsilon_upper(lossy, 1e-5)


@pytest.mark.parametrize("orders", [[1.0], [2.0, math.nan], [math.inf]])
def test_refuses_orders_that_are_none(orders):
    with pytest.raises(InvalidParameter, match="orders"):
        filter_epsilon_upper(Cost.linear(0.1), 1e-5, orders)
