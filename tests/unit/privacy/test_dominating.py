"""Curves with dominating pairs: every account against enumeration, both ways round, composed with other kinds."""

import math

import mpmath
import numpy as np
import pytest

from quietbit.errors import InvalidParameter
from quietbit.privacy.curve import (
    DeltaCurve,
    FunctionCurve,
    GaussianCurve,
    LinearCurve,
    PrivacyCurve,
    PureCurve,
    SlackCurve,
    split_delta,
    total,
    with_delta,
    with_slack,
)
from quietbit.privacy.dominating import DominatingCurve
from quietbit.privacy.gaussian import gaussian_epsilon_upper
from quietbit.privacy.loss import LossDistribution

FIRST, SECOND = np.array([0.5, 0.3, 0.2]), np.array([0.45, 0.45, 0.1])
CURVE = DominatingCurve.from_masses(FIRST, SECOND)


def deltas(first, second, times, epsilon):
    """Delta of ``times`` three-valued releases both ways round, over counts of the three outputs, in 40 digits."""
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
    epsilon = CURVE.repeat(times).epsilon_upper(delta)
    assert max(deltas(FIRST, SECOND, times, epsilon)) <= delta
    assert max(deltas(FIRST, SECOND, times, epsilon * (1 - 1e-4))) >= delta * (1 - 1e-3)


def test_each_direction_alone_would_be_too_little():
    """The two directions differ, so the larger is needed: forward alone misses it."""
    one_way = DominatingCurve(LossDistribution.from_atoms(SECOND, FIRST)).repeat(40)
    assert max(deltas(FIRST, SECOND, 40, one_way.epsilon_upper(1e-6))) > 1e-6 * (1 + 1e-6)


def test_it_is_a_curve_with_every_account():
    assert isinstance(CURVE, PrivacyCurve)
    assert CURVE.pure_epsilon_upper() == pytest.approx(math.log(2), rel=1e-14)
    assert CURVE.pure_epsilon_upper() >= math.log(2)
    both = [np.sum(p**3.0 * q**-2.0) for p, q in ((FIRST, SECOND), (SECOND, FIRST))]
    assert CURVE.rdp(3.0) == pytest.approx(math.log(max(both)) / 2, rel=1e-12)
    assert CURVE.answered_by(0.0) == "pure"
    assert CURVE.repeat(60).answered_by(1e-6) == "privacy-loss distribution"
    by_renyi = CURVE.repeat(60).accounts(1e-6)["Rényi"]
    assert CURVE.repeat(60).epsilon_upper(1e-6) < 0.97 * by_renyi


def test_equal_curves_are_merged():
    again = DominatingCurve.from_masses(FIRST, SECOND)
    assert again == CURVE
    assert total([(CURVE, 3), (again, 4)]) == CURVE.repeat(7)
    assert CURVE.compose(CURVE).compose(again) == CURVE.repeat(3)


def test_with_gaussians_and_pure_releases_the_pairs_compose():
    mixed = CURVE.repeat(20).compose(GaussianCurve(0.05)).compose(PureCurve(0.1).repeat(30))
    assert mixed.answered_by(1e-5) == "privacy-loss distribution"
    found = mixed.accounts(1e-5)
    assert found["privacy-loss distribution"] < found["Rényi"] < math.inf
    assert mixed.epsilon_upper(1e-5) > CURVE.repeat(20).epsilon_upper(1e-5)
    # A vanishing partner changes nothing, a large one dominates: both ends of the composition are known.
    assert CURVE.repeat(20).compose(GaussianCurve(1e-14)).epsilon_upper(1e-5) == pytest.approx(
        CURVE.repeat(20).epsilon_upper(1e-5), rel=1e-4
    )
    large = GaussianCurve(50.0).compose(PureCurve(1e-9)).epsilon_upper(1e-5)
    assert large == pytest.approx(gaussian_epsilon_upper(50.0, 1e-5), rel=1e-6)
    assert large >= gaussian_epsilon_upper(50.0, 1e-5) * (1 - 1e-9)


@pytest.mark.parametrize("other", [LinearCurve(0.02), FunctionCurve(lambda alpha: 0.01 * alpha, "made up")])
def test_with_a_curve_that_knows_only_renyi_the_account_is_renyi(other):
    mixed = CURVE.repeat(20).compose(other).compose(GaussianCurve(0.05))
    assert mixed.losses() is None
    assert mixed.answered_by(1e-5) == "Rényi"
    assert mixed.rdp(4.0) == pytest.approx(20 * CURVE.rdp(4.0) + other.rdp(4.0) + 0.2, rel=1e-12)


def test_slack_and_lost_mass_are_paid_once_at_the_end():
    """T releases, each within e^(+-s) of the certified law but for a mass d."""
    slack, lost, times = 1e-4, 1e-8, 25
    curve = with_delta(with_slack(CURVE, slack), lost).repeat(times)
    assert isinstance(curve, DeltaCurve)
    assert isinstance(curve.inner, SlackCurve)
    assert curve.lost == pytest.approx(times * lost, rel=1e-12)
    assert curve.lost >= times * lost
    inner = CURVE.repeat(times).epsilon_upper((1e-5 - times * lost) * math.exp(-times * slack))
    assert curve.epsilon_upper(1e-5) == pytest.approx(inner + 2 * times * slack, rel=1e-8)
    assert curve.epsilon_upper(times * lost / 2) == math.inf
    assert curve.epsilon_upper(0.0) == curve.rdp(2.0) == curve.pure_epsilon_upper() == math.inf
    assert curve.answered_by(1e-5) == "privacy-loss distribution"


def test_slack_around_a_lost_mass_enlarges_it():
    inside = with_slack(with_delta(CURVE, 1e-3), 0.5)
    _, lost = split_delta(inside)
    assert 1e-3 * math.exp(0.5) <= lost <= 1e-3 * math.exp(0.5) * (1 + 1e-12)
    assert split_delta(CURVE)[1] == 0


def test_lost_mass_is_needed():
    """A release that shows its input with probability d: certified but for that, and at d exactly no epsilon is left.

    Its delta is d + (1 - d) delta of the certified one, enumerated; the account is above it and below d + delta.
    """
    lost = 1e-3
    shown = np.append((1 - lost) * FIRST, [lost, 0.0]), np.append((1 - lost) * SECOND, [0.0, lost])
    exact = LossDistribution.from_atoms(*shown)
    curve = with_delta(CURVE, lost)
    for delta in (2e-3, 2e-2):
        assert exact.delta_upper(curve.epsilon_upper(delta)) <= delta
        assert exact.delta_upper(CURVE.epsilon_upper(delta)) > delta  # without the lost mass it would be wrong
    assert curve.epsilon_upper(lost) == math.inf


def test_lost_mass_with_renyi_only_curves():
    curve = with_delta(LinearCurve(0.1), 1e-7).compose(with_slack(LinearCurve(0.2), 1e-6))
    left = (1e-5 - 1e-7) * math.exp(-1e-6)
    assert curve.epsilon_upper(1e-5) == pytest.approx(LinearCurve(0.3).epsilon_upper(left) + 2e-6, rel=1e-9)


def test_rounding_of_sums_of_pure_epsilons_is_upwards():
    from fractions import Fraction

    for epsilon in (0.1, 0.3, 1 / 3, 0.7):
        for times in (3, 7, 10, 1001):
            exact = Fraction(epsilon) * times
            assert Fraction(PureCurve(epsilon).repeat(times).pure_epsilon_upper()) >= exact
            slackened = with_slack(PureCurve(epsilon), 1e-3 / 3)
            assert Fraction(slackened.pure_epsilon_upper()) >= Fraction(epsilon) + 2 * Fraction(1e-3 / 3)
    assert PureCurve(0.25).repeat(4).pure_epsilon_upper() == 1.0


@pytest.mark.parametrize("bad", [-1e-9, 1.0, math.nan])
def test_refuses_a_mass_that_is_none(bad):
    with pytest.raises(InvalidParameter, match="delta"):
        with_delta(CURVE, bad)


def test_refuses_what_is_no_loss():
    with pytest.raises(InvalidParameter, match="forward"):
        DominatingCurve(CURVE)
    with pytest.raises(InvalidParameter, match="backward"):
        DominatingCurve(CURVE.forward, 3)
    with pytest.raises(InvalidParameter, match="alpha"):
        CURVE.rdp(1.0)
