"""Mechanisms in a crowd: the vector mechanism's own blanket, everybody else's clones, and who
has none.
"""

import math

import pytest

import quietbit
from quietbit import Adjacency, Ball, Norm, Trust, calibrate
from quietbit.mechanism.base import shuffled_privacy
from quietbit.privacy.profile import profile_blanket
from quietbit.privacy.shuffle import Shuffle, clones

REPLACE, ZERO = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
BALL = Ball(Norm.L2, 1.0, 1000)


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
    real, ideal = mechanism.blanket(REPLACE), profile_blanket(mechanism.profile, REPLACE, 0.0)
    assert real is not None
    assert ideal is not None
    assert real.forward.slack > 0 < real.forward.error
    assert real.delta_upper(1000, 1.0) > ideal.delta_upper(1000, 1.0)
    assert real.forward.share < ideal.forward.share < mechanism.profile.levels[0] * (1 + 1e-9)
    assert real.delta_upper(10**6, 3.9) >= real.forward.error


def test_pure_mechanisms_of_an_l1_ball_have_clones():
    ball = Ball(Norm.L1, 1.0, 50)
    mechanism = calibrate("imvu", ball=ball, epsilon=1.0, delta=0.0, adjacency=REPLACE).mechanism
    local = mechanism.privacy(REPLACE).pure_epsilon()
    assert shuffled_privacy(mechanism, REPLACE, 10_000).epsilon(1e-6) < 0.1 * local


@pytest.mark.parametrize("name", ["gaussian", "imvu", "skellam"])
def test_others_are_refused(name):
    mechanism = calibrate(name, ball=BALL, epsilon=2.0, delta=1e-5, adjacency=REPLACE).mechanism
    if math.isfinite(mechanism.privacy(REPLACE).pure_epsilon()):
        pytest.skip("this one is private at delta = 0 as well")
    with pytest.raises(quietbit.InvalidParameter, match="delta = 0"):
        shuffled_privacy(mechanism, REPLACE, 1000)
