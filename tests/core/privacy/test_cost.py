"""Laws of costs, over a table of every kind of release."""

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.exact.privacy_kit import bit, renyi
from quietbit.errors import InvalidParameter
from quietbit.privacy.cost import Cost, sampling_slack_upper
from quietbit.target import Adjacency, Trust, Unit
from refusals import refuses

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
FIRST, SECOND = np.array([0.5, 0.3, 0.2]), np.array([0.45, 0.45, 0.1])
PAIR = Cost.from_masses(FIRST, SECOND)
GAUSSIAN = Cost.gaussian(0.02)
FUNCTION = Cost.renyi(lambda alpha: 0.01 * alpha + 0.002)

RELEASES = {
    "nothing": Cost.pure(0.0),
    "pure": Cost.pure(0.7),
    "a line": Cost.linear(0.02),
    "a Gaussian": GAUSSIAN,
    "a pair above its line": Cost.gaussian(0.32, 0.3),
    "a product of bits": Cost.gaussian(0.011, 0.01, 0.05),
    "a function of the order": FUNCTION,
    "a function and a pure bound": Cost.renyi(lambda alpha: min(0.1, 0.01 * alpha), pure=0.1),
    "finite losses": PAIR,
    "finite losses, with a line": PAIR.tightened(Cost.linear(0.02)),
    "either of two": PAIR.either(Cost.pure(0.1)),
    "two releases": Cost.pure(0.1) + Cost.gaussian(0.05),
    "slack": Cost.linear(0.02).with_slack(1e-6),
    "slack around two": (Cost.pure(0.2) + Cost.linear(0.1)).with_slack(1e-6),
    "lost mass": PAIR.with_lost(1e-9, Cost.pure(0.9)),
}
EVERY = pytest.mark.parametrize("name", RELEASES)


@EVERY
def test_less_delta_costs_more(name):
    epsilons = [RELEASES[name].epsilon(delta) for delta in (1e-3, 1e-5, 1e-7, 0.0)]
    assert epsilons == sorted(epsilons)


@EVERY
def test_repeating_is_adding_and_never_costs_less(name):
    once = RELEASES[name]
    by_hand = Cost()
    for _ in range(7):
        by_hand += once
    repeated = once * 7
    assert repeated == by_hand
    assert (once * 0).epsilon(0.0) == 0
    for alpha in (1.01, 2.0, 77.5):
        assert repeated.rdp(alpha) == pytest.approx(7 * once.rdp(alpha), rel=1e-12)
        assert repeated.rdp(alpha) >= 7 * once.rdp(alpha) * (1 - 1e-15)
    for delta in (0.0, 1e-5):
        epsilons = [(once * times).epsilon(delta) for times in (1, 2, 7)]
        assert epsilons == sorted(epsilons)


@EVERY
def test_composition_adds_and_commutes(name):
    left = RELEASES[name]
    for right in RELEASES.values():
        one, two = left + right, right + left
        for alpha in (1.5, 12.0):
            assert one.rdp(alpha) == pytest.approx(left.rdp(alpha) + right.rdp(alpha), rel=1e-12)
            assert one.rdp(alpha) == pytest.approx(two.rdp(alpha), rel=1e-12)
        assert one.pure_epsilon() == pytest.approx(left.pure_epsilon() + right.pure_epsilon())


@EVERY
def test_a_composition_costs_no_less_than_its_parts(name):
    left = RELEASES[name] * 2
    for other in ("pure", "a Gaussian", "finite losses", "slack around two"):
        right = RELEASES[other]
        one, two = left + right, right + left
        assert one.epsilon(1e-6) == pytest.approx(two.epsilon(1e-6), rel=1e-9)
        assert one.epsilon(1e-6) >= max(left.epsilon(1e-6), right.epsilon(1e-6)) * (1 - 1e-9)


@EVERY
@pytest.mark.parametrize(("releases", "delta"), [(1, 0.999), (100_000, 1e-15)])
def test_stays_finite(name, releases, delta):
    assert 0 <= (RELEASES[name] * releases).epsilon(delta) < math.inf


@EVERY
def test_slack_is_added_on_both_accounts(name):
    inner, slack = RELEASES[name] + GAUSSIAN, 1e-4
    if inner.lost:
        with refuses("lost mass"):
            inner.with_slack(slack)
        return
    around = inner.with_slack(slack)
    assert around.slack == pytest.approx(inner.slack + slack)
    for alpha in (1.2, 3.0, 40.0):
        moment = (2 * alpha - 1) / (alpha - 1) * slack
        assert around.rdp(alpha) == pytest.approx(inner.rdp(alpha) + moment)
    assert around.pure_epsilon() == pytest.approx(inner.pure_epsilon() + 2 * slack)
    assert around.epsilon(1e-5) >= inner.epsilon(1e-5) + 2 * slack


def test_proofs_about_one_release_are_joined_and_none_is_forgotten():
    proofs = Cost.linear(0.2), Cost.pure(0.5), Cost.gaussian(0.25), PAIR
    for order in itertools.permutations(proofs, 3):
        whole = order[0].tightened(order[1]).tightened(order[2])
        assert whole.pure_epsilon() == min(proof.pure_epsilon() for proof in order)
        assert whole.slope == min(proof.slope for proof in order)
        assert whole.pair_slope == min(proof.pair_slope for proof in order)
        for times, delta in itertools.product((1, 300), (0.0, 1e-9, 1e-3)):
            least = min((proof * times).epsilon(delta) for proof in order)
            assert (whole * times).epsilon(delta) <= least
    assert PAIR.tightened(PAIR) == PAIR
    assert PAIR.tightened(Cost()) == Cost.pure(0.0).tightened(PAIR) == Cost()


LOSSES, RENYI, MATCHED = "privacy-loss distribution", "Rényi", "exact Gaussian"
SMALL_PAIR = Cost.gaussian(0.011, 0.01)


@pytest.mark.parametrize(
    ("account", "cost", "alone"),
    [
        (LOSSES, PAIR * 60, None),
        (LOSSES, Cost.pure(0.05) * 1000, None),
        (LOSSES, PAIR * 20 + Cost.gaussian(0.05) + Cost.pure(0.1) * 30, None),
        (MATCHED, (Cost.gaussian(0.1) + Cost.gaussian(0.2)) * 5, Cost.gaussian(1.5)),
        (MATCHED, SMALL_PAIR * 40 + Cost.gaussian(0.1) * 2, Cost.gaussian(0.64)),
        (RENYI, Cost.gaussian(math.inf, 0.1) + Cost.linear(0.2), Cost.linear(0.3)),
        (RENYI, SMALL_PAIR * 3 + Cost.linear(0.02), Cost.linear(0.05)),
        (RENYI, PAIR * 20 + Cost.linear(0.02), None),
        (RENYI, PAIR * 20 + FUNCTION + GAUSSIAN, None),
    ],
)
def test_the_smallest_account_that_holds_for_all_parts_answers(account, cost, alone):
    assert cost.answered_by(0.0) == "pure"
    assert cost.answered_by(1e-5) == account
    assert cost.epsilon(1e-5) == min(cost.accounts(1e-5).values())
    assert (cost.losses() is None) == (account == RENYI)
    if alone is not None:
        assert cost.epsilon(1e-5) == pytest.approx(alone.epsilon(1e-5), rel=1e-9)


def test_pairs_of_laws_gain_much_over_divergences():
    found = (PAIR * 60).accounts(1e-6)
    assert found[LOSSES] < 0.97 * found[RENYI]
    assert (Cost.pure(0.05) * 1000).epsilon(1e-5) < 8


def test_equal_releases_are_counted_together():
    again = Cost.from_masses(FIRST, SECOND)
    assert again == PAIR
    assert PAIR * 3 + again * 4 == PAIR * 7
    assert (PAIR + PAIR) + again == PAIR * 3


@given(st.floats(1e-9, 60), st.floats(1.001, 5000))
def test_pure_divergence_is_that_of_randomised_response(epsilon, alpha):
    exact = renyi(bit(epsilon), bit(-epsilon), alpha)
    bound = Cost.pure(epsilon).rdp(alpha)
    assert exact <= bound
    assert bound <= min(epsilon, alpha * epsilon**2 / 2) * (1 + 1e-11)
    assert bound <= exact * (1 + mp.mpf("1e-9")) + 4e-15 / (alpha - 1)


def test_divergences_of_finite_laws_are_their_sums():
    both = [np.sum(p**3.0 * q**-2.0) for p, q in ((FIRST, SECOND), (SECOND, FIRST))]
    assert PAIR.rdp(3.0) == pytest.approx(math.log(max(both)) / 2, rel=1e-12)
    assert math.log(2) <= PAIR.pure_epsilon() <= math.log(2) * (1 + 1e-14)


def test_doubt_about_masses_costs_more():
    doubted = Cost.from_masses(FIRST, SECOND, relative_error=5e-7)
    exact = math.log(2) + math.log1p(5e-7) - math.log1p(-5e-7)
    assert exact <= doubted.pure_epsilon() <= exact * (1 + 1e-12)
    assert doubted.epsilon(1e-3) > PAIR.epsilon(1e-3)


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1 / 3, 0.7])
def test_sums_of_pure_epsilons_are_rounded_up(epsilon):
    for times in (3, 7, 10, 1001):
        total = Fraction((Cost.pure(epsilon) * times).pure_epsilon())
        assert (
            Fraction(epsilon) * times
            <= total
            <= Fraction(epsilon) * times * (1 + Fraction(1, 2**52))
        )
    slackened = Cost.pure(epsilon).with_slack(1e-3 / 3)
    assert Fraction(slackened.pure_epsilon()) >= Fraction(epsilon) + 2 * Fraction(1e-3 / 3)
    assert (Cost.pure(0.25) * 4).pure_epsilon() == 1.0


# What a sampler's error adds.


def test_sampling_slack_covers_both_directions():
    least, error = 1e-6, 2.0**-48
    slack = sampling_slack_upper(1000, least, error)
    assert slack >= 1000 * math.log(least / (least - error))
    assert slack >= 1000 * math.log((least + error) / least)
    assert slack == pytest.approx(1000 * error / least, rel=1e-6)


def test_slack_and_lost_mass_are_paid_once_at_the_end():
    """T releases, each within e^(+-s) of the certified law but for a mass d."""
    slack, lost, times = 1e-4, 1e-8, 25
    cost = PAIR.with_slack(slack).with_lost(lost) * times
    assert times * lost <= cost.lost <= times * lost * (1 + 1e-12)
    inner = (PAIR * times).epsilon((1e-5 - times * lost) * math.exp(-times * slack))
    assert cost.epsilon(1e-5) == pytest.approx(inner + 2 * times * slack, rel=1e-8)
    assert cost.epsilon(times * lost / 2) == math.inf
    assert cost.epsilon(0.0) == cost.rdp(2.0) == cost.pure_epsilon() == math.inf
    by_renyi = Cost.linear(0.1).with_lost(1e-7) + Cost.linear(0.2).with_slack(1e-6)
    left = (1e-5 - 1e-7) * math.exp(-1e-6)
    assert by_renyi.epsilon(1e-5) == pytest.approx(Cost.linear(0.3).epsilon(left) + 2e-6, rel=1e-9)


def test_slack_around_a_lost_mass_enlarges_it():
    lost = PAIR.with_lost(1e-3).with_slack(0.5).lost
    assert 1e-3 * math.exp(0.5) <= lost <= 1e-3 * math.exp(0.5) * (1 + 1e-12)
    assert PAIR.lost == 0
    assert GAUSSIAN.with_slack(0.0) is GAUSSIAN


def test_what_holds_for_all_outputs_is_kept_beside_a_lost_mass():
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
    assert nothing.pure_epsilon() == nothing.rdp(2.0) == math.inf
    assert nothing.epsilon(1e-5) < math.inf


# The terms that a cost is of.
TERMS = (REPLACE, Unit.CLIENT, Trust.LOCAL)
ONCE = GAUSSIAN.of(*TERMS)


def test_terms_change_no_number():
    other = PAIR.of(*TERMS) * 3
    assert (ONCE + other).bare() == GAUSSIAN + PAIR * 3
    guarantee = (ONCE + other).guarantee(1e-5)
    assert guarantee.epsilon_upper == (GAUSSIAN + PAIR * 3).epsilon(1e-5)
    assert (guarantee.adjacency, guarantee.unit, guarantee.trust) == TERMS
    assert Cost() + ONCE == ONCE + Cost() == ONCE  # nothing has no terms
    assert ONCE.under() == ONCE


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("adjacency", GAUSSIAN.of(ZERO, Unit.CLIENT, Trust.LOCAL)),
        ("unit", GAUSSIAN.of(REPLACE, Unit.SAMPLE, Trust.LOCAL, samples=4)),
        ("trust", GAUSSIAN.of(REPLACE, Unit.CLIENT, Trust.SECURE_AGGREGATION)),
        ("unit", GAUSSIAN),
    ],
)
def test_mixtures_are_refused_both_ways(name, other):
    for left, right in ((ONCE, other), (other, ONCE)):
        value = getattr(right, name)
        with refuses(name, value and value.value):
            left + right


IMPLIED = {
    Trust.LOCAL: set(Trust),
    Trust.SECURE_AGGREGATION: {Trust.SECURE_AGGREGATION, Trust.CENTRAL},
    Trust.CENTRAL: {Trust.CENTRAL},
    Trust.SHUFFLED: {Trust.SHUFFLED},
}


@pytest.mark.parametrize("near", Adjacency)
@pytest.mark.parametrize("far", Adjacency)
@pytest.mark.parametrize("held", Trust)
@pytest.mark.parametrize("asked", Trust)
def test_what_follows_from_what(near, far, held, asked):
    release = PAIR.of(near, Unit.CLIENT, held)
    if near in (far, REPLACE) and asked in IMPLIED[held]:
        assert release.under(adjacency=far, trust=asked) == PAIR.of(far, Unit.CLIENT, asked)
    else:
        with pytest.raises(InvalidParameter):
            release.under(adjacency=far, trust=asked)
