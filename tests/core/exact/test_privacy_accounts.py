"""Accounts of releases against their exact delta, to 60 digits, and against `dp_accounting`."""

import math
from functools import cache

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, ZCDpEvent
from dp_accounting.pld import privacy_loss_distribution as oracle
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from core.exact.privacy_kit import bit, exact_delta, gaussian_delta
from quietbit.design.profile import Profile
from quietbit.privacy.conversion import epsilon_from_rdp
from quietbit.privacy.cost import Cost
from quietbit.privacy.loss import LossDistribution
from quietbit.privacy.profile import profile_cost
from quietbit.privacy.subsampling import poisson_gaussian
from quietbit.target import Adjacency

FIRST, SECOND = (0.5, 0.3, 0.2), (0.45, 0.45, 0.1)
SLOPES = (1e-18, 1e-13, 1e-10, 1e-6, 1e-3, 0.02, 0.5, 8.0, 60.0, 900.0, 5e4)


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("delta", [0.5, 0.01, 1e-5, 1e-9, 1e-15, 1e-40])
def test_gaussian_epsilon_is_private_and_tight(slope, delta):
    epsilon = Cost.gaussian(slope).epsilon(delta)
    assert gaussian_delta(epsilon, slope) <= delta
    assert epsilon == 0 or gaussian_delta(epsilon * (1 - 1e-6), slope) > delta
    assert epsilon <= Cost.linear(slope).epsilon(delta)


def finite(first, second, times):
    """Releases of a finite pair; the worse way round counts."""
    ways = exact_delta((first, second, times)), exact_delta((second, first, times))
    return Cost.from_masses(first, second) * times, lambda epsilon: max(
        way(epsilon) for way in ways
    )


def randomised(epsilon, times):
    return Cost.pure(epsilon) * times, exact_delta((bit(epsilon), bit(-epsilon), times))


def with_gaussian(slope):
    """Six randomised responses and a Gaussian, whose delta is a mixture over what they lost."""
    one, times = 0.3, 6
    high, low = bit(one)

    def exact(epsilon):
        whole = mp.mpf(0)
        for ones in range(times + 1):
            mass = mp.binomial(times, ones) * high**ones * low ** (times - ones)
            lost = (2 * ones - times) * mp.mpf(one)
            whole += mass * gaussian_delta(mp.mpf(epsilon) - lost, slope)
        return whole

    return Cost.pure(one) * times + Cost.gaussian(slope), exact


EXACT = {
    "three outputs": lambda: finite(FIRST, SECOND, 1),
    "three outputs, seven times": lambda: finite(FIRST, SECOND, 7),
    "three outputs, forty times": lambda: finite(FIRST, SECOND, 40),
    "a response": lambda: randomised(1.0, 1),
    "ten responses": lambda: randomised(1.0, 10),
    "many small responses": lambda: randomised(0.02, 1500),
    "responses and a small Gaussian": lambda: with_gaussian(0.05**2 / 2),
    "responses and a Gaussian": lambda: with_gaussian(0.7**2 / 2),
    "responses and a large Gaussian": lambda: with_gaussian(3.0**2 / 2),
}
made = cache(lambda name: EXACT[name]())


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-9])
def test_an_account_is_private_and_tight(name, delta):
    cost, exact = made(name)
    epsilon = cost.epsilon(delta)
    assert exact(epsilon) <= delta
    assert exact(epsilon * (1 - 1e-4)) >= delta * (1 - 1e-3)


def test_each_direction_alone_would_be_too_little():
    one_way = Cost.from_losses(LossDistribution.from_atoms(SECOND, FIRST)) * 40
    _, exact = made("three outputs, forty times")
    assert exact(one_way.epsilon(1e-6)) > 1e-6 * (1 + 1e-6)


def test_lost_mass_is_needed():
    """A release that shows its input with probability d: certified but for that, and at d exactly
    no epsilon is left.
    """
    lost = 1e-3
    shown = [[(1 - lost) * mass for mass in law] for law in (FIRST, SECOND)]
    exact = exact_delta(([*shown[0], lost, 0.0], [*shown[1], 0.0, lost], 1))
    certified = Cost.from_masses(FIRST, SECOND)
    cost = certified.with_lost(lost)
    for delta in (2e-3, 2e-2):
        assert exact(cost.epsilon(delta)) <= delta * (1 + 1e-15)
        assert exact(certified.epsilon(delta)) > delta
    assert cost.epsilon(lost) == math.inf


# Another library's accounts.
SPECIAL = dp_accounting.NeighboringRelation.REPLACE_SPECIAL


@pytest.mark.parametrize(
    "cost",
    [
        Cost.gaussian(0.02),
        Cost.gaussian(0.02) * 40,
        Cost.linear(0.3),
        (Cost.linear(0.01) + Cost.gaussian(0.05)) * 9,
        Cost.gaussian(1 / 180_000),
        Cost.gaussian(200_000.0),
    ],
    ids=["gaussian", "repeated", "linear", "mixed", "much noise", "little noise"],
)
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-6, 1e-12])
def test_their_account_of_our_event_is_ours(cost, delta):
    """What a Gaussian pair dominates is that Gaussian; another line of divergences is a zCDP event.

    The adjacency is in the slope already, so that the relation adds nothing to it.
    """
    pair = cost.pair_slope
    event = ZCDpEvent(rho=cost.slope)
    if pair < math.inf:
        event = GaussianDpEvent(1 / math.sqrt(2 * pair))
    theirs = RdpAccountant(neighboring_relation=SPECIAL).compose(event).get_epsilon(delta)
    ours = epsilon_from_rdp(cost.rdp, delta, orders=DEFAULT_RDP_ORDERS)
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)
    assert cost.epsilon(delta) <= Cost.linear(cost.slope).epsilon(delta) <= theirs * (1 + 1e-9)


def theirs_of(first, second, times):
    """Their losses of a finite pair, each rounded up by at most 1e-4."""
    logs = [dict(enumerate(np.log(law).tolist())) for law in (second, first)]
    one = oracle.from_two_probability_mass_functions(
        *logs, value_discretization_interval=1e-4, symmetric=False
    )
    return one.self_compose(times)


def three_outputs_and_a_gaussian():
    first, second = (0.5, 0.3, 0.2), (0.3, 0.3, 0.4)
    ways = []
    for pair in ((first, second), (second, first)):
        gaussian = oracle.from_gaussian_mechanism(2.0, value_discretization_interval=1e-4)
        ways.append(theirs_of(*pair, 30).compose(gaussian))
    return Cost.from_masses(first, second) * 30 + Cost.gaussian(0.125), ways, 31e-4


def laplace(one, times):
    nodes = np.linspace(-one, one, 3001)
    deltas = np.nextafter(-np.expm1((nodes - one) / 2), 1)
    step = one / 3000
    way = oracle.from_laplace_mechanism(1 / one, value_discretization_interval=step)
    ours = Cost.from_losses(LossDistribution.from_profile(nodes, deltas))
    return ours * times, [way.self_compose(times)], times * step


def profile(adjacency, times):
    stairs = Profile.from_weights([-0.6, 0.1, 0.9], np.exp([0.0, 0.15, 0.35, 0.5]))
    ways = [theirs_of(p / p.sum(), q / q.sum(), times) for p, q in stairs.pairs(adjacency)]
    return profile_cost(stairs, adjacency) * times, ways, times * 1e-4


def poisson(mu, rate, steps):
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(1 / mu))
    way = dp_accounting.pld.PLDAccountant().compose(event, steps)
    return Cost.from_losses(*poisson_gaussian(mu, rate, Adjacency.ZERO_OUT)) * steps, way


LOSSES = {
    "three outputs and a Gaussian": three_outputs_and_a_gaussian,
    "five large Laplace releases": lambda: laplace(1.0, 5),
    "many small Laplace releases": lambda: laplace(0.1, 200),
    "a profile, replaced": lambda: profile(Adjacency.REPLACE_ONE, 4),
    "a profile, zeroed": lambda: profile(Adjacency.ZERO_OUT, 30),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_theirs_but_for_their_rounding(name):
    ours, ways, rounding = LOSSES[name]()
    for delta in (1e-3, 1e-6):
        theirs = max(way.get_epsilon_for_delta(delta) for way in ways)
        assert theirs - rounding <= ours.epsilon(delta) <= theirs * (1 + 1e-5)


@pytest.mark.parametrize(
    ("mu", "rate", "steps"),
    [
        (0.5, 0.1, 150),
        (1 / 0.8, 0.01, 1000),
        pytest.param(2.0, 0.001, 5000, marks=pytest.mark.long),
    ],
)
def test_secret_batches_agree_with_theirs(mu, rate, steps):
    ours, theirs = poisson(mu, rate, steps)
    assert ours.epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=0.01)
    assert ours.epsilon(1e-5) >= 0.999 * theirs.get_epsilon(1e-5)
