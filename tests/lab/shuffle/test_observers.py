"""Mechanisms in a crowd: the vector mechanism's own blanket, everybody else's clones, and who
has none.
"""

import pytest

import quietbit
from quietbit import Adjacency, Ball, Guarantee, Norm, Trust, Unit, calibrate
from quietbit.privacy.account import Account
from quietbit.target import Target
from quietbit_lab.shuffle.amplification import Shuffle, clones
from quietbit_lab.shuffle.observers import against_observers, level, shuffled_privacy
from quietbit_lab.shuffle.profile import profile_blanket, vector_blanket
from refusals import refuses

REPLACE, ZERO = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
BALL = Ball(Norm.L2, 1000)


def vector(epsilon, adjacency=REPLACE):
    return calibrate("vmvu", ball=BALL, epsilon=epsilon, delta=0.0, adjacency=adjacency).mechanism


def test_the_vector_mechanism_is_a_third_below_the_generic_bound():
    found = shuffled_privacy(vector(4.0), REPLACE, 60_000).epsilon(1e-6)
    generic = Shuffle(60_000, 4.0, (clones(4.0),)).cost().epsilon(1e-6)
    assert found < 0.65 * generic
    assert 0.13 < found < 0.14


def test_words_and_both_adjacencies():
    mechanism = vector(2.0)
    release = shuffled_privacy(mechanism, REPLACE, 5000)
    assert (release.trust, release.adjacency) == (Trust.SHUFFLED, REPLACE)
    assert shuffled_privacy(mechanism, ZERO, 5000).epsilon(1e-6) < release.epsilon(1e-6)
    assert release.pure_epsilon() == pytest.approx(2.0, rel=1e-6)


def test_the_sampler_is_paid_for():
    """Slack, blur and the error of a sampler's means raise delta; a blanket without them would
    be below.
    """
    mechanism = vector(4.0)
    real, ideal = (
        vector_blanket(mechanism, REPLACE),
        profile_blanket(mechanism.profile, REPLACE, 0.0),
    )
    assert real is not None
    assert ideal is not None
    assert real.forward.slack > 0 < real.forward.error
    assert real.delta_upper(1000, 1.0) > ideal.delta_upper(1000, 1.0)
    assert real.forward.share < ideal.forward.share < mechanism.profile.levels[0] * (1 + 1e-9)
    assert real.delta_upper(10**6, 3.9) >= real.forward.error


def test_pure_mechanisms_of_an_l1_ball_have_clones():
    ball = Ball(Norm.L1, 50)
    mechanism = calibrate("imvu", ball=ball, epsilon=1.0, delta=0.0, adjacency=REPLACE).mechanism
    local = mechanism.privacy(REPLACE).pure_epsilon()
    assert shuffled_privacy(mechanism, REPLACE, 10_000).epsilon(1e-6) < 0.1 * local


def test_others_are_refused():
    gaussian = calibrate("gaussian", ball=BALL, epsilon=2.0, delta=1e-5, adjacency=REPLACE)
    with pytest.raises(quietbit.InvalidParameter, match="delta = 0"):
        shuffled_privacy(gaussian.mechanism, REPLACE, 1000)


SERVER = Guarantee(2.0, 1e-5, Unit.CLIENT, REPLACE, Trust.LOCAL)


def expected(parts, count, levels):
    """The account of so many rounds that was fixed before the first, at its share of delta."""
    share = 1e-5 / (count * (count + 1))
    for place in levels:
        share /= (place + 1) * (place + 2)
    first, *others = [
        shuffled_privacy(vector(2.0), REPLACE, crowd) * times for crowd, times in parts
    ]
    for other in others:
        first = first + other
    return first.epsilon(share)


def test_the_smallest_rounds_count_at_levels_that_were_fixed_before_the_first():
    crowds = (64, 32, 0, 128, 32)
    found = against_observers(SERVER, vector(2.0), 128, crowds, 3)
    exact = expected([(32, 2), (64, 1)], 3, (8, 4))
    assert found.epsilon_upper == pytest.approx(exact, rel=1e-9)
    assert (found.trust, found.delta) == (Trust.SHUFFLED, 1e-5)
    fewer = against_observers(SERVER, vector(2.0), 128, crowds, 1)
    assert fewer.epsilon_upper < found.epsilon_upper < 3 * SERVER.epsilon_upper


def test_levels_are_fixed_by_the_first_crowd_and_shares_add_up_to_one():
    for crowd in (1, 7, 16, 17, 599, 600, 60_000):
        place, size = level(600, crowd)
        assert size <= crowd
        assert place == 0 or level(600, crowd)[1] * 2**0.25 + 1 > min(crowd, 600)
    assert sum(1 / ((place + 1) * (place + 2)) for place in range(10**6)) < 1


def test_a_crowd_is_claimed_for_clients_under_local_trust_alone():
    mechanism = vector(2.0)
    summed = Guarantee(2.0, 1e-5, Unit.CLIENT, REPLACE, Trust.SECURE_AGGREGATION)
    with refuses("trust"):
        against_observers(summed, mechanism, 10, [10], 1)
    samples = Guarantee(2.0, 1e-5, Unit.SAMPLE, REPLACE, Trust.LOCAL)
    with refuses("unit"):
        against_observers(samples, mechanism, 10, [10], 1)
    with refuses("crowds"):
        against_observers(SERVER, mechanism, 10, [0, 0], 1)


def test_a_shuffle_is_never_counted_under_another_trust():
    shuffled = shuffled_privacy(vector(2.0), REPLACE, 5000)
    account = Account(Target(8.0, 1e-5, REPLACE))
    with refuses("trust"):
        account.spend(shuffled)
    among = Account(Target(8.0, 1e-5, REPLACE, trust=Trust.SHUFFLED))
    both = among.spend(shuffled).spend(vector(2.0).privacy(REPLACE))
    assert both.epsilon() > among.spend(shuffled).epsilon()
