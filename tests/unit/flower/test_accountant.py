"""Flower's protocol, exactly: the account of the closed form, below Flower's own and above the truth."""

import json

import pytest
from mpmath import mp

pytest.importorskip("flwr", reason="needs the flower extra")
pytest.importorskip("dp_accounting", reason="needs the accounting extra")
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from quietbit import InvalidParameter
from quietbit.flower import GaussianAccountant

CONFIG = PrivacyConfig(1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION, 8.0)


def event(sigma=2.0, sample=10, crowd=100):
    return GaussianPrivacyEvent(sigma, sample, crowd)


def exact_delta(epsilon, mu):
    """Theorem 8 of Balle and Wang with 60 digits."""
    with mp.workdps(60):
        e, m = mp.mpf(epsilon), mp.mpf(mu)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("events", [[(2.0, 1)], [(2.0, 20)], [(0.5, 1), (3.0, 7), (50.0, 100)]])
def test_it_is_exact_and_below_flowers_own(events):
    ours, theirs = GaussianAccountant(CONFIG), RdpAccountant(CONFIG)
    for sigma, count in events:
        ours.compose(event(sigma), count)
        theirs.compose(event(sigma), count)
    with mp.workdps(60):
        mu = mp.sqrt(sum(mp.mpf(count) / mp.mpf(sigma) ** 2 for sigma, count in events))
    epsilon = ours.get_epsilon(1e-5)
    assert exact_delta(epsilon, mu) <= 1e-5 < exact_delta(epsilon * (1 - 1e-6), mu)
    assert epsilon < theirs.get_epsilon(1e-5)
    assert exact_delta(1.5, mu) <= ours.get_delta(1.5) <= exact_delta(1.5, mu) * (1 + 1e-6)
    assert ours.num_releases == theirs.num_releases == ours.get_privacy_spent().num_releases
    assert ours.get_privacy_spent().epsilon == epsilon


def test_the_limit_is_asked_before_and_never_passed():
    ours = GaussianAccountant(CONFIG)
    while not ours.would_exceed(event()):
        ours.compose(event())
    assert ours.get_epsilon(1e-5) <= 8.0
    done = ours.num_releases
    ours.compose(event())
    assert ours.get_epsilon(1e-5) > 8.0
    assert done >= 5
    assert not ours.would_exceed(event(), max_epsilon=100.0)


def test_nothing_costs_nothing():
    ours = GaussianAccountant(CONFIG)
    assert (ours.get_epsilon(1e-5), ours.get_delta(0.0), ours.num_releases) == (0.0, 0.0, 0)


def test_a_state_survives_json_and_no_other_is_taken():
    ours = GaussianAccountant(CONFIG)
    ours.compose(event(), 3)
    state = json.loads(json.dumps(ours.state_dict()))
    again = GaussianAccountant(CONFIG)
    again.load_state_dict(state)
    assert again.get_privacy_spent() == ours.get_privacy_spent()
    for change in ({"method": "rdp"}, {"config": {}}, {"events": None}, {"events": [[2.0, 10, 100, 0]]}):
        with pytest.raises(InvalidParameter):
            again.load_state_dict(state | change)
    assert again.num_releases == 3


def test_flowers_wrapper_takes_it():
    wrapper = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 2.0, 1.0, 100, accountant=GaussianAccountant(CONFIG))
    wrapper.summary()


def test_what_it_refuses():
    chance = PrivacyConfig(1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON)
    with pytest.raises(InvalidParameter, match="no-amplification"):
        GaussianAccountant(chance)
    ours = GaussianAccountant(CONFIG)
    with pytest.raises(InvalidParameter, match="population_size"):
        ours.compose(event(crowd=99))
    with pytest.raises(InvalidParameter, match="count must be"):
        ours.compose(event(), 0)
    with pytest.raises(InvalidParameter, match="a GaussianPrivacyEvent"):
        ours.compose(2.0)
    for delta in (1.0, float("nan"), -0.1):
        with pytest.raises(InvalidParameter):
            ours.get_epsilon(delta)
    with pytest.raises(InvalidParameter, match="epsilon must be"):
        ours.get_delta(float("nan"))
    free = GaussianAccountant(
        PrivacyConfig(1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    )
    with pytest.raises(InvalidParameter, match="max_epsilon must be given"):
        free.would_exceed(event())
