"""The stopping rule: shares of delta, sums that only grow, and an adaptive server that gains nothing by choosing."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from quietbit.errors import InvalidParameter
from quietbit.node.filter import LOST, ORDERS, Cap, Price, price_of
from quietbit.privacy.conversion import epsilon_from_linear
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Adjacency, Trust


def cap(epsilon=1.0, delta=1e-5):
    return Cap(epsilon, delta, Adjacency.ZERO_OUT, Trust.LOCAL)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 8.0, 50.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_shares_add_up_to_at_most_one_and_cost_a_linear_curve_little(epsilon, delta):
    found = cap(epsilon, delta)
    assert math.fsum(found.shares) <= 1.0
    assert min(found.shares) > 0
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_from_linear(middle, delta) <= epsilon else (low, middle)
    reached = found.epsilon_upper(price_of(Cost.linear(low)))
    assert epsilon * (1 - 1e-9) <= reached <= epsilon * 1.01


def test_every_order_is_converted_at_its_own_share_by_mpmath():
    spent, found = Price.total([(price_of(Cost.gaussian(0.02)), 7)]), cap(3.0)
    mpmath.mp.dps = 40
    best = mpmath.inf
    assert math.fsum(found.shares) + LOST <= 1.0
    for order, share, rho in zip(ORDERS, found.shares, spent.rdp, strict=True):
        a, d = mpmath.mpf(order), mpmath.mpf(found.delta) * mpmath.mpf(share)
        best = min(best, mpmath.mpf(rho) + mpmath.log((a - 1) / a) - (mpmath.log(d) + mpmath.log(a)) / (a - 1))
    assert best <= found.epsilon_upper(spent) <= best * (1 + mpmath.mpf(1e-9))


def test_pure_costs_need_no_delta():
    spent = Price.total([(price_of(Cost.pure(0.25)), 4)])
    assert spent.pure == pytest.approx(1.0, rel=1e-14)
    assert spent.pure >= 1.0
    assert cap(2.0, 0.0).epsilon_upper(spent) == spent.pure
    assert cap(2.0, 0.0).holds(spent)
    assert not cap(2.0, 0.0).holds(price_of(Cost.gaussian(0.001)))


def test_totals_round_up_and_a_floor_is_a_floor_at_every_order():
    price = price_of(Cost.linear(0.1))
    total = Price.total([(price, 3), (price, 0)])
    assert (total.rdp >= 3 * price.rdp).all()
    assert np.allclose(total.rdp, 3 * price.rdp, rtol=1e-14)
    raised = price_of(Cost.linear(1e-9)).at_least(0.1)
    assert np.array_equal(raised.rdp, np.maximum(price_of(Cost.pure(0.1)).rdp, price_of(Cost.linear(1e-9)).rdp))
    assert raised.pure == math.inf
    assert price.at_least(0.0) is price
    assert cap().epsilon_upper(Price.nothing()) == 0.0


@pytest.mark.parametrize("bad", [np.zeros(3), np.full(len(ORDERS), math.nan), np.full(len(ORDERS), -1.0)])
def test_numbers_that_are_no_price_are_refused(bad):
    with pytest.raises(InvalidParameter):
        Price(bad, 0.0)
    with pytest.raises(InvalidParameter):
        Price(np.zeros(len(ORDERS)), math.nan)


def test_lost_mass_adds_up_and_has_its_own_share():
    curve = Cost.gaussian(1e-5).with_lost(1e-9)
    price = price_of(curve)
    assert price.lost == 1e-9
    assert (price.rdp < math.inf).all()
    assert cap().holds(Price.total([(price, 50)]))
    assert not cap().holds(Price.total([(price, 101)]))  # a hundredth of 1e-5 is set aside
    assert not cap(1.0, 0.0).holds(price_of(Cost.pure(0.1).with_lost(1e-30)))


def test_a_cap_is_a_number_with_words():
    for changes in ({"epsilon": 0.0}, {"epsilon": math.nan}, {"delta": 1.0}):
        with pytest.raises(InvalidParameter):
            cap(**changes)
    with pytest.raises(InvalidParameter, match="trust of the cap"):
        Cap(1.0, 1e-5, Adjacency.ZERO_OUT, Trust.CENTRAL)


def loss(epsilon):
    """Randomised response: (P, Q) masses of its two answers."""
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    return ((high, 1 - high), (1 - high, high))


def hockey(transcripts, epsilon):
    return math.fsum(max(0.0, p - math.exp(epsilon) * q) for p, q in transcripts)


def adaptive(limit, choose, most=11):
    """All transcripts against a server that picks the next randomised response from the answers so far."""
    prices = {}
    done, alive = [], [((), 1.0, 1.0, Price.nothing())]
    for _ in range(most):
        after = []
        for answers, p, q, spent in alive:
            epsilon = choose(answers)
            price = prices.setdefault(epsilon, price_of(Cost.pure(epsilon)))
            total = Price.total([(spent, 1), (price, 1)])
            if not limit.holds(total):
                done.append((p, q))
                continue
            for answer, (a, b) in enumerate(zip(*loss(epsilon), strict=True)):
                after.append(((*answers, answer), p * a, q * b, total))
        alive = after
    return done + [(p, q) for _, p, q, _ in alive]


def greedy(answers):
    """Strong questions while the answers point one way, weak ones otherwise: what a fixed number of them could not."""
    return 0.6 if sum(answers) * 2 <= len(answers) else 0.15


def test_an_adaptive_server_stays_within_epsilon_and_delta_exactly():
    """Every transcript is enumerated; the privacy loss is summed, not sampled."""
    for delta, epsilon in itertools.product((1e-2, 1e-4), (0.8, 1.5, 2.5)):
        limit = Cap(epsilon, delta, Adjacency.ZERO_OUT, Trust.LOCAL)
        for choose in (greedy, lambda answers: 0.3, lambda answers: (0.6, 0.1)[len(answers) % 2]):
            transcripts = adaptive(limit, choose)
            assert math.fsum(p for p, _ in transcripts) == pytest.approx(1.0)
            assert hockey(transcripts, epsilon) <= delta


def test_the_enumeration_can_fail():
    """The same server without the rule exceeds the same delta."""

    class Blind:
        @staticmethod
        def holds(_):
            return True

    assert hockey(adaptive(Blind, greedy), 0.8) > 1e-2
