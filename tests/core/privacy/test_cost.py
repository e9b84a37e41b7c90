import math

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quietbit.errors import InvalidParameter
from quietbit.privacy.cost import Cost, sampling_slack_upper
from refusals import refuses

CURVES = [
    Cost.pure(0.0),
    Cost.pure(0.7),
    Cost.linear(0.02),
    Cost.gaussian(0.3),
    Cost.gaussian(0.32, 0.3),
    Cost.renyi(lambda alpha: 0.01 * alpha + 0.002),
    Cost.renyi(lambda alpha: min(0.1, 0.01 * alpha), pure=0.1),
    (Cost.pure(0.1) + Cost.gaussian(0.05)),
    Cost.linear(0.02).with_slack(1e-6),
    (Cost.pure(0.2) + Cost.linear(0.1)).with_slack(1e-6),
]


@pytest.mark.parametrize("curve", CURVES, ids=range(len(CURVES)))
def test_less_delta_costs_more_epsilon(curve):
    assert curve.epsilon(1e-5) <= curve.epsilon(1e-9) <= curve.epsilon(0.0)


@pytest.mark.parametrize("curve", CURVES, ids=range(len(CURVES)))
@pytest.mark.parametrize("alpha", [1.01, 2.0, 77.5])
def test_repeat_equals_composing(curve, alpha):
    by_hand = curve
    for _ in range(6):
        by_hand = by_hand + curve
    repeated = curve * 7
    assert repeated.rdp(alpha) == pytest.approx(by_hand.rdp(alpha), rel=1e-12)
    assert repeated.rdp(alpha) == pytest.approx(7 * curve.rdp(alpha), rel=1e-12)
    assert repeated.rdp(alpha) >= 7 * curve.rdp(alpha) * (1 - 1e-15)
    for delta in (0.0, 1e-5):
        assert repeated.epsilon(delta) == pytest.approx(by_hand.epsilon(delta), rel=1e-9)
    assert (curve * 0).epsilon(0.0) == 0


@pytest.mark.parametrize("left", CURVES, ids=range(len(CURVES)))
def test_composition_adds_and_commutes(left):
    for right in CURVES:
        one, two = (left + right), (right + left)
        for alpha in (1.5, 12.0):
            assert one.rdp(alpha) == pytest.approx(left.rdp(alpha) + right.rdp(alpha), rel=1e-12)
            assert one.rdp(alpha) == pytest.approx(two.rdp(alpha), rel=1e-12)
        assert one.pure_epsilon() == pytest.approx(left.pure_epsilon() + right.pure_epsilon())
        assert one.epsilon(1e-6) == pytest.approx(two.epsilon(1e-6), rel=1e-9)


def test_kinds_survive_where_they_can():
    both = (Cost.gaussian(0.1) + Cost.gaussian(0.2)) * 5
    assert both.pair_slope == pytest.approx(1.5)
    assert both.answered_by(1e-5) == "exact Gaussian"
    mixed = Cost.gaussian(0.1) + Cost.linear(0.2)
    assert mixed.slope == pytest.approx(0.3)
    assert mixed.pair_slope == math.inf
    assert mixed.answered_by(1e-5) == "Rényi"
    assert (Cost.gaussian(0.1).with_slack(1e-9).with_slack(1e-9) * 3).slack == pytest.approx(6e-9)
    assert Cost.gaussian(0.1).with_slack(0.0) == Cost.gaussian(0.1)
    assert (Cost.gaussian(0.1) * 4).epsilon(1e-5) < Cost.linear(0.4).epsilon(1e-5)


@given(st.floats(1e-9, 60), st.floats(1.001, 5000))
def test_pure_divergence_is_that_of_randomised_response(epsilon, alpha):
    with mp.workdps(60):
        a, e = mp.mpf(alpha), mp.mpf(epsilon)
        truth = 1 / (1 + mp.exp(-e))
        lie = 1 - truth
        exact = mp.log(truth**a * lie ** (1 - a) + lie**a * truth ** (1 - a)) / (a - 1)
        bound = Cost.pure(epsilon).rdp(alpha)
        assert exact <= bound
        assert bound <= min(epsilon, alpha * epsilon**2 / 2) * (1 + 1e-11)
        assert bound <= exact * (1 + mp.mpf("1e-9")) + 4e-15 / (alpha - 1)


def test_pure_releases_take_the_smaller_account():
    once, many = Cost.pure(0.05), (Cost.pure(0.05) * 1000)
    assert 0.049 < once.epsilon(1e-5) <= 0.05
    assert many.epsilon(0.0) == pytest.approx(50.0)
    assert many.epsilon(1e-5) < 8
    assert many.answered_by(0.0) == "pure"
    assert many.answered_by(1e-5) == "privacy-loss distribution"


def test_slack_is_added_on_both_accounts():
    inner, slack = (Cost.pure(0.3) + Cost.linear(0.05)), 1e-4
    curve = inner.with_slack(slack)
    for alpha in (1.2, 3.0, 40.0):
        assert curve.rdp(alpha) == pytest.approx(
            inner.rdp(alpha) + (2 * alpha - 1) / (alpha - 1) * slack
        )
    assert Cost.pure(0.3).with_slack(slack).epsilon(0.0) == pytest.approx(0.3 + 2 * slack)
    by_rdp = Cost.renyi(curve.rdp).epsilon(1e-5)
    assert curve.epsilon(1e-5) == pytest.approx(by_rdp, rel=1e-6)
    assert curve.epsilon(1e-5) > inner.epsilon(1e-5)


def test_sampling_slack_covers_both_directions():
    least, error = 1e-6, 2.0**-48
    slack = sampling_slack_upper(1000, least, error)
    assert slack >= 1000 * math.log(least / (least - error))
    assert slack >= 1000 * math.log((least + error) / least)
    assert slack == pytest.approx(1000 * error / least, rel=1e-6)
    with refuses("smallest probability of a symbol", 2.0**-48):
        sampling_slack_upper(10, 2.0**-48, 2.0**-48)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "1", None, True])
def test_refuses_numbers_that_are_no_cost(bad):
    for kind in (Cost.pure, Cost.linear, Cost.gaussian):
        with pytest.raises(InvalidParameter):
            kind(bad)


@pytest.mark.parametrize("bad", [1.0, 0.5, math.nan])
def test_refuses_orders_up_to_one(bad):
    for curve in CURVES[1:6]:
        with refuses("alpha"):
            curve.rdp(bad)


@pytest.mark.parametrize("bad", [-1, 1.5, "3", True, math.nan])
def test_refuses_times_that_are_no_count(bad):
    with refuses("times"):
        (Cost.pure(1.0) * bad)


def test_refuses_to_add_what_is_not_a_cost():
    with pytest.raises(TypeError, match="unsupported operand"):
        Cost.pure(0.1) + 3.0


@pytest.mark.parametrize("releases", [1, 1000, 100_000])
@pytest.mark.parametrize("curve", CURVES[1:], ids=range(1, len(CURVES)))
def test_stays_finite_over_many_releases(curve, releases):
    for delta in (1e-9,) if releases > 1000 else (0.999, 1e-3, 1e-15):
        epsilon = (curve * releases).epsilon(delta)
        assert math.isfinite(epsilon)
        assert epsilon >= 0


def test_what_holds_for_all_outputs_is_kept_beside_a_lost_mass() -> None:
    """Divergences of the lost outputs add over releases.

    Slack around them counts, and one without a bound has none.
    """
    one = Cost.gaussian(0.5).with_lost(1e-9, Cost.pure(0.7))
    assert (one * 5).rdp(3.0) == pytest.approx(5 * Cost.pure(0.7).rdp(3.0))
    assert (one + Cost.pure(0.2)).pure_epsilon() == pytest.approx(0.9)
    around = one.with_slack(0.01)
    assert around.pure_epsilon() == pytest.approx(0.72)
    assert (around + one).epsilon(0.0) == pytest.approx(1.42)
    nothing = one + Cost.gaussian(0.5).with_lost(1e-9)
    assert nothing.pure_epsilon() == math.inf
    assert nothing.rdp(2.0) == math.inf
    assert nothing.epsilon(1e-5) < math.inf


def test_proofs_about_one_release_are_joined_and_none_is_forgotten():
    line, pure, pair = Cost.linear(0.2), Cost.pure(0.5), Cost.gaussian(0.25)
    for first, second, third in ((line, pure, pair), (pair, line, pure), (pure, pair, line)):
        whole = first.tightened(second).tightened(third)
        assert whole.pure_epsilon() == 0.5
        assert (whole.slope, whole.pair_slope) == (0.2, 0.25)
        for times in (1, 7, 300):
            for delta in (0.0, 1e-9, 1e-3):
                least = min((part * times).epsilon(delta) for part in (line, pure, pair))
                assert (whole * times).epsilon(delta) <= least
    assert line.tightened(line) == line
    assert line.tightened(Cost()) == Cost.pure(0.0).tightened(pair) == Cost()


def test_proofs_about_releases_of_different_samplers_are_not_joined():
    with refuses("error of the sampler"):
        Cost.linear(0.2).with_slack(1e-9).tightened(Cost.pure(0.5))
    with refuses("releases of the cost", 2):
        Cost.linear(0.2).tightened(Cost.pure(0.5) * 2)
