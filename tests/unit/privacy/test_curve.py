import math

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quietbit.errors import InvalidParameter
from quietbit.privacy.curve import (
    ComposedCurve,
    FunctionCurve,
    GaussianCurve,
    GaussianPairCurve,
    LinearCurve,
    PrivacyCurve,
    PureCurve,
    SlackCurve,
    sampling_slack_upper,
    total,
    with_delta,
    with_slack,
)

CURVES = [
    PureCurve(0.0),
    PureCurve(0.7),
    LinearCurve(0.02),
    GaussianCurve(0.3),
    GaussianPairCurve(0.3, 0.32),
    FunctionCurve(lambda alpha: 0.01 * alpha + 0.002, "made up"),
    FunctionCurve(lambda alpha: min(0.1, 0.01 * alpha), "bounded", pure=0.1),
    PureCurve(0.1).compose(GaussianCurve(0.05)),
    with_slack(LinearCurve(0.02), 1e-6),
    with_slack(PureCurve(0.2).compose(LinearCurve(0.1)), 1e-6),
]


@pytest.mark.parametrize("curve", CURVES, ids=range(len(CURVES)))
def test_every_curve_is_a_privacy_curve(curve):
    assert isinstance(curve, PrivacyCurve)
    assert curve.epsilon_upper(1e-5) <= curve.epsilon_upper(1e-9) <= curve.epsilon_upper(0.0)


@pytest.mark.parametrize("curve", CURVES, ids=range(len(CURVES)))
@pytest.mark.parametrize("alpha", [1.01, 2.0, 77.5])
def test_repeat_equals_composing(curve, alpha):
    by_hand = curve
    for _ in range(6):
        by_hand = by_hand.compose(curve)
    repeated = curve.repeat(7)
    assert repeated.rdp(alpha) == pytest.approx(by_hand.rdp(alpha), rel=1e-12)
    assert repeated.rdp(alpha) == pytest.approx(7 * curve.rdp(alpha), rel=1e-12)
    assert repeated.rdp(alpha) >= 7 * curve.rdp(alpha) * (1 - 1e-15)
    for delta in (0.0, 1e-5):
        assert repeated.epsilon_upper(delta) == pytest.approx(by_hand.epsilon_upper(delta), rel=1e-9)
    assert curve.repeat(0).epsilon_upper(0.0) == 0


@pytest.mark.parametrize("left", CURVES, ids=range(len(CURVES)))
@pytest.mark.parametrize("right", CURVES, ids=range(len(CURVES)))
def test_composition_adds_and_commutes(left, right):
    one, two = left.compose(right), right.compose(left)
    for alpha in (1.5, 12.0):
        assert one.rdp(alpha) == pytest.approx(left.rdp(alpha) + right.rdp(alpha), rel=1e-12)
        assert one.rdp(alpha) == pytest.approx(two.rdp(alpha), rel=1e-12)
    assert one.pure_epsilon_upper() == pytest.approx(left.pure_epsilon_upper() + right.pure_epsilon_upper())
    assert one.epsilon_upper(1e-6) == pytest.approx(two.epsilon_upper(1e-6), rel=1e-9)


def test_kinds_survive_where_they_can():
    assert isinstance(GaussianCurve(0.1).compose(GaussianCurve(0.2)).repeat(5), GaussianCurve)
    assert isinstance(GaussianCurve(0.1).compose(LinearCurve(0.2)), LinearCurve)
    assert isinstance(LinearCurve(0.1).repeat(9), LinearCurve)
    assert isinstance(PureCurve(0.1).repeat(9), ComposedCurve)
    assert isinstance(with_slack(with_slack(GaussianCurve(0.1), 1e-9), 1e-9).repeat(3), SlackCurve)
    assert with_slack(GaussianCurve(0.1), 0.0) == GaussianCurve(0.1)
    assert GaussianCurve(0.1).repeat(4).epsilon_upper(1e-5) < LinearCurve(0.4).epsilon_upper(1e-5)


@given(st.floats(1e-9, 60), st.floats(1.001, 5000))
def test_pure_divergence_is_that_of_randomised_response(epsilon, alpha):
    with mp.workdps(60):
        a, e = mp.mpf(alpha), mp.mpf(epsilon)
        truth = 1 / (1 + mp.exp(-e))
        lie = 1 - truth
        exact = mp.log(truth**a * lie ** (1 - a) + lie**a * truth ** (1 - a)) / (a - 1)
        bound = PureCurve(epsilon).rdp(alpha)
        assert exact <= bound
        assert bound <= min(epsilon, alpha * epsilon**2 / 2) * (1 + 1e-11)
        assert bound <= exact * (1 + mp.mpf("1e-9")) + 4e-15 / (alpha - 1)


def test_pure_releases_take_the_smaller_account():
    once, many = PureCurve(0.05), PureCurve(0.05).repeat(1000)
    assert 0.049 < once.epsilon_upper(1e-5) <= 0.05
    assert many.epsilon_upper(0.0) == pytest.approx(50.0)
    assert many.epsilon_upper(1e-5) < 8
    assert many.answered_by(0.0) == "pure"
    assert many.answered_by(1e-5) == "privacy-loss distribution"


def test_slack_is_added_on_both_accounts():
    inner, slack = PureCurve(0.3).compose(LinearCurve(0.05)), 1e-4
    curve = with_slack(inner, slack)
    for alpha in (1.2, 3.0, 40.0):
        assert curve.rdp(alpha) == pytest.approx(inner.rdp(alpha) + (2 * alpha - 1) / (alpha - 1) * slack)
    assert with_slack(PureCurve(0.3), slack).epsilon_upper(0.0) == pytest.approx(0.3 + 2 * slack)
    by_rdp = FunctionCurve(curve.rdp, "the same, by its divergences").epsilon_upper(1e-5)
    assert curve.epsilon_upper(1e-5) == pytest.approx(by_rdp, rel=1e-6)
    assert curve.epsilon_upper(1e-5) > inner.epsilon_upper(1e-5)


def test_sampling_slack_covers_both_directions():
    least, error = 1e-6, 2.0**-48
    slack = sampling_slack_upper(1000, least, error)
    assert slack >= 1000 * math.log(least / (least - error))
    assert slack >= 1000 * math.log((least + error) / least)
    assert slack == pytest.approx(1000 * error / least, rel=1e-6)
    with pytest.raises(InvalidParameter, match="smallest probability of a symbol must be above"):
        sampling_slack_upper(10, 2.0**-48, 2.0**-48)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "1", None, True])
def test_refuses_numbers_that_are_no_cost(bad):
    for kind in (PureCurve, LinearCurve, GaussianCurve):
        with pytest.raises(InvalidParameter):
            kind(bad)


@pytest.mark.parametrize("bad", [1.0, 0.5, math.nan])
def test_refuses_orders_up_to_one(bad):
    for curve in CURVES[1:6]:
        with pytest.raises(InvalidParameter, match="alpha must be"):
            curve.rdp(bad)


@pytest.mark.parametrize("bad", [-1, 1.5, "3", True, math.nan])
def test_refuses_times_that_are_no_count(bad):
    with pytest.raises(InvalidParameter, match="times must be"):
        PureCurve(1.0).repeat(bad)


def test_refuses_to_add_what_is_no_curve():
    with pytest.raises(InvalidParameter, match="curve must be"):
        total([(3.0, 1)])


@pytest.mark.parametrize("releases", [1, 10, 1000, 100_000])
@pytest.mark.parametrize("curve", CURVES[1:], ids=range(1, len(CURVES)))
def test_stays_finite_over_many_releases(curve, releases):
    for delta in (0.999, 1e-3, 1e-15):
        epsilon = curve.repeat(releases).epsilon_upper(delta)
        assert math.isfinite(epsilon)
        assert epsilon >= 0


def test_what_holds_for_all_outputs_is_kept_beside_a_lost_mass() -> None:
    """Divergences of the lost outputs add over releases; slack around them counts, and one without a bound has none."""
    one = with_delta(GaussianCurve(0.5), 1e-9, 0.7)
    assert one.repeat(5).rdp(3.0) == pytest.approx(5 * PureCurve(0.7).rdp(3.0))
    assert one.compose(PureCurve(0.2)).pure_epsilon_upper() == pytest.approx(0.9)
    around = with_slack(one, 0.01)
    assert around.pure_epsilon_upper() == pytest.approx(0.72)
    assert around.compose(one).epsilon_upper(0.0) == pytest.approx(1.42)
    nothing = one.compose(with_delta(GaussianCurve(0.5), 1e-9))
    assert nothing.pure_epsilon_upper() == math.inf
    assert nothing.rdp(2.0) == math.inf
    assert nothing.epsilon_upper(1e-5) < math.inf
