import numpy as np
import pytest

import quietbit
from quietbit import Plan
from quietbit.mechanism.calibrate import calibrate
from quietbit.target import Adjacency, Trust, Unit

USUAL = {"mechanism": "imvu", "design_epsilon": 1.0, "cohort": 5, "clip": 1.0, "adjacency": "zero-out"}
NOISY = {"mechanism": "gaussian", "design_epsilon": None, "noise_multiplier": 3.0}


def plan(**given):
    return Plan(**{**USUAL, **given})


def test_words_and_members_are_the_same_plan():
    words = plan(norm="l1", unit="sample", adjacency="replace-one")
    assert words == plan(norm=quietbit.Norm.L1, unit=Unit.SAMPLE, adjacency=Adjacency.REPLACE_ONE)
    assert words.adjacency is Adjacency.REPLACE_ONE


def test_adjacency_has_no_default():
    with pytest.raises(TypeError, match="adjacency"):
        Plan("imvu", clip=1.0, design_epsilon=1.0)


@pytest.mark.parametrize(
    ("given", "mention"),
    [
        ({"mechanism": "rappor"}, "mechanism"),
        ({"design_epsilon": None}, "design_epsilon must be given for imvu, or a budget epsilon"),
        ({"noise_multiplier": 1.0}, "noise_multiplier must be left out for imvu"),
        ({"mechanism": "gaussian"}, "design_epsilon must be left out for gaussian"),
        ({"mechanism": "gaussian", "design_epsilon": None}, "noise_multiplier must be given for gaussian"),
        ({"mechanism": "none"}, "design_epsilon must be left out without privacy"),
        ({"mechanism": "none", "design_epsilon": None, "epsilon": 3.0}, "epsilon must be left out without privacy"),
        ({"mechanism": "none", "design_epsilon": None, "bits": 2}, "bits"),
        ({**NOISY, "bits": 3}, "bits must be left out for gaussian"),
        ({**NOISY, "mechanism": "sign", "beta": 2.0}, "beta must be left out for sign"),
        ({"mechanism": "auto"}, "design_epsilon must be left out for auto"),
        ({"mechanism": "auto", "design_epsilon": None}, "epsilon must be given for auto"),
        ({"mechanism": "auto", "design_epsilon": None, "epsilon": 1.0, "bits": 2}, "bits must be left out for auto"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"clip": float("nan")}, "clip"),
        ({"clip": 0.0}, "clip"),
        ({"releases": 0}, "releases"),
        ({"delta": 1.0}, "delta"),
        ({"norm": "l3"}, "norm"),
        ({"unit": "person"}, "unit"),
        ({"adjacency": "add-remove"}, "adjacency"),
        ({"adjacency": None}, "adjacency"),
        ({"rng": "fixed"}, "rng"),
        ({"participation": "poisson"}, "participation"),
        ({"seed": -1}, "seed"),
        ({"trust": "nobody"}, "trust"),
        ({"trust": "central"}, "mechanism must be gaussian under central trust"),
        ({"min_honest_clients": 3}, "min_honest_clients must be left out"),
        ({"trust": "secure-aggregation", "min_honest_clients": 6}, "min_honest_clients"),
        ({"trust": "secure-aggregation", "cohort": 1}, "cohort"),
        ({"trust": "secure-aggregation", "bits": 5}, "bits"),
        ({"trust": "secure-aggregation", "unit": "sample"}, "unit must be client"),
        ({"trust": "secure-aggregation", "mechanism": "mvu"}, "mechanism must be imvu"),
        ({"trust": "secure-aggregation", "design_epsilon": None, "epsilon": 1.0, "beta": 2.0}, "beta must be left out"),
    ],
)
def test_refusals(given, mention):
    with pytest.raises(quietbit.InvalidParameter, match=mention):
        plan(**given)


def test_secure_aggregation_states_whom_it_counts_on():
    assert plan(trust="secure-aggregation").min_honest_clients == 5
    assert plan(trust="secure-aggregation", min_honest_clients=4).min_honest_clients == 4
    assert plan().min_honest_clients is None


def test_a_budget_is_met_for_the_releases_of_the_plan():
    calibrated = {**NOISY, "noise_multiplier": None, "epsilon": 2.0}
    found = plan(**calibrated, releases=7).mechanism_for(30)
    ball = quietbit.Ball("l2", 1.0, 30)
    same = calibrate("gaussian", ball=ball, epsilon=2.0, delta=1e-5, adjacency="zero-out", releases=7)
    assert found == same.mechanism
    with pytest.raises(quietbit.InvalidParameter, match="releases must be given"):
        plan(**calibrated).mechanism_for(30)
    with pytest.raises(quietbit.InvalidParameter, match="sizes must be given"):
        plan(unit="sample").mechanism_for(30)
    with pytest.raises(quietbit.InvalidParameter, match="no mechanism"):
        plan(mechanism="none", design_epsilon=None).mechanism_for(30)


def test_a_strength_by_hand_is_what_is_built():
    assert plan(**NOISY).mechanism_for(30).noise_multiplier == 3
    small = plan(**NOISY, unit="sample").mechanism_for(30, np.array([40, 10]))
    assert small.noise_multiplier == pytest.approx(0.3)  # in units of the largest sensitivity, clip / 10
    built = plan(beta=4.0, clamp=True, bits=2, decoder="unbiased-at-zero").mechanism_for(30)
    assert (built.beta, built.clamp, built.bits, built.decoder) == (4.0, True, 2, "unbiased-at-zero")


@pytest.mark.parametrize("trust", sorted(set(Trust) - {Trust.SHUFFLED}, key=lambda trust: trust.value))
def test_one_release_has_the_words_of_the_plan(trust):
    chosen = plan(**(NOISY if trust is Trust.CENTRAL else {}), adjacency="replace-one", trust=trust)
    mechanism = chosen.mechanism_for(30)
    release = chosen.release(mechanism)
    assert (release.trust, release.adjacency, release.unit) == (trust, Adjacency.REPLACE_ONE, Unit.CLIENT)
    alone = mechanism.privacy(Adjacency.REPLACE_ONE).epsilon(1e-5)
    assert (release.epsilon(1e-5) < alone) == (trust is Trust.SECURE_AGGREGATION)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"design_epsilon": None, "epsilon": 8.0, "releases": 2},
        {"trust": "secure-aggregation"},
        {"trust": "secure-aggregation", "design_epsilon": None, "epsilon": 8.0, "releases": 2},
        {**NOISY},
        {"mechanism": "vmvu", "design_epsilon": None, "epsilon": 8.0, "releases": 2},
    ],
    ids=lambda given: "-".join(str(value) for value in given.values()),
)
def test_coordinates_that_are_kept(given):
    whole, kept = (plan(**given, keep=keep).mechanism_for(1000) for keep in (None, 256))
    assert kept.keep == 256
    assert kept.layout.size < whole.layout.size or given.get("mechanism") == "vmvu"  # 24 bytes in any case
    assert (getattr(kept, "rows", None) is not None) == (given.get("trust") == "secure-aggregation")
    with pytest.raises(quietbit.InvalidParameter, match="keep"):
        plan(**given, keep=300).mechanism_for(1000)
    with pytest.raises(quietbit.InvalidParameter, match="keep must be left out without privacy"):
        plan(mechanism="none", design_epsilon=None, keep=256)


def test_auto_protects_samples_too_by_the_account_that_the_run_will_keep():
    sizes = np.array([4, 10])
    chosen = plan(mechanism="auto", design_epsilon=None, epsilon=3.0, unit="sample", releases=2)
    found = chosen.mechanism_for(50, sizes)
    account = chosen.account(found, sizes)
    account.record(np.array([0, 1]))
    account.record(np.array([0, 1]))
    assert 2.99 < account.worst(1e-5).epsilon_upper <= 3.0


@pytest.mark.parametrize("given", [{}, {"epsilon": 2.0, "design_epsilon": None, "releases": 3}])
def test_small_coordinates_decode_to_themselves_unless_the_paper_s_alphabet_is_asked_for(given):
    assert plan(**given).mechanism_for(30).error().gain == pytest.approx(1.0, abs=1e-6)
    assert plan(**given, decoder="alphabet").mechanism_for(30).error().gain > 1.01
