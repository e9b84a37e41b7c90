import attrs
import numpy as np
import pytest

import quietbit
from plans import engine_plan, flat_plan
from quietbit import Plan
from quietbit.federation.fields import RULE, Flag, Names, Real, Whole, Word
from quietbit.federation.parts.evaluation import Evaluate
from quietbit.federation.parts.stragglers import Stragglers
from quietbit.federation.parts.subspace import InSubspace
from quietbit.federation.parts.weights import Weights
from quietbit.federation.plan import PAIRS, SECTIONS, SPELT
from quietbit.federation.terms import MechanismChoice
from quietbit.mechanism.calibrate import calibrate
from quietbit.target import Adjacency, Trust, Unit
from refusals import refuses

USUAL = {
    "mechanism": "imvu",
    "design_epsilon": 1.0,
    "cohort": 5,
    "clip": 1.0,
    "adjacency": "zero-out",
}
# What a section needs besides the field that is tested, and what turns a choice on.
NEEDED = {
    InSubspace: {"directions": 4},
    MechanismChoice: {"name": "imvu"},
    Evaluate: {"epsilon": 1.0},
    Stragglers: {"enough": 1},
    Weights: {"most_examples": 1},
}
ON = {
    "central": {"trust": "central"},
    "public": {"mechanism": "none", "design_epsilon": None},
    "secure_aggregation": {"secure_aggregation": {"threshold": 5, "adversary": "active"}},
    "samples": {"samples": True},
    "adaptive_clip": {"adaptive_clip": True},
    "evaluate": {"evaluate": {"epsilon": 1.0}},
    "replay": {"replay": True},
    "weights": {"weights": {"most_examples": 10}},
    "stragglers": {"stragglers": {"enough": 2}},
    "subspace": {"subspace": 4},
}
NOISY = {"mechanism": "gaussian", "design_epsilon": None, "noise_multiplier": 3.0}


def plan(**given):
    return flat_plan(**{**USUAL, **given})


def test_words_and_members_are_the_same_plan():
    words = plan(norm="l1", samples=True, adjacency="replace-one")
    assert words == plan(norm=quietbit.Norm.L1, samples=True, adjacency=Adjacency.REPLACE_ONE)
    assert words.adjacency is Adjacency.REPLACE_ONE


def test_adjacency_has_no_default():
    with pytest.raises(TypeError, match="adjacency"):
        Plan("imvu", clip=1.0)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"mechanism": "rappor"}, "mechanism"),
        ({"design_epsilon": None}, "epsilon"),
        ({"noise_multiplier": 1.0}, "mechanism.noise_multiplier"),
        ({"mechanism": "gaussian"}, "mechanism.design_epsilon"),
        ({"mechanism": "gaussian", "design_epsilon": None}, "epsilon"),
        ({"mechanism": "none"}, "mechanism.design_epsilon"),
        ({"mechanism": "none", "design_epsilon": None, "epsilon": 3.0}, "epsilon"),
        ({"mechanism": "none", "design_epsilon": None, "bits": 2}, "mechanism.bits"),
        (
            {"mechanism": "none", "design_epsilon": None, "coordinates": 256},
            "mechanism.coordinates",
        ),
        ({**NOISY, "bits": 3}, "mechanism.bits"),
        ({**NOISY, "mechanism": "sign", "beta": 2.0}, "mechanism.beta"),
        ({"mechanism": "auto"}, "mechanism.design_epsilon"),
        ({"mechanism": "auto", "design_epsilon": None}, "epsilon"),
        (
            {"mechanism": "auto", "design_epsilon": None, "epsilon": 1.0, "bits": 2},
            "mechanism.bits",
        ),
        ({"clip": float("nan")}, "clip"),
        ({"clip": 0.0}, "clip"),
        ({"releases": 0}, "releases"),
        ({"delta": 1.0}, "delta"),
        ({"norm": "l3"}, "norm"),
        ({"samples": "all"}, "samples"),
        ({"adjacency": "add-remove"}, "adjacency"),
        ({"adjacency": None}, "adjacency"),
        ({"trust": "nobody"}, "trust"),
        ({"trust": "shuffled"}, "trust"),
        ({"trust": "central"}, "mechanism"),
        ({"trust": "secure-aggregation", "honest_clients": 6}, "secure_aggregation.honest_clients"),
        ({"trust": "secure-aggregation", "cohort": 1}, "cohort"),
        ({"trust": "secure-aggregation", "bits": 2}, "mechanism.bits"),
        ({"trust": "secure-aggregation", "mechanism": "mvu"}, "mechanism"),
        (
            {"trust": "secure-aggregation", "design_epsilon": None, "epsilon": 1.0, "beta": 2.0},
            "mechanism.beta",
        ),
        ({"rows": "own"}, "mechanism.rows"),
        ({"coordinates": 256, "rows": "own", "trust": "secure-aggregation"}, "mechanism.rows"),
        ({"replay": True}, "replay"),
        ({"evaluate": {"epsilon": 1.0}}, "evaluate"),
        ({"stragglers": {"enough": 3}}, "stragglers"),
        ({"threshold": 3}, "secure_aggregation.threshold"),
        ({"samples": {"dataset_size": 3}}, "samples.dataset_size"),
        ({"local_arrays": [1]}, "local_arrays"),
    ],
)
def test_a_refusal_names_the_field_at_fault(given, name):
    with refuses(name):
        plan(**given)


RULED = [
    (section, field)
    for section in (Plan, *SECTIONS)
    for field in attrs.fields(section)
    if RULE in field.metadata
]
BAD = {
    Whole: lambda rule: (
        [rule.low - 1, True, "3", 1.5, float("nan")]
        + ([] if rule.high is None else [rule.high + 1])
    ),
    Real: lambda rule: [
        0.0 if rule.at_least is None else rule.at_least - 1,
        -1.0,
        True,
        "3",
        float("nan"),
        float("inf"),
    ],
    Word: lambda rule: ["another", 3, ""],
    Flag: lambda rule: ["yes", 1, "true"],
    Names: lambda rule: ["", "a,,b", "a, a", 3, [1], [], [str(k) for k in range(rule.most + 1)]],
}


@pytest.mark.parametrize(
    ("section", "field"), RULED, ids=lambda one: getattr(one, "name", getattr(one, "title", ""))
)
def test_every_field_refuses_what_its_rule_does_not_allow(section, field):
    """The table of bad input is made from the rules that the fields carry."""
    rule = field.metadata[RULE]
    name = field.name if section is Plan else f"{section.title}.{field.name}"
    make = plan if section is Plan else section
    for value in BAD[type(rule)](rule):
        with pytest.raises(quietbit.InvalidParameter) as refusal:
            make(**{**NEEDED.get(section, {}), field.name: value})
        assert (refusal.value.name, repr(refusal.value.value)) == (name, repr(value))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.first}-{'-'.join(pair.others)}")
def test_choices_that_may_not_be_made_together(pair):
    """Every pair of the list is refused, and the section at fault is named."""
    for other in pair.others:
        chosen = {**ON[pair.first], **ON[other]}
        made = plan
        if (
            {"secure_aggregation", "samples"} & {pair.first, other}
            or "evaluate" in other
            or "stragglers" in other
        ):
            usual = {name: USUAL[name] for name in ("mechanism", "clip", "adjacency")}
            chosen = {"epsilon": 1.0, "releases": 1, **usual, **chosen}
            made = engine_plan
        with pytest.raises(quietbit.InvalidParameter) as refusal:
            made(**chosen)
        expected = SPELT.get(other, (other,))[0]
        assert refusal.value.name == expected
        assert refusal.value.rule.endswith(pair.sentence)


@pytest.mark.parametrize("key", ["quietbit.subspace", "quietbit.subspace.directions"])
def test_a_section_whose_main_key_is_false_is_off(key):
    config = {"quietbit.mechanism": "vmvu", "quietbit.clip": 1.0, "quietbit.epsilon": 8.0}
    config |= {"quietbit.adjacency": "zero-out", "quietbit.releases": 1}
    assert Plan.from_run_config({**config, key: False}).subspace is None
    assert Plan.from_run_config({**config, key: 4}).subspace == InSubspace(4)
    with refuses("quietbit.subspace.directions", 0):
        Plan.from_run_config({**config, key: 0})


def test_a_budget_is_met_for_the_releases_of_the_plan():
    calibrated = {**NOISY, "noise_multiplier": None, "epsilon": 2.0}
    found = plan(**calibrated, releases=7).mechanism_for(30)
    ball = quietbit.Ball("l2", 30)
    same = calibrate(
        "gaussian", ball=ball, epsilon=2.0, delta=1e-5, adjacency="zero-out", releases=7
    )
    assert found == same.mechanism
    with pytest.raises(quietbit.InvalidParameter, match="releases must be given"):
        plan(**calibrated).mechanism_for(30)
    with refuses("sizes"):
        plan(samples=True).mechanism_for(30)
    with refuses("mechanism", "none"):
        plan(mechanism="none", design_epsilon=None).mechanism_for(30)


def test_a_strength_by_hand_is_what_is_built():
    assert plan(**NOISY).mechanism_for(30).noise_multiplier == 3
    small = plan(**NOISY, samples=True).mechanism_for(30, np.array([40, 10]))
    assert small.noise_multiplier == pytest.approx(
        0.3
    )  # in units of the largest sensitivity, clip / 10
    built = plan(beta=4.0, clamp=True, bits=2, decoder="unbiased-at-zero").mechanism_for(30)
    assert (built.beta, built.clamp, built.bits, built.decoder) == (
        4.0,
        True,
        2,
        "unbiased-at-zero",
    )


@pytest.mark.parametrize(
    "trust", sorted(set(Trust) - {Trust.SHUFFLED}, key=lambda trust: trust.value)
)
def test_one_release_has_the_words_of_the_plan(trust):
    chosen = plan(**(NOISY if trust is Trust.CENTRAL else {}), adjacency="replace-one", trust=trust)
    mechanism = chosen.mechanism_for(4)
    release = chosen.release(mechanism)
    words = (release.trust, release.adjacency, release.unit)
    assert words == (trust, Adjacency.REPLACE_ONE, Unit.CLIENT)
    alone = mechanism.privacy(Adjacency.REPLACE_ONE)
    assert (release.rdp(2.0) < alone.rdp(2.0)) == (trust is Trust.SECURE_AGGREGATION)


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
    whole, kept = (plan(**given, coordinates=keep).mechanism_for(1000) for keep in (None, 256))
    assert kept.keep == 256
    assert (
        kept.layout.size < whole.layout.size or given.get("mechanism") == "vmvu"
    )  # 24 bytes in any case
    assert (getattr(kept, "rows", None) is not None) == (given.get("trust") == "secure-aggregation")
    with pytest.raises(quietbit.InvalidParameter, match="coordinates"):
        plan(**given, coordinates=300).mechanism_for(1000)


def test_auto_protects_samples_too_by_the_account_that_the_run_will_keep():
    sizes = np.array([4, 10])
    chosen = plan(mechanism="auto", design_epsilon=None, epsilon=3.0, samples=True, releases=2)
    found = chosen.mechanism_for(50, sizes)
    account = chosen.account(found, sizes)
    account.record(np.array([0, 1]))
    account.record(np.array([0, 1]))
    assert 2.99 < account.worst(1e-5).epsilon_upper <= 3.0


@pytest.mark.parametrize("given", [{}, {"epsilon": 2.0, "design_epsilon": None, "releases": 3}])
def test_small_coordinates_decode_to_themselves_unless_the_paper_s_alphabet_is_asked_for(given):
    assert plan(**given).mechanism_for(30).error().gain == pytest.approx(1.0, abs=1e-6)
    assert plan(**given, decoder="alphabet").mechanism_for(30).error().gain > 1.01
