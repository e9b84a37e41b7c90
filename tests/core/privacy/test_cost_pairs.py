"""Curves with dominating pairs.

Every account against enumeration, both ways round, composed with other kinds.
"""

import math

import mpmath
import numpy as np
import pytest

from quietbit.privacy.conversion import gaussian_epsilon_upper
from quietbit.privacy.cost import Cost
from quietbit.privacy.loss import LossDistribution
from refusals import refuses

FIRST, SECOND = np.array([0.5, 0.3, 0.2]), np.array([0.45, 0.45, 0.1])
CURVE = Cost.from_masses(FIRST, SECOND)


def deltas(first, second, times, epsilon):
    """Delta of ``times`` three-valued releases both ways round, over counts of the three outputs,
    in 40 digits.
    """
    with mpmath.workdps(40):
        found = []
        for p, q in ((first, second), (second, first)):
            p, q = ([mpmath.mpf(float(mass)) for mass in law] for law in (p, q))
            whole = mpmath.mpf(0)
            for i in range(times + 1):
                for j in range(times + 1 - i):
                    k = times - i - j
                    ways = mpmath.binomial(times, i) * mpmath.binomial(times - i, j)
                    one, two = p[0] ** i * p[1] ** j * p[2] ** k, q[0] ** i * q[1] ** j * q[2] ** k
                    whole += ways * max(mpmath.mpf(0), one - mpmath.exp(mpmath.mpf(epsilon)) * two)
            found.append(whole)
        return found


@pytest.mark.parametrize("times", [1, 7, 40])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_the_worse_direction_counts(times, delta):
    epsilon = (CURVE * times).epsilon(delta)
    assert max(deltas(FIRST, SECOND, times, epsilon)) <= delta
    assert max(deltas(FIRST, SECOND, times, epsilon * (1 - 1e-4))) >= delta * (1 - 1e-3)


def test_each_direction_alone_would_be_too_little():
    """The two directions differ, so the larger is needed: forward alone misses it."""
    one_way = Cost.from_losses(LossDistribution.from_atoms(SECOND, FIRST)) * 40
    assert max(deltas(FIRST, SECOND, 40, one_way.epsilon(1e-6))) > 1e-6 * (1 + 1e-6)


def test_it_is_a_curve_with_every_account():
    assert CURVE.pure_epsilon() == pytest.approx(math.log(2), rel=1e-14)
    assert CURVE.pure_epsilon() >= math.log(2)
    both = [np.sum(p**3.0 * q**-2.0) for p, q in ((FIRST, SECOND), (SECOND, FIRST))]
    assert CURVE.rdp(3.0) == pytest.approx(math.log(max(both)) / 2, rel=1e-12)
    assert CURVE.answered_by(0.0) == "pure"
    assert (CURVE * 60).answered_by(1e-6) == "privacy-loss distribution"
    by_renyi = (CURVE * 60).accounts(1e-6)["Rényi"]
    assert (CURVE * 60).epsilon(1e-6) < 0.97 * by_renyi


def test_equal_curves_are_merged():
    again = Cost.from_masses(FIRST, SECOND)
    assert again == CURVE
    assert CURVE * 3 + again * 4 == (CURVE * 7)
    assert ((CURVE + CURVE) + again) == (CURVE * 3)


def test_with_gaussians_and_pure_releases_the_pairs_compose():
    mixed = ((CURVE * 20) + Cost.gaussian(0.05)) + (Cost.pure(0.1) * 30)
    assert mixed.answered_by(1e-5) == "privacy-loss distribution"
    found = mixed.accounts(1e-5)
    assert found["privacy-loss distribution"] < found["Rényi"] < math.inf
    assert mixed.epsilon(1e-5) > (CURVE * 20).epsilon(1e-5)
    # A vanishing partner changes nothing, a large one dominates: both ends of the composition are
    # known.
    assert ((CURVE * 20) + Cost.gaussian(1e-14)).epsilon(1e-5) == pytest.approx(
        (CURVE * 20).epsilon(1e-5), rel=1e-4
    )
    large = (Cost.gaussian(50.0) + Cost.pure(1e-9)).epsilon(1e-5)
    assert large == pytest.approx(gaussian_epsilon_upper(50.0, 1e-5), rel=1e-6)
    assert large >= gaussian_epsilon_upper(50.0, 1e-5) * (1 - 1e-9)


@pytest.mark.parametrize("other", [Cost.linear(0.02), Cost.renyi(lambda alpha: 0.01 * alpha)])
def test_with_a_curve_that_knows_only_renyi_the_account_is_renyi(other):
    mixed = ((CURVE * 20) + other) + Cost.gaussian(0.05)
    assert mixed.losses() is None
    assert mixed.answered_by(1e-5) == "Rényi"
    assert mixed.rdp(4.0) == pytest.approx(20 * CURVE.rdp(4.0) + other.rdp(4.0) + 0.2, rel=1e-12)


def test_slack_and_lost_mass_are_paid_once_at_the_end():
    """T releases, each within e^(+-s) of the certified law but for a mass d."""
    slack, lost, times = 1e-4, 1e-8, 25
    curve = CURVE.with_slack(slack).with_lost(lost) * times
    assert curve.lost == pytest.approx(times * lost, rel=1e-12)
    assert curve.lost >= times * lost
    inner = (CURVE * times).epsilon((1e-5 - times * lost) * math.exp(-times * slack))
    assert curve.epsilon(1e-5) == pytest.approx(inner + 2 * times * slack, rel=1e-8)
    assert curve.epsilon(times * lost / 2) == math.inf
    assert curve.epsilon(0.0) == curve.rdp(2.0) == curve.pure_epsilon() == math.inf
    assert curve.answered_by(1e-5) == "privacy-loss distribution"


def test_slack_around_a_lost_mass_enlarges_it():
    inside = CURVE.with_lost(1e-3).with_slack(0.5)
    lost = inside.lost
    assert 1e-3 * math.exp(0.5) <= lost <= 1e-3 * math.exp(0.5) * (1 + 1e-12)
    assert CURVE.lost == 0


def test_lost_mass_is_needed():
    """A release that shows its input with probability d: certified but for that, and at d exactly
    no epsilon is left.

    Its delta is d + (1 - d) delta of the certified one, enumerated; the account is above it and
    below d + delta.
    """
    lost = 1e-3
    shown = np.append((1 - lost) * FIRST, [lost, 0.0]), np.append((1 - lost) * SECOND, [0.0, lost])
    exact = LossDistribution.from_atoms(*shown)
    curve = CURVE.with_lost(lost)
    for delta in (2e-3, 2e-2):
        assert exact.delta_upper(curve.epsilon(delta)) <= delta
        assert (
            exact.delta_upper(CURVE.epsilon(delta)) > delta
        )  # without the lost mass it would be wrong
    assert curve.epsilon(lost) == math.inf


def test_lost_mass_with_renyi_only_curves():
    curve = Cost.linear(0.1).with_lost(1e-7) + Cost.linear(0.2).with_slack(1e-6)
    left = (1e-5 - 1e-7) * math.exp(-1e-6)
    assert curve.epsilon(1e-5) == pytest.approx(Cost.linear(0.3).epsilon(left) + 2e-6, rel=1e-9)


def test_rounding_of_sums_of_pure_epsilons_is_upwards():
    from fractions import Fraction

    for epsilon in (0.1, 0.3, 1 / 3, 0.7):
        for times in (3, 7, 10, 1001):
            exact = Fraction(epsilon) * times
            assert Fraction((Cost.pure(epsilon) * times).pure_epsilon()) >= exact
            slackened = Cost.pure(epsilon).with_slack(1e-3 / 3)
            assert Fraction(slackened.pure_epsilon()) >= Fraction(epsilon) + 2 * Fraction(1e-3 / 3)
    assert (Cost.pure(0.25) * 4).pure_epsilon() == 1.0


@pytest.mark.parametrize("bad", [-1e-9, 1.0, math.nan])
def test_refuses_a_mass_that_is_none(bad):
    with refuses("lost mass"):
        CURVE.with_lost(bad)
